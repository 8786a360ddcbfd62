"""Chains in one batch: each goes its own way."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from pyro_bnn.errors import CaptureError, FileFormatError
from pyro_bnn.infer.mcmc import chains as chains_module
from pyro_bnn.infer.mcmc import hmc_kernel, nuts_kernel
from pyro_bnn.infer.mcmc import lockstep as lockstep_module
from pyro_bnn.infer.mcmc.chains import in_lockstep
from pyro_bnn.infer.mcmc.leapfrog import Start
from pyro_bnn.infer.mcmc.lockstep import UNIFORM_STEPS, Energy, Graphs, Lockstep
from pyro_bnn.infer.mcmc.mass import Mass

KERNELS = pytest.mark.parametrize(("kernel", "limit"), [(nuts_kernel, 64), (hmc_kernel, 4)])
P = 3


def lockstep(
    kernel: Any,
    potential: Callable[..., tuple[Tensor, Tensor]],
    starts: Tensor,
    *inputs: Tensor,
    **options: Any,
) -> Lockstep:
    mass = options.pop("mass", Mass(torch.ones(starts.shape[1], dtype=starts.dtype)))
    given = {
        "limit": 64,
        "target_accept": 0.8,
        "seed": 0,
        **options,
    }
    energy = Energy(potential, inputs, given.pop("by_chain", ()))
    how = {name: given.pop(name) for name in Graphs._fields if name in given}
    return in_lockstep(kernel, energy, starts, mass, graphs=Graphs("the step", **how), **given)


def standard(z: Tensor) -> tuple[Tensor, Tensor]:
    return 0.5 * z.square().sum(-1), z


def around(z: Tensor, loc: Tensor, sd: Tensor) -> tuple[Tensor, Tensor]:
    """Each chain has a Gaussian of its own: locations and standard deviations ``[C, 1]``."""
    return 0.5 * ((z - loc) / sd).square().sum(-1), (z - loc) / sd**2


def collect(chains: Lockstep, num_steps: int) -> list[tuple[NDArray[np.int64], Tensor]]:
    """Numbers of chains that drew ``[K]`` and their draws ``[K, P]``, step by step."""
    drawn = []
    for _ in range(num_steps):
        made = chains.steps(1)
        drawn.append((chains.chains[made.places], made.z))
    return drawn


# --- random numbers ------------------------------------------------------------------------------


class Seen(NamedTuple):
    """What a step was given, with ``ended`` at every other step of a chain."""

    momentum: Tensor
    uniform: Tensor
    ended: Tensor
    accept_sum: Tensor
    stats: Tensor


class Recorder:
    """A kernel that keeps what it was given; chain c draws where uniform 0 is below 1/2."""

    STATISTICS = ("acceptance_rate",)
    AIM = "acceptance_rate"
    ORDER = None
    UNIFORMS = 2

    @staticmethod
    def begin(start: Start, momentum: Tensor, uniform: Tensor, limit: int) -> Seen:
        _, potential, _ = start
        no = potential != potential
        return Seen(momentum.clone(), uniform.clone(), no, potential * 0, potential[:, None] * 0)

    @staticmethod
    def step(
        state: Seen,
        potential: Any,
        mass: Mass,
        step_size: Tensor,
        momentum: Tensor,
        uniform: Tensor,
        limit: Tensor,
    ) -> Seen:
        return Seen(momentum + 0, uniform + 0, uniform[:, 0] < 0.5, state.accept_sum, state.stats)

    @staticmethod
    def position(state: Seen, chains: Tensor) -> Start:
        return state.momentum[chains], state.accept_sum[chains], state.momentum[chains]


def test_no_random_number_is_used_twice() -> None:
    chains = lockstep(Recorder, standard, torch.zeros(4, P, dtype=torch.float64))
    uniforms: list[Tensor] = []
    momenta: list[list[Tensor]] = [[] for _ in range(4)]
    for _ in range(2 * UNIFORM_STEPS + 10):
        drew = chains.steps(1).places
        uniforms.append(chains._state.uniform.clone())
        assert drew.tolist() == (uniforms[-1][:, 0] < 0.5).nonzero().flatten().tolist()
        for place in drew.tolist():
            momenta[place].append(chains._state.momentum[place].clone())
    used = torch.stack(uniforms)
    assert len(used.unique()) == used.numel()
    assert used.min() >= 0
    assert used.max() < 1
    assert (used.mean(0) - 0.5).abs().max() < 4 / math.sqrt(12 * len(used))
    used = torch.cat([torch.stack(m) for m in momenta])
    assert len(used.unique()) == used.numel()
    assert used.mean(0).abs().max() < 4 / math.sqrt(len(used))
    assert (used.var(0) - 1).abs().max() < 4 * math.sqrt(2 / len(used))


def test_no_momentum_of_a_block_is_used_twice() -> None:
    """The recorder's draw is the momentum that it was given, here before its next trajectory."""
    chains = lockstep(Recorder, standard, torch.zeros(4, P, dtype=torch.float64))
    used = torch.cat([chains.steps(chains.block).z for _ in range(80)])
    assert len(used) > 4 * 80 * chains.block / 2 * 0.8
    assert len(used.unique()) == used.numel()
    assert used.mean(0).abs().max() < 4 / math.sqrt(len(used))
    assert (used.var(0) - 1).abs().max() < 4 * math.sqrt(2 / len(used))


@KERNELS
def test_steps_repeat_for_a_seed_whatever_the_global_state(kernel: Any, limit: int) -> None:
    def run(seed: int) -> Tensor:
        torch.randn(seed + 1)
        starts = torch.ones(3, P)
        chains = lockstep(kernel, standard, starts, limit=limit, seed=seed, captured=False)
        chains.restart(chains.mass, limit=limit)
        return torch.cat([z for _, z in collect(chains, 60)])

    before = torch.get_rng_state()
    first = run(0)
    torch.set_rng_state(before)
    assert torch.equal(run(0), first)
    other = run(1)
    assert not torch.equal(other[-5:], first[-5:])


# --- each chain its own --------------------------------------------------------------------------


@pytest.mark.slow("about a second")
@KERNELS
def test_chains_keep_their_own_data_when_others_are_dropped(kernel: Any, limit: int) -> None:
    """Every chain has its Gaussian a thousand standard deviations from the next."""
    loc = 1000 * torch.arange(6.0, dtype=torch.float64)[:, None]
    sd = torch.ones_like(loc)
    chains = lockstep(
        kernel, around, loc.expand(-1, P).clone(), loc, sd, limit=limit, by_chain=(0, 1)
    )
    chains.restart(chains.mass, limit=limit)
    for kept in ([0, 1, 2, 3, 4, 5], [5, 1, 3], [0, 2]):
        if len(kept) < len(chains.chains):
            chains.keep(np.array(kept))
        drawn = collect(chains, 60)
        numbers = np.concatenate([chain for chain, _ in drawn])
        z = torch.cat([z for _, z in drawn])
        assert set(numbers.tolist()) == set(chains.chains.tolist())
        assert (z - loc[numbers]).abs().max() < 10
        assert len(z.unique()) > len(z)  # they move
    assert chains.chains.tolist() == [5, 3]
    for _ in range(30):
        drawn_now = chains.steps(1)
        lp = torch.from_numpy(drawn_now.stats[:, chains.columns.index("lp")])
        places = drawn_now.places
        value, expected = around(drawn_now.z, loc[[5, 3]][places], sd[places])
        torch.testing.assert_close(lp, -value)
        torch.testing.assert_close(drawn_now.grad, expected)


@pytest.mark.slow("records a step for the compiler")
@pytest.mark.usefixtures("interpreted")
def test_dropping_chains_needs_no_other_compilation(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(chains_module, "FEW_CHAINS", 5)
    chains = lockstep(nuts_kernel, standard, torch.ones(6, P), compiled=True)
    graphs = chains._captured._by_rows
    assert chains.serves(3)
    chains.keep(np.array([0, 3, 5]))
    chains.steps(1)
    assert sum(map(len, graphs.values())) == 1
    assert [r.message for r in caplog.records if r.name == "pyro_bnn"] == []


def test_chains_are_dropped_where_no_uniform_number_is_left() -> None:
    starts = torch.randn(12, P, dtype=torch.float64)
    chains, whole = (lockstep(hmc_kernel, standard, starts, limit=4) for _ in range(2))
    for _ in range(UNIFORM_STEPS):
        chains.steps(1), whole.steps(1)
    kept = np.arange(0, 12, 2)
    chains.keep(kept)
    assert chains._captured.is_captured
    for name, value in chains._state._asdict().items():
        torch.testing.assert_close(value, getattr(whole._state, name)[kept], rtol=0, atol=0)
    chains.steps(1)
    assert chains._turn.tolist() == [1] * len(kept)


@pytest.mark.slow("about a second")
@pytest.mark.usefixtures("interpreted")
def test_few_chains_have_a_graph_of_their_own_number_and_go_along_to_the_end() -> None:
    starts = torch.ones(chains_module.FEW_CHAINS, P)
    few = lockstep(hmc_kernel, standard, starts, compiled=True, apart=False)
    assert not few.serves(chains_module.FEW_CHAINS - 1)
    assert few._captured._by_rows == {}
    many = torch.ones(chains_module.FEW_CHAINS + 1, P)
    assert lockstep(hmc_kernel, standard, many, compiled=True).serves(2)


@pytest.mark.slow("samples chains")
@KERNELS
def test_every_chain_finds_the_step_size_of_its_own_density(kernel: Any, limit: int) -> None:
    """At a hundred times the width it is a hundred times as long; widths change over the batch."""
    half = 12
    sd = torch.tensor([0.1, 10.0], dtype=torch.float64).repeat(half)[:, None]
    starts = sd * torch.randn(2 * half, P, dtype=torch.float64)
    chains = lockstep(
        kernel, around, starts, 0 * sd, sd, limit=limit, by_chain=(0, 1), target_accept=0.7
    )
    chains.restart(chains.mass, limit=limit)
    found = chains.step_size.clone()
    # The first guess is a power of 2, the same for one width up to a factor that the start decides.
    assert (found.log2() == found.log2().round()).all()
    assert 2**4 < found[1::2].median() / found[::2].median() < 2**10
    collect(chains, 400)
    chains.fix(np.arange(2 * half))
    log_step = chains.step_size.log().reshape(half, 2)
    difference = log_step[:, 1] - log_step[:, 0]
    error = difference.std() / math.sqrt(half)
    assert (difference.mean() - math.log(100)).abs() < 4 * error
    assert error < 0.2
    column = chains.columns.index("acceptance_rate")
    rates = [chains.steps(1).stats[:, column] for _ in range(300)]
    assert 0.65 < np.concatenate(rates).mean() < 0.9


def test_fixed_step_sizes_stay_and_the_others_go_on() -> None:
    starts = torch.ones(3, P, dtype=torch.float64)
    chains = lockstep(nuts_kernel, standard, starts, captured=False)
    chains.restart(chains.mass, limit=64)
    collect(chains, 60)
    before = chains.step_size.clone()
    chains.fix(np.array([1]))
    fixed = chains.step_size.clone()
    assert fixed[1] != before[1]  # the average, not the latest
    assert torch.equal(fixed[[0, 2]], before[[0, 2]])
    collect(chains, 60)
    assert chains.step_size[1] == fixed[1]
    assert (chains.step_size[[0, 2]] != fixed[[0, 2]]).all()


@KERNELS
def test_chains_of_one_density_end_with_one_step_size(kernel: Any, limit: int) -> None:
    starts = torch.randn(8, P, dtype=torch.float64)
    chains = lockstep(kernel, standard, starts, limit=limit, captured=False)
    chains.restart(chains.mass, limit=limit)
    collect(chains, 200)
    own = chains._averages.log_average.exp()
    assert own.std() > 0.01
    chains.fix(np.array([2, 5]))
    common = chains.step_size[2]
    assert chains.step_size[5] == common
    assert own.min() < common < own.max()
    assert (chains.step_size[[0, 1, 3, 4, 6, 7]] != common).all()  # still tuning


# --- blocks of steps -----------------------------------------------------------------------------


def noted(chains: Lockstep) -> tuple[NDArray[np.int64], Tensor, NDArray[np.float64]]:
    """What :meth:`Lockstep.steps` returns, by a look after every step."""
    rows = []
    for step in range(chains.block):
        chains._move(1)
        for place in np.flatnonzero(chains._state.ended.numpy()):
            z, _, _ = chains._kernel.position(chains._state, torch.tensor([place]))
            stats = [*chains._state.stats[place].tolist(), float(chains.step_size[place])]
            rows.append((place, step, z.clone(), np.array([stats])))
    places, _, z, stats = zip(*sorted(rows, key=lambda row: row[:2]), strict=True)
    return np.array(places), torch.cat(z), np.concatenate(stats)


@pytest.mark.parametrize(
    ("kernel", "limit", "path"),
    [
        (nuts_kernel, 64, "captured"),
        pytest.param(nuts_kernel, 64, "apart", marks=pytest.mark.slow("compiles")),
        pytest.param(hmc_kernel, 4, "captured", marks=pytest.mark.soak),
        pytest.param(nuts_kernel, 64, "compiled", marks=pytest.mark.soak),
        pytest.param(hmc_kernel, 4, "compiled", marks=pytest.mark.soak),
    ],
)
def test_a_block_of_steps_notes_every_draw_of_every_chain(
    kernel: Any, limit: int, path: str
) -> None:
    starts = torch.ones(5, P, dtype=torch.float64)
    options = {"compiled": path != "captured", "apart": path == "apart"}
    chains = lockstep(kernel, standard, starts, limit=limit, **options)
    assert chains.compile_path == path
    chains.restart(chains.mass, limit=limit)
    collect(chains, 40)
    chains.fix(np.arange(5))
    assert chains.block > 1
    for kept in (np.arange(5), np.arange(5), np.array([4, 1, 2]), np.arange(3)):
        if len(kept) < len(chains.chains):
            chains.keep(kept)
        state = copied(chains.state())
        state["chains"] = torch.arange(len(chains.chains))  # in the batch as it is now
        places, z, stats = noted(chains)
        chains.restore(state)
        chains._log.num_drawn.zero_()
        drawn = chains.steps(chains.block)
        assert len(places) > len(set(places.tolist())) > 1
        assert drawn.places.tolist() == places.tolist()
        assert torch.equal(drawn.z, z)
        assert np.array_equal(drawn.stats, stats)


@pytest.mark.slow("captures chains")
def test_draws_that_take_much_memory_are_looked_at_one_by_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(lockstep_module, "BLOCK_BYTES", 16 * 4 * P * 8)
    starts = torch.ones(5, P, dtype=torch.float64)
    chains = lockstep(nuts_kernel, standard, starts)
    assert chains.block == 1
    assert lockstep(nuts_kernel, standard, starts[:4], captured=False).block == 16
    chains.restart(chains.mass, limit=64)
    drawn = torch.cat([z for _, z in collect(chains, 400)])
    assert len(drawn) > 300
    assert drawn.mean(0).abs().max() < 0.3
    assert (drawn.var(0) - 1).abs().max() < 0.4


# --- restarts ------------------------------------------------------------------------------------


@KERNELS
def test_a_restart_goes_on_from_the_latest_draws_under_the_new_matrix(
    kernel: Any, limit: int
) -> None:
    starts = torch.ones(4, P, dtype=torch.float64)
    captured = kernel is hmc_kernel  # whose graph reads what a restart writes
    chains = lockstep(kernel, standard, starts, limit=limit, captured=captured)
    assert (chains.compile_path == "captured") == captured
    chains.restart(chains.mass, limit=limit)
    collect(chains, 50)

    def latest() -> tuple[Tensor, ...]:
        return tuple(v.clone() for v in kernel.position(chains._state, torch.arange(4)))

    before = latest()
    scale = torch.tensor([0.01, 0.01, 0.01], dtype=torch.float64)
    chains.restart(Mass(scale), limit=limit)
    for now, then in zip(latest(), before, strict=True):
        assert torch.equal(now, then)
    assert torch.equal(chains.mass.scale, scale)
    reach = 0.01 * chains.step_size  # of a step, where a standard deviation is 1
    assert ((reach > 0.2) & (reach < 8)).all()


def test_a_restart_sets_the_limit() -> None:
    chains = lockstep(nuts_kernel, standard, torch.ones(4, P), limit=64, captured=False)
    column = chains.columns.index("n_steps")
    for limit in (2, 16, 4):
        chains.restart(chains.mass, limit=limit)
        chains.fix(np.arange(4))
        chains.step_size.fill_(1e-3)  # so short that no trajectory turns
        for _ in range(20):
            assert (chains.steps(1).stats[:, column] == limit - 1).all()


# --- states --------------------------------------------------------------------------------------


@pytest.mark.slow("about a second")
@KERNELS
def test_chains_go_on_from_a_state_of_fewer(kernel: Any, limit: int) -> None:
    """With a matrix and data of each chain, past the end of a block of uniform numbers."""
    loc = 10 * torch.arange(5.0, dtype=torch.float64)[:, None]
    sd = 1 + loc / 50

    def make() -> Lockstep:
        return lockstep(
            kernel,
            around,
            loc.expand(-1, P).clone(),
            loc,
            sd,
            mass=Mass(sd.expand(-1, P).clone()),
            limit=limit,
            captured=False,
            by_chain=(0, 1),
        )

    chains = make()
    chains.restart(Mass(0.9 * chains.mass.scale), limit=limit)
    collect(chains, 30)
    chains.fix(np.array([3]))
    chains.keep(np.array([3, 0, 4]))
    collect(chains, 10)
    state = {name: copied(value) for name, value in chains.state().items()}
    expected = collect(chains, UNIFORM_STEPS)
    other = make()
    other.restore(state)
    assert other.chains.tolist() == [3, 0, 4]
    for (numbers, z), (others, w) in zip(expected, collect(other, UNIFORM_STEPS), strict=True):
        assert numbers.tolist() == others.tolist()
        assert torch.equal(z, w)
    assert torch.equal(other.step_size, chains.step_size)


def copied(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: copied(entry) for name, entry in value.items()}
    return value.clone() if isinstance(value, Tensor) else value


def test_a_state_of_other_chains_is_refused() -> None:
    state = lockstep(nuts_kernel, standard, torch.ones(4, P), captured=False).state()
    fewer, longer, exact = (
        lockstep(nuts_kernel, standard, starts, captured=False)
        for starts in (torch.ones(3, P), torch.ones(4, P + 1), torch.ones(4, P).double())
    )
    with pytest.raises(FileFormatError, match=r"is of chains \[0 1 2 3\], not of 3"):
        fewer.restore(state)
    for other in (longer, exact):
        with pytest.raises(FileFormatError, match="its tensors have other shapes"):
            other.restore(state)
    same, uniforms = lockstep(nuts_kernel, standard, torch.ones(4, P), captured=False), "uniforms"
    short = state[uniforms][:3]
    for wrong in ({"num_used": UNIFORM_STEPS + 1}, {"num_used": -1}, {uniforms: short}):
        with pytest.raises(FileFormatError, match="its uniform numbers do not fit"):
            same.restore({**state, **wrong})


# --- models that cannot be captured --------------------------------------------------------------


def branching(z: Tensor) -> tuple[Tensor, Tensor]:
    return standard(z) if float(z.sum()) > 0 else standard(1.0 * z)


def test_a_density_that_cannot_be_captured_runs_as_it_is(
    caplog: pytest.LogCaptureFixture,
) -> None:
    chains = lockstep(nuts_kernel, branching, torch.ones(3, P))
    (line,) = [r.message for r in caplog.records if r.name == "pyro_bnn"]
    assert line.startswith("the step cannot be captured as a graph and runs through plain Pyro")
    expected = lockstep(nuts_kernel, standard, torch.ones(3, P))
    for (_, z), (_, as_captured) in zip(collect(chains, 20), collect(expected, 20), strict=True):
        torch.testing.assert_close(z, as_captured)
    chains.keep(np.array([2, 0]))
    collect(chains, 20)


def test_a_density_that_must_be_compiled_and_cannot_is_an_error() -> None:
    with pytest.raises(CaptureError, match=r"the step cannot be compiled: .*control flow"):
        lockstep(nuts_kernel, branching, torch.ones(3, P), compiled=True, strict=True)
