"""Warm-up and sampling on densities whose moments are known exactly.

Every mean and mean square is judged in standard errors of Markov chains, sd / sqrt(ESS), with the
ESS of the very numbers that are averaged; and the ESS has a floor, as a sampler that hardly moves
has large errors and passes all z-scores.
"""

from __future__ import annotations

from types import ModuleType
from typing import NamedTuple

import numpy as np
import pytest
import scipy.stats
import torch
from torch import Tensor

from pyro_bnn import arviz_io
from pyro_bnn.infer.mcmc import hmc_kernel, nuts_kernel
from pyro_bnn.infer.mcmc.chains import in_lockstep
from pyro_bnn.infer.mcmc.lockstep import Energy, Graphs
from pyro_bnn.infer.mcmc.progress import Progress
from pyro_bnn.infer.mcmc.sampling import MassMatrix, Sampling, first_mass
from pyro_bnn.infer.steps.potentials import Potential
from tests.infer import densities
from tests.infer.densities import autoregressive, eight_schools, funnel, gaussian, rotated
from tests.infer.drive import normal
from tests.infer.scores import z_scores


class Result(NamedTuple):
    """Draws ``[C, S, P]``, and the statistics by name ``[C, S]``."""

    z: Tensor
    stats: dict[str, np.ndarray]


def sampled(
    potential: Potential,
    num_latents: int,
    *,
    num_chains: int,
    warmup_steps: int,
    num_samples: int,
    kind: MassMatrix = "diagonal",
    target_accept: float = 0.8,
    kernel: ModuleType = nuts_kernel,
    limit: int = 1024,
) -> Result:
    """A run with warm-up of chains that start at draws from N(0, 2^2 I)."""
    starts = 2 * normal(num_chains, num_latents, seed=1)
    chains = in_lockstep(
        kernel,
        Energy(potential),
        starts,
        first_mass(potential(starts)[1], kind),
        limit=limit,
        target_accept=target_accept,
        seed=0,
        graphs=Graphs("a density", compiled=True, strict=True),
    )
    run = Sampling(
        chains,
        warmup_steps=warmup_steps,
        num_samples=num_samples,
        limit=limit,
        progress=Progress("", num_chains, warmup_steps + num_samples, show=False),
    )
    return Result(run.to_the_end().z, run.sample_stats)


def assert_means(values: Tensor, expected: Tensor | float, *, least_ess: float) -> None:
    """That numbers ``[C, S, K]`` have these means ``[K]``.

    Args:
        values: Functions of the draws.
        expected: Their means.
        least_ess: Smallest ESS of each, a draw.
    """
    draws = values.numpy()
    ess = arviz_io.ess(draws, kind="mean")
    assert ess.min() > least_ess * draws.shape[0] * draws.shape[1]
    error = draws.std((0, 1)) / np.sqrt(ess)
    z_scores = (draws.mean((0, 1)) - np.asarray(expected)) / error
    assert np.abs(z_scores).max() < 4, z_scores


# --- Gaussians -----------------------------------------------------------------------------------


@pytest.mark.slow("a second or more")
@pytest.mark.parametrize(
    ("kernel", "limit"), [(nuts_kernel, 1024), (hmc_kernel, 6)], ids=["NUTS", "HMC"]
)
def test_scales_from_one_to_a_thousand(kernel: ModuleType, limit: int) -> None:
    """Independent entries with variances from 1e-3 to 1e3: a diagonal matrix makes them one."""
    sd = torch.logspace(-1.5, 1.5, 30, dtype=torch.float64)
    density = densities.scales(*sd.tolist())
    z, stats = sampled(
        density.potential,
        30,
        num_chains=64,
        warmup_steps=60,
        num_samples=50,
        kernel=kernel,
        limit=limit,
    )
    assert_means(z / sd, 0, least_ess=0.5)
    assert_means((z / sd).square(), 1, least_ess=0.1)  # the worst of many noisy estimates
    assert not stats["diverging"].any()
    assert stats["n_steps"].mean() < 12


@pytest.mark.slow("samples chains")
def test_a_condition_of_a_million_in_oblique_directions() -> None:
    """Four eigenvalues from 1e-3 to 1e3 among ones: no scaling of the axes helps, a low rank does.

    With a diagonal matrix a draw takes a good thousand steps.
    """
    eigenvalues = torch.ones(30, dtype=torch.float64)
    eigenvalues[:4] = torch.tensor([1e-3, 1e-2, 1e2, 1e3])
    covariance = rotated(eigenvalues)
    density = gaussian(covariance)
    z, stats = sampled(
        density.potential,
        30,
        num_chains=64,
        warmup_steps=100,
        num_samples=40,
        kind="low_rank",
    )
    assert_means(z, 0, least_ess=0.5)
    assert_means(z.square(), covariance.diag(), least_ess=0.2)
    assert_means(density.to_normal(z).square(), 1, least_ess=0.2)
    assert not stats["diverging"].any()
    assert stats["n_steps"].mean() < 20


@pytest.mark.slow("samples chains")
@pytest.mark.parametrize(
    ("kind", "most_steps"),
    [pytest.param("diagonal", 160, marks=pytest.mark.soak), ("low_rank", 40)],
)
def test_a_hundred_latents_in_a_row_of_correlation_0_95(kind: MassMatrix, most_steps: int) -> None:
    """An AR(1) process, of condition 39^2: scales are one, and ten directions are not enough.

    With scales alone half a turn of the widest direction is pi 39 = 122 of the narrowest one's sd.
    An entry mixes antithetic axes with slow ones, and its ESS is overestimated, that of its square
    by as much: axes are judged by the ESS, entries by how far the means of many chains scatter.
    """
    covariance = autoregressive(100, 0.95)
    density = gaussian(covariance)
    z, stats = sampled(
        density.potential, 100, num_chains=64, warmup_steps=45, num_samples=20, kind=kind
    )
    variances, axes = torch.linalg.eigh(covariance)
    along = z @ axes / variances.sqrt()
    assert_means(along, 0, least_ess=0.1)
    assert_means(along.square(), 1, least_ess=0.1)
    assert z_scores(z.square(), 1).max() < 4
    assert z_scores(z[..., 1:] * z[..., :-1], 0.95).max() < 4
    assert not stats["diverging"].any()
    assert stats["n_steps"].mean() < most_steps


# --- eight schools -------------------------------------------------------------------------------


def test_quadrature_of_eight_schools_agrees_with_published_draws() -> None:
    """Ten thousand draws of Stan's, by posteriordb, with their standard errors."""
    means, errors = map(torch.tensor, densities.PUBLISHED)
    z_scores = (means - densities.schools_moments()[0]) / errors
    assert z_scores.abs().max() < 3


@pytest.mark.slow("samples chains")
def test_eight_schools() -> None:
    """Non-centred: effects theta, their mean mu and spread tau against quadrature."""
    first, second = densities.schools_moments()
    z, stats = sampled(
        eight_schools, 10, num_chains=64, warmup_steps=60, num_samples=60, target_accept=0.9
    )
    quantities = densities.schools_quantities(z)
    assert_means(quantities, first, least_ess=0.4)
    assert_means(quantities.square(), second, least_ess=0.4)
    assert stats["diverging"].mean() < 0.005


# --- Neal's funnel -------------------------------------------------------------------------------


@pytest.mark.soak
def test_the_bulk_of_neals_funnel() -> None:
    """Centred: all given that v is above its lower quartile, of v and of x in its scale.

    No step size fits both the neck, where x is of scale e^(v / 2), and the mouth. At this target of
    acceptance chains hardly go below v = -5, where one draw in twenty lies: the share of draws
    below the lower quartile comes out at 0.17, so that no moment of v or of x itself is reached,
    and none is asked. Non-centred the funnel is a standard normal, of the Gaussians above.
    """
    density = funnel(4)
    z, _ = sampled(
        density.potential,
        4,
        num_chains=64,
        warmup_steps=40,
        num_samples=50,
        target_accept=0.95,
        limit=256,
    )
    n = density.to_normal(z)
    lower, median, upper = scipy.stats.norm.ppf([0.25, 0.5, 0.75])
    v, x = n[..., :1], n[..., 1:]
    above = v > lower
    below = v < torch.tensor([median, upper])
    assert_means((below.double() - torch.tensor([1, 2]) / 3) * above, 0, least_ess=0.02)
    assert_means(x * above, 0, least_ess=0.3)
    assert_means((x.square() - 1) * above, 0, least_ess=0.2)
