r"""An earlier posterior as a prior: what was learned of task 1 is what is believed before task 2.

.. math:: p(z \mid D_1, D_2) \propto p(D_2 \mid z)\; p(z \mid D_1)

With the exact posterior of task 1 this is the posterior of both; with an approximation it is
variational continual learning. Gaussians are over the unconstrained coordinates z of the earlier
model: a positive site becomes log-normal.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple, Protocol, cast

import pyro.distributions as dist
import torch
from pyro.distributions.torch_distribution import TorchDistribution
from pyro.distributions.torch_distribution import TorchDistributionMixin as Distribution
from torch import Tensor
from torch.distributions import constraints

from pyro_bnn.errors import OptionError, ShapeError, SiteError
from pyro_bnn.priors.prior import PriorLike
from pyro_bnn.sites import Site

MOMENT_DRAWS = 10_000  # most draws that moments are taken of
NO_SPREAD = (
    "the posterior {} has no spread in some direction, so that nothing would be learned from "
    "further data: take a fit with a density"
)


class _Program(Protocol):
    @property
    def sites(self) -> tuple[Site, ...]: ...


class Earlier(Protocol):
    """What a prior reads of an earlier fit; see ``Posterior``."""

    params: dict[str, Tensor]

    @property
    def program(self) -> _Program:
        """Its model."""

    @property
    def method(self) -> str:
        """Name of the guide or sampler."""

    @property
    def num_stored_draws(self) -> int | None:
        """Stored draws over all chains; None if it can be sampled without end."""

    def unconstrained(self, num_samples: int) -> Tensor:
        """Draws z ``[S, P]``."""


class Gaussian(NamedTuple):
    """A Gaussian over the coordinates z of a model.

    Attributes:
        loc: Means ``[P]``.
        scale: Standard deviations ``[P]`` of independent entries, else None.
        scale_tril: Lower Cholesky factor ``[P, P]`` of the covariance, else None.
    """

    loc: Tensor
    scale: Tensor | None
    scale_tril: Tensor | None

    @property
    def sds(self) -> Tensor:
        """Standard deviation ``[P]`` of each entry of z."""
        if self.scale is not None:
            return self.scale.clone()
        return cast(Tensor, cast(Tensor, self.scale_tril).norm(dim=-1))


class FromPosterior:
    r"""Independent Gaussians, those of an earlier mean-field fit, over weights of the same names.

    .. math:: p(z) = \prod_j \mathcal N(z_j \mid m_j, s_j^2)

    Of a fit by ``AutoNormal`` it is the whole posterior of each weight, and its KL from the next
    ``AutoNormal`` is in closed form. Weights that task 2 does not share, such as a new head, get
    another prior by pattern: ``{"layers.0.*": FromPosterior(posterior), "*": priors.Normal()}``. A
    noise scale, which is no weight, is taken by :meth:`distribution_of`. For correlations, for
    hierarchical priors and for models of your own, take
    :func:`pyro_bnn.priors.continued`, which carries a whole posterior on.

    Args:
        posterior: The earlier posterior: a mean-field fit; or, with ``marginals``, any other.
        marginals: Whether to accept what loses correlations: the marginals of a guide of
            correlated Gaussians, or the mean and standard deviation over at most 10,000 draws, of
            a sampler or of any other guide.

    Raises:
        OptionError: If the posterior is no mean-field fit, and ``marginals`` is False; or a point.

    References:
        Nguyen, Li, Bui & Turner, "Variational Continual Learning", ICLR 2018, arXiv:1710.10628.
    """

    def __init__(self, posterior: Earlier, *, marginals: bool = False) -> None:
        found = gaussian_of(posterior)
        if (found is None or found.scale is None) and not marginals:
            raise OptionError(
                f"the posterior {posterior.method} is no product of independent Gaussians: "
                "priors.continued(model, posterior) carries it on with its correlations, and "
                "FromPosterior(posterior, marginals=True) leaves them out"
            )
        gaussian = found or moments_of(posterior)
        self.loc = gaussian.loc
        self.scale = gaussian.sds
        if not bool((self.scale > 0).all()):
            raise OptionError(NO_SPREAD.format(posterior.method))
        self.sites: dict[str, Site] = {site.name: site for site in posterior.program.sites}

    def by_name(self, names: Sequence[str]) -> Mapping[str, PriorLike]:
        """The Gaussian of each weight.

        Raises:
            SiteError: If the posterior has no site of one of these names.
            ShapeError: If its weight has another shape.
        """
        return {name: _Site(name, self.distribution_of(name)) for name in names}

    def distribution_of(self, name: str) -> Distribution:
        """The distribution of one site, such as ``"likelihood.scale"``, on its own support.

        Example:
            ``likelihoods.Normal(prior.distribution_of("likelihood.scale"))`` carries the noise on.

        Raises:
            SiteError: If the posterior has no site of this name.
        """
        if name not in self.sites:
            raise SiteError(
                f"the posterior has no site {name!r} to take a prior from; it has "
                f"{', '.join(self.sites)}. Give new weights a prior by pattern; the several sites "
                "of a hierarchical prior are carried on by priors.continued(model, posterior)"
            )
        site = self.sites[name]
        part = slice(site.start, site.stop)
        return site_gaussian(site, self.loc[part].clone(), self.scale[part].clone())


class _Site:
    """The prior of one weight, as it is."""

    def __init__(self, name: str, fn: Distribution) -> None:
        self.name, self.fn = name, fn

    def distribution(self, shape: torch.Size) -> Distribution:
        """The prior over one tensor: batch shape ``()``, event shape ``shape``."""
        if self.fn.event_shape != shape:
            raise ShapeError(
                f"{self.name!r} of the earlier posterior has shape {tuple(self.fn.event_shape)}, "
                f"but the weight has {tuple(shape)}: give it a prior by pattern"
            )
        return self.fn


def site_gaussian(site: Site, loc: Tensor, scale: Tensor) -> Distribution:
    """Independent Gaussians ``[n]`` over the unconstrained entries of a site, of its value."""
    if not site.is_real:
        return SiteGaussian(site, loc, scale, scale.reciprocal())
    normal = dist.Normal(loc.reshape(site.shape), scale.reshape(site.shape))
    return cast(Distribution, normal.to_event(len(site.shape)))  # of a family with closed forms


class SiteGaussian(TorchDistribution):
    """A Gaussian over the unconstrained entries of one site, as a distribution of its value.

    Args:
        site: The site.
        loc: Means ``[n]`` of its entries.
        scale: Lower Cholesky factor ``[n, n]`` of their covariance, or their standard deviations
            ``[n]`` where they are independent.
        inverse: Its inverse, ``[n, n]`` or ``[n]``.
    """

    arg_constraints: ClassVar[dict[str, constraints.Constraint]] = {}
    has_rsample = True

    def __init__(self, site: Site, loc: Tensor, scale: Tensor, inverse: Tensor) -> None:
        self.site, self.loc, self.scale, self.inverse = site, loc, scale, inverse
        super().__init__(torch.Size([]), site.shape, validate_args=False)

    @property
    def support(self) -> constraints.Constraint:
        """That of the site."""
        return self.site.support

    def expand(self, batch_shape: Any, _instance: Any = None) -> SiteGaussian:
        """Itself: it is of one site, of which there are no copies.

        Raises:
            OptionError: If copies are asked for.
        """
        if torch.Size(batch_shape):
            raise OptionError(
                f"the earlier posterior has one {self.site.name!r}, which is no prior of "
                f"{math.prod(batch_shape)}: carry it on for as many targets as it was fitted to, "
                "or give another prior, such as pyro.distributions.HalfNormal(1.0). Under an "
                "outer plate of draws, leave vectorize_particles and parallel at False"
            )
        return self

    def rsample(self, sample_shape: Any = ()) -> Tensor:
        """A draw of the site's value ``[*sample_shape, *shape]``."""
        shape = (*sample_shape, len(self.loc))
        noise = torch.randn(shape, dtype=self.loc.dtype, device=self.loc.device)
        return self.site.value_of(self.loc + _times(self.scale, noise))

    def error(self, value: Tensor) -> Tensor:
        """The standard normal variables ``[..., n]`` that make a value ``[..., *shape]``."""
        return _times(self.inverse, self.site.flatten(value) - self.loc)

    def log_prob(self, value: Tensor) -> Tensor:
        """Log density ``[...]`` of a value ``[..., *shape]``."""
        scales = self.scale if self.scale.ndim == 1 else self.scale.diagonal()
        normaliser = scales.log().sum() + 0.5 * len(self.loc) * math.log(2 * math.pi)
        log_det = self.site.log_abs_det_jacobian_of(self.site.flatten(value))
        return -0.5 * self.error(value).square().sum(-1) - normaliser - log_det


def _times(factor: Tensor, vector: Tensor) -> Tensor:
    """A matrix ``[n, n]``, or a diagonal one ``[n]``, times vectors ``[..., n]``."""
    return vector * factor if factor.ndim == 1 else vector @ factor.mT


def gaussian_of(posterior: Earlier) -> Gaussian | None:
    """The posterior itself where it is one Gaussian over z, else None."""
    guide = getattr(posterior, "guide", None)
    return None if guide is None else gaussian_of_guide(guide)


def gaussian_of_guide(guide: Any) -> Gaussian | None:
    """A guide where it is one Gaussian over z, else None."""
    if type(guide).__name__ == "AutoComposite":
        return _joint([gaussian_of_guide(part) for part in guide.parts], guide.join)
    try:
        q = guide.get_posterior()
    except TypeError:  # the guide has no distribution object
        return None
    with torch.no_grad():
        if isinstance(q, torch.distributions.Independent) and type(q.base_dist) is dist.Normal:
            return Gaussian(q.base_dist.loc.detach().clone(), q.base_dist.scale.detach(), None)
        if isinstance(q, dist.MultivariateNormal | dist.LowRankMultivariateNormal):
            return Gaussian(q.loc.detach().clone(), None, q.scale_tril.detach().clone())
        if type(guide).__name__ == "AutoMatrixNormal":  # affine in its noise, by lower factors
            noise = torch.eye(guide.noise_dim, dtype=guide.loc.dtype, device=guide.loc.device)
            loc = guide.transport(torch.zeros_like(noise[0]))
            return Gaussian(loc, None, (guide.transport(noise) - loc).mT.tril())
    return None


def _joint(
    parts: Sequence[Gaussian | None], join: Callable[[Sequence[Tensor]], Tensor]
) -> Gaussian | None:
    """Independent Gaussians over parts of z; ``join`` puts those together along the last axis."""
    known = [part for part in parts if part is not None]
    if len(known) < len(parts):
        return None
    loc = join([part.loc for part in known])
    scales = [part.scale for part in known if part.scale is not None]
    if len(scales) == len(known):
        return Gaussian(loc, join(scales), None)
    factors = [p.scale.diag() if p.scale_tril is None else p.scale_tril for p in known]  # type: ignore[union-attr]
    columns = torch.block_diag(*factors).split([len(part.loc) for part in known])
    root = join([block.mT for block in columns]).mT  # [P, P], a square root of the covariance
    return Gaussian(loc, None, torch.linalg.cholesky(root @ root.mT))


def moments_of(posterior: Earlier, *, full: bool = False) -> Gaussian:
    """Mean and sds, or the covariance, of at most 10,000 draws of z.

    Raises:
        OptionError: If the covariance has no full rank, for too few draws or in itself.
    """
    stored = posterior.num_stored_draws
    z = posterior.unconstrained(MOMENT_DRAWS if stored is None else min(stored, MOMENT_DRAWS))
    num_draws, num_latents = z.shape
    if not full:
        return Gaussian(z.mean(0), z.std(0), None)
    if num_draws <= 2 * num_latents:
        raise OptionError(
            f"{num_draws} draws are too few for the covariance of P = {num_latents} numbers, take "
            "more than twice as many: draw more, or carry on their marginals by "
            "priors.FromPosterior(posterior, marginals=True)"
        )
    tril, info = torch.linalg.cholesky_ex(z.T.cov())
    if info:
        raise OptionError(NO_SPREAD.format(posterior.method))
    return Gaussian(z.mean(0), None, tril)
