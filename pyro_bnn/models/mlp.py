r"""Multilayer perceptron with a prior over every weight and bias.

.. math:: h_0 = x, \quad h_l = \phi(h_{l-1} W_l^\top + b_l), \quad
          f = h_{L-1} W_L^\top + b_L, \quad y \sim p(y \mid f)
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from pyro_bnn.layers import Linear
from pyro_bnn.likelihoods import Likelihood
from pyro_bnn.models.network import (
    Activation,
    Perceptron,
    activation_function,
    module_list,
    priors_of_all,
)
from pyro_bnn.priors import Priors


class MLP(Perceptron):
    """Bayesian multilayer perceptron; every weight and bias is a Pyro sample site.

    Sites are named ``layers.<l>.weight`` ``[O, I]`` and ``layers.<l>.bias`` ``[O]``; a hierarchical
    prior makes several of one weight, ``layers.<l>.weight.scale``, ``layers.<l>.weight.raw``.

    Args:
        num_inputs: Number of input columns I.
        num_outputs: Number of targets O.
        hidden: Units of each hidden layer.
        activation: ``"relu"``, ``"leaky_relu"`` (slope 0.01; for another pass
            ``torch.nn.LeakyReLU(slope)``), ``"tanh"``, ``"erf"``, ``"silu"``, ``"identity"``,
            or a callable that maps a tensor elementwise.
        prior: One prior for all weights and biases, or a mapping from name patterns to priors
            that covers all of them. Default: Gaussian with fan-in scale.
        likelihood: Distribution of y given f. Default: Gaussian noise with learned scale.

    Raises:
        OptionError: If a size is not a positive integer, or the activation is a class.
        SiteError: If the patterns leave a weight without a prior, or one matches nothing.
        UnknownNameError: If the activation's name is not known.

    Example:
        >>> import torch
        >>> model = MLP(3, hidden=(8,))
        >>> model(torch.zeros(5, 3)).shape
        torch.Size([5, 1])
    """

    def __init__(
        self,
        num_inputs: int,
        num_outputs: int = 1,
        *,
        hidden: Sequence[int] = (50,),
        activation: str | Activation = "relu",
        prior: Priors | None = None,
        likelihood: Likelihood | None = None,
    ) -> None:
        super().__init__(num_inputs, num_outputs, hidden, likelihood)
        self.activation = activation_function(activation)
        self.layers = module_list(linear_layers(self, prior))


def linear_layers(model: Perceptron, prior: Priors | None, *, bias: bool = True) -> list[Linear]:
    """Fully connected layers whose weights, and biases where they have some, are sites.

    Raises:
        SiteError: If the patterns of ``prior`` leave a weight without one, or one matches nothing.
    """
    kinds = ("weight", "bias") if bias else ("weight",)
    names = [f"layers.{i}.{kind}" for i in range(len(model.sizes) - 1) for kind in kinds]
    priors = priors_of_all(prior, names, model)
    return [
        Linear(before, after, priors[f"layers.{i}.weight"], priors.get(f"layers.{i}.bias"))
        for i, (before, after) in enumerate(itertools.pairwise(model.sizes))
    ]
