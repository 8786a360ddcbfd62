"""k-hat where the tail of the importance ratios is known, and of every guide."""

from __future__ import annotations

import functools

import numpy as np
import pytest
import torch
from scipy import stats

from pyro_bnn import SVI, guides
from pyro_bnn.data import Dataset, Split
from pyro_bnn.diagnostics.khat import khat, khat_error, khat_threshold
from pyro_bnn.errors import DataError, ShapeError
from pyro_bnn.posterior import GuidePosterior
from pyro_bnn.program import Program
from pyro_bnn.report.evaluation.fit_checks import fit_checks
from tests.collection import DENSITIES, GUIDES, dear_in_soak, rest_in_soak
from tests.diagnostics.linear_matrix import (
    CORRELATED,
    DENSE,
    EXACT,
    MEAN_FIELD,
    NOISE,
    PRECISION,
    LinearMatrix,
    hadamard,
)
from tests.laws import problem


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


def test_it_is_blind_to_a_mode_without_draws_and_copies_change_nothing() -> None:
    # of two equal modes, twenty sds apart, q is exactly one: the ratios are the constant 1/2
    z = 10 + np.random.default_rng(3).normal(size=1_000)
    log_q = stats.norm.logpdf(z, 10)
    both = np.logaddexp(log_q, stats.norm.logpdf(z, -10)) + np.log(0.5)
    assert khat(both, log_q) == 0.0
    # q of another shape: one mode, or 20! 2^20 copies far apart, each with its share
    log_q = stats.norm.logpdf(z, 10, 0.8)
    one, copies = stats.norm.logpdf(z, 10), stats.norm.logpdf(z, 10) - 60.0
    np.testing.assert_allclose(khat(one, log_q), khat(copies, log_q), rtol=1e-9)


def too_narrow(num_runs: int, num_draws: int, size: int, sd: float) -> np.ndarray:
    """k-hats of Gaussians of so many entries, each with sd in place of 1."""
    rng, found = np.random.default_rng(4), []
    for _ in range(num_runs):
        z = sd * rng.normal(size=(num_draws, size))
        found.append(khat(-0.5 * (z**2).sum(1), -0.5 * (z**2).sum(1) / sd**2))
    return np.array(found)


@pytest.mark.parametrize(
    ("num_draws", "size", "sd"),
    [(100, 10, 0.8), (400, 1, 0.5), (400, 50, 0.8), (1_000, 1, 0.7), (1_000, 240, 0.2)],
)
def test_its_error_is_the_sd_over_sets_of_draws(num_draws: int, size: int, sd: float) -> None:
    found = too_narrow(150, num_draws, size, sd)
    error = float(np.mean([khat_error(shape, num_draws) for shape in found]))
    assert abs(error / found.std(ddof=1) - 1) < 0.2 + 3 * 0.058  # of an sd of 150, 1/sqrt(300)


def test_values_above_1_do_not_order_approximations() -> None:
    better = too_narrow(40, 400, 240, 0.5)  # KL(q || p) of 76 nats
    worse = too_narrow(40, 400, 240, 0.3)  # 180 nats
    assert min(better.min(), worse.min()) > 1
    wrong = float((worse[:, None] < better[None]).mean())
    assert 0.1 < wrong < 0.5  # a coin has 0.5


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

ROWS = hadamard(16)[:, :4]  # [16, 4], orthogonal columns of norm 4
Y = ROWS @ torch.tensor([[0.7], [-0.4], [0.2], [1.1]], dtype=torch.float64)
SPLIT = Split(
    Dataset(ROWS, Y), Dataset(ROWS[:2], Y[:2]), task="regression", name="made up", index=0
)


# in `make soak`: others of their kind stay here, and so does a new guide
DEAR = {*EXACT, "auto-k-tied-normal", "auto-normal-mixture"} - {"auto-low-rank-multivariate-normal"}
EXACT_CASES = [(guide,) for guide in EXACT]


@functools.cache
def fitted(guide: str) -> GuidePosterior:
    """A guide fitted to the model with the smaller noise, an eighth of the other's."""
    svi = SVI(DENSITIES[guide], num_steps=1_000, learning_rate=0.03, compile=True)  # in C
    posterior = svi.run(LinearMatrix(NOISE / 8), SPLIT.train, progress=False)
    assert isinstance(posterior, GuidePosterior)
    assert posterior.options["compiled"] is True
    return posterior


@pytest.mark.slow("whole fits")
@pytest.mark.parametrize("guide", dear_in_soak(DENSITIES, DEAR))
def test_the_report_has_a_small_khat_of_a_guide_that_is_right(guide: str) -> None:
    checks = fit_checks(fitted(guide), SPLIT, 2_000, 0, is_point=False)
    assert checks.khat < 0.5
    assert not any("k-hat" in note for note in checks.notes)


@pytest.mark.slow("whole fits")
@pytest.mark.parametrize("guide", dear_in_soak(DENSITIES, DEAR))
def test_the_report_has_a_large_khat_of_a_guide_that_is_too_narrow(guide: str) -> None:
    posterior = fitted(guide)
    # sds an eighth of the right ones: of a Gaussian q the tail index is 1 - 1/64
    wide = GuidePosterior(
        Program(LinearMatrix(NOISE), ROWS, Y), posterior.guide, posterior.provenance
    )
    checks = fit_checks(wide, SPLIT, 2_000, 0, is_point=False)
    assert checks.khat > checks.khat_limit == khat_threshold(2_000)


# --- and on one whose entries are correlated ------------------------------------------------------

TARGET = CORRELATED @ torch.tensor([[0.7], [-0.4], [0.2], [1.1]], dtype=torch.float64)


def khats(posterior: GuidePosterior, num_draws: int = 20_000) -> np.ndarray:
    """Of twenty sets of draws."""
    found = []
    for seed in range(20):
        log_p, log_q = posterior.densities((CORRELATED, TARGET), num_draws, seed)
        found.append(khat(log_p.numpy(), log_q.numpy()))
    return np.array(found)


@pytest.mark.slow("whole fits")
@pytest.mark.parametrize("guide", rest_in_soak(EXACT_CASES, [("auto-matrix-normal",)]))
def test_khat_is_small_for_a_family_that_holds_a_correlated_posterior(guide: str) -> None:
    steps = 3_000 if guide in DENSE else 1_000
    svi = SVI(DENSITIES[guide], num_steps=steps, learning_rate=0.03, compile=False)
    posterior = svi.run(LinearMatrix(), (CORRELATED, TARGET), progress=False)
    assert isinstance(posterior, GuidePosterior)
    assert khats(posterior, 2_000).mean() < 0.5


@pytest.mark.slow("k-hat of many draws")
def test_khat_of_the_best_independent_gaussians_is_the_known_tail_index() -> None:
    r"""In units of q's sds the ratios are :math:`r \propto e^{u^\top (I - R) u / 2}`.

    R is the correlation of the precision. The largest eigenvalue of I - R, 1 - 0.2, is that of two
    directions, one a row of the matrix: half their squared length is exponential, so that P(r > t)
    falls as :math:`t^{-1/0.8}`.
    """
    svi = SVI(guides.AutoNormal, num_steps=1, compile=False)
    posterior = svi.run(LinearMatrix(), (CORRELATED, TARGET), progress=False)
    assert isinstance(posterior, GuidePosterior)
    mean = PRECISION.inverse() @ CORRELATED.T @ TARGET[:, 0] / NOISE**2
    posterior.guide.move_to(mean)
    posterior.guide.set_sds(MEAN_FIELD.sqrt())
    root = MEAN_FIELD.sqrt()
    tail_index = 1 - float(torch.linalg.eigvalsh(root[:, None] * PRECISION * root)[0])
    assert tail_index > 0.75
    found = khats(posterior)
    error = found.std(ddof=1) / np.sqrt(len(found))
    tail = 3 * np.sqrt(20_000)  # draws of the tail, to which the estimate adds ten of k = 0.5
    assert abs(found.mean() - (tail * tail_index + 5) / (tail + 10)) < 4 * error


def test_a_factor_model_of_its_own_family_has_a_khat() -> None:
    given = problem("rank-1")
    svi = SVI(guides.AutoRank1Mixture, num_steps=50, compile=False)
    posterior = svi.run(given.model, (given.x, given.y), progress=False)
    split = Split(Dataset(given.x, given.y), Dataset(given.x, given.y), task="regression", name="r")
    assert np.isfinite(fit_checks(posterior, split, 200, 0, is_point=False).khat)


def test_no_guide_with_a_density_is_left_out() -> None:
    others = {name for name, cls in GUIDES.items() if cls.has_log_prob}
    assert others - set(DENSITIES) == {"auto-rank1-mixture"}
