r"""Uncertainty between clusters of data, where mean-field and dropout networks are overconfident.

.. math:: \mathrm{Var} f(x) = \sum_i \bigl[(m_i^2 + v_i)\,\mathrm E\,\mathrm{relu}(h_i)^2
          - m_i^2 (\mathrm E\,\mathrm{relu}(h_i))^2\bigr] + v_b,
          \qquad h_i \sim \mathcal N(a_i(x), s_i^2(x)) \text{ independent}
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from pyro_bnn.errors import ModelError, OptionError, ShapeError
from pyro_bnn.guides import AutoDropout, AutoKTiedNormal, AutoNormal
from pyro_bnn.models import MLP
from pyro_bnn.models.network import ACTIVATIONS
from pyro_bnn.posterior.guide_posterior import GuidePosterior
from pyro_bnn.posterior.posterior import Posterior

FACTORISED = (AutoNormal, AutoKTiedNormal)  # all weights independent
SITES = tuple(f"layers.{i}.{kind}" for i in range(2) for kind in ("weight", "bias"))
ROUNDING = 1e-6  # of points of a segment, relative to its ends


@dataclass(frozen=True, eq=False)
class LinearLayer:
    """A fully connected layer of H units on I inputs, by one number a weight and bias.

    Attributes:
        weight: ``[H, I]``.
        bias: ``[H]``.
    """

    weight: Float[Tensor, "H I"]
    bias: Float[Tensor, " H"]

    def __call__(self, x: Float[Tensor, "N I"]) -> Float[Tensor, "N H"]:
        """``x W^T + b``."""
        return nn.functional.linear(x, self.weight, self.bias)

    def without_bias(self, x: Float[Tensor, "N I"]) -> Float[Tensor, "N H"]:
        """``x W^T``."""
        return x @ self.weight.T

    def squared(self) -> LinearLayer:
        """The layer of all numbers squared."""
        return LinearLayer(self.weight.square(), self.bias.square())


@dataclass(frozen=True, eq=False)
class MeanFieldNet:
    r"""A one-hidden-layer ReLU network of independent Gaussian weights: moments of f, exactly.

    With :math:`u = a/s`, :math:`\mathrm E\,\mathrm{relu}(h) = a\Phi(u) + s\varphi(u)` and
    :math:`\mathrm E\,\mathrm{relu}(h)^2 = (a^2 + s^2)\Phi(u) + a s \varphi(u)`.

    Args:
        hidden_loc: Means of the hidden layer.
        hidden_variance: Variances of the same.
        output_loc: Means of the output layer.
        output_variance: Variances of the same.

    Example:
        >>> one, zero = torch.ones(1, 1), torch.zeros(1)
        >>> unit, off = LinearLayer(one, zero), LinearLayer(0 * one, zero)
        >>> net = MeanFieldNet(off, unit, off, unit)  # f = w relu(v x), w and v standard normal
        >>> net.variance(torch.tensor([[2.0]])).tolist()  # E w^2 E relu(v x)^2 = x^2 / 2
        [[2.0]]
    """

    hidden_loc: LinearLayer
    hidden_variance: LinearLayer
    output_loc: LinearLayer
    output_variance: LinearLayer

    @classmethod
    def of(cls, posterior: Posterior) -> MeanFieldNet:
        """The network of a mean-field fit of an ``MLP`` with one hidden ReLU layer, in float64.

        Raises:
            ModelError: If the fit or its model is of another kind.
        """
        guide = posterior.guide if isinstance(posterior, GuidePosterior) else None
        if guide is None or type(guide) not in FACTORISED:  # other AutoNormals are correlated
            raise ModelError(
                "the closed form is of independent Gaussian weights, as of AutoNormal; "
                f"{posterior.method} has others: take the variance of its function_draws"
            )
        marginals = guide.marginals()
        assert marginals is not None
        (hidden, output), (hidden_sd, output_sd) = (_layers(posterior, z) for z in marginals)
        return cls(hidden, hidden_sd.squared(), output, output_sd.squared())

    def mean(self, x: Float[Tensor, "N I"]) -> Float[Tensor, "N F"]:
        """Mean of f at inputs."""
        first, _ = self._units(x)
        return self.output_loc(first)

    def variance(self, x: Float[Tensor, "N I"]) -> Float[Tensor, "N F"]:
        """Variance of f at inputs: epistemic, without the noise of y."""
        first, second = self._units(x)
        of_units = self.output_loc.squared().without_bias(second - first.square())
        return of_units + self.output_variance(second)

    def _units(self, x: Tensor) -> tuple[Float[Tensor, "N H"], Float[Tensor, "N H"]]:
        """First and second moments of the hidden units."""
        x = x.to(self.hidden_loc.bias)
        a, variance = self.hidden_loc(x), self.hidden_variance(x.square())
        s = variance.clamp(min=torch.finfo(a.dtype).tiny).sqrt()
        cdf = torch.special.ndtr(a / s)
        density = (-0.5 * (a / s).square()).exp() / math.sqrt(2 * math.pi)
        return a * cdf + s * density, (a.square() + variance) * cdf + a * s * density


def dropout_variance(posterior: Posterior, x: Float[Tensor, "N I"]) -> Float[Tensor, "N F"]:
    r"""Variance of f under MC dropout of the hidden units of a one-hidden-layer ReLU network.

    .. math:: \mathrm{Var} f(x) = \frac{p}{1 - p} \sum_i w_i^2\, \mathrm{relu}(a_i(x))^2

    It is convex in x, as each term is: between two points it never exceeds the larger of theirs.

    Args:
        posterior: Fit of ``AutoDropout(kind="bernoulli")`` of an ``MLP`` with one hidden ReLU
            layer, the inputs kept.
        x: Inputs.

    Raises:
        ModelError: If the fit or its model is of another kind.

    References:
        Foong et al., "On the Expressiveness of Approximate Inference in Bayesian Neural Networks",
        NeurIPS 2020, arXiv:1909.00719, theorem 2.
    """
    guide = posterior.guide if isinstance(posterior, GuidePosterior) else None
    if not isinstance(guide, AutoDropout) or guide.kind != "bernoulli" or guide.drop_inputs:
        raise ModelError(
            'the variance is convex under AutoDropout(kind="bernoulli") of hidden units alone, not '
            f"under {posterior.method} with {dict(posterior.options)}"
        )
    hidden, output = _layers(posterior, guide.centre())
    units = hidden(x.to(hidden.bias)).relu().square()
    return guide.rate / (1 - guide.rate) * output.squared().without_bias(units)


# The bound on a segment


def segment(p: Tensor, q: Tensor, num_points: int = 101) -> Float[Tensor, "M I"]:
    """Points at equal distances from p ``[I]`` to q ``[I]``, both included.

    Raises:
        OptionError: If there are fewer than two points.
        ShapeError: If p and q are not vectors of one length.
    """
    if num_points < 2:
        raise OptionError(f"a segment has two ends: num_points is at least 2, not {num_points}")
    if p.ndim != 1 or p.shape != q.shape:
        raise ShapeError(
            f"p and q are two points [I], not of shapes {tuple(p.shape)} and {tuple(q.shape)}"
        )
    t = torch.linspace(0, 1, num_points, dtype=p.dtype, device=p.device).unsqueeze(1)
    return (1 - t) * p + t * q


def is_bounded(x: Float[Tensor, "M I"]) -> Bool[Tensor, " M"]:
    r"""At which points r of a segment mean-field obeys the bound.

    .. math:: \mathrm{Var} f(r) \le \mathrm{Var} f(p) + \mathrm{Var} f(q)

    for a fully factorised Gaussian over the weights of a one-hidden-layer ReLU network, if the
    segment pq (i) passes through the origin and r is closer to it than p and q, or (ii) is parallel
    to an axis d and crosses the plane :math:`x_d = 0`, to which r is closer than p and q.

    Args:
        x: Points of a segment, p first and q last.

    References:
        Foong et al., "On the Expressiveness of Approximate Inference in Bayesian Neural Networks",
        NeurIPS 2020, arXiv:1909.00719, theorem 1.

    Example:
        >>> is_bounded(segment(torch.tensor([-2.0, 1.0]), torch.tensor([1.0, 1.0]), 4)).tolist()
        [False, False, True, False]
    """
    p, q = x[0], x[-1]
    slack = ROUNDING * (p.norm() + q.norm())
    moves = (q - p).abs() > slack  # [I]
    between = (p * q.norm() + q * p.norm()).norm()  # 0 if in opposite directions of the origin
    is_through_origin = bool(between <= ROUNDING * p.norm() * q.norm())
    distance = x.norm(dim=1) if is_through_origin else (x * moves).norm(dim=1)
    # of a segment that does not cross the plane no point is nearer to it than both ends
    is_nearer: Tensor = distance < torch.minimum(distance[0], distance[-1]) - slack
    return is_nearer & (is_through_origin or bool(moves.sum() == 1))


def bound_ratio(variance: Float[Tensor, "M ..."], x: Float[Tensor, "M I"]) -> Float[Tensor, ...]:
    r"""Largest :math:`\mathrm{Var} f(r) / (\mathrm{Var} f(p) + \mathrm{Var} f(q))` on a segment.

    At most 1 for every one-hidden-layer mean-field ReLU network, trained or not; what exceeds it is
    in-between uncertainty that such a network cannot have.

    Args:
        variance: Variance of f at the points, of any method: exact, or of draws.
        x: Points of a segment, p first and q last.

    Raises:
        OptionError: If the bound holds at no point of the segment; see :func:`is_bounded`.
        ShapeError: If there is not one variance for each point.
    """
    if len(variance) != len(x):
        raise ShapeError(f"{len(variance)} variances do not fit {len(x)} points")
    if not bool((inside := is_bounded(x)).any()):
        raise OptionError(
            "the bound says nothing on this segment: take one through the origin, or parallel to "
            "an axis and across its zero"
        )
    largest: Tensor = variance[inside].amax(0)
    return largest / (variance[0] + variance[-1])


def overconfidence(
    variance: Float[Tensor, "*shape"], reference: Float[Tensor, "*shape"]
) -> Float[Tensor, "*shape"]:
    """Overconfidence ratio: sd of f of a reference (NNGP, HMC) over that of a method.

    Above 1 the method is more certain than the reference, 2 for half its sd.

    Args:
        variance: Variance of f of the method.
        reference: That of the reference, at the same points.

    Raises:
        ShapeError: If the shapes differ.

    References:
        Foong et al., NeurIPS 2020, arXiv:1909.00719.

    Example:
        >>> overconfidence(torch.tensor([0.25, 4.0]), torch.tensor([1.0, 1.0])).tolist()
        [2.0, 0.5]
    """
    if variance.shape != reference.shape:
        raise ShapeError(
            f"variance has shape {tuple(variance.shape)}, the reference {tuple(reference.shape)}"
        )
    return (reference / variance).sqrt()


def _layers(posterior: Posterior, z: Tensor) -> tuple[LinearLayer, LinearLayer]:
    """The hidden and the output layer out of one number an entry of z ``[P]``, in float64."""
    model, sites = posterior.model, {site.name: site for site in posterior.program.sites}
    if type(model) is not MLP or len(model.layers) != 2 or not sites.keys() >= set(SITES):
        raise ModelError(
            "the variance has a closed form for pyro_bnn.models.MLP of one hidden layer whose "
            "weights are sample sites of their own"
        )
    if model.activation is not ACTIVATIONS["relu"] and not isinstance(model.activation, nn.ReLU):
        raise ModelError("the variance has a closed form here for the activation relu alone")
    z = z.detach().cpu().double()
    values = [sites[name].unconstrained(z) for name in SITES]
    return LinearLayer(*values[:2]), LinearLayer(*values[2:])
