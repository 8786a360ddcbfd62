r"""The predictive distribution of a Gaussian process, :math:`y \sim \mathcal N(m, v + s^2)`."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import cast

import pyro.distributions as dist
import torch
from jaxtyping import Float
from torch import Tensor

from pyro_bnn.data import Standardiser
from pyro_bnn.data.arrays import to_tensor
from pyro_bnn.likelihoods.likelihood import match_observation
from pyro_bnn.predictive.prediction import Prediction, require_kind, require_levels
from pyro_bnn.program.random_state import seeded


class GaussianPrediction(Prediction):
    """A prediction whose moments, quantiles and densities are exact, beside draws of f and y.

    ``log_prob`` is that of the Gaussian, the limit of the mean density over draws.

    Args:
        f: Draws of f ``[S, N, O]``.
        mean: Mean of f ``[N, O]``.
        variance: Variance of f ``[N, O]``.
        noise: Standard deviations of y given f ``[O]``.
        seed: Seed of the draws of y.
        units: Carries y to the user's units; None leaves it in the model's.
    """

    def __init__(
        self,
        f: Float[Tensor, "S N O"],
        mean: Float[Tensor, "N O"],
        variance: Float[Tensor, "N O"],
        noise: Float[Tensor, " O"],
        *,
        seed: int = 0,
        units: Standardiser | None = None,
    ) -> None:
        y = f + noise * standard_normal(f.shape, seed)
        means, scale = f, torch.ones_like(noise)
        if units is not None:
            scale = units.scale.to(noise).expand_as(noise)
            loc = units.loc.to(noise).expand_as(noise)
            means, mean, y = (loc + scale * values for values in (f, mean, y))
        self._mean, self._variance = mean, scale**2 * variance
        self._noise = (scale * noise).expand_as(mean)
        super().__init__(
            y,
            f,
            means,
            self._noise.square().expand_as(f),
            None,
            self._log_prob_of_all,
            _target_log_likelihood=partial(_log_prob, loc=means, scale=self._noise),
        )

    @property
    def has_exact_densities(self) -> bool:
        """True."""
        return True

    def quantile(self, q: float | list[float] | Tensor) -> Float[Tensor, "*Q N O"]:
        """Exact quantiles of y: ``[N, O]`` for one level, ``[Q, N, O]`` for several.

        Raises:
            OptionError: If a level is not between 0 and 1.
        """
        require_levels(q)
        levels = torch.as_tensor(q, dtype=self._mean.dtype)
        distance: Tensor = torch.special.ndtri(levels)[..., None, None] * self.sd
        return self._mean + distance

    def _log_prob_of_all(self, y: Tensor) -> Tensor:
        return self.target_log_prob(y).sum(-1)

    def target_log_prob(self, y: Tensor) -> Float[Tensor, "N O"]:
        """Exact log density of each target ``[N, O]``; see `log_prob`."""
        return _log_prob(to_tensor(y, "y"), self._mean, self.sd)

    def _mean_of(self, name: str) -> Tensor:
        if name == "means":
            return self._mean
        return self._noise.square() if name == "variances" else require_kind(name)

    def _variance_of_means(self) -> Tensor:
        return self._variance


def standard_normal(shape: Sequence[int], seed: int) -> Tensor:
    """Draws of N(0, 1) in float64, of a stream of their own."""
    return torch.randn(*shape, generator=seeded(seed), dtype=torch.float64)


def _log_prob(y: Tensor, loc: Tensor, scale: Tensor) -> Tensor:
    """Log density ``[..., N, O]`` of y ``[N]`` or ``[N, O]``."""
    of_rows = dist.Normal(torch.zeros_like(scale), scale).to_event(1)
    matched = match_observation(y.detach().cpu().double(), of_rows)
    return cast(Tensor, dist.Normal(loc, scale).log_prob(matched))
