"""Which methods of a comparison answer under one model, and which ELBOs bound one evidence.

An ELBO bounds the evidence of ITS model. Where a model has parameters that are point estimates
(the weights W of a rank-1 network), it bounds the evidence GIVEN their values, and two guides that
each train their own W bound two evidences.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, NamedTuple, TypeVar

if TYPE_CHECKING:
    from pyro_bnn.report.evaluation.fit_record import FitRecord

T = TypeVar("T")


class SharedModel(NamedTuple):
    """The methods of one model.

    Attributes:
        label: The model in words; different for every model of a comparison.
        methods: Names of its methods, in the order of the comparison.
    """

    label: str
    methods: list[str]


def shared_models(fits: Mapping[str, FitRecord]) -> list[SharedModel]:
    """Groups methods by their model.

    Two models that are described alike, as of two objects, are two models, and are numbered.

    Args:
        fits: By name of the method.

    Returns:
        The models in the order of their first method.
    """
    grouped = groups(fits, same_model)
    words = [fits[names[0]].model.description for names in grouped]
    count, seen = Counter(words), Counter[str]()
    found = []
    for label, names in zip(words, grouped, strict=True):
        seen[label] += 1
        number = f" (object {seen[label]} of {count[label]})" if count[label] > 1 else ""
        found.append(SharedModel(label + number, names))
    return found


def shared_evidences(fits: Mapping[str, FitRecord]) -> list[list[str]]:
    """Groups methods whose ELBOs bound one evidence: one model, equal point estimates or none.

    Args:
        fits: By name of the method.

    Returns:
        Names of the methods of each group, in the order of the comparison.
    """
    return groups(fits, same_evidence)


def same_model(a: FitRecord, b: FitRecord) -> bool:
    """Whether two fits are of one model."""
    return a.model is b.model


def same_evidence(a: FitRecord, b: FitRecord) -> bool:
    """Whether two fits are of one model at equal values of its point estimates."""
    return same_model(a, b) and a.point_estimates == b.point_estimates


def same_posterior(a: FitRecord, b: FitRecord) -> bool:
    """Whether two methods approach one posterior: of one evidence, at equal scales of its priors.

    `Laplace(prior_scales="evidence")` finds scales of its own; its ELBO is under the model's.
    """
    return same_evidence(a, b) and a.options.get("found_scales") == b.options.get("found_scales")


def groups(values: Mapping[str, T], alike: Callable[[T, T], bool]) -> list[list[str]]:
    """Names of values that are alike, each group in the order given."""
    found: list[list[str]] = []
    for name, value in values.items():
        group = next((group for group in found if alike(values[group[0]], value)), None)
        if group is None:
            found.append(group := [])
        group.append(name)
    return found
