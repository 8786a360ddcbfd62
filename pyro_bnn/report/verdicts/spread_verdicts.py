"""Rules on the function against a reference: its mean, spread and shape, on and off the data.

Each speaks of a method where a tenth of the rows or more are beyond its threshold, each by more
than 3 standard errors of the draws; of the test rows and of the probes off the data apart, because
independent weights look too wide at the first and are too narrow in gaps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
from jaxtyping import Bool

from pyro_bnn.diagnostics.row_by_row import RowByRow
from pyro_bnn.plotting.numbers import number, with_error
from pyro_bnn.report.evaluation.against import AgainstReference
from pyro_bnn.report.evaluation.evaluate import Evaluation
from pyro_bnn.report.evaluation.fit_checks import is_at_mode
from pyro_bnn.report.verdicts.advice import OF_CHAINS, advice, advised, sentence
from pyro_bnn.report.verdicts.verdict import FUNCTION, Judged, Said, VerdictRule

SHARE = 0.1  # of rows, from which a fault is one of the method
MEAN_SHIFT_THRESHOLD = 0.5  # sds of the reference: its 95 % interval then holds 92 %
SD_RATIO_THRESHOLD = 0.8
SD_RATIO_UPPER = 1.25  # its inverse
STANDARD_ERRORS = 3.0  # of each row: rows share their draws, and pass together
FLOORS = 2.0  # times its floor that a distance is beyond doubt
SHAPE_THRESHOLD = 0.35  # sds of the reference: two modes of its sd are 0.48 from a Gaussian
ENOUGH = "a tenth of the rows or more, each by more than 3 standard errors of the draws"

AT_ENOUGH = "that of the reference at a tenth of the rows or more"
ELSEWHERE = "Run it longer or start elsewhere, then try a richer family"
TRUST = "Trust the reference for epistemic uncertainty"
MARGINALS = "Compare the marginals themselves: modes or tails may be missing"


def is_shifted(at: AgainstReference) -> bool:
    """Whether the mean is off at a tenth of the rows or more, each beyond its error."""
    return _are_enough(shifted_rows(at))


def is_narrow(at: AgainstReference) -> bool:
    """Whether the spread is too small at a tenth of the rows or more, each beyond its error."""
    return _are_enough(narrow_rows(at))


def is_wide(at: AgainstReference) -> bool:
    """Whether the spread is too large at a tenth of the rows or more, each beyond its error."""
    return _are_enough(wide_rows(at))


def shifted_rows(at: AgainstReference) -> Bool[np.ndarray, " M"]:
    """Where the mean is off, beyond error."""
    shift = at.mean_shift
    return np.asarray(shift.values - STANDARD_ERRORS * shift.errors > MEAN_SHIFT_THRESHOLD)


def narrow_rows(at: AgainstReference) -> Bool[np.ndarray, " M"]:
    """Where the spread is too small, beyond error."""
    ratio = at.sd_ratio
    return np.asarray(ratio.values + STANDARD_ERRORS * ratio.errors < SD_RATIO_THRESHOLD)


def wide_rows(at: AgainstReference) -> Bool[np.ndarray, " M"]:
    """Where the spread is too large, beyond error."""
    ratio = at.sd_ratio
    return np.asarray(ratio.values - STANDARD_ERRORS * ratio.errors > SD_RATIO_UPPER)


def _are_enough(rows: Bool[np.ndarray, " M"]) -> bool:
    return bool(rows.size and rows.mean() >= SHARE)


def is_far(at: AgainstReference) -> bool:
    """Whether the distance is beyond its floor where mean and spread have no fault."""
    value, floor = at.distance.value, at.distance.floor
    if is_shifted(at) or is_narrow(at) or is_wide(at) or value <= FLOORS * floor:
        return False
    return value - floor > SHAPE_THRESHOLD * at.reference_sd


def _shift(at: AgainstReference, judge: str) -> str:
    return (
        f"{_where(at, shifted_rows(at))} (median {median_of(at.mean_shift)}; distance "
        f"{number(at.distance.value)}, between halves of {judge} {number(at.distance.floor)})"
    )


def _narrow(at: AgainstReference, _: str) -> str:
    return f"{_where(at, narrow_rows(at))} (median ratio {median_of(at.sd_ratio)})"


def _wide(at: AgainstReference, _: str) -> str:
    return f"{_where(at, wide_rows(at))} (median ratio {median_of(at.sd_ratio)})"


def _far(at: AgainstReference, judge: str) -> str:
    return (
        f"at the {at.where} (distance {number(at.distance.value)}, between halves of {judge} "
        f"{number(at.distance.floor)})"
    )


def _where(at: AgainstReference, beyond: Bool[np.ndarray, " M"]) -> str:
    """How many rows are beyond, and of probes how many of each kind."""
    text = f"at {int(beyond.sum()):,} of {len(beyond):,} {at.where}"
    if len(beyond) != sum(at.counts.values()):  # of one kind, or some without spread
        return text
    ends = np.cumsum(list(at.counts.values()))
    kinds = zip(at.counts.items(), np.split(beyond, ends[:-1]), strict=True)
    parts = [f"{int(own.sum())} of {count} {kind}" for (kind, count), own in kinds if count]
    return f"{text}, {', '.join(parts)}"


def median_of(numbers: RowByRow) -> str:
    """The median over rows with its error."""
    return with_error(numbers.value, numbers.standard_error)


def wider(entry: Evaluation) -> str:
    """What gives a method that is too sure of its function more spread."""
    return "use a guide with spread" if entry.held_out.is_point else advised([entry], "narrow")


def elsewhere(entry: Evaluation) -> str:
    """What moves a mean that is off: longer chains; for a fit another start, then another family.

    A fit at a mode that was checked does not move by more steps.
    """
    nature = entry.fit.nature
    if nature.kind in OF_CHAINS:
        return advice(nature, "settling")
    longer = "" if is_at_mode(entry.fit) else f"{advice(nature, 'unfinished')} or "
    first = f"{longer}start elsewhere (init= or another seed)"
    return first if entry.held_out.is_point else f"{first}, then {advice(nature, 'poor family')}"


def narrower(entry: Evaluation) -> str:
    """What to do with too wide a spread: one with correlations may not have been fitted out."""
    nature = entry.fit.nature
    trust = f"{TRUST[:1].lower()}{TRUST[1:]} there"
    if nature.kind in OF_CHAINS:
        return f"{trust}, or {advice(nature, 'settling')}"
    if nature.has_correlations and "unfinished" in nature.remedies:
        return f"{trust}, or {nature.remedies['unfinished']}"
    return trust


def faults_of(
    judged: Judged,
    is_wrong: Callable[[AgainstReference], bool],
    words: Callable[[AgainstReference, str], str],
    *,
    with_points: bool = False,
) -> tuple[list[Evaluation], str, str]:
    """Methods with a fault at the test rows or at the probes off the data, and what to say of them.

    Args:
        judged: All methods.
        is_wrong: Whether some rows have the fault.
        words: What is said of these rows, from the name of the judge.
        with_points: Whether methods without a spread can have it.

    Returns:
        The methods, the words on all of them, and the name of the judge.
    """
    judge, entries = judged.against()
    faulty, parts = [], []
    for entry in entries:
        if entry.held_out.is_point and not with_points:
            continue
        places = [at for at in (entry.at_rows, entry.off_data) if at and is_wrong(at)]
        if places:
            faulty.append(entry)
            parts.append(f"{entry.name} {' and '.join(words(at, judge) for at in places)}")
    return faulty, "; ".join(parts), judge


@VerdictRule("mean", f"Mean of the function off {AT_ENOUGH}", ELSEWHERE,
             short="mean function off the reference's", against=FUNCTION,
             advise=elsewhere).of_all  # fmt: skip
def mean_off(judged: Judged) -> Iterator[Said]:
    """A mean of the function that is not that of the reference."""
    faulty, parts, judge = faults_of(judged, is_shifted, _shift, with_points=True)
    if faulty:
        yield (
            f"Mean of the function off that of {judge} by more than {MEAN_SHIFT_THRESHOLD} of "
            f"its epistemic sds at {ENOUGH}: {parts}. A bias, whatever the spread. "
            f"{sentence(mean_off.step_for(faulty))}.",
            faulty,
        )


def points(judged: Judged) -> Iterator[Said]:
    """Points, which have no spread at all."""
    judge, entries = judged.against()
    for entry in entries:
        if entry.held_out.is_point and entry.at_rows is not None:
            yield (
                f"{entry.name} is one point: its epistemic sd is 0, below the threshold of "
                f"{SD_RATIO_THRESHOLD} times that of {judge}; its intervals hold noise only, use a "
                "guide with spread, such as AutoNormal.",
                [entry],
            )


@VerdictRule("sd ratio", f"Epistemic sd below {AT_ENOUGH}",
             "Too sure of its function; try a richer family", short="too sure of the function",
             against=FUNCTION, advise=wider).of_all  # fmt: skip
def too_narrow(judged: Judged) -> Iterator[Said]:
    """Points, which have no spread, and spreads that are too small."""
    yield from points(judged)
    faulty, parts, judge = faults_of(judged, is_narrow, _narrow)
    if faulty:
        yield (
            f"Too sure of the function: epistemic sd below {SD_RATIO_THRESHOLD} times that of "
            f"{judge} at {ENOUGH}: {parts}. {sentence(too_narrow.step_for(faulty))}.",
            faulty,
        )


@VerdictRule("too wide", f"Epistemic sd above {AT_ENOUGH}", TRUST,
             short="less sure of the function than the reference",
             advise=narrower).of_all  # fmt: skip
def too_wide(judged: Judged) -> Iterator[Said]:
    """Spreads that are too large."""
    faulty, parts, judge = faults_of(judged, is_wide, _wide)
    if faulty:
        yield (
            "Less sure of the function than the posterior: epistemic sd above "
            f"{SD_RATIO_UPPER} times that of {judge} at {ENOUGH}: {parts}. "
            f"{sentence(too_wide.step_for(faulty))}.",
            faulty,
        )


@VerdictRule("distance", "Another function than that of the reference, with its mean and spread",
             MARGINALS, short="another shape than the reference").of_all  # fmt: skip
def other_shape(judged: Judged) -> Iterator[Said]:
    """Another function, though mean and spread are right."""
    faulty, parts, judge = faults_of(judged, is_far, _far)
    if faulty:
        yield (
            f"Another function than that of {judge}, though neither mean nor spread is off beyond "
            f"its error: {parts}; threshold {FLOORS:g} times the distance between halves and "
            f"{SHAPE_THRESHOLD} epistemic sds beyond it. {MARGINALS}.",
            faulty,
        )
