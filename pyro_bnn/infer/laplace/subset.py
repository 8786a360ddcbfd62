"""Laplace's approximation of some entries of z; the others are held at the mode."""

from __future__ import annotations

from typing import Any, TypeAlias

import torch
from torch import Tensor

from pyro_bnn.errors import OptionError, SiteError
from pyro_bnn.guides import AutoComposite, AutoDelta, Guide
from pyro_bnn.guides.parts.blocks import LAST_LAYER, matching_sites
from pyro_bnn.guides.subset_normal import AutoSubsetNormal
from pyro_bnn.program.handlers import Model
from pyro_bnn.program.joint import Joint

Subset: TypeAlias = "str | int"


def entries_of(program: Joint, subset: Subset, structure: str) -> Tensor | None:
    """Entries ``[P']`` of z of the sites of a subset; None for all, or where it counts entries.

    Raises:
        OptionError: If it is a number of entries, and the structure is not full, or too many.
        SiteError: If it takes no site.
    """
    if subset == "all":
        return None
    if isinstance(subset, int):
        if structure != "full" or not 0 < subset <= program.num_latents:
            raise OptionError(
                f"subset={subset} is a number of entries of z, at least 1 and at most "
                f'{program.num_latents} here, under structure="full"'
            )
        return None
    taken = matching_sites(_key(subset), program.sites, program.model)
    if not taken:
        raise SiteError(
            f"subset={subset!r} takes no site: there are "
            f"{', '.join(site.name for site in program.sites)}"
        )
    of_sites = [torch.arange(s.start, s.stop) for s in program.sites if s.name in taken]
    return torch.cat(of_sites).to(program.device)


def guide_of(q: Any, subset: Subset, entries: Tensor | None, model: Model) -> Guide:
    """A guide that has the family of a precision over the subset, and points elsewhere."""
    if isinstance(subset, int):
        assert entries is not None
        return AutoSubsetNormal(model, num_entries=len(entries))
    if entries is None:
        made: Guide = q.make_guide(model)
        return made
    return AutoComposite(model, {_key(subset): q.make_guide}, default=AutoDelta)


def set_guide(guide: Guide, q: Any, entries: Tensor | None, z: Tensor) -> None:
    """Give such a guide the Gaussian of a precision at z ``[P]``."""
    if entries is None:
        q.set(guide, z)
        return
    guide.move_to(z.to(guide.centre()))
    if isinstance(guide, AutoComposite):
        q.set(guide.parts[0], z[entries])
        return
    assert isinstance(guide, AutoSubsetNormal)
    with torch.no_grad():
        guide.entries.copy_(entries)
        guide.scale_tril.copy_(torch.linalg.cholesky(torch.cholesky_inverse(q.tril)))


def _key(subset: str) -> str:
    return LAST_LAYER if subset == "last_layer" else subset
