"""Verdicts on calibration, each against data that a method's own posterior expects.

Rows share one draw of the function, so bands are simulated: all rows of y from one draw of the
posterior. An exact posterior is called wrong in at most one of a hundred reports by each rule.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from pyro_bnn.diagnostics.bands import BAND_PROBABILITY
from pyro_bnn.diagnostics.calibration import PITHistogram
from pyro_bnn.plotting.numbers import number, percent
from pyro_bnn.report.evaluation.evaluate import Evaluation
from pyro_bnn.report.evaluation.shared_models import same_model
from pyro_bnn.report.verdicts.verdict import Verdict

OF_ITSELF = (
    f"what {percent(BAND_PROBABILITY, 0)} of data sets drawn from the method's own posterior give, "
    "all rows from one draw of its function"
)


def calibration_verdicts(
    evaluations: Sequence[Evaluation], reference: Evaluation | None
) -> Iterator[Verdict]:
    """Forecasts that the held-out rows contradict.

    Args:
        evaluations: One a method.
        reference: The reference if it has converged, else None.
    """
    yield from coverage_verdicts(evaluations, reference)
    yield from pit_verdicts(evaluations, reference)
    yield from ece_verdicts(evaluations, reference)


def coverage_verdicts(
    evaluations: Sequence[Evaluation], reference: Evaluation | None
) -> Iterator[Verdict]:
    """Intervals that hold too few or too many observations, methods with the same fault together.

    Args:
        evaluations: One a method.
        reference: The reference if it has converged, else None.
    """
    for too_few in (True, False):
        group, parts, result = [], [], None
        for entry in evaluations:
            own = entry.held_out.coverage
            if own is None or own.consistent or (own.observed < own.low) is not too_few:
                continue
            group.append(entry)
            band = f"{percent(own.low)} to {percent(own.high)}"
            parts.append(f"{entry.name} {percent(own.observed)} (allowed: {band})")
            result = own
        if result is None:
            continue
        yield Verdict(
            f"{percent(result.level, 0)} intervals are too {'narrow' if too_few else 'wide'}: of "
            f"{result.num_points:,} test targets they cover {', '.join(parts)}. Allowed is "
            f"{OF_ITSELF}. {_cause(group, reference)}.",
            "coverage",
            methods=tuple(entry.name for entry in group),
        )


def pit_verdicts(
    evaluations: Sequence[Evaluation], reference: Evaluation | None
) -> Iterator[Verdict]:
    """Histograms of PIT values with a bar outside the band, where coverage shows no fault.

    Args:
        evaluations: One a method.
        reference: The reference if it has converged, else None.
    """
    group = []
    for entry in evaluations:
        found, covered = entry.held_out.pit_histogram, entry.held_out.coverage
        if found is None or covered is None or not covered.consistent:
            continue
        if found.outside.any():
            group.append((entry, _worst_bar(found)))
    if group:
        entries = [entry for entry, _ in group]
        parts = "; ".join(f"{entry.name} has {text}" for entry, text in group)
        yield Verdict(
            f"PIT values are not uniform: {parts}. Allowed is {OF_ITSELF}, all bars together; a "
            "slope of the bars is a bias, a bowl intervals too narrow, a hump too wide. "
            f"{_cause(entries, reference)}.",
            "pit",
            methods=tuple(entry.name for entry in entries),
        )


def ece_verdicts(
    evaluations: Sequence[Evaluation], reference: Evaluation | None
) -> Iterator[Verdict]:
    """Class probabilities whose calibration error exceeds what the posterior itself expects.

    Args:
        evaluations: One a method.
        reference: The reference if it has converged, else None.
    """
    far = [entry for entry in evaluations if entry.held_out.ece > entry.held_out.ece_high]
    if far:
        parts = "; ".join(
            f"{entry.name} {number(entry.held_out.ece)} (allowed: to "
            f"{number(entry.held_out.ece_high)}), mean confidence {_confidence(entry)}, accuracy "
            f"{percent(entry.held_out.accuracy)}"
            for entry in far
        )
        yield Verdict(
            f"Expected calibration error too large: {parts}. Allowed is {OF_ITSELF}. "
            f"{_cause(far, reference)}.",
            "ece",
            methods=tuple(entry.name for entry in far),
        )


def _cause(group: Sequence[Evaluation], reference: Evaluation | None) -> str:
    """Where to look: a fault that a converged reference shares is the model's, else the guide's.

    Without a reference of the same model the two are not told apart.
    """
    if reference is None or not all(
        same_model(entry.posterior, reference.posterior) for entry in group
    ):
        if reference in group:
            return (
                "The reference is among them, so look at its model (likelihood, noise scale, "
                "prior) before the guides"
            )
        return (
            "The guide or the model (likelihood, noise scale, prior) may be the cause: a converged "
            "reference of the same model, such as long NUTS chains, would tell"
        )
    if reference in group:
        return (
            "The reference is among them, so look at the model (likelihood, noise scale, prior) "
            "before the guides"
        )
    return (
        f"The reference {reference.name}, of the same model, is not among them: look at the guide "
        "first, try one with correlations"
    )


def _worst_bar(found: PITHistogram) -> str:
    """The bar that is furthest outside, in words."""
    beyond = np.maximum(found.low - found.counts, found.counts - found.high)
    bar = int(np.argmax(beyond / (found.high - found.low)))
    least, most = max(found.low[bar], 0), found.high[bar]
    return (
        f"{found.counts[bar]:,} rows in {number(found.edges[bar], 2)} to "
        f"{number(found.edges[bar + 1], 2)} (allowed: {int(np.ceil(least)):,} to {int(most):,})"
    )


def _confidence(entry: Evaluation) -> str:
    assert entry.held_out.probs is not None
    return percent(float(entry.held_out.probs.max(1).mean()))
