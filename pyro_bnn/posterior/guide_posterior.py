"""A trained guide of a network as a posterior."""

from __future__ import annotations

from pyro_bnn.guides import Guide
from pyro_bnn.posterior.guide_draws import GuideDraws
from pyro_bnn.posterior.posterior import Posterior
from pyro_bnn.posterior.provenance import Provenance
from pyro_bnn.program.program import Program


class GuidePosterior(GuideDraws, Posterior, kind="guide"):
    """A trained guide of a network; see :class:`~.guide_draws.GuideDraws` for its arguments."""

    def __init__(self, program: Program, guide: Guide, provenance: Provenance) -> None:
        super().__init__(program, guide, provenance)

    @property
    def has_moments(self) -> bool:
        """The guide's ``has_moments``."""
        return self.guide.has_moments
