"""Checkpoints: a run's state in a folder, from which the same call goes on after any end.

An engine's run implements two methods, :class:`Resumable`, and its loop calls
:meth:`Checkpoint.step`. The folder holds ``manifest.json``, which is written last and names
``pyro-bnn-state-<number>.safetensors`` with its checksum: whenever a run is killed, the manifest
that stands names a state that is whole.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import torch

from pyro_bnn.errors import BNNError, FileFormatError, OptionError, OutputError
from pyro_bnn.infer.checkpoints import interrupts, manifest
from pyro_bnn.infer.checkpoints.folder_lock import FolderLock
from pyro_bnn.infer.checkpoints.identity import Identity, surroundings
from pyro_bnn.infer.checkpoints.interrupts import Interrupted
from pyro_bnn.infer.checkpoints.state_files import read_state, write_json, write_state

__all__ = ["Checkpoint", "Identity", "Interrupted", "Resumable", "State", "users_code"]

logger = logging.getLogger("pyro_bnn")

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
        ...

    def restore(self, state: State) -> None:
        """Go to a state that a run of the same identity was in; its tensors may be kept.

        Raises:
            FileFormatError: If it is no state of this run; so become errors of missing entries,
                and of wrong types and values, but those in :func:`users_code`.
        """
        ...


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

    Made by :meth:`open`.

    Attributes:
        folder: Where it is, made at the first save; an engine may keep a file of its own there.
        compile_path: How the run that is resumed computes, to be followed; None for a new one.
        is_complete: Whether the run that is resumed had come to its end.
        threads: CPU threads of torch in the run; None where it is not known.
    """

    def __init__(
        self,
        folder: Path | None,
        identity: Identity | None,
        saved: dict[str, Any] | None,
        *,
        device: torch.device,
        own_order: bool,
        start: float,
    ) -> None:
        self.folder, self._identity, self._saved = folder, identity, saved
        self._device, self._own_order, self._start = device, own_order, start
        self._number = manifest.number_of(saved)
        self._next_save = -float("inf")  # the first step shows whether the folder can be written
        self.compile_path: str | None = None if saved is None else saved["compile_path"]
        self.is_complete = saved is not None and saved["is_complete"]
        self.threads: int | None = torch.get_num_threads()
        if saved is not None and self.is_complete:
            threads = saved["surroundings"].get("threads")
            self.threads = threads if type(threads) is int else None
        self._lock: FolderLock | None = None

    @classmethod
    def open(
        cls,
        folder: str | Path | None,
        *,
        resume: bool,
        identify: Callable[[], Identity],
        device: torch.device,
        own_order: bool = False,
        start: float,
    ) -> Checkpoint:
        """The checkpoint of a run.

        Args:
            folder: Its folder, or None for none.
            resume: Whether to go on from what is there. If nothing is, the run starts at the
                beginning, and a line says so.
            identify: Makes the run's identity; called only if there is a folder.
            device: Where the run computes.
            own_order: Whether the order of data is the user's own, which cannot be replayed.
            start: When the run began, by ``time.perf_counter``.

        Raises:
            DataError, OptionError, SiteError: If the checkpoint is of another run.
            FileFormatError: If the checkpoint is damaged, foreign or newer.
            OptionError: If there is a checkpoint already and ``resume`` is False, or ``resume`` is
                True without a folder.
        """
        identity = saved = None
        if folder is None:
            if resume:
                raise OptionError("resume=True needs checkpoint='folder': where the run was saved")
        else:
            folder = Path(folder)
            if not resume and (folder / manifest.NAME).exists():
                raise OptionError(
                    f"{folder} holds a checkpoint already: pass resume=True to go on from it, or "
                    "another folder"
                )
            identity, saved = identify(), manifest.read_manifest(folder)
            if saved is not None:
                _check_identity(identity, saved, folder)
            elif resume:
                logger.warning("%s holds no checkpoint: the run starts at the beginning", folder)
        return cls(folder, identity, saved, device=device, own_order=own_order, start=start)

    @property
    def wall_time(self) -> float:
        """Seconds of the run so far, those before it was resumed included."""
        before = 0.0 if self._saved is None else float(self._saved["wall_time"])
        return before if self.is_complete else before + time.perf_counter() - self._start

    def restore(self, run: Resumable) -> bool:
        """Give the run its saved state; False where there is none, and it starts anew.

        Raises:
            FileFormatError: If the state is damaged.
            OptionError: If another run is saving to the folder.
        """
        if self._saved is None or self.folder is None:
            return False
        try:
            self._hold()
            self._restore(run, self._saved, self.folder)
        except BaseException:
            self._let_go()
            raise
        return True

    def _restore(self, run: Resumable, saved: dict[str, Any], folder: Path) -> None:
        name, written = manifest.state_of(saved)
        path = folder / name
        state = read_state(path, written)
        of_users_code = None
        try:
            run.restore(state)
            now = self.compile_path if self.is_complete else run.state()["compile_path"]
        except _UsersCodeError as passed:
            of_users_code = passed.error
        except (BNNError, torch.OutOfMemoryError):
            raise
        except (
            ArithmeticError,
            AttributeError,
            LookupError,
            RuntimeError,
            TypeError,
            ValueError,
        ) as error:
            raise FileFormatError(f"{path} is no state of this run: {error!r}") from error
        if of_users_code is not None:
            raise of_users_code
        reasons = [] if self.is_complete else self._differences(saved, now)
        if reasons:
            logger.warning(
                "resumed at %s, but not bit for bit: %s", saved["place"], "; ".join(reasons)
            )
        else:
            logger.info("resumed at %s", saved["place"])

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
            try:
                self._hold()
                yield
            finally:
                self._let_go()
            if interrupts.is_asked():
                how = "" if self.folder is None else f"; {self._call} gives its posterior"
                raise Interrupted(f"stopped after the last step{how}")

    def _hold(self) -> None:
        """Lock the folder of a run that is to save, once; see :class:`FolderLock`."""
        if self.folder is None or self.is_complete or self._lock is not None:
            return
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError:  # is told at the first save
            return
        self._lock = FolderLock(self.folder)
        if manifest.number_of(manifest.read_manifest(self.folder)) != self._number:
            raise OptionError(
                f"another run has saved to {self.folder} since this one began: pass resume=True "
                "to go on from there, or another folder"
            )

    def _let_go(self) -> None:
        if self._lock is not None:
            self._lock.release()
            self._lock = None

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
        name = manifest.state_name(self._number + 1)
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            state = run.state()
            assert isinstance(state["compile_path"], str), "a manifest without it is not read"
            written = write_state(state, self.folder / name)
            new = {
                "format": manifest.FORMAT,
                "version": manifest.VERSION,
                **asdict(self._identity),
                "num_chains": self._identity.options.get("num_chains", 1),
                "compile_path": state["compile_path"],
                "own_order": self._own_order,
                "surroundings": surroundings(self._device),
                "place": state["place"],
                "is_complete": is_complete,
                "wall_time": self.wall_time,
                "state": {"name": name, **written._asdict()},
            }
            write_json(new, self.folder / manifest.NAME)
            self._number += 1
            manifest.remove_all_but(name, self.folder)
        except OSError as error:
            self._remove_unnamed(name)
            if isinstance(error, OutputError):
                raise
            raise OutputError(
                f"cannot write the checkpoint {self.folder}: {error.strerror or error}; what was "
                "saved before is as it was"
            ) from error
        self._next_save = time.monotonic() + SECONDS

    def _remove_unnamed(self, name: str) -> None:
        """Remove a state whose manifest could not be written."""
        assert self.folder is not None
        with contextlib.suppress(OSError, FileFormatError):
            standing = manifest.read_manifest(self.folder)
            if standing is None or standing["state"]["name"] != name:
                (self.folder / name).unlink(missing_ok=True)


def _check_identity(identity: Identity, saved: dict[str, Any], folder: Path) -> None:
    try:
        identity.check(saved, folder)
    except BNNError:
        raise
    except (LookupError, AttributeError, TypeError, ValueError) as error:
        raise FileFormatError(f"{folder / manifest.NAME} is damaged: {error!r}") from error
