"""Distributions as their tensors: taken apart, put together again, without checks of values."""

from __future__ import annotations

import math
from collections.abc import Sequence
from copy import deepcopy
from typing import Any, cast

import pyro.distributions as dist
import torch
from pyro.distributions.torch_distribution import TorchDistributionMixin as Distribution
from torch import Tensor
from torch.distributions import constraints

from pyro_bnn.errors import DataError
from pyro_bnn.likelihoods import Likelihood
from pyro_bnn.priors.prior import COMPOSITE, tensors_of
from pyro_bnn.program.random_state import isolated
from pyro_bnn.sites import base_support


def with_tensors(
    fn: Distribution, tensors: Sequence[Tensor], num_draws: int, num_rows: int | None = None
) -> Distribution:
    """A copy of a distribution over S draws.

    Args:
        fn: The distribution at one draw.
        tensors: The ``tensors_of`` of all draws, each with a leading dimension S.
        num_draws: S.
        num_rows: The rows of the tensors, where these are others than those of ``fn``.

    Returns:
        The distribution with batch shape ``[S, *batch]``.
    """
    remaining = iter(tensors)
    done: dict[int, Any] = {}  # a transform and its inverse hold each other

    def copy(value: Any, ndim: int) -> Any:
        """A copy; its tensors get at least ``ndim`` dimensions after S, so that they broadcast."""
        if isinstance(value, Tensor):
            draws = next(remaining)  # [S, *shape]
            missing = max(0, ndim - draws.ndim + 1)
            return draws.reshape((num_draws, *(1,) * missing, *draws.shape[1:]))
        if isinstance(value, list | tuple) and not isinstance(value, torch.Size):
            return type(value)(copy(item, ndim) for item in value)
        if not isinstance(value, COMPOSITE):
            return value
        if id(value) in done:
            return done[id(value)]
        copied: Any = object.__new__(type(value))
        done[id(value)] = copied
        for name, item in vars(value).items():
            inner = ndim
            if isinstance(value, torch.distributions.Distribution):
                event_dim = len(value.event_shape)
                if isinstance(item, Tensor):
                    event_dim = _parameter_event_dim(value, name)
                inner = len(value.batch_shape) + event_dim
            copied.__dict__[name] = copy(item, inner)
        if isinstance(value, torch.distributions.Distribution):
            batch = value.batch_shape
            if num_rows is not None and batch[:1] == fn.batch_shape[:1]:
                batch = torch.Size([num_rows, *batch[1:]])
            copied._batch_shape = torch.Size([num_draws, *batch])
        return copied

    found = cast("Distribution", copy(fn, 0))
    # copy refers to itself: what it holds would live until garbage is collected
    done.clear()
    next(remaining, None)  # an iterator that has ended lets its tensors go
    return found


class _Wishart(dist.Wishart):  # type: ignore[misc]
    r"""A Wishart whose density takes Cholesky factors alone, which are batched and compiled.

    .. math:: \log p(X) = \tfrac{\nu - p - 1}{2} \log|X| - \tfrac12 \mathrm{tr}(V^{-1} X)
              - \tfrac{\nu p}{2} \log 2 - \tfrac{\nu}{2} \log|V| - \log \Gamma_p(\tfrac{\nu}{2})

    with :math:`\mathrm{tr}(V^{-1} X) = \|L_V^{-1} L_X\|^2`. Torch's own takes a determinant by an
    LU factorisation.
    """

    def log_prob(self, value: Tensor) -> Tensor:
        """Log density ``[...]`` of matrices ``[..., p, p]``; nan where one is not definite."""
        size, of_scale = self.event_shape[-1], self._unbroadcasted_scale_tril
        factor, code = torch.linalg.cholesky_ex(value)
        factor = torch.where((code == 0)[..., None, None], factor, math.nan)
        whole = torch.broadcast_shapes(of_scale.shape, factor.shape)
        ratio = torch.linalg.solve_triangular(
            of_scale.expand(whole), factor.expand(whole), upper=False
        )
        log_det, log_det_scale = (
            2 * tril.diagonal(dim1=-2, dim2=-1).log().sum(-1) for tril in (factor, of_scale)
        )
        log_gamma = sum(
            (0.5 * (self.df - place)).lgamma() for place in range(size)
        ) + 0.25 * size * (size - 1) * math.log(math.pi)
        kernel = 0.5 * ((self.df - size - 1) * log_det - ratio.square().sum((-2, -1)))
        density: Tensor = kernel - 0.5 * self.df * (size * math.log(2) + log_det_scale) - log_gamma
        return density


def with_own_density(fn: Distribution) -> Distribution:
    """A distribution, not to be used elsewhere, whose density can be batched and compiled."""
    part: Any = fn
    while isinstance(part, dist.MaskedDistribution | torch.distributions.Independent):
        part = part.base_dist
    if type(part) is dist.Wishart:
        part.__class__ = _Wishart
    return fn


def _parameter_event_dim(fn: torch.distributions.Distribution, name: str) -> int:
    """Dimensions of one parameter of a distribution, without its batch."""
    if name.endswith("_tril"):
        return 2
    constraint = fn.arg_constraints.get(name.removeprefix("_unbroadcasted_"))
    return constraint.event_dim if isinstance(constraint, constraints.Constraint) else 0


def base_distribution(fn: Distribution) -> Distribution:
    """The distribution inside ``to_event``."""
    while isinstance(fn, torch.distributions.Independent):
        fn = cast("Distribution", fn.base_dist)
    return fn


def require_in_support(y: Tensor, fn: Distribution) -> None:
    """Check that observations, in the shape of their distribution, are possible.

    Raises:
        DataError: If some lie outside its support, such as a class label that is not 0 .. C-1.
    """
    inside = fn.support.check(y)
    if bool(inside.all()):
        return
    base = base_distribution(fn)
    where = str(fn.support)
    if isinstance(base, dist.Categorical):
        num_classes = base.param_shape[-1]
        where = (
            f"the {num_classes} classes 0 .. {num_classes - 1}: number the classes from 0, or give "
            "the network an output, and Categorical a class, for each"
        )
    outside = y[~inside].unique()[:5].tolist()
    raise DataError(
        f"y holds {', '.join(map(str, outside))}, outside the support of the model's "
        f"{type(base).__name__} likelihood, {where}"
    )


def bounds_of(support: constraints.Constraint) -> list[Any]:
    """The numbers and tensors that a constraint, or parts of it, are made of: its bounds."""
    found: list[Any] = []
    parts: list[Any] = [base_support(support)]
    while parts:
        part = parts.pop()
        if isinstance(part, constraints.Constraint):
            parts.extend(vars(part).values())
        elif isinstance(part, list | tuple):
            parts.extend(part)
        else:
            found.append(part)
    return found


def order_statistic(levels: Tensor, count: int) -> Tensor:
    r"""Place ``[...]``, from 0, of the quantiles of K sorted points of equal weight.

    .. math:: \max(\lceil q K \rceil, 1) - 1

    A level may be off by one rounding of float32, as 1 - 0.95 is.
    """
    rounding = min(torch.finfo(torch.float32).eps * count, 0.5)
    return (levels.double() * count - rounding).ceil().long().clamp(min=1) - 1


def kind_of_target(likelihood: Likelihood, num_outputs: int) -> str:
    """What a likelihood is over: numbers, positive numbers, counts, or how many classes.

    Example:
        >>> from pyro_bnn import likelihoods
        >>> kind_of_target(likelihoods.Poisson(), 1), kind_of_target(likelihoods.Bernoulli(), 1)
        ('counts', '2 classes')
    """
    f = torch.zeros(1, likelihood.num_function_outputs(num_outputs))
    with isolated(0):  # a prior over the noise is sampled
        # a likelihood that was called before may stand in no model
        fn = deepcopy(likelihood).distribution(f)
    base = base_distribution(fn)
    if base.has_enumerate_support and not fn.event_shape:
        return f"{len(base.enumerate_support(expand=False))} classes"
    if base.support.is_discrete:
        return "counts"
    is_real = bool(base.support.check(f - 1).all())
    return "numbers" if is_real else "positive numbers"


def zeros_like(fn: Distribution) -> Tensor:
    """Zeros in the shape and on the device of a draw."""
    tensors = tensors_of(fn)
    device = tensors[0].device if tensors else None
    dtype = torch.long if isinstance(base_distribution(fn), dist.Categorical) else None
    if dtype is None and tensors and tensors[0].is_floating_point():
        dtype = tensors[0].dtype
    return torch.zeros(fn.shape(), dtype=dtype, device=device)
