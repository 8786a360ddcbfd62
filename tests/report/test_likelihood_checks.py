"""Signs that a likelihood does not fit its target, against laws and simulated data."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy import stats

from pyro_bnn.data import Split, from_arrays
from pyro_bnn.diagnostics.bands import simulated_pit
from pyro_bnn.diagnostics.calibration import pit
from pyro_bnn.report import compare
from pyro_bnn.report.evaluation.likelihood_checks import (
    CoverageByMean,
    coverage_by_mean,
    share_below_zero,
)
from pyro_bnn.report.verdicts.verdict import Judged, Verdict
from pyro_bnn.report.verdicts.verdicts import RULES
from tests.report.conjugate import NOISE, LinearPosterior


def _found(split: Split, kind: str) -> list[Verdict]:
    posteriors = {"it": LinearPosterior(split)}
    return [found for found in compare(posteriors, split).findings if found.kind == kind]


def _growing(num_rows: int = 1_200, grows: float = 1.0) -> Split:
    """A signal of variance 3/4, noise of mean square 1/4 by thirds of the signal."""
    rng = np.random.default_rng(2)
    signal = np.sqrt(0.75 * 12) * (rng.permutation(num_rows) / num_rows - 0.5)
    third = np.floor(3 * signal.argsort().argsort() / num_rows).astype(int)
    sd = NOISE * np.array([0.4, 0.8, np.sqrt(3 - 0.4**2 - 0.8**2)])[third]
    return from_arrays(
        signal[:, None], 100 + grows * signal + sd * rng.normal(size=num_rows), test_fraction=0.5
    )


def test_shares_are_of_the_rows_in_order_of_the_mean_of_each_target() -> None:
    """Of 0.05 to 0.95: rows 4, 0, 2 of the first target hold the smallest means, and so on."""
    mean = np.array([[1.0, 6], [4, 5], [2, 4], [5, 3], [0, 2], [6, 1]])
    values = np.array([[0.5, 0.01], [0.5, 0.5], [0.99, 0.5], [0.01, 0.5], [0.5, 0.96], [0.04, 0.5]])
    found = coverage_by_mean(values, np.broadcast_to(values, (199, 6, 2)), mean)
    assert found is not None
    # first target: rows 4, 0 | 2, 1 | 3, 5; second: rows 5, 4 | 3, 2 | 1, 0
    assert_allclose(found.shares, [(2 + 1) / 4, (1 + 2) / 4, (0 + 1) / 4])
    assert_allclose([found.difference, found.low, found.high], 0.5)
    assert coverage_by_mean(values[:2], values[None, :2], mean[:2]) is None


def test_intervals_too_narrow_everywhere_are_no_matter_of_the_mean() -> None:
    def of(*shares: float) -> bool:
        return CoverageByMean(shares=np.array(shares), low=-0.1, high=0.1).is_uneven

    assert of(0.995, 0.97, 0.83)
    assert of(0.7, 0.97, 0.98)
    assert not of(0.95, 0.9, 0.86)
    assert not of(0.8, 0.7, 0.6)
    assert not of(1.0, 0.98, 0.91)
    assert not CoverageByMean(
        shares=np.array([1.0, 0.9, 0.6]), low=float("nan"), high=float("nan")
    ).is_uneven


@pytest.mark.slow("many repeats")
@pytest.mark.parametrize("noise", [0.5, 1.0], ids=["the model's noise", "twice the model's noise"])
def test_constant_noise_is_called_growing_in_at_most_one_of_twenty_reports(noise: float) -> None:
    """Exact posteriors of a linear model: a prior of N(0, 1) weights that are drawn from it."""
    rng, told = np.random.default_rng(0), 0
    repeats, num_rows, num_draws = 300, 90, 399
    for _ in range(repeats):
        x = np.stack([np.ones(2 * num_rows), rng.normal(size=2 * num_rows)], 1)
        y = x @ rng.normal(size=2) + noise * rng.normal(size=2 * num_rows)
        train, test = np.split(x, 2)
        covariance = np.linalg.inv(train.T @ train / NOISE**2 + np.eye(2))
        weights = rng.multivariate_normal(
            covariance @ train.T @ y[:num_rows] / NOISE**2, covariance, num_draws
        )
        draws = weights @ test.T + NOISE * rng.normal(size=(num_draws, num_rows))
        values, simulated = pit(draws, y[num_rows:]), simulated_pit(draws, y[num_rows:])
        mean = (weights @ test.T).mean(0)[:, None]
        found = coverage_by_mean(values[:, None], simulated[..., None], mean)
        assert found is not None
        told += found.is_uneven
    assert told <= 0.05 * repeats


@pytest.mark.slow("about a second")
@pytest.mark.parametrize("grows", [1.0, -1.0], ids=["grow", "shrink"])
def test_noise_that_changes_with_the_mean_is_told_with_its_coverage(grows: float) -> None:
    split = _growing(grows=grows)
    posterior = LinearPosterior(split)
    comparison = compare({"it": posterior}, split)
    by_mean = comparison.evaluations["it"].held_out.by_mean
    assert by_mean is not None
    # y is standardised to a variance of 1, so that noise sds are those of `_growing`
    factors = np.array([0.4, 0.8, np.sqrt(3 - 0.4**2 - 0.8**2)])
    expected = 2 * stats.norm.cdf(stats.norm.ppf(0.95) / factors) - 1
    errors = np.sqrt(expected * (1 - expected) / (len(split.test) / 3)) + 0.01
    shares = by_mean.shares if grows > 0 else by_mean.shares[::-1]
    assert (np.abs(shares - expected) < 4 * errors).all()
    (found,) = [found for found in comparison.findings if found.kind == "noise by mean"]
    text = found.text.replace("\xa0", " ")
    assert text.startswith(
        f"Errors {'grow' if grows > 0 else 'shrink'} with the predicted mean: by thirds of the "
        "test rows, from the smallest means to the largest, 90 % intervals cover it "
        + ", ".join(f"{100 * share:.1f} %" for share in by_mean.shares)
    )
    assert "HeteroscedasticNormal (--likelihood heteroscedastic-normal)" in text
    assert found.methods == ("it",)


@pytest.mark.slow("about a second")
def test_a_reference_whose_errors_grow_is_not_trusted_without_a_word() -> None:
    split = _growing()
    chains = LinearPosterior(split, "NUTS", "NUTS", stored=1_200, num_chains=4)
    comparison = compare({"NUTS": chains}, split, reference="NUTS")
    headline = comparison.answer.headline
    assert headline.startswith("Trust NUTS for the posterior of its model; but ")
    assert "errors change with the predicted mean" in headline
    entry = comparison.evaluations["NUTS"]
    (rule,) = (rule for rule in RULES if rule.kind == "noise by mean")
    draws = entry.held_out.function_draws
    two = replace(
        entry, held_out=replace(entry.held_out, function_draws=np.concatenate([draws, draws], -1))
    )
    (verdict,) = rule.verdicts(Judged([two], None))  # a raw scale beside the mean
    assert "Heteroscedastic" not in verdict.text
    assert verdict.text.endswith(
        "Give the network more units, or fit the logarithm of a positive target."
    )


def _positive(least: float = 0.1, place: int = 0) -> Split:
    """Positive noise around a line from near zero, where constant normal noise is negative."""
    rng = np.random.default_rng(3)
    x = rng.uniform(size=(400, 1))
    y = 0.02 + 3 * x[:, 0] + rng.exponential(0.2, size=400)
    y[place] = least
    return from_arrays(x, y, rows=(np.arange(200), np.arange(200, 400)))


@pytest.mark.slow("about a second")
def test_intervals_below_zero_of_a_target_that_never_is_are_counted() -> None:
    split = _positive()
    (found,) = _found(split, "below zero")
    posterior = LinearPosterior(split)
    _, train_y = split.train.raw()
    x = posterior._design(split.test.x)
    sd = ((x @ posterior.exact.covariance_matrix[0] * x).sum(1) + NOISE**2).sqrt().numpy()
    mean = (x @ posterior.exact.mean[0]).numpy()
    y = train_y.double().numpy()
    ends = y.mean() + y.std() * (mean - stats.norm.ppf(0.975) * sd)
    share = float(found.text.split(": it ")[1].split("\xa0%")[0]) / 100
    assert abs(share - (ends < 0).mean()) < 0.05  # 1,000 draws
    assert share > 0.1
    assert found.text.startswith("95\xa0% intervals reach below zero, which the target never does")
    assert found.is_warning


@pytest.mark.parametrize("place", [0, 399], ids=["training", "test"])
def test_a_target_that_is_ever_negative_has_no_verdict_on_zero(place: int) -> None:
    assert _found(_positive(-0.01, place), "below zero") == []


def test_a_zero_that_was_standardised_is_not_negative() -> None:
    split = _positive(0.0)
    interval = np.array([[[-1.0], [1.0]], [[2.0], [2.0]]])
    assert share_below_zero(split, interval, np.array([0.02])) == 0.5


def test_a_target_that_may_be_positive_by_chance_has_no_verdict_on_zero() -> None:
    """Of 400 rows none is negative with a chance of .99^400 = .018 and of .98^400 = .0003."""
    split = _positive()
    interval = np.array([[[-1.0], [1.0]], [[2.0], [2.0]]])
    assert share_below_zero(split, interval, np.array([0.01])) == 0.0
    assert share_below_zero(split, interval, np.array([0.02])) == 0.5
