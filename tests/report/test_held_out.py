"""Held-out scores against the closed-form predictive of a conjugate linear model."""

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from scipy import special, stats

from pyro_bnn import likelihoods, models
from pyro_bnn.diagnostics import NNGP
from pyro_bnn.diagnostics.bands import simulated_pit
from pyro_bnn.diagnostics.calibration import ece, pit_difference, pit_histogram
from pyro_bnn.report.evaluation.held_out import held_out, marginals
from pyro_bnn.report.evaluation.units import Units
from tests.report.conjugate import NOISE, LinearPosterior, class_split, regression_split


def _exact(posterior: LinearPosterior) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Mean and sd of the exact predictive, and y, in the user's units."""
    split = posterior.split
    units = Units.of(split)
    x = torch.cat([split.test.x.double(), torch.ones(len(split.test), 1)], 1)
    mean = (x @ posterior.exact.mean[0]).numpy()
    variance = ((x @ posterior.exact.covariance_matrix[0]) * x).sum(1).numpy()
    y = split.test.raw()[1].numpy()
    return (
        units.values(mean[:, None])[:, 0],
        units.scale[0] * np.sqrt(variance + NOISE**2),
        y,
    )


@pytest.mark.slow("about a second")
def test_scores_of_the_exact_posterior_are_those_of_its_predictive_in_the_users_units() -> None:
    posterior = LinearPosterior(regression_split())
    scores = held_out(posterior, posterior.split, 20_000, 0)
    mean, sd, y = _exact(posterior)
    assert_allclose(scores.log_score, stats.norm.logpdf(y, mean, sd), atol=0.02)
    assert_allclose(scores.log_score.mean(), scores.gaussian_log_score, atol=2e-3)
    assert_allclose(scores.rmse, np.sqrt(np.mean((mean - y) ** 2)), rtol=1e-3)
    z = (y - mean) / sd
    crps = sd * (z * (2 * stats.norm.cdf(z) - 1) + 2 * stats.norm.pdf(z) - 1 / np.sqrt(np.pi))
    assert_allclose(scores.crps, crps.mean(), rtol=5e-3)
    assert scores.pit is not None
    assert_allclose(scores.pit, stats.norm.cdf(z), atol=0.02)
    assert scores.interval is not None
    assert_allclose(scores.interval[1, :, 0], mean + 1.96 * sd, rtol=0.02)
    assert scores.mean is not None
    assert_allclose(scores.mean[:, 0], mean, rtol=1e-3)


def test_coverage_counts_observations_inside_the_interval() -> None:
    posterior = LinearPosterior(regression_split())
    scores = held_out(posterior, posterior.split, 999, 0)
    assert scores.interval is not None
    assert scores.coverage is not None
    low, high = scores.interval[..., 0]
    y = posterior.split.test.raw()[1].numpy()
    assert scores.coverage.observed == np.mean((y >= low) & (y <= high))


def test_the_interval_of_39_draws_is_their_range() -> None:
    posterior = LinearPosterior(regression_split())
    scores = held_out(posterior, posterior.split, 39, 0)
    draws = posterior.predict(posterior.split.test.x, 39, 0).draws.numpy()
    assert scores.interval is not None  # rank p (S + 1) is 1 and 39 at 2.5 % and 97.5 %
    expected = Units.of(posterior.split).values(np.stack([draws.min(0), draws.max(0)]))
    assert_allclose(scores.interval, expected, rtol=1e-9)


def test_bands_are_of_data_sets_of_the_posterior_itself() -> None:
    """The draws of y that are scored, each judged as if it had been observed."""
    posterior = LinearPosterior(regression_split(num_targets=2))
    split = posterior.split
    scores = held_out(posterior, split, 400, 3)
    draws = posterior.predict(split.test.x, 400, 3).draws.reshape(400, -1).numpy()
    simulated = simulated_pit(draws, split.test.y.double().numpy().ravel(), seed=3)
    inside = np.sort(((simulated >= 0.025) & (simulated <= 0.975)).mean(1))
    assert scores.coverage is not None
    assert_allclose([scores.coverage.low, scores.coverage.high], [inside[1], inside[-2]])
    assert scores.pit is not None
    assert scores.pit_histogram is not None
    expected = pit_histogram(scores.pit, simulated)
    assert_allclose(scores.pit_histogram.low, expected.low)
    assert scores.pit_difference is not None
    assert_allclose(scores.pit_difference.high, pit_difference(scores.pit, simulated).high)
    of_second = np.sort(((simulated >= 0.025) & (simulated <= 0.975))[:, 1::2].mean(1))
    assert_allclose(scores.targets[1].coverage.low, of_second[1])
    assert scores.notes == ()


def test_bands_of_classes_are_of_labels_of_the_posterior_itself() -> None:
    posterior = LinearPosterior(class_split())
    scores = held_out(posterior, posterior.split, 400, 3)
    assert scores.probs is not None
    labels = posterior.predict(posterior.split.test.x, 400, 3).draws[..., 0].numpy()
    errors = [ece(scores.probs, own) for own in labels]
    assert_allclose(scores.ece_floor, np.mean(errors), rtol=1e-12)
    assert_allclose(scores.ece_high, np.sort(errors)[-4], rtol=1e-12)
    curve, (index,) = scores.reliability, np.nonzero(scores.probs.max(1) > 14 / 15)
    assert curve is not None
    right = np.sort((labels == scores.probs.argmax(1))[:, index].mean(1))
    assert_allclose([curve.low[-1], curve.high[-1]], [right[1], right[-2]])


def test_a_point_estimate_is_seen_and_keeps_its_noise() -> None:
    posterior = LinearPosterior(regression_split(), spread=0.0)
    scores = held_out(posterior, posterior.split, 500, 0)
    assert scores.is_point
    assert scores.interval is not None
    width = np.ptp(scores.interval, axis=0).mean()
    assert_allclose(width, 2 * 1.96 * NOISE * Units.of(posterior.split).scale[0], rtol=0.1)
    assert not held_out(LinearPosterior(posterior.split), posterior.split, 500, 0).is_point


@pytest.mark.slow("a second or more")
def test_the_error_of_the_log_score_is_its_sd_over_seeds_of_the_draws() -> None:
    posterior = LinearPosterior(regression_split(num_rows=80))
    found = [held_out(posterior, posterior.split, 100, seed) for seed in range(200)]
    ratio = np.var([it.log_score.mean() for it in found], ddof=1) / np.mean(
        [it.log_score_error**2 for it in found]
    )
    assert abs(np.log(ratio)) / np.sqrt(2 / 199) < 4


def test_the_error_of_a_chain_grows_with_its_autocorrelation_and_that_of_a_point_is_none() -> None:
    split = regression_split()
    direct = held_out(LinearPosterior(split), split, 400, 0).log_score_error
    sampler = LinearPosterior(split, "NUTS", "NUTS", stored=400)
    mixed = held_out(sampler, split, 400, 0).log_score_error
    assert sampler.z is not None
    fit = (
        (split.test.y.double() - sampler.function_draws(split.test.x, 400)[..., 0]).square().sum(1)
    )
    sampler.z = sampler.z[:, fit.argsort()]  # a chain that drifts from good draws to bad ones
    assert held_out(sampler, split, 400, 0).log_score_error > 5 * mixed
    assert 0.5 < direct / mixed < 2
    assert held_out(LinearPosterior(split, spread=0.0), split, 400, 0).log_score_error == 0


def test_a_log_score_in_closed_form_has_no_error_of_draws() -> None:
    split = regression_split(num_rows=40)
    model = models.MLP(3, hidden=(5,), likelihood=likelihoods.Normal(scale=NOISE))
    posterior = NNGP(model).posterior(split.train)
    few, many = (held_out(posterior, split, count, seed) for count, seed in ((10, 0), (50, 1)))
    assert_allclose(few.log_score, many.log_score, rtol=1e-12)  # whatever the draws
    assert few.log_score_error == 0


def test_several_targets_add_their_log_scores_and_pool_the_rest() -> None:
    posterior = LinearPosterior(regression_split(num_targets=2))
    scores = held_out(posterior, posterior.split, 300, 0)
    num_rows = len(posterior.split.test)
    assert scores.log_score.shape == (num_rows,)
    assert scores.pit is not None
    assert scores.pit.shape == (2 * num_rows,)
    assert_allclose(scores.log_score.mean(), scores.gaussian_log_score, atol=0.05)


def test_scores_of_classes_follow_from_the_mean_probabilities() -> None:
    posterior = LinearPosterior(class_split())
    scores = held_out(posterior, posterior.split, 400, 0)
    f = posterior.function_draws(posterior.split.test.x, 400, 0).numpy()
    probs = special.softmax(f, -1).mean(0)
    y = posterior.split.test.y.numpy()
    rows = np.arange(len(y))
    assert_allclose(scores.log_score, np.log(probs[rows, y]), rtol=1e-9)
    assert scores.accuracy == np.mean(probs.argmax(1) == y)
    assert_allclose(scores.brier, ((probs - np.eye(3)[y]) ** 2).sum(1).mean(), rtol=1e-9)
    assert scores.coverage is None
    assert 0 < scores.ece_floor < 0.5
    surest = np.argsort(-(probs * np.log(probs)).sum(1))  # of least entropy first
    right = (probs.argmax(1) == y)[surest]
    area = np.mean(right.cumsum() / np.arange(1, len(y) + 1))
    assert_allclose(scores.rejection_area, area, rtol=1e-12)


@pytest.mark.parametrize("num_outputs", [1, 3])
def test_marginals_of_classes_are_probabilities(num_outputs: int) -> None:
    f = np.random.default_rng(0).normal(size=(4, 5, num_outputs))
    probs = marginals(f, "classification", 1)
    expected = special.expit(f) if num_outputs == 1 else special.softmax(f, -1)
    assert_allclose(probs, expected)


def test_marginals_of_a_regression_leave_raw_scales_out() -> None:
    assert marginals(np.zeros((4, 5, 4)), "regression", 2).shape == (4, 5, 2)


def test_without_a_mean_the_rmse_is_that_of_the_median() -> None:
    split = regression_split()
    posterior, usual = LinearPosterior(split, moments="none"), LinearPosterior(split)
    scores, expected = (held_out(it, split, 501, 0) for it in (posterior, usual))
    draws = Units.of(split).values(posterior.predict(split.test.x, 501, 0).draws.numpy())
    median = np.sort(draws, axis=0)[250]  # [N, 1], the middle one of 501
    y = split.test.raw()[1].numpy()
    assert_allclose(scores.rmse, np.sqrt(np.mean((median[:, 0] - y) ** 2)), rtol=1e-6)
    assert scores.mean is not None
    assert_allclose(scores.mean, median, rtol=1e-12)
    assert np.isnan(scores.gaussian_log_score)
    assert not scores.has_mean
    assert scores.notes == (
        "the predictive mean does not exist or hangs on few draws: RMSE is that of the predictive "
        "median, and there is no Gaussian score",
    )
    assert scores.crps == expected.crps
    assert scores.coverage == expected.coverage
    assert_allclose(scores.log_score, expected.log_score)
    assert scores.interval is not None
    assert expected.interval is not None
    assert_allclose(scores.interval, expected.interval)


def test_without_an_sd_only_the_gaussian_score_is_missing() -> None:
    split = regression_split()
    scores = held_out(LinearPosterior(split, moments="mean"), split, 400, 0)
    expected = held_out(LinearPosterior(split), split, 400, 0)
    assert scores.has_mean
    assert scores.rmse == expected.rmse
    assert np.isnan(scores.gaussian_log_score)
    note = "the predictive sd does not exist or hangs on few draws: no Gaussian score"
    assert scores.notes == (note,)
    assert expected.notes == ()
