"""Draws that a trained guide makes on demand, of whatever they are."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from pyro_bnn.guides import Guide
from pyro_bnn.posterior import storage
from pyro_bnn.posterior.nature import Nature
from pyro_bnn.posterior.provenance import Provenance
from pyro_bnn.posterior.site_posterior import SitePosterior
from pyro_bnn.predictive.draws import Draws, draws_of_atoms
from pyro_bnn.program.joint import Joint
from pyro_bnn.program.random_state import isolated


class GuideDraws(SitePosterior):
    """Draws of a trained guide, made on demand.

    Args:
        program: The model as tensor functions.
        guide: The trained guide.
        provenance: How it came about.
    """

    def __init__(self, program: Joint, guide: Guide, provenance: Provenance) -> None:
        super().__init__(program, provenance)
        self.guide = guide
        program.prepare(guide)

    @property
    def nature(self) -> Nature | None:
        """What its engine declares, and its guide."""
        nature = self.provenance.nature
        return None if nature is None else nature.of_guide(self.guide)

    @property
    def num_atoms(self) -> int | None:
        """Number of the guide's ``atoms``, if it has such."""
        atoms = self.guide.atoms()
        return None if atoms is None else len(atoms)

    @property
    def has_log_prob(self) -> bool:
        """Whether the guide has a density."""
        return self.guide.has_log_prob

    @property
    def elbo_kind(self) -> str:
        """The guide's ``kl_kind``; ``"none"`` under a flat prior."""
        return "none" if self.program.latents.improper else self.guide.kl_kind

    @property
    def objective(self) -> str:
        """The guide's ``objective``."""
        return self.guide.objective

    def _contents(self) -> dict[str, Any]:
        known = storage.is_known(self.guide)
        return storage.guide_contents(self.guide) if known else super()._contents()

    def in_blocks(self, num_samples: int, seed: int) -> Draws:
        """Draws of the guide; see the base class."""
        atoms = self.guide.atoms()
        if atoms is not None:
            return draws_of_atoms(atoms.detach(), num_samples, seed)

        def blocks() -> Iterator[Tensor]:
            return self.guide.in_blocks(self._draws, num_samples, seed)

        return Draws(blocks, num_samples)

    def _draws(self, noise: Tensor) -> Tensor:
        with torch.no_grad():
            return self.guide.draws(noise).detach()

    @isolated()
    def log_q(self, num_samples: int | None = None, seed: int = 0) -> Float[Tensor, " S"]:
        """Log q(z_s) ``[S]`` of the guide at its draws; see the base class."""
        if not self.has_log_prob:
            return super().log_q(num_samples, seed)
        with torch.no_grad():
            blocks = self.guide.in_blocks(self.guide.log_q, self.count(num_samples), seed)
            return torch.cat(list(blocks))
