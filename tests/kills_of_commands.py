"""Commands in processes of their own that a signal ends: what has to be true after each end."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pandas as pd

from pyro_bnn.files.tensors import read_tensors
from pyro_bnn.infer.checkpoints.checkpoint import NAME, read_checkpoint
from pyro_bnn.report.output.names import FITS, file_names
from tests.interruptible import interruptible

HAS_ENDED = re.compile(r"^(\S+) +[\d.]+ s  \(", re.MULTILINE)
NOISE = ("Traceback", "leaked", "Exception ignored", "Warning")
LONGEST = 300.0  # s of a life, under a load that is not ours


@dataclass
class Life:
    """A command in a process of its own, ended at a moment or by itself.

    Attributes:
        code: Its exit code.
        out: Its standard output.
        err: Its standard error.
        left: Files that it left among the temporary ones.
    """

    code: int
    out: str
    err: str
    left: list[str]


@dataclass
class Series:
    """Lives of one command, one after another, in the same folders."""

    command: tuple[str, ...]
    folder: Path
    complete: set[Path] = field(default_factory=set)

    @property
    def ended(self) -> list[Path]:
        """Files of fits that have ended."""
        return list(self.out.glob(f"{FITS}/*.safetensors"))

    def has(self, count: int) -> bool:
        """Whether that many fits have ended."""
        return len(self.ended) >= count

    @property
    def out(self) -> Path:
        return self.folder / "out"

    @property
    def saved(self) -> Path:
        return self.folder / "saved"

    def live(
        self, is_time: Callable[[], bool] = lambda: False, by: signal.Signals = signal.SIGKILL
    ) -> Life:
        """Run the command, which goes on where it can, and end it once it is time."""
        with tempfile.TemporaryDirectory() as temporary:
            args = [*self.command, "--out", self.out, "--checkpoint", self.saved]
            args += ["--resume"] if list(self.saved.rglob(NAME)) else []
            process = subprocess.Popen(
                interruptible(sys.executable, "-um", "pyro_bnn", *map(str, args)),
                env={**os.environ, "OMP_NUM_THREADS": "1", "TMPDIR": temporary},
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            while process.poll() is None and not is_time():
                time.sleep(0.01)
            process.send_signal(by)
            out, err = process.communicate(timeout=LONGEST)
            time.sleep(0.2)  # workers end after the command that was killed
            found = [*Path(temporary).glob("pyro-bnn-*"), *Path(temporary).glob("pymp-*")]
            return Life(process.returncode, out, err, [path.name for path in found])

    def check(self, life: Life) -> int:
        """What was said to have ended is on disk, and stays there; how many fits are there."""
        counts = Counter(HAS_ENDED.findall(life.out))  # of trust there is one for each seed
        for name, stem in file_names(counts).items():
            kept = [path for path in self.ended if path.stem.endswith(stem)]
            for path in kept:
                assert read_tensors(path)["format"] == "pyro_bnn posterior"
            written = [*self.out.glob(f"{stem}.nc"), *self.out.glob("posterior.safetensors")]
            written += self.out.glob("index.html") if self.command[0] == "trust" else ()
            assert written or len(kept) >= counts[name], name
        now = set()
        for path in self.saved.rglob(NAME):
            document = read_checkpoint(path.parent)
            assert document is not None
            if document["is_complete"]:
                now.add(path)
        assert self.complete <= now
        self.complete = now
        if life.code in (-signal.SIGTERM, 128 + signal.SIGTERM):
            _check_sigterm(life)
        return len(self.ended)


def is_after(moment: float) -> bool:
    """Whether a moment of the monotonic clock has passed."""
    return time.monotonic() > moment


def _check_sigterm(life: Life) -> None:
    """It leaves no folder behind, and says in one line how to go on."""
    assert life.left == [], life
    assert not any(noise in life.err for noise in NOISE), life.err
    if life.code == -signal.SIGTERM:
        assert not life.out or "Wrote" in life.out  # while Python began, or after all was done
        return
    assert life.err.startswith("pyro-bnn: interrupted by SIGTERM; to go on: pyro-bnn "), life
    assert life.err.count("\n") == 1, life.err


def assert_same(folder: Path, whole: Path) -> None:
    """The tables of a command that was ended and went on are those of one that was not."""
    assert {p.name for p in folder.iterdir()} == {p.name for p in whole.iterdir()}
    for path in whole.glob("*.csv"):
        parts, own = (
            pd.read_csv(one).drop(columns="seconds", errors="ignore")
            for one in (folder / path.name, path)
        )
        pd.testing.assert_frame_equal(parts, own, check_exact=True)
