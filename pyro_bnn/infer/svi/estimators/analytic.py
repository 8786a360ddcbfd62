r"""The ELBO of a one-hidden-layer ReLU net under a factorised Gaussian, without a draw.

Given x the pre-activations are independent Gaussians, :math:`h_i \sim \mathcal N(a_i, s_i^2)`. With
:math:`u = a / s`, output weights of mean :math:`m_i` and variance :math:`v_i`,

.. math::
    \mathbb E\, \mathrm{relu}(h) &= a\,\Phi(u) + s\,\phi(u), \quad
    \mathbb E\, \mathrm{relu}(h)^2 = (a^2 + s^2)\,\Phi(u) + a s\,\phi(u) \\
    \mathrm{Var} f &= \sum_i \bigl[(m_i^2 + v_i)\, \mathbb E\,\mathrm{relu}(h_i)^2
      - m_i^2\, (\mathbb E\,\mathrm{relu}(h_i))^2\bigr] + v_b \\
    \mathbb E \log \mathcal N(y \mid f, t^2) &= -\tfrac12 \log 2\pi - \mathbb E \log t
      - \tfrac12\, \mathbb E[t^{-2}]\, \bigl((y - \mathbb E f)^2 + \mathrm{Var} f\bigr)

Frey & Hinton, "Variational Learning in Nonlinear Gaussian Belief Networks", Neural Computation
11(1), 1999; Hinton & van Camp, "Keeping Neural Networks Simple by Minimizing the Description Length
of the Weights", COLT 1993.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import cast

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import linear

from pyro_bnn.errors import OptionError
from pyro_bnn.handled import model_name
from pyro_bnn.infer.svi.estimators.estimator import Estimator, is_factorised
from pyro_bnn.likelihoods import Normal
from pyro_bnn.models import MLP
from pyro_bnn.posterior.guide_posterior import GuidePosterior
from pyro_bnn.posterior.posterior import Posterior
from pyro_bnn.posterior.rows import Data
from pyro_bnn.program.closed_forms import FAMILIES
from pyro_bnn.program.distributions import base_distribution
from pyro_bnn.program.handlers import trace_model
from pyro_bnn.program.program import Program
from pyro_bnn.program.random_state import isolated
from pyro_bnn.program.terms import Batch, GuideTerms, Params

NUM_NODES = 20  # of the quadrature of a prior, exact for polynomials of degree 39
WEIGHTS = ("layers.0.weight", "layers.0.bias", "layers.1.weight", "layers.1.bias")
NOISE = "likelihood.scale"


class Analytic(Estimator):
    """The expected log likelihood in closed form, for a one-hidden-layer ReLU ``MLP``.

    The likelihood is ``Normal``, of a fixed scale or a learned positive one, whose logarithm is
    Gaussian under q. Priors of the weights are those whose KL is in closed form; that of a learned
    scale is found by Gauss-Hermite quadrature. Given the rows, nothing is random.

    Args:
        program: The model as tensor functions.

    Raises:
        OptionError: If the model is another one; says what differs.
    """

    name = "analytic"

    def __init__(self, program: Program) -> None:
        super().__init__(program)
        if reason := why_not(program):
            raise OptionError(
                'estimator="analytic" is in closed form for models.MLP with one hidden ReLU layer, '
                f"the likelihood Normal and priors Normal or Laplace, but {reason}: take "
                '"local_reparameterization"'
            )
        like = program.initial
        self._noise = next((site for site in program.sites if site.name == NOISE), None)
        self._fixed_scale = program.snapshot.buffers.get(NOISE)
        self.nodes = like.new_zeros(1, program.num_latents)
        if self._noise is not None:
            nodes, weights = np.polynomial.hermite_e.hermegauss(NUM_NODES)
            self.nodes = self.nodes.repeat(NUM_NODES, 1)
            entries = slice(self._noise.start, self._noise.stop)
            self.nodes[:, entries] = torch.from_numpy(nodes).to(like).unsqueeze(-1)
            self.kl_weights = torch.from_numpy(weights / weights.sum()).to(like)

    def rows(
        self,
        terms: GuideTerms,
        noise: Sequence[Tensor],  # noqa: ARG002
        batch: Batch,
        params: Params,  # noqa: ARG002
        own: Params,  # noqa: ARG002
    ) -> tuple[Tensor, float]:
        """Expected log densities ``[1, B]`` of the rows, and N/B; see the base class."""
        assert terms.marginals is not None
        loc, scale = terms.marginals.loc, terms.marginals.scale
        means, scales = self.program.constrain(loc), self.program.constrain(scale)
        f, variance = function_moments(batch.x, means, scales)  # [B, O] each
        if self._noise is None:
            log_scale = cast(Tensor, self._fixed_scale).log()
            precision = (-2 * log_scale).exp()
        else:
            log_scale, sd = self._noise.unconstrained(loc), self._noise.unconstrained(scale)
            precision = (2 * sd.square() - 2 * log_scale).exp()  # E exp(-2 log t)
        misfit = (batch.y - f).square() + variance
        rows = -0.5 * math.log(2 * math.pi) - log_scale - 0.5 * precision * misfit  # [B, O]
        return rows.sum(-1).unsqueeze(0), self.program.num_data / batch.x.shape[0]


def why_not(program: Program) -> str:
    """What of a model keeps its ELBO from a closed form; empty where nothing does."""
    model = program.model
    if type(model) is not MLP:
        return f"this is {model_name(model)}"
    if len(model.layers) != 2:
        return f"this has {len(model.layers) - 1} hidden layers"
    if model.activation not in (torch.relu, torch.nn.functional.relu):
        return "its activation is another one"
    if type(model.likelihood) is not Normal:
        return f"its likelihood is {type(model.likelihood).__name__}"
    names = [site.name for site in program.sites]
    if others := [name for name in names if name not in (*WEIGHTS, NOISE)]:
        return f"it has the site {others[0]!r}"
    if missing := [name for name in WEIGHTS if name not in names]:
        return f"it has no site {missing[0]!r}"
    with isolated():
        messages = trace_model(model, (program.example.x,)).messages
    for site in program.sites:
        prior = base_distribution(messages[site.name]["fn"])
        if prior.event_shape:
            return f"the prior of {site.name!r} is over several entries together"
        if site.name == NOISE:
            entries = program.initial.new_tensor([[-1.0], [1.0]]).repeat(1, site.stop - site.start)
            value = site.value_of(entries).reshape(entries.shape)
            if not torch.allclose(value, entries.exp()):
                return f"the support of {site.name!r} is {site.support}, not all positive numbers"
        elif type(prior) not in FAMILIES or "normal" not in FAMILIES[type(prior)].expected_log_prob:
            return f"{site.name!r} has the prior {type(prior).__name__}"
    return ""


def relu_moments(
    loc: Float[Tensor, "*S"], scale: Float[Tensor, "*S"]
) -> tuple[Float[Tensor, "*S"], Float[Tensor, "*S"]]:
    """Mean and variance of max(h, 0) under h ~ N(loc, scale²), entry by entry."""
    u = loc / scale
    above: Tensor = torch.special.ndtr(u)
    below: Tensor = torch.special.ndtr(-u)
    density = (-0.5 * u.square()).exp() / math.sqrt(2 * math.pi)
    mean = loc * above + scale * density
    # E relu² - (E relu)², sorted so that nothing large cancels where h is far above 0
    standard = above * (1 + u.square() * below) + u * density * (below - above) - density.square()
    return mean, scale.square() * standard.clamp_min(0)


def function_moments(
    x: Float[Tensor, "B I"], means: Mapping[str, Tensor], scales: Mapping[str, Tensor]
) -> tuple[Float[Tensor, "B O"], Float[Tensor, "B O"]]:
    """Mean and variance of f of a one-hidden-layer ReLU net with independent Gaussian weights.

    Args:
        x: Inputs.
        means: Means of the weights and biases by the names of an ``MLP``'s sites.
        scales: Their standard deviations.
    """
    in_weight, in_bias, out_weight, out_bias = (means[name] for name in WEIGHTS)
    in_variance, in_bias_variance, out_variance, out_bias_variance = (
        scales[name].square() for name in WEIGHTS
    )
    a = linear(x, in_weight, in_bias)  # [B, H]
    s = linear(x.square(), in_variance, in_bias_variance).sqrt()
    hidden, spread = relu_moments(a, s)
    f = linear(hidden, out_weight, out_bias)  # [B, O]
    second = hidden.square() + spread
    variance = linear(spread, out_weight.square()) + linear(second, out_variance)
    return f, variance + out_bias_variance


def closed_form_elbo(posterior: GuidePosterior, data: Data) -> float:
    """ELBO on ``data`` in nats, without Monte Carlo error, in the units of ``posterior.elbo``.

    Args:
        posterior: A fit of ``guides.AutoNormal`` to a one-hidden-layer ReLU ``MLP``.
        data: A ``Dataset`` or a pair (x, y).

    Raises:
        OptionError: If there is no closed form; says why.
    """
    program, guide = posterior.program, posterior.guide
    if not is_factorised(guide):
        raise OptionError(
            f"the ELBO is in closed form for guides.AutoNormal, not for {type(guide).__name__}: "
            "take posterior.elbo"
        )
    estimator = Analytic(program)
    assert estimator.nodes is not None
    batch = posterior.batch(data)
    named = {f"guide.{name}": value for name, value in guide.named_parameters()}
    params = {**named, **{f"model.{name}": value for name, value in posterior.params.items()}}
    with torch.no_grad():
        terms = program.elbo(guide, params, estimator.nodes, batch, estimator)
    unscaled = terms.expected_log_likelihood * len(batch.x) / program.num_data
    return float(unscaled - terms.kl)


def description_length(
    posterior: Posterior, data: Data, *, precision: float = 1.0, seed: int = 0
) -> tuple[float, float]:
    r"""Bits to send the targets and the weights, :math:`-\mathcal L / \log 2`, and their error.

    A sender and a receiver share x and the prior. The weights cost KL(q || p), as the random bits
    that choose a draw of q come back; the misfits cost the rest (bits back).

    Args:
        posterior: A posterior with an ELBO.
        data: The rows that are sent.
        precision: Step to which each target is coded, in the units of the model; a target costs
            ``-log2(precision)`` bits more. Only differences between models do not depend on it.
        seed: Seed of the draws, where the ELBO is not in closed form.

    Returns:
        The bits, and their Monte Carlo error; 0 where the ELBO is in closed form.

    Raises:
        OptionError: If the precision is not positive.
        SiteError: If the posterior has no ELBO.

    References:
        Hinton & van Camp, COLT 1993.
    """
    if not 0 < precision < math.inf:
        raise OptionError(f"precision is a positive step of the target, not {precision!r}")
    is_gaussian = isinstance(posterior, GuidePosterior) and is_factorised(posterior.guide)
    if is_gaussian and not why_not(posterior.program):
        elbo, error = closed_form_elbo(cast(GuidePosterior, posterior), data), 0.0
    else:
        elbo, error = posterior.elbo(data, seed=seed)
    step = math.log2(precision) * posterior.batch(data).y.numel()
    return -elbo / math.log(2) - step, error / math.log(2)
