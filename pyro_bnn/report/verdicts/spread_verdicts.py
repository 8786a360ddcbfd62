"""Verdicts on the function against a reference: its mean, spread and shape, on and off the data.

Each speaks of a method where a tenth of the rows or more are beyond its threshold, each by more
than 3 standard errors of the draws; of the test rows and of the probes off the data apart, because
independent weights look too wide at the first and are too narrow in gaps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
from jaxtyping import Bool

from pyro_bnn.diagnostics.row_by_row import RowByRow
from pyro_bnn.plotting.numbers import number, with_error
from pyro_bnn.report.evaluation.evaluate import AgainstReference, Evaluation
from pyro_bnn.report.verdicts.verdict import Verdict

SHARE = 0.1  # of rows, from which a fault is one of the method
MEAN_SHIFT_THRESHOLD = 0.5  # sds of the reference: its 95 % interval then holds 92 %
SD_RATIO_THRESHOLD = 0.8
SD_RATIO_UPPER = 1.25  # its inverse
STANDARD_ERRORS = 3.0  # of each row: rows share their draws, and pass together
FLOORS = 2.0  # times its floor that a distance is beyond doubt
SHAPE_THRESHOLD = 0.35  # sds of the reference: two modes of its sd are 0.48 from a Gaussian
ENOUGH = "a tenth of the rows or more, each by more than 3 standard errors of the draws"

Places = list[tuple[Evaluation, list[AgainstReference]]]


def spread_verdicts(evaluations: Sequence[Evaluation], reference: Evaluation) -> Iterator[Verdict]:
    """What the function of each method misses, against a reference that can judge it.

    Args:
        evaluations: Those that the reference can judge.
        reference: The reference.
    """
    shifted = _found(evaluations, is_shifted)
    if shifted:
        parts = _parts(
            shifted,
            lambda at: (
                f"{_where(at, shifted_rows(at))} (median "
                f"{_median(at.mean_shift)}; distance {number(at.distance.value)}, between halves "
                f"of {reference.name} {number(at.distance.floor)})"
            ),
        )
        yield Verdict(
            f"Mean of the function off that of {reference.name} by more than "
            f"{MEAN_SHIFT_THRESHOLD} of its epistemic sds at {ENOUGH}: {parts}. A bias, whatever "
            "the spread: raise num_steps or start elsewhere, then try a richer guide.",
            "mean",
            methods=_names(shifted),
        )
    for entry in evaluations:
        if entry.held_out.is_point and entry.at_rows is not None:
            yield Verdict(
                f"{entry.name} is one point: its epistemic sd is 0, below the threshold of "
                f"{SD_RATIO_THRESHOLD} times that of {reference.name}; its intervals hold noise "
                "only, use a guide with spread.",
                "sd ratio",
                methods=(entry.name,),
            )
    spread = [entry for entry in evaluations if not entry.held_out.is_point]
    if narrow := _found(spread, is_narrow):
        parts = _parts(
            narrow,
            lambda at: f"{_where(at, narrow_rows(at))} (median ratio {_median(at.sd_ratio)})",
        )
        yield Verdict(
            f"Too sure of the function: epistemic sd below {SD_RATIO_THRESHOLD} times that of "
            f"{reference.name} at {ENOUGH}: {parts}. Try a guide with correlations.",
            "sd ratio",
            methods=_names(narrow),
        )
    if wide := _found(spread, is_wide):
        parts = _parts(
            wide,
            lambda at: f"{_where(at, wide_rows(at))} (median ratio {_median(at.sd_ratio)})",
        )
        yield Verdict(
            f"Less sure of the function than the posterior: epistemic sd above {SD_RATIO_UPPER} "
            f"times that of {reference.name} at {ENOUGH}: {parts}. Trust the reference for "
            "epistemic uncertainty there, or raise num_steps for a guide with correlations.",
            "too wide",
            methods=_names(wide),
        )
    if far := _found(spread, is_far):
        parts = _parts(
            far,
            lambda at: (
                f"at the {at.where} (distance {number(at.distance.value)}, between halves of "
                f"{reference.name} {number(at.distance.floor)})"
            ),
        )
        yield Verdict(
            f"Another function than that of {reference.name}, though mean and spread agree within "
            f"their thresholds: {parts}; threshold {FLOORS:g} times the distance between halves "
            f"and {SHAPE_THRESHOLD} epistemic sds beyond it. Compare the marginals themselves: "
            "modes or tails may be missing.",
            "distance",
            methods=_names(far),
        )


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


def _found(evaluations: Sequence[Evaluation], rule: Callable[[AgainstReference], bool]) -> Places:
    found = []
    for entry in evaluations:
        places = [at for at in (entry.at_rows, entry.off_data) if at is not None and rule(at)]
        if places:
            found.append((entry, places))
    return found


def _parts(found: Places, words: Callable[[AgainstReference], str]) -> str:
    return "; ".join(f"{entry.name} {' and '.join(map(words, places))}" for entry, places in found)


def _names(found: Places) -> tuple[str, ...]:
    return tuple(entry.name for entry, _ in found)


def _where(at: AgainstReference, beyond: Bool[np.ndarray, " M"]) -> str:
    """How many rows are beyond, and of probes how many of each kind."""
    text = f"at {int(beyond.sum()):,} of {len(beyond):,} {at.where}"
    if len(beyond) != sum(at.counts.values()):  # several outputs, or rows without spread
        return text
    ends = np.cumsum(list(at.counts.values()))
    kinds = zip(at.counts.items(), np.split(beyond, ends[:-1]), strict=True)
    parts = [f"{int(own.sum())} of {count} {kind}" for (kind, count), own in kinds if count]
    return f"{text}, {', '.join(parts)}"


def _median(numbers: RowByRow) -> str:
    return with_error(numbers.value, numbers.standard_error)
