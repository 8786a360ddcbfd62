"""Draws that are stored, of whatever they are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from pyro_bnn.errors import ShapeError
from pyro_bnn.posterior import storage
from pyro_bnn.posterior.provenance import Provenance
from pyro_bnn.posterior.site_posterior import SitePosterior
from pyro_bnn.predictive.draws import Draws, chosen_draws, stored_draws
from pyro_bnn.program.joint import Joint
from pyro_bnn.program.random_state import isolated


class StoredDraws(SitePosterior):
    """Stored draws, from a sampler or from a guide of stock Pyro.

    Args:
        program: The model as tensor functions.
        z: Draws ``[C, S, P]`` of C chains; may be a map of a file, which is read a few at a time.
        provenance: How they came about.
        sample_stats: Sampler statistics of each draw ``[C, S]``.
        log_q: log q ``[C, S]`` of each draw, where the draws come from an approximation.
    """

    def __init__(
        self,
        program: Joint,
        z: Float[Tensor, "C S P"],
        provenance: Provenance,
        *,
        sample_stats: Mapping[str, NDArray[Any]] | None = None,
        log_q: Float[Tensor, "C S"] | None = None,
    ) -> None:
        super().__init__(program, provenance)
        if z.ndim != 3 or z.shape[-1] != program.num_latents:
            raise ShapeError(
                f"stored draws have shape {tuple(z.shape)}, expected [C, S, {program.num_latents}]"
            )
        self._z, self._stored_log_q = z, log_q
        self._sample_stats = dict(sample_stats or {})

    @property
    def num_chains(self) -> int:
        """Number of chains C."""
        return self._z.shape[0]

    @property
    def num_stored_draws(self) -> int:
        """Number of stored draws over all chains."""
        return self._z.shape[0] * self._z.shape[1]

    @property
    def stored(self) -> Float[Tensor, "C S P"]:
        """All stored draws, the very tensor: to be read alone, and not all of a file at once."""
        return self._z

    @property
    def has_log_prob(self) -> bool:
        """Whether log q of each draw is stored."""
        return self._stored_log_q is not None

    @property
    def elbo_kind(self) -> str:
        """``"monte_carlo"`` where log q is stored and no prior is flat, else ``"none"``."""
        has_elbo = self.has_log_prob and not self.program.latents.improper
        return "monte_carlo" if has_elbo else "none"

    @property
    def sample_stats(self) -> dict[str, NDArray[Any]]:
        """Sampler statistics of each stored draw ``[C, S]``."""
        return self._sample_stats

    def _contents(self) -> dict[str, Any]:
        return storage.draws_contents(self._z, self._stored_log_q, self._sample_stats)

    def chosen(self, num_samples: int, seed: int) -> Tensor:
        """Which stored draws of each chain make up ``num_samples``: positions ``[S/C]``."""
        return chosen_draws(self._z.shape[0], self._z.shape[1], num_samples, seed)

    def in_blocks(self, num_samples: int, seed: int) -> Draws:
        """Stored draws; see the base class."""
        chosen = self.chosen(num_samples, seed)
        return stored_draws(self._z, chosen, like=self.program.initial)

    @isolated()
    def log_q(self, num_samples: int | None = None, seed: int = 0) -> Float[Tensor, " S"]:
        """Log q(z_s) ``[S]`` stored beside the draws; see the base class."""
        if self._stored_log_q is None:
            return super().log_q(num_samples, seed)
        return self._stored_log_q[:, self.chosen(self.count(num_samples), seed)].flatten()
