r"""Student-t prior, :math:`w = m + s\, t` with t of :math:`\nu` degrees of freedom.

.. math:: p(w) \propto \Bigl(1 + \frac{(w - m)^2}{\nu s^2}\Bigr)^{-(\nu + 1)/2}, \qquad
          \mathrm{Var}(w) = \frac{\nu s^2}{\nu - 2} \text{ for } \nu > 2

It lies between the Cauchy (:math:`\nu = 1`) and the Gaussian (:math:`\nu \to \infty`) prior.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pyro_bnn.checks import check_positive
from pyro_bnn.priors import student_t_density
from pyro_bnn.priors.scales import Entrywise, Scale


@dataclass(frozen=True)
class StudentT(Entrywise):
    r"""Student-t prior over every entry of a weight tensor: polynomial tails of index ``df``.

    Its KL from Gaussian marginals has no closed form and is a Monte Carlo average.

    Args:
        df: Degrees of freedom :math:`\nu`, > 0. There is a variance for ``df > 2`` and a mean for
            ``df > 1``.
        scale: Scale s, > 0, in the units of the weights; it is no standard deviation, which is
            ``s sqrt(df / (df - 2))``. Or ``"fan_in"``: for ``df > 2`` the scale with which the
            VARIANCE is that of ``Normal("fan_in")``, 1/I for a weight of shape ``[O, I, ...]`` and
            1 for a bias. For ``df <= 2`` there is no variance to match, and s is
            ``I**(-1/df)``: a sum over I such entries grows like ``I**(1/df)``, so the chance of a
            large sum does not depend on the width (df = 1 is ``Cauchy("fan_in")``; at df = 2 a
            factor of root log I is left).
        loc: Median of every weight.

    Raises:
        OptionError: If ``df`` is not positive, ``scale`` neither positive nor ``"fan_in"``, or
            ``loc`` not finite.

    References:
        Neal, "Bayesian Learning for Neural Networks", 1996, section 2.1 (sums of heavy-tailed
        weights). Fortuin et al., "Bayesian Neural Network Priors Revisited", ICLR 2022,
        arXiv:2102.06571.

    Example:
        >>> import torch
        >>> StudentT(4.0).distribution(torch.Size([50, 8])).base_dist.scale[0, 0].item()
        0.25
    """

    df: float = 4.0
    scale: Scale = "fan_in"
    loc: float = 0.0

    def __post_init__(self) -> None:
        check_positive("df", self.df)
        super().__post_init__()

    def family(self, loc: Tensor, scale: Tensor) -> Any:
        """Student-t of one entry."""
        return student_t_density.StudentT(torch.tensor(float(self.df)), loc, scale)

    def fan_in_scale(self, fan_in: float) -> float:
        """The scale for I inputs to each unit."""
        if self.df > 2:
            return math.sqrt((self.df - 2) / (self.df * fan_in))
        return float(fan_in ** (-1 / self.df))
