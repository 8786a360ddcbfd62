"""What the rank-1 networks share: priors of the factors, and priors of W that are weight decay."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

import torch
from pyro.distributions.torch_distribution import TorchDistributionMixin as Distribution
from torch import Tensor

from pyro_bnn.errors import OptionError, SiteError, UnknownNameError
from pyro_bnn.priors import (
    HierarchicalPrior,
    PriorLike,
    PriorModule,
    Priors,
    as_prior,
    match_priors,
)
from pyro_bnn.priors import Normal as NormalPrior
from pyro_bnn.priors.prior import AnyPrior

SIDES: Mapping[str, tuple[str, ...]] = {"both": ("s", "r"), "inputs": ("s",), "outputs": ("r",)}
FACTOR_PRIOR = NormalPrior(scale=0.1, loc=1.0)
WEIGHT_PRIOR = NormalPrior()


def factor_priors(prior: Priors | None, on: str, layers: Sequence[str]) -> dict[str, AnyPrior]:
    """The prior of each factor, by the name of its site.

    Args:
        prior: One for all, or a mapping from patterns that covers all; None for N(1, 0.1).
        on: Side of the factors, a key of ``SIDES``.
        layers: Names of the layers.

    Raises:
        SiteError: If the patterns leave a factor without a prior, or one matches nothing.
        UnknownNameError: If the side is not known.
    """
    if on not in SIDES:
        raise UnknownNameError("side of the factors", str(on), SIDES)
    names = [f"{layer}.{factor}" for layer in layers for factor in SIDES[on]]
    priors = match_priors(FACTOR_PRIOR if prior is None else prior, names)
    if missing := [name for name in names if name not in priors]:
        raise SiteError(
            f"no prior pattern matches {', '.join(missing)}; every factor has a prior: add "
            '{"*": pyro_bnn.priors.Normal(loc=1.0, scale=0.1)} as the last pattern, or choose '
            "a side by on='inputs' or on='outputs'"
        )
    return priors


def one_weight_prior(prior: PriorLike) -> AnyPrior:
    """The prior of all point-estimated weights.

    Raises:
        OptionError: If it is a hierarchy.
    """
    made = as_prior(prior)
    if isinstance(made, HierarchicalPrior):
        raise OptionError(
            f"weight_prior is one distribution, as weights and biases are no sites, not the "
            f"hierarchy {prior!r}: put the hierarchy on the factors by prior=..., and take "
            "priors.Normal() here"
        )
    return made


def weight_prior_modules(
    prior: PriorLike, priors: Iterable[AnyPrior], weights: Sequence[Tensor]
) -> list[PriorModule]:
    """Priors of point-estimated weights.

    Args:
        prior: What the user gave, to name it in an error.
        priors: The prior of each weight.
        weights: Their initial values.

    Raises:
        OptionError: If it has no density at the initial values.
    """
    pairs = zip(priors, weights, strict=True)
    modules = [PriorModule(_unchecked(cast(Any, own).distribution(w.shape))) for own, w in pairs]
    if not weight_log_prior(modules, weights).isfinite():
        raise OptionError(
            f"weight_prior {prior!r} has no density at the initial weights, which have "
            "both signs: take one over all real numbers, for example priors.Normal()"
        )
    return modules


def weight_log_prior(priors: Iterable[Any], weights: Sequence[Tensor]) -> Tensor:
    """Log density ``[]`` of all weights under priors of theirs; 0 without priors."""
    total = weights[0].new_zeros(())
    for prior, weight in zip(priors, weights, strict=False):  # no priors, or all
        total = total + prior().log_prob(weight)
    return total


def _unchecked(distribution: Distribution) -> Distribution:
    """A copy that does not check its arguments, which could be neither batched nor captured."""
    copied: Any = copy.deepcopy(distribution)
    pending = [copied]
    while pending:
        part = pending.pop()
        part._validate_args = False
        pending += [
            v for v in vars(part).values() if isinstance(v, torch.distributions.Distribution)
        ]
    return cast(Distribution, copied)
