"""Stored draws of a network as a posterior."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from pyro_bnn.posterior.posterior import Posterior
from pyro_bnn.posterior.provenance import Provenance
from pyro_bnn.posterior.stored_draws import StoredDraws
from pyro_bnn.program.program import Program


class DrawsPosterior(StoredDraws, Posterior, kind="draws"):
    """Stored draws of a network; see :class:`~.stored_draws.StoredDraws` for its arguments."""

    def __init__(
        self,
        program: Program,
        z: Float[Tensor, "C S P"],
        provenance: Provenance,
        *,
        sample_stats: Mapping[str, NDArray[Any]] | None = None,
        log_q: Float[Tensor, "C S"] | None = None,
    ) -> None:
        super().__init__(program, z, provenance, sample_stats=sample_stats, log_q=log_q)
