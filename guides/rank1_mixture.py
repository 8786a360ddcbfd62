r"""Mixture over whole rank-1 networks, :math:`q(z) = \tfrac1K \sum_k q_k(z)`."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Literal

import pyro.distributions as dist
import torch
from torch import Tensor, nn

from pyro_bnn.checks import check_choice, check_not_negative, check_positive_int
from pyro_bnn.errors import OptionError, SiteError
from pyro_bnn.guides.guide import (
    ELBO,
    LOG_JOINT,
    Guide,
    check_init_scale,
    positive_parameter,
)
from pyro_bnn.guides.parts.components import Components, component_of, pick
from pyro_bnn.handled import model_name, module_of, parameters_of
from pyro_bnn.layers import Rank1Layer
from pyro_bnn.priors.hierarchy import hierarchies
from pyro_bnn.program.distributions import base_distribution, order_statistic
from pyro_bnn.program.handlers import Evaluate, Model
from pyro_bnn.program.latents import Marginals
from pyro_bnn.program.random_state import isolated
from pyro_bnn.program.terms import GuideTerms, Params
from pyro_bnn.sites import Site

Family = Literal["normal", "cauchy", "delta"]
Objective = Literal["average", "mixture", "log_mixture", "log_mixture_averaged_kl"]
Start = Literal["near_one", "random_sign"]

OBJECTIVES: dict[str, str] = {
    "average": ELBO,
    "mixture": ELBO,
    "log_mixture": "log-mixture bound",
    "log_mixture_averaged_kl": "log-mixture objective with averaged KL (no bound)",
}
INIT_SCALE = math.sqrt(1e-3 / (1 - 1e-3))
FACTORS = (".r", ".s", ".r.value", ".s.value")  # sites that are factors; the last two centred
SCALES = (".scale", ".global", ".local", ".slab")  # sites of a hierarchy's scale
CAUCHY_TAILS = (dist.Cauchy, dist.StudentT)  # priors of finite KL from a Cauchy


class AutoRank1Mixture(Guide):
    r"""Mixture of K rank-1 networks that share their weight matrices W.

    .. math::
        q(z) = \tfrac1K \sum_k q_k(z), \qquad q_k(z) = \prod_j q_{kj}(z_j), \qquad
        W'_k = W \circ r_k s_k^\top

    Each component spans the whole network: all factors r and s of all layers, and the model's
    other sites, come from one component at a time. All K are evaluated in one batched pass, at 2
    K (I + O) numbers a layer beside W. Captures several functions at once, as an ensemble does, and
    the spread around each; misses correlations within a component, and all variation of W that is
    not of rank one.

    With ``separate_biases`` every component has biases of its own, point estimates as W is. A
    draw is then a pair of a component and a z, and the bound is on the log of the mean evidence of
    the K networks: it holds for "average" with the KL averaged over components, which is exact.
    ``log_prob`` is the mixture's density of z alone in either case.

    ``objective`` is what SVI maximises, with :math:`z_k \sim q_k`:

    - ``"average"``: :math:`\tfrac1K \sum_k \bigl[ E \log p(D \mid z_k) - \mathrm{KL}(q_k \| p)
      \bigr]`, a bound on the log evidence;
    - ``"mixture"``: the same likelihood with :math:`\mathrm{KL}(q \| p)` of the exact mixture
      density, a bound tighter by up to log K nats (needs shared biases);
    - ``"log_mixture"``: :math:`E \log \tfrac1K \sum_k p(D \mid z_k) - \sum_k \mathrm{KL}(q_k \| p)`
      over the whole data set, a bound (needs all rows in every step);
    - ``"log_mixture_averaged_kl"``: :math:`\sum_n E \log \tfrac1K \sum_k p(y_n \mid z_k) -
      \tfrac1K \sum_k \mathrm{KL}(q_k \| p)`, the literature's. It is NOT a bound, and its values
      are not reported as an ELBO.

    Components are Gaussian, Cauchy on the factors r and s (other sites stay Gaussian), or deltas,
    which with ``"average"``, the log joint then, is :class:`pyro_bnn.guides.BatchEnsemble` (Wen et
    al., ICLR 2020). The KL of a Cauchy from a Gaussian prior is infinite: it needs a Cauchy-tailed
    prior and the model's stated ``clip``. The clip bounds f, but its mean and sd hang on the clip
    and on the few largest draws: predictions have quantiles only, and a mean and sd of NaN.

    Args:
        model: A model of rank-1 layers: ``pyro_bnn.models.Rank1MLP``, ``Rank1ResNet``, or your own.
        init_loc_fn: Centre of all components' starts; default 1 for the factors r and s, and for
            other sites a draw from the prior, or the median of 15 where they are positive.
        num_components: K.
        family: ``"normal"``, ``"cauchy"`` or ``"delta"``.
        objective: See above.
        separate_biases: Whether each component has biases of its own; K = 1 has the model's.
        start: ``"near_one"``: factors at :math:`\mathcal N(1, \mathrm{init\_spread}^2)`;
            ``"random_sign"``: around -1 or +1. A negative factor costs 200 nats under the prior
            N(1, 0.1): give it a wide prior or a long ``kl_warmup``.
        init_spread: Standard deviation of the start of the factors, >= 0; of the log of positive
            factors, and of the standardised deviation of non-centred hierarchies.
        init_scale: Initial scale of every entry of z, > 0. Default
            :math:`\sqrt{p/(1-p)}, p = 10^{-3}`.

    Raises:
        OptionError: If an option is out of its range, or two do not go together.
        SiteError: If the model has no rank-1 layers, or a prior does not suit the family.

    References:
        Dusenberry et al., "Efficient and Scalable Bayesian Neural Nets with Rank-1 Factors",
        ICML 2020, arXiv:2005.07186.
    """

    needs_model: ClassVar[str | None] = "Rank1MLP"
    suits_models: ClassVar[tuple[str, ...]] = ("Rank1ResNet",)
    enlarged_by = "num_components"

    loc: Tensor
    scale: Tensor
    biases: Tensor
    cauchy_entries: Tensor

    def __init__(
        self,
        model: Model,
        init_loc_fn: Callable[[dict[str, Any]], Tensor] | None = None,
        num_components: int = 4,
        family: Family = "normal",
        objective: Objective = "average",
        separate_biases: bool = True,
        start: Start = "near_one",
        init_spread: float = 0.1,
        init_scale: float = INIT_SCALE,
    ) -> None:
        super().__init__(model, init_loc_fn=init_loc_fn)
        check_positive_int("num_components", num_components)
        check_choice("family", family, Family)
        check_choice("objective", objective, Objective)
        check_choice("start", start, Start)
        check_not_negative("init_spread", init_spread)
        layers = _rank1_layers(model)
        self._layer_names = tuple(layers)
        # a bias that the user froze stays the model's, one for all
        biases = {name: layer.bias for name, layer in layers.items() if layer.bias is not None}
        trained = (f"{name}.bias" for name, bias in biases.items() if bias.requires_grad)
        self.member_params = tuple(trained) if separate_biases and num_components > 1 else ()
        self.num_components = num_components
        self.family: Family = family
        self.objective_kind: Objective = objective
        self.separate_biases = separate_biases
        self.owns_biases = bool(self.member_params)
        self.start: Start = start
        self.init_spread = float(init_spread)
        self.init_scale = check_init_scale(init_scale)
        if objective == "mixture" and self.owns_biases:
            raise OptionError(
                'objective="mixture" bounds the evidence of one network, but with '
                "separate_biases=True there is one for each component: pass separate_biases=False"
            )
        if family == "delta" and init_scale != INIT_SCALE:
            raise OptionError(
                f'init_scale={init_scale} would have no effect, as family="delta" has no scales'
            )
        if start == "random_sign" and init_loc_fn is not None:
            raise OptionError(
                'init_loc_fn would have no effect on the factors, as start="random_sign" puts them '
                "around -1 and +1: leave one of the two out"
            )
        if objective != "average" and family == "delta":
            raise OptionError(
                f'objective="{objective}" needs a density, which family="delta" has not: use '
                '"average"'
            )
        self.has_log_prob = family != "delta"
        self.has_moments = family != "cauchy"
        self.needs_all_rows = objective == "log_mixture"
        self.objective = OBJECTIVES[objective] if self.has_log_prob else LOG_JOINT
        if not self.has_log_prob:
            self.kl_kind = "none"
        elif num_components > 1 and not self.owns_biases:
            self.kl_kind = "monte_carlo"
        self._direct: tuple[str, ...] = ()  # sites of real factors themselves

    # The model

    def check_model(self, sites: Sequence[Site], run: Evaluate) -> None:
        """Check that the model's factors suit the family and the start.

        Raises:
            SiteError: If no site belongs to a rank-1 layer; if a Cauchy meets a prior of lighter
                tails or a model without clip; if a random sign is asked of a factor that is
                positive or a hierarchy's; or if a hierarchy is centred at 0.
        """
        factors = [site for site in sites if self._is_factor(site.name)]
        self._direct = tuple(
            site.name for site in factors if site.is_real and site.name.endswith(FACTORS)
        )
        if not factors:
            raise SiteError(
                f"no latent site belongs to a rank-1 layer; there are "
                f"{', '.join(site.name for site in sites)}"
            )
        other = [site.name for site in factors if site.name not in self._direct]
        if self.start == "random_sign" and other:
            raise SiteError(
                f'start="random_sign" needs factors that are real and their own sites, which '
                f'{", ".join(other)} are not: use "near_one", or a Normal or Cauchy prior'
            )
        dead = [
            name
            for name, hierarchy in hierarchies(self.model).items()
            if hierarchy.loc == 0 and any(s.name.startswith(f"{name}.") for s in factors)
        ]
        if dead and self.init_loc_fn is None:
            raise SiteError(
                f"the hierarchies over {', '.join(dead)} are centred at 0, where every unit is "
                "switched off: give them loc=1.0, as in HalfCauchyScale(loc=1.0)"
            )
        if self.family == "cauchy":
            self._check_tails(factors, run)

    def _check_tails(self, factors: Sequence[Site], run: Evaluate) -> None:
        priors = [(site.name, base_distribution(run.latent[site.name]["fn"])) for site in factors]
        if light := [
            f"{name} ({type(fn).__name__})"
            for name, fn in priors
            if not isinstance(fn, CAUCHY_TAILS)
        ]:
            raise SiteError(
                f"Cauchy components have an infinite KL from the priors of {', '.join(light)}: "
                "give r and s a Cauchy-tailed prior, such as "
                "pyro_bnn.priors.Cauchy(scale=0.1, loc=1.0)"
            )
        layers = _rank1_layers(self.model)
        if unclipped := [name for name, layer in layers.items() if layer.clip is None]:
            raise SiteError(
                f"Cauchy components need a stated clip of the factors, but {', '.join(unclipped)} "
                "have clip=None: build the model with clip=10.0"
            )

    def _is_factor(self, site: str) -> bool:
        parts = tuple(f"{name}.{factor}." for name in self._layer_names for factor in "rs")
        return f"{site}.".startswith(parts)

    @property
    def cauchy_sites(self) -> frozenset[str]:
        """The sites of factors, where components are Cauchy."""
        if self.family != "cauchy":
            return frozenset()
        return frozenset(name for name, _, _ in self._shapes if self._is_factor(name))

    # Parameters

    def make_parameters(self, loc: Tensor) -> None:
        """Create ``loc [K, P]``, ``scale [K, P]`` and ``biases [K, Q]``."""
        K = self.num_components
        locs = loc.expand(K, -1).clone()
        with isolated():  # the caller's random state decides, and stays
            noise = torch.randn(locs.shape).to(locs)
            at = 0
            for name, _, length in self._shapes:
                entries = slice(at, at + length)
                if self._is_factor(name) and not name.endswith(SCALES):
                    self._start_factor(name, locs[:, entries], noise[:, entries])
                at += length
        heavy = [
            torch.full((length,), self.family == "cauchy" and self._is_factor(name))
            for name, _, length in self._shapes
        ]
        self.register_buffer("cauchy_entries", torch.cat(heavy).to(loc.device), persistent=False)
        self.loc = nn.Parameter(locs)
        if self.family != "delta":
            self.scale = positive_parameter(torch.full_like(locs, self.init_scale))
        if self.owns_biases:
            params = parameters_of(self.model)
            biases = [params[name].detach() for name in self.member_params]
            self.biases = nn.Parameter(torch.cat(biases).to(locs).expand(K, -1).clone())

    def _start_factor(self, name: str, loc: Tensor, noise: Tensor) -> None:
        """Write the start of one site's entries ``[K, n]`` into ``loc``."""
        if self.start == "random_sign":
            loc.copy_(torch.randint(0, 2, loc.shape) * 2 - 1)
        elif self.init_loc_fn is None:
            loc.fill_(1.0 if name in self._direct else 0.0)  # else a log factor or a deviation
        loc.add_(self.init_spread * noise)

    def options(self) -> dict[str, Any]:
        """All of them but ``init_loc_fn``."""
        own = super().options()
        return own | ({"objective": self.objective_kind} if "objective" in own else {})

    def move_to(self, z: Tensor) -> None:
        """Move all components together, so that the mean of their centres is z ``[P]``.

        Raises:
            OptionError: If they start at random signs, which this would undo.
        """
        if self.start == "random_sign":
            raise OptionError(
                'init would move the factors off the signs of start="random_sign": leave one out'
            )
        super().move_to(z)

    def set_member_params(self, params: Params) -> None:
        """Start every component's biases at those of the model."""
        if self.owns_biases:
            with torch.no_grad():
                own = [params[name].flatten() for name in self.member_params]
                self.biases.copy_(torch.cat(own))

    # Draws

    @property
    def noise_dim(self) -> int:
        """K P + 1: for a draw of every component, and for which of them is taken, at random."""
        return self.num_components * self.num_latents + 1

    def members(self, noise: Tensor) -> Tensor:
        """A draw of every component, ``[..., K, P]``, made of noise ``[..., M]``."""
        e = noise[..., :-1].unflatten(-1, (self.num_components, -1))  # [..., K, P]
        return self.loc.expand_as(e) if self.family == "delta" else self._mixture.draws(e)

    def transport(self, noise: Tensor) -> Tensor:
        """The draw ``[..., P]`` of the component that the last entry of the noise names."""
        return pick(self.members(noise), self._component(noise))

    def draws(self, noise: Tensor) -> Tensor:
        """Draws ``[..., P + Q]`` of z and, where they are its own, its component's biases."""
        z = self.transport(noise)
        if not self.owns_biases:
            return z
        biases = self.biases.expand(*z.shape[:-1], -1, -1)
        return torch.cat([z, pick(biases, self._component(noise))], -1)

    def atoms(self) -> Tensor | None:
        """The components ``[K, P + Q]`` with their biases where they are deltas."""
        if self.family != "delta":
            return None
        return torch.cat([self.loc, self.biases], -1) if self.owns_biases else self.loc

    def _component(self, noise: Tensor) -> Tensor:
        """Number of the component ``[...]`` that each row of noise ``[..., M]`` takes."""
        return component_of(noise[..., -1], self.num_components)

    # Densities

    @property
    def _mixture(self) -> Components:
        self.require_setup()
        heavy = self.cauchy_entries if self.family == "cauchy" else None
        return Components(self.loc, self.scale, heavy)

    def log_prob(self, z: Tensor) -> Tensor:
        """Log q(z) ``[...]`` of z ``[..., P]``: of the mixture itself, exactly."""
        if not self.has_log_prob:
            return super().log_prob(z)
        return self._mixture.log_prob(z).logsumexp(-1) - math.log(self.num_components)

    def log_q(self, noise: Tensor) -> Tensor:
        """Log density of the draws; of the component that was drawn where it has own biases."""
        z = self.transport(noise)
        if not self.owns_biases:
            return self.log_prob(z)
        log_prob = self._mixture.log_prob(z).unsqueeze(-1)  # [..., K, 1]
        return pick(log_prob, self._component(noise)).squeeze(-1)

    def entropy(self) -> Tensor | None:
        """Entropy of q where it is in closed form: of one component, or of (component, z)."""
        if self.kl_kind != "exact":
            return None
        return self._mixture.entropy().mean()

    def components(self) -> Marginals | None:
        """Loc and scale ``[K, P]`` of the components."""
        if not self.has_log_prob:
            return None
        return Marginals(self.loc, self.scale, self.cauchy_sites)

    def marginals(self) -> tuple[Tensor, Tensor] | None:
        """Mean and sd of a single Gaussian component, ``[P]`` each; else None."""
        if self.num_components > 1 or self.family != "normal":
            return None
        return self.loc[0], self.scale[0]

    def z_quantiles(self, levels: Tensor) -> Tensor:
        """Marginal quantiles ``[Q, P]`` of z under the mixture."""
        if not self.has_log_prob:
            return self.loc.sort(0).values[order_statistic(levels, self.num_components)]
        return self._mixture.quantiles(levels)

    def forward(self, *args: Any, **kwargs: Any) -> dict[str, Tensor]:
        """Sample every site of the model, as Pyro's engines ask of a guide.

        Pyro's own ELBO is that of the exact mixture density, whatever ``objective`` says.

        Raises:
            SiteError: If components have biases of their own, which a Pyro guide cannot set, or are
                deltas, of which the mixture has no density.
        """
        if not self.has_log_prob:
            raise SiteError(
                'family="delta" has no density for the ELBO of pyro.infer.SVI: train it with '
                "pyro_bnn.SVI"
            )
        if self.owns_biases:
            raise SiteError(
                "each component has biases of its own, and a guide under pyro.infer.SVI cannot set "
                "the model's parameters: pass separate_biases=False, or train with pyro_bnn.SVI"
            )
        return super().forward(*args, **kwargs)

    # Objectives

    def make_terms(self, noise: Tensor, *, density: bool) -> GuideTerms:
        """What the objective needs of a draw of every component: D = S K draws, noise-major."""
        z = self.members(noise)  # [S, K, P]
        if self.owns_biases:
            z = torch.cat([z, self.biases.expand(len(z), -1, -1)], -1)
        z = z.flatten(0, 1)
        if not (density and self.has_log_prob):
            return GuideTerms(z)
        kl_scale = float(self.num_components) if self.objective_kind == "log_mixture" else 1.0
        if self.objective_kind == "mixture" and self.num_components > 1:
            log_prob = self.log_prob(z[:, : self.num_latents])
            return GuideTerms(z, None, log_prob, self.components(), kl_scale)
        return GuideTerms(z, self._mixture.entropy().mean(), None, self.components(), kl_scale)

    def reduce_log_likelihood(self, rows: Tensor, scale: float = 1.0) -> Tensor:
        """The objective's likelihood term of log densities ``[S K, B]``."""
        if self.objective_kind in ("average", "mixture"):
            return super().reduce_log_likelihood(rows, scale)
        rows = rows.reshape(-1, self.num_components, rows.shape[-1])  # [S, K, B]
        log_k = math.log(self.num_components)
        if self.objective_kind == "log_mixture":
            return ((rows.sum(-1) * scale).logsumexp(1) - log_k).mean()
        return scale * (rows.logsumexp(1) - log_k).sum(-1).mean()


def _rank1_layers(model: Model) -> dict[str, Rank1Layer]:
    """The rank-1 layers of a model by name.

    Raises:
        SiteError: If there is none.
    """
    inner = module_of(model)
    modules = () if inner is None else inner.named_modules()
    layers = {name: module for name, module in modules if isinstance(module, Rank1Layer)}
    if not layers:
        raise SiteError(
            f"AutoRank1Mixture is a posterior over the factors of rank-1 layers, and "
            f"{model_name(model)} has none: use "
            "pyro_bnn.models.Rank1MLP or Rank1ResNet, or layers.Rank1Linear or Rank1Conv2d in a "
            "model of your own"
        )
    return layers
