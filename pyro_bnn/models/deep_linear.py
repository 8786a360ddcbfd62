r"""Deep linear network: layers without activations, whose product is one matrix.

.. math:: h_l = h_{l-1} W_l^\top + b_l, \quad f = h_L = x M^\top + c, \qquad M = W_L \cdots W_1
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from pyro_bnn.errors import SiteError
from pyro_bnn.likelihoods import Likelihood
from pyro_bnn.models.mlp import linear_layers
from pyro_bnn.models.network import Perceptron, module_list
from pyro_bnn.priors import Priors


class DeepLinear(Perceptron):
    r"""Bayesian deep linear network; every weight and bias is a Pyro sample site.

    .. math:: f = x M^\top + c, \qquad M = W_L \cdots W_1

    Its functions are those of a linear regression, whose matrix is M, but with independent weights
    in each layer the entries of M are correlated: this is where what mean-field layers can express
    is seen without activations. Sites are named as those of :class:`pyro_bnn.models.MLP`. Weights
    are not identified: W_2 A and A^{-1} W_1 have the product of W_2 and W_1 for every invertible A,
    so look at M and f.

    Args:
        num_inputs: Number of input columns I.
        num_outputs: Number of targets O.
        hidden: Units of each hidden layer; M has at most the rank of the smallest.
        bias: Whether layers have biases.
        prior: One prior for all weights and biases, or a mapping from name patterns to priors
            that covers all of them. Default: Gaussian with fan-in scale.
        likelihood: Distribution of y given f. Default: Gaussian noise with learned scale.

    Raises:
        OptionError: If a size is not a positive integer.
        SiteError: If the patterns leave a weight without a prior, or one matches nothing.

    References:
        Farquhar, Smith & Gal, "Liberty or Depth: Deep Bayesian Neural Nets Do Not Need Complex
        Weight Posterior Approximations", NeurIPS 2020, arXiv:2002.03704.

    Example:
        >>> model = DeepLinear(3, 2, hidden=(8,), bias=False)
        >>> first, second = torch.ones(5, 8, 3), torch.ones(5, 2, 8)  # of five draws
        >>> model.product_matrix({"layers.0.weight": first, "layers.1.weight": second})[0]
        tensor([[8., 8., 8.],
                [8., 8., 8.]])
    """

    def __init__(
        self,
        num_inputs: int,
        num_outputs: int = 1,
        *,
        hidden: Sequence[int] = (50,),
        bias: bool = True,
        prior: Priors | None = None,
        likelihood: Likelihood | None = None,
    ) -> None:
        super().__init__(num_inputs, num_outputs, hidden, likelihood)
        self.layers = module_list(linear_layers(self, prior, bias=bias))

    def product_matrix(self, z: Mapping[str, Tensor]) -> Float[Tensor, "*S F I"]:
        r"""The matrix :math:`M = W_L \cdots W_1` of each draw.

        Args:
            z: Values of the sites, ``[..., *shape]`` each, as ``posterior.sample()`` gives them;
                only those of weights are read.

        Raises:
            SiteError: If a weight is no site: under a hierarchical prior it is made of several.
        """
        names = [f"layers.{i}.weight" for i in range(len(self.layers))]
        if missing := [name for name in names if name not in z]:
            raise SiteError(
                f"no values of {', '.join(missing)}, but of {', '.join(z)}: pass what "
                "posterior.sample() returns, of a model whose weights are one site each"
            )
        product = z[names[0]]
        for name in names[1:]:
            product = torch.matmul(z[name], product)  # [..., units, I]
        return product
