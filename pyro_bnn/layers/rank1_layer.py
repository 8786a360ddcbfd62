r"""What the layers with a rank-1 perturbation of their weights share: the factors, and W and b.

.. math:: W' = W \circ (r s^\top)

Dusenberry et al., "Efficient and Scalable Bayesian Neural Nets with Rank-1 Factors", ICML 2020,
arXiv:2005.07186.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from pyro.nn import PyroModule
from torch import Tensor, nn

from pyro_bnn.checks import check_positive, check_positive_int
from pyro_bnn.priors import Hierarchy, PriorLike, assign_prior, value_of


class Rank1Layer(PyroModule):
    """A linear map with a factor of each input, a factor of each output, and a bias.

    A subclass has ``product``, its linear map of x by ``weight``, and ``along``, which shapes a
    value of each input or output so that it multiplies its activations.

    Args:
        num_inputs: Number of inputs I, or of input channels.
        num_outputs: Number of outputs O, or of filters.
        input_prior: Prior over s ``[I]``, or None for s = 1.
        output_prior: Prior over r ``[O]``, or None for r = 1.
        clip: Largest absolute value c > 0 with which a factor acts, or None for no clip.
        bias: Whether there is a bias.
        kernel: Height and width (U, V) of the kernel of a convolution; W is ``[O, I, *kernel]``.

    Raises:
        OptionError: If a size or ``clip`` is not positive.
    """

    r: Tensor | Hierarchy | None
    s: Tensor | Hierarchy | None
    bias: nn.Parameter | None

    def __init__(
        self,
        num_inputs: int,
        num_outputs: int,
        *,
        input_prior: PriorLike | None = None,
        output_prior: PriorLike | None = None,
        clip: float | None = 10.0,
        bias: bool = True,
        kernel: Sequence[int] = (),
    ) -> None:
        super().__init__()
        for name, size in (("num_inputs", num_inputs), ("num_outputs", num_outputs)):
            check_positive_int(name, size)
        if clip is not None:
            check_positive("clip", clip)
        self.num_inputs, self.num_outputs, self.clip = num_inputs, num_outputs, clip
        self.weight = nn.Parameter(torch.empty(num_outputs, num_inputs, *kernel))
        self.bias = nn.Parameter(torch.empty(num_outputs)) if bias else None
        self.reset_parameters()
        self.set_priors(input_prior, output_prior)

    def set_priors(self, input_prior: PriorLike | None, output_prior: PriorLike | None) -> None:
        """Make the factors sample sites with these priors; None for a factor of 1."""
        assign_prior(self, "s", input_prior, (self.num_inputs,))
        assign_prior(self, "r", output_prior, (self.num_outputs,))

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
