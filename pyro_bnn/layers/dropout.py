r"""Dropout whose mask is a function of a latent site: one mask a draw, for all rows.

.. math:: y_n = x_n \circ m, \qquad m_j = \frac{[\epsilon_j \ge \Phi^{-1}(p)]}{1 - p}, \qquad
          \epsilon \sim \mathcal N(0, I)
"""

from __future__ import annotations

from statistics import NormalDist

import pyro
import pyro.distributions as dist
import torch
from torch import Tensor, nn

from pyro_bnn.errors import ModelError

IS_MASK_NOISE = "is_mask_noise"
"""Key in ``infer`` of a sample site that is the noise of a mask, whose posterior is its prior."""


def keeps(noise: Tensor, rate: float) -> Tensor:
    """Which units are kept, of standard normal noise, where each is dropped with probability p."""
    if rate in (0, 1):
        return torch.full_like(noise, rate == 0, dtype=torch.bool)
    return noise >= NormalDist().inv_cdf(rate)


class MaskedDropout(nn.Module):
    """Stands in for a ``torch.nn.Dropout`` layer; each call in a pass has a mask of its own.

    Args:
        name: Of the layer; its sites are ``<name>.noise``, ``<name>.noise_2``, ...
        rate: Probability p that an entry is dropped, in [0, 1].
        of_channels: Whether whole channels are, as in ``torch.nn.Dropout2d``.

    Attributes:
        num_rows: Rows of the pass; set before it.
        num_calls: Calls in the pass so far.
    """

    def __init__(self, name: str, rate: float, *, of_channels: bool) -> None:
        super().__init__()
        self.name, self.rate, self.of_channels = name, rate, of_channels
        self.num_rows = self.num_calls = 0

    def forward(self, x: Tensor) -> Tensor:
        """X ``[N, ...]`` times the mask, ``[...]`` or ``[C, 1, ...]``.

        Raises:
            ModelError: If the first dimension of x is not that of rows.
        """
        if x.ndim < 2 or x.shape[0] != self.num_rows:
            raise ModelError(
                f"the dropout layer {self.name} is given {tuple(x.shape)} in a pass of "
                f"{self.num_rows} rows: one mask for all rows takes rows first, [N, ...]"
            )
        self.num_calls += 1
        shape = list(x.shape[1:])
        if self.of_channels:
            shape[1:] = [1] * len(shape[1:])
        zeros = x.new_zeros(shape)
        noise = pyro.sample(
            f"{self.name}.noise{f'_{self.num_calls}' if self.num_calls > 1 else ''}",
            dist.Normal(zeros, torch.ones_like(zeros)).to_event(len(shape)),
            infer={IS_MASK_NOISE: True},  # type: ignore[arg-type]  # keys of users are passed on
        )
        mask = keeps(noise, self.rate).to(x.dtype)
        return x * (mask / (1 - self.rate) if self.rate < 1 else mask)

    def extra_repr(self) -> str:
        """The rate."""
        return f"p={self.rate}"
