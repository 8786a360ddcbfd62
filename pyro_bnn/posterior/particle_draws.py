"""Particles of tempered sequential Monte Carlo, of whatever they are."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from pyro_bnn.posterior.provenance import Provenance
from pyro_bnn.posterior.stored_draws import StoredDraws
from pyro_bnn.program.joint import Joint

STAGES = (
    "island", "inverse_temperature", "ess", "acceptance_rate", "step_size", "num_steps", "moves",
    "correlation", "ancestors", "log_evidence",
)  # fmt: skip
"""What is known of each temperature of each island."""


class ParticleDraws(StoredDraws):
    """Draws of tempered sequential Monte Carlo, islands as chains; see :class:`pyro_bnn.SMC`.

    Args:
        program: The model as tensor functions.
        z: Draws ``[C, S, P]`` of C islands.
        provenance: How they came about.
        stages: A row ``[n, 10]`` of each temperature of each island, as :attr:`stages` names them.
        sample_stats: Log joint and ancestor of each draw ``[C, S]``.
        log_q: Not used.
    """

    def __init__(
        self,
        program: Joint,
        z: Float[Tensor, "C S P"],
        provenance: Provenance,
        *,
        stages: Float[Tensor, "n 10"],
        sample_stats: Mapping[str, NDArray[Any]] | None = None,
        log_q: Float[Tensor, "C S"] | None = None,
    ) -> None:
        super().__init__(program, z, provenance, sample_stats=sample_stats, log_q=log_q)
        self._stages = stages

    @property
    def log_evidence(self) -> float:
        """Log p(y | x) in nats, of the mean of the islands' estimates of p(y | x)."""
        return float(self.options["log_evidence"])

    @property
    def log_evidence_error(self) -> float:
        """Its standard error: sd of the islands' log evidences over sqrt(C); NaN of one island."""
        return float(self.options.get("log_evidence_error", math.nan))

    @property
    def stages(self) -> dict[str, NDArray[Any]]:
        """What is known of each temperature, by name, ``[n]`` each, one island after the other.

        ``island``, ``inverse_temperature``, ``ess`` (of the incremental weights that led to it, in
        particles), ``acceptance_rate``, ``step_size``, ``num_steps`` (leapfrog steps of a move, a
        mean), ``moves``, ``correlation`` (of log likelihoods after the moves with those before),
        ``ancestors`` (draws of the prior that particles descend from) and ``log_evidence``, so far.
        """
        return dict(zip(STAGES, self._stages.numpy().T, strict=True))

    def _contents(self) -> dict[str, Any]:
        return {**super()._contents(), "stages": self._stages}
