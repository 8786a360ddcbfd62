"""Verdicts: what the numbers carry in plain words, each with its threshold and the next step.

All thresholds of the report stand here or are imported here. A rule speaks only where its number
is beyond its own noise; it says nothing where it cannot tell.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

from pyro_bnn.diagnostics.calibration import BAND_PROBABILITY
from pyro_bnn.diagnostics.convergence import RHAT_THRESHOLD
from pyro_bnn.diagnostics.khat import KHAT_THRESHOLD
from pyro_bnn.diagnostics.ranking import TIED_STANDARD_ERRORS, Ranked
from pyro_bnn.report.containment import contains
from pyro_bnn.report.evaluate import Evaluation
from pyro_bnn.report.findings import Verdict
from pyro_bnn.report.fit_checks import objective_of
from pyro_bnn.report.model_verdicts import model_verdicts
from pyro_bnn.report.numbers import number, percent, with_error
from pyro_bnn.report.shared_models import same_evidence, same_model

TREND_STANDARD_ERRORS = 2.0
TREND_GAIN = 1.0  # nats: a smaller gain changes no posterior that is worth reporting
ELBO_GAP = 1.0  # nats, between a guide and one that it contains
SD_RATIO_THRESHOLD = 0.8
SD_RATIO_UPPER = 1.25  # its inverse
SD_RATIO_STANDARD_ERRORS = 2.0

EXACT = "Exact"  # engine that gives the posterior itself


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
        rhat_verdict,
        divergence_verdict,
        trend_verdict,
    ]
    for rule in rules:
        for entry in evaluations:
            found.extend(rule(entry))
    found.extend(containment_verdicts(evaluations))
    found.extend(khat_verdicts(evaluations))
    found.extend(coverage_verdicts(evaluations, judge))
    if judge is not None:
        for entry in evaluations:
            found.extend(sd_ratio_verdict(entry, judge))
        found.extend(too_wide_verdicts(evaluations, judge))
        found.extend(reference_verdict(judge))
    return found


def score_verdicts(ranking: Sequence[Ranked]) -> Iterator[Verdict]:
    """Who is best, who is tied with it, who is behind."""
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
    tied = [place for place in others if place.difference.tied]
    behind = [place for place in others if not place.difference.tied]
    if tied:
        yield Verdict(
            f"Tied with {best.name} (paired difference under {TIED_STANDARD_ERRORS:g} standard "
            f"errors over test rows and draws): "
            f"{', '.join(f'{place.name} ({_gap(place)})' for place in tied)}. {_to_separate(tied)}",
            "tied",
            is_warning=False,
        )
    if behind:
        yield Verdict(
            f"Behind {best.name} by at least {TIED_STANDARD_ERRORS:g} standard errors over test "
            "rows and draws: "
            f"{', '.join(f'{place.name} ({_gap(place)})' for place in behind)} nats per test row.",
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


def rhat_verdict(entry: Evaluation) -> Iterator[Verdict]:
    """Chains that disagree about the function."""
    convergence = entry.checks.convergence
    if convergence is not None and convergence.worst_rhat > RHAT_THRESHOLD:
        yield Verdict(
            f"{entry.name}: function-space R-hat {number(convergence.worst_rhat)} at the worst "
            f"test row, threshold {RHAT_THRESHOLD} (median {number(convergence.median_rhat)}): the "
            "chains have not settled on one function; raise warmup_steps and num_samples.",
            "rhat",
            methods=(entry.name,),
        )


def divergence_verdict(entry: Evaluation) -> Iterator[Verdict]:
    """Trajectories that diverged."""
    count = entry.checks.num_divergent
    if count:
        stored = entry.posterior.num_stored_draws
        yield Verdict(
            f"{entry.name}: {count} of {stored} draws diverged, threshold 0: parts of the "
            "posterior may be missed; raise target_accept, or use a non-centred prior.",
            "divergences",
            methods=(entry.name,),
        )


def trend_verdict(entry: Evaluation) -> Iterator[Verdict]:
    """An objective that was still improving when the run ended."""
    trend = entry.checks.trend
    if trend is None or trend.gain < TREND_GAIN:
        return
    if trend.gain <= TREND_STANDARD_ERRORS * trend.standard_error:
        return
    yield Verdict(
        f"{entry.name}: not converged, its smoothed {objective_of(entry.posterior)} still rose by "
        f"{with_error(trend.gain, trend.standard_error)} nats over the last {trend.num_steps:,} "
        f"steps, threshold {TREND_STANDARD_ERRORS:g} standard errors and {TREND_GAIN:g} nat; "
        "raise num_steps.",
        "trend",
        methods=(entry.name,),
    )


def coverage_verdicts(
    evaluations: Sequence[Evaluation], reference: Evaluation | None
) -> Iterator[Verdict]:
    """Intervals that hold too few or too many observations, methods with the same fault together.

    Where a reference that has converged shares the fault, the model causes it and not the guides.
    """
    for too_few in (True, False):
        group, parts, result = [], [], None
        for entry in evaluations:
            own = entry.held_out.coverage
            if own is None or own.consistent or (own.observed < own.low) is not too_few:
                continue
            group.append(entry)
            parts.append(f"{entry.name} {percent(own.observed)}")
            result = own
        if result is None:
            continue
        if reference in group and _has_converged(reference):
            assert reference is not None
            shared = all(same_model(entry.posterior, reference.posterior) for entry in group)
            step = (
                f"The reference is among them, so look at {'the' if shared else 'its'} model "
                "(likelihood, noise scale, prior) before the guides"
            )
        elif too_few:
            step = "Try a richer posterior or another likelihood"
        else:
            step = "Look at the noise scale and its prior"
        yield Verdict(
            f"{percent(result.level, 0)} intervals are too {'narrow' if too_few else 'wide'}: of "
            f"{result.num_points:,} test targets they cover {', '.join(parts)}, where chance "
            f"allows {percent(result.low)} to {percent(result.high)} "
            f"({percent(BAND_PROBABILITY, 0)} binomial band). {step}.",
            "coverage",
            methods=tuple(entry.name for entry in group),
        )


def khat_verdicts(evaluations: Sequence[Evaluation]) -> Iterator[Verdict]:
    """Approximations that importance sampling cannot correct, together."""
    far = [entry for entry in evaluations if entry.checks.khat >= KHAT_THRESHOLD]
    if far:
        parts = ", ".join(f"{entry.name} {number(entry.checks.khat)}" for entry in far)
        yield Verdict(
            f"k-hat at or above {KHAT_THRESHOLD}: {parts}. Far from the joint posterior over "
            "weights in some direction, so no importance correction and no PSIS-LOO; judge by "
            "held-out scores, or try a richer guide.",
            "khat",
            methods=tuple(entry.name for entry in far),
        )


def containment_verdicts(evaluations: Sequence[Evaluation]) -> Iterator[Verdict]:
    """Guides with a lower ELBO than one whose family lies within theirs, on the same evidence.

    The best guide of the larger family is at least as good, so the larger one has not been found.
    Of several the one with the highest ELBO is named.
    """
    for entry in evaluations:
        gaps = []
        for other in evaluations:
            if not contains(entry.posterior, other.posterior):
                continue
            if not same_evidence(other.posterior, entry.posterior):
                continue
            gap = other.checks.elbo - entry.checks.elbo
            error = math.hypot(other.checks.elbo_error, entry.checks.elbo_error)
            if gap >= ELBO_GAP and gap > TREND_STANDARD_ERRORS * error:
                gaps.append((gap, error, other.name))
        if gaps:
            gap, error, best = max(gaps)
            yield Verdict(
                f"{entry.name}: not converged, its ELBO is {with_error(gap, error)} nats below "
                f"that of {best}, which it contains as a special case; threshold "
                f"{TREND_STANDARD_ERRORS:g} standard errors and {ELBO_GAP:g} nat; raise "
                "num_steps, or lower learning_rate.",
                "containment",
                methods=(entry.name,),
            )


def sd_ratio_verdict(entry: Evaluation, reference: Evaluation) -> Iterator[Verdict]:
    """Posteriors that are surer of the function than a converged reference of their model."""
    ratio = entry.sd_ratio
    if ratio is None or not _can_judge(reference, entry):
        return
    if not ratio.value + SD_RATIO_STANDARD_ERRORS * ratio.standard_error < SD_RATIO_THRESHOLD:
        return  # also where the error is unknown
    if entry.held_out.is_point:
        yield Verdict(
            f"{entry.name} is one point: its epistemic sd is 0, below the threshold of "
            f"{SD_RATIO_THRESHOLD} times that of {reference.name}; its intervals hold noise only, "
            "use a guide with spread.",
            "sd ratio",
            methods=(entry.name,),
        )
        return
    value = with_error(ratio.value, ratio.standard_error)
    yield Verdict(
        f"{entry.name}: epistemic sd {value} times that of {reference.name}, threshold "
        f"{SD_RATIO_THRESHOLD}: it is too sure of its function; try a guide with correlations.",
        "sd ratio",
        methods=(entry.name,),
    )


def too_wide_verdicts(
    evaluations: Sequence[Evaluation], reference: Evaluation
) -> Iterator[Verdict]:
    """Posteriors that are less sure of the function than a converged reference of their model.

    Independent weights do this where there are data: their errors add up where those of the exact
    posterior cancel.
    """
    wide = [
        (entry.name, ratio)
        for entry in evaluations
        if (ratio := entry.sd_ratio) is not None
        and _can_judge(reference, entry)
        and ratio.value - SD_RATIO_STANDARD_ERRORS * ratio.standard_error > SD_RATIO_UPPER
    ]
    if wide:
        parts = ", ".join(
            f"{name} {with_error(ratio.value, ratio.standard_error)}" for name, ratio in wide
        )
        yield Verdict(
            f"Epistemic sd above {SD_RATIO_UPPER} times that of {reference.name}: {parts}. Less "
            "sure of the function at these rows than the posterior is; trust the reference for "
            "epistemic uncertainty, or raise num_steps for a guide with correlations.",
            "too wide",
            methods=tuple(name for name, _ in wide),
        )


def reference_verdict(reference: Evaluation) -> Iterator[Verdict]:
    """A reference that cannot judge others."""
    if _has_converged(reference):
        return
    convergence = reference.checks.convergence
    if convergence is None:
        why = "has no R-hat (it is not a Markov chain)"
    else:
        why = f"has R-hat {number(convergence.worst_rhat) or 'undefined'} > {RHAT_THRESHOLD}"
    yield Verdict(
        f"The reference {reference.name} {why}: distances and sd ratios to it are shown but not "
        "judged; use longer NUTS chains as the reference.",
        "reference",
        methods=(reference.name,),
    )


def _has_converged(entry: Evaluation | None) -> bool:
    """Whether a method is the exact posterior, or a sampler whose chains agree on the function."""
    if entry is not None and entry.posterior.engine == EXACT:
        return True
    convergence = None if entry is None else entry.checks.convergence
    return convergence is not None and convergence.converged


def _can_judge(reference: Evaluation, entry: Evaluation) -> bool:
    """Whether a difference to the reference is the guide's: it has converged, on the same model."""
    return _has_converged(reference) and same_evidence(reference.posterior, entry.posterior)


def _gap(place: Ranked) -> str:
    return with_error(place.difference.mean, place.difference.standard_error)
