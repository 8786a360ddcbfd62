r"""Fully connected layer with a rank-1 perturbation of its weight matrix.

.. math:: W' = W \circ (r s^\top), \qquad
          h = x W'^\top + b = \bigl((x \circ s) W^\top\bigr) \circ r + b

Dusenberry et al., "Efficient and Scalable Bayesian Neural Nets with Rank-1 Factors", ICML 2020,
arXiv:2005.07186.
"""

from __future__ import annotations

from torch import Tensor, nn

from pyro_bnn.layers.rank1_layer import Rank1Layer
from pyro_bnn.priors import PriorLike


class Rank1Linear(Rank1Layer):
    r"""Fully connected layer whose input and output factors are sample sites.

    .. math:: W' = W \circ (r s^\top), \qquad h = \bigl((x \circ s) W^\top\bigr) \circ r + b

    ``weight`` ``[O, I]`` and ``bias`` ``[O]`` are parameters, point estimates; the sites are ``s``
    ``[I]``, a factor of each input, and ``r`` ``[O]``, a factor of each output. A side without a
    prior has no site, and its factor is 1. For independent factors with means m and standard
    deviations d (:math:`\delta` is the Kronecker delta),

    .. math:: \mathrm{Cov}(W'_{ij}, W'_{kl}) = W_{ij} W_{kl} \bigl[
              (m^r_i m^r_k + \delta_{ik} (d^r_i)^2)(m^s_j m^s_l + \delta_{jl} (d^s_j)^2)
              - m^r_i m^r_k m^s_j m^s_l \bigr]

    so weights of one row or one column are correlated, and others are not. What is missed: any
    perturbation of W of rank above one, and one that turns a zero of W into something else.

    The clip is part of the model: W' is made of :math:`\min(\max(r, -c), c)` and the same of s,
    while the densities of r and s are those of the unclipped values. Under a Cauchy prior or
    posterior, E f^2, and with it the ELBO of a Gaussian likelihood, exists only because of it.

    The layer works under ``torch.func.vmap``: over r and s, for several members in one pass that
    keeps a single copy of W; or over rows of x with factors of their own.

    Args:
        num_inputs: Number of inputs I.
        num_outputs: Number of outputs O.
        input_prior: Prior over s ``[I]``, or None for s = 1.
        output_prior: Prior over r ``[O]``, or None for r = 1.
        clip: Largest absolute value c > 0 with which a factor acts, or None for no clip.

    Attributes:
        weight: The shared weight W ``[O, I]``.
        bias: The bias b ``[O]``.
        s: The input factors ``[I]``; the module that samples them with a hierarchical prior; None
            without one.
        r: The output factors ``[O]``, likewise.

    Raises:
        OptionError: If a size or ``clip`` is not positive.

    References:
        Dusenberry et al., "Efficient and Scalable Bayesian Neural Nets with Rank-1 Factors", ICML
        2020, arXiv:2005.07186. Wen, Tran & Ba, "BatchEnsemble", ICLR 2020, arXiv:2002.06715 (fixed
        factors). The clip to [-10, 10] is that of the Edward2 library.

    Example:
        >>> import torch
        >>> from pyro_bnn.priors import Normal
        >>> layer = Rank1Linear(3, 2, input_prior=Normal(loc=1.0, scale=0.1))
        >>> layer(torch.zeros(5, 3)).shape
        torch.Size([5, 2])
    """

    bias: nn.Parameter

    def __init__(
        self,
        num_inputs: int,
        num_outputs: int,
        *,
        input_prior: PriorLike | None = None,
        output_prior: PriorLike | None = None,
        clip: float | None = 10.0,
    ) -> None:
        super().__init__(
            num_inputs, num_outputs, input_prior=input_prior, output_prior=output_prior, clip=clip
        )

    def product(self, x: Tensor) -> Tensor:
        """Map x ``[..., I]`` to ``[..., O]``, without factors and bias."""
        return nn.functional.linear(x, self.weight)

    def along(self, value: Tensor) -> Tensor:
        """A value of each unit ``[O]``, which broadcasts to ``[..., O]`` as it is."""
        return value
