"""Particles of tempered sequential Monte Carlo on a network as a posterior."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from pyro_bnn.posterior.draws_posterior import DrawsPosterior
from pyro_bnn.posterior.particle_draws import ParticleDraws
from pyro_bnn.posterior.provenance import Provenance
from pyro_bnn.program.program import Program


class ParticlePosterior(ParticleDraws, DrawsPosterior, kind="particles"):
    """Particles of a network; see :class:`~.particle_draws.ParticleDraws` for its arguments."""

    def __init__(
        self,
        program: Program,
        z: Float[Tensor, "C S P"],
        provenance: Provenance,
        *,
        stages: Float[Tensor, "n 10"],
        sample_stats: Mapping[str, NDArray[Any]] | None = None,
        log_q: Float[Tensor, "C S"] | None = None,
    ) -> None:
        super().__init__(
            program, z, provenance, stages=stages, sample_stats=sample_stats, log_q=log_q
        )
