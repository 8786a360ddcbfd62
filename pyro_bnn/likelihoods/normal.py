r"""Gaussian noise, :math:`y_n \sim \mathcal N(f_n, s^2)`, with s fixed or learned."""

from __future__ import annotations

from typing import cast

import pyro.distributions as dist
import torch
from pyro.distributions.torch_distribution import TorchDistributionMixin as Distribution
from torch import Tensor

from pyro_bnn.checks import check_positive
from pyro_bnn.errors import ShapeError
from pyro_bnn.likelihoods.likelihood import Likelihood
from pyro_bnn.likelihoods.scale import Positive, add_positive, half_normal, positive


class Normal(Likelihood):
    r"""Gaussian noise around the network output.

    .. math:: y_{no} \sim \mathcal N(f_{no}, s_o^2), \qquad s_o \sim p(s) \text{ or fixed}

    Given f, targets are independent; each has a noise of its own where the scale is learned.

    Args:
        scale: Standard deviation of the noise, in the units of the (standardised) target: a
            positive number holds it fixed, and so does a vector ``[O]``, one number a target; a
            positive Pyro distribution makes it a latent site ``likelihood.scale`` with that prior,
            of shape ``[]`` for one target and ``[O]`` for several. The default prior is
            ``HalfNormal(1)``: a standardised target has a standard deviation of one, noise and
            signal together.

    Raises:
        OptionError: If ``scale`` is neither positive nor a distribution over positive numbers.
    """

    scale: Tensor

    def __init__(self, scale: Positive | None = None) -> None:
        super().__init__()
        add_positive(self, "scale", half_normal() if scale is None else scale, "noise sd")

    def distribution(self, f: Tensor) -> Distribution:
        """Normal over the targets of a row: batch ``[N]``, event ``[O]``."""
        scale = positive(self, "scale", f.shape[-1])
        return cast(Distribution, dist.Normal(f, scale).to_event(1))


class HeteroscedasticNormal(Likelihood):
    r"""Gaussian noise whose standard deviation is a second network output.

    .. math:: y_n \sim \mathcal N\bigl(f_{n,1}, s_n^2\bigr), \qquad
              s_n = \log(1 + e^{f_{n,2}}) + s_{\min}

    The first O columns of f are the means, the last O the raw scales.

    Args:
        min_scale: Smallest noise sd, > 0, in the units of the (standardised) target.

    References:
        Nix & Weigend, "Estimating the mean and variance of the target probability distribution",
        ICNN 1994.
    """

    def __init__(self, min_scale: float = 1e-3) -> None:
        super().__init__()
        check_positive("min_scale", min_scale)
        self.min_scale = float(min_scale)

    def num_function_outputs(self, num_outputs: int) -> int:
        """Two outputs for each target: a mean and a raw scale."""
        return 2 * num_outputs

    def check_function_outputs(self, columns: int) -> None:
        """A mean and a raw scale for each target."""
        if columns % 2:
            raise ShapeError(
                "HeteroscedasticNormal expects f [N, 2 O], a mean and a raw scale for each of O "
                f"targets, but f has {columns} columns: end the network with an even number of "
                "outputs, two for one target"
            )

    def distribution(self, f: Tensor) -> Distribution:
        """Normal over the targets of a row: batch ``[N]``, event ``[O]``."""
        loc, raw = f.chunk(2, dim=-1)  # [N, O] each
        scale = torch.nn.functional.softplus(raw) + self.min_scale
        return cast(Distribution, dist.Normal(loc, scale).to_event(1))
