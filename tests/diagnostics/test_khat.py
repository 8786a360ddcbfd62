"""k-hat where the tail of the importance ratios is known, and of every guide."""

from __future__ import annotations

import functools

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.nn import PyroModule
from scipy import stats
from torch import Tensor

from pyro_bnn import SVI, guides, registry
from pyro_bnn.data import Dataset, Split
from pyro_bnn.diagnostics.khat import KHAT_THRESHOLD, khat, khat_threshold
from pyro_bnn.errors import DataError, ShapeError
from pyro_bnn.posterior import GuidePosterior
from pyro_bnn.program import Program
from pyro_bnn.report.fit_checks import fit_checks
from tests.laws import MakeGuide, problem

WITH_DENSITY: dict[str, MakeGuide] = {
    **{
        name: cls
        for name, cls in registry.entries("guide").items()
        if cls.has_log_prob and cls.needs_model is None
    },
    "gaussian dropout": functools.partial(guides.AutoDropout, kind="gaussian"),
}


@pytest.mark.parametrize("scale", [0.5, 0.7])
def test_khat_of_a_normal_too_narrow_is_the_known_tail_index(scale: float) -> None:
    # r = p/q has a Pareto tail of index 1/k with k = 1 - scale^2 up to a slowly varying factor
    rng = np.random.default_rng(0)
    estimates = []
    for _ in range(20):
        z = rng.normal(0, scale, size=20_000)
        estimates.append(khat(stats.norm.logpdf(z), stats.norm.logpdf(z, 0, scale)))
    assert abs(np.mean(estimates) - (1 - scale**2)) < 0.12


def test_khat_of_the_exact_posterior_passes_and_a_constant_does_not_matter() -> None:
    z = np.random.default_rng(1).normal(size=1_000)
    log_p = stats.norm.logpdf(z)
    noise = 0.01 * z
    first, second = khat(log_p, log_p + noise), khat(log_p + 300.0, log_p + noise)
    assert first < 0.5
    np.testing.assert_allclose(first, second, rtol=1e-6)


def test_a_draw_outside_the_support_has_weight_zero() -> None:
    z = np.random.default_rng(2).normal(size=1_000)
    log_p = stats.norm.logpdf(z)
    log_p[0] = -np.inf
    assert np.isfinite(khat(log_p, stats.norm.logpdf(z) + 0.1 * z))


def test_too_few_draws_are_refused() -> None:
    with pytest.raises(ShapeError, match="k-hat needs at least 25 draws, got 24"):
        khat(np.zeros(24), np.zeros(24))


@pytest.mark.parametrize(("log_p", "log_q"), [(np.nan, 0.0), (0.0, -np.inf), (-np.inf, -np.inf)])
def test_undefined_ratios_are_refused(log_p: float, log_q: float) -> None:
    p, q = np.zeros(30), np.zeros(30)
    p[3], q[3] = log_p, log_q
    with pytest.raises(DataError, match=r"1 of 30 importance ratios log_p - log_q are NaN or \+in"):
        khat(p, q)


def test_different_numbers_of_draws_are_refused() -> None:
    with pytest.raises(ShapeError, match=r"log_q must have shape \[30\] to match log_p"):
        khat(np.zeros(30), np.zeros(31))


def test_the_threshold_falls_with_fewer_draws() -> None:
    assert khat_threshold(1_000) == pytest.approx(2 / 3)
    assert khat_threshold(10_000) == 0.7


# --- every guide, on a posterior that all families can be close to --------------------------------

NOISE, PRIOR_SCALE = 0.5, 1.3


def hadamard(size: int) -> Tensor:
    two = torch.tensor([[1.0, 1.0], [1.0, -1.0]])
    return torch.kron(two, hadamard(size // 2)) if size > 1 else torch.ones(1, 1)


class Matrix(PyroModule):
    r"""A linear-Gaussian model whose weights are a matrix ``w`` [2, 2], its posterior isotropic.

    The columns of x are orthogonal and of norm 4, so that every weight has the posterior precision
    :math:`16 / \sigma^2 + 1 / \tau^2`.
    """

    def __init__(self, noise: float) -> None:
        super().__init__()
        self.noise = noise

    def forward(self, x: Tensor, y: Tensor | None = None) -> Tensor:
        prior = dist.Normal(x.new_zeros(()), x.new_tensor(PRIOR_SCALE))
        w = pyro.sample("w", prior.expand([2, 2]).to_event(2))
        f = pyro.deterministic("f", x @ w.reshape(4, 1))  # [N, 1]
        with pyro.plate("data", x.shape[0]):
            noise = x.new_tensor(self.noise)
            sampled: Tensor = pyro.sample("y", dist.Normal(f, noise).to_event(1), obs=y)
        return sampled


ROWS = hadamard(16)[:, :4].double()  # [16, 4], orthogonal columns of norm 4
Y = ROWS @ torch.tensor([[0.7], [-0.4], [0.2], [1.1]], dtype=torch.float64)
SPLIT = Split(
    Dataset(ROWS, Y), Dataset(ROWS[:2], Y[:2]), task="regression", name="made up", index=0
)


@functools.cache
def fitted(guide: str) -> GuidePosterior:
    """A guide fitted to the model with the smaller noise, an eighth of the other's."""
    svi = SVI(WITH_DENSITY[guide], num_steps=1_000, learning_rate=0.03, compile=False)
    posterior = svi.run(Matrix(NOISE / 8), SPLIT.train, progress=False)
    assert isinstance(posterior, GuidePosterior)
    return posterior


@pytest.mark.parametrize("guide", WITH_DENSITY)
def test_the_report_has_a_small_khat_of_a_guide_that_is_right(guide: str) -> None:
    checks = fit_checks(fitted(guide), SPLIT, 2_000, 0, is_point=False)
    assert checks.khat < 0.5
    assert not any("k-hat" in note for note in checks.notes)


@pytest.mark.parametrize("guide", WITH_DENSITY)
def test_the_report_has_a_large_khat_of_a_guide_that_is_too_narrow(guide: str) -> None:
    posterior = fitted(guide)
    # sds an eighth of the right ones: of a Gaussian q the tail index is 1 - 1/64
    wide = GuidePosterior(Program(Matrix(NOISE), ROWS, Y), posterior.guide, posterior.provenance)
    checks = fit_checks(wide, SPLIT, 2_000, 0, is_point=False)
    assert checks.khat > KHAT_THRESHOLD


def test_a_factor_model_of_its_own_family_has_a_khat() -> None:
    given = problem("rank-1")
    svi = SVI(guides.AutoRank1Mixture, num_steps=50, compile=False)
    posterior = svi.run(given.model, (given.x, given.y), progress=False)
    split = Split(Dataset(given.x, given.y), Dataset(given.x, given.y), task="regression", name="r")
    assert np.isfinite(fit_checks(posterior, split, 200, 0, is_point=False).khat)


def test_no_guide_with_a_density_is_left_out() -> None:
    others = {name for name, cls in registry.entries("guide").items() if cls.has_log_prob}
    assert others - set(WITH_DENSITY) == {"auto-rank1-mixture"}
