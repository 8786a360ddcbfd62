r"""Convolution with a rank-1 perturbation over its channels.

.. math:: W'_{oiuv} = W_{oiuv}\, r_o s_i, \qquad
          h = W' * x + b = \bigl(W * (x \circ s)\bigr) \circ r + b

Dusenberry et al., "Efficient and Scalable Bayesian Neural Nets with Rank-1 Factors", ICML 2020,
arXiv:2005.07186.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from pyro_bnn.checks import check_positive_int
from pyro_bnn.errors import OptionError
from pyro_bnn.layers.rank1_layer import Rank1Layer
from pyro_bnn.priors import PriorLike


class Rank1Conv2d(Rank1Layer):
    r"""Convolution whose input and output factors are sample sites.

    .. math:: W'_{oiuv} = W_{oiuv}\, r_o s_i

    ``weight`` ``[O, I, U, V]`` and ``bias`` ``[O]`` are parameters, point estimates; the sites are
    ``s`` ``[I]``, a factor of each input channel, and ``r`` ``[O]``, a factor of each filter: all
    pixels of a kernel share theirs. A side without a prior has no site, and its factor is 1.
    Captures correlations of all weights of a filter, and of all that read one channel, as
    :class:`pyro_bnn.layers.Rank1Linear` does of rows and columns, whose covariance holds here for
    the pair of channels; misses any change of a kernel's shape.

    Outside the image x is 0, and stays so whatever s is. The clip is part of the model, as that of
    :class:`pyro_bnn.layers.Rank1Linear`; the layer works under ``torch.func.vmap`` over r and s, a
    single copy of W for all members.

    Args:
        num_inputs: Number of input channels I.
        num_outputs: Number of filters O.
        kernel_size: Height and width (U, V) of the kernel, or one number for both.
        stride: Pixels between two outputs, in either direction.
        padding: Pixels of 0 around the image.
        input_prior: Prior over s ``[I]``, or None for s = 1.
        output_prior: Prior over r ``[O]``, or None for r = 1.
        clip: Largest absolute value c > 0 with which a factor acts, or None for no clip.
        bias: Whether there is a bias.

    Attributes:
        weight: The shared weight W ``[O, I, U, V]``.
        bias: The bias b ``[O]``, or None.
        s: The factors of input channels ``[I]``; the module that samples them with a hierarchical
            prior; None without one.
        r: The factors of filters ``[O]``, likewise.

    Raises:
        OptionError: If a size or ``clip`` is not positive.

    References:
        Dusenberry et al., "Efficient and Scalable Bayesian Neural Nets with Rank-1 Factors", ICML
        2020, arXiv:2005.07186. Wen, Tran & Ba, "BatchEnsemble", ICLR 2020, arXiv:2002.06715 (fixed
        factors).

    Example:
        >>> import torch
        >>> from pyro_bnn.priors import Normal
        >>> layer = Rank1Conv2d(3, 2, 3, padding=1, output_prior=Normal(loc=1.0, scale=0.1))
        >>> layer(torch.zeros(5, 3, 8, 8)).shape
        torch.Size([5, 2, 8, 8])
    """

    def __init__(
        self,
        num_inputs: int,
        num_outputs: int,
        kernel_size: int | Sequence[int],
        *,
        stride: int = 1,
        padding: int = 0,
        input_prior: PriorLike | None = None,
        output_prior: PriorLike | None = None,
        clip: float | None = 10.0,
        bias: bool = True,
    ) -> None:
        kernel = (kernel_size,) * 2 if isinstance(kernel_size, int) else tuple(kernel_size)
        if len(kernel) != 2:
            raise OptionError(f"kernel_size is one number or two, not {kernel_size!r}")
        for size in kernel:
            check_positive_int("kernel_size", size)
        check_positive_int("stride", stride)
        check_positive_int("padding", padding, minimum=0)
        super().__init__(
            num_inputs,
            num_outputs,
            input_prior=input_prior,
            output_prior=output_prior,
            clip=clip,
            bias=bias,
            kernel=kernel,
        )
        self.stride, self.padding = stride, padding

    def product(self, x: Tensor) -> Tensor:
        """Map x ``[..., I, H, W]`` to ``[..., O, H', W']``, without factors and bias."""
        return nn.functional.conv2d(x, self.weight, stride=self.stride, padding=self.padding)

    def along(self, value: Tensor) -> Tensor:
        """A value of each channel ``[C]`` as ``[C, 1, 1]``."""
        return value[:, None, None]
