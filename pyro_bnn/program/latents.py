"""The latent sites of a model as one flat vector z ``[P]``, and the density of their prior."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import pyro.distributions as dist
import torch
from pyro.distributions.torch_distribution import TorchDistributionMixin as Distribution
from torch import Tensor

from pyro_bnn.errors import BNNWarning, SiteError
from pyro_bnn.program.closed_forms import FAMILIES, Marginal, PriorBlock, make_index
from pyro_bnn.program.distributions import base_distribution, bounds_of
from pyro_bnn.program.handlers import (
    Entries,
    Evaluate,
    ModelTrace,
    SiteValue,
    innermost,
    log_prob,
)
from pyro_bnn.sites import Site


class Marginals(NamedTuple):
    """Marginals of an approximation q, or of each of its K components.

    Attributes:
        loc: Means (of a Cauchy: medians), ``[P]`` or ``[K, P]``.
        scale: Standard deviations (of a Cauchy: half the interquartile range), of the same shape.
        cauchy: Names of the sites whose marginals are Cauchy.
        others: Family of the other sites' marginals.
        weights: Weights of the components, ``[K]``; None for equal ones.
    """

    loc: Tensor
    scale: Tensor
    cauchy: frozenset[str] = frozenset()
    others: Marginal = "normal"
    weights: Tensor | None = None


class ClosedForms(NamedTuple):
    """Blocks of the prior, by whether their expectation under q has a closed form.

    Attributes:
        expected: Blocks with a closed form, each with the family of its marginals under q.
        sampled: The other blocks, whose expectation is estimated by sampling.
    """

    expected: tuple[tuple[PriorBlock, Marginal], ...]
    sampled: tuple[PriorBlock, ...]


Member = tuple[Site, Tensor, Tensor]  # loc and scale of the site's prior, each [n]


class Latents:
    r"""Coordinates and prior density of the latent sites.

    Site s owns ``z[s.start:s.stop]``; its value is ``s.value(z)``. The log prior density of z is
    that of the values plus the log Jacobian of this map.

    Args:
        sites: The latent sites in the order of the model's execution.

    Attributes:
        num_latents: Length P of z.
        dependent: The sites whose support depends on another site or on a parameter. Only a run
            of the model tells their values.
        improper: Names of the sites with a flat prior.
        without_draws: Names of the sites whose priors cannot be drawn from; what stands for draws
            are points to start from.
        elsewhere: Names of the sites whose densities are no part of :meth:`log_prior`, but their
            Jacobians are.
    """

    def __init__(self, sites: tuple[Site, ...]) -> None:
        self.sites = sites
        self.num_latents = sites[-1].stop
        self._members: dict[type, list[Member]] = {}
        self._blocks: tuple[PriorBlock, ...] = ()
        self._other_sites = sites
        self._closed_forms: dict[tuple[frozenset[str], Marginal], ClosedForms] = {}
        self.dependent = tuple(site for site in sites if site.is_dependent)
        self.improper: frozenset[str] = frozenset()
        self.without_draws: frozenset[str] = frozenset()
        self.elsewhere: frozenset[str] = frozenset()

    def is_closed_form(
        self, cauchy: frozenset[str] = frozenset(), others: Marginal = "normal"
    ) -> bool:
        """Whether the expected log prior under q is in closed form for all of z.

        Args:
            cauchy: Names of the sites whose marginals under q are Cauchy.
            others: Family of the other sites' marginals.
        """
        return not self._other_sites and not self.closed_forms(cauchy, others).sampled

    def constrain(self, z: Tensor) -> dict[str, Tensor]:
        """Values ``[..., *shape]`` of all sites, by name, out of z ``[..., P]``.

        Raises:
            SiteError: If a site is dependent.
        """
        parts = self._split(z)
        return {site.name: site.value_of(parts[site.name]) for site in self.sites}

    def in_run(self, z: Tensor) -> dict[str, SiteValue]:
        """What gives a run at z ``[P]`` the values of all sites, by name."""
        parts = self._split(z)
        return {
            site.name: Entries(site, parts[site.name])
            if site.is_dependent
            else site.value_of(parts[site.name])
            for site in self.sites
        }

    def require_values(self, values: Mapping[str, Tensor]) -> None:
        """Check that every site has a value of its shape.

        Raises:
            SiteError: If one is missing or has another shape.
        """
        for site in self.sites:
            if site.name not in values:
                raise SiteError(
                    f"no value for the site {site.name!r}; needed are "
                    f"{', '.join(s.name for s in self.sites)}"
                )
            value = values[site.name]
            if value.shape[value.ndim - len(site.shape) :] != site.shape:
                raise SiteError(
                    f"the value of site {site.name!r} has shape {tuple(value.shape)}, but the "
                    f"site's shape is {tuple(site.shape)}"
                )

    def unconstrain(self, values: Mapping[str, Tensor]) -> Tensor:
        """Flat z ``[..., P]`` of the sites' values ``[..., *shape]``.

        Raises:
            SiteError: If a site is missing, has another shape, or is dependent.
        """
        self.require_values(values)
        return torch.cat([site.flatten(values[site.name]) for site in self.sites], -1)

    def log_prior(
        self,
        run: Evaluate,
        z: Tensor,
        *,
        jacobian: bool = True,
        blocks: Sequence[PriorBlock] | None = None,
    ) -> Tensor:
        """Log p(z) ``[]`` of z ``[P]``.

        Args:
            run: The model, evaluated at z.
            z: Flat unconstrained vector.
            jacobian: Whether it is the density of z; else that of the sites' values.
            blocks: Which closed-form entries to include: all, or ``closed_forms(...).sampled``
                where :meth:`expected_log_prior` covers the others.
        """
        total = z.new_zeros(())
        for block in self._blocks if blocks is None else blocks:
            total = total + block.log_prob(z)
        parts = self._split(z) if self._other_sites and jacobian else {}
        for site in self._other_sites:
            msg = run.latent[site.name]
            if site.name not in self.elsewhere:
                total = total + (log_prob(msg) * msg["scale"]).sum().to(z.dtype)
            if jacobian:
                support = msg["fn"].support if site.is_dependent else None
                total = total + site.log_abs_det_jacobian_of(parts[site.name], support)
        return total

    def log_priors(self, run: Evaluate) -> Tensor:
        """Log density ``[K]`` of each site's value under its prior, in the order of the sites."""
        messages = [run.latent[site.name] for site in self.sites]
        return torch.stack([(log_prob(msg) * msg["scale"]).sum() for msg in messages])

    def _split(self, z: Tensor) -> dict[str, Tensor]:
        """Entries ``[..., n]`` of all sites, by name, out of z ``[..., P]``."""
        # one split, whose gradient is one concatenation; a slice a site would cost a sum each
        parts = z.split([site.stop - site.start for site in self.sites], dim=-1)
        return {site.name: part for site, part in zip(self.sites, parts, strict=True)}

    def expected_log_prior(self, q: Marginals) -> Tensor:
        """Closed-form part of E_q log p(z), ``[]``, averaged over q's components."""
        total = q.loc.new_zeros(())
        for block, marginal in self.closed_forms(q.cauchy, q.others).expected:
            value = block.expected_log_prob(q.loc, q.scale, marginal)  # [] or [K]
            if q.weights is not None:
                value = q.weights @ value
            total = total + (value.mean() if value.ndim else value)
        return total

    def closed_forms(
        self, cauchy: frozenset[str] = frozenset(), others: Marginal = "normal"
    ) -> ClosedForms:
        """The blocks of the prior, by whether their expectation under q has a closed form.

        The first call for one set of sites makes tensors, and is not to be captured in a graph.

        Args:
            cauchy: Names of the sites whose marginals under q are Cauchy.
            others: Family of the other sites' marginals.
        """
        key = cauchy, others
        if key not in self._closed_forms:
            expected: list[tuple[PriorBlock, Marginal]] = []
            sampled: list[PriorBlock] = []
            marginals: tuple[Marginal, ...] = (others, "cauchy")
            for family, members in self._members.items():
                for marginal in marginals:
                    part = [m for m in members if (m[0].name in cauchy) == (marginal == "cauchy")]
                    if not part:
                        continue
                    block = _block(family, part)
                    if marginal in block.family.expected_log_prob:
                        expected.append((block, marginal))
                    else:
                        sampled.append(block)
            self._closed_forms[key] = ClosedForms(tuple(expected), tuple(sampled))
        return self._closed_forms[key]

    def find_closed_forms(self, probe: Evaluate) -> None:
        """Gather the sites whose prior is of a closed-form family with constant parameters.

        Args:
            probe: The model, evaluated with marks, which show the priors that depend on sites or
                on parameters.
        """
        by_family: dict[type, list[Member]] = {}
        for site in self.sites:
            msg = probe.latent[site.name]
            fn = base_distribution(msg["fn"])
            is_plain = msg["mask"] is None and isinstance(msg["scale"], float) and msg["scale"] == 1
            if type(fn) not in FAMILIES or not site.is_real or not is_plain:
                continue
            if probe.sources(site.name):
                continue
            dtype = msg["value"].dtype
            loc, scale = (p.expand(site.shape).reshape(-1).to(dtype) for p in (fn.loc, fn.scale))
            by_family.setdefault(type(fn), []).append((site, loc, scale))
        self._members = by_family
        self._blocks = tuple(_block(family, members) for family, members in by_family.items())
        self._closed_forms = {}
        self.closed_forms()
        self.improper = frozenset(
            site.name
            for site in self.sites
            if isinstance(base_distribution(probe.latent[site.name]["fn"]), dist.ImproperUniform)
        )
        closed = {site.name for members in by_family.values() for site, _, _ in members}
        self._other_sites = tuple(site for site in self.sites if site.name not in closed)


def sites_of_dependent_support(run: Evaluate) -> list[str]:
    """Names of the sites whose support depends on another site or on a parameter.

    After an if on the value of a site or parameter any may, of a fixed family too: there may be
    another family in the other branch.

    Args:
        run: The model, evaluated with marks.
    """
    return [
        name for name, msg in run.latent.items() if run.sources(name, _bounds_in_run(msg["fn"]))
    ]


def _bounds_in_run(fn: Distribution) -> list[Any]:
    """The bounds of a distribution's support; none where all of its family have one support."""
    fn = base_distribution(fn)
    return [] if fn.support is type(fn).support else bounds_of(fn.support)


def warn_of_circles(trace: ModelTrace) -> None:
    """Warn of priors on a circle: torch and Pyro let their density repeat over all real numbers."""
    for name, msg in trace.messages.items():
        fn = innermost(msg["fn"])
        if isinstance(fn, dist.VonMises | dist.SineBivariateVonMises):
            warnings.warn(
                f"the prior of {name!r} is {type(fn).__name__}, whose density Pyro repeats every "
                "2 pi over all real numbers: draws may wander from one turn to the next, and its "
                "integral is infinite, so that neither an ELBO nor an evidence exists. Write\n"
                f'    {name} = pyro.sample("{name}", dist.Uniform(-math.pi, math.pi))\n'
                f'    pyro.factor("{name}_prior", dist.{type(fn).__name__}(...).log_prob({name})'
                " + math.log(2 * math.pi))\n"
                f"with the arguments that {name!r} has now in place of the dots",
                BNNWarning,
                stacklevel=3,
            )


def require_fixed_supports(run: Evaluate) -> None:
    """Check that no support of given bounds depends on another site or on a parameter.

    Args:
        run: The model, evaluated with marks.

    Raises:
        SiteError: If one does: the map from z to its values would not be fixed.
    """
    for name in sites_of_dependent_support(run):
        if _bounds_in_run(run.latent[name]["fn"]):
            raise SiteError(
                f"the support of the latent site {name!r} depends on another site or parameter; "
                "sample it on a fixed support and scale the sample. After an if on a site's or "
                "parameter's value a support of given bounds counts as dependent: sample it before"
            )


def _block(family: type, members: Sequence[Member]) -> PriorBlock:
    return PriorBlock(
        FAMILIES[family],
        make_index([slice(s.start, s.stop) for s, _, _ in members], members[0][1].device),
        _merged([loc for _, loc, _ in members]),
        _merged([scale for _, _, scale in members]),
    )


def _merged(values: Sequence[Tensor]) -> Tensor:
    """The values as one vector, or as a number ``[]`` if all entries are equal."""
    merged = torch.cat(list(values))
    return merged[0].clone() if len(merged) and bool((merged == merged[0]).all()) else merged
