"""The verdict on log evidences: which prior and model the training rows speak for."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from pyro_bnn.plotting.numbers import with_error
from pyro_bnn.report.evaluation.shared_models import same_model
from pyro_bnn.report.verdicts.verdict import Judged, Verdict

if TYPE_CHECKING:
    from pyro_bnn.report.evaluation.fit_record import FitRecord

WITHOUT_ERROR = ("Exact", "CAVI")  # engines of models whose evidence has a closed form
STANDARD_ERRORS, MIN_NATS = 2.0, 1.0


class KnownEvidence(NamedTuple):
    """A log evidence with its error, in nats."""

    name: str
    fit: FitRecord
    value: float
    error: float


def evidence_verdicts(judged: Judged) -> Iterator[Verdict]:
    """Models against the one of the highest log evidence.

    Of each model the method of the smallest error speaks, of those that tell an error: Laplace's
    log evidence has none. Evidences compare where the same rows in the same units are of
    probability of one kind, densities or masses, and no value of a model was fitted to the rows.

    Args:
        judged: All methods, and the reference.
    """
    known: list[KnownEvidence] = []
    for entry in judged.entries:
        if (found := _known(entry.name, entry.fit)) is None:
            continue
        same = [one for one in known if same_model(one.fit, found.fit)]
        if same and same[0].error <= found.error:
            continue
        known = [one for one in known if one not in same] + [found]
    if not known:
        return
    best = max(known, key=lambda one: one.value)
    for other in known:
        if other is best or best.fit.rows != other.fit.rows:
            continue
        gap, error = best.value - other.value, math.hypot(best.error, other.error)
        is_clear = gap > STANDARD_ERRORS * error and gap >= MIN_NATS
        told = with_error(gap, error)
        yield Verdict(
            f"{best.name} has {told} nats more log evidence than {other.name}: the training rows "
            "are likelier under its prior and model."
            if is_clear
            else f"The log evidences of {best.name} and {other.name} do not tell their models "
            f"apart: {told} nats, threshold {STANDARD_ERRORS:g} errors and {MIN_NATS:g} nat; "
            "raise num_particles where the error is large.",
            "evidence",
            is_warning=False,
            methods=(best.name, other.name),
        )


def _known(name: str, fit: FitRecord) -> KnownEvidence | None:
    options = fit.options
    error = 0.0 if fit.engine in WITHOUT_ERROR else options.get("log_evidence_error")
    value = options.get("log_evidence")
    if value is None or error is None or fit.point_estimates:
        return None
    return KnownEvidence(name, fit, float(value), float(error))
