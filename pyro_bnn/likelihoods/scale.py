"""Positive parameters of a likelihood, fixed or learned: one number for each target."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias, cast

import pyro.distributions as dist
import torch
from pyro.distributions.torch_distribution import TorchDistributionMixin as Distribution
from pyro.nn import PyroModule, PyroSample
from torch import Tensor
from torch.distributions import biject_to

from pyro_bnn.errors import OptionError, ShapeError
from pyro_bnn.priors import PriorModule
from pyro_bnn.priors.prior import ModulePrior

Positive: TypeAlias = "float | Sequence[float] | Tensor | Distribution"
"""A number for all targets, a vector ``[O]``, or a distribution that they are learned under."""


def half_normal() -> Distribution:
    """``HalfNormal(1)``: a standardised target has an sd of one, noise and signal together."""
    return cast(Distribution, dist.HalfNormal(torch.tensor(1.0)))


def add_positive(likelihood: PyroModule, name: str, value: Positive, what: str) -> None:
    """Give a likelihood a positive attribute: a buffer, or a sample site of its name.

    The site has shape ``[]`` for one target. For several, a univariate distribution is the prior
    of each of them, and the site has shape ``[O]``.

    Args:
        likelihood: What gets the attribute.
        name: Of the attribute and the site.
        value: Numbers, or a prior: univariate, or of event shape ``[O]``.
        what: What the attribute is called in messages.

    Raises:
        OptionError: If a number is not positive and finite, or the prior is not over one positive
            number or a vector of them.
    """
    if isinstance(value, Distribution):
        is_flat = len(value.event_shape) < 2 and not value.batch_shape
        if not is_flat or not _is_positive(value):
            raise OptionError(
                f"the prior over the {what} is univariate (one for each target) or over a vector "
                f"[O], and positive, not {value}; take for example "
                "pyro.distributions.HalfNormal(1.0)"
            )
        setattr(likelihood, f"{name}_prior", PriorModule(value))
        setattr(likelihood, name, PyroSample(_PriorOfTargets(f"{name}_prior")))
        return
    try:
        is_truth = isinstance(value, bool)
        numbers = torch.as_tensor(0.0 if is_truth else value, dtype=torch.get_default_dtype())
    except (TypeError, ValueError, RuntimeError):
        numbers = torch.zeros(())
    if numbers.ndim > 1 or not bool(((numbers > 0) & numbers.isfinite()).all()):
        raise OptionError(
            f"{name} is a positive {what}, one for each target in a vector [O], or a Pyro "
            f"distribution over it, not {value!r}"
        )
    likelihood.register_buffer(name, numbers.detach().clone())


def _is_positive(prior: Distribution) -> bool:
    """Whether the support is of positive numbers alone, as one inside it and one below 0 say."""
    if prior.support.is_discrete or bool(
        prior.support.check(torch.full(prior.shape(), -1e-30)).any()
    ):
        return False
    inside = biject_to(prior.support)(torch.zeros(prior.shape()))
    return bool((inside > 0).all())


def positive(likelihood: PyroModule, name: str, num_targets: int) -> Tensor:
    """The attribute's value ``[]`` or ``[O]``, sampled where it has a prior.

    Under an outer plate of S draws it is ``[S, 1, 1]`` or ``[S, 1, O]``.

    Raises:
        ShapeError: If it is a vector of another length than the number of targets O.
    """
    prior = getattr(likelihood, f"{name}_prior", None)
    if prior is not None:
        shape = prior.distribution.event_shape
        object.__setattr__(likelihood, f"_{name}_prior_targets", num_targets)
    else:
        shape = getattr(likelihood, name).shape
    if shape not in ((), (num_targets,)):
        raise ShapeError(
            f"{name} of the {type(likelihood).__name__} likelihood is for {shape[0]} targets, but "
            f"the network has outputs for {num_targets}: pass one number for all, or one a target"
        )
    value = cast(Tensor, getattr(likelihood, name))
    event_dim = 0 if not shape and (prior is None or num_targets == 1) else 1
    value = in_plates(value, event_dim)
    return value.unsqueeze(-1) if event_dim < value.ndim and not event_dim else value


def in_plates(value: Tensor, event_dim: int) -> Tensor:
    """A site's value under an outer plate of draws as ``[S, 1, *event]``; else as it is.

    ``pyro.infer.Predictive(parallel=True)`` leaves the 1, the plate of rows, out where the value
    has event dimensions.
    """
    batch = value.shape[: value.ndim - event_dim]
    if len(batch) != 1:
        return value
    return value.reshape(*batch, 1, *value.shape[1:])


class _PriorOfTargets(ModulePrior):
    """The prior of one attribute, over as many targets as the network output has."""

    def __call__(self, module: PyroModule) -> Distribution:
        """The distribution, given the likelihood."""
        prior = super().__call__(module)
        num_targets: int = getattr(module, f"_{self.name}_targets", 1)
        if num_targets == 1 or prior.event_shape:
            return prior
        return cast(Distribution, prior.expand([num_targets]).to_event(1))
