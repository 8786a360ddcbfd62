r"""Horseshoe prior: one scale for the tensor, one for every weight, so that most weights vanish.

.. math:: \tau \sim \mathrm{HalfCauchy}(s), \quad \lambda_{ij} \sim \mathrm{HalfCauchy}(1), \quad
          w_{ij} \sim \mathcal N\bigl(m, \tau^2 \tilde\lambda_{ij}^2\bigr)

Plain, :math:`\tilde\lambda = \lambda`. Regularised, a slab of variance :math:`c^2` bounds the
weights that escape the shrinkage:

.. math:: \tilde\lambda^2 = \frac{c^2 \lambda^2}{c^2 + \tau^2 \lambda^2}, \qquad
          c^2 \sim \mathrm{InvGamma}\bigl(\tfrac{\nu}{2}, \tfrac{\nu s_c^2}{2}\bigr)
"""

from __future__ import annotations

from dataclasses import dataclass

import pyro
import pyro.distributions as dist
import torch
from torch import Tensor

from pyro_bnn.checks import check_finite, check_positive
from pyro_bnn.errors import OptionError
from pyro_bnn.priors.half_cauchy_scale import root_mean_square
from pyro_bnn.priors.hierarchy import Hierarchy
from pyro_bnn.priors.positive import HalfCauchy
from pyro_bnn.priors.prior import PriorModule
from pyro_bnn.priors.scales import Scale, scale_for

SLAB_DF = 4.0


@dataclass(frozen=True)
class Horseshoe:
    r"""Sparse weights: a global and a local half-Cauchy scale, plain or with a slab.

    The sites of a weight ``layers.0.weight`` are ``.global`` (:math:`\tau`), ``.local``
    (:math:`\lambda`), with a slab ``.slab`` (:math:`c^2`, a variance), and non-centred ``.raw``;
    the weight itself is recorded as a deterministic value.

    Args:
        scale: Median of :math:`\tau`, > 0, in the units of the weights; or ``"fan_in"``: ``1/I``
            for a weight of shape ``[O, I, ...]``, 1 for a bias. Given :math:`\tau`, weights have
            Cauchy-like tails, and a sum over I of them grows like I; with a slab, the variance
            of the sum is :math:`I c^2 \tau / (c + \tau)`, below c where :math:`\tau = 1/I`.
        slab_scale: Scale :math:`s_c` of the slab, > 0, in the units of the weights: large weights
            are about StudentT with ``slab_df`` degrees of freedom and this scale. None: no slab.
        slab_df: Degrees of freedom :math:`\nu` of the slab, > 0.
        loc: Mean of every weight.
        centred: Whether the weight is a sample site, ``.value``, in place of ``.raw``.

    Raises:
        OptionError: If a scale or ``slab_df`` is not positive, or ``slab_df`` is of no slab.

    References:
        Carvalho, Polson & Scott, "The horseshoe estimator for sparse signals", Biometrika 97(2),
        2010. Piironen & Vehtari, "Sparsity information and regularization in the horseshoe and
        other shrinkage priors", Electronic Journal of Statistics 11(2), 2017, arXiv:1707.01694.
    """

    scale: Scale = "fan_in"
    slab_scale: float | None = None
    slab_df: float = SLAB_DF
    loc: float = 0.0
    centred: bool = False

    def __post_init__(self) -> None:
        check_positive("scale", self.scale, also="fan_in")
        if self.slab_scale is not None:
            check_positive("slab_scale", self.slab_scale)
        check_positive("slab_df", self.slab_df)
        check_finite("loc", self.loc)
        if self.slab_scale is None and self.slab_df != SLAB_DF:
            raise OptionError(
                f"slab_df={self.slab_df} would have no effect, as there is no slab: pass slab_scale"
            )

    def hierarchy(self, shape: torch.Size) -> Hierarchy:
        """A module that samples one tensor of ``shape``."""
        return _Horseshoe(shape, self, scale_for(shape, self.scale, self.fan_in_scale))

    def fan_in_scale(self, fan_in: float) -> float:
        r"""The scale for I inputs to each unit, :math:`1/I`.

        Of independent entries with tails :math:`P(|w| > t) \sim c/t`, as Cauchy ones have them, the
        sum over I inputs grows like I: of Cauchy entries with scale s it is Cauchy with scale I s.
        """
        return 1 / fan_in


class _Horseshoe(Hierarchy):
    """A weight with a global scale, a local one for each entry, and perhaps a slab."""

    def __init__(self, shape: torch.Size, prior: Horseshoe, scale: float) -> None:
        super().__init__(shape, loc=prior.loc, centred=prior.centred)
        self.median = scale
        self.global_prior = PriorModule(HalfCauchy(scale).distribution(torch.Size([])))
        self.local_prior = PriorModule(HalfCauchy(1.0).distribution(shape))
        self.slab_prior: PriorModule | None = None
        if prior.slab_scale is not None:
            half_df = 0.5 * prior.slab_df
            rate = half_df * prior.slab_scale**2
            self.slab_mode = rate / (half_df + 1)
            self.slab_prior = PriorModule(
                dist.InverseGamma(torch.tensor(half_df), torch.tensor(rate))
            )

    def sample_scale(self, name: str) -> Tensor:
        scale = pyro.sample(f"{name}.global", self.global_prior())
        scale = scale * pyro.sample(f"{name}.local", self.local_prior())
        if self.slab_prior is None:
            return scale
        return _with_slab(scale, pyro.sample(f"{name}.slab", self.slab_prior()))

    def scale_values(self, deviation: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        scale = root_mean_square(deviation, torch.Size([]), self.median)
        values = {"global": scale, "local": torch.ones_like(deviation)}
        if self.slab_prior is not None:
            values["slab"] = torch.full_like(scale, self.slab_mode)
            scale = _with_slab(scale, values["slab"])
        return values, scale


def _with_slab(scale: Tensor, slab: Tensor) -> Tensor:
    r""":math:`\tau\tilde\lambda` of :math:`\tau\lambda` and the slab's variance, no squares."""
    c = slab.sqrt()
    return c * (scale / torch.hypot(scale, c))
