"""Few chains, moved apart by a step in C: the steps of the batch, whatever the threads."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from pyro_bnn.infer.mcmc import chains as chains_module
from pyro_bnn.infer.mcmc import hmc_kernel, nuts_kernel
from pyro_bnn.infer.mcmc.chains import BLOCK_APART, MOST_STEPS, ChainsApart, in_lockstep
from pyro_bnn.infer.mcmc.lockstep import Energy, Graphs, Lockstep
from pyro_bnn.infer.mcmc.mass import Mass
from pyro_bnn.infer.mcmc.progress import Progress
from pyro_bnn.infer.mcmc.sampling import Sampled, Sampling, first_mass

P = 3
SD = torch.tensor([0.5, 1.0, 3.0], dtype=torch.float64)
KERNELS = pytest.mark.parametrize(("kernel", "limit"), [(nuts_kernel, 64), (hmc_kernel, 4)])


@pytest.fixture(autouse=True, scope="module")
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Steps are compiled here, and once."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        yield


def gaussian(z: Tensor) -> tuple[Tensor, Tensor]:
    return 0.5 * (z / SD).square().sum(-1), z / SD**2


def around(z: Tensor, loc: Tensor) -> tuple[Tensor, Tensor]:
    """Each chain has a Gaussian of its own, at a location ``[C, 1]``."""
    return 0.5 * (z - loc).square().sum(-1), z - loc


def lockstep(
    kernel: Any,
    limit: int,
    num_chains: int,
    *inputs: Tensor,
    kind: Any = "diagonal",
    **options: Any,
) -> Lockstep:
    generator = torch.Generator().manual_seed(1)
    starts = torch.randn(num_chains, P, generator=generator, dtype=torch.float64)
    potential = around if inputs else gaussian
    mass = first_mass(potential(starts, *inputs)[1], kind, each=bool(inputs))
    energy = Energy(potential, inputs, options.pop("by_chain", ()))
    how = {name: options.pop(name) for name in Graphs._fields if name in options}
    graphs = Graphs("the step", **{"compiled": True, "strict": True, **how})
    given = {"limit": limit, "target_accept": 0.8, "seed": 0, **options}
    return in_lockstep(kernel, energy, starts, mass, graphs=graphs, **given)


def sampling(
    chains: Lockstep, limit: int, warmup: int = 60, draws: int = 400, path: Path | None = None
) -> Sampling:
    bar = Progress("apart", len(chains.chains), warmup + draws, show=False)
    return Sampling(
        chains, warmup_steps=warmup, num_samples=draws, limit=limit, progress=bar, path=path
    )


def to_the_end(run: Sampling) -> Sampled:
    while not run.is_done:
        run.go()
    return run.result()


@pytest.mark.slow("a step is compiled")
@KERNELS
@pytest.mark.parametrize("kind", ["diagonal", "low_rank", "each"])
def test_apart_chains_take_the_steps_of_the_batch(kernel: Any, limit: int, kind: str) -> None:
    """In C and by torch, all chains at once, from the same state by the same numbers."""
    inputs = (torch.arange(3.0, dtype=torch.float64)[:, None],) if kind == "each" else ()
    chains = lockstep(
        kernel,
        limit,
        3,
        *inputs,
        kind="diagonal" if kind == "each" else kind,
        by_chain=(0,) if inputs else (),
    )
    assert (chains.compile_path, chains.block) == ("apart", MOST_STEPS)
    chains.restart(chains.mass, limit=limit)
    if kind == "low_rank":
        basis = torch.linalg.qr(torch.randn(P, P, dtype=torch.float64))[0][:, :1]
        chains.mass.basis[:, :1] = basis  # type: ignore[index]
        chains.mass.stretch[0] = 2.0  # type: ignore[index]
    chains.steps(BLOCK_APART)
    tensors = [value.clone() for value in chains._tensors()]
    for _ in range(BLOCK_APART):
        new = chains._iterate(*tensors)
        tensors[: len(new)] = new
    chains._move(BLOCK_APART)
    assert (chains._log.num_drawn > 2).all()
    for found, expected in zip(chains._tensors(), tensors, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-8, atol=1e-8)


@pytest.mark.slow("a step is compiled")
def test_the_draws_are_the_same_for_every_number_of_threads() -> None:
    """While chains adapt, while they are kept, and as some of them end."""
    before, found = torch.get_num_threads(), []
    try:
        for num_threads in (1, 2, 3):
            torch.set_num_threads(num_threads)
            chains = lockstep(nuts_kernel, 64, 5)
            assert isinstance(chains, ChainsApart)
            assert (chains._threads is None) == (num_threads == 1)
            run = sampling(chains, 64, draws=3_000)
            run.begin()
            found.append(to_the_end(run))
            assert len(chains.chains) < 5  # those that were done went no further
            assert torch.get_num_threads() == num_threads
    finally:
        torch.set_num_threads(before)
    for other in found[1:]:
        assert torch.equal(other.z, found[0].z)
        np.testing.assert_array_equal(other.stats, found[0].stats)


@pytest.mark.slow("a step is compiled")
@KERNELS
def test_a_run_goes_on_from_wherever_it_was(kernel: Any, limit: int, tmp_path: Path) -> None:
    def make() -> Sampling:
        return sampling(lockstep(kernel, limit, 4), limit, path=tmp_path / "draws")

    run = make()
    run.begin()
    states, places = [], set()
    while not run.is_done:
        states.append(copy.deepcopy(run.state()))
        places.add(run._number)
        run.go()
    assert places == {0, 1, 2}
    expected = run.result()
    for state in states[:: max(1, len(states) // 7)]:
        other = make()
        other.restore(state)
        assert other._place() == state["place"]
        result = to_the_end(other)
        assert torch.equal(result.z, expected.z)
        np.testing.assert_array_equal(result.stats, expected.stats)


def test_a_step_size_is_fixed_between_trajectories() -> None:
    """A chain that is amid a trajectory begins another one, at its latest draw; others go on."""
    chains = lockstep(nuts_kernel, 64, 3)
    chains.restart(chains.mass, limit=64)
    chains.steps(BLOCK_APART)
    state = chains._state
    while not (state.num_steps > 0).all():
        chains._move(1)
    before = {name: getattr(state, name).clone() for name in ("num_steps", "end_z", "accept_sum")}
    draws = nuts_kernel.position(state, torch.arange(3))[0].clone()
    chains.fix(np.array([0, 2]))
    assert state.num_steps[[0, 2]].tolist() == [0, 0]
    assert torch.equal(state.end_z[[0, 2]], draws[[0, 2], None].expand(-1, 2, -1))
    for name, value in before.items():
        assert torch.equal(getattr(state, name)[1], value[1])
    fixed = chains.step_size.clone()
    drawn = chains.steps(BLOCK_APART)
    assert chains.step_size[[0, 2]].tolist() == fixed[[0, 2]].tolist()
    assert (drawn.stats[drawn.places == 0, -1] == float(fixed[0])).all()


@pytest.mark.slow("a step is compiled")
@pytest.mark.parametrize(("kernel", "limit"), [(nuts_kernel, 1024), (hmc_kernel, 6)])
def test_the_draws_have_the_moments_of_the_density(kernel: Any, limit: int) -> None:
    """Eight chains of 2,000 draws; errors by the scatter of the chains' means."""
    run = sampling(lockstep(kernel, limit, 8), limit, warmup=100, draws=2_000)
    run.begin()
    z = to_the_end(run).z
    for values, expected in ((z, torch.zeros(P)), (z.square(), SD**2)):
        means = values.mean(1)  # [C, P]
        error = means.std(0) / 8**0.5
        assert ((means.mean(0) - expected).abs() < 5 * error).all()
        assert (error < 0.1 * SD**2 + 0.02).all()


def turning(z: Tensor) -> tuple[Tensor, Tensor]:
    """A density with an operation that is not written in C."""
    return 0.5 * z.square().sort(-1).values.sum(-1), z


@pytest.mark.slow("a step is compiled")
@pytest.mark.usefixtures("interpreted")
def test_what_is_not_written_in_c_moves_as_a_batch_and_by_the_same_numbers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(chains_module, "MOST_APART", 64)

    def make(**options: Any) -> Lockstep:
        starts, mass = torch.ones(4, P), Mass(torch.ones(P))
        graphs = Graphs("the step", compiled=True, **options)
        given = {"limit": 4, "target_accept": 0.8, "seed": 0}
        return in_lockstep(hmc_kernel, Energy(turning), starts, mass, graphs=graphs, **given)

    chains, other = make(), make(apart=False)
    assert chains.compile_path == other.compile_path == "compiled"
    assert not chains.is_apart
    assert torch.equal(chains._momenta, other._momenta)
    chains.steps(1)
