"""A fit: its draws, predictions and densities, how it came about; saved and loaded."""

from __future__ import annotations

from pyro_bnn.posterior.call_posterior import (
    CallDraws,
    CallGuide,
    CallLaplace,
    CallParticles,
    CallPosterior,
)
from pyro_bnn.posterior.draws_posterior import DrawsPosterior
from pyro_bnn.posterior.guide_posterior import GuidePosterior
from pyro_bnn.posterior.laplace_posterior import LaplacePosterior
from pyro_bnn.posterior.nature import Nature
from pyro_bnn.posterior.particle_posterior import ParticlePosterior
from pyro_bnn.posterior.posterior import Posterior
from pyro_bnn.posterior.provenance import Provenance

__all__ = [
    "CallDraws",
    "CallGuide",
    "CallLaplace",
    "CallParticles",
    "CallPosterior",
    "DrawsPosterior",
    "GuidePosterior",
    "LaplacePosterior",
    "Nature",
    "ParticlePosterior",
    "Posterior",
    "Provenance",
]
