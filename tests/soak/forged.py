"""Checkpoints whose checksums are right and whose contents are not.

Who can write a file can write its checksum too: here what a file says of its run, or the state in
it, is changed, and the file is written again. What is left to refuse it are the checks of names,
types, sizes and shapes.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeAlias

import pytest
import torch

from pyro_bnn import SVI, guides
from pyro_bnn.data import Split
from pyro_bnn.infer.checkpoints import checkpoint
from pyro_bnn.infer.checkpoints.checkpoint import NAME
from pyro_bnn.infer.mcmc.hamiltonian import DRAWS
from pyro_bnn.infer.mcmc.sampling import Sampling
from pyro_bnn.infer.svi.training import Training
from tests.hostile import SAMPLER, Target, damaged, in_record, network, with_document

Change: TypeAlias = Callable[[bytes, random.Random], bytes]
Files: TypeAlias = dict[str, bytes]

RUNS: dict[str, tuple[Any, int | None]] = {  # and the steps after which they were stopped
    "SVI": (SVI(guides.AutoNormal, num_steps=4, compile=False), 2),
    "NUTS": (SAMPLER, None),
    "NUTS in warm-up": (SAMPLER, 4),
    "NUTS in sampling": (SAMPLER, 24),
}


def make_forged(split: Split, folder: Path) -> list[tuple[Target, Change]]:
    """The files of runs that were stopped, and of one that was not, with what is done to each."""
    made: list[tuple[Target, Change]] = []
    for name, (engine, steps) in RUNS.items():
        place = folder / name
        files = _files_of(engine, split, place, steps)
        reads = _Reads(engine, split, place, files)
        made.append((Target(f"{name}, state.safetensors", files[NAME], reads.state), forged_state))
        if DRAWS in files:
            made.append((Target(f"{name}, draws.bin", files[DRAWS], reads.draws), damaged))
    return made


class _Reads:
    """Goes on with a run, one of whose files is another."""

    def __init__(self, engine: Any, split: Split, place: Path, files: Files) -> None:
        self._engine, self._split, self._place, self._files = engine, split, place, files

    def draws(self, path: Path) -> None:
        self._go_on({DRAWS: path.read_bytes()})

    def state(self, path: Path) -> None:
        self._go_on({NAME: path.read_bytes()})

    def _go_on(self, other: Files) -> None:
        shutil.rmtree(self._place)
        self._place.mkdir()
        for name, content in {**self._files, **other}.items():
            (self._place / name).write_bytes(content)
        _run(self._engine, self._split, self._place, resume=True)


def _run(engine: Any, split: Split, place: Path, *, resume: bool) -> None:
    engine.run(network(), split.train, progress=False, checkpoint=place, resume=resume)


def _files_of(engine: Any, split: Split, place: Path, steps: int | None) -> Files:
    with stopped_after(Training if isinstance(engine, SVI) else Sampling, steps):
        _run(engine, split, place, resume=False)
    return {path.name: path.read_bytes() for path in place.iterdir()}


class _StoppedError(Exception):
    """The end of a run that was stopped."""


@contextmanager
def stopped_after(cls: type[Any], steps: int | None) -> Iterator[None]:
    """Runs save after each step, and end after some, as if they were killed there."""
    name, made = ("_advance" if cls is Training else "go"), 0
    step: Callable[..., None] = getattr(cls, name)

    def counted(self: Any, *args: Any) -> None:
        nonlocal made
        if made == steps:
            raise _StoppedError
        made += 1
        step(self, *args)

    with pytest.MonkeyPatch.context() as patch, suppress(_StoppedError):
        patch.setattr(checkpoint, "SECONDS", 0.0)
        patch.setattr(cls, name, counted)
        yield


# What a forger does


def forged_state(content: bytes, rng: random.Random) -> bytes:
    """A file with one other entry, one tensor of other values, or other bytes."""
    kind = rng.choice(("entry", "values", "values", "bytes"))
    if kind == "bytes":
        return damaged(content, rng)
    if kind == "entry":
        return in_record(content, rng)

    def change(document: Any) -> Any:
        tensor = rng.choice([value for value in _tensors(document) if value.numel()])
        where: Any = slice(None) if rng.random() < 0.5 else rng.randrange(tensor.numel())
        tensor.view(-1)[where] = rng.choice(_values(tensor.dtype))
        return document

    return with_document(content, change)


def _values(dtype: torch.dtype) -> tuple[float, ...]:
    if dtype.is_floating_point:
        return float("nan"), float("inf"), -1.0, 0.0, 1e30
    if dtype == torch.bool:
        return 0, 1
    info = torch.iinfo(dtype)
    return info.min, info.max, 0, 1, 100


def _tensors(document: Any) -> Iterator[torch.Tensor]:
    if isinstance(document, torch.Tensor):
        yield document
    elif isinstance(document, dict | list | tuple):
        for entry in document.values() if isinstance(document, dict) else document:
            yield from _tensors(entry)
