"""Draws that come chain by chain, in memory and in a file, and what is made of either."""

from __future__ import annotations

import errno
import functools
import gc
import json
import logging
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor

from pyro_bnn import memory
from pyro_bnn.data import Dataset
from pyro_bnn.errors import FileFormatError, OptionError, OutputError, ShapeError
from pyro_bnn.infer.steps.store import DrawStore
from pyro_bnn.posterior import DrawsPosterior, Posterior, Provenance
from pyro_bnn.predictive import draws as draws_module
from pyro_bnn.program import Program
from tests.oracle import linear_gaussian

MIB = 1 << 20
linux_alone = pytest.mark.skipif(
    not Path("/proc/self/maps").exists(), reason="reads /proc, which Linux alone has"
)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder for temporary files."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def filled(z: Tensor, bound: int) -> DrawStore:
    """A store of the draws ``[C, S, P]``, appended in turns of random chains."""
    num_chains, num_samples, num_latents = z.shape
    store = DrawStore(num_chains, num_samples, num_latents, z.dtype, memory=bound)
    generator = torch.Generator().manual_seed(3)
    while bool((left := store.counts < num_samples).any()):
        some = torch.rand(num_chains, generator=generator) < 0.4
        chains = torch.randperm(num_chains, generator=generator)
        chains = chains[(some & left)[chains]]
        store.append(chains, z[chains, store.counts[chains]])
    return store


# Both kinds of store


@pytest.mark.parametrize("bound", [1, MIB], ids=["file", "memory"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_draws_of_chains_at_their_own_pace(bound: int, dtype: torch.dtype, folder: Path) -> None:
    z = torch.randn(5, 7, 3, dtype=dtype)
    store = filled(z, bound)
    assert store.is_on_disk == (bound == 1)
    assert store.counts.tolist() == [7] * 5
    assert store.draws.dtype == dtype
    assert torch.equal(store.draws, z)
    assert list(folder.iterdir()) == []  # nothing to be left behind, however the process ends


@pytest.mark.parametrize("bound", [1, MIB], ids=["file", "memory"])
def test_several_draws_of_a_chain_at_once_keep_their_order(bound: int, folder: Path) -> None:
    z = torch.randn(4, 6, 3)
    store = DrawStore(4, 6, 3, z.dtype, memory=bound)
    for counts in ([1, 0, 2, 0], [3, 1, 4, 0], [2, 5, 0, 0], [0, 0, 0, 6]):
        rows = [
            (chain, store.counts[chain] + turn)
            for chain, count in enumerate(counts)
            for turn in range(count)
        ]
        chains, places = (torch.tensor(values) for values in zip(*rows, strict=True))
        store.append(chains, z[chains, places])
    assert torch.equal(store.draws, z)
    with pytest.raises(ShapeError, match="chain 0, 3 has all its 6 draws already"):
        store.append(torch.tensor([0, 0, 3]), torch.zeros(3, 3))


@pytest.mark.parametrize("bound", [1, MIB], ids=["file", "memory"])
def test_draws_are_seen_while_others_are_to_come(bound: int, folder: Path) -> None:
    store = DrawStore(2, 3, 2, torch.float64, memory=bound)
    z, strided = store.draws, torch.arange(8.0).reshape(2, 4)[:, ::2]
    store.append(torch.tensor([1, 0]), strided.requires_grad_())
    store.append(torch.tensor([1]), torch.tensor([[5.0, 6.0]]))
    assert store.counts.tolist() == [1, 2]
    expected = [[[4, 6], [0, 0], [0, 0]], [[0, 2], [5, 6], [0, 0]]]
    assert z.tolist() == expected


@pytest.mark.parametrize("bound", [1, MIB], ids=["file", "memory"])
def test_what_does_not_fit_the_store(bound: int, folder: Path) -> None:
    store = DrawStore(3, 1, 2, torch.float32, memory=bound)
    for z in (torch.zeros(2, 3), torch.zeros(1, 2), torch.zeros(2)):
        with pytest.raises(ShapeError, match=r"next draws of 2 of 3 chains have shape \[2, 2\], "):
            store.append(torch.tensor([0, 2]), z)
    store.append(torch.tensor([0, 2]), torch.ones(2, 2))
    with pytest.raises(ShapeError, match="chain 2 has all its 1 draws already"):
        store.append(torch.tensor([1, 2]), torch.ones(2, 2))
    assert store.draws[1].tolist() == [[0, 0]]


def test_the_bound_is_checked_and_read_when_a_store_is_made(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(OptionError, match="memory is a positive integer"):
        DrawStore(1, 1, 1, torch.float32, memory=0)
    assert not DrawStore(2, 3, 4, torch.float64).is_on_disk
    monkeypatch.setattr(memory, "STORED_DRAWS", 192)  # 2 chains, 3 draws, 4 numbers of 8 bytes
    assert not DrawStore(2, 3, 4, torch.float64).is_on_disk
    monkeypatch.setattr(memory, "STORED_DRAWS", 191)
    assert DrawStore(2, 3, 4, torch.float64).is_on_disk


def test_one_line_says_where_draws_go(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "pyro_bnn"):
        DrawStore(2, 3, 128, torch.float64, memory=6 * 1024)
        assert caplog.messages == []
        DrawStore(2, 3, 128, torch.float64, memory=1024)
    assert caplog.messages == [
        "6 draws of 128 numbers need 6.0 KiB, more than the bound of 1.0 KiB in memory: they are "
        f"written to a file in {folder}"
    ]


# A file that another process goes on with


@pytest.mark.parametrize("bound", [1, MIB], ids=["file", "memory"])
def test_another_store_goes_on_from_a_state(bound: int, tmp_path: Path) -> None:
    """Where the first went on after its state, the second writes the same over it."""
    z = torch.randn(3, 4, 2, dtype=torch.float64)
    path = tmp_path / "new" / "draws"
    store = DrawStore(3, 4, 2, z.dtype, memory=bound, path=path)
    store.append(torch.tensor([2, 0]), z[[2, 0], 0])
    store.state()
    store.append(torch.tensor([2]), z[[2], 1])
    state = store.state()
    store.append(torch.tensor([1, 2]), torch.full((2, 2), 7.0))
    store.state()
    other = DrawStore(3, 4, 2, z.dtype, memory=bound, path=path, saved=state)
    assert other.is_on_disk == (bound == 1)
    assert other.counts.tolist() == [1, 0, 2]
    for chain, count in enumerate([1, 0, 2]):
        assert torch.equal(other.draws[chain, :count], z[chain, :count])
    for chain in (0, 1, 2, 0, 1, 1, 2, 0, 1):
        other.append(torch.tensor([chain]), z[[chain], other.counts[chain]])
    state = other.state()
    assert torch.equal(other.draws, z)
    assert path.read_bytes() == z.numpy().tobytes()
    last = DrawStore(3, 4, 2, z.dtype, memory=bound, path=path, saved=state)
    assert torch.equal(last.draws, z)


@pytest.mark.parametrize("bound", [1, MIB], ids=["file", "memory"])
def test_the_disk_has_the_draws_that_a_state_counts(
    bound: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, sync, synced = tmp_path / "draws", os.fsync, []

    def record(handle: int) -> None:
        assert os.path.samestat(os.fstat(handle), path.stat())
        synced.append(path.read_bytes())
        sync(handle)

    monkeypatch.setattr(os, "fsync", record)
    z = torch.arange(4.0).reshape(2, 1, 2)
    store = DrawStore(2, 1, 2, z.dtype, memory=bound, path=path)
    store.append(torch.tensor([0, 1]), z[:, 0])
    assert store.state()["counts"].tolist() == [1, 1]
    assert synced == [z.numpy().tobytes()]


def test_a_state_of_other_draws(tmp_path: Path) -> None:
    path = tmp_path / "draws"
    state = DrawStore(2, 3, 4, torch.float64, path=path).state()
    make = functools.partial(DrawStore, 2, 3, 4, torch.float64, path=path)
    for counts in ([0], [0, 4], [-1, 0]):
        with pytest.raises(FileFormatError, match="a state of other draws than"):
            make(saved={**state, "counts": torch.tensor(counts)})
    with pytest.raises(FileFormatError, match="does not hold the 1 draws of chain 1"):
        make(saved={**state, "counts": torch.tensor([0, 1]), "checks": [0, 5]})


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "here").write_text("a file")
    with pytest.raises(OutputError, match=r"cannot make the folder .*here: File exists"):
        DrawStore(1, 1, 1, torch.float64, path=tmp_path / "here" / "draws")


# The file


def maps_of(folder: Path) -> int:
    """How many files of the folder are mapped or open."""
    opened = []
    for descriptor in Path("/proc/self/fd").iterdir():
        try:
            opened.append(str(descriptor.readlink()))
        except FileNotFoundError:  # that of the listing
            continue
    maps = Path("/proc/self/maps").read_text().splitlines()
    return sum(str(folder) in line for line in opened + maps)


@pytest.mark.slow("a second or more")
@linux_alone
def test_the_file_lives_as_long_as_a_view_of_it(folder: Path) -> None:
    z = torch.randn(2, 3, 4)
    store = filled(z, 1)
    assert maps_of(folder) > 0
    view = store.draws[1].T.unsqueeze(0)[:, 1:]
    del store
    gc.collect()
    assert torch.equal(view, z[1].T.unsqueeze(0)[:, 1:])
    assert maps_of(folder) > 0
    array = view.numpy()[0, 0]
    del view
    gc.collect()
    assert array.tolist() == z[1, :, 1].tolist()
    assert maps_of(folder) > 0
    del array
    gc.collect()
    assert maps_of(folder) == 0


def test_a_full_disk_is_told_before_the_run(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage(folder)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=3 * MIB))
    message = (
        f"cannot write 4.00 MiB of draws to {folder}, which has 3.00 MiB free: No space left on "
        "device; set TMPDIR to a folder with more room before Python starts, keep fewer draws"
    )
    with pytest.raises(OutputError, match=re.escape(message)):
        DrawStore(4, 1024, 128, torch.float64, memory=MIB)
    DrawStore(3, 1024, 128, torch.float64, memory=MIB)
    with pytest.raises(OutputError, match="choose a folder with more room"):
        DrawStore(4, 1024, 128, torch.float64, path=folder / "draws")
    assert list(folder.iterdir()) == []


def test_a_folder_that_is_gone(folder: Path) -> None:
    folder.rmdir()
    with pytest.raises(OutputError, match=r"an unknown number free: No such file or directory; s"):
        DrawStore(1, 1, 1, torch.float64, memory=1)


def test_a_disk_that_cannot_reserve_room(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(code: int) -> None:
        def fallocate(*args: object) -> None:
            raise OSError(code, os.strerror(code))

        monkeypatch.setattr(os, "posix_fallocate", fallocate, raising=False)

    z = torch.randn(2, 3, 4)
    refuse(errno.EOPNOTSUPP)
    assert torch.equal(filled(z, 1).draws, z)
    refuse(errno.ENOSPC)
    with pytest.raises(OutputError, match="No space left on device"):
        filled(z, 1)
    monkeypatch.delattr(os, "posix_fallocate")
    assert torch.equal(filled(z, 1).draws, z)


IN_A_PROCESS = """
import json, resource, sys, torch
from pathlib import Path
from pyro_bnn.predictive.draws import stored_draws
from pyro_bnn.errors import OutputError
from pyro_bnn.infer.steps.store import DrawStore

def peak():
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) << 10  # of this process alone

def fill(megabytes, bound):
    store = DrawStore(3, megabytes, 1 << 16, torch.float32, memory=bound)
    for step in range(megabytes):
        for chain in range(3):
            store.append(torch.tensor([chain]), torch.full((1, 1 << 16), 3.0 * step + chain))
    return store

fill(2, 1 << 20)
"""


def in_a_process(script: str, folder: Path) -> Any:
    """What the script prints."""
    run = subprocess.run(
        [sys.executable, "-c", IN_A_PROCESS + script],
        env={**os.environ, "TMPDIR": str(folder)},
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(run.stdout)


@pytest.mark.slow("a process of its own")
@linux_alone
def test_neither_writing_nor_a_limit_on_files_ends_a_run_badly(tmp_path: Path) -> None:
    """120 MB of draws in a file: 3 chains of 160 draws of 2^18 bytes, with a bound of 10 MiB."""
    found = in_a_process(
        """
before = peak()
store = fill(160, 10 << 20)
after = peak()
sums = [float(block.double().mean(1).sum()) for block in stored_draws(
    store.draws, torch.arange(160)).blocks()]
store, told = DrawStore(3, 160, 1 << 16, torch.float32, memory=10 << 20), []
resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
for go_on in (lambda: store.append(torch.tensor([1]), torch.ones(1, 1 << 16)), lambda: fill(5, 1)):
    try:
        go_on()
    except OutputError as error:
        told.append(str(error))
print(json.dumps([after - before, sum(sums), told]))
""",
        tmp_path,
    )
    growth, total, told = found
    assert growth < 30 * MIB
    assert total == sum(range(480))
    for message, size in zip(told, ("120.00", "3.75"), strict=True):  # while it runs, and before
        assert f"cannot write {size} MiB of draws to {tmp_path}" in message
        assert "File too large" in message
    assert list(tmp_path.iterdir()) == []


# What is made of the draws


class Pair(NamedTuple):
    """Posteriors of the same draws, in memory and in a file."""

    in_memory: DrawsPosterior
    on_disk: DrawsPosterior


@pytest.fixture
def pair(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Pair:
    """Exact draws of the oracle; the file is read two draws at a time."""
    monkeypatch.setattr(draws_module, "STORED_AT_ONCE", 2)
    monkeypatch.setattr(memory, "STORED_DRAWS", 1 << 10)
    oracle = linear_gaussian()
    exact = torch.distributions.MultivariateNormal(oracle.mean, oracle.covariance)
    z = exact.sample(torch.Size([3, 20]))
    store = filled(z, 1)
    program = Program(oracle.model, oracle.x, oracle.y)
    stats = {"lp": np.arange(60.0).reshape(3, 20)}
    provenance = Provenance("NUTS", "NUTS")
    return Pair(
        DrawsPosterior(program, z, provenance, sample_stats=stats),
        DrawsPosterior(program, store.draws, provenance, sample_stats=stats),
    )


def what_it_gives(posterior: Posterior, num_samples: int | None) -> dict[str, Tensor]:
    oracle, other = linear_gaussian(), linear_gaussian(num_rows=11, seed=1)
    data = (other.x, other.y)
    prediction = posterior.predict(other.x, num_samples, seed=2)
    streamed = posterior.predict(other.x, num_samples, seed=2, memory=4 << 10)
    tree = posterior.to_arviz(Dataset(oracle.x, oracle.y), Dataset(*data), num_samples, seed=2)
    exported = {
        f"{group}/{name}": torch.tensor(value.values)
        for group in tree.children
        for name, value in tree[group].data_vars.items()
        if value.dtype.kind in "if"
    }
    assert {"posterior/f", "posterior/norm w", "sample_stats/lp"} <= exported.keys()
    return {
        "z": posterior.unconstrained(num_samples, seed=2),
        **posterior.sample(num_samples, seed=2, group_by_chain=True),
        "draws": prediction.draws,
        "log_prob": prediction.log_prob(other.y),
        "mean": streamed.mean,
        "sd": streamed.sd,
        "log_likelihood": posterior.log_likelihood(data, num_samples, seed=2),
        "log_joint": posterior.log_joint(data, num_samples, seed=2),
        **exported,
    }


def assert_same(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=0, atol=0, msg=name)


@pytest.mark.slow("about a second")
@pytest.mark.parametrize("num_samples", [None, 31])
def test_a_file_of_draws_gives_the_same_bits(pair: Pair, num_samples: int | None) -> None:
    found, expected = (what_it_gives(posterior, num_samples) for posterior in pair)
    assert_same(found, expected)


def test_draws_that_are_given_out_are_copies(pair: Pair) -> None:
    before = pair.on_disk.stored.clone()
    pair.on_disk.unconstrained().zero_()
    pair.on_disk.sample()["w"].zero_()
    assert torch.equal(pair.on_disk.stored, before)


@pytest.mark.slow("about a second")
@linux_alone
def test_a_saved_file_above_the_bound_is_mapped(pair: Pair, tmp_path: Path) -> None:
    path, twin = tmp_path / "fit.pt", tmp_path / "twin.pt"
    pair.on_disk.save(path)
    pair.in_memory.save(twin)
    assert path.stat().st_size == twin.stat().st_size
    loaded = Posterior.load(path, linear_gaussian().model)
    assert isinstance(loaded, DrawsPosterior)
    assert str(path) in Path("/proc/self/maps").read_text()
    assert_same(what_it_gives(loaded, 31), what_it_gives(pair.in_memory, 31))
    loaded.save(path)  # over the file that it reads
    assert torch.equal(loaded.stored, pair.in_memory.stored)
    again = Posterior.load(path, linear_gaussian().model)
    assert torch.equal(again.unconstrained(), pair.in_memory.unconstrained())
