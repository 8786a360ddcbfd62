"""Unknown inputs: scores by hand, AUROC and FPR95 by normal scores and by scikit-learn."""

from typing import Literal

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy import stats
from sklearn import metrics

from pyro_bnn.diagnostics import auroc, fpr95, novelty_scores
from pyro_bnn.errors import OptionError, ShapeError


def test_the_auroc_of_normal_scores() -> None:
    rng = np.random.default_rng(0)
    found = auroc(rng.normal(size=20_000), rng.normal(1.5, size=20_000))
    exact = stats.norm.cdf(1.5 / np.sqrt(2))
    assert abs(found - exact) < 5 * np.sqrt(exact * (1 - exact) / 20_000)


@pytest.mark.parametrize("decimals", [8, 0])
def test_both_areas_and_rates_are_those_of_scikit_learn(decimals: int) -> None:
    rng = np.random.default_rng(1)
    known, unknown = rng.normal(size=37).round(decimals), rng.normal(1, 2, size=53).round(decimals)
    is_unknown, scores = np.repeat([0, 1], [37, 53]), np.concatenate([known, unknown])
    assert_allclose(auroc(known, unknown), metrics.roc_auc_score(is_unknown, scores), rtol=1e-12)
    cases: dict[Literal["known", "unknown"], tuple[np.ndarray, np.ndarray]]
    cases = {"unknown": (is_unknown, scores), "known": (1 - is_unknown, -scores)}
    for positive, (labels, own) in cases.items():
        false, true, _ = metrics.roc_curve(labels, own, drop_intermediate=False)
        assert fpr95(known, unknown, positive=positive) == false[np.argmax(true >= 0.95)]


@pytest.mark.parametrize("sd", [1.0, 3.0])
def test_the_two_rates_differ_where_the_spreads_do(sd: float) -> None:
    rng = np.random.default_rng(2)
    known, unknown = rng.normal(size=50_000), rng.normal(1.5, sd, size=50_000)
    z = stats.norm.ppf(0.95)
    exact: dict[Literal["known", "unknown"], float]
    exact = {"known": stats.norm.cdf((z - 1.5) / sd), "unknown": stats.norm.sf(1.5 - z * sd)}
    for positive, rate in exact.items():
        # the error of the threshold, a quantile of 50,000 scores, and of the share
        error = np.hypot(np.sqrt(rate * (1 - rate) / 50_000), 2 * 0.5 * np.sqrt(0.05 / 50_000))
        assert abs(fpr95(known, unknown, positive=positive) - rate) < 5 * error


def test_a_threshold_that_finds_95_of_100_finds_no_more() -> None:
    known = np.arange(20.0)
    assert fpr95(known, np.array([18.0, 18.5]), positive="known") == 0.5


@pytest.mark.parametrize("positive", ["known", "unknown"])
def test_a_score_that_is_not_known_leaves_no_rate_and_no_area(
    positive: Literal["known", "unknown"],
) -> None:
    known, unknown, lost = np.arange(4.0), np.arange(4.0) + 2, np.array([0.0, np.nan, 1.0])
    assert np.isnan(fpr95(lost, unknown, positive=positive))
    assert np.isnan(fpr95(known, lost, positive=positive))
    assert np.isnan([auroc(lost, unknown), auroc(known, lost)]).all()


def test_scores_by_hand() -> None:
    probs = np.array([[[0.9, 0.1]], [[0.5, 0.5]]])  # two draws at one row
    logits = np.log(probs) + np.array([1.0, 3.0])[:, None, None]
    scores = novelty_scores(probs, logits)
    entropy = -(0.7 * np.log(0.7) + 0.3 * np.log(0.3))
    expected = -(0.9 * np.log(0.9) + 0.1 * np.log(0.1)) / 2 + np.log(2) / 2
    assert_allclose(scores["one minus largest probability"], [0.3])
    assert_allclose(scores["entropy"], [entropy])
    assert_allclose(scores["mutual information"], [entropy - expected])
    assert_allclose(scores["energy"], [-2.0])  # log sums of 1 and 3
    assert "energy" not in novelty_scores(probs)


def test_areas_do_not_depend_on_the_scale_of_the_scores() -> None:
    rng = np.random.default_rng(3)
    known, unknown = rng.normal(size=30), rng.normal(1, size=30)
    assert auroc(known, unknown) == auroc(np.exp(known), np.exp(unknown))


def test_what_is_refused() -> None:
    with pytest.raises(OptionError, match='positive is "known" or "unknown", not \'in\''):
        fpr95(np.zeros(2), np.zeros(2), positive="in")  # type: ignore[arg-type]
    with pytest.raises(ShapeError, match="unknown must have shape"):
        auroc(np.zeros(2), np.zeros(0))
    with pytest.raises(ShapeError, match="expected that of probs"):
        novelty_scores(np.full((1, 2, 2), 0.5), np.zeros((1, 3, 2)))
