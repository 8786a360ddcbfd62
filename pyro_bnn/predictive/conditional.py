"""The distribution of y given each of many draws, as tensors that are taken apart again."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import cast

import pyro.distributions as dist
import torch
from jaxtyping import Float, Num
from pyro.distributions.torch_distribution import TorchDistributionMixin as Distribution
from torch import Tensor

from pyro_bnn import memory as bounds
from pyro_bnn.data import Standardiser
from pyro_bnn.predictive.common_noise import at_levels, levels_of_draws
from pyro_bnn.predictive.draws import together
from pyro_bnn.predictive.moments import log_mean
from pyro_bnn.predictive.moments_of_y import moments_of_y
from pyro_bnn.program.distributions import base_distribution, with_tensors
from pyro_bnn.program.random_state import isolated

BLOCK_DRAWS, BLOCK_NUMBERS = 256, 1 << 15  # most draws, and rows, of y that are drawn at once
COPIES = 8  # most copies of the values of y that moments and densities make


@dataclass(frozen=True)
class Conditional:
    """The distribution of y at N rows given each of S draws.

    Attributes:
        fn: The distribution at one draw, of these rows or others.
        tensors: The tensors of the distribution at all draws, ``[S, ...]`` each.
        num_rows: Number of rows N.
        units: Carries y to the user's units; None leaves it in the model's.
        has_moments: Whether means over draws are to be relied on; without, they are NaN.
    """

    fn: Distribution
    tensors: Sequence[Tensor]
    num_rows: int
    units: Standardiser | None
    has_moments: bool

    def __len__(self) -> int:
        return len(self.tensors[0])

    def of(self, start: int, stop: int, *, size: int | None = None) -> Distribution:
        """The distribution ``[s, N]`` at some draws; with ``size``, the last one fills up."""
        values = [value[start:stop] for value in self.tensors]
        count = len(values[0])
        if size is not None and size > count:
            values = [
                torch.cat([value, value[-1:].expand(size - count, *value.shape[1:])])
                for value in values
            ]
            count = size
        return with_tensors(self.fn, values, count, self.num_rows)

    @property
    def is_number(self) -> bool:
        """Whether y is a number, with means and variances, and no class; 0 and 1 of several are."""
        base = base_distribution(self.fn)
        is_one_of_two = isinstance(base, dist.Bernoulli) and not self.fn.event_shape
        return not (isinstance(base, dist.Categorical) or is_one_of_two)

    @property
    def is_discrete(self) -> bool:
        """Whether y is a count or a class."""
        return bool(base_distribution(self.fn).support.is_discrete)

    @property
    def is_normal(self) -> bool:
        """Whether the numbers of y are Gaussian given a draw."""
        return isinstance(base_distribution(self.fn), dist.Normal) and self.has_moments

    @property
    def _moments(self) -> tuple[Float[Tensor, "S N O"], Float[Tensor, "S N O"]]:
        """Mean and variance of y given each draw, in the model's units."""
        y = self.of(0, len(self))
        mean, variance = moments_of_y(y, lambda s: self.of(s, s + 1))
        return (mean, variance) if len(y.event_shape) else (mean[..., None], variance[..., None])

    def means(self) -> Float[Tensor, "S N O"]:
        """Mean of y given each draw."""
        means = self._moments[0]
        if self.units is not None:
            means = self.units.inverse(means)
        return means if self.has_moments else torch.full_like(means, torch.nan)

    def variances(self) -> Float[Tensor, "S N O"]:
        """Variance of y given each draw, NaN where it does not exist."""
        variances = self._moments[1]
        variances = torch.where(variances.isfinite(), variances, torch.nan)
        if self.units is None:
            return variances
        dtype = torch.promote_types(variances.dtype, self.units.scale.dtype)
        return variances.to(dtype) * self.units.scale**2

    def class_probs(self) -> Float[Tensor, "S N C"]:
        """Class probabilities given each draw."""
        base = base_distribution(self.of(0, len(self)))
        if isinstance(base, dist.Categorical):
            return base.probs
        return torch.stack([(-base.logits).sigmoid(), base.probs], -1)  # 1 - p would lose digits

    def sample(self, seed: int) -> Num[Tensor, "S N O"]:
        """One y from each draw; the first of them for a larger S."""
        size = max(1, min(BLOCK_DRAWS, BLOCK_NUMBERS // self.num_rows))
        with torch.no_grad(), isolated(seed):
            # draw whole blocks: then the first values do not depend on S
            starts = range(0, len(self), size)
            parts = (self._columns(self.of(i, i + size, size=size).sample()) for i in starts)
            return together(parts, len(self))

    def by_common_noise(self, seed: int) -> Num[Tensor, "S N O"] | None:
        """One number y from each draw, by the same noise at all rows; None where it has no such."""
        levels = levels_of_draws(len(self), seed)
        size = max(1, min(BLOCK_DRAWS, BLOCK_NUMBERS // self.num_rows))
        with torch.no_grad():
            if not self.is_number or at_levels(self.of(0, 1), levels[:1]) is None:
                return None
            parts = (
                self._columns(cast(Tensor, at_levels(self.of(i, i + size), levels[i : i + size])))
                for i in range(0, len(self), size)
            )
            return together(parts, len(self))

    def log_prob(self, y: Tensor) -> Float[Tensor, " N"]:
        """Log of the mean density of y, in the model's units."""
        with torch.no_grad():
            return log_mean(fn.log_prob(y) for fn in self._parts(y))

    def _parts(self, y: Tensor) -> Iterator[Distribution]:
        """The distribution at a few draws after others, as values of y fit the caches."""
        size = max(1, bounds.WORKING_SET // (COPIES * y.numel() * 8))
        return (self.of(i, i + size) for i in range(0, len(self), size))

    @property
    def has_target_densities(self) -> bool:
        """Whether the numbers of y are independent given a draw, each with a density."""
        return self.is_number and not base_distribution(self.fn).event_shape

    def target_log_prob(self, y: Tensor) -> Float[Tensor, "S N O"]:
        """Log densities of each number of y ``[N, O]`` in the model's units."""
        with torch.no_grad():
            parts = (base_distribution(fn).log_prob(y) for fn in self._parts(y))
            return together(parts, len(self)).reshape(len(self), len(y), -1)

    def _columns(self, draws: Tensor) -> Tensor:
        """Draws as ``[S, N, O]``, labels as integers, numbers in the user's units."""
        columns = draws if len(self.fn.event_shape) else draws.unsqueeze(-1)
        if not self.is_number:
            return columns.long()
        return columns if self.units is None else self.units.inverse(columns)
