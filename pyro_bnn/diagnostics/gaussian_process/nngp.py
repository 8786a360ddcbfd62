r"""The Gaussian process that a multilayer perceptron becomes as its hidden layers grow.

.. math:: K_0 = \sigma_b^2 + s_w^2\, x \cdot x', \qquad
          K_{l+1} = \sigma_b^2 + \sigma_w^2\,
          \mathrm E\,\phi(u)\phi(v), \quad (u, v) \sim \mathcal N(0, K_l), \quad
          \sigma_w^2 = H_l\, s_w^2
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, TypeAlias

import torch
from jaxtyping import Float
from torch import Tensor, nn

from pyro_bnn.data import Dataset
from pyro_bnn.data.arrays import ArrayLike
from pyro_bnn.diagnostics.gaussian_process.regression import GaussianProcess
from pyro_bnn.errors import ModelError, OptionError
from pyro_bnn.likelihoods import Normal as NormalLikelihood
from pyro_bnn.models import MLP
from pyro_bnn.models.description import describe
from pyro_bnn.models.network import ACTIVATIONS, Activation, require_columns
from pyro_bnn.priors import PriorModule
from pyro_bnn.program.distributions import base_distribution

ActivationExpectation: TypeAlias = Callable[[Tensor, Tensor, Tensor], Tensor]
"""E phi(u) phi(v) of Cov(u, v), Var u and Var v, which broadcast."""

SLOPES = {"relu": 0.0, "leaky_relu": 0.01, "identity": 1.0}


class NNGP:
    r"""The infinite-width limit of an MLP, with its own depth, activation and priors.

    As the hidden layers grow, with the prior variance of each weight falling as 1/width, draws of f
    from the prior become those of a Gaussian process, independent over outputs. Under a fan-in
    prior it is the limit of the same model with larger ``hidden``; under another,
    :math:`\sigma_w^2` is that of the widths given. With one hidden layer every covariance of f is
    exactly the MLP's at any width, and so is, of a piecewise-linear activation, the variance at any
    depth; all else differs by O(1/width). For piecewise-linear activations of slope a below 0,

    .. math:: \mathrm E\,\phi(u)\phi(v) = a K + (1 - a)^2 \frac{\sqrt{k k'}}{2\pi}
              \bigl(\sin\theta + (\pi - \theta)\cos\theta\bigr), \qquad
              \cos\theta = \frac{K}{\sqrt{k k'}}

    Args:
        model: An MLP with independent zero-mean Gaussian priors, one scale a weight or bias, and
            the activation relu, leaky_relu (any slope), identity or erf.
        noise: Standard deviation of y given f, > 0, in the (standardised) units of y; default that
            of the model's likelihood, where it is fixed.

    Raises:
        ModelError: If the model is another, or its kernel is not known in closed form.
        OptionError: If ``noise`` is not positive.

    References:
        Lee et al., "Deep Neural Networks as Gaussian Processes", ICLR 2018, arXiv:1711.00165;
        Matthews et al., "Gaussian Process Behaviour in Wide Deep Neural Networks", ICLR 2018,
        arXiv:1804.11271; Cho & Saul, "Kernel Methods for Deep Learning", NeurIPS 2009; Williams,
        "Computing with Infinite Networks", NeurIPS 1996.

    Example:
        >>> from pyro_bnn import likelihoods
        >>> model = MLP(1, hidden=(50,), likelihood=likelihoods.Normal(scale=0.1))
        >>> x = torch.tensor([[-1.0], [1.0]])
        >>> NNGP(model).covariance(x).round(decimals=3).tolist()
        [[2.0, 1.318], [1.318, 2.0]]
        >>> posterior = NNGP(model).posterior((x, x[:, 0]))
        >>> posterior.predict(x).mean.round(decimals=2).tolist()
        [[-0.99], [0.99]]
    """

    def __init__(self, model: MLP, noise: float | None = None) -> None:
        if type(model) is not MLP:  # a subclass may be another network
            raise ModelError(
                "the kernel of infinite width is known of pyro_bnn.models.MLP, not of "
                f"{type(model).__name__}"
            )
        if noise is not None and not 0 < noise < math.inf:
            raise OptionError(f"noise is a positive sd of y given f, not {noise!r}")
        self.model, self.noise = model, noise
        self._expectation = _expectation(model.activation)
        self._layers = [_variances(layer, i) for i, layer in enumerate(model.layers)]

    def covariance(self, x: Tensor, other: Tensor | None = None) -> Float[Tensor, "N M"]:
        """Prior covariance of one output at two sets of inputs, in float64.

        Args:
            x: Inputs ``[N, I]``.
            other: Inputs ``[M, I]``; default x.

        Raises:
            ShapeError: If the inputs do not have the model's columns.
        """
        rows = self._rows(x)
        columns = rows if other is None else self._rows(other)
        (weight, bias), *deeper = self._layers
        cross = bias + weight * rows @ columns.T  # [N, M]
        variance, others = (bias + weight * v.square().sum(1) for v in (rows, columns))  # [N], [M]
        for weight, bias in deeper:
            cross = bias + weight * self._expectation(cross, variance.unsqueeze(1), others)
            variance, others = (
                bias + weight * self._expectation(k, k, k) for k in (variance, others)
            )
        return cross

    def variance(self, x: Tensor) -> Float[Tensor, " N"]:
        """Prior variance of one output at inputs ``[N, I]``: the diagonal of the covariance.

        Raises:
            ShapeError: If the inputs do not have the model's columns.
        """
        (weight, bias), *deeper = self._layers
        variance = bias + weight * self._rows(x).square().sum(1)
        for weight, bias in deeper:
            variance = bias + weight * self._expectation(variance, variance, variance)
        return variance

    def posterior(self, data: Dataset | tuple[ArrayLike, ArrayLike]) -> GaussianProcess:
        """The exact posterior given training rows, as a method or the reference of ``compare``.

        Raises:
            ModelError: If the likelihood is not Gaussian, or its noise is learned and none given.
            ShapeError: If x or y does not fit the model.
        """
        outputs: Any = self.model.layers[-1]
        noise = self._noise().expand(outputs.num_outputs)
        return GaussianProcess(self, data if isinstance(data, Dataset) else Dataset(*data), noise)

    def describe(self) -> str:
        """The process in words, for tables that compare models."""
        noise = "" if self.noise is None else f", noise sd {self.noise:.3g}"
        return f"infinite width of {describe(self.model)}{noise}"

    def _rows(self, x: Tensor) -> Tensor:
        require_columns(x, self.model.num_inputs)
        return x.detach().cpu().double()

    def _noise(self) -> Tensor:
        likelihood = self.model.likelihood
        if type(likelihood) is not NormalLikelihood:
            raise ModelError(
                "the posterior of a Gaussian process has a closed form with Gaussian noise, not "
                f"with the {type(likelihood).__name__} likelihood"
            )
        if self.noise is not None:
            return torch.tensor(self.noise, dtype=torch.float64)
        if hasattr(likelihood, "scale_prior"):
            raise ModelError(
                "the likelihood's noise is learned, and the posterior has a closed form given its "
                "value: pass NNGP(model, noise=0.1), or another number"
            )
        return likelihood.scale.detach().cpu().double()


def _variances(layer: nn.Module, index: int) -> tuple[float, float]:
    """Prior variance of a weight, times its fan-in from the second layer on, and of a bias."""
    weight, bias = (_variance(layer, index, kind) for kind in ("weight", "bias"))
    fan_in: Any = layer.num_inputs
    return weight * (fan_in if index else 1), bias


def _variance(layer: nn.Module, index: int, kind: str) -> float:
    prior = getattr(layer, f"{kind}_prior", None)  # none of a hierarchy
    if isinstance(prior, PriorModule):
        base: Any = base_distribution(prior.distribution)
        if type(base).__name__ == "Normal" and bool(
            ((base.loc == 0) & (base.scale == base.scale.flatten()[0])).all()
        ):
            return float(base.scale.flatten()[0]) ** 2
    raise ModelError(
        f"the prior of layers.{index}.{kind} is not an independent Gaussian around 0 of one scale, "
        "of which alone the kernel is known: take prior=priors.Normal()"
    )


def _expectation(activation: Activation) -> ActivationExpectation:
    """Of an activation, where it has a closed form."""
    if activation is ACTIVATIONS["erf"]:
        return _arcsine
    for name, slope in SLOPES.items():
        if activation is ACTIVATIONS[name]:
            return partial(_arccosine, slope=slope)
    if isinstance(activation, nn.LeakyReLU):
        return partial(_arccosine, slope=float(activation.negative_slope))
    if isinstance(activation, nn.ReLU) or activation is nn.functional.relu:
        return partial(_arccosine, slope=0.0)
    name = getattr(activation, "__name__", type(activation).__name__)
    raise ModelError(
        f"the kernel of the activation {name} is not known in closed form: take relu, leaky_relu, "
        "identity or erf"
    )


def _arccosine(cross: Tensor, variance: Tensor, other: Tensor, *, slope: float) -> Tensor:
    """Of the function that is the identity above 0 and has this slope below."""
    size = (variance * other).sqrt()
    cosine = (cross / size).clamp(-1, 1)
    sine = (1 - cosine.square()).sqrt()
    relu = size / (2 * math.pi) * (sine + (math.pi - cosine.acos()) * cosine)
    return slope * cross + (1 - slope) ** 2 * relu


def _arcsine(cross: Tensor, variance: Tensor, other: Tensor) -> Tensor:
    """Of erf."""
    ratio: Tensor = 2 * cross / ((1 + 2 * variance) * (1 + 2 * other)).sqrt()
    return 2 / math.pi * ratio.asin()
