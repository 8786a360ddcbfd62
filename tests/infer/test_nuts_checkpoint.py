"""Runs of NUTS and HMC that are stopped and go on: the same draws and statistics, to the bit."""

from __future__ import annotations

import errno
import itertools
import os
import re
import signal
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

from pyro_bnn import memory
from pyro_bnn.errors import DataError, FileFormatError, OptionError, SiteError
from pyro_bnn.files.tensors import read_tensors, write_tensors
from pyro_bnn.infer import HMC, NUTS
from pyro_bnn.infer.checkpoints import checkpoint as checkpoint_module
from pyro_bnn.infer.checkpoints.checkpoint import NAME
from pyro_bnn.infer.checkpoints.interrupts import Interrupted
from pyro_bnn.infer.mcmc import chains as chains_module
from pyro_bnn.infer.mcmc import hamiltonian, hmc_kernel, nuts_kernel
from pyro_bnn.infer.mcmc.chains import in_lockstep
from pyro_bnn.infer.mcmc.length_search import MOST, LengthSearch
from pyro_bnn.infer.mcmc.lockstep import Energy, Graphs, Lockstep
from pyro_bnn.infer.mcmc.microcanonical_kernel import Adjusted
from pyro_bnn.infer.mcmc.progress import Progress
from pyro_bnn.infer.mcmc.sampling import Sampled, Sampling, first_mass
from pyro_bnn.models import MLP
from pyro_bnn.posterior import DrawsPosterior
from tests.infer.chains import all_draws
from tests.infer.test_nuts_runs import Shifted
from tests.oracle import LinearGaussian
from tests.saves import document_of

pytestmark = pytest.mark.usefixtures("short_trajectories")

# --- from every phase of a run -------------------------------------------------------------------

SD = torch.tensor([0.1, 1.0, 3.0], dtype=torch.float64)
CHAINS, WARM_UP, DRAWS = 5, 45, 16  # windows of 10, 20 and 15
KINDS = pytest.mark.parametrize(
    ("kernel", "limit", "kind"),
    [
        (nuts_kernel, 64, "diagonal"),
        (nuts_kernel, 64, "low_rank"),
        (hmc_kernel, 4, "diagonal"),
        (hmc_kernel, MOST, "diagonal"),  # of a length that is found
        (Adjusted("minimal_norm"), 4, "low_rank"),
    ],
)


@pytest.fixture
def short_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that runs as short are at several places between two blocks."""
    monkeypatch.setattr(chains_module, "BLOCK", 8)


def gaussian(z: Tensor) -> tuple[Tensor, Tensor]:
    return 0.5 * (z / SD).square().sum(-1), z / SD**2


def made(
    kernel: Any,
    limit: int,
    kind: Any,
    path: Path,
    *,
    captured: bool = False,
    compiled: bool = False,
    **phases: float,
) -> Sampling:
    generator = torch.Generator().manual_seed(1)
    starts = torch.randn(CHAINS, 3, generator=generator, dtype=torch.float64)
    chains = in_lockstep(
        kernel,
        Energy(gaussian),
        starts,
        first_mass(gaussian(starts)[1], kind),
        limit=limit,
        target_accept=0.8,
        seed=0,
        graphs=Graphs("the step", captured=captured, compiled=compiled, strict=False),
    )
    return Sampling(
        chains,
        warmup_steps=WARM_UP,
        num_samples=DRAWS,
        limit=limit,
        progress=Progress("made", CHAINS, WARM_UP + DRAWS, show=False),
        search=LengthSearch(starts) if limit == MOST else None,
        path=path,
        phases=phases,
    )


def phase(run: Sampling) -> str:
    """Where a run stands: its window, or what of its last one."""
    assert run._store is not None
    left, counts = run._left, run._store.counts
    if run.is_done:
        return "at the end"
    if len(left) < CHAINS:
        return "in a smaller batch"
    if left.min() > DRAWS:
        return f"window {run._number}"
    if left.max() > DRAWS:
        return "some step sizes are fixed"
    return "all step sizes are fixed" if counts.min() == 0 else "all chains have draws"


class Saved(NamedTuple):
    """A run in some phase.

    Attributes:
        step: How many steps it has taken.
        state: As it is read back.
        held: What its file of draws holds ``[C, S, P]``.
    """

    step: int
    state: Any
    held: Any

    @classmethod
    def of(cls, run: Sampling, step: int, path: Path) -> Saved:
        write_tensors(run.state(), path.with_name("state"))
        held = np.fromfile(path).reshape(CHAINS, DRAWS, 3)
        return cls(step, read_tensors(path.with_name("state")), held)


def saved_states(run: Sampling, path: Path) -> dict[str, Saved]:
    """Run to the end; a state of each phase."""
    run.begin()
    saved: dict[str, Saved] = {}
    seen: Counter[str] = Counter()
    while not run.is_done:
        run.go()
        name = phase(run)
        if seen[name] == (12 if "window" in name else 0):
            saved[name] = Saved.of(run, seen.total() + 1, path)
        seen[name] += 1
    assert saved.keys() >= {"window 0", "window 1", "window 2", "in a smaller batch", "at the end"}
    assert saved.keys() & {"some step sizes are fixed", "all step sizes are fixed"}
    return saved


def assert_same_state(found: Any, expected: Any) -> None:
    """To the bit, but for the times that were taken."""
    if isinstance(expected, dict):
        assert found.keys() == expected.keys()
        for key in expected.keys() - {"warm_up", "sampling", "phases"}:
            assert_same_state(found[key], expected[key])
    elif isinstance(expected, list):
        for one, other in zip(found, expected, strict=True):
            assert_same_state(one, other)
    else:
        np.testing.assert_array_equal(found, expected, strict=True)


def assert_goes_on(run: Sampling, name: str, state: Any, expected: Sampled) -> None:
    run.restore(state)
    assert phase(run) == name
    while not run.is_done:
        run.go()
    assert torch.equal(run.result().z, expected.z)
    np.testing.assert_array_equal(run.result().stats, expected.stats)


@pytest.mark.slow("a second or more")
@pytest.mark.usefixtures("short_blocks")
@KINDS
def test_another_run_goes_on_from_every_phase(
    kernel: Any, limit: int, kind: Any, tmp_path: Path
) -> None:
    """To the state of the next: whatever the file holds beyond the draws that a state counts."""
    path = tmp_path / "draws"
    run = made(kernel, limit, kind, path)
    saved = saved_states(run, path)
    expected = Sampled(run.result().z.clone(), run.result().stats, {})
    for here in saved.values():
        for chain, count in enumerate(here.state["store"]["counts"]):
            here.held[chain, count:] = np.nan
    for (name, here), (later, there) in itertools.pairwise(saved.items()):
        here.held.tofile(path)
        other = made(kernel, limit, kind, path)
        other.restore(here.state)
        assert phase(other) == name
        for _ in range(here.step, there.step):
            other.go()
        assert phase(other) == later
        found = Saved.of(other, there.step, path)
        assert_same_state(found.state, there.state)
        np.testing.assert_array_equal(
            found.held[~np.isnan(there.held)], there.held[~np.isnan(there.held)]
        )
    assert_goes_on(made(kernel, limit, kind, path), later, there.state, expected)


@pytest.mark.slow("captures chains")
@pytest.mark.usefixtures("interpreted", "short_blocks")
@pytest.mark.parametrize("compiled", [False, True])
def test_a_run_goes_on_in_a_smaller_batch(
    tmp_path: Path, compiled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Compiled, by the graph of all chains."""
    monkeypatch.setattr(chains_module, "FEW_CHAINS", 0)
    monkeypatch.setattr(chains_module, "MOST_APART", 0)
    path = tmp_path / "draws"
    run = made(hmc_kernel, 4, "diagonal", path, captured=True, compiled=compiled)
    saved = saved_states(run, path)
    other = made(hmc_kernel, 4, "diagonal", path, captured=True, compiled=compiled)
    state = saved["in a smaller batch"].state
    assert state["compile_path"] == ("compiled" if compiled else "captured")
    assert_goes_on(other, "in a smaller batch", state, run.result())
    graphs = other._chains._captured._by_rows
    assert sum(map(len, graphs.values())) == int(compiled)


def test_phases_add_up(tmp_path: Path) -> None:
    run = made(hmc_kernel, 4, "diagonal", tmp_path / "draws")
    run.begin()
    while run._is_tuning:
        run.go()
    run.go()
    assert not run.is_done
    before = {"capture": 1.0, "compile": 4.0}
    state = {**run.state(), "warm_up": 100.0, "sampling": 50.0, "phases": before}
    other = made(hmc_kernel, 4, "diagonal", tmp_path / "draws", capture=2.0)
    other.restore(state)
    phases = other.result().phases
    assert (phases["capture"], phases["compile"]) == (3, 4)
    assert phases["warm-up"] == pytest.approx(100)
    assert 50 < phases["sampling"] < 90


# --- runs of a user ------------------------------------------------------------------------------


class Stops:
    """Ctrl-C after each of some steps, counted over all runs; the number of all steps."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.steps, self.after = 0, -1
        step = Sampling.go

        def counted(run: Sampling) -> None:
            step(run)
            self.steps += 1
            if self.steps == self.after:
                signal.raise_signal(signal.SIGINT)

        monkeypatch.setattr(Sampling, "go", counted)

    def next(self, steps: int) -> None:
        self.after = self.steps + steps


@pytest.fixture
def stops(monkeypatch: pytest.MonkeyPatch) -> Stops:
    """With blocks so short that runs as short can be stopped between two of them."""
    monkeypatch.setattr(chains_module, "BLOCK", 2)
    return Stops(monkeypatch)


def assert_equal(found: DrawsPosterior, expected: DrawsPosterior) -> None:
    assert torch.equal(all_draws(found), all_draws(expected))
    assert found.sample_stats.keys() == expected.sample_stats.keys()
    for name, values in expected.sample_stats.items():
        np.testing.assert_array_equal(found.sample_stats[name], values, strict=True)
    assert found.options == expected.options


def assert_begins_like(found: DrawsPosterior, expected: DrawsPosterior) -> int:
    """Compare draws so far; how many there are of each chain."""
    num_draws = all_draws(found).shape[1]
    assert torch.equal(all_draws(found), all_draws(expected)[:, :num_draws])
    for name, values in expected.sample_stats.items():
        np.testing.assert_array_equal(found.sample_stats[name], values[:, :num_draws])
    assert found.options == {**expected.options, "interrupted": True}
    return num_draws


def stopped(run: Any) -> tuple[DrawsPosterior | None, str]:
    with pytest.raises(Interrupted) as stop:
        run()
    posterior = stop.value.posterior
    assert posterior is None or isinstance(posterior, DrawsPosterior)
    return posterior, str(stop.value)


def check_two_stops(sampler: Any, model: Any, data: Any, stops: Stops, folder: Path) -> None:
    """Stopped in the warm-up and where the batch has shrunk, and run to the end: as without."""
    expected = sampler.run(model, data, progress=False)
    total = stops.steps
    go_on = partial(sampler.run, model, data, progress=False, checkpoint=folder, resume=True)
    stops.next(total // 10)
    posterior, message = stopped(lambda: go_on(resume=False))
    assert posterior is None
    assert message == (
        "stopped at window 1 of 2 of the warm-up; "
        f"run(..., checkpoint={str(folder)!r}, resume=True) goes on"
    )
    stops.next(total - 3 - total // 10)
    posterior, message = stopped(go_on)
    assert posterior is not None
    num_draws = assert_begins_like(posterior, expected)
    assert f"stopped at draw {num_draws} of {sampler.num_samples} of the slowest " in message
    assert len(document_of(folder)["state"]["left"]) < sampler.num_chains
    run = go_on()
    assert stops.steps == 2 * total
    assert_equal(run, expected)
    assert_equal(go_on(), expected)  # from its end, at once
    assert stops.steps == 2 * total
    assert posterior.wall_time < run.wall_time


SMALL: Any = {"num_chains": 6, "warmup_steps": 20, "num_samples": 8, "compile": False}


@pytest.mark.usefixtures("uncaptured")
def test_a_run_that_is_stopped_twice(oracle: LinearGaussian, stops: Stops, tmp_path: Path) -> None:
    hmc = HMC(num_steps=4, **SMALL)
    check_two_stops(hmc, oracle.model, (oracle.x, oracle.y), stops, tmp_path)
    assert (tmp_path / hamiltonian.DRAWS).stat().st_size == 6 * 8 * 4 * 8
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {hamiltonian.DRAWS, NAME}


@pytest.mark.slow("a second or more")
@pytest.mark.usefixtures("uncaptured")
def test_draws_in_the_file_alone(
    oracle: LinearGaussian, stops: Stops, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "STORED_DRAWS", 1)
    check_two_stops(NUTS(**SMALL), oracle.model, (oracle.x, oracle.y), stops, tmp_path)


@pytest.mark.usefixtures("uncaptured")
def test_a_finished_run_is_read_where_nothing_can_be_written(
    oracle: LinearGaussian, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And a file of draws that was left without a state, here a longer one, is made anew."""
    (tmp_path / hamiltonian.DRAWS).write_bytes(bytes(4_000))
    go_on = partial(
        HMC(num_steps=4, **SMALL).run,
        oracle.model,
        (oracle.x, oracle.y),
        checkpoint=tmp_path,
        progress=False,
    )
    first, opens = go_on(), os.open

    def read_alone(path: Any, flags: int, *args: Any, **options: Any) -> int:
        if Path(path).parent == tmp_path and flags & (os.O_RDWR | os.O_WRONLY | os.O_CREAT):
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))
        return opens(path, flags, *args, **options)

    monkeypatch.setattr(os, "open", read_alone)
    for bound in (memory.STORED_DRAWS, 1):
        monkeypatch.setattr(memory, "STORED_DRAWS", bound)
        assert_equal(go_on(resume=True), first)


@pytest.mark.slow("compiles chains")
def test_a_finished_run_of_chains_that_were_moved_apart_is_read(
    oracle: LinearGaussian, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its blocks are longer than those of other chains, and nothing is compiled to read it."""
    go_on = partial(
        NUTS(**{**SMALL, "num_chains": 4, "compile": True}).run,
        oracle.model,
        (oracle.x, oracle.y),
        checkpoint=tmp_path,
        progress=False,
    )
    first = go_on()
    assert document_of(tmp_path)["state"]["compile_path"] == "apart"

    def refuse(*_: Any) -> None:
        pytest.fail("compiles")

    monkeypatch.setattr(chains_module, "compile_c", refuse)
    assert_equal(go_on(resume=True), first)


@pytest.mark.parametrize(
    ("path", "asked"),
    [("compiled", (True, True)), ("captured", (True, False)), ("eager", (False, False))],
)
def test_a_step_is_made_as_that_of_the_checkpoint(
    path: str,
    asked: tuple[bool, bool],
    oracle: LinearGaussian,
    stops: Stops,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[tuple[bool, bool]] = []

    def make(*args: Any, graphs: Graphs, **options: Any) -> Lockstep:
        made.append((graphs.captured, graphs.compiled))
        plain = graphs._replace(captured=False, compiled=False)
        chains = in_lockstep(*args, graphs=plain, **options)
        chains.compile_path = path
        return chains

    monkeypatch.setattr(hamiltonian, "in_lockstep", make)
    hmc = HMC(num_chains=2, warmup_steps=2, num_samples=2, num_steps=2, compile=False)
    go_on = partial(hmc.run, oracle.model, (oracle.x, oracle.y), progress=False, resume=True)
    stops.next(3)
    stopped(lambda: go_on(checkpoint=tmp_path))
    go_on(checkpoint=tmp_path)
    go_on(checkpoint=tmp_path)  # of a run that is done nothing is to be captured
    assert made[:2] == [(True, False), asked]
    assert made[2][0] is False


@pytest.mark.slow("about a second")
@pytest.mark.parametrize(
    "fixture", ["interpreted", pytest.param("oracle", id="compiled", marks=pytest.mark.soak)]
)
def test_a_compiled_run_that_is_stopped_goes_on(
    fixture: str,
    request: pytest.FixtureRequest,
    oracle: LinearGaussian,
    stops: Stops,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Where the batch has shrunk, with the bits of one that was not stopped."""
    monkeypatch.setattr(chains_module, "FEW_CHAINS", 0)
    monkeypatch.setattr(chains_module, "MOST_APART", 0)
    request.getfixturevalue(fixture)
    hmc = HMC(num_chains=4, warmup_steps=3, num_samples=5, num_steps=4, compile=True)
    run = partial(hmc.run, oracle.model, (oracle.x, oracle.y), progress=False)
    expected = run()
    assert expected.options["compiled"] is True
    assert "compile" in expected.provenance.phases
    total = stops.steps
    stops.next(total - 2)
    posterior, _ = stopped(lambda: run(checkpoint=tmp_path))
    assert posterior is not None
    assert_begins_like(posterior, expected)
    assert len(document_of(tmp_path)["state"]["left"]) < hmc.num_chains
    assert_equal(run(checkpoint=tmp_path, resume=True), expected)
    assert stops.steps == 2 * total
    assert not [record for record in caplog.records if "bit for bit" in record.message]


@pytest.mark.soak
def test_a_compiled_run_that_is_stopped_twice(
    oracle: LinearGaussian, stops: Stops, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    net = MLP(3, hidden=(4,), activation="tanh").double()
    nuts = NUTS(**{**SMALL, "mass_matrix": "low_rank", "compile": True})
    check_two_stops(nuts, net, (oracle.x, oracle.y), stops, tmp_path)
    assert not [record for record in caplog.records if "bit for bit" in record.message]


@pytest.mark.usefixtures("uncaptured")
def test_saving_at_every_step_changes_nothing(
    oracle: LinearGaussian, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoint_module, "SECONDS", 0.0)
    nuts, data = NUTS(num_chains=2, warmup_steps=4, num_samples=3), (oracle.x, oracle.y)
    run = nuts.run(oracle.model, data, progress=False, checkpoint=tmp_path)
    assert_equal(run, nuts.run(oracle.model, data, progress=False))


@pytest.mark.slow("a second or more")
@pytest.mark.usefixtures("uncaptured")
def test_without_a_checkpoint_ctrl_c_keeps_the_draws_so_far(
    oracle: LinearGaussian, stops: Stops
) -> None:
    nuts, data = NUTS(**SMALL), (oracle.x, oracle.y)
    expected = nuts.run(oracle.model, data, progress=False)
    stops.next(stops.steps - 8)
    posterior, message = stopped(lambda: nuts.run(oracle.model, data, progress=False))
    assert posterior is not None
    assert assert_begins_like(posterior, expected) > 1
    assert "checkpoint='folder'" in message


@pytest.mark.slow("about a second")
@pytest.mark.usefixtures("uncaptured")
def test_the_bar_goes_on(
    oracle: LinearGaussian, stops: Stops, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    go_on = partial(
        NUTS(**SMALL).run, oracle.model, (oracle.x, oracle.y), checkpoint=tmp_path, resume=True
    )
    stops.next(60)
    stopped(go_on)
    shown = capsys.readouterr().err.rpartition("\r")[2]
    drawn = int(re.findall(r"(\d+)/168", shown)[-1])
    go_on()
    counts = [int(n) for n in re.findall(r"(\d+)/168", capsys.readouterr().err)]
    assert 0 < drawn <= counts[1] < counts[-1] == 168


# --- what else the densities depend on -----------------------------------------------------------


@pytest.mark.slow("about a second")
@pytest.mark.usefixtures("uncaptured")
def test_point_parameters_and_starts_of_a_posterior(stops: Stops, tmp_path: Path) -> None:
    """Parameters are those of init, and another init is another run."""
    x = torch.zeros(9, 1, dtype=torch.float64)
    model, data = Shifted(0.0), (x, x[:, 0] + 3)
    nuts = NUTS(**SMALL)
    first = nuts.run(Shifted(2.0), data, progress=False)
    go_on = partial(nuts.run, model, data, progress=False, checkpoint=tmp_path)
    steps = stops.steps
    expected = nuts.run(model, data, init=first, progress=False)
    stops.next((stops.steps - steps) // 2)
    stopped(lambda: go_on(init=first))
    with pytest.raises(SiteError, match="of another model"):
        go_on(resume=True)
    run = go_on(init=first, resume=True)
    assert_equal(run, expected)
    assert float(run.params["shift"]) == 2


@pytest.mark.slow("a second or more")
@pytest.mark.usefixtures("uncaptured")
def test_a_loader_in_its_order_goes_on_and_in_another_is_refused(
    oracle: LinearGaussian, stops: Stops, tmp_path: Path
) -> None:
    """Gradients are sums over rows, and their bits depend on the order."""
    rows = TensorDataset(oracle.x, oracle.y)
    nuts, loader = NUTS(**SMALL), partial(DataLoader, rows, batch_size=4, shuffle=True)
    expected = nuts.run(oracle.model, loader(), progress=False)
    go_on = partial(nuts.run, oracle.model, checkpoint=tmp_path, resume=True, progress=False)
    stops.next(30)
    stopped(lambda: go_on(loader()))
    with pytest.raises(DataError, match="of a run on other data"):
        go_on(loader(generator=torch.Generator().manual_seed(5)))
    assert_equal(go_on(loader()), expected)


# --- what is refused -----------------------------------------------------------------------------


@pytest.mark.usefixtures("uncaptured")
def test_runs_that_do_not_belong_to_the_checkpoint(
    oracle: LinearGaussian, stops: Stops, tmp_path: Path
) -> None:
    data, nuts = (oracle.x, oracle.y), NUTS(**SMALL)
    stops.next(10)
    stopped(lambda: nuts.run(oracle.model, data, checkpoint=tmp_path, progress=False))
    for other, options, text in (
        (nuts, {}, "holds a checkpoint already: pass resume=True"),
        (nuts, {"resume": True, "seed": 1}, "seed=0 where this run has 1"),
        (NUTS(**{**SMALL, "num_chains": 5}), {"resume": True}, "num_chains=6 where"),
        (HMC(**SMALL), {"resume": True}, "engine='NUTS' where this run has 'HMC'"),
    ):
        with pytest.raises(OptionError, match=text):
            other.run(oracle.model, data, checkpoint=tmp_path, progress=False, **options)


@pytest.mark.slow("about a second")
@pytest.mark.usefixtures("uncaptured")
def test_a_file_of_draws_that_is_not_that_of_the_checkpoint(
    oracle: LinearGaussian, stops: Stops, tmp_path: Path
) -> None:
    go_on = partial(
        NUTS(**SMALL).run, oracle.model, (oracle.x, oracle.y), checkpoint=tmp_path, progress=False
    )
    go_on()
    path = tmp_path / hamiltonian.DRAWS
    draws = path.read_bytes()
    altered = bytes([draws[0] ^ 1]) + draws[1:]
    for held, text in (
        (draws[:-8], r"draws.bin holds 1528 bytes, not 1536"),
        (draws + b"0", r"draws.bin holds 1537 bytes, not 1536"),
        (altered, r"draws.bin does not hold the 8 draws of chain 0 that were written"),
        (None, r"draws.bin is missing: the draws so far are lost"),
    ):
        path.unlink()
        if held is not None:
            path.write_bytes(held)
        with pytest.raises(FileFormatError, match=text):
            go_on(resume=True)
        assert (path.read_bytes() if held is not None else None) == held
        path.touch()
    path.write_bytes(draws)
    go_on(resume=True)
