"""Each of several targets has its scores in its own units."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy import stats

from pyro_bnn.data import from_arrays
from pyro_bnn.report import Comparison, compare, compare_runs
from pyro_bnn.report.evaluation.units import Units
from pyro_bnn.report.output.html import render
from tests.report.conjugate import NOISE, LinearPosterior, regression_split


@pytest.fixture(scope="module")
def two() -> Comparison:
    split = regression_split(num_targets=2)
    return compare(
        {"exact": LinearPosterior(split), "wide": LinearPosterior(split, spread=4)}, split
    )


def test_scores_are_those_of_the_exact_predictive_of_one_target(two: Comparison) -> None:
    posterior, split = two.posteriors["exact"], two.split
    assert isinstance(posterior, LinearPosterior)
    x, scale = posterior._design(split.test.x), Units.of(split).scale
    for o in (0, 1):
        mean = (x @ posterior.exact.mean[o]).numpy()
        sd = np.sqrt(((x @ posterior.exact.covariance_matrix[o]) * x).sum(1).numpy() + NOISE**2)
        z = split.test.y[:, o].double().numpy() - mean
        row = two.targets.loc[(o + 1, "exact")]
        assert_allclose(row["rmse"], scale[o] * np.sqrt(np.mean(z**2)), rtol=0.01)
        u = z / sd
        crps = sd * (u * (2 * stats.norm.cdf(u) - 1) + 2 * stats.norm.pdf(u) - 1 / np.sqrt(np.pi))
        assert_allclose(row["crps"], scale[o] * crps.mean(), rtol=0.03)
        log_score = stats.norm.logpdf(z, 0, sd) - np.log(scale[o])
        assert_allclose(row["log_score"], log_score.mean(), atol=5e-3)  # of 1,000 draws
        error = log_score.std(ddof=1) / np.sqrt(len(z))
        assert_allclose(row["log_score_se"], error, rtol=0.02)
        covered = np.mean(np.abs(u) < stats.norm.ppf(0.975))
        assert_allclose(row["coverage_95"], covered, atol=2.1 / len(z))


def test_the_total_weighs_targets_by_their_sds(two: Comparison) -> None:
    scale = Units.of(two.split).scale
    for name in ("exact", "wide"):
        own = two.targets.xs(name, level="method")
        total = two.table.loc[name]
        assert_allclose(total["rmse"], np.sqrt(np.mean((own["rmse"] / scale) ** 2)))
        assert_allclose(total["crps"], np.mean(own["crps"] / scale))
        assert_allclose(total["coverage_95"], own["coverage_95"].mean())
        assert "rmse, crps: sds of each target" in total["units"]


def test_errors_over_several_targets_are_said_to_be_in_sds(two: Comparison) -> None:
    runs = compare_runs([two])
    assert runs.table["units"].iloc[0].endswith("rmse, crps: sds of each target")
    for summary in (two.summary(), runs.summary()):
        assert "sds of y  sds of y" in summary  # RMSE and CRPS
        assert "units of y" not in summary


def test_errors_over_several_counts_are_in_units_of_these() -> None:
    binary = np.arange(24).reshape(12, 2) % 3 > 0
    split = from_arrays(np.arange(24.0).reshape(12, 2), binary)
    assert Units.of(split).of_errors == "y"  # no sd was taken


def test_distances_of_functions_of_counts_are_in_units_of_f() -> None:
    x = np.linspace(-1.0, 1.0, 60)
    split = from_arrays(x[:, None], np.exp(3 + x).round().astype(int), task="counts")
    posteriors = {"a": LinearPosterior(split), "b": LinearPosterior(split, spread=2.0)}
    found = compare(posteriors, split, reference="a")
    at = found.evaluations["b"].at_rows
    assert at is not None
    f = found.evaluations["a"].held_out.function_draws
    assert_allclose(at.reference_sd, f.std(0).mean(), rtol=1e-5)  # f is no count: not in their sds
    for summary in (found.summary(), compare_runs([found]).summary()):
        assert "units of f" in summary
        assert "sds of y" not in summary


@pytest.mark.usefixtures("no_pictures")
def test_the_report_has_a_table_a_target(two: Comparison) -> None:
    page, text = render(two), two.summary()
    for o in (1, 2):
        assert f"Target {o} of y" in page
        assert f"Target {o} of y" in text


def test_one_target_has_no_table_of_its_own(regression: Comparison) -> None:
    assert regression.targets.empty
    assert "Target 1" not in regression.summary()
