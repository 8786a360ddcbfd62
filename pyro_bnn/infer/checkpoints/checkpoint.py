"""Checkpoints: a run's state in a folder, from which the same call goes on after any end.

An engine's run implements two methods, :class:`Resumable`, and its loop calls
:meth:`Checkpoint.step`. The folder holds one file, ``pyro-bnn-checkpoint.safetensors``, which a
newer one takes the place of once the disk has it: whenever a run is killed, the file is whole.
"""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import torch

from pyro_bnn.errors import BNNError, FileFormatError, OptionError, OutputError
from pyro_bnn.files.atomic import whole
from pyro_bnn.files.schema import expect
from pyro_bnn.files.tensors import pour, read_tensors
from pyro_bnn.infer.checkpoints import interrupts
from pyro_bnn.infer.checkpoints.folder_lock import locked
from pyro_bnn.infer.checkpoints.identity import Identity, surroundings
from pyro_bnn.infer.checkpoints.interrupts import Interrupted

__all__ = ["Checkpoint", "Identity", "Interrupted", "Resumable", "State", "users_code"]

logger = logging.getLogger("pyro_bnn")

NAME = "pyro-bnn-checkpoint.safetensors"
OLD_NAME = "manifest.json"  # of format version 2
FORMAT, VERSION = "pyro_bnn checkpoint", 5
SCHEMA = {
    "format": str,
    "version": int,
    "number": int,
    "engine": str,
    "options": dict,
    "seed": int,
    "sites": {str: [int]},
    "dtype": str,
    "fingerprint": [float],
    "num_data": int,
    "data": str,
    "compile_path": str,
    "own_order": bool,
    "surroundings": dict,
    "place": str,
    "is_complete": bool,
    "wall_time": float,
    "state": dict,
}
SECONDS = 30.0  # between two saves

State: TypeAlias = dict[str, Any]


class Resumable(Protocol):
    """What a checkpoint needs of a run."""

    def state(self) -> State:
        """All that the next steps depend on, at a moment between two steps.

        Returns:
            Nested dicts and lists of tensors, numbers, strings and None. Tensors may be live, as
            they are read at once. Entry ``"place"`` says where the run is, as in ``"step 512 of
            10000"``, and ``"compile_path"`` how it computes: ``"apart"``, ``"compiled"``,
            ``"captured"`` or ``"eager"``.
        """

    def restore(self, state: State) -> None:
        """Go to a state that a run of the same identity was in; its tensors may be kept.

        Raises:
            FileFormatError: If it is no state of this run; so become errors of missing entries,
                and of wrong types and values, but those in :func:`users_code`.
        """


class _UsersCodeError(Exception):
    """An error that says nothing about a state, on its way through a restore."""

    def __init__(self, error: Exception) -> None:
        self.error = error


@contextlib.contextmanager
def users_code() -> Iterator[None]:
    """Around the user's model in :meth:`Resumable.restore`: its errors stay what they are."""
    try:
        yield
    except Exception as error:
        raise _UsersCodeError(error) from error


class Checkpoint:
    """The folder of one run; without a folder it saves nothing, and answers Ctrl-C all the same.

    Args:
        folder: The folder, or None for none.
        identify: Makes the run's identity; called only if there is a folder.
        resume: Whether to go on from what is there. If nothing is, the run starts at the beginning,
            and a line says so.
        device: Where the run computes.
        own_order: Whether the order of data is the user's own, which cannot be replayed.
        start: When the run began, by ``time.perf_counter``.

    Raises:
        DataError, OptionError, SiteError: If the checkpoint is of another run.
        FileFormatError: If the checkpoint is damaged, foreign, older or newer.
        OptionError: If there is a checkpoint already and ``resume`` is False, ``resume`` is True
            without a folder, or a run of a GPU is to go on without one, or the other way round.

    Attributes:
        folder: Where it is, made at the first save; an engine may keep a file of its own there.
        compile_path: How the run that is resumed computes, to be followed; None for a new one.
        is_complete: Whether the run that is resumed had come to its end.
        threads: CPU threads of torch in the run; None where it is not known.
    """

    def __init__(
        self,
        folder: str | Path | None = None,
        *,
        identify: Callable[[], Identity] | None = None,
        resume: bool = False,
        device: torch.device,
        own_order: bool = False,
        start: float,
    ) -> None:
        self.folder = None if folder is None else Path(folder)
        self._device, self._own_order, self._start = device, own_order, start
        self._identity: Identity | None = None
        self._saved: dict[str, Any] | None = None
        self.compile_path: str | None = None
        self.threads: int | None = torch.get_num_threads()
        self._number, self.is_complete = 0, False  # of saves so far
        if self.folder is not None:
            assert identify is not None
            self._open(self.folder, identify, resume=resume)
        elif resume:
            raise OptionError("resume=True needs checkpoint='folder': where the run was saved")
        self._file = _file_of(self.folder)
        self._next_save = -float("inf")  # the first step shows whether the folder can be written

    def _open(self, folder: Path, identify: Callable[[], Identity], *, resume: bool) -> None:
        if not resume and any((folder / name).exists() for name in (NAME, OLD_NAME)):
            raise OptionError(
                f"{folder} holds a checkpoint already: pass resume=True to go on from it, or "
                "another folder"
            )
        self._identity, saved = identify(), read_checkpoint(folder)
        if saved is not None:
            self._identity.check(saved, folder)
            _check_device(saved["surroundings"].get("device"), self._device, folder)
            self._saved, self._number = saved, saved["number"]
            self.compile_path, self.is_complete = saved["compile_path"], saved["is_complete"]
            if self.is_complete:
                threads = saved["surroundings"].get("threads")
                self.threads = threads if type(threads) is int else None
        elif resume:
            logger.warning("%s holds no checkpoint: the run starts at the beginning", folder)

    @property
    def wall_time(self) -> float:
        """Seconds of the run so far, those before it was resumed included."""
        before = 0.0 if self._saved is None else float(self._saved["wall_time"])
        return before if self.is_complete else before + time.perf_counter() - self._start

    def restore(self, run: Resumable) -> bool:
        """Give the run its saved state, once; False where there is none, and it starts anew.

        Raises:
            FileFormatError: If the state is damaged.
        """
        if self._saved is None or self.folder is None:
            return False
        saved = self._saved
        try:
            run.restore(saved.pop("state"))  # only the run keeps the state
            now = self.compile_path if self.is_complete else run.state()["compile_path"]
        except _UsersCodeError as passed:
            raise passed.error from passed.error.__cause__
        except (BNNError, MemoryError, torch.OutOfMemoryError):
            raise
        except Exception as error:
            path = self.folder / NAME
            raise FileFormatError(f"{path} is no state of this run: {error!r}") from error
        reasons = [] if self.is_complete else self._differences(saved, now)
        if reasons:
            logger.warning(
                "resumed at %s, but not bit for bit: %s", saved["place"], "; ".join(reasons)
            )
        else:
            logger.info("resumed at %s", saved["place"])
        return True

    def step(self, run: Resumable) -> None:
        """Between two steps of a run: save where it is time, and stop where Ctrl-C came.

        Raises:
            Interrupted: If Ctrl-C came, after saving.
            OutputError: If the state cannot be written; the last one is as it was.
        """
        if interrupts.is_asked():
            self._save(run, is_complete=False)
            raise Interrupted(self._how_to_go_on(run.state()["place"]))
        if self.folder is not None and time.monotonic() >= self._next_save:
            self._save(run, is_complete=False)

    def finish(self, run: Resumable) -> None:
        """Save the state at the end of a run, from which ``resume`` gives the result at once.

        Raises:
            OutputError: If the state cannot be written; the last one is as it was.
        """
        if not self.is_complete:
            self._save(run, is_complete=True)

    @contextlib.contextmanager
    def watch(self) -> Iterator[None]:
        """Around the loop: the first Ctrl-C stops the run after its step, the second at once.

        Until its end no other run can save to the folder.

        Raises:
            Interrupted: At the end, if Ctrl-C came after the last step.
            OptionError: If another run is saving to the folder, or has since this one began.
        """
        with interrupts.watch():
            with self._alone():
                yield
            if interrupts.is_asked():
                how = "" if self.folder is None else f"; {self._call} gives its posterior"
                raise Interrupted(f"stopped after the last step{how}")

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """The folder of a run that is to save, locked and without what a killed one left there."""
        if self.folder is None or self.is_complete:
            yield
            return
        with contextlib.suppress(OSError):  # is told at the first save
            self.folder.mkdir(parents=True, exist_ok=True)
        if not self.folder.is_dir():
            yield
            return
        with locked(self.folder):
            if _file_of(self.folder) != self._file:
                raise OptionError(
                    f"another run has saved to {self.folder} since this one began: pass "
                    "resume=True to go on from there, or another folder"
                )
            for path in self.folder.glob(f".{NAME}.*.tmp"):
                path.unlink(missing_ok=True)
            yield

    @property
    def _call(self) -> str:
        return f"run(..., checkpoint={str(self.folder)!r}, resume=True)"

    def _how_to_go_on(self, place: str) -> str:
        if self.folder is not None:
            return f"stopped at {place}; {self._call} goes on"
        return (
            f"stopped at {place}; pass checkpoint='folder' to run(), and a run that is stopped can "
            "go on"
        )

    def _differences(self, saved: dict[str, Any], compile_path: str | None) -> list[str]:
        """Why the run may differ in bits from one that was not stopped."""
        before = {**saved["surroundings"], "compile path": saved["compile_path"]}
        now = {**surroundings(self._device), "compile path": compile_path}
        reasons = [
            f"{name} {before.get(name)} then, {value} now"
            for name, value in now.items()
            if before.get(name) != value
        ]
        assert self._identity is not None
        if not self._identity.has_bits_of(saved):
            reasons.append("the model's densities in their last digits")
        if self._own_order or saved["own_order"]:
            reasons.append("the order of a DataLoader is its own")
        return reasons

    def _save(self, run: Resumable, *, is_complete: bool) -> None:
        if self.folder is None:
            return
        assert self._identity is not None
        state = run.state()
        document = {
            "format": FORMAT,
            "version": VERSION,
            "number": self._number + 1,
            **self._identity.plain,
            "compile_path": state["compile_path"],
            "own_order": self._own_order,
            "surroundings": surroundings(self._device),
            "place": state["place"],
            "is_complete": is_complete,
            "wall_time": self.wall_time,
            "state": state,
        }
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with whole(self.folder / NAME) as partial, partial.open("xb") as file:
                pour(document, file)
        except (TypeError, UnicodeEncodeError) as error:
            raise OptionError(
                f"a checkpoint cannot hold this state, as nothing in it is pickled: {error}; run "
                "without checkpoint, or with an optimizer whose state is tensors and numbers"
            ) from error
        except OSError as error:
            raise OutputError(
                f"cannot write the checkpoint {self.folder}: {error.strerror or error}; what was "
                "saved before is as it was"
            ) from error
        self._number, self._file = self._number + 1, _file_of(self.folder)
        self._next_save = time.monotonic() + SECONDS


def saved_in(folder: Path | None, name: str, *, resume: bool) -> dict[str, Any]:
    """What ``run`` of one engine of several takes, to be saved in a folder of their folder.

    Args:
        folder: Of all; None where nothing is saved.
        name: Of the one.
        resume: Whether to go on from there, if it was begun.
    """
    if folder is None:
        return {}
    own = folder / name
    return {"checkpoint": own, "resume": resume and (own / NAME).exists()}


def _check_device(before: object, now: torch.device, folder: Path) -> None:
    """Random numbers go on only from the state of a generator of the same kind."""
    if (before == "cpu") != (now.type == "cpu"):
        raise OptionError(
            f"{folder} is of a run on the device {before}, whose random numbers do not go on on "
            f"{now.type}: go on there, or start anew in another folder"
        )


def read_checkpoint(folder: Path) -> dict[str, Any] | None:
    """What a checkpoint says of its run, and its state; None if there is no checkpoint.

    Raises:
        FileFormatError: If it is damaged, foreign, older or newer.
    """
    path = folder / NAME
    if not os.path.lexists(path):
        if (folder / OLD_NAME).exists():
            raise FileFormatError(
                f"{folder} holds a checkpoint of an earlier version of this package: resume the "
                "run with the version that wrote it, or start again in another folder"
            )
        return None
    document = read_tensors(path)
    if document.get("format") != FORMAT:
        raise FileFormatError(f"{path} is no checkpoint of this package")
    if document.get("version") != VERSION:
        raise FileFormatError(
            f"{path} has format version {document.get('version')!r}, this package reads {VERSION}: "
            "resume the run with the version that wrote it"
        )
    try:
        found: dict[str, Any] = expect(document, SCHEMA, "it")
    except (KeyError, TypeError, ValueError) as error:
        raise FileFormatError(f"{path} is damaged: {type(error).__name__}: {error}") from error
    return found


def _file_of(folder: Path | None) -> tuple[int, int] | None:
    """Which file a checkpoint is: each save makes another one; None where there is none."""
    try:
        found = None if folder is None else (folder / NAME).stat()
    except OSError:
        return None
    return found and (found.st_ino, found.st_mtime_ns)
