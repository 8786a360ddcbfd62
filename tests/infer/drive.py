"""Kernels driven by hand, with random numbers that are kept, and what their draws must obey.

A kernel is a module that is a :class:`pyro_bnn.infer.mcmc.lockstep.Kernel`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import scipy.stats
import torch
from torch import Tensor

from pyro_bnn.capture.captured import Captured
from pyro_bnn.infer.mcmc.mass import Mass
from pyro_bnn.infer.steps.potentials import Potential
from tests.infer.densities import Density


def normal(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def uniform(*shape: int, seed: int) -> Tensor:
    return torch.rand(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def uncaptured_step(*args: Any, enabled: bool, **options: Any) -> Captured:
    """In place of ``Captured``: a function that runs as it is, whatever is asked for."""
    return Captured(*args, enabled=False, **options)


def diagonal(*scale: float) -> Mass:
    return Mass(torch.tensor(scale, dtype=torch.float64))


def low_rank(num_latents: int) -> Mass:
    """Two directions and a zero one."""
    basis = torch.linalg.qr(normal(num_latents, 3, seed=5))[0]
    basis[:, 2] = 0
    scale = uniform(num_latents, seed=6).exp()
    return Mass(scale, basis, torch.tensor([2.0, 0.4, 1.0], dtype=torch.float64))


class Run(NamedTuple):
    """One trajectory of a chain: what went in, and what came out.

    Attributes:
        chain: Number of the chain.
        z: Where it started ``[P]``.
        p: Its first momentum ``[P]``.
        uniforms: The row it started with and one a step ``[n, UNIFORMS]``.
        drawn: The draw ``[P]``.
        stats: Its statistics by name.
    """

    chain: int
    z: Tensor
    p: Tensor
    uniforms: Tensor
    drawn: Tensor
    stats: dict[str, float]


def trajectories(
    kernel: Any,
    potential: Potential,
    mass: Mass,
    z: Tensor,
    step_size: Tensor,
    *,
    num_steps: int,
    limit: int,
    seed: int,
) -> list[Run]:
    """All that end within ``num_steps`` steps of chains from z ``[C, P]``."""
    num_chains, num_latents = z.shape
    momenta = normal(num_steps + 1, num_chains, num_latents, seed=seed)
    uniforms = uniform(num_steps + 1, num_chains, kernel.UNIFORMS, seed=seed + 1)
    bound = torch.tensor(limit)
    state = kernel.begin((z, *potential(z)), momenta[0], uniforms[0], limit)
    began, at = [0] * num_chains, list(z)
    runs = []
    for i in range(1, num_steps + 1):
        state = kernel.step(state, potential, mass, step_size, momenta[i], uniforms[i], bound)
        for c in state.ended.nonzero()[:, 0].tolist():
            drawn = kernel.position(state, torch.tensor([c]))[0][0]
            stats = dict(zip(kernel.STATISTICS, state.stats[c].tolist(), strict=True))
            first = began[c]
            rows = uniforms[first : i + 1, c]
            runs.append(Run(c, at[c], momenta[first, c], rows, drawn, stats))
            began[c], at[c] = i, drawn
    return runs


def assert_invariant(
    kernel: Any,
    density: Density,
    mass: Mass,
    *,
    step_size: float,
    limit: int,
    num_chains: int,
    num_draws: int,
    least_moved: float,
) -> None:
    """Chains that start at exact draws stay exact, and run backwards as they run forwards.

    Chains are independent, so Kolmogorov-Smirnov tests of the draws of one number are exact. A
    reversible chain in equilibrium has E f(z) g(z') = E g(z) f(z').
    """
    start = density.draws(num_chains, seed=3)
    draws = _draws(kernel, density.potential, mass, start, step_size, limit, num_draws)
    moved = (draws[0] != start).any(-1).double().mean()
    assert moved > least_moved
    before = _scores(density, start)
    for z in draws:
        after = _scores(density, z)
        for name, cdf in (("first", "norm"), ("last", "norm"), ("radius", "expon")):
            assert scipy.stats.kstest(after[name], cdf).pvalue > 1e-4, name
        for f, g in (("first", "last"), ("radius", "first"), ("radius", "last"), ("tilt", "last")):
            difference = before[f] * after[g] - before[g] * after[f]
            z_score = difference.mean() / scipy.stats.sem(difference)
            assert abs(z_score) < 4, (f, g)


def _scores(density: Density, z: Tensor) -> dict[str, np.ndarray]:
    """Functions of draws of a density of two latents, the first three of known distribution."""
    n = density.to_normal(z).numpy()
    return {
        "first": n[:, 0],
        "last": n[:, 1],
        "radius": 0.5 * (n**2).sum(1),
        "tilt": np.sin(n[:, 0] + 2 * n[:, 1]),
    }


def _draws(
    kernel: Any,
    potential: Potential,
    mass: Mass,
    start: Tensor,
    step_size: float,
    limit: int,
    num_draws: int,
) -> list[Tensor]:
    """The first ``num_draws`` draws of every chain ``[C, P]``, whenever it made them."""
    generator = torch.Generator().manual_seed(4)
    num_chains, num_latents = start.shape

    def numbers() -> tuple[Tensor, Tensor]:
        return (
            torch.randn(start.shape, dtype=start.dtype, generator=generator),
            torch.rand(num_chains, kernel.UNIFORMS, dtype=start.dtype, generator=generator),
        )

    draws = torch.zeros(num_draws, num_chains, num_latents, dtype=start.dtype)
    counts = torch.zeros(num_chains, dtype=torch.int64)
    steps, bound = torch.full((num_chains,), step_size, dtype=start.dtype), torch.tensor(limit)
    state = kernel.begin((start, *potential(start)), *numbers(), limit)
    while bool((counts < num_draws).any()):
        state = kernel.step(state, potential, mass, steps, *numbers(), bound)
        chains = (state.ended & (counts < num_draws)).nonzero()[:, 0]
        draws[counts[chains], chains] = kernel.position(state, chains)[0]
        counts[chains] += 1
    return list(draws)
