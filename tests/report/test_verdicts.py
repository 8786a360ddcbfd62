"""Every verdict where its number carries it, and nothing where it does not."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import pytest

from pyro_bnn.data import Split
from pyro_bnn.diagnostics.ranking import rank
from pyro_bnn.report import compare
from pyro_bnn.report.findings import Verdict
from pyro_bnn.report.verdicts import score_verdicts
from tests.report.conjugate import LinearPosterior, losses, regression_split

SPLIT = regression_split()


def _findings(split: Split = SPLIT, reference: bool = True, **changes: Any) -> Sequence[Verdict]:
    """Verdicts on one method with these changes beside exact, converged chains."""
    posteriors = {
        "it": LinearPosterior(split, **changes),
        "NUTS": LinearPosterior(split, "NUTS", stored=1_200, num_chains=4),
    }
    return compare(posteriors, split, reference="NUTS" if reference else None).findings


@cache
def _of_spread(spread: float) -> Sequence[Verdict]:
    """Verdicts on one method of this spread, which several tests look at."""
    return _findings(spread=spread)


def _texts(findings: Sequence[Verdict], kind: str) -> list[str]:
    return [finding.text.replace("\xa0", " ") for finding in findings if finding.kind == kind]


def _calibrated() -> Split:
    """Data whose noise is that of the model, so that nothing is to be mended."""
    rng = np.random.default_rng(5)
    from pyro_bnn.data import from_arrays

    x = rng.normal(size=(800, 2))
    signal = x @ np.array([1.0, -1.0])
    y = signal / signal.std() * np.sqrt(0.75) + 0.5 * rng.normal(size=800)
    return from_arrays(x, y, test_fraction=0.25)


def test_a_good_fit_on_calibrated_data_has_no_warning() -> None:
    findings = _findings(_calibrated(), losses=losses())
    assert [finding for finding in findings if finding.is_warning] == []
    assert len(findings) == 2  # the best, and the tie


def test_ties_and_losers_are_told_apart(regression: Any) -> None:
    best = _texts(regression.findings, "scores")
    assert best[0].startswith("NUTS has the highest held-out log score, −5.14 ± 0.19 nats")
    assert best[1].startswith(
        "Behind NUTS by at least 2 standard errors over test rows and draws: MAP"
    )
    (tied,) = _texts(regression.findings, "tied")
    assert tied.startswith(
        "Tied with NUTS (paired difference under 2 standard errors over test rows and draws): Auto"
    )
    assert "shifted" not in tied


@pytest.mark.parametrize(
    ("names_of_draws", "advice"),
    [
        ((), "These test rows do not separate them; compare on more rows or other splits."),
        (
            ("b", "c"),
            "These draws do not separate them; most of the error is of the draws (b, c): raise "
            "num_samples.",
        ),
        (
            ("c",),
            "These test rows do not separate them; compare on more rows or other splits; most of "
            "the error is of the draws (c): raise num_samples.",
        ),
    ],
)
def test_ties_are_told_what_would_separate_them(
    names_of_draws: tuple[str, ...], advice: str
) -> None:
    noise = np.random.default_rng(0).normal(size=100)  # whose mean has an error of 0.1
    scores = {
        "a": np.zeros(100),
        "b": noise - noise.mean() - 0.05,
        "c": noise[::-1] - noise.mean() - 0.1,
    }
    ranking = rank(scores, dict.fromkeys(names_of_draws, 0.3))
    assert [place.difference.tied for place in ranking] == [True, True, True]
    (tied,) = _texts(list(score_verdicts(ranking)), "tied")
    assert tied.endswith(advice)


def test_one_method_alone_is_not_called_best() -> None:
    findings = compare({"only": LinearPosterior(SPLIT, spread=0.9)}, SPLIT).findings
    (text,) = _texts(findings, "scores")
    assert text.startswith("only: held-out log score −5.14 ± 0.19 nats per test row.")


def test_chains_that_disagree_are_reported_and_judge_nobody(classes: Any) -> None:
    (text,) = _texts(classes.findings, "rhat")
    assert text.startswith("NUTS: function-space R-hat 1.28 at the worst test row, threshold 1.05")
    (reference,) = _texts(classes.findings, "reference")
    assert reference.startswith("The reference NUTS has R-hat 1.28 > 1.05: distances and sd ratios")
    assert _texts(classes.findings, "sd ratio") == []  # although MAP has no spread at all
    assert _texts(classes.findings, "too wide") == []


def test_the_exact_posterior_judges_others_without_chains() -> None:
    posteriors = {
        "truth": LinearPosterior(SPLIT, "Exact", "Exact"),
        "it": LinearPosterior(SPLIT, spread=0.5),
    }
    findings = compare(posteriors, SPLIT, reference="truth").findings
    assert _texts(findings, "reference") == []
    (ratio,) = _texts(findings, "sd ratio")
    assert "times that of truth, threshold 0.8" in ratio
    (below,) = _texts(findings, "containment")
    assert "nats below that of truth, which it contains as a special case" in below


def test_a_reference_without_chains_judges_nobody() -> None:
    posteriors = {
        "narrow": LinearPosterior(SPLIT, spread=0.3),
        "exact": LinearPosterior(SPLIT),
    }
    findings = compare(posteriors, SPLIT, reference="exact").findings
    (text,) = _texts(findings, "reference")
    assert text.startswith("The reference exact has no R-hat (it is not a Markov chain)")
    assert _texts(findings, "sd ratio") == []


def test_divergences_are_counted() -> None:
    findings = _findings(method="NUTS", stored=800, num_chains=4, num_divergent=3)
    (text,) = _texts(findings, "divergences")
    assert text.startswith("it: 3 of 800 draws diverged, threshold 0:")


@pytest.mark.parametrize(
    ("slope", "method", "objective"),
    [(0.01, "AutoNormal", "ELBO"), (0.01, "AutoDelta", "log joint")],
)
def test_an_objective_that_still_rises_is_reported(
    slope: float, method: str, objective: str
) -> None:
    spread = 0.0 if method == "AutoDelta" else 1.0
    findings = _findings(method=method, spread=spread, losses=losses(slope=slope))
    (text,) = _texts(findings, "trend")
    assert f"it: not converged, its smoothed {objective} still rose by 9.82 ± 0.40 nats" in text
    assert "over the last 984 steps, threshold 2 standard errors and 1 nat" in text


def test_the_objective_of_an_improper_prior_is_not_called_an_elbo() -> None:
    (text,) = _texts(_findings(is_flat=True, losses=losses(slope=0.01)), "trend")
    assert "it: not converged, its smoothed objective (no ELBO, as its prior is improper)" in text


def test_a_gain_below_a_nat_or_within_its_error_is_no_verdict() -> None:
    precise = 300.0 - 0.0005 * np.arange(4_000.0)  # half a nat, without noise
    assert _texts(_findings(losses=precise), "trend") == []
    noisy = 30 * np.random.default_rng(1).normal(size=4_000) - 0.001 * np.arange(4_000)
    assert _texts(_findings(losses=noisy), "trend") == []


def test_narrow_intervals_shared_with_the_reference_are_laid_to_the_model() -> None:
    (text,) = _texts(_of_spread(0.9), "coverage")
    assert text.startswith("95 % intervals are too narrow: of 60 test targets they cover it 85.0 %")
    assert "where chance allows 86.7 % to 100.0 % (99 % binomial band)" in text
    assert "The reference is among them, so look at the model" in text
    (alone,) = _texts(_findings(spread=0.9, reference=False), "coverage")
    assert "Try a richer posterior or another likelihood." in alone


def test_narrow_intervals_of_a_reference_that_disagrees_are_not_laid_to_the_model() -> None:
    chains = LinearPosterior(SPLIT, "NUTS", stored=1_200, num_chains=4, chain_shift=1.0)
    findings = compare({"NUTS": chains}, SPLIT, reference="NUTS").findings
    assert _texts(findings, "rhat")
    (text,) = _texts(findings, "coverage")
    assert text.startswith("95 % intervals are too narrow: of 60 test targets they cover NUTS ")
    assert text.endswith("Try a richer posterior or another likelihood.")


def test_wide_intervals_are_reported_as_such() -> None:
    (text,) = _texts(_findings(regression_split(4_000), spread=90.0), "coverage")[-1:]
    assert text.startswith(
        "95 % intervals are too wide: of 1,000 test targets they cover it 100.0 %"
    )
    assert text.endswith("Look at the noise scale and its prior.")


def test_a_large_khat_is_reported_and_a_small_one_is_not() -> None:
    (text,) = _texts(_findings(shift=6.0), "khat")
    assert text.startswith("k-hat at or above 0.7: it ")
    assert "Far from the joint posterior" in text
    assert _texts(_of_spread(0.9), "khat") == []


def test_too_little_spread_is_reported_beyond_its_noise_only() -> None:
    (text,) = _texts(_of_spread(0.5), "sd ratio")
    assert text.startswith("it: epistemic sd 0.4887 ± 0.0067 times that of NUTS, threshold 0.8:")
    assert _texts(_of_spread(0.81), "sd ratio") == []  # below 0.8, but not beyond its error
    assert _texts(_of_spread(0.9), "sd ratio") == []


def test_too_much_spread_is_reported_beyond_its_noise_only() -> None:
    (text,) = _texts(_of_spread(2.0), "too wide")
    assert text.startswith("Epistemic sd above 1.25 times that of NUTS: it 1.9")
    assert _texts(_of_spread(1.1), "too wide") == []
    assert _texts(_of_spread(0.5), "too wide") == []


def test_a_point_estimate_is_named_as_one() -> None:
    (text,) = _texts(_findings(method="AutoDelta", spread=0.0), "sd ratio")
    assert text.startswith("it is one point: its epistemic sd is 0, below the threshold of 0.8")


def test_a_guide_below_one_that_it_contains_is_not_converged() -> None:
    def found(split: Split = SPLIT, **changes: Any) -> list[str]:
        posteriors = {
            "full": LinearPosterior(split, "AutoMultivariateNormal", spread=0.4),
            "mean-field": LinearPosterior(split, "AutoNormal", **{"spread": 0.9, **changes}),
        }
        return _texts(compare(posteriors, split).findings, "containment")

    (text,) = found()
    assert text.startswith("full: not converged, its ELBO is ")
    assert "nats below that of mean-field, which it contains as a special case" in text
    assert found(model=object()) == []  # bounds of different evidences
    assert found(spread=0.4) == []  # the same ELBO
    nearly = {
        "full": LinearPosterior(SPLIT, "AutoMultivariateNormal", spread=0.9),
        "mean-field": LinearPosterior(SPLIT, "AutoNormal"),
    }
    assert _texts(compare(nearly, SPLIT).findings, "containment") == []  # 0.04 nats, though 5 se
    posteriors = {
        "full": LinearPosterior(SPLIT, "AutoMultivariateNormal"),
        "mean-field": LinearPosterior(SPLIT, "AutoNormal", spread=0.4),
    }
    assert _texts(compare(posteriors, SPLIT).findings, "containment") == []
