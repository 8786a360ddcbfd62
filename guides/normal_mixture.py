r"""Mixture of mean-field Gaussians, :math:`q(z) = \sum_k \pi_k \mathcal N(m_k, s_k^2)`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, cast

import pyro.distributions as dist
import torch
from pyro.distributions.torch_distribution import TorchDistributionMixin as Distribution
from torch import Tensor, nn

from pyro_bnn.checks import check_positive_int
from pyro_bnn.guides.guide import KLKind, ScaledGuide
from pyro_bnn.guides.parts.components import Components, pick
from pyro_bnn.program.handlers import Model
from pyro_bnn.program.latents import Marginals
from pyro_bnn.program.random_state import isolated
from pyro_bnn.program.terms import GuideTerms


class AutoNormalMixture(ScaledGuide):
    r"""Mixture of K products of Gaussians, on any model.

    .. math::
        q(z) = \sum_k \pi_k \prod_j \mathcal N(z_j \mid m_{kj}, s_{kj}^2), \qquad
        \mathcal L = \sum_k \pi_k\, E_{q_k}\bigl[\log p(y \mid x, z)\bigr]
                     - \mathrm{KL}(q \,\|\, p)

    Captures several modes, and by several components in one mode its skewness, its tails and its
    correlations; misses the correlations within each component. A bimodal posterior whose modes are
    Gaussians apart is contained: the bound is then the log evidence, where one Gaussian stays below
    it by minus the log of its mode's share. Components that are apart gain at most log K nats over
    the best of them, whatever P, so on a network the gain is in the predictions rather than in the
    bound.

    The bound is that of the mixture density itself, estimated without discrete noise: a step takes
    draws of all K components (K networks, in one batched pass), weighted by :math:`\pi`, whose
    gradient is exact therefore. Of the entropy only that of the component given z is sampled.

    Under Pyro's own ``Trace_ELBO`` a component is drawn, with the score-function gradient for the
    weights: unbiased, and noisier.

    Components start at draws of their own from the prior (``init`` of a fit puts them around it),
    and may end in one mode. The weight of one that is d nats behind the best is exp(-d): on a
    network, whose modes differ by some nats, one component often ends with nearly all of it.
    Weights and scales are held in the first tenth of a fit, while the means find their modes. Where
    K modes are wanted more than the best bound, hold the weights at 1/K by ``learn_weights=False``.
    :func:`pyro_bnn.boost` grows a mixture component by component, and looks where q has no mass.

    Args:
        model: Pyro model.
        init_loc_fn: Start of the means; default a draw from the prior, another for each component.
        init_scale: Initial standard deviation of every entry of z, > 0, in its units.
        num_components: K. One is :class:`pyro_bnn.guides.AutoNormal`.
        learn_weights: Whether the weights are trained; else all are 1/K.

    Raises:
        OptionError: If ``init_scale`` is not positive or ``num_components`` no positive integer.

    References:
        Jaakkola & Jordan, "Improving the Mean Field Approximation via the Use of Mixture
        Distributions", in Learning in Graphical Models, 1998. Miller, Foti & Adams, "Variational
        Boosting: Iteratively Refining Posterior Approximations", ICML 2017, arXiv:1611.06585.

    Example:
        >>> from pyro_bnn.models import MLP
        >>> guide = AutoNormalMixture(MLP(3, hidden=(8,)), num_components=2)
        >>> guide.setup(torch.zeros(1, 3))
        >>> guide.loc.shape, guide.weights
        (torch.Size([2, 42]), tensor([0.5000, 0.5000]))
    """

    has_rsample: ClassVar[bool] = False  # draws jump from one component to another
    # without it a component that starts badly loses its weight
    warms_up_components: ClassVar[bool] = True
    contains = ("AutoNormal",)
    has_correlations = True
    enlarged_by = "num_components"

    logits: Tensor

    def __init__(
        self,
        model: Model,
        init_loc_fn: Callable[[dict[str, Any]], Tensor] | None = None,
        init_scale: float = 0.01,
        num_components: int = 4,
        learn_weights: bool = True,
    ) -> None:
        super().__init__(model, init_loc_fn, init_scale)
        check_positive_int("num_components", num_components)
        self.num_components = num_components
        self.learn_weights = bool(learn_weights)
        self.kl_kind: KLKind = "exact" if num_components == 1 else "monte_carlo"

    # Parameters

    def make_parameters(self, loc: Tensor) -> None:
        """Create ``loc [K, P]``, ``scale [K, P]`` and ``logits [K]``, the logs of the weights."""
        locs = self._starts(loc)
        super().make_parameters(locs)
        logits = locs.new_zeros(self.num_components)
        if self.learn_weights and self.num_components > 1:
            self.logits = nn.Parameter(logits)
        else:
            self.register_buffer("logits", logits)

    def _starts(self, loc: Tensor) -> Tensor:
        """Starts ``[K, P]``: a given one, and of each other component a run of the model."""
        if not self._event_dims:  # a state dict brings its own starts
            return loc.repeat(self.num_components, 1)
        starts = [loc]
        with isolated():  # the caller's random state decides, and stays
            self._traced()  # skip the draws that made the first start
            for _ in range(self.num_components - 1):
                start = self._start(self._traced()).to(loc)
                starts.append(start + self.init_scale * torch.randn(start.shape).to(loc))
        return torch.stack(starts)

    @property
    def weights(self) -> Tensor:
        """Weights of the components, ``[K]``, detached."""
        self.require_setup()
        return self.logits.detach().softmax(-1)

    def set_components(self, loc: Tensor, scale: Tensor, weights: Tensor) -> None:
        """Make q the mixture of given means and sds ``[K, P]`` and weights ``[K]``, > 0."""
        self.require_setup()
        with torch.no_grad():
            self.loc.copy_(loc)
            self.logits.copy_((weights / weights.sum()).log())
        self.scale = scale.to(self.loc)

    def centre(self) -> Tensor:
        """Mean of q, ``[P]``."""
        return self.marginals()[0].detach()

    def move_to(self, z: Tensor) -> None:
        """Put all components around z ``[P]``, one initial sd apart; the mean of q is z."""
        with torch.no_grad(), isolated():
            offsets = self.init_scale * torch.randn(self.loc.shape).to(self.loc)
            self.loc.copy_(z + offsets - self.weights @ offsets)

    def set_sds(self, sds: Tensor) -> None:
        """Give each component standard deviations ``[P]``."""
        super().set_sds(sds.expand_as(self.loc))

    # Draws

    @property
    def noise_dim(self) -> int:
        """K P, and where K > 1 one more, for which component is taken, at random."""
        return self.num_components * self.num_latents + (self.num_components > 1)

    def members(self, noise: Tensor) -> Tensor:
        """A draw of every component, ``[..., K, P]``, made of noise ``[..., M]``."""
        K, P = self.num_components, self.num_latents
        return self._mixture.draws(noise[..., : K * P].unflatten(-1, (K, P)))

    def transport(self, noise: Tensor) -> Tensor:
        """The draw ``[..., P]`` of the component that the last entry of the noise names."""
        members = self.members(noise)
        if self.num_components == 1:
            return members.squeeze(-2)
        u: Tensor = torch.special.ndtr(noise[..., -1:])
        edges = self.logits.softmax(-1).cumsum(-1)[:-1]
        return pick(members, (u > edges).sum(-1))

    # Densities

    @property
    def _mixture(self) -> Components:
        self.require_setup()
        return Components(self.loc, self.scale, log_weights=self.logits.log_softmax(-1))

    def log_prob(self, z: Tensor) -> Tensor:
        """Log q(z) ``[...]`` of z ``[..., P]``: of the mixture itself, exactly."""
        return self._mixture.joint_log_prob(z).logsumexp(-1)

    def entropy(self) -> Tensor | None:
        """Entropy of a single component; that of several has no closed form."""
        return self._mixture.entropy()[0] if self.num_components == 1 else None

    def components(self) -> Marginals:
        """Means, sds ``[K, P]`` and weights ``[K]`` of the components."""
        return Marginals(self.loc, self.scale, weights=self.logits.softmax(-1))

    def marginals(self) -> tuple[Tensor, Tensor]:
        """Means and standard deviations of the mixture, each ``[P]``."""
        self.require_setup()
        weights = self.logits.softmax(-1)
        mean = weights @ self.loc
        variance = weights @ (self.scale.square() + (self.loc - mean).square())
        return mean, variance.sqrt()

    def z_quantiles(self, levels: Tensor) -> Tensor:
        """Marginal quantiles ``[Q, P]`` of z under the mixture."""
        return self._mixture.quantiles(levels)

    def make_terms(self, noise: Tensor, *, density: bool) -> GuideTerms:
        """What the bound needs of a draw of every component: D = S K draws, noise-major."""
        members = self.members(noise)  # [S, K, P]
        z = members.flatten(0, 1)
        if not density:
            return GuideTerms(z)
        q = self.components()
        weights = cast(Tensor, q.weights).repeat(len(members)) / len(members)
        entropy = self._mixture.sampled_entropy(members).mean()
        return GuideTerms(z, entropy, None, q, weights=weights)

    # As a Pyro guide

    def get_posterior(self) -> Distribution:
        """The mixture over z ``[P]``."""
        q = self._mixture
        normals = dist.Normal(q.loc, q.scale).to_event(1)
        weights = dist.Categorical(logits=q.log_weights)
        return cast(Distribution, dist.MixtureSameFamily(weights, normals))

    def sample_z(self) -> Tensor:
        """Sample a component, and z ``[..., P]`` from it; the density is the mixture's."""
        q = self._mixture
        log_weights = cast(Tensor, q.log_weights)
        k = self.sample_auxiliary("component", dist.Categorical(logits=log_weights))
        z = q.loc[k] + q.scale[k] * self.sample_noise(self.num_latents)
        rest = self.log_prob(z) - log_weights[k].detach()  # whose mean gradient is 0
        return self.sample_auxiliary("z", dist.Delta(z, rest, event_dim=1))
