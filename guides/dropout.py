r"""Dropout as an approximate posterior, :math:`W = \Theta\,\mathrm{diag}(m)` with random m."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Literal, cast

import pyro.distributions as dist
import torch
from pyro.distributions.torch_distribution import TorchDistributionMixin as Distribution
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvTransposeNd

from pyro_bnn.checks import check_choice, check_positive, check_share
from pyro_bnn.errors import OptionError, SiteError
from pyro_bnn.guides.guide import ELBO, Guide, KLKind, check_init_scale, positive_parameter
from pyro_bnn.guides.parts.blocks import layers_of
from pyro_bnn.guides.parts.units import Part, Units
from pyro_bnn.handled import module_of
from pyro_bnn.layers.dropout import IS_MASK_NOISE, keeps
from pyro_bnn.models.from_network import BayesianModule
from pyro_bnn.program.closed_forms import Marginal
from pyro_bnn.program.handlers import Evaluate, Model
from pyro_bnn.program.latents import Latents, Marginals
from pyro_bnn.sites import Site

Kind = Literal["bernoulli", "concrete", "gaussian"]

DROPOUT = "dropout objective (no bound)"
TEMPERATURE, SPATIAL_TEMPERATURE = 0.1, 2 / 3  # of units, and of channels of a convolution
SMALLEST = 1e-8  # size below which a weight's noise shrinks no further: at 0 there is a density
MOLCHANOV = (0.63576, 1.87320, 1.48695)
LOG_ROOT_2_PI = 0.5 * math.log(2 * math.pi)
STANDARD_ENTROPY = 0.5 + LOG_ROOT_2_PI  # of N(0, 1)
RATE, INIT_SCALE = 0.1, 0.01


def log_uniform_kl(log_alpha: Tensor) -> Tensor:
    r"""KL of :math:`\mathcal N(\theta, \alpha\theta^2)` from the log-uniform prior, but a constant.

    .. math:: \mathrm{KL} \approx k_1 - k_1\,\sigma(k_2 + k_3 \log\alpha)
              + \tfrac12 \log(1 + \alpha^{-1}), \qquad k = (0.63576, 1.87320, 1.48695)

    The prior :math:`p(|w|) \propto 1/|w|` is improper: the constant is such that the value falls to
    0 as :math:`\alpha \to \infty`, and there is no evidence that it bounds. No guide here uses it.

    Args:
        log_alpha: Logarithm of :math:`\alpha`, of any shape.

    Returns:
        Nats a weight, of the same shape; the fit is within 0.01 of the integral.

    References:
        Molchanov, Ashukha & Vetrov, "Variational Dropout Sparsifies Deep Neural Networks", ICML
        2017, arXiv:1701.05369.
    """
    k1, k2, k3 = MOLCHANOV
    return k1 - k1 * torch.sigmoid(k2 + k3 * log_alpha) + 0.5 * nn.functional.softplus(-log_alpha)


class AutoDropout(Guide):
    r"""Dropout of the input units of each weight matrix, as an approximate posterior.

    .. math:: W = \Theta\, \mathrm{diag}(m), \qquad E\,m_j = 1

    One mask m ``[I]`` a weight ``[O, I]`` and draw of the function, shared by all rows, as one z
    is; with ``SVI(per_example_draws=True)`` each row of a step has masks of its own, as in ordinary
    training. A weight is a real site of two or more dimensions as ``torch.nn.Linear`` and
    convolutions hold it, ``[O, I, *kernel]``, or ``[I, O, *kernel]`` of a layer that is a
    ``torch.nn.ConvTranspose1d`` to ``3d``; whole channels are dropped. Of several weights
    the one that the model samples first is taken for that of its inputs, and is a point estimate
    unless ``drop_inputs``. All else, biases and scales of priors and noise, are point estimates
    that the prior penalises, as in ``AutoDelta``. ``kind`` is the family of m:

    - ``"bernoulli"``: :math:`m_j (1 - p) \sim \mathrm{Bernoulli}(1 - p)`, p fixed (MC dropout);
    - ``"concrete"``: a p a weight is learned, through the relaxed mask :math:`m_j = (1 -
      \sigma((\mathrm{logit}\, p + \mathrm{logit}\, u_j) / t)) / (1 - p)`, u uniform, whose mean
      is 1 as :math:`t \to 0`; predictions draw relaxed masks too;
    - ``"gaussian"``: :math:`W_{ij} \sim \mathcal N(\theta_{ij}, \alpha\theta_{ij}^2)` with noise of
      each weight its own and :math:`\alpha = p / (1 - p)` learned for each weight matrix, the first
      included; all other sites are independent Gaussians. This is variational dropout under
      the MODEL's prior; :func:`log_uniform_kl` is the literature's.

    Only the Gaussian q has a density, and an ELBO. The others live on points or lines, where every
    KL from a density is infinite. What SVI maximises for them is

    .. math:: E \log p(D \mid W, b) + E \log p(W) + \sum_W I\, H(p) + \log p(b), \qquad
              H(p) = -p \log p - (1 - p) \log(1 - p)

    Under a Gaussian prior :math:`\mathcal N(0, l^{-2})` the second term is exact, for masks at
    t = 0: but for a constant :math:`-\tfrac{l^2}{2} \|\Theta\|^2 / (1 - p)`, which is Gal &
    Ghahramani's :math:`-\tfrac{l^2 (1 - p)}{2} \|M\|^2` of :math:`M = \Theta / (1 - p)`. Under
    others, scales of a hierarchy among them, it is an average over draws. The objective is what
    remains of a bound where each point of q is a narrow Gaussian, without the constant of its
    width: it bounds nothing, and is compared with other dropout fits of one model alone.

    Captures that units are missing together, in all rows and outputs: a wide, multimodal function
    spread from one vector of weights. Misses all spread that is not a missing unit: of biases,
    of inputs, of a direction; a fixed p does not narrow with more data. The Gaussian kind misses
    all correlations, its sds follow the weights' sizes, and its entropy, which falls without bound
    towards 0, keeps a weight from changing its sign: ``AutoNormal`` contains it, and of a network
    of 50 units and 400 rows reached an ELBO 120 nats higher.

    On a model of ``pyro_bnn.bayesian_dropout`` the masks are the model's own, drawn as it draws
    them, at its rates: their q is their prior, their KL is 0.

    Args:
        model: Pyro model.
        init_loc_fn: Start of the means; default a draw from the prior.
        kind: See above.
        rate: Probability p that a unit is dropped, in [0, 1); its start, in (0, 1), where p or
            alpha is learned.
        drop_inputs: Whether the inputs of the model are dropped too; for masks.
        temperature: t of the relaxed masks, > 0; default 0.1 for units and 2/3 for channels.
        init_scale: Initial sd of the sites that are no weights, > 0, for the Gaussian kind.

    Raises:
        OptionError: If an option is out of its range, or would have no effect.
        SiteError: If the model has no weight to drop inputs of; names its sites.

    References:
        Gal & Ghahramani, "Dropout as a Bayesian Approximation", ICML 2016, arXiv:1506.02142; Gal,
        Hron & Kendall, "Concrete Dropout", NeurIPS 2017, arXiv:1705.07832; Kingma, Salimans &
        Welling, "Variational Dropout and the Local Reparameterization Trick", NeurIPS 2015,
        arXiv:1506.02557; Hron, Matthews & Ghahramani, "Variational Bayesian dropout: pitfalls and
        fixes", ICML 2018, arXiv:1807.01969.

    Example:
        >>> from pyro_bnn.models import MLP
        >>> guide = AutoDropout(MLP(3, hidden=(8, 8)), kind="concrete", rate=0.2)
        >>> guide.setup(torch.zeros(1, 3))
        >>> {name: round(rate, 3) for name, rate in guide.rates().items()}
        {'layers.1.weight': 0.2, 'layers.2.weight': 0.2}
    """

    has_log_prob: bool = False
    kl_kind: KLKind = "none"
    marginal_family: Marginal = "moments"
    objective: str = DROPOUT
    own_state: ClassVar[Mapping[str, str]] = {"weights": "_weights", "noise": "_noise"}

    loc: Tensor
    scale: Tensor
    logit_rate: Tensor
    log_alpha: Tensor

    def __init__(
        self,
        model: Model,
        init_loc_fn: Callable[[dict[str, Any]], Tensor] | None = None,
        kind: Kind = "bernoulli",
        rate: float = RATE,
        drop_inputs: bool = False,
        temperature: float | None = None,
        init_scale: float = INIT_SCALE,
    ) -> None:
        super().__init__(model, init_loc_fn=init_loc_fn)
        _check_options(kind, rate, drop_inputs, temperature, init_scale)
        self.kind: Kind = kind
        self.rate = float(rate)
        self.drop_inputs = bool(drop_inputs)
        self.temperature = temperature
        self.init_scale = check_init_scale(init_scale)
        if kind == "gaussian":
            self.has_log_prob, self.kl_kind, self.objective = True, "exact", ELBO
            self.marginal_family = "normal"
        self._weights: tuple[str, ...] = ()  # names of the sites with noise on their inputs
        self._noise: tuple[str, ...] = ()  # and of those that are the model's own noise
        self._units = Units(())

    def check_model(self, sites: Sequence[Site], run: Evaluate) -> None:
        """Find the weights whose inputs are dropped, and the model's own noise.

        Raises:
            SiteError: If there is neither, or an option would have no effect on the model's own
                noise.
        """
        noise = tuple(s.name for s in sites if run.latent[s.name]["infer"].get(IS_MASK_NOISE))
        if noise and (self.kind != "bernoulli" or self.rate != RATE or self.drop_inputs):
            raise SiteError(
                "the model has dropout of its own, at its own rates: leave kind, rate and "
                "drop_inputs at their defaults"
            )
        weights = tuple(s.name for s in sites if s.is_real and len(s.shape) > 1)
        if not (self.drop_inputs or self.kind == "gaussian"):
            weights = weights[1:] or weights
        if not noise and not weights:
            listed = ", ".join(f"{site.name} {tuple(site.shape)}" for site in sites)
            raise SiteError(
                "AutoDropout drops the inputs of weights, real sites of shape [O, I] or [O, I, "
                f"*kernel]; there are {listed}: use AutoNormal"
            )
        if not self._shapes:  # else they come with the loaded parameters
            self._weights, self._noise = (() if noise else weights), noise

    # Parameters

    def make_parameters(self, loc: Tensor) -> None:
        """Create ``loc`` of all entries but the model's own noise, and what the kind learns.

        That is ``logit_rate`` or ``log_alpha``, one number a weight, and for the Gaussian kind
        ``scale`` of the entries outside weights.
        """
        inputs_first = _transposed(self._weights, self.model)
        self._units = Units.of(self._shapes, self._weights, self._noise, inputs_first)
        self.loc = nn.Parameter(self._units.without_noise(loc))
        odds = loc.new_full((len(self._weights),), self.rate / (1 - self.rate))
        if self.kind == "concrete":
            self.logit_rate = nn.Parameter(odds.log())
        elif self.kind == "gaussian":
            self.log_alpha = nn.Parameter(odds.log())
            scale = loc.new_full((self._units.num_others,), self.init_scale)
            self.scale = positive_parameter(scale)

    def rates(self) -> dict[str, float]:
        r"""Probability p of dropping an input, by name of the weight.

        Of the Gaussian kind it is :math:`\alpha / (1 + \alpha)`, whose noise has the same variance.
        """
        self.require_setup()
        rates = [self.rate] * len(self._weights)
        if self.kind != "bernoulli":
            logits = self.logit_rate if self.kind == "concrete" else self.log_alpha
            rates = logits.detach().sigmoid().tolist()
        return dict(zip(self._weights, rates, strict=True))

    def centre(self) -> Tensor:
        """Mean of z, ``[P]``."""
        self.require_setup()
        return torch.cat([value.detach() for _, value in self._units.pieces(self.loc)])

    def move_to(self, z: Tensor) -> None:
        """Centre q at z ``[P]``; the model's own noise stays at 0."""
        with torch.no_grad():
            self.loc.copy_(self._units.without_noise(z))

    # Draws

    @property
    def noise_dim(self) -> int:
        """Number of inputs that are dropped; P for the Gaussian kind, whose weights have noise."""
        self.require_setup()
        return self.num_latents if self.kind == "gaussian" else self._units.num_units

    def transport(self, noise: Tensor) -> Tensor:
        """Draws ``[..., P]`` of noise ``[..., M]``."""
        self.require_setup()
        if self.kind == "gaussian":
            return self.loc + self._sds() * noise
        return self._units.draws(self.loc, noise, self._mask)

    def _mask(self, part: Part, noise: Tensor) -> Tensor:
        """The mask m ``[..., I]`` of noise ``[..., I]``, whose cdf is uniform; it grows with it."""
        if self.kind == "bernoulli":
            return keeps(noise, self.rate).to(noise.dtype) / (1 - self.rate)
        logit = self.logit_rate[cast(int, part.weight)]
        t = self.temperature or (SPATIAL_TEMPERATURE if part.is_spatial else TEMPERATURE)
        u = torch.special.log_ndtr(noise) - torch.special.log_ndtr(-noise)  # logit of the cdf
        return torch.sigmoid((u - logit) / t) / torch.sigmoid(-logit)

    def z_quantiles(self, levels: Tensor) -> Tensor:
        """Marginal quantiles ``[Q, P]`` of z."""
        if self.kind == "gaussian":
            return super().z_quantiles(levels)
        noise = torch.special.ndtri(levels).unsqueeze(-1).expand(-1, self.noise_dim)
        up, down = self.transport(noise), self.transport(-noise)
        return torch.where(self.centre() < 0, down, up)  # a negative weight falls as m grows

    # Densities

    def entropy(self) -> Tensor:
        """Entropy of the Gaussian q; of masks the sum of I H(p), and of the model's own noise."""
        if self.kind == "gaussian":
            return self._sds().log().sum() + self.num_latents * STANDARD_ENTROPY
        total = self.loc.new_zeros(())
        for part in self._units.parts:
            if part.is_noise:
                total = total + part.length * STANDARD_ENTROPY
            elif part.weight is not None:
                of_coin: Any = 0.0  # H(p) of one input, in nats
                p = self.rate
                if self.kind == "concrete":
                    logit = self.logit_rate[part.weight]
                    of_coin = nn.functional.softplus(logit) - logit.sigmoid() * logit
                elif p > 0:
                    of_coin = -p * math.log(p) - (1 - p) * math.log(1 - p)
                total = total + part.num_units * of_coin
        return total

    def components(self) -> Marginals:
        """Means and sds ``[P]`` of all entries; of relaxed masks those at temperature 0."""
        if self.kind == "gaussian":
            return Marginals(self.loc, self._sds())
        means, sds = [], []
        for part, value in self._units.pieces(self.loc):
            means.append(value)
            if part.weight is None:
                sds.append(torch.full_like(value, float(part.is_noise)))
            elif self.kind == "bernoulli":
                sds.append(value.abs() * (self.rate / (1 - self.rate)) ** 0.5)
            else:
                sds.append(value.abs() * (0.5 * self.logit_rate[part.weight]).exp())
        return Marginals(torch.cat(means), torch.cat(sds), others="moments")

    def _sds(self) -> Tensor:
        """Standard deviations ``[P]`` of the Gaussian q."""
        others = [p.length for p in self._units.parts if p.weight is None]
        scales = iter(self.scale.split(others))
        alphas = self.log_alpha.exp()
        sds = [
            next(scales)
            if part.weight is None
            else value.abs().clamp(min=SMALLEST) * alphas[part.weight].sqrt()
            for part, value in self._units.pieces(self.loc)
        ]
        return torch.cat(sds)

    def log_prob(self, z: Tensor) -> Tensor:
        """Log q(z) ``[...]`` of z ``[..., P]``, for the Gaussian kind."""
        if not self.has_log_prob:
            return super().log_prob(z)
        sds = self._sds()
        u = (z - self.loc) / sds
        return -0.5 * u.square().sum(-1) - sds.log().sum() - LOG_ROOT_2_PI * self.num_latents

    def marginals(self) -> tuple[Tensor, Tensor] | None:
        """Mean and sd ``[P]`` of the Gaussian kind; None of masks."""
        return (self.loc, self._sds()) if self.has_log_prob else None

    # As a Pyro guide

    def get_posterior(self) -> Distribution:
        """Independent Gaussians over z ``[P]``, for the Gaussian kind."""
        self.require_setup()
        if not self.has_log_prob:
            return super().get_posterior()
        return cast(Distribution, dist.Normal(self.loc, self._sds()).to_event(1))

    def sample_z(self) -> Tensor:
        """A draw ``[..., P]``; Pyro's own ELBO is then the objective above, at one draw."""
        z = super().sample_z()
        if self.has_log_prob:
            return z
        q, latents = self.components(), cast(Latents, self.latents)
        log_q = -self.entropy() - latents.expected_log_prior(q)
        for block, _ in latents.closed_forms(q.cauchy, q.others).expected:
            log_q = log_q + block.log_prob(z)  # which Pyro has in place of its expectation
        return self.sample_auxiliary("z", dist.Delta(z, log_q, event_dim=1))


def _transposed(weights: Sequence[str], model: Model) -> set[str]:
    """The weights of transposed convolutions, ``[I, O / groups, *kernel]``."""
    inner = module_of(model)
    net = inner.net if isinstance(inner, BayesianModule) else inner
    layers = {} if net is None else dict(net.named_modules())
    names = zip(weights, layers_of(weights, model), strict=True)
    return {name for name, layer in names if isinstance(layers.get(layer), _ConvTransposeNd)}


def _check_options(
    kind: str, rate: float, drop_inputs: bool, temperature: float | None, init_scale: float
) -> None:
    check_choice("kind", kind, Kind)
    check_share("rate", rate)
    if rate == 0 and kind != "bernoulli":
        raise OptionError(f'rate starts above 0 where it is learned, as by kind="{kind}"')
    if temperature is not None:
        check_positive("temperature", temperature)
    idle = {
        "temperature": temperature is not None and kind != "concrete",
        "drop_inputs": drop_inputs and kind == "gaussian",  # all weights have noise
        "init_scale": init_scale != INIT_SCALE and kind != "gaussian",
    }
    for name, is_idle in idle.items():
        if is_idle:
            raise OptionError(f'{name} would have no effect with kind="{kind}": leave it out')
