r"""Normalisation of each channel of each image by itself, with a learned threshold.

.. math:: \nu^2 = \frac{1}{|A|} \sum_{a \in A} x_a^2, \qquad
          y = \gamma \frac{x}{\sqrt{\nu^2 + \epsilon}} + \beta, \qquad z = \max(y, \tau)

Singh & Krishnan, "Filter Response Normalization Layer: Eliminating Batch Dependence in the Training
of Deep Neural Networks", CVPR 2020, arXiv:1911.09737.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from pyro_bnn.checks import check_positive, check_positive_int
from pyro_bnn.errors import ShapeError


class FilterResponseNorm(nn.Module):
    r"""Filter response normalisation with its thresholded linear unit.

    .. math:: z = \max\Bigl(\gamma \frac{x}{\sqrt{\nu^2 + \epsilon}} + \beta,\, \tau\Bigr)

    :math:`\nu^2` is the mean of :math:`x^2` over the pixels of one channel of one image: nothing
    depends on the other rows, so that the layer can stand in a Bayesian network where batch
    normalisation cannot. The mean of x is not taken out. The threshold replaces the ReLU after it;
    without it the layer normalises alone.

    A plain ``torch.nn.Module``: :func:`pyro_bnn.bayesian` makes its parameters sample sites.

    Args:
        num_channels: Number of channels C.
        eps: :math:`\epsilon > 0`, in the units of :math:`x^2`.
        threshold: Whether there is a threshold :math:`\tau`.

    Attributes:
        weight: Gain :math:`\gamma` of each channel ``[C]``, from 1.
        bias: Shift :math:`\beta` of each channel ``[C]``, from 0.
        threshold: Threshold :math:`\tau` of each channel ``[C]``, from 0; None without one.

    Raises:
        OptionError: If ``num_channels`` is not a positive integer or ``eps`` not positive.

    References:
        Singh & Krishnan, "Filter Response Normalization Layer", CVPR 2020, arXiv:1911.09737.

    Example:
        >>> layer = FilterResponseNorm(1)
        >>> layer(torch.tensor([[[3.0, -4.0]]])).detach()  # nu^2 = 12.5
        tensor([[[0.8485, 0.0000]]])
    """

    def __init__(self, num_channels: int, *, eps: float = 1e-6, threshold: bool = True) -> None:
        super().__init__()
        check_positive_int("num_channels", num_channels)
        check_positive("eps", eps)
        self.num_channels, self.eps = num_channels, float(eps)
        self.weight = nn.Parameter(torch.ones(num_channels))
        self.bias = nn.Parameter(torch.zeros(num_channels))
        self.threshold = nn.Parameter(torch.zeros(num_channels)) if threshold else None

    def forward(self, x: Tensor) -> Tensor:
        """Map x ``[N, C, *spatial]`` to the same shape.

        Raises:
            ShapeError: If x has other channels, or one pixel, of which only the sign would be left.
        """
        if x.ndim < 3 or x.shape[1] != self.num_channels:
            raise ShapeError(
                f"x has shape {tuple(x.shape)}, but this FilterResponseNorm takes [N, "
                f"{self.num_channels}, ...], with one or more spatial dimensions"
            )
        if math.prod(x.shape[2:]) < 2:
            raise ShapeError(
                f"x has shape {tuple(x.shape)}, one pixel a channel, of which a FilterResponseNorm "
                "leaves the sign alone: use torch.nn.GroupNorm, or larger images"
            )
        pixels = list(range(2, x.ndim))
        x = x * (x.square().mean(pixels, keepdim=True) + self.eps).rsqrt()
        y = self._along(x, self.weight) * x + self._along(x, self.bias)
        return y if self.threshold is None else torch.maximum(y, self._along(x, self.threshold))

    def extra_repr(self) -> str:
        """The layer's options, as modules print them."""
        return f"{self.num_channels}, eps={self.eps:g}, threshold={self.threshold is not None}"

    @staticmethod
    def _along(x: Tensor, value: Tensor) -> Tensor:
        """A value of each channel ``[C]`` as ``[C, 1, ...]``, as x ``[N, C, ...]`` broadcasts."""
        return value.reshape(-1, *(1 for _ in x.shape[2:]))
