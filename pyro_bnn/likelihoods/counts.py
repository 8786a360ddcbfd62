r"""Counts, :math:`y_n \sim \mathrm{Poisson}(e^{f_n})`, with f as log rates."""

from __future__ import annotations

from typing import Any, cast

import pyro.distributions as dist
import torch
from pyro.distributions.torch_distribution import TorchDistributionMixin as Distribution
from torch import Tensor
from torch.distributions import constraints

from pyro_bnn.likelihoods.likelihood import Likelihood

LARGEST = 1e18  # a drawn count: torch draws in int64, which ends at 9.2e18


class Poisson(Likelihood):
    r"""Counts 0, 1, 2, ... with the network output as their log rate.

    .. math:: y_{no} \sim \mathrm{Poisson}(e^{f_{no}}), \qquad
              \mathrm{E}(y \mid f) = \mathrm{Var}(y \mid f) = e^f

    Counts are never standardised. The variance is the mean: for counts that spread more
    (overdispersion) its intervals are too narrow. Where f is
    uncertain, a few large draws dominate the predictive mean :math:`\mathrm{E}\, e^f`, but not the
    median.

    The density is computed from f itself and loses no digits at large counts; nothing is clipped.
    At f above 88 in float32 (709 in float64) the rate is infinite and the density 0, which engines
    treat as any other divergence.

    Raises:
        DataError: When a model is fitted, if y holds a negative number or a fraction.

    References:
        McCullagh & Nelder, "Generalized Linear Models", 1989, chapter 6.

    Example:
        >>> import torch
        >>> Poisson().distribution(torch.tensor([[0.0]])).mean
        tensor([[1.]])
    """

    def distribution(self, f: Tensor) -> Distribution:
        """Poisson over the targets of a row: batch ``[N]``, event ``[O]``."""
        rows: Any = PoissonOfLogRate(f)
        return cast(Distribution, rows.to_event(1))

    def forward(self, f: Tensor, y: Tensor | None = None) -> Tensor:
        """Sample or observe the site ``"y"``; counts of an integer dtype are taken as they are."""
        return super().forward(f, None if y is None else y.to(f.dtype))


class _Counts(constraints.Constraint):
    """Numbers 0, 1, 2, ...; errors about other data print its text."""

    is_discrete = True

    def check(self, value: Tensor) -> Tensor:
        return (value >= 0) & (value == value.floor())

    def __repr__(self) -> str:
        return "counts 0, 1, 2, ..., which are never standardised"


class PoissonOfLogRate(dist.Poisson):
    r"""Poisson distribution by its log rate: exact where the rate under- or overflows.

    .. math:: \log p(y) = y d - c\,(e^d - 1) + (y \log c - c - \log y!), \qquad
              c = \max(y, 1),\; d = \log \lambda - \log c

    which is :math:`y \log \lambda - \lambda - \log y!` without its cancelling large terms.

    Args:
        log_rate: Log of the rate, any shape.
    """

    arg_constraints = {"log_rate": constraints.real}  # noqa: RUF012  # as torch has it
    support = _Counts()  # type: ignore[assignment]  # torch's is a constraint of another class

    def __init__(self, log_rate: Tensor, *, validate_args: bool | None = None) -> None:
        self.log_rate = log_rate
        super().__init__(log_rate.exp(), validate_args=validate_args)  # type: ignore[no-untyped-call]

    def expand(self, batch_shape: Any, _instance: Any = None) -> PoissonOfLogRate:
        """The same distribution over more rows."""
        new = PoissonOfLogRate(self.log_rate.expand(batch_shape), validate_args=False)
        new._validate_args = self._validate_args
        return new

    def sample(self, sample_shape: Any = ()) -> Tensor:
        """Counts, at most 1e18."""
        shape = self._extended_shape(torch.Size(sample_shape))
        with torch.no_grad():
            return torch.poisson(self.rate.expand(shape).clamp(max=LARGEST))

    def log_prob(self, value: Tensor) -> Tensor:
        """Log probability of counts."""
        if self._validate_args:
            self._validate_sample(value)
        count = value.clamp(min=1)
        d = self.log_rate - count.log()
        return value * d - count * d.expm1() + _constant(value).to(d.dtype)


def _constant(value: Tensor) -> Tensor:
    """The part of the log probability without the rate, in float64 where the device has it."""
    value = value if value.device.type == "mps" else value.double()
    count = value.clamp(min=1)
    return value * count.log() - count - torch.lgamma(value + 1)
