r"""Multilayer perceptron of rank-1 layers.

.. math:: W'_l = W_l \circ (r_l s_l^\top), \quad h_0 = x, \quad
          h_l = \phi(h_{l-1} W_l'^\top + b_l), \quad f = h_{L-1} W_L'^\top + b_L, \quad
          y \sim p(y \mid f)

Dusenberry et al., "Efficient and Scalable Bayesian Neural Nets with Rank-1 Factors", ICML 2020,
arXiv:2005.07186.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Literal

from torch import nn

from pyro_bnn.layers import Rank1Linear
from pyro_bnn.likelihoods import Likelihood
from pyro_bnn.models.network import Activation, Perceptron, activation_function, module_list
from pyro_bnn.models.rank1_parts import WEIGHT_PRIOR, Rank1Network
from pyro_bnn.priors import PriorLike, Priors


class Rank1MLP(Rank1Network, Perceptron):
    r"""Multilayer perceptron with point-estimated weights and random factors of inputs and outputs.

    .. math:: W'_l = W_l \circ (r_l s_l^\top)

    Sites are ``layers.<l>.s`` ``[I]``, a factor of each input of a layer, and ``layers.<l>.r``
    ``[O]``, a factor of each output. ``layers.<l>.weight`` ``[O, I]`` and ``layers.<l>.bias``
    ``[O]`` are parameters: SVI trains them, NUTS holds them at their values. The layer's docstring
    (:class:`pyro_bnn.layers.Rank1Linear`) says which correlations of weights this captures.

    The default prior of the factors is :math:`\mathcal N(1, 0.1^2)`, the one of the reference.
    Factors of 1 leave the trained net as it is, and with 0 at ten standard deviations no factor
    changes its sign: the mirror image of a layer, r and s both negated, is no second mode. A guide
    starts its factors near +1 likewise, as one at -1 costs 200 nats more than one at +1, which
    few rows do not make up for. A wider prior, up to :math:`\mathcal N(1, 0.5^2)`, gives a small
    net on tabular data a larger epistemic standard deviation.

    Weight decay is the prior of ``weight`` and ``bias``: its log density is recorded once,
    outside the plate "data", by ``pyro.factor("weight_prior", ...)``. An L2 penalty
    :math:`\lambda \sum w^2` on the loss averaged over N rows is the prior standard deviation
    :math:`1/\sqrt{2 \lambda N}`.

    Args:
        num_inputs: Number of input columns I.
        num_outputs: Number of targets O.
        hidden: Units of each hidden layer.
        activation: Name or callable, as in :class:`pyro_bnn.models.MLP`.
        prior: One prior for all factors, or a mapping from patterns over the site names to priors
            that covers all of them. Any that is Normal, Cauchy, half-Cauchy or log-normal around
            1, any other Pyro distribution, or a scale mixture such as
            ``priors.HalfCauchyScale(loc=1.0)``. Default: Gaussian around 1 with scale 0.1.
        on: ``"both"``, or ``"inputs"`` for s alone, or ``"outputs"`` for r alone.
        weight_prior: Prior over every entry of the weights and biases, or None for none. Default:
            Gaussian with fan-in scale.
        clip: Largest absolute value with which a factor acts, or None; part of the model.
        likelihood: Distribution of y given f. Default: Gaussian noise with learned scale.

    Raises:
        OptionError: If a size or the clip is not positive, the activation is a class, or the
            weight prior has no density at the initial weights.
        SiteError: If the patterns leave a factor without a prior, or one matches nothing.
        UnknownNameError: If the name of the activation or of the side is not known.

    References:
        Dusenberry et al., "Efficient and Scalable Bayesian Neural Nets with Rank-1 Factors", ICML
        2020, arXiv:2005.07186.

    Example:
        >>> import torch
        >>> model = Rank1MLP(3, hidden=(8,))
        >>> model(torch.zeros(5, 3)).shape
        torch.Size([5, 1])
        >>> [name for name, _ in model.named_parameters()][:2]
        ['layers.0.weight', 'layers.0.bias']
    """

    layers: nn.ModuleList

    def __init__(
        self,
        num_inputs: int,
        num_outputs: int = 1,
        *,
        hidden: Sequence[int] = (50,),
        activation: str | Activation = "relu",
        prior: Priors | None = None,
        on: Literal["both", "inputs", "outputs"] = "both",
        weight_prior: PriorLike | None = WEIGHT_PRIOR,
        clip: float | None = 10.0,
        likelihood: Likelihood | None = None,
    ) -> None:
        super().__init__(num_inputs, num_outputs, hidden, likelihood)
        self.activation = activation_function(activation)
        self.layers = module_list(
            Rank1Linear(before, after, clip=clip)
            for before, after in itertools.pairwise(self.sizes)
        )
        self.set_factor_priors(prior, on)
        self.set_weight_prior(weight_prior)
