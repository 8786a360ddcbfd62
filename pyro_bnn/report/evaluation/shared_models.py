"""Which methods of a comparison answer under one model, and which ELBOs bound one evidence.

An ELBO bounds the evidence of ITS model. Where a model has parameters that are point estimates
(the weights W of a rank-1 network), it bounds the evidence GIVEN their values, and two guides that
each train their own W bound two evidences.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np

from pyro_bnn.report.evaluation.units import to_numpy

if TYPE_CHECKING:
    from pyro_bnn.posterior.protocol import PosteriorLike

T = TypeVar("T")


class SharedModel(NamedTuple):
    """The methods of one model.

    Attributes:
        label: The model in words; different for every model of a comparison.
        methods: Names of its methods, in the order of the comparison.
    """

    label: str
    methods: list[str]


def shared_models(posteriors: Mapping[str, PosteriorLike]) -> list[SharedModel]:
    """Groups methods by the model object that they are posteriors of.

    Two objects that are described alike are two models, and are numbered.

    Args:
        posteriors: The posteriors by name.

    Returns:
        The models in the order of their first method.
    """
    from pyro_bnn.models.description import describe

    grouped = groups(posteriors, same_model)
    words = [describe(posteriors[names[0]].model) for names in grouped]
    count, seen = Counter(words), Counter[str]()
    found = []
    for label, names in zip(words, grouped, strict=True):
        seen[label] += 1
        number = f" (object {seen[label]} of {count[label]})" if count[label] > 1 else ""
        found.append(SharedModel(label + number, names))
    return found


def shared_evidences(posteriors: Mapping[str, PosteriorLike]) -> list[list[str]]:
    """Groups methods whose ELBOs bound one evidence: one model, equal point estimates or none.

    Args:
        posteriors: The posteriors by name.

    Returns:
        Names of the methods of each group, in the order of the comparison.
    """
    return groups(posteriors, same_evidence)


def same_model(a: PosteriorLike, b: PosteriorLike) -> bool:
    """Whether two posteriors are of one model object, or of one model's words in a file."""
    return a.model is b.model or (isinstance(a.model, str) and a.model == b.model)


def same_evidence(a: PosteriorLike, b: PosteriorLike) -> bool:
    """Whether two posteriors are of one model at equal values of its point estimates."""
    own, other = point_estimates(a), point_estimates(b)
    return (
        same_model(a, b)
        and own.keys() == other.keys()
        and all(np.array_equal(own[name], other[name]) for name in own)
    )


def same_posterior(a: PosteriorLike, b: PosteriorLike) -> bool:
    """Whether two methods approach one posterior: of one evidence, at equal scales of its priors.

    `Laplace(prior_scales="evidence")` finds scales of its own; its ELBO is under the model's.
    """
    return same_evidence(a, b) and a.options.get("found_scales") == b.options.get("found_scales")


def point_estimates(posterior: PosteriorLike) -> dict[str, np.ndarray]:
    """Values of the model's parameters that a posterior holds as point estimates, by name."""
    params: Mapping[str, Any] = getattr(posterior, "params", {})  # a file's posterior has none
    return {name: to_numpy(value) for name, value in params.items()}


def groups(values: Mapping[str, T], alike: Callable[[T, T], bool]) -> list[list[str]]:
    """Names of values that are alike, each group in the order given."""
    found: list[list[str]] = []
    for name, value in values.items():
        group = next((group for group in found if alike(values[group[0]], value)), None)
        if group is None:
            found.append(group := [])
        group.append(name)
    return found
