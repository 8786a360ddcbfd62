"""``--checkpoint`` and ``--resume``: where the runs of a command are saved, and how they go on."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from pyro_bnn.cli.option_groups import flag, option
from pyro_bnn.errors import DataError, OptionError, SiteError

if TYPE_CHECKING:
    from pyro_bnn.posterior.posterior import Posterior

logger = logging.getLogger("pyro_bnn")


class OtherRunError(OptionError):
    """A checkpoint that is of another run: the command was given what it was not begun with."""


@dataclass(frozen=True, kw_only=True)
class Saves:
    """Where a run, or each of several, is saved, and whether it goes on from there.

    Raises:
        OptionError: If it is to go on from nowhere.
    """

    heading: ClassVar[str] = "Checkpoints"

    checkpoint: Path | None = option(
        "Save the state of each run to this folder every half minute, and when Ctrl-C stops it, "
        "for --resume.",
        shown="nothing is saved",
    )
    resume: bool = flag(
        "--resume",
        "Go on from the folder of --checkpoint, the other options being those of the command that "
        "was stopped.",
    )

    def __post_init__(self) -> None:
        if self.resume and self.checkpoint is None:
            raise OptionError("--resume needs --checkpoint FOLDER: where the run was saved")

    def within(self, name: str) -> Saves:
        """Where one of several runs is saved: in a folder of this name."""
        if self.checkpoint is None:
            return self
        return Saves(checkpoint=self.checkpoint / name, resume=self.resume)

    @contextmanager
    def alone(self, *locked_already: Path) -> Iterator[None]:
        """Keep other commands from the folder of several runs, each of which is in a folder of it.

        Args:
            locked_already: Folders that this command keeps for itself, of which it may be one.

        Raises:
            OptionError: If another command saves to it.
            OutputError: If it cannot be made.
        """
        if self.checkpoint is None:
            yield
            return
        from pyro_bnn.files.atomic import made_folder
        from pyro_bnn.infer.checkpoints.folder_lock import locked

        refusal = (
            f"another command is saving to the folder {str(self.checkpoint)!r}: wait for its end, "
            "or choose another --checkpoint"
        )
        made_folder(self.checkpoint)
        if any(self.checkpoint.samefile(folder) for folder in locked_already):
            yield
            return
        with locked(self.checkpoint, refusal):
            yield

    def saved_runs(self) -> list[Saves]:
        """Where each run is saved that has a checkpoint below this folder."""
        from pyro_bnn.infer.checkpoints.checkpoint import NAME

        there = () if self.checkpoint is None else sorted(self.checkpoint.rglob(NAME))
        return [Saves(checkpoint=path.parent, resume=self.resume) for path in there]

    def again(self) -> Saves:
        """For a task that another worker may begin again: an absolute path, and it resumes."""
        if self.checkpoint is None:
            return self
        return Saves(checkpoint=self.checkpoint.resolve(), resume=True)

    @property
    def place(self) -> str | None:
        """Where the run of the checkpoint stands, None if there is none.

        Raises:
            FileFormatError: If the checkpoint is damaged, foreign or newer.
        """
        from pyro_bnn.infer.checkpoints.checkpoint import read_checkpoint

        saved = None if self.checkpoint is None else read_checkpoint(self.checkpoint)
        if saved is None:
            return None
        return "the end" if saved["is_complete"] else str(saved["place"])

    def run(
        self, run: Callable[..., Posterior], say: Callable[[str], object], label: str
    ) -> Posterior:
        """Call ``run`` with what it takes of ``checkpoint`` and ``resume``.

        Args:
            run: An engine's, all but these options given.
            say: Gets a line on where the run goes on, and where Ctrl-C stopped it.
            label: At the beginning of the line.

        Raises:
            OtherRunError: If the checkpoint is of another run: an error of data or options may
                lose one run of several, and this is none.
        """
        if self.checkpoint is None:
            return run()
        place = self.place if self.resume else None
        if place is not None:
            say(f"{label}resumed at {place}")
        try:
            return run(checkpoint=self.checkpoint, resume=place is not None)
        except (DataError, OptionError, SiteError) as error:
            if place is None:
                raise
            raise OtherRunError(str(error)) from error
        except KeyboardInterrupt:
            say(f"{label}interrupted, and saved at {self.place or 'no step yet'}")
            raise


def check(top: Saves, each: Iterable[Saves]) -> None:
    """Refuse, before the first run, checkpoints that runs would not go on from.

    Args:
        top: Where all runs are saved; if they are to go on and none can, a line says so.
        each: Where each is.

    Raises:
        FileFormatError: If a checkpoint is damaged, foreign or newer.
        OptionError: If there is one, and its run is not to go on from it.
    """
    held = [one.checkpoint for one in each if one.place is not None]
    if held and not top.resume:
        raise OptionError(
            f"{held[0]} holds a checkpoint already: add --resume to go on from it, or name "
            "another folder"
        )
    if top.resume and not held:
        logger.warning("%s holds no checkpoint: all starts at the beginning", top.checkpoint)
