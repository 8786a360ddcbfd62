r"""Scale mixture of two Gaussians, the prior of Bayes by Backprop.

.. math:: p(w) = \pi\, \mathcal N(w \mid m, s_1^2) + (1 - \pi)\, \mathcal N(w \mid m, s_2^2),
          \qquad s_1 > s_2
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar, cast

import torch
from pyro.distributions.torch_distribution import TorchDistribution
from pyro.distributions.torch_distribution import TorchDistributionMixin as Distribution
from torch import Tensor
from torch.distributions import constraints
from torch.distributions.utils import broadcast_all

from pyro_bnn.checks import check_finite, check_positive
from pyro_bnn.errors import OptionError


@dataclass(frozen=True)
class ScaleMixture:
    r"""Scale mixture of two Gaussians over every entry: many weights near zero, some free.

    The narrow component pulls a weight towards ``loc``, the wide one lets it go: a spike and a slab
    without a point mass, every entry on its own. Its KL from Gaussian marginals has no closed form
    and is a Monte Carlo average, as in the paper. The scales do not follow the width of a layer.

    Args:
        mixing: Probability :math:`\pi` of the wide component, in (0, 1]; at 1 it is
            ``Normal(scale1)``. The paper tried 1/4, 1/2 and 3/4.
        scale1: Standard deviation :math:`s_1` of the wide component, > 0, in the units of the
            weights; the paper tried 1, exp(-1) and exp(-2).
        scale2: Standard deviation :math:`s_2` of the narrow one, > 0 and below ``scale1``; the
            paper tried exp(-6), exp(-7) and exp(-8).
        loc: Mean of every weight.

    Raises:
        OptionError: If ``mixing`` is no such probability, a scale is not positive, or ``scale2`` is
            not below ``scale1``, or ``loc`` is not finite.

    References:
        Blundell et al., "Weight Uncertainty in Neural Networks", ICML 2015, arXiv:1505.05424,
        section 3.3.

    Example:
        >>> import torch
        >>> ScaleMixture(0.25, 1.0, 0.01).distribution(torch.Size([])).variance.item()
        0.25007501244544983
    """

    mixing: float = 0.5
    scale1: float = 1.0
    scale2: float = math.exp(-6)
    loc: float = 0.0

    def __post_init__(self) -> None:
        check_positive("mixing", self.mixing)
        check_positive("scale1", self.scale1)
        check_positive("scale2", self.scale2)
        check_finite("loc", self.loc)
        if self.mixing > 1:
            raise OptionError(
                f"mixing is the probability of the wide component, at most 1, not {self.mixing!r}"
            )
        if self.scale2 >= self.scale1:
            raise OptionError(
                f"scale2 is the narrow component's, below scale1, not {self.scale2!r} beside "
                f"{self.scale1!r}: exchange them, and take 1 - mixing"
            )

    def distribution(self, shape: torch.Size) -> Distribution:
        """The prior over one tensor: batch shape ``()``, event shape ``shape``."""
        numbers = (self.mixing, self.scale1, self.scale2, self.loc)
        tensors: Any = (torch.tensor(float(number)) for number in numbers)
        mixture: Any = ScaleMixtureNormal(*tensors)
        return cast(Distribution, mixture.expand(shape).to_event(len(shape)))


class ScaleMixtureNormal(TorchDistribution):
    """Two Gaussians of one mean, as a distribution: two densities and no extra dimension.

    Args:
        mixing: Probability of the first component, broadcast with the others to the batch shape.
        scale1: Standard deviation of the first component.
        scale2: Standard deviation of the second.
        loc: Mean.
    """

    arg_constraints: ClassVar[dict[str, constraints.Constraint]] = {
        "mixing": constraints.unit_interval,
        "scale1": constraints.positive,
        "scale2": constraints.positive,
        "loc": constraints.real,
    }
    support = constraints.real
    has_rsample = False

    def __init__(
        self,
        mixing: Tensor,
        scale1: Tensor,
        scale2: Tensor,
        loc: Tensor,
        validate_args: bool | None = None,
    ) -> None:
        self.mixing, self.scale1, self.scale2, self.loc = broadcast_all(mixing, scale1, scale2, loc)
        super().__init__(self.loc.shape, validate_args=validate_args)

    def expand(self, batch_shape: Any, _instance: Any = None) -> ScaleMixtureNormal:
        """The same distribution with another batch shape."""
        parts = (self.mixing, self.scale1, self.scale2, self.loc)
        mixing, scale1, scale2, loc = (part.expand(torch.Size(batch_shape)) for part in parts)
        return ScaleMixtureNormal(mixing, scale1, scale2, loc, validate_args=self._validate_args)

    @property
    def mean(self) -> Tensor:
        """``loc``."""
        return self.loc

    @property
    def variance(self) -> Tensor:
        r""":math:`\pi s_1^2 + (1 - \pi) s_2^2`."""
        return self.mixing * self.scale1.square() + (1 - self.mixing) * self.scale2.square()

    def sample(self, sample_shape: Any = ()) -> Tensor:
        """A component for every entry, and a draw of it."""
        shape = self._extended_shape(torch.Size(sample_shape))
        with torch.no_grad():
            is_first = torch.rand(shape, dtype=self.loc.dtype, device=self.loc.device) < self.mixing
            noise = torch.randn(shape, dtype=self.loc.dtype, device=self.loc.device)
            return self.loc + torch.where(is_first, self.scale1, self.scale2) * noise

    def log_prob(self, value: Tensor) -> Tensor:
        """Log density, in the batch shape."""
        if self._validate_args:
            self._validate_sample(value)
        deviation = value - self.loc
        first = self.mixing.log() + _log_normal(deviation, self.scale1)
        second = torch.log1p(-self.mixing) + _log_normal(deviation, self.scale2)
        return torch.logaddexp(first, second)


def _log_normal(deviation: Tensor, scale: Tensor) -> Tensor:
    return -0.5 * (deviation / scale).square() - scale.log() - 0.5 * math.log(2 * math.pi)
