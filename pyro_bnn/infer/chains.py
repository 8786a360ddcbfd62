"""Markov chains side by side: one process a core, one progress bar for all of them.

A chain is a function of its number alone, so the draws are the same in whatever process and order
the chains run. Workers are started without ``fork`` and get what they need pickled by cloudpickle:
lambdas, classes of a notebook and scripts without a ``__main__`` guard work.
"""

from __future__ import annotations

import logging
import os
import pickle
import signal
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, wait
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Protocol, TypeAlias, TypeVar

import joblib
import numpy as np
import torch
from joblib.externals.loky import ProcessPoolExecutor
from joblib.externals.loky.backend.reduction import dumps
from numpy.typing import NDArray
from tqdm.auto import tqdm

logger = logging.getLogger("pyro_bnn")

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

POLL_SECONDS = 0.2


class State(NamedTuple):
    """Where a chain stands after a draw: one row of the board."""

    draws: int  # warm-up included
    divergences: int
    acceptance_rate: float
    step_size: float


Report: TypeAlias = Callable[[State], None]


class Chains(Protocol[T_co]):
    """What :func:`run_chains` runs: pickled before ``prepare``, which is called in each process."""

    def prepare(self) -> Callable[[int, Report], T_co]:
        """Do what all chains of a process share; returns the function of the chain's number."""
        ...


def run_chains(
    chains: Chains[T],
    num_chains: int,
    num_draws: int,
    *,
    progress: bool,
    title: str,
    num_processes: int | None = None,
) -> list[T]:
    """Run all chains and return their results in order.

    Args:
        chains: Makes the function of a chain's number.
        num_chains: Number of chains C.
        num_draws: Draws of each chain, warm-up included: the length of the progress bar.
        progress: Whether to show the progress bar.
        title: Name in front of the bar.
        num_processes: Largest number of processes; default one a core, 1 for this process alone.

    Raises:
        Exception: What a chain raised; the other chains are stopped.
    """
    num_processes = min(num_chains, joblib.cpu_count() if num_processes is None else num_processes)
    with Progress(num_chains, num_draws, show=progress, title=title) as board:
        if num_processes == 1:
            if num_chains > 1:
                logger.info("%s runs its %d chains in this process, one core", title, num_chains)
            return _run_here(chains, num_chains, board)
        try:
            pickled = dumps(chains)
        except Exception as error:
            return _run_here(chains, num_chains, board, f"the model cannot be pickled: {error}")
        try:
            return _run_in_workers(bytes(pickled), num_chains, num_processes, board)
        except _NotLoadedError as error:
            return _run_here(chains, num_chains, board, str(error))


class Progress:
    """One bar for all chains, fed by a board of one row a chain.

    Args:
        num_chains: Number of chains C.
        num_draws: Draws of each chain.
        show: Whether there is a bar.
        title: Name in front of the bar.

    Attributes:
        board: Draws, divergences, mean acceptance, step size of each chain ``[C, 4]``.
    """

    def __init__(self, num_chains: int, num_draws: int, *, show: bool, title: str) -> None:
        self.board: NDArray[np.float64] = np.zeros((num_chains, len(State._fields)))
        total = num_chains * num_draws
        self._bar = tqdm(total=total, disable=not show, desc=title, unit="draw")

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._bar.close()

    def report(self, chain: int) -> Report:
        """The report of one chain that runs in this process."""

        def report(state: State) -> None:
            self.board[chain] = state
            self.show()

        return report

    def show(self) -> None:
        """Bring the bar up to date."""
        states = [State(*row) for row in self.board.tolist() if row[0] > 0]
        if self._bar.disable or not states:
            return
        acceptance = np.mean([state.acceptance_rate for state in states])
        step_size = np.mean([state.step_size for state in states])
        divergences = sum(int(state.divergences) for state in states)
        self._bar.set_postfix_str(
            f"{divergences} divergences, acceptance {acceptance:.2f}, step {step_size:.2g}",
            refresh=False,
        )
        self._bar.update(sum(int(state.draws) for state in states) - self._bar.n)


class _NotLoadedError(Exception):
    """A worker could not unpickle the chains."""


def _run_here(
    chains: Chains[T], num_chains: int, progress: Progress, why: str | None = None
) -> list[T]:
    """All chains in this process, one after the other."""
    if why is not None:
        logger.warning("the chains run one after the other in this process: %s", why)
    with single_threaded():
        run = chains.prepare()
        return [run(chain, progress.report(chain)) for chain in range(num_chains)]


def _run_in_workers(
    pickled: bytes, num_chains: int, num_processes: int, progress: Progress
) -> list[Any]:
    """The chains in worker processes, which end with this call whatever happens."""
    with tempfile.TemporaryDirectory(prefix="pyro-bnn-", ignore_cleanup_errors=True) as folder:
        job, board = Path(folder) / "chains.pkl", Path(folder) / "board"
        job.write_bytes(pickled)
        progress.board = np.memmap(board, np.float64, "w+", shape=progress.board.shape)
        executor = ProcessPoolExecutor(
            num_processes, env={"OMP_NUM_THREADS": "1"}, initializer=_initialise
        )
        try:
            futures = [
                executor.submit(_run_one, job, board, num_chains, chain, os.getpid())
                for chain in range(num_chains)
            ]
            pending: set[Any] = set(futures)
            while pending:
                done, pending = wait(pending, POLL_SECONDS, return_when=FIRST_EXCEPTION)
                progress.show()
                for future in done:
                    future.result()
            results = [future.result() for future in futures]
        finally:
            executor.shutdown(wait=True, kill_workers=True)
            progress.board = np.array(progress.board)  # the file goes
    messages = [message for _, found in results for message in found]
    for level, message in dict.fromkeys(messages):  # what several workers say is said once
        logger.log(level, "%s", message)
    return [result for result, _ in results]


# In a worker


def _initialise() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the parent, which stops us
    torch.set_num_threads(1)


@cache
def _prepared(job: Path) -> Callable[[int, Report], Any]:
    try:
        chains = pickle.loads(job.read_bytes())  # noqa: S301 - written by the parent just now
    except Exception as error:
        raise _NotLoadedError(f"a worker cannot load the model: {error}") from error
    run: Callable[[int, Report], Any] = chains.prepare()
    return run


def _run_one(
    job: Path, board: Path, num_chains: int, chain: int, parent: int
) -> tuple[Any, list[tuple[int, str]]]:
    """One chain's result, and what it logged."""
    rows = np.memmap(board, np.float64, "r+", shape=(num_chains, len(State._fields)))

    def report(state: State) -> None:
        if os.getppid() != parent:
            os._exit(1)  # nobody waits for this chain any more
        rows[chain] = state

    with _recorded() as messages:
        return _prepared(job)(chain, report), messages


@contextmanager
def _recorded() -> Iterator[list[tuple[int, str]]]:
    """Keep what is logged, level and text, instead of writing it to the worker's stderr."""
    messages: list[tuple[int, str]] = []

    class Recorder(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            messages.append((record.levelno, record.getMessage()))

    handler = Recorder()
    logger.addHandler(handler)
    propagate, logger.propagate = logger.propagate, False
    try:
        yield messages
    finally:
        logger.removeHandler(handler)
        logger.propagate = propagate


@contextmanager
def single_threaded() -> Iterator[None]:
    """One thread for torch inside: sums over several threads would round differently."""
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(num_threads)


def chain_seeds(seed: int, num_chains: int, stream: int = 0) -> Sequence[int]:
    """Independent seeds of the chains, the same for a chain whatever their number.

    Args:
        seed: Seed of the run, >= 0.
        num_chains: Number of chains.
        stream: Another number gives other seeds for another purpose.

    Example:
        >>> chain_seeds(0, 2) == chain_seeds(0, 3)[:2]
        True
    """
    sequences = [np.random.SeedSequence(seed, spawn_key=(stream, c)) for c in range(num_chains)]
    return [int(sequence.generate_state(1, np.uint64)[0] >> 1) for sequence in sequences]
