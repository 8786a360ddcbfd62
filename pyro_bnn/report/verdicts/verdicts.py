"""Verdicts: what the numbers carry in plain words, each with its threshold and the next step.

All thresholds of the report stand here or are imported here. A rule speaks only where its number
is beyond its own noise; it says nothing where it cannot tell.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

from pyro_bnn.diagnostics.max_t import FAMILY_WISE_ERROR
from pyro_bnn.diagnostics.ranking import Ranked
from pyro_bnn.diagnostics.trend import MIN_GAIN, STANDARD_ERRORS
from pyro_bnn.plotting.numbers import number, percent, with_error
from pyro_bnn.report.evaluation.evaluate import Evaluation
from pyro_bnn.report.evaluation.fit_checks import objective_of
from pyro_bnn.report.evaluation.shared_models import same_evidence
from pyro_bnn.report.verdicts.calibration_verdicts import calibration_verdicts
from pyro_bnn.report.verdicts.chain_verdicts import chain_verdicts, is_judge, reference_verdict
from pyro_bnn.report.verdicts.containment import MIN_ELBO_GAP, contains, is_below, limit_of
from pyro_bnn.report.verdicts.model_verdicts import model_verdicts
from pyro_bnn.report.verdicts.spread_verdicts import spread_verdicts
from pyro_bnn.report.verdicts.verdict import Verdict


def verdicts(
    evaluations: Sequence[Evaluation], ranking: Sequence[Ranked], reference: str | None
) -> list[Verdict]:
    """All verdicts on a comparison: the ranking first, then what limits each method.

    Args:
        evaluations: One a method.
        ranking: By held-out log score, best first.
        reference: Name of the reference, or None.
    """
    found = list(score_verdicts(ranking))
    judge = next((entry for entry in evaluations if entry.name == reference), None)
    found.extend(model_verdicts(evaluations, judge))
    rules: list[Callable[[Evaluation], Iterator[Verdict]]] = [
        chain_verdicts,
        trend_verdict,
    ]
    for rule in rules:
        for entry in evaluations:
            found.extend(rule(entry))
    found.extend(unchecked_verdict(evaluations))
    found.extend(containment_verdicts(evaluations))
    found.extend(khat_verdicts(evaluations))
    found.extend(calibration_verdicts(evaluations, judge if is_judge(judge) else None))
    if judge is not None:
        judged = [entry for entry in evaluations if _can_judge(judge, entry)]
        found.extend(spread_verdicts(judged, judge))
        found.extend(reference_verdict(judge))
    return found


def score_verdicts(ranking: Sequence[Ranked]) -> Iterator[Verdict]:
    """Who has the highest score, who is tied with it, who is behind some other method."""
    best, *others = ranking
    score = with_error(best.score, best.standard_error)
    if not others:
        yield Verdict(
            f"{best.name}: held-out log score {score} nats per test row.",
            "scores",
            is_warning=False,
        )
        return
    yield Verdict(
        f"{best.name} has the highest held-out log score, {score} nats per test row.",
        "scores",
        is_warning=False,
    )
    tied = [place for place in others if not place.is_behind]
    behind = [place for place in others if place.is_behind]
    if tied:
        yield Verdict(
            f"Tied with {best.name}, no method is shown to be better: "
            f"{', '.join(f'{place.name} ({_gap(place)})' for place in tied)}. {_to_separate(tied)}",
            "tied",
            is_warning=False,
        )
    if behind:
        gaps = ", ".join(
            f"{place.name} ({_gap(place)}, p {number(place.p_value, 2)})" for place in behind
        )
        yield Verdict(
            f"Behind, with the difference to {best.name}: {gaps} nats per test row. For each, "
            "some other method is better by a step-down max-t test over all pairs of the "
            f"{len(ranking)} methods (test rows resampled, with the errors of draws); it keeps the "
            "chance of calling any method behind of which none is better at "
            f"{percent(FAMILY_WISE_ERROR, 0)} or below, for other test rows and draws, not for "
            "other splits or fits.",
            "scores",
            is_warning=False,
        )


def _to_separate(tied: Sequence[Ranked]) -> str:
    """What would tell ties apart: more draws where these are most of an error, else more rows."""
    of_draws = [p.name for p in tied if p.difference.draws_error > p.difference.points_error]
    rows = "These test rows do not separate them; compare on more rows or other splits"
    if not of_draws:
        return f"{rows}."
    draws = f"most of the error is of the draws ({', '.join(of_draws)}): raise num_samples"
    if len(of_draws) < len(tied):
        return f"{rows}; {draws}."
    return f"These draws do not separate them; {draws}."


def trend_verdict(entry: Evaluation) -> Iterator[Verdict]:
    """An objective that was still improving when the run ended."""
    trend = entry.checks.trend
    if trend is not None and trend.is_rising:
        yield Verdict(
            f"{entry.name}: not converged, its smoothed {objective_of(entry.posterior)} still rose "
            f"by {with_error(trend.gain, trend.standard_error)} nats over the last "
            f"{trend.num_steps:,} steps, threshold {STANDARD_ERRORS:g} standard errors and "
            f"{MIN_GAIN:g} nats; raise num_steps.",
            "trend",
            methods=(entry.name,),
        )


def unchecked_verdict(evaluations: Sequence[Evaluation]) -> Iterator[Verdict]:
    """Fits of which it is not known whether they converged, together."""
    found = [entry for entry in evaluations if entry.checks.unchecked]
    if found:
        parts = "; ".join(f"{entry.name}, {entry.checks.unchecked}" for entry in found)
        yield Verdict(
            f"Not judged, which is not passed: whether these fits converged ({parts}). Raise "
            "num_steps, or compare with a longer fit of the same guide.",
            "unchecked",
            methods=tuple(entry.name for entry in found),
        )


def khat_verdicts(evaluations: Sequence[Evaluation]) -> Iterator[Verdict]:
    """Approximations that importance sampling cannot correct, together, in the order given."""
    far = [entry for entry in evaluations if entry.checks.khat >= entry.checks.khat_limit]
    if far:
        parts = [
            f"{entry.name} {with_error(entry.checks.khat, entry.checks.khat_error)}"
            for entry in far
            if entry.checks.khat <= 1
        ]
        beyond = [entry.name for entry in far if entry.checks.khat > 1]
        if beyond:
            parts.append(f"{', '.join(beyond)} above 1, where values order nothing")
        limit = number(far[0].checks.khat_limit, 2)
        yield Verdict(
            f"k-hat at or above {limit}, its limit for {far[0].num_draws:,} draws: "
            f"{'; '.join(parts)}. Draws that cannot be reweighted to the posterior around them, so "
            "no PSIS-LOO; judge by held-out scores, or try a richer guide. Modes that a guide "
            "lacks do not show in it, and copies of a mode change nothing.",
            "khat",
            methods=tuple(entry.name for entry in far),
        )


def containment_verdicts(evaluations: Sequence[Evaluation]) -> Iterator[Verdict]:
    """Guides with a lower ELBO than one of their family or within it, on the same evidence.

    The best guide of the family is at least as good, so it has not been found: the fit stopped
    early, or ended at a worse optimum. Of several the one with the highest ELBO is named.
    """
    pairs = [
        (entry, other)
        for entry in evaluations
        for other in evaluations
        if entry is not other
        and not math.isnan(entry.checks.elbo + other.checks.elbo)
        and contains(entry.posterior, other.posterior)
        and same_evidence(other.posterior, entry.posterior)
    ]
    for entry in evaluations:
        own = entry.checks
        better = [
            other
            for each, other in pairs
            if each is entry
            and is_below(
                own.elbo, own.elbo_error, other.checks.elbo, other.checks.elbo_error, len(pairs)
            )
        ]
        if better:
            best = max(better, key=lambda other: other.checks.elbo)
            gap = best.checks.elbo - own.elbo
            error = math.hypot(best.checks.elbo_error, own.elbo_error)
            if contains(best.posterior, entry.posterior):
                of, step = "another fit of its family", f"take {best.name}, raise num_steps"
            else:
                of, step = "which it contains as a special case", "raise num_steps"
            yield Verdict(
                f"{entry.name}: not converged, its ELBO is {with_error(gap, error)} nats below "
                f"that of {best.name}, {of}; threshold {number(limit_of(len(pairs)), 2)} standard "
                f"errors and {MIN_ELBO_GAP:g} nat; {step}, or lower learning_rate.",
                "containment",
                methods=(entry.name,),
            )


def _can_judge(reference: Evaluation, entry: Evaluation) -> bool:
    """Whether a difference to the reference is the guide's: it can judge, on the same model."""
    return is_judge(reference) and same_evidence(reference.posterior, entry.posterior)


def _gap(place: Ranked) -> str:
    return with_error(place.difference.mean, place.difference.standard_error)
