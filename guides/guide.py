"""What every guide is: a density with parameters of its own, by pure functions of noise."""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar, Literal, TypeAlias, TypeVar, cast

import torch
from pyro.distributions import TorchDistribution, constraints
from pyro.distributions.torch_distribution import TorchDistributionMixin as Distribution
from pyro.nn import PyroParam
from torch import Tensor, nn

from pyro_bnn.errors import OptionError, SiteError, UnknownNameError
from pyro_bnn.guides.model_guide import CreatePlates, ModelGuide
from pyro_bnn.program.batched import over_draws
from pyro_bnn.program.closed_forms import Marginal
from pyro_bnn.program.handlers import Model
from pyro_bnn.program.latents import Latents, Marginals
from pyro_bnn.program.random_state import seeded
from pyro_bnn.program.terms import EntryNoise, GuideTerms, Params
from pyro_bnn.sites import Site

T = TypeVar("T")
KLKind: TypeAlias = Literal["exact", "bound", "monte_carlo", "none"]
ELBO = "ELBO"  # name of the objective of most guides
LOG_JOINT = "log joint"  # and of point estimates
BLOCK_DRAWS, BLOCK_NUMBERS = 256, 1 << 20  # most draws, and numbers, that are made at once
NO_OPTIONS = ("self", "model", "init_loc_fn", "create_plates")  # arguments that no file can hold


class Guide(ModelGuide):
    r"""Base of all guides: a density q over the flat unconstrained vector z ``[P]`` of a model.

    A subclass makes its parameters in ``make_parameters``, maps standard normal noise to draws in
    ``transport`` and evaluates ``log_prob``; ``entropy`` and ``marginals`` where they have closed
    forms. Each instance has a name of its own, so that guides of one model never share
    parameters, not even in Pyro's global parameter store.

    A Pyro guide as those of ``pyro.infer.autoguide``: it may be a part of an ``AutoGuideList``,
    makes as many draws as an outer plate of particles has, and of a site in a subsampled plate it
    has all N values, of which a step takes those of its B rows. A site that the model marks with
    ``infer={"enumerate": ...}`` it leaves to ``pyro.infer.TraceEnum_ELBO``.

    Args:
        model: Pyro model.
        init_loc_fn: Start of each site: a Pyro initialisation strategy such as
            ``pyro.infer.autoguide.init_to_median``, called with the site. Default: for weights a
            draw from the prior, which breaks the symmetry of hidden units; for positive and other
            constrained sites the median of 15 draws from it; what normalisations learn starts as
            the identity, see :func:`pyro_bnn.bayesian`.
        create_plates: Function of the model's arguments that returns a ``pyro.plate``, or several,
            to use in place of plates made by the guide, as for stock Pyro's guides.

    Attributes:
        has_log_prob: Whether q has a density.
        has_rsample: Whether draws are differentiable in the parameters.
        kl_kind: ``"exact"`` where the entropy of q is in closed form (then ``kl`` is exact too, if
            every prior has a closed-form expectation), ``"monte_carlo"``, ``"bound"``, or
            ``"none"`` for a point estimate.
        has_moments: Whether predictions have a mean and sd that do not hang on few draws.
        needs_all_rows: Whether the objective is defined over the whole data set only.
        marginal_family: Family of the marginals of all sites but ``cauchy_sites``: ``"normal"``, or
            ``"moments"`` where only their means and sds are known.
        objective: Name of what SVI maximises, ``"ELBO"`` where it is that bound.
        member_params: Names of the model's parameters of which each draw has values of its own.
        needs_model: Name of the class in ``pyro_bnn.models`` that the guide is made for, or None.
        suits_models: Names of other classes that such a guide is made for.
        warms_up_components: Whether SVI's ``loc_warmup`` serves means ``loc [K, P]``, too.
        tall_params: Names of matrices ``[P, R]`` that products go along, which SVI keeps column by
            column in memory while its steps are compiled.
        contains: Names of guides whose families are special cases of this one's, whatever their
            options; theirs in turn need not be named.
        has_correlations: Whether q can have correlations between weights; None where the class does
            not say.
        enlarged_by: Name of the option whose larger values make the family larger; empty for none.
    """

    has_log_prob: bool = True
    has_rsample: ClassVar[bool] = True
    kl_kind: KLKind = "exact"
    has_moments: bool = True
    needs_all_rows: bool = False
    marginal_family: Marginal = "normal"
    objective: str = ELBO
    member_params: tuple[str, ...] = ()
    needs_model: ClassVar[str | None] = None
    suits_models: ClassVar[tuple[str, ...]] = ()
    warms_up_components: ClassVar[bool] = False
    tall_params: ClassVar[tuple[str, ...]] = ()
    contains: ClassVar[tuple[str, ...]] = ()
    has_correlations: bool | None = None
    enlarged_by: ClassVar[str] = ""
    known: ClassVar[dict[str, type[Guide]]] = {}
    """The guides of this package by name, those that an engine alone makes among them."""

    def __init_subclass__(cls, *, is_base: bool = False, **options: Any) -> None:
        super().__init_subclass__(**options)
        if cls.__module__.startswith("pyro_bnn.guides.") and not is_base:
            Guide.known[cls.__name__] = cls

    # To be written by a subclass

    @property
    def noise_dim(self) -> int:
        """Length M of the standard normal noise of one draw."""
        return self.num_latents

    def transport(self, noise: Tensor) -> Tensor:
        """Draws z ``[..., P]`` made of noise ``[..., M]``."""
        raise TypeError(f"{type(self).__name__} transports no noise {tuple(noise.shape)}")

    def log_prob(self, z: Tensor) -> Tensor:
        """Log q(z) ``[...]`` of z ``[..., P]``."""
        raise TypeError(f"{type(self).__name__} has no density at z {tuple(z.shape)}")

    def entropy(self) -> Tensor | None:
        """Entropy of q in closed form, ``[]``, or None."""
        return None

    def marginals(self) -> tuple[Tensor, Tensor] | None:
        """Mean and sd ``[P]`` of each entry of z where they are in closed form, else None."""
        return None

    @property
    def cauchy_sites(self) -> frozenset[str]:
        """Names of the sites whose marginals are Cauchy."""
        return frozenset()

    def atoms(self) -> Tensor | None:
        """The draws ``[K, P + Q]`` of a q of K points of equal weight; None where q is another."""
        return None

    def components(self) -> Marginals | None:
        """Marginals of q, or of each of its components; None where they are of no known family."""
        marginals = self.marginals()
        if marginals is None:
            return None
        return Marginals(*marginals, others=self.marginal_family)

    def draws(self, noise: Tensor) -> Tensor:
        """Draws ``[..., P + Q]`` of noise ``[..., M]``: z, then values of ``member_params``."""
        return self.transport(noise)

    def log_q(self, noise: Tensor) -> Tensor:
        """Log density ``[...]`` of the draws made of noise ``[..., M]``."""
        return self.log_prob(self.transport(noise))

    def reduce_log_likelihood(self, rows: Tensor, scale: float = 1.0) -> Tensor:
        """The objective's likelihood term ``[]``: N/B times that of the mean draw.

        Args:
            rows: Log densities ``[D, B]`` of draws and rows.
            scale: N/B.
        """
        total = rows.sum() if len(rows) == 1 else rows.sum(-1).mean(0)
        return total * scale

    def make_terms(self, noise: Tensor, *, density: bool) -> GuideTerms:
        """What an ELBO needs at noise ``[K, M]``; with ``density=False`` the draws alone."""
        draws = self.draws(noise)
        if not density:
            return GuideTerms(draws)
        entropy = self.entropy()
        log_prob = None
        if entropy is None and self.has_log_prob:
            log_prob = self.log_prob(draws)  # [K]
        return GuideTerms(
            draws, entropy, log_prob, self.components(), entry_noise=self.own_noise(draws, noise)
        )

    def own_noise(self, draws: Tensor, noise: Tensor) -> EntryNoise | None:  # noqa: ARG002
        """What of the noise ``[K, M]`` of draws ``[K, P]`` moves each entry alone, or None.

        A guide whose draws are Gaussian with independent entries, once the rest of the noise is
        given, tells them here: estimators then draw the outputs of layers in place of weights.
        """
        return None

    def get_posterior(self) -> Distribution:
        """Q as a distribution over z ``[P]``."""
        if not self.has_log_prob:
            raise TypeError(f"{type(self).__name__} has no distribution object")
        self.require_setup()
        return Drawn(self)

    def z_quantiles(self, levels: Tensor) -> Tensor:
        """Marginal quantiles ``[Q, P]`` of z; by default those of Gaussian ``marginals``."""
        marginals = self.marginals()
        if marginals is None:
            raise SiteError(
                f"the marginals of {type(self).__name__} have no closed form; take quantiles of "
                "posterior.sample()"
            )
        mean, sd = marginals
        z: Tensor = mean + sd * torch.special.ndtri(levels).unsqueeze(-1)
        return z

    @contextmanager
    def transforming_once(self) -> Iterator[None]:
        """A context in which a constrained parameter is transformed once, however often it is read.

        Its gradient then passes the transform once, too.
        """
        guides = [part for part in self.modules() if isinstance(part, Guide)]
        for part in guides:
            part.__dict__["_constrained"] = {}
        try:
            yield
        finally:
            for part in guides:
                del part.__dict__["_constrained"]

    def once(self, name: str, make: Callable[[], T]) -> T:
        """What is made of parameters, once inside :meth:`transforming_once`."""
        values = self.__dict__.get("_constrained", {})
        if name not in values:
            values[name] = make()
        return cast(T, values[name])

    def __getattr__(self, name: str) -> Any:
        read = functools.partial(super().__getattr__, name)
        is_constrained = name in self.__dict__.get("_pyro_params", ())
        return self.once(name, read) if is_constrained else read()

    # Its kind, its start and its centre

    def options(self) -> dict[str, Any]:
        """JSON-able options that make a guide of the same kind: its arguments, but its start."""
        arguments = inspect.signature(type(self).__init__).parameters
        given = {name: getattr(self, name, None) for name in arguments if name not in NO_OPTIONS}
        return {name: value for name, value in given.items() if value is not None}

    def described(self) -> dict[str, Any]:
        """Name and :meth:`options`, of which :meth:`made` makes a guide like this one."""
        return {"guide": type(self).__name__, **self.options()}

    @staticmethod
    def made(described: Mapping[str, Any], model: Model) -> Guide:
        """A guide of a name and options.

        Raises:
            UnknownNameError: If there is no guide of the name.
        """
        options = dict(described)
        name = options.pop("guide", None)
        if name not in Guide.known:
            raise UnknownNameError("guide", str(name), Guide.known)
        return Guide.known[name](model, **options)

    def centre(self) -> Tensor:
        """Where q is centred, ``[P]``; of K members at ``loc [K, P]`` the mean of these."""
        self.require_setup()
        loc = cast(Tensor, self.loc).detach()
        return loc.clone() if loc.ndim == 1 else loc.mean(0)

    def move_to(self, z: Tensor) -> None:
        """Centre q at z ``[P]``, its scales as they are; members move together."""
        with torch.no_grad():
            self.loc.copy_(z if self.loc.ndim == 1 else self.loc + (z - self.centre()))

    @property
    def mean_params(self) -> tuple[str, ...]:
        """Names of the parameters that are means of z, which SVI may train before the others."""
        loc = dict(self.named_parameters()).get("loc")
        has_means = loc is not None and (loc.ndim == 1 or self.warms_up_components)
        return ("loc",) if has_means else ()

    def set_sds(self, sds: Tensor) -> None:
        """Give z standard deviations as close to ``sds [P]``, > 0, as the family has them.

        Correlations are taken out. Families without such a form stay as they are.
        """

    def copy_from(self, other: Guide) -> bool:
        """Take the parameters of another guide over these sites, if it is of the same form.

        Returns:
            Whether it is: of this class and options, but for its start.
        """
        own, theirs = dict(self.named_parameters()), dict(other.named_parameters())
        same = [type(guide) for guide in self.modules()] == [type(g) for g in other.modules()]
        shapes = {name: value.shape for name, value in own.items()}
        if not same or shapes != {name: value.shape for name, value in theirs.items()}:
            return False
        self.load_state_dict(other.state_dict())
        return True

    def set_member_params(self, params: Params) -> None:
        """Start every draw's own values of ``member_params`` at given ones.

        Args:
            params: Values of the model's parameters by name.
        """

    # Draws and divergences

    def draw_noise(self, num_draws: int, generator: torch.Generator | None = None) -> Tensor:
        """Standard normal noise ``[S, M]`` for S draws."""
        self.require_setup()
        like = next(self.parameters())
        return torch.randn(
            num_draws, self.noise_dim, generator=generator, dtype=like.dtype, device=like.device
        )

    def sample(self, num_draws: int, seed: int = 0) -> Tensor:
        """Draws z ``[S, P]``; the same for one seed, and the first of them for a larger S."""
        with torch.no_grad():
            return torch.cat(list(self.in_blocks(self.transport, num_draws, seed))).detach()

    def log_prob_of_sample(self, num_draws: int, seed: int) -> Tensor:
        """Log q ``[S]`` of the draws of ``sample(num_draws, seed)``."""
        return torch.cat(list(self.in_blocks(self.log_q, num_draws, seed)))

    def seeded_noise(self, num_draws: int, seed: int) -> Tensor:
        """The noise ``[S, M]`` of ``sample(num_draws, seed)``."""
        return torch.cat(list(self.in_blocks(lambda noise: noise, num_draws, seed)))

    def in_blocks(
        self, fn: Callable[[Tensor], Tensor], num_draws: int, seed: int
    ) -> Iterator[Tensor]:
        """A function of each draw's noise, over S draws of a seed, a block at a time.

        Every block is computed whole, whatever S is, so a draw has the same bits in all of them.

        Args:
            fn: Maps noise ``[B, M]`` to values ``[B, ...]``.
            num_draws: Number of draws S.
            seed: Seed of the noise.

        Yields:
            Values ``[B, ...]``, the last block cut to S; B depends on P and M alone.
        """
        self.require_setup()
        generator = seeded(seed, next(self.parameters()).device)
        size = max(1, min(BLOCK_DRAWS, BLOCK_NUMBERS // max(1, self.noise_dim, self.num_latents)))
        for start in range(0, num_draws, size):
            yield fn(self.draw_noise(size, generator))[: num_draws - start]

    def terms(self, params: Params, noise: Tensor, *, density: bool = True) -> GuideTerms:
        """What an ELBO needs, with ``params`` in place of the guide's own parameters.

        Args:
            params: Values by parameter name.
            noise: Noise ``[K, M]``.
            density: Whether densities are needed; else only ``z`` is given.
        """
        named = {f"guide.{name}": value for name, value in params.items()}
        call: Any = torch.func.functional_call
        return cast(GuideTerms, call(_Terms(self), named, (noise,), {"density": density}))

    def kl(
        self, num_draws: int = 1_000, seed: int = 0, *, params: Params | None = None
    ) -> tuple[float, bool]:
        r"""KL(q || prior) in nats, summed over all of z.

        Args:
            num_draws: Draws of z where it is not in closed form.
            seed: Their seed.
            params: Values of the model's point-estimated parameters, unconstrained, on which the
                prior may depend: ``posterior.params`` of a fit. Default: those of the model.

        Returns:
            The value, and whether it is exact: then it is in closed form and has no Monte Carlo
            error.

        Raises:
            SiteError: If the guide has not been set up, or has no density.
        """
        if not self.has_log_prob:
            raise SiteError(f"{type(self).__name__} has no density: its KL is infinite")
        if self.latents is None:
            raise SiteError(f"call guide.setup(x) before {type(self).__name__}.kl()")
        if any(f.full_size not in (None, f.size) for f in self._prototype_frames.values()):
            raise SiteError(
                "the model subsamples latent sites, whose prior is of some of them at a time: take "
                "the KL of a guide of the model over all rows"
            )
        latents = self.latents
        with torch.no_grad():
            entropy, q, blocks = self.entropy(), self.components(), None
            log_prior, is_closed = torch.zeros(()), False
            if q is not None:
                log_prior = latents.expected_log_prior(q)
                blocks = latents.closed_forms(q.cauchy, q.others).sampled
                is_closed = latents.is_closed_form(q.cauchy, q.others)
            if entropy is not None and is_closed:
                return float(-entropy - log_prior), True
            z = self.sample(num_draws, seed)

            def rest(row: Tensor) -> Tensor:
                run = self._evaluate(latents.constrain(row), params)
                return latents.log_prior(run, row, blocks=blocks)

            log_prior = log_prior + over_draws(rest, z).mean()
            if entropy is not None:
                return float(-entropy - log_prior), False
            return float(self.log_prob_of_sample(num_draws, seed).mean() - log_prior), False

    # Summaries, as Pyro's autoguides have them

    def median(self, *args: Any, **kwargs: Any) -> dict[str, Tensor]:
        """Median of each site, by name."""
        return {name: q[0] for name, q in self.quantiles([0.5], *args, **kwargs).items()}

    def quantiles(self, quantiles: Sequence[float], *args: Any, **kwargs: Any) -> dict[str, Tensor]:
        """Marginal quantiles ``[Q, *shape]`` of each site, by name.

        Raises:
            SiteError: If the marginals of q have no closed form.
        """
        self.setup(*args, **kwargs)
        like = next(self.parameters())
        levels = torch.as_tensor(quantiles, dtype=like.dtype, device=like.device)
        with torch.no_grad():
            return cast(Latents, self.latents).constrain(self.z_quantiles(levels))

    # As a Pyro guide

    def forward(self, *args: Any, **kwargs: Any) -> dict[str, Tensor]:
        """Sample every site of the model, as Pyro's engines ask of a guide."""
        self.setup(*args, **kwargs)
        z = self.sample_z()

        def point(site: Site) -> Distribution:
            return self.point(site, z, has_density=self.has_density_of(site))

        return self.sample_sites(point, *args, **kwargs)

    def sample_z(self) -> Tensor:
        """A draw ``[..., P]`` as a Pyro statement, with its density where q has one."""
        if self.has_log_prob:
            return self.sample_auxiliary("z", self.get_posterior())
        return self.transport(self.sample_noise(self.noise_dim))

    def has_density_of(self, site: Site) -> bool:  # noqa: ARG002
        """Whether q has a density of a site."""
        return self.has_log_prob


class ScaledGuide(Guide, is_base=True):
    """Base of guides whose scales start at one number.

    Args:
        model: Pyro model.
        init_loc_fn: Start of the means; default a draw from the prior.
        init_scale: Initial standard deviation of every entry of z, > 0, in its units.
        create_plates: As stock Pyro's guides take it; see :class:`Guide`.

    Raises:
        OptionError: If ``init_scale`` is not positive.

    Attributes:
        factor_param: Name of the parameter at whose zero the entries of z are independent and
            ``scale`` are their standard deviations.
    """

    factor_param: ClassVar[str | None] = None
    loc: Tensor
    scale: Tensor

    def __init__(
        self,
        model: Model,
        init_loc_fn: Callable[[dict[str, Any]], Tensor] | None = None,
        init_scale: float = 0.01,
        *,
        create_plates: CreatePlates | None = None,
    ) -> None:
        super().__init__(model, init_loc_fn=init_loc_fn, create_plates=create_plates)
        self.init_scale = check_init_scale(init_scale)

    def make_parameters(self, loc: Tensor) -> None:
        """Create ``loc [P]`` and ``scale [P]``."""
        self.loc = nn.Parameter(loc)
        self.scale = positive_parameter(torch.full_like(loc, self.init_scale))

    def set_sds(self, sds: Tensor) -> None:
        """Make ``scale`` these values ``[P]``, and the factor of correlations 0."""
        if self.factor_param is not None:
            with torch.no_grad():
                getattr(self, self.factor_param).zero_()
        self.scale = sds.to(self.loc)


class GaussianGuide(ScaledGuide, is_base=True):
    r"""Base of guides that are one Gaussian, each with a :math:`\Sigma` of its own form.

    .. math:: \log q(z) = -\tfrac12 (z - m)^\top \Sigma^{-1} (z - m) - \tfrac12 \log\det\Sigma
              - \tfrac P2 \log 2\pi, \qquad
              \mathrm H[q] = \tfrac12 \log\det\Sigma + \tfrac P2 (1 + \log 2\pi)

    A subclass has ``squared_distance``, and ``half_log_det`` where it is not that of ``scale``.
    """

    def squared_distance(self, z: Tensor) -> Tensor:
        r""":math:`(z - m)^\top \Sigma^{-1} (z - m)` ``[...]`` of z ``[..., P]``."""
        raise TypeError(f"{type(self).__name__} has no distance of z {tuple(z.shape)}")

    def half_log_det(self) -> Tensor:
        r""":math:`\tfrac12 \log\det\Sigma`, by default :math:`\sum_j \log s_j`."""
        return self.scale.log().sum()

    def log_prob(self, z: Tensor) -> Tensor:
        """Log q(z) ``[...]`` of z ``[..., P]``."""
        self.require_setup()
        return self.log_density_at(self.squared_distance(z))

    def log_density_at(self, squared: Tensor) -> Tensor:
        """Log density ``[...]`` at squared distances ``[...]``."""
        normaliser = self.half_log_det() + 0.5 * self.num_latents * math.log(2 * math.pi)
        return -0.5 * squared - normaliser

    def entropy(self) -> Tensor:
        """Entropy of q, ``[]``."""
        return self.half_log_det() + 0.5 * self.num_latents * (1 + math.log(2 * math.pi))


class Drawn(TorchDistribution):
    """A guide's q over z ``[P]``, by its own draws and density.

    The density of what was drawn is taken of its noise, without an inverse.
    """

    arg_constraints: ClassVar[dict[str, constraints.Constraint]] = {}
    support = constraints.real_vector

    def __init__(self, guide: Guide, batch_shape: Sequence[int] = ()) -> None:
        self.guide, self.has_rsample = guide, guide.has_rsample
        self._drawn: tuple[Tensor, Tensor] | None = None  # values and their noise
        event_shape = torch.Size([guide.num_latents])
        super().__init__(torch.Size(batch_shape), event_shape, validate_args=False)

    def expand(self, batch_shape: Any, _instance: Any = None) -> Drawn:
        """Q for each entry of a batch."""
        return Drawn(self.guide, batch_shape)

    def rsample(self, sample_shape: Any = ()) -> Tensor:
        """Draws ``[*sample_shape, *batch, P]``."""
        shape = torch.Size(sample_shape) + self.batch_shape
        noise = self.guide.draw_noise(shape.numel()).reshape(*shape, self.guide.noise_dim)
        self._drawn = self.guide.transport(noise), noise
        return self._drawn[0]

    def log_prob(self, value: Tensor) -> Tensor:
        """Log density ``[...]`` of values ``[..., P]``."""
        if self._drawn is not None and value is self._drawn[0]:
            return self.guide.log_q(self._drawn[1])
        return self.guide.log_prob(value)


class _Terms(nn.Module):
    """A guide's terms as a module call, so that other values can stand in for its parameters."""

    def __init__(self, guide: Guide) -> None:
        super().__init__()
        self.guide = guide

    def forward(self, noise: Tensor, *, density: bool) -> GuideTerms:
        with self.guide.transforming_once():
            return self.guide.make_terms(noise, density=density)


def fixed_noise(num_rows: int, num_columns: int, like: Tensor) -> Tensor:
    """Standard normal noise ``[R, C]``, always the same, at which the columns of a factor start."""
    generator = torch.Generator(like.device).manual_seed(0)
    return like.new_empty(num_rows, num_columns).normal_(generator=generator)


def positive_parameter(value: Tensor) -> Tensor:
    """A trainable positive tensor: reading the attribute it is assigned to gives its value."""
    return cast(Tensor, PyroParam(value, constraint=constraints.softplus_positive))


def check_init_scale(init_scale: float) -> float:
    """The initial sd itself.

    Raises:
        OptionError: If it is not a positive number.
    """
    if not (isinstance(init_scale, int | float) and 0 < init_scale < float("inf")):
        raise OptionError(f"init_scale is a positive standard deviation, not {init_scale!r}")
    return float(init_scale)
