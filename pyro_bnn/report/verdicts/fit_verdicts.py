"""Rules on fits: did the run end too early, did a guide do worse than one it contains, k-hat."""

from __future__ import annotations

import math
from collections.abc import Iterator

from pyro_bnn.plotting.numbers import number, with_error
from pyro_bnn.posterior.doubling import MIN_GAIN, STANDARD_ERRORS
from pyro_bnn.report.evaluation.evaluate import Evaluation
from pyro_bnn.report.evaluation.fit_checks import objective_of, probably_converged
from pyro_bnn.report.evaluation.shared_models import same_evidence
from pyro_bnn.report.verdicts.advice import advice, advised, sentence
from pyro_bnn.report.verdicts.containment import MIN_ELBO_GAP, contains, is_below, limit_of
from pyro_bnn.report.verdicts.verdict import REFIT, UNCHECKED, Judged, Said, Verdict, VerdictRule

LONGER = "run it longer, or with another step size"
SMALLER = "lower learning_rate"
COMPARE = "Run it longer, or compare with a longer run"
RICHER = "judge by held-out scores, or try a richer family"


def longer(entry: Evaluation) -> str:
    """What lengthens a fit that still rose, with the number of steps and the seconds."""
    words, doubling = advice(entry.fit.nature, "unfinished"), entry.checks.doubling
    if doubling is None:
        return words
    if doubling.is_falling:
        return SMALLER
    seconds = entry.fit.wall_time * 2 * doubling.num_steps / max(len(entry.checks.losses), 1)
    return f"{words}, to {2 * doubling.num_steps:,} (about {number(seconds, 2)} s)"


@VerdictRule("trend", "Objective still rising at the end", "run it longer",
             short="objective not settled", against=REFIT, advise=longer).of_each  # fmt: skip
def trend(entry: Evaluation) -> str | None:
    """An objective that still rose, or fell, when the run ended."""
    doubling = entry.checks.doubling
    if doubling is not None and doubling.is_unfinished:
        turned = "gained" if doubling.is_rising else "lost"
        return (
            f"not converged, the second half of its {doubling.num_steps:,} steps {turned} "
            f"{with_error(abs(doubling.gain), doubling.error)} nats of "
            f"{objective_of(entry.fit)}, threshold {number(doubling.limit, 2)}"
        )
    found = entry.checks.trend
    if found is None or not found.is_rising:
        return None
    return (
        f"not converged, its smoothed {objective_of(entry.fit)} still rose by "
        f"{with_error(found.gain, found.standard_error)} nats over the last {found.num_steps:,} "
        f"steps, threshold {STANDARD_ERRORS:g} standard errors and {MIN_GAIN:g} nats"
    )


def ended(entry: Evaluation) -> str:
    """What is known of the end of a fit that no rule speaks of."""
    doubling = entry.checks.doubling
    if doubling is not None:
        gained = with_error(doubling.gain, doubling.error)
        return f"converged: another doubling of its steps would gain at most about {gained} nats"
    found = entry.checks.trend
    if found is None:
        return "it ended by itself"
    return probably_converged(found)


def converged(judged: Judged) -> Iterator[Verdict]:
    """Fits whose last doubling of steps gained nothing that counts, together."""
    found = [e for e in judged.entries if e.checks.doubling and e.checks.doubling.has_converged]
    if not found:
        return
    parts = [
        f"{e.name} {with_error(e.checks.doubling.gain, e.checks.doubling.error)} in "
        f"{e.checks.doubling.num_steps:,} steps"
        for e in found
        if e.checks.doubling is not None
    ]
    yield Verdict(
        "Converged; another doubling of the steps would gain at most about as many nats as the "
        f"last one did: {', '.join(parts)}.",
        "converged",
        is_warning=False,
        methods=tuple(e.name for e in found),
    )


@VerdictRule("unchecked", "It is not known whether the fit converged", COMPARE,
             short="convergence not judged", against=UNCHECKED,
             fault="unfinished").of_all  # fmt: skip
def unchecked(judged: Judged) -> Iterator[Said]:
    """Fits of which it is not known whether they converged, together."""
    found = [entry for entry in judged.entries if entry.checks.unchecked]
    if found:
        parts = "; ".join(f"{entry.name}, {entry.checks.unchecked}" for entry in found)
        yield (
            f"It is not known whether these fits converged ({parts}). "
            f"{sentence(advised(found, 'unfinished'))}, or compare with a longer run.",
            found,
        )


@VerdictRule("containment",
             "ELBO below that of another fit of its family, or of a guide it contains", LONGER,
             short="ELBO below that of a fit that it could equal", against=REFIT,
             fault="optimum").of_all  # fmt: skip
def containment(judged: Judged) -> Iterator[Said]:
    """Guides with a lower ELBO than one of their family or within it, on the same evidence.

    The best guide of the family is at least as good, so it has not been found: the fit stopped
    early, or ended at a worse optimum. Of several the one with the highest ELBO is named.
    """
    entries = judged.entries
    pairs = [
        (entry, other)
        for entry in entries
        for other in entries
        if entry is not other
        and not math.isnan(entry.checks.elbo + other.checks.elbo)
        and contains(entry.fit, other.fit)
        and same_evidence(other.fit, entry.fit)
    ]
    for entry in entries:
        own = entry.checks
        better = [
            other
            for each, other in pairs
            if each is entry
            and is_below(
                own.elbo, own.elbo_error, other.checks.elbo, other.checks.elbo_error, len(pairs)
            )
        ]
        if not better:
            continue
        best = max(better, key=lambda other: other.checks.elbo)
        gap = best.checks.elbo - own.elbo
        error = math.hypot(best.checks.elbo_error, own.elbo_error)
        of, step = "which it contains as a special case", advised([entry], "optimum")
        if contains(best.fit, entry.fit):
            of, step = "another fit of its family", f"take {best.name}, {step}"
        yield (
            f"{entry.name}: not converged, its ELBO is {with_error(gap, error)} nats below that of "
            f"{best.name}, {of}; threshold {number(limit_of(len(pairs)), 2)} standard errors and "
            f"{MIN_ELBO_GAP:g} nat; {step}.",
            [entry],
        )


@VerdictRule("khat", "k-hat at or above its limit", RICHER, fault="poor family").of_all  # fmt: skip
def khat(judged: Judged) -> Iterator[Said]:
    """Approximations that importance sampling cannot correct, together, in the order given."""
    far = [entry for entry in judged.entries if entry.checks.khat >= entry.checks.khat_limit]
    if not far:
        return
    parts = [
        f"{entry.name} {with_error(entry.checks.khat, entry.checks.khat_error)}"
        for entry in far
        if entry.checks.khat <= 1
    ]
    if beyond := [entry.name for entry in far if entry.checks.khat > 1]:
        parts.append(f"{', '.join(beyond)} above 1, where a larger value need not be worse")
    yield (
        f"k-hat at or above {number(far[0].checks.khat_limit, 2)}, its limit for "
        f"{far[0].num_draws:,} draws: {'; '.join(parts)}. Their draws cannot be reweighted to the "
        f"posterior around them, so there is no PSIS-LOO; judge by held-out scores, or "
        f"{advised(far, 'poor family')}. k-hat does not see modes that a guide lacks, and copies "
        "of a mode do not change it.",
        far,
    )
