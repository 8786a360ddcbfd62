"""The latent sites of a model as one flat vector z ``[P]``, and the density of their prior."""

from __future__ import annotations

from collections.abc import Mapping

import pyro.distributions as dist
import torch
from torch import Tensor

from pyro_bnn.effects import Evaluate, Site, base_distribution, log_prob
from pyro_bnn.errors import SiteError
from pyro_bnn.families import FAMILIES, Block, make_index


class Latents:
    r"""Coordinates and prior density of the latent sites.

    Site s owns ``z[s.start:s.stop]``; its value is ``s.value(z)``. The log prior density of z is
    that of the values plus the log Jacobian of this map.

    Args:
        sites: The latent sites in the order of the model's execution.

    Attributes:
        num_latents: Length P of z.
    """

    def __init__(self, sites: tuple[Site, ...]) -> None:
        self.sites = sites
        self.num_latents = sites[-1].stop
        self._blocks: tuple[Block, ...] = ()
        self._other_sites = sites
        self.improper: frozenset[str] = frozenset()  # sites with a flat prior

    @property
    def is_closed_form(self) -> bool:
        """Whether the expected log prior under a Gaussian is in closed form for all of z."""
        return not self._other_sites

    def constrain(self, z: Tensor) -> dict[str, Tensor]:
        """Values ``[..., *shape]`` of all sites, by name, out of z ``[..., P]``."""
        # one split, whose gradient is one concatenation; a slice a site would cost a sum each
        parts = z.split([site.stop - site.start for site in self.sites], dim=-1)
        return {s.name: s.value_of(part) for s, part in zip(self.sites, parts, strict=True)}

    def unconstrain(self, values: Mapping[str, Tensor]) -> Tensor:
        """Flat z ``[..., P]`` of the sites' values ``[..., *shape]``.

        Raises:
            SiteError: If a site is missing or has another shape.
        """
        parts = []
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
            parts.append(site.flatten(value))
        return torch.cat(parts, -1)

    def log_prior(
        self, run: Evaluate, z: Tensor, *, jacobian: bool = True, closed_forms: bool = True
    ) -> Tensor:
        """Log p(z) ``[]`` of z ``[P]``.

        Args:
            run: The model, evaluated at z.
            z: Flat unconstrained vector.
            jacobian: Whether it is the density of z; else that of the sites' values.
            closed_forms: Whether to include the entries that ``expected_log_prior`` covers.
        """
        total = z.new_zeros(())
        for block in self._blocks if closed_forms else ():
            total = total + block.log_prob(z)
        for site in self._other_sites:
            msg = run.latent[site.name]
            total = total + (log_prob(msg) * msg["scale"]).sum()
            if jacobian:
                total = total + site.log_abs_det_jacobian(z)
        return total

    def expected_log_prior(self, mean: Tensor, sd: Tensor) -> Tensor:
        """Closed-form part of E_q log p(z), ``[]``, under Gaussian marginals ``[P]`` of q."""
        total = mean.new_zeros(())
        for block in self._blocks:
            total = total + block.expected_log_prob(mean, sd)
        return total

    def find_closed_forms(self, probe: Evaluate) -> None:
        """Gather the sites whose prior is of a closed-form family with constant parameters.

        Args:
            probe: The model, evaluated at values and parameters that require gradients: a prior
                that depends on either shows it.
        """
        found: dict[type, list[tuple[Site, Tensor, Tensor]]] = {}
        for site in self.sites:
            msg = probe.latent[site.name]
            fn = base_distribution(msg["fn"])
            trivial = msg["mask"] is None and isinstance(msg["scale"], float) and msg["scale"] == 1
            if type(fn) not in FAMILIES or not site.is_real or not trivial:
                continue
            if fn.loc.requires_grad or fn.scale.requires_grad:
                continue
            dtype = msg["value"].dtype
            loc, scale = (p.expand(site.shape).reshape(-1).to(dtype) for p in (fn.loc, fn.scale))
            found.setdefault(type(fn), []).append((site, loc, scale))
        self._blocks = tuple(
            Block(
                FAMILIES[family],
                make_index([slice(s.start, s.stop) for s, _, _ in members], members[0][1].device),
                torch.cat([loc for _, loc, _ in members]),
                torch.cat([scale for _, _, scale in members]),
            )
            for family, members in found.items()
        )
        self.improper = frozenset(
            site.name
            for site in self.sites
            if isinstance(base_distribution(probe.latent[site.name]["fn"]), dist.ImproperUniform)
        )
        closed = {site.name for members in found.values() for site, _, _ in members}
        self._other_sites = tuple(site for site in self.sites if site.name not in closed)
