r"""Multilayer perceptron with a prior over every weight and bias.

.. math:: h_0 = x, \quad h_l = \phi(h_{l-1} W_l^\top + b_l), \quad
          f = h_{L-1} W_L^\top + b_L, \quad y \sim p(y \mid f)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from pyro.nn import PyroModule
from torch import Tensor, nn

from pyro_bnn.errors import SiteError
from pyro_bnn.layers import Linear
from pyro_bnn.likelihoods import Likelihood
from pyro_bnn.likelihoods import Normal as NormalLikelihood
from pyro_bnn.models.contract import own_likelihood
from pyro_bnn.models.outputs import record_output
from pyro_bnn.models.perceptron import (
    Activation,
    activation_function,
    feed_forward,
    layer_sizes,
    require_columns,
)
from pyro_bnn.priors import Normal as NormalPrior
from pyro_bnn.priors import Priors, match_priors


class MLP(PyroModule):
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
        super().__init__()
        self.activation = activation_function(activation)
        self.likelihood = own_likelihood(NormalLikelihood() if likelihood is None else likelihood)
        sizes = layer_sizes(num_inputs, num_outputs, hidden, self.likelihood)
        names = [f"layers.{i}.{kind}" for i in range(len(sizes) - 1) for kind in ("weight", "bias")]
        priors = match_priors(NormalPrior() if prior is None else prior, names)
        if missing := [name for name in names if name not in priors]:
            raise SiteError(
                f"no prior pattern matches {', '.join(missing)}; every weight of an MLP has a "
                'prior: add {"*": pyro_bnn.priors.Normal()} as the last pattern'
            )
        self.num_inputs = num_inputs
        make_list: Any = PyroModule[nn.ModuleList]  # a class made on the fly
        self.layers: nn.ModuleList = make_list(
            [
                Linear(
                    sizes[i],
                    sizes[i + 1],
                    priors[f"layers.{i}.weight"],
                    priors[f"layers.{i}.bias"],
                )
                for i in range(len(sizes) - 1)
            ]
        )

    def network(self, x: Tensor) -> Tensor:
        """The network's output f ``[N, F]`` at inputs x ``[N, I]``."""
        return feed_forward(self.layers, self.activation, x)

    def forward(self, x: Tensor, y: Tensor | None = None) -> Tensor:
        """Sample the weights, record f, and sample or observe y.

        Args:
            x: Inputs ``[N, I]``.
            y: Observations ``[N]`` or ``[N, O]``, or None to sample them.

        Returns:
            y, sampled where it was None.

        Raises:
            ShapeError: If x does not have ``num_inputs`` columns.
        """
        require_columns(x, self.num_inputs)
        f = record_output(self, self.network, x)
        return cast(Tensor, self.likelihood(f, y))
