r"""What the layers with a rank-1 perturbation of their weights share: the factors, and W and b.

.. math:: W' = W \circ (r s^\top)

Dusenberry et al., "Efficient and Scalable Bayesian Neural Nets with Rank-1 Factors", ICML 2020,
arXiv:2005.07186.
"""

from __future__ import annotations

import math

import torch
from pyro.nn import PyroModule
from torch import Tensor, nn

from pyro_bnn.errors import OptionError
from pyro_bnn.priors import Hierarchy, PriorLike, assign_prior, value_of


class Rank1Layer(PyroModule):
    """A linear map with a factor of each input, a factor of each output, and a bias.

    A subclass has ``product``, its linear map of x by ``weight``, and ``along``, which shapes a
    value of each input or output so that it multiplies its activations.

    Args:
        weight_shape: Shape of W, ``[O, I, ...]``.
        input_prior: Prior over s ``[I]``, or None for s = 1.
        output_prior: Prior over r ``[O]``, or None for r = 1.
        clip: Largest absolute value c > 0 with which a factor acts, or None for no clip.
        bias: Whether there is a bias.

    Raises:
        OptionError: If ``clip`` is not positive.
    """

    r: Tensor | Hierarchy | None
    s: Tensor | Hierarchy | None
    bias: nn.Parameter | None

    def __init__(
        self,
        weight_shape: tuple[int, ...],
        *,
        input_prior: PriorLike | None = None,
        output_prior: PriorLike | None = None,
        clip: float | None = 10.0,
        bias: bool = True,
    ) -> None:
        super().__init__()
        if clip is not None and not (isinstance(clip, int | float) and 0 < clip < math.inf):
            raise OptionError(
                f"clip is the largest absolute value of a factor, positive, or None, not {clip!r}"
            )
        self.num_outputs, self.num_inputs = weight_shape[:2]
        self.clip = clip
        self.weight = nn.Parameter(torch.empty(weight_shape))
        self.bias = nn.Parameter(torch.empty(self.num_outputs)) if bias else None
        self.reset_parameters()
        self.set_priors(input_prior, output_prior)

    def set_priors(self, input_prior: PriorLike | None, output_prior: PriorLike | None) -> None:
        """Make the factors sample sites with these priors; None for a factor of 1."""
        for name, prior, size in (
            ("s", input_prior, self.num_inputs),
            ("r", output_prior, self.num_outputs),
        ):
            if prior is None:
                setattr(self, name, None)
            else:
                assign_prior(self, name, prior, torch.Size([size]))

    def reset_parameters(self) -> None:
        r"""Draw W from :math:`\mathcal N(0, 1/I)` (LeCun et al. 1998), and set b to 0.

        I counts what a unit sees: the inputs, times the pixels of a kernel.
        """
        with torch.no_grad():
            self.weight.normal_(0.0, 1.0 / math.sqrt(self.weight[0].numel()))
            if self.bias is not None:
                self.bias.zero_()

    def product(self, x: Tensor) -> Tensor:
        """The layer's linear map of x by W."""
        raise NotImplementedError(f"{type(self).__name__} has no product(x)")

    def along(self, value: Tensor) -> Tensor:
        """A value of each input or output, as it broadcasts to activations."""
        raise NotImplementedError(f"{type(self).__name__} has no along(value)")

    def forward(self, x: Tensor) -> Tensor:
        """Map x to the layer's output, the factors sampled once."""
        s, r, bias = self.s, self.r, self.bias
        if s is not None:
            x = x * self.along(self._clipped(value_of(s)))
        h = self.product(x)
        if r is not None:
            h = h * self.along(self._clipped(value_of(r)))
        return h if bias is None else h + self.along(bias)

    def _clipped(self, factor: Tensor) -> Tensor:
        return factor if self.clip is None else factor.clamp(-self.clip, self.clip)
