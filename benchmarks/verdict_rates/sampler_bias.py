"""How often the energy errors of an unadjusted sampler are said to imply wrong variances.

The steps are those of ``MCLMC`` on Gaussians, in its own coordinates, where directions may still
differ in curvature. What is true is counted: the root mean square, over directions, of how far
their variances over all runs together are from the exact ones.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch

from benchmarks.verdict_rates._rate import Rate
from pyro_bnn.diagnostics.energy_error import MAX_BIAS, mean_energy_variance, variance_bias
from pyro_bnn.infer.mcmc.isokinetic import INTEGRATORS, refresh, unit
from pyro_bnn.infer.mcmc.mass import Mass
from pyro_bnn.plotting.numbers import number, percent

SEED = 24
SIZE, NUM_CHAINS, NUM_DRAWS, BURN_IN = 100, 4, 200, 200
MEMORY = 0.25  # of a step over the length after which a velocity is forgotten
SPECTRA = {
    "equal curvatures": torch.ones(SIZE),
    "half the curvatures 1, half 4": torch.tensor([1.0, 4.0]).repeat(SIZE // 2),
    "a tenth of the curvatures 9, the others 1": torch.tensor([9.0] + 9 * [1.0]).repeat(SIZE // 10),
}
STEPS = {"leapfrog": (0.5, 0.8, 1.0, 1.3), "minimal_norm": (0.8, 1.2, 1.6, 2.0)}


class Seen(NamedTuple):
    """Of all chains of a setting.

    Attributes:
        squares: Mean over chains and draws of the squares of each direction, over the exact ones.
        energy_variance: Square of each step's energy error a dimension ``[C, S]``.
    """

    squares: torch.Tensor
    energy_variance: torch.Tensor


def rows(quick: bool = False) -> Iterator[Rate]:
    """The share of runs that are said to be biased, by integrator, spectrum and step."""
    num_runs = 2 if quick else 100
    length = (20, 60) if quick else (BURN_IN, NUM_DRAWS)
    for integrator, steps in STEPS.items():
        for words, curvature in SPECTRA.items():
            for step in steps:
                h = step / float(curvature.mean().sqrt())
                seen = chains(integrator, curvature.double(), h, num_runs * NUM_CHAINS, *length)
                error = float(true_error(seen.squares, curvature))
                by_run = seen.energy_variance.reshape(num_runs, NUM_CHAINS, -1).numpy()
                biases = [variance_bias(mean_energy_variance(e, e > 1e9)) for e in by_run]
                yield Rate(
                    verdict="sampler bias",
                    measures="error of variances that the energy errors of an unadjusted sampler "
                    "imply, were all directions equally stiff",
                    threshold=f"above {percent(MAX_BIAS, 0)}",
                    setting=f"MCLMC, {integrator.replace('_', ' ')}, {SIZE} directions, {words}, "
                    f"step {number(step, 2)}: variances {percent(error, 1)} off",
                    is_true=error > MAX_BIAS,
                    given=sum(bias > MAX_BIAS for bias in biases),
                    simulated=num_runs,
                    seed=SEED,
                )


def true_error(squares: torch.Tensor, curvature: torch.Tensor) -> torch.Tensor:
    """Root mean square over directions of their variances' errors; alike ones are pooled."""
    pooled = [squares[curvature == value].mean() for value in curvature]
    return (torch.stack(pooled) - 1).square().mean().sqrt()


def chains(
    integrator: str,
    curvature: torch.Tensor,
    step: float,
    num_chains: int,
    burn_in: int = BURN_IN,
    num_draws: int = NUM_DRAWS,
) -> Seen:
    """Steps from draws of the Gaussian, the first of which are dropped.

    Args:
        integrator: Its name.
        curvature: Of each direction ``[P]``.
        step: In units of Hamiltonian steps: over the root of P - 1.
        num_chains: Number of chains.
        burn_in: Steps that are dropped.
        num_draws: Steps after them.
    """
    generator = torch.Generator().manual_seed(SEED)

    def normal() -> torch.Tensor:
        return torch.randn(num_chains, SIZE, generator=generator, dtype=torch.float64)

    def potential(z: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return 0.5 * (curvature * z * z).sum(-1), curvature * z

    z, v = normal() / curvature.sqrt(), unit(normal())
    value, grad = potential(z)
    epsilon = torch.full((num_chains,), step * (SIZE - 1) ** 0.5, dtype=torch.float64)
    share, mass = torch.full_like(epsilon, MEMORY), Mass(torch.ones_like(curvature))
    squares, errors = torch.zeros_like(curvature), []
    for t in range(burn_in + num_draws):
        v = refresh(v, normal(), share)
        moved = INTEGRATORS[integrator].step(z, v, grad, value, epsilon, potential, mass)
        z, v, grad, value, error = moved
        if t >= burn_in:
            squares += curvature * z.square().mean(0) / num_draws
            errors.append(error.square() / SIZE)
    return Seen(squares, torch.stack(errors, 1))
