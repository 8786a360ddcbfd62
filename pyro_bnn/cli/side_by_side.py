"""Work in processes side by side: while they run, what they say and how far they are is shown.

Ctrl-C reaches this process alone. It interrupts each process that works once, so that a fit with a
checkpoint finishes its step and saves its state.

The processes are not joblib's, because loky ends them at Ctrl-C before a fit has saved its state,
fails all tasks where one process is killed, and shows no bars of its tasks.
"""

from __future__ import annotations

import io
import multiprocessing as mp
import os
import shutil
import signal
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing, contextmanager
from functools import partial
from typing import Any, TypeAlias, TypeVar

from tqdm.auto import tqdm

from pyro_bnn.cli import fork_server
from pyro_bnn.cli.signals import ignore_all
from pyro_bnn.errors import BNNError
from pyro_bnn.posterior.provenance import one_of_processes

T = TypeVar("T")
Say: TypeAlias = Callable[[str], object]
ENDED = "a process ended by itself, perhaps for want of memory: have fewer --jobs"
SECONDS = 0.1  # between two looks at what the processes sent

_queue: Any = None  # of a process of the pool: what it sends, (name, kind, value)


def run(
    tasks: Mapping[str, Callable[[Say], T]],
    num_processes: int,
    threads: int,
    say: Say,
    *,
    progress: bool,
    if_killed: Callable[[str], T] | None = None,
) -> dict[str, T]:
    """Do all tasks, some at a time.

    Args:
        tasks: By name, in the order of their beginnings; each can be pickled and gets a function
            that says a line here. Bars that it draws on the standard error are drawn here.
        num_processes: How many are done at a time.
        threads: CPU threads of each.
        say: Gets the lines, as they come.
        progress: Whether bars are shown.
        if_killed: What stands for a task whose process ended by itself; the others go on. By
            default that is an error.

    Returns:
        What each returned, in the order of the tasks.

    Raises:
        KeyboardInterrupt: If Ctrl-C came; all that ran has ended.
        BNNError: If a process ended by itself. Of another error of a task it is that error.
    """
    with (
        closing(_Screen(num_processes if progress else 0, say)) as screen,
        closing(_Workers(num_processes, threads)) as workers,
    ):
        done = _watch(tasks, workers, screen, if_killed)
    return {name: done[name] for name in tasks}


class _Workers:
    """Processes, each in a pool of its own, so that one that is killed takes no other with it.

    Args:
        count: How many.
        threads: CPU threads of each.
    """

    def __init__(self, count: int, threads: int) -> None:
        self.count, self._threads = count, threads
        self._free = [self._pool() for _ in range(count)]
        self._busy: dict[str, tuple[ProcessPoolExecutor, Any]] = {}

    def _pool(self) -> tuple[ProcessPoolExecutor, Any]:
        """A pool of one process, and a queue of its own, so that no process waits for another."""
        context = fork_server.context(self._threads)
        queue = context.SimpleQueue()
        arguments = (queue, shutil.get_terminal_size().columns)
        return ProcessPoolExecutor(1, context, _begin, arguments), queue

    def begin(self, name: str, task: Callable[[Say], T]) -> Future[T]:
        """Begin a task; there is a process that is free."""
        self._busy[name] = self._free.pop()
        values = dict.fromkeys(fork_server.POOLS, str(self._threads))
        with fork_server.environment(values):
            pool, _ = self._busy[name]
            return pool.submit(_call, name, task, self.count, self._threads)

    def sent(self) -> Iterator[tuple[str, str, Any]]:
        """What tasks have sent since the last call: name, kind, value."""
        for _, queue in list(self._busy.values()):
            while not queue.empty():
                yield queue.get()

    def end(self, name: str, *, was_killed: bool) -> None:
        """Free the process of a task that has ended; one that was killed is replaced."""
        process = self._busy.pop(name)
        if was_killed:
            process[0].shutdown()
        self._free.append(self._pool() if was_killed else process)

    def close(self) -> None:
        """End the processes."""
        for pool, _ in [*self._free, *self._busy.values()]:
            pool.shutdown()


@contextmanager
def processes(num_processes: int, threads: int) -> Iterator[ProcessPoolExecutor]:
    """Processes that a terminal's Ctrl-C does not reach, and that end with this one.

    Args:
        num_processes: How many.
        threads: CPU threads of each.
    """
    context, columns = fork_server.context(threads), shutil.get_terminal_size().columns
    with (
        fork_server.environment(dict.fromkeys(fork_server.POOLS, str(threads))),
        ProcessPoolExecutor(num_processes, context, _begin, (None, columns)) as pool,
    ):
        yield pool


def _watch(
    tasks: Mapping[str, Callable[[Say], T]],
    workers: _Workers,
    screen: _Screen,
    if_killed: Callable[[str], T] | None,
) -> dict[str, T]:
    """Begin a task where a process is free, and show what they send, until all is done.

    When something failed, no other begins, and those that have begun are waited for. A pool would
    take all tasks at once, but cannot cancel those that its processes are next to read.
    """
    to_begin = deque(tasks.items())
    waiting: dict[Future[T], str] = {}
    running: dict[str, int] = {}  # name to process
    values: dict[str, T] = {}
    stops: BaseException | None = None

    def stop_all(why: BaseException) -> None:
        nonlocal stops
        stops = stops or why
        to_begin.clear()
        for process in running.values():
            _interrupt(process)

    def show() -> None:
        for name, kind, value in workers.sent():
            if kind == "begins":
                running[name] = value
                if stops is not None:  # it was on its way already
                    _interrupt(value)
            screen.show(name, kind, value)

    while to_begin or waiting:
        try:
            while to_begin and len(waiting) < workers.count:
                name, task = to_begin.popleft()
                waiting[workers.begin(name, task)] = name
            done, _ = wait(waiting, SECONDS, FIRST_COMPLETED)
            show()
            for future in done:
                name, error = waiting.pop(future), future.exception()
                was_killed = isinstance(error, BrokenProcessPool)
                workers.end(name, was_killed=was_killed)
                running.pop(name, None)
                screen.show(name, "ends", None)
                if error is None:
                    values[name] = future.result()
                elif was_killed and if_killed is not None and stops is None:
                    values[name] = if_killed(name)
                    screen.show(name, "line", f"{name}: {ENDED}")
                elif stops is None:
                    stop_all(BNNError(ENDED) if was_killed else error)
        except KeyboardInterrupt as asked:
            stop_all(asked)
    if stops is not None:
        raise stops
    return values


def _interrupt(process: int) -> None:
    try:
        os.kill(process, signal.SIGINT)
    except ProcessLookupError:
        return  # it has ended


class _Screen:
    """Lines, and below them a bar for each process.

    Args:
        num_bars: How many bars there are.
        say: Gets the lines.
    """

    def __init__(self, num_bars: int, say: Say) -> None:
        self._say = say
        self._bars: list[Any] = [
            tqdm(total=0, bar_format="{desc}", position=i, leave=False) for i in range(num_bars)
        ]
        self._names: list[str | None] = [None] * num_bars

    def close(self) -> None:
        """Take the bars off the screen."""
        for bar in self._bars:
            bar.close()

    def show(self, name: str, kind: str, value: Any) -> None:
        """Show what a task sent: a line, a note for the standard error, or its bar."""
        if kind == "line":
            with tqdm.external_write_mode():
                self._say(value)
        elif kind == "note":
            tqdm.write(value, file=sys.stderr)
        elif kind in ("bar", "ends") and self._bars:
            if kind == "bar" and name not in self._names:
                self._names[self._names.index(None) if None in self._names else 0] = name
            if name in self._names:
                place = self._names.index(name)
                self._bars[place].set_description_str(value or "")
                self._names[place] = name if kind == "bar" else None


# In a process of the pool


def _begin(queue: Any, columns: int) -> None:
    """Prepare a process: a terminal's Ctrl-C does not reach it, and it ends with its parent."""
    global _queue  # noqa: PLW0603 (of the process, as its tasks are)
    _queue = queue
    os.environ["COLUMNS"] = str(columns)  # of bars
    tqdm.set_lock(threading.RLock())  # its own is a semaphore that a killed process would leave
    ignore_all()
    if hasattr(os, "setpgrp"):
        os.setpgrp()
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = mp.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _call(name: str, task: Callable[[Say], T], num_processes: int, threads: int) -> T:
    """One task; its interruption is an error like others."""
    before = sys.stderr
    sys.stderr = _Sent(name)  # all that is used of it is there
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        _queue.put((name, "begins", os.getpid()))
        with one_of_processes(num_processes, threads):
            return task(partial(_send, name, "line"))
    except KeyboardInterrupt as error:
        raise KeyboardInterrupt(str(error)) from None  # what it holds may be large
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        sys.stderr = before


def _send(name: str, kind: str, text: str) -> None:
    _queue.put((name, kind, text))


class _Sent(io.TextIOBase):
    """A standard error whose lines are notes, and what follows a carriage return a bar."""

    encoding = "utf-8"

    def __init__(self, name: str) -> None:
        self._name, self._held = name, ""

    def write(self, text: str) -> int:
        """Send what is complete."""
        *lines, self._held = (self._held + text).split("\n")
        for line in lines:
            if "\r" not in line:  # else a bar at its end, which has been shown
                _send(self._name, "note", line)
        _, is_bar, bar = self._held.rpartition("\r")
        if is_bar and bar.strip():
            _send(self._name, "bar", bar.rstrip())
        return len(text)
