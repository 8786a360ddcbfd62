"""The answer says what the verdicts and the ranking carry, and no more."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy import integrate, stats

from pyro_bnn.data import Split, from_arrays
from pyro_bnn.diagnostics.scores import cost_of_wrong_spread
from pyro_bnn.report import Comparison, compare
from pyro_bnn.report.output.verdict_file import verdict_document
from pyro_bnn.report.verdicts.merits import POINT
from pyro_bnn.report.verdicts.statement import (
    AGAIN,
    AGREES,
    CHANGE,
    CHEAPER,
    COST,
    DIFFERS,
    NOT,
    PREDICT,
    TIE,
    UNJUDGED,
    USE,
)
from tests.report.conjugate import NOISE, LinearPosterior, losses, regression_split


def said(comparison: Comparison) -> dict[str, str]:
    """Texts of the answer by label, with plain spaces."""
    return {part.label: part.text.replace("\xa0", " ") for part in comparison.answer.statements}


def chains(split: Split, **options: Any) -> LinearPosterior:
    """Chains that pass every check, at a cost of 30 s."""
    return LinearPosterior(
        split, "NUTS", "NUTS", stored=4_000, num_chains=4, wall_time=30.0, **options
    )


@pytest.fixture(scope="module")
def split() -> Split:
    """Rows whose noise is that of the model: of variance 1, of which 3/4 are the function's."""
    rng = np.random.default_rng(3)
    x = rng.normal(size=(240, 3))
    return from_arrays(x, x.sum(1) / 2 + NOISE * rng.normal(size=240), test_fraction=0.25)


@pytest.fixture(scope="module")
def judged(split: Split) -> Comparison:
    return compare(
        {
            "MAP": LinearPosterior(
                split, "AutoDelta", spread=0.0, losses=losses(seed=2), wall_time=1.0
            ),
            "narrow": LinearPosterior(split, "AutoNormal", spread=0.4, losses=losses()),
            "good": LinearPosterior(split, losses=losses(seed=1), wall_time=5.0),
            "rising": LinearPosterior(split, losses=losses(slope=0.05), wall_time=2.0),
            "short": LinearPosterior(split, losses=losses(50), wall_time=0.5),
            "NUTS": chains(split),
        },
        split,
        reference="NUTS",
    )


@pytest.mark.slow("a second or more")
def test_a_reference_that_may_judge_is_used_with_what_it_passed(judged: Comparison) -> None:
    use, row = said(judged)[USE], judged.table.loc["NUTS"]
    assert judged.answer.headline.startswith("Trust NUTS here.")
    assert f"R-hat {row['rhat']:.3f} (at most 1.01), {row['ess']:,.0f} effective draws" in use
    assert "0 of 4,000 draws divergent" in use
    assert "tied with" in use or "highest held-out log score" in use


def test_every_method_has_the_status_of_its_verdicts(judged: Comparison) -> None:
    assert judged.answer.status == {
        "MAP": NOT, "narrow": NOT, "good": AGREES, "rising": AGAIN, "short": AGAIN, "NUTS": USE,
    }  # fmt: skip
    barred = {name for f in judged.findings if f.kind == "sd ratio" for name in f.methods}
    assert barred == {"MAP", "narrow"}
    text = said(judged)[NOT]
    assert f"MAP ({POINT})" in text
    assert "narrow (too sure of the function)" in text
    again = said(judged)[AGAIN]
    assert "rising (objective not settled): double num_steps. " in again
    assert "short (convergence not judged): double num_steps." in again
    assert said(judged)[AGREES].startswith("good (spread and mean of the function are those of")
    assert UNJUDGED not in said(judged)


def test_the_cheaper_one_ended_is_judged_and_not_behind(judged: Comparison) -> None:
    text = said(judged)[CHEAPER]
    assert text.startswith("good, 5.0 s in place of 30 s.")  # not MAP of 1 s, nor rising of 2 s
    row = judged.table.loc["good"]
    assert f"Its epistemic sd is {row['sd_ratio']:.3f} ± " in text
    assert " times that of NUTS at the test rows" in text
    assert "no difference beyond the thresholds was found" in text
    own = judged.evaluations["good"].held_out.log_score
    reference = judged.evaluations["NUTS"].held_out.log_score
    assert f"({(own - reference).mean():.4f}".replace("-", "−")[:7] in text


@pytest.mark.slow("a second or more")
def test_faster_fits_that_cannot_be_used_are_named_with_what_is_wrong(split: Split) -> None:
    comparison = compare(
        {
            "far": LinearPosterior(split, losses=losses(), shift=12.0, wall_time=1.0),
            "rising": LinearPosterior(split, losses=losses(slope=0.05), wall_time=2.0),
            "NUTS": chains(split),
        },
        split,
        reference="NUTS",
    )
    text = said(comparison)[CHEAPER]
    assert text.startswith("None. Faster, but not to be used: far (behind in score")
    assert "; rising (objective not settled)." in text


def test_costs_are_those_of_the_table(judged: Comparison) -> None:
    assert said(judged)[COST] == (
        "30 s for NUTS on 2 threads; the others 0.50 s (short) to 5.0 s (good)."
    )


def test_a_fit_of_a_gpu_took_its_time_there(split: Split) -> None:
    posterior = LinearPosterior(split, losses=losses(seed=1), wall_time=5.0)
    assert "5.0 s for good on 2 threads." in said(compare({"good": posterior}, split))[COST]
    posterior.gpu = "NVIDIA H100"
    assert "5.0 s for good on NVIDIA H100." in said(compare({"good": posterior}, split))[COST]


def test_without_a_judge_nothing_is_confirmed(split: Split) -> None:
    comparison = compare(
        {
            "rising": LinearPosterior(split, losses=losses(slope=0.05)),
            "good": LinearPosterior(split, losses=losses(seed=1), wall_time=5.0),
            "MAP": LinearPosterior(split, "AutoDelta", spread=0.0),
        },
        split,
    )
    assert comparison.answer.headline.startswith(
        "No posterior is confirmed here; good is the best supported."
    )
    assert "whether its spread is the posterior's is not known" in said(comparison)[USE]
    assert comparison.answer.status["rising"] == AGAIN
    assert "A reference: long NUTS chains" in said(comparison)[CHANGE]
    unjudged = compare({"a": LinearPosterior(split, losses=losses())}, split)
    assert unjudged.answer.status == {"a": USE}


def test_the_exact_posterior_needs_no_reference(split: Split) -> None:
    """Its spread is the posterior's, whether it is used or not."""
    exact = LinearPosterior(split, "Exact", "Exact", wall_time=2.0)
    alone = compare({"it": exact}, split)
    assert alone.answer.headline == "Trust it for the posterior of its model."
    assert said(alone)[USE].startswith("it: it is the posterior itself, in closed form. ")
    assert "known" not in said(alone)[USE]
    assert CHANGE not in said(alone)
    limit = LinearPosterior(split, "NNGP", "GaussianProcess")  # of a network of infinite width
    assert "Trust" not in compare({"limit": limit}, split).answer.headline
    longer = LinearPosterior(split, losses=losses(), shift=0.5, wall_time=3.0)
    both = compare({"it": exact, "longer": longer}, split)
    assert both.answer.status == {"it": AGREES, "longer": USE}
    assert "Its spread is the posterior's: it is the posterior itself" in said(both)[CHEAPER]
    assert "A reference: long NUTS chains" in said(both)[CHANGE]


def test_few_draws_and_not_the_rows_are_said_to_rank_nothing(split: Split) -> None:
    """Three draws a chain give no error of the score, so that nothing is tested."""
    posteriors = {
        "NUTS": LinearPosterior(split, "NUTS", "NUTS", stored=400, num_chains=4),
        "far": LinearPosterior(split, losses=losses(), shift=12.0),
    }
    comparison = compare(posteriors, split, num_samples=12)
    assert math.isnan(comparison.table.loc["NUTS", "log_score_draws_se"])
    assert comparison.answer.headline.endswith(
        "So few draws cannot rank the 2 methods by score; raise num_samples."
    )
    assert "(num_samples): these are too few to tell the error" in said(comparison)[CHANGE]
    assert compare(posteriors, split, num_samples=100).ranking[1].is_behind


def test_chains_too_short_to_be_checked_are_not_used(split: Split) -> None:
    """Of seven draws a chain there is no R-hat, which is not one below its limit."""
    short = LinearPosterior(split, "NUTS", "NUTS", stored=28, num_chains=4)
    comparison = compare({"NUTS": short}, split)
    assert comparison.answer.headline == "Trust none of these fits yet."
    assert said(comparison)[AGAIN] == ("NUTS (chains too short to be checked): raise num_samples.")
    short = LinearPosterior(split, "NUTS", "NUTS", stored=32, num_chains=4)
    assert "too short" not in said(compare({"NUTS": short}, split)).get(AGAIN, "")


def test_one_row_is_one(split: Split) -> None:
    rng = np.random.default_rng(0)
    one = from_arrays(rng.normal(size=(40, 3)), rng.normal(size=40), test_fraction=0.025)
    posteriors = {"a": LinearPosterior(one), "b": LinearPosterior(one, shift=3.0)}
    assert "This row cannot rank the 2 methods" in compare(posteriors, one).answer.headline


@pytest.mark.slow("a second or more")
def test_a_reference_with_defects_judges_nobody(split: Split) -> None:
    posteriors = {
        "good": LinearPosterior(split, losses=losses()),
        "narrow": LinearPosterior(split, "AutoNormal", spread=0.4, losses=losses()),
        "NUTS": chains(split, num_divergent=40),
    }
    comparison = compare(posteriors, split, reference="NUTS")
    assert comparison.answer.status["NUTS"] == AGAIN
    assert "NUTS (divergent trajectories)" in said(comparison)[AGAIN]
    assert "No posterior is confirmed" in comparison.answer.headline
    assert {NOT, AGREES, UNJUDGED}.isdisjoint(said(comparison))  # the spread of none was judged
    assert "1.00 % of draws divergent, above 0.1 %" in said(comparison)[CHANGE]


def test_where_every_fit_has_a_verdict_none_is_used(split: Split) -> None:
    comparison = compare({"a": LinearPosterior(split, losses=losses(slope=0.05))}, split)
    assert comparison.answer.headline == "Trust none of these fits yet."
    assert said(comparison)[COST].startswith("So far ")  # fits that nobody uses took their time
    assert said(comparison)[USE] == "None yet: every fit has a verdict against it."


def test_methods_of_another_model_are_unjudged(split: Split) -> None:
    posteriors = {
        "other": LinearPosterior(split, spread=0.4, losses=losses(), model="another"),
        "NUTS": chains(split),
    }
    comparison = compare(posteriors, split, reference="NUTS")
    assert comparison.answer.status["other"] == UNJUDGED
    assert said(comparison)[UNJUDGED].startswith("other (another model than that of NUTS")
    assert AGREES not in said(comparison)
    assert "Its spread was not judged" in said(comparison)[CHEAPER]
    assert "A reference for other, of another model than NUTS" in said(comparison)[CHANGE]


@pytest.mark.slow("a second or more")
def test_only_a_method_without_any_verdict_has_no_fault(split: Split) -> None:
    """Not one that is wider than the reference, nor one without moments to compare."""
    posteriors = {
        "wide": LinearPosterior(split, spread=2.0, losses=losses(seed=1)),
        "tails": LinearPosterior(split, "AutoRadial", losses=losses(), moments="none"),
        "NUTS": chains(split),
    }
    comparison = compare(posteriors, split, reference="NUTS")
    status = comparison.answer.status
    assert (status["wide"], status["tails"]) == (DIFFERS, UNJUDGED)
    assert AGREES not in said(comparison)
    assert said(comparison)[DIFFERS] == "wide (less sure of the function than the reference)."
    assert "tails (no mean or sd to hold against that of NUTS)" in said(comparison)[UNJUDGED]


def test_few_draws_judge_no_spread(split: Split) -> None:
    posteriors = {
        "few": LinearPosterior(split, spread=0.1, losses=losses()),
        "NUTS": chains(split),
    }
    comparison = compare(posteriors, split, reference="NUTS", num_samples=12)
    assert comparison.answer.status["few"] == UNJUDGED
    why = "too few draws for an error of its spread"
    assert said(comparison)[UNJUDGED] == f"few ({why})."
    assert f"Its spread was not judged: {why}." in said(comparison)[CHEAPER]


def test_a_fit_of_unknown_time_is_not_said_to_be_the_fastest(split: Split) -> None:
    posteriors = {
        "read": LinearPosterior(split, losses=losses(), wall_time=math.nan),
        "far": LinearPosterior(split, losses=losses(), shift=9.0, wall_time=3.0),
    }
    comparison = compare(posteriors, split)
    assert said(comparison)[USE].startswith("read")
    assert CHEAPER not in said(comparison)


def test_a_reference_that_is_behind_is_not_said_to_predict_best(split: Split) -> None:
    posteriors = {
        "better": LinearPosterior(split, losses=losses(), model="another"),
        "NUTS": chains(split, shift=12.0),
    }
    comparison = compare(posteriors, split, reference="NUTS")
    assert comparison.ranking[1].is_behind
    assert comparison.answer.headline.startswith("Trust NUTS for the posterior of its model;")
    assert said(comparison)[PREDICT].startswith("better, the highest held-out log score")
    assert "behind another method" in said(comparison)[USE]


def test_a_reference_whose_intervals_are_off_points_at_the_model() -> None:
    off = regression_split()  # of more noise than the model has
    comparison = compare({"NUTS": chains(off)}, off, reference="NUTS")
    assert comparison.answer.headline == (
        "Trust NUTS for the posterior of its model; but intervals of y too narrow or too wide."
    )
    assert "But: intervals of y too narrow or too wide." in said(comparison)[USE]


def test_ties_are_explained_by_the_share_of_the_variance(judged: Comparison) -> None:
    text, table = said(judged)[TIE], judged.table
    entry = judged.evaluations["good"].held_out
    f = entry.function_draws[..., 0]  # noise of 0.5 in standardised units
    share = f.var(0) / (f.var(0) + 0.25)
    assert_allclose(entry.epistemic_share, share, rtol=1e-6)
    assert_allclose(table.loc["good", "epistemic_share"], share.mean(), rtol=1e-6)
    assert table.loc["MAP", "epistemic_share"] < 1e-20
    assert "(narrow) to" in text
    of_nuts = judged.evaluations["NUTS"].held_out.epistemic_share
    half, twice = (cost_of_wrong_spread(of_nuts, ratio) for ratio in (0.5, 2.0))
    costs = r"\. Halving the epistemic sd of NUTS would cost (\S+) nats a row, doubling it (\S+) \("
    words = re.search(costs, text)
    assert words is not None
    assert_allclose([float(word) for word in words.groups()], [half, twice], rtol=0.05)
    errors = [p.difference.standard_error for p in judged.ranking[1:] if not p.is_behind]
    assert f"{np.median(errors):.2g}" in text


def test_a_score_is_said_to_hardly_see_what_costs_less_than_its_error(split: Split) -> None:
    comparison = compare(
        {
            "a": LinearPosterior(split, losses=losses(), spread=0.05),
            "b": LinearPosterior(split, losses=losses(), spread=0.05, shift=0.5),
        },
        split,
    )
    (error,) = (place.difference.standard_error for place in comparison.ranking[1:])
    share = comparison.evaluations["a"].held_out.epistemic_share
    assert cost_of_wrong_spread(share, 2.0) < error / 2
    assert " The score hardly sees that uncertainty: halving the " in said(comparison)[TIE]


@pytest.mark.slow("a second or more")
def test_shares_of_classes_add_over_the_classes(classes: Comparison) -> None:
    entry = classes.evaluations["wide"].held_out
    f = entry.function_draws
    p = np.exp(f - f.max(-1, keepdims=True))
    p /= p.sum(-1, keepdims=True)
    assert entry.probs is not None
    expected = p.var(0).sum(-1) / (entry.probs * (1 - entry.probs)).sum(-1)
    assert_allclose(entry.epistemic_share, expected, rtol=1e-5)
    assert classes.evaluations["MAP"].held_out.epistemic_share.max() < 1e-6
    assert "Gaussian" not in said(classes).get(TIE, "")


@pytest.mark.parametrize("ratio", [0.5, 2.0, 1.0])
def test_the_cost_of_a_wrong_spread_is_a_divergence_of_gaussians(ratio: float) -> None:
    share = 0.3
    right, wrong = stats.norm(0, 1), stats.norm(0, np.sqrt(1 + share * (ratio**2 - 1)))
    expected, _ = integrate.quad(
        lambda y: right.pdf(y) * (right.logpdf(y) - wrong.logpdf(y)), -12, 12, epsabs=1e-12
    )
    assert_allclose(cost_of_wrong_spread(np.array([share]), ratio), expected, atol=1e-10)
    mixed = cost_of_wrong_spread(np.array([share, 0.0]), ratio)
    assert_allclose(mixed, expected / 2, atol=1e-10)  # a row without a spread loses nothing
    assert cost_of_wrong_spread(np.ones(1), 0.0) == np.inf


@pytest.mark.parametrize("num_draws", [100, 4_000])
def test_more_rows_are_asked_for_where_they_would_show_a_difference(
    split: Split, num_draws: int
) -> None:
    posteriors = {
        "a": LinearPosterior(split, losses=losses(), spread=0.9),
        "b": LinearPosterior(split, losses=losses(), shift=1.5),
    }
    comparison = compare(posteriors, split, num_samples=num_draws)
    gap = comparison.ranking[1].difference
    reveal = r"about ([\d,]+), in place of 60, would reveal a difference of 0.01 nats"
    words = re.search(reveal, said(comparison)[CHANGE])
    if gap.draws_error > 0.01 / 4:  # more rows do not help
        assert words is None
        assert "these are too few to reveal a difference" in said(comparison)[CHANGE]
    else:
        assert words is not None
        rows = int(words[1].replace(",", ""))
        error = math.hypot(gap.points_error * math.sqrt(60 / rows), gap.draws_error)
        assert 0.01 / error == pytest.approx(4, rel=0.05)


def test_the_document_holds_what_the_page_says(judged: Comparison, tmp_path: Path) -> None:
    document = json.loads(json.dumps(verdict_document(judged)))
    assert document["headline"] == judged.answer.headline
    assert [part["text"] for part in document["answer"]] == [
        part.text for part in judged.answer.statements
    ]
    assert [one["text"] for one in document["verdicts"]] == judged.verdicts
    assert document["status"]["NUTS"] == USE
    assert document["data"]["held_out_rows"] == len(judged.split.test)
