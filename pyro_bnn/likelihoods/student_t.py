r"""Noise with heavy tails, :math:`y_n \sim t_\nu(f_n, s)`: outliers pull the function less."""

from __future__ import annotations

from typing import cast

from pyro.distributions.torch_distribution import TorchDistributionMixin as Distribution
from torch import Tensor

from pyro_bnn.likelihoods.likelihood import Likelihood
from pyro_bnn.likelihoods.scale import Positive, add_positive, half_normal, positive
from pyro_bnn.priors import student_t_density


class StudentT(Likelihood):
    r"""Student-t noise around the network output.

    .. math:: p(y \mid f) \propto \Bigl(1 + \frac{(y - f)^2}{\nu s^2}\Bigr)^{-(\nu + 1) / 2},
              \qquad \mathrm{Var}(y \mid f) = \frac{\nu s^2}{\nu - 2}

    A residual r far out pulls f with a force of about :math:`(\nu + 1) / r`, not
    :math:`r / s^2`: outliers are given up, where Gaussian noise bends the function towards them.
    It does not tell which rows are outliers, and leaves noise that depends on x to
    ``HeteroscedasticNormal``. The predictive mean exists for df > 1 and the sd for df > 2; else
    they are NaN with a warning, and quantiles serve.

    Args:
        df: Degrees of freedom :math:`\nu`. A positive number, or a vector ``[O]``, holds them
            fixed; 4 is the usual choice. A positive Pyro distribution makes them a latent site
            ``likelihood.df``, such as ``Gamma(2, 0.1)`` of Juarez & Steel, which also allows
            nearly Gaussian noise. One draw at or below 2 leaves the predictive sd without a value.
        scale: Scale s of the noise in the units of the (standardised) target, not its standard
            deviation; fixed or learned as in ``Normal``.

    Raises:
        OptionError: If ``df`` or ``scale`` is neither positive nor a distribution over positive
            numbers.

    References:
        Lange, Little & Taylor, "Robust Statistical Modeling Using the t Distribution", JASA 1989.
        Juarez & Steel, "Model-Based Clustering of Non-Gaussian Panel Data Based on Skew-t
        Distributions", Journal of Business & Economic Statistics 2010.

    Example:
        >>> import torch
        >>> StudentT(df=5.0, scale=2.0).distribution(torch.zeros(1, 1)).variance
        tensor([[6.6667]])
    """

    df: Tensor
    scale: Tensor

    def __init__(self, df: Positive = 4.0, scale: Positive | None = None) -> None:
        super().__init__()
        add_positive(self, "df", df, "number of degrees of freedom")
        add_positive(self, "scale", half_normal() if scale is None else scale, "noise scale")

    def distribution(self, f: Tensor) -> Distribution:
        """Student-t over the targets of a row: batch ``[N]``, event ``[O]``."""
        df, scale = (positive(self, name, f.shape[-1]) for name in ("df", "scale"))
        return cast(Distribution, student_t_density.StudentT(df, f, scale).to_event(1))
