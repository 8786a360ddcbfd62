"""Every verdict where its number carries it, and nothing where it does not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest

from pyro_bnn import SVI, guides, models
from pyro_bnn.data import Split
from pyro_bnn.diagnostics.khat import khat_threshold
from pyro_bnn.diagnostics.ranking import rank
from pyro_bnn.report import compare
from pyro_bnn.report.evaluation.evaluate import Evaluation
from pyro_bnn.report.verdicts.containment import is_below, limit_of
from pyro_bnn.report.verdicts.verdict import Judged, Verdict
from pyro_bnn.report.verdicts.verdicts import OF_RUNS, RULES, of_run, score_verdicts
from tests.report.conjugate import LinearPosterior, class_split, losses, regression_split

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


def _calibrated(noise: float = 0.5) -> Split:
    """Data whose noise is that of the model, so that nothing is to be mended."""
    rng = np.random.default_rng(5)
    from pyro_bnn.data import from_arrays

    x = rng.normal(size=(400, 2))
    signal = x @ np.array([1.0, -1.0])
    y = signal / signal.std() * np.sqrt(0.75) + noise * rng.normal(size=400)
    return from_arrays(x, y, test_fraction=0.5)


@pytest.mark.slow("a second or more")
def test_a_good_fit_on_calibrated_data_has_no_warning() -> None:
    findings = _findings(_calibrated(), losses=losses())
    assert [finding for finding in findings if finding.is_warning] == []
    assert len(findings) == 2  # the best, and the tie


def test_ties_and_losers_are_told_apart(regression: Any) -> None:
    best = _texts(regression.findings, "scores")
    assert best[0].startswith("NUTS has the highest held-out log score, −5.14 ± 0.19 nats")
    assert best[1].startswith("Behind, with the difference to NUTS: shifted (−1.72 ± 0.38, p 0.0")
    (tied,) = _texts(regression.findings, "tied")
    assert tied.startswith("Tied with NUTS, no method is shown to be better: Auto")
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
    assert [place.is_behind for place in ranking] == [False, False, False]
    (tied,) = _texts(list(score_verdicts(ranking)), "tied")
    assert tied.endswith(advice)


@pytest.mark.parametrize(
    ("few", "tied", "what"), [("a", "b", "These draws do"), ("c", "c", "These test rows do")]
)
def test_draws_that_give_no_error_are_named(few: str, tied: str, what: str) -> None:
    """A method behind by 80 errors of rows is not tested where that of the draws is unknown."""
    noise = np.random.default_rng(0).normal(size=100)
    apart = noise - noise.mean()  # of an error of 0.1
    scores = {"a": np.zeros(100), "b": apart - 0.01, "c": apart - 8.0}
    ranking = rank(scores, {few: np.nan})
    assert ranking[2].is_behind is (few == "a")  # by b
    (text,) = _texts(list(score_verdicts(ranking)), "tied")
    draws = f"draws are too few for an error, so no test was made ({tied}): raise num_samples."
    assert text.endswith(draws)
    assert f"{what} not separate them; " in text


def test_one_method_alone_is_not_called_best() -> None:
    findings = compare({"only": LinearPosterior(SPLIT, spread=0.9)}, SPLIT).findings
    (text,) = _texts(findings, "scores")
    assert text.startswith("only: held-out log score −5.14 ± 0.19 nats per test row.")


def test_chains_that_disagree_are_reported_and_judge_nobody(classes: Any) -> None:
    (text,) = _texts(classes.findings, "rhat")
    assert text.startswith("NUTS: R-hat 1.224 of f at the worst test row, threshold 1.01: the")
    (reference,) = _texts(classes.findings, "reference")
    assert reference.startswith("The reference NUTS has defects (R-hat 1.224 of f at the worst tes")
    assert "shown but not judged; mend these first." in reference
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
    assert "epistemic sd below 0.8 times that of truth at a tenth of the rows" in ratio
    (below,) = _texts(findings, "containment")
    assert "nats below that of truth, which it contains as a special case" in below


def test_a_reference_without_chains_judges_nobody() -> None:
    posteriors = {
        "narrow": LinearPosterior(SPLIT, spread=0.3),
        "exact": LinearPosterior(SPLIT),
    }
    findings = compare(posteriors, SPLIT, reference="exact").findings
    (text,) = _texts(findings, "reference")
    assert text.startswith("The reference exact is an approximation, neither exact nor a Markov ch")
    assert _texts(findings, "sd ratio") == []


def test_divergences_are_counted() -> None:
    findings = _findings(method="NUTS", stored=800, num_chains=4, num_divergent=3)
    (text,) = _texts(findings, "divergences")
    assert text.startswith("it: 3 of 800 draws diverged, threshold 0:")


@pytest.mark.slow("about a second")
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
    assert "over the last 984 steps, threshold 2 standard errors and 0.5 nats" in text


@pytest.mark.slow("about a second")
def test_the_objective_of_an_improper_prior_is_not_called_an_elbo() -> None:
    (text,) = _texts(_findings(is_flat=True, losses=losses(slope=0.01)), "trend")
    assert "it: not converged, its smoothed objective (no ELBO, as its prior is improper)" in text


@pytest.mark.slow("a second or more")
def test_a_gain_below_half_a_nat_or_within_its_error_is_no_verdict() -> None:
    precise = 300.0 - 0.0005 * np.arange(4_000.0)  # half a nat, without noise
    assert _texts(_findings(losses=precise), "trend") == []
    noisy = 30 * np.random.default_rng(1).normal(size=4_000) - 0.001 * np.arange(4_000)
    findings = compare({"it": LinearPosterior(SPLIT, losses=noisy)}, SPLIT).evaluations["it"]
    assert _texts(_findings(losses=noisy), "trend") == []
    trend = findings.checks.trend
    assert trend is not None
    assert findings.notes[0] == (
        f"probably converged; a gain above {max(trend.largest, trend.detectable):.2g} nats over "
        "the last 984 steps would have been noticed"
    )
    flat = compare({"it": LinearPosterior(SPLIT, losses=precise)}, SPLIT).evaluations["it"]
    assert not any("probably converged" in note for note in flat.notes)


def test_a_run_alone_says_what_its_report_would_say_of_convergence() -> None:
    chains = LinearPosterior(SPLIT, "NUTS", "NUTS", stored=80, num_chains=2)
    short = LinearPosterior(SPLIT, losses=losses(num_steps=150))
    for name, posterior, kinds in (("NUTS", chains, ["ess"]), ("short", short, ["unchecked"])):
        findings = [f for f in compare({name: posterior}, SPLIT).findings if f.is_warning]
        of_run_texts = [f.text for f in findings if f.kind in {rule.kind for rule in OF_RUNS}]
        verdicts = of_run(name, posterior, SPLIT, 0)
        words = [verdict.text for verdict in verdicts]
        assert [v.is_warning for v in verdicts] == [v.text in of_run_texts for v in verdicts]
        assert words[: len(of_run_texts)] == of_run_texts
        assert all(f"{name}: " in note for note in words[len(of_run_texts) :])
        assert set(kinds) <= {f.kind for f in findings if f.text in of_run_texts}
        assert sum("convergence not judged" in word for word in words) == 0  # once, as a verdict
    noisy = 30 * np.random.default_rng(1).normal(size=4_000)
    (verdict,) = of_run("long", LinearPosterior(SPLIT, losses=noisy), SPLIT, 0)
    assert verdict.text.startswith("long: probably converged; a gain above ")
    assert verdict.text.endswith(" nats over the last 984 steps would have been noticed.")


@pytest.mark.slow("a second or more")
def test_what_was_not_judged_is_said_and_never_passed() -> None:
    posteriors = {
        "short": LinearPosterior(SPLIT, losses=losses(num_steps=150)),
        "bare": LinearPosterior(SPLIT),
        "long": LinearPosterior(SPLIT, losses=losses()),
        "truth": LinearPosterior(SPLIT, "Exact", "Exact"),
        "NUTS": LinearPosterior(SPLIT, "NUTS", "NUTS", stored=1_200, num_chains=4),
        "CAVI": LinearPosterior(SPLIT, "CAVI", losses=np.zeros(9), options={"max_sweeps": 10}),
        "cut": LinearPosterior(SPLIT, "CAVI", losses=np.zeros(10), options={"max_sweeps": 10}),
    }
    comparison = compare(posteriors, SPLIT)
    (text,) = _texts(comparison.findings, "unchecked")
    short = (
        "too short: fewer than 96 of its 150 steps lie in the last quarter of the accumulated "
        "learning rate"
    )
    assert text.startswith("It is not known whether these fits converged (short, ")
    assert f"(short, {short}; bare, it has no trace of its objective; cut, too short" in text
    notes = {name: "; ".join(entry.notes) for name, entry in comparison.evaluations.items()}
    assert f"convergence not judged: {short}" in notes["short"]
    unjudged = {name for name, note in notes.items() if "convergence not judged" in note}
    assert unjudged == {"short", "bare", "cut"}


@pytest.mark.slow("about a second")
def test_narrow_intervals_shared_with_the_reference_are_laid_to_the_model() -> None:
    (text,) = _texts(_of_spread(0.9), "coverage")
    assert text.startswith(
        "95 % intervals are too narrow: of 60 test targets they cover it 85.0 % (allowed: 86.7 % "
        "to 100.0 %), NUTS"
    )
    assert (
        "Allowed is what 99 % of data sets drawn from the method's own posterior give, all rows "
        "from one draw of its function. The reference is among them, so look at the model "
    ) in text
    (alone,) = _texts(_findings(spread=0.9, reference=False), "coverage")
    assert alone.endswith(
        "The approximation or the model (likelihood, noise scale, prior) may be the cause: a "
        "converged reference of the same model, such as long NUTS chains, would tell."
    )


@pytest.mark.slow("a second or more")
def test_narrow_intervals_that_the_reference_does_not_share_are_laid_to_the_guide() -> None:
    (text,) = _texts(_findings(_calibrated(), shift=60.0), "coverage")
    assert text.startswith("95 % intervals are too narrow: of 200 test targets they cover it ")
    assert text.endswith(
        "The reference NUTS, of the same model, is not among them: look at the approximation "
        "first, try a guide of another shape, such as AutoFlow or AutoNormalMixture, or use NUTS."
    )


@pytest.mark.slow("about a second")
def test_narrow_intervals_of_a_reference_that_disagrees_are_not_laid_to_the_model() -> None:
    chains = LinearPosterior(SPLIT, "NUTS", stored=1_200, num_chains=4, chain_shift=1.0)
    findings = compare({"NUTS": chains}, SPLIT, reference="NUTS").findings
    assert _texts(findings, "rhat")
    (text,) = _texts(findings, "coverage")
    assert text.startswith("95 % intervals are too narrow: of 60 test targets they cover NUTS ")
    assert "a converged reference of the same model" in text


@pytest.mark.slow("a second or more")
def test_wide_intervals_are_reported_as_such() -> None:
    findings = _findings(_calibrated(noise=0.1))  # the model's is 0.5
    (text,) = _texts(findings, "coverage")
    assert text.startswith(
        "95 % intervals are too wide: of 200 test targets they cover it 100.0 % (allowed: 90.5 % to"
    )
    assert "look at the model (likelihood, noise scale, prior) before the approximation." in text


@pytest.mark.slow("a second or more")
def test_a_posterior_far_too_wide_is_seen_by_the_pit_where_coverage_cannot() -> None:
    """A draw far out misses all rows at once: data sets of such a posterior cover none to all."""
    findings = _findings(_calibrated(), spread=90.0)
    assert _texts(findings, "coverage") == []
    (text,) = _texts(findings, "pit")
    assert text.startswith("PIT values are not uniform: it has ")
    assert "of the bars is a bias" in text
    assert "look at the approximation first" in text


@pytest.mark.slow("many repeats")
def test_the_error_of_class_probabilities_is_judged_by_what_the_posterior_expects() -> None:
    split = class_split(900)
    sharp = LinearPosterior(split, "NUTS", "NUTS", stored=1_200, num_chains=4)
    comparison = compare({"NUTS": sharp}, split, reference="NUTS")
    scores = comparison.evaluations["NUTS"].held_out
    (text,) = _texts(comparison.findings, "ece")
    assert scores.ece > scores.ece_high > scores.ece_floor
    assert text.startswith(f"Expected calibration error too large: NUTS {scores.ece:.3g} (allowed:")
    assert f"accuracy {100 * scores.accuracy:.1f} %." in text
    assert "The reference is among them" in text


def test_calibration_is_unchecked_where_draws_are_few() -> None:
    comparison = compare({"it": LinearPosterior(SPLIT, spread=0.2)}, SPLIT, num_samples=150)
    assert _texts(comparison.findings, "coverage") == []
    notes = comparison.table.loc["it", "notes"]
    assert "coverage not checked: a band of 99 % needs 199 draws, and there are 150" in notes
    assert "(unchecked)" in comparison.summary()


def test_a_large_khat_is_reported_and_a_small_one_is_not() -> None:
    (text,) = _texts(_findings(shift=6.0), "khat")
    assert text.startswith("k-hat at or above 0.67, its limit for 1,000 draws: it ")
    assert (
        "k-hat does not see modes that a guide lacks, and copies of a mode do not change it" in text
    )
    assert _texts(_of_spread(0.9), "khat") == []


def test_khats_go_by_the_limit_for_their_draws_and_are_not_ordered_above_1() -> None:
    entry = compare({"it": LinearPosterior(SPLIT)}, SPLIT).evaluations["it"]
    assert entry.checks.khat_limit == khat_threshold(1_000)

    def of(name: str, shape: float, limit: float) -> Evaluation:
        checks = replace(entry.checks, khat=shape, khat_error=0.1, khat_limit=limit)
        return replace(entry, name=name, checks=checks)

    (rule,) = (rule for rule in RULES if rule.kind == "khat")
    assert list(rule.verdicts(Judged([of("it", 0.6, 2 / 3)], None))) == []
    entries = [of("a", 4.8, 0.5), of("b", 0.6, 0.5), of("c", 4.4, 0.5), of("d", 0.4, 0.5)]
    (finding,) = rule.verdicts(Judged(entries, None))
    assert finding.methods == ("a", "b", "c")
    text = finding.text.replace("\xa0", " ")
    assert "b 0.60 ± 0.10; a, c above 1, where a larger value need not be worse." in text
    assert "4." not in text


@pytest.mark.slow("a second or more")
def test_too_little_spread_is_reported_beyond_its_noise_only() -> None:
    (text,) = _texts(_of_spread(0.5), "sd ratio")
    assert "it at 60 of 60 test rows (median ratio 0.49" in text
    assert " and at 22 of 22 probes off the data, 14 of 14 along, 8 of 8 beyond (median" in text
    assert _texts(_of_spread(0.81), "sd ratio") == []  # below 0.8, but not beyond its error
    assert _texts(_of_spread(0.9), "sd ratio") == []


@pytest.mark.slow("a second or more")
def test_too_much_spread_is_reported_beyond_its_noise_only() -> None:
    (text,) = _texts(_of_spread(2.0), "too wide")
    assert text.startswith(
        "Less sure of the function than the posterior: epistemic sd above 1.25 times that of NUTS "
        "at a tenth of the rows or more, each by more than 3 standard errors of the draws: it at "
        "60 of 60 test rows (median ratio 1.9"
    )
    assert _texts(_of_spread(1.1), "too wide") == []
    assert _texts(_of_spread(0.5), "too wide") == []


def test_a_point_estimate_is_named_as_one() -> None:
    (text,) = _texts(_findings(method="AutoDelta", spread=0.0), "sd ratio")
    assert text.startswith("it is one point: its epistemic sd is 0, below the threshold of 0.8")


@pytest.mark.slow("about a second")
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


@pytest.mark.slow("a second or more")
def test_two_fits_of_one_guide_are_compared() -> None:
    def found(worse: dict[str, Any], better: dict[str, Any]) -> list[str]:
        posteriors = {
            "worse": LinearPosterior(SPLIT, "AutoNormal", spread=0.4, **worse),
            "better": LinearPosterior(SPLIT, "AutoNormal", spread=0.9, **better),
        }
        return _texts(compare(posteriors, SPLIT).findings, "containment")

    (text,) = found({"options": {"num_steps": 9, "init_scale": 0.1}}, {"options": {"num_steps": 8}})
    assert text.startswith("worse: not converged, its ELBO is ")
    assert "nats below that of better, another fit of its family; threshold 2.0 standard er" in text
    assert "take better, double num_steps, or lower learning_rate" in text
    assert found({}, {"model": object()}) == []
    assert found({}, {"options": {"hidden": 3}}) == []  # another family by its options


@pytest.mark.slow("about a second")
@pytest.mark.parametrize(("own", "other", "expected"), [(2, 1, 1), (1, 2, 0), (None, 1, 0)])
def test_of_two_ranks_the_larger_contains_the_smaller(
    own: int | None, other: int, expected: int
) -> None:
    posteriors = {
        str(place): LinearPosterior(
            SPLIT, "AutoLowRankMultivariateNormal", spread=spread, options={"rank": rank}
        )
        for place, (rank, spread) in enumerate([(own, 0.4), (other, 0.9)])
    }
    assert len(_texts(compare(posteriors, SPLIT).findings, "containment")) == expected


def test_the_more_pairs_are_compared_the_more_it_takes() -> None:
    assert limit_of(1) == limit_of(2) == 2.0
    assert abs(limit_of(20) - 2.807) < 1e-3  # of a chance of 1 in 400
    assert is_below(0.0, 1.0, 3.0, 1.0, 2)
    assert not is_below(0.0, 1.0, 3.0, 1.0, 20)
    assert not is_below(0.0, 0.0, 0.9, 0.0, 2)


@pytest.mark.slow("whole fits")
def test_fits_that_were_stopped_are_not_passed_over() -> None:
    split = regression_split(num_rows=120)
    model = models.MLP(3, hidden=(5,), activation="tanh")
    fits = {
        f"{steps} steps": SVI(guides.AutoNormal, num_steps=steps, compile=False).run(
            model, split.train, progress=False
        )
        for steps in (100, 150, 1_500)
    }
    findings = compare(fits, split, num_samples=200).findings
    below = [finding for finding in findings if finding.kind == "containment"]
    assert [finding.methods for finding in below] == [("100 steps",), ("150 steps",)]
    assert all("below that of 1500 steps, another fit of its family" in f.text for f in below)
    (unchecked,) = [finding for finding in findings if finding.kind == "unchecked"]
    assert unchecked.methods == ("100 steps", "150 steps")
    assert unchecked.is_warning


@pytest.mark.slow("about a second")
def test_a_full_covariance_that_is_as_good_as_mean_field_has_no_verdict() -> None:
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
