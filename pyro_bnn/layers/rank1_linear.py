r"""Fully connected layer with a rank-1 perturbation of its weight matrix.

.. math:: W' = W \circ (r s^\top), \qquad
          h = x W'^\top + b = \bigl((x \circ s) W^\top\bigr) \circ r + b

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


class Rank1Linear(PyroModule):
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
        OptionError: If ``clip`` is not positive.

    References:
        Dusenberry et al., "Efficient and Scalable Bayesian Neural Nets with Rank-1 Factors", ICML
        2020, arXiv:2005.07186. Wen, Tran & Ba, "BatchEnsemble", ICLR 2020, arXiv:2002.06715 (fixed
        factors). The clip to [-10, 10] is that of the Edward2 library.

    Example:
        >>> from pyro_bnn.priors import Normal
        >>> layer = Rank1Linear(3, 2, input_prior=Normal(loc=1.0, scale=0.1))
        >>> layer(torch.zeros(5, 3)).shape
        torch.Size([5, 2])
    """

    r: Tensor | Hierarchy | None
    s: Tensor | Hierarchy | None

    def __init__(
        self,
        num_inputs: int,
        num_outputs: int,
        *,
        input_prior: PriorLike | None = None,
        output_prior: PriorLike | None = None,
        clip: float | None = 10.0,
    ) -> None:
        super().__init__()
        if clip is not None and not (isinstance(clip, int | float) and 0 < clip < math.inf):
            raise OptionError(
                f"clip is the largest absolute value of a factor, positive, or None, not {clip!r}"
            )
        self.num_inputs, self.num_outputs, self.clip = num_inputs, num_outputs, clip
        self.weight = nn.Parameter(torch.empty(num_outputs, num_inputs))
        self.bias = nn.Parameter(torch.empty(num_outputs))
        self.reset_parameters()
        for name, prior, size in (
            ("s", input_prior, num_inputs),
            ("r", output_prior, num_outputs),
        ):
            if prior is None:
                setattr(self, name, None)
            else:
                assign_prior(self, name, prior, torch.Size([size]))

    def reset_parameters(self) -> None:
        r"""Draw W from :math:`\mathcal N(0, 1/I)` (LeCun et al. 1998), and set b to 0."""
        with torch.no_grad():
            self.weight.normal_(0.0, 1.0 / math.sqrt(self.num_inputs))
            self.bias.zero_()

    def forward(self, x: Tensor) -> Tensor:
        """Map x ``[..., I]`` to ``[..., O]``."""
        s, r = self.s, self.r
        if s is not None:
            x = x * self._clipped(value_of(s))  # [..., I]
        h = nn.functional.linear(x, self.weight)  # [..., O]
        if r is not None:
            h = h * self._clipped(value_of(r))
        return h + self.bias

    def _clipped(self, factor: Tensor) -> Tensor:
        return factor if self.clip is None else factor.clamp(-self.clip, self.clip)
