"""Runs that are killed by SIGKILL at random moments and go on, against runs that were not.

Each life of a run is a process of its own, forked from a server that has imported torch. It saves
every few hundredths of a second, and rings when it comes to the moment that was asked for; then it
is killed, a random delay later.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pyro_bnn import guides, models
from pyro_bnn.files.mapped import bytes_of
from pyro_bnn.infer import HMC, IVON, MAMS, MCLMC, NUTS, SLANG, SVI, VOGN, VON, Vadam
from pyro_bnn.infer.checkpoints import checkpoint
from pyro_bnn.infer.checkpoints.checkpoint import NAME, read_checkpoint
from pyro_bnn.infer.mcmc.hamiltonian import DRAWS
from pyro_bnn.infer.mcmc.sampling import Sampling
from pyro_bnn.infer.natural.run import NaturalRun
from pyro_bnn.infer.svi.training import Training
from tests.oracle import linear_gaussian

PHASES = ("set-up", "warm-up", "sampling", "training", "saving", "naming", "saved")
# saving: blocks of a file; naming: its way to the disk, and to its name; saved: the number of the
# last save that was finished
CLOCK = ("warm_up", "sampling", "phases")  # seconds in the state of a sampler
LONGEST = 600.0  # seconds of a life
LINGER = 0.005  # seconds of each step after the bell, so that no run ends before it is killed

CHAINS: dict[str, Any] = {
    "num_chains": 3,
    "warmup_steps": 45,
    "num_samples": 30,
    "compile": False,
}
NATURAL: tuple[Any, ...] = (VON, VOGN, Vadam, IVON, SLANG)
CASES: dict[str, Any] = {
    "SVI": SVI(guides.AutoNormal, num_steps=120, batch_size=6, compile=False),
    "NUTS": NUTS(max_tree_depth=3, **CHAINS),
    "HMC": HMC(num_steps=4, **CHAINS),
    "SVI compiled": SVI(guides.AutoNormal, num_steps=400, batch_size=6, compile=True),
    **{cls.__name__: cls(num_steps=120, batch_size=6) for cls in NATURAL},
    "HMC of found length": HMC(**CHAINS),
    "MAMS": MAMS(**CHAINS),
    "MCLMC": MCLMC(**CHAINS),
}


@dataclass(frozen=True)
class Moment:
    """When a run is killed: ``delay`` seconds after this share of a phase."""

    phase: str
    share: float
    delay: float

    @classmethod
    def random(cls, phase: str, rng: np.random.Generator) -> Moment:
        """A moment of a phase; one of the set-up is within its first third of a second."""
        longest = 0.3 if phase == "set-up" else 0.02
        return cls(phase, float(rng.uniform(0, 0.9)), float(rng.uniform(0, longest)))


class Ended:
    """A run that was never killed: its steps by phase, its last state and its file of draws."""

    def __init__(self, case: str, folder: Path) -> None:
        code, self.counts = live(case, folder, resume=False)
        assert code == 0, f"the run ended with {code}"
        self.case, self.state = case, saved_state(folder)
        path = folder / DRAWS
        self.draws = np.fromfile(path) if path.exists() else None

    def steps_of(self, phase: str, num_lives: int) -> float:
        """Steps of a phase that each of some lives of a run has; all save twice at least."""
        steps = self.counts[phase]
        in_saves = phase in ("saving", "naming")
        return 2 * steps / self.counts["saved"] if in_saves else steps / num_lives


def survive(ended: Ended, folder: Path, moments: list[Moment]) -> list[str]:
    """Kill a run at each of the moments, resume it each time, and compare its end.

    Args:
        ended: The same run, never killed.
        folder: Of the checkpoint.
        moments: The n-th is a share of the n-th part of its phase.

    Returns:
        The place of the checkpoint after each kill, empty before the first save.
    """
    places = []
    for i, moment in enumerate(sorted(moments, key=lambda moment: PHASES.index(moment.phase))):
        at = 1 + int(moment.share * ended.steps_of(moment.phase, len(moments)))
        code, counts = live(ended.case, folder, resume=i > 0, bell_at=(moment, at))
        assert code == -signal.SIGKILL, f"the run ended with {code} before it was killed, {moment}"
        places.append(check_after_kill(ended, folder, last_saved=counts["saved"]))
    code, _ = live(ended.case, folder, resume=True)
    assert code == 0, f"the run that was resumed ended with {code}"
    assert_same(saved_state(folder), ended.state)
    files = {NAME}
    if ended.draws is not None:
        files.add(DRAWS)
        np.testing.assert_array_equal(np.fromfile(folder / DRAWS), ended.draws)
    assert {path.name for path in folder.iterdir()} == files
    return places


def check_after_kill(ended: Ended, folder: Path, *, last_saved: int) -> str:
    """The checkpoint can be read, is the last that was written, and has the draws it counts."""
    saved = read_checkpoint(folder)
    assert (0 if saved is None else saved["number"]) >= last_saved
    if saved is None:
        return ""
    state = saved_state(folder)
    if ended.draws is not None:
        counts = state["store"]["counts"]
        shape = (*ended.state["stats"].shape[:2], -1)
        held, all_draws = (d.reshape(shape) for d in (np.fromfile(folder / DRAWS), ended.draws))
        for chain, count in enumerate(counts.tolist()):
            np.testing.assert_array_equal(held[chain, :count], all_draws[chain, :count])
    return str(saved["place"])


def saved_state(folder: Path) -> dict[str, Any]:
    """The state of a checkpoint, without what the clock said."""
    saved = read_checkpoint(folder)
    assert saved is not None
    return {name: value for name, value in saved["state"].items() if name not in CLOCK}


def assert_same(a: Any, b: Any, where: str = "state") -> None:
    """Nested values are equal, tensors in every bit."""
    assert type(a) is type(b), where
    if isinstance(a, Tensor):
        assert a.dtype == b.dtype, where
        assert a.shape == b.shape, where
        assert bytes_of(a) == bytes_of(b), where
    elif isinstance(a, dict):
        assert list(a) == list(b), where
        for key in a:
            assert_same(a[key], b[key], f"{where}[{key!r}]")
    elif isinstance(a, list | tuple):
        assert len(a) == len(b), where
        for i, (left, right) in enumerate(zip(a, b, strict=True)):
            assert_same(left, right, f"{where}[{i}]")
    else:
        assert a == b, where


# One life of a run


def live(
    case: str, folder: Path, *, resume: bool, bell_at: tuple[Moment, int] | None = None
) -> tuple[int | None, dict[str, int]]:
    """A process that runs a case, to its end or until it is killed.

    Args:
        case: Of :data:`CASES`.
        folder: Of the checkpoint.
        resume: Whether to go on from it.
        bell_at: A moment, and the step of its phase in this life, from 1, at which it is.

    Returns:
        Its exit code, and the steps of each phase in this life.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.kills"])
    hears, rings = context.Pipe(duplex=False)
    counts = context.RawArray("q", len(PHASES))
    alarm = None if bell_at is None else (bell_at[0].phase, bell_at[1])
    process = context.Process(target=_live, args=(case, folder, resume, alarm, rings, counts))
    process.start()
    rings.close()
    try:
        if bell_at is not None and hears.poll(LONGEST) and _has_rung(hears):
            time.sleep(bell_at[0].delay)
            process.kill()
        process.join(LONGEST)
    finally:
        process.kill()  # where it hangs
        process.join()
    return process.exitcode, dict(zip(PHASES, counts, strict=True))


def _has_rung(hears: Connection) -> bool:
    try:
        hears.recv_bytes()
    except EOFError:
        return False
    return True


def _live(
    case: str,
    folder: Path,
    resume: bool,  # an argument of a process
    alarm: tuple[str, int] | None,
    rings: Connection,
    counts: Any,
) -> None:
    has_rung = False

    def count(phase: str) -> None:
        nonlocal has_rung
        counts[PHASES.index(phase)] += 1
        if alarm == (phase, counts[PHASES.index(phase)]):
            rings.send_bytes(b"!")
            has_rung = True
        if has_rung:
            time.sleep(LINGER)

    def note(run: checkpoint.Checkpoint) -> None:
        counts[PHASES.index("saved")] = run._number

    torch.set_num_threads(1)
    checkpoint.SECONDS = 0.05
    count("set-up")
    _before(Training, "_advance", lambda run: count("training"))
    _before(NaturalRun, "advance", lambda run: count("training"))
    _before(Sampling, "go", lambda run: count("warm-up" if run._is_tuning else "sampling"))
    module: Any = checkpoint
    pour = module.pour
    module.pour = lambda document, file: pour(document, _Told(file, lambda: count("saving")))
    _before(os, "fsync", lambda handle: count("naming"))
    _before(os, "replace", lambda source: count("naming"))
    _after(checkpoint.Checkpoint, "_save", note)
    oracle, model = linear_gaussian(), models.MLP(3, hidden=(2,)).double()
    CASES[case].run(
        model, (oracle.x, oracle.y), seed=5, progress=False, checkpoint=folder, resume=resume
    )


class _Told:
    """A file, each of whose blocks is told before it is written."""

    def __init__(self, file: Any, tell: Callable[[], None]) -> None:
        self.file, self.tell = file, tell

    def write(self, content: Any) -> None:
        self.tell()
        self.file.write(content)


def _before(cls: Any, name: str, call: Callable[[Any], None]) -> None:
    method = getattr(cls, name)

    def called(self: Any, *args: Any, **options: Any) -> Any:
        call(self)
        return method(self, *args, **options)

    setattr(cls, name, called)


def _after(cls: Any, name: str, call: Callable[[Any], None]) -> None:
    method = getattr(cls, name)

    def called(self: Any, *args: Any, **options: Any) -> Any:
        made = method(self, *args, **options)
        call(self)
        return made

    setattr(cls, name, called)
