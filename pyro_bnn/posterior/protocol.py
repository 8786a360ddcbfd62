"""What a comparison needs of a posterior: any object with these members can be compared."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

if TYPE_CHECKING:
    from torch import Tensor
    from xarray import DataTree

    from pyro_bnn.data.dataset import Dataset
    from pyro_bnn.predictive.draws import Draws
    from pyro_bnn.predictive.map_draws import Chunks
    from pyro_bnn.predictive.prediction import Prediction
    from pyro_bnn.program.program import Program


class HasDrawCounts(Protocol):
    """A posterior, or what an engine knows of the draws of one."""

    @property
    def num_chains(self) -> int:
        """Chains C."""

    @property
    def num_stored_draws(self) -> int | None:
        """Stored draws over all chains; None if it can be sampled without end."""

    @property
    def num_atoms(self) -> int | None:
        """Number K of functions that all draws are of; None where each draw is its own."""


class PosteriorLike(HasDrawCounts, Protocol):
    """A fitted posterior; see ``pyro_bnn.Posterior``."""

    @property
    def method(self) -> str:
        """Name of the guide or sampler."""

    @property
    def engine(self) -> str:
        """Name of the engine."""

    @property
    def model(self) -> object:
        """The model; the same object where methods share one."""

    @property
    def has_log_prob(self) -> bool:
        """Whether `densities` gives a log q."""

    @property
    def elbo_kind(self) -> str:
        """``"exact"``, ``"bound"``, ``"monte_carlo"``, or ``"none"`` where there is no ELBO."""

    @property
    def objective(self) -> str:
        """Name of what `losses` are the negative of; ``"ELBO"`` where it is that bound."""

    @property
    def num_parameters(self) -> int:
        """Parameters of the approximation, or of one draw of a sampler."""

    @property
    def wall_time(self) -> float:
        """Seconds the fit took."""

    @property
    def threads(self) -> int | None:
        """CPU threads of the fit; None where it is not known."""

    @property
    def processes(self) -> int:
        """Processes that shared the machine, that of the fit included."""

    @property
    def seed(self) -> int:
        """Seed of the fit."""

    @property
    def options(self) -> Mapping[str, Any]:
        """Options of the engine and the guide, as JSON can hold them."""

    @property
    def losses(self) -> Tensor | np.ndarray:
        """Negative ELBO estimate of every step ``[T]``; empty for samplers."""

    @property
    def sample_stats(self) -> Mapping[str, np.ndarray]:
        """Sampler statistics ``[C, S]``; empty for approximations."""

    def function_draws(
        self, x: Tensor, num_samples: int = 1000, seed: int = 0, group_by_chain: bool = False
    ) -> Tensor:
        """Network outputs ``[S, N, F]``, or ``[C, S/C, N, F]``."""

    def hyperparameters(
        self, num_samples: int = 1000, seed: int = 0, group_by_chain: bool = False
    ) -> Mapping[str, Tensor]:
        """Draws of scales and other latents that are no weights, ``[S, ...]``, or by chain."""

    def predict(
        self, x: Tensor, num_samples: int = 1000, seed: int = 0, raw: bool = False
    ) -> Prediction:
        """Predictions at inputs x."""

    def log_likelihood(
        self, data: Dataset, num_samples: int = 1000, seed: int = 0, group_by_chain: bool = False
    ) -> Tensor:
        """Log density of y given each draw ``[S, N]``, or ``[C, S/C, N]``; draws of `predict`."""

    def elbo(self, data: Dataset, num_samples: int = 1000, seed: int = 0) -> tuple[float, float]:
        """ELBO of the data in nats and its Monte Carlo error."""

    def densities(
        self, data: Dataset, num_samples: int = 1000, seed: int = 0
    ) -> tuple[Tensor, Tensor]:
        """Log joint and log q of every draw, ``[S]`` each."""

    def to_arviz(
        self,
        train: Dataset,
        test: Dataset | None = None,
        num_samples: int = 1000,
        *,
        seed: int = 0,
    ) -> DataTree:
        """The posterior as ArviZ's DataTree."""


class ProgramPosterior(PosteriorLike, Protocol):
    """A fitted posterior whose model is a program; see ``pyro_bnn.Posterior``."""

    program: Program
    params: dict[str, Tensor]
    chunks: Chunks

    def in_blocks(self, num_samples: int, seed: int) -> Draws:
        """Draws z of the weights, in blocks."""

    def draws(self, num_samples: int | None = None, seed: int = 0) -> Tensor:
        """Draws ``[S, P + Q]`` of z and of the parameters that each draw has of its own."""
