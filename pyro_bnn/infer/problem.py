"""What one run of an engine is about: a model, its data, a start and a seed."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader

from pyro_bnn.data import Dataset
from pyro_bnn.guides import Guide
from pyro_bnn.infer.batches import Batches, LoaderBatches, Minibatches
from pyro_bnn.infer.checkpoints.checkpoint import Checkpoint
from pyro_bnn.infer.inputs import FitData, Init, program_of
from pyro_bnn.infer.own_weights import OwnWeights
from pyro_bnn.posterior.bound_gap import BoundGap
from pyro_bnn.posterior.call_posterior import CallDraws, CallGuide, CallLaplace, CallParticles
from pyro_bnn.posterior.doubling import Doubling
from pyro_bnn.posterior.draws_posterior import DrawsPosterior
from pyro_bnn.posterior.guide_posterior import GuidePosterior
from pyro_bnn.posterior.laplace_posterior import LaplacePosterior
from pyro_bnn.posterior.nature import Nature
from pyro_bnn.posterior.particle_posterior import ParticlePosterior
from pyro_bnn.posterior.provenance import Provenance, of_data
from pyro_bnn.program.device import gpu_name
from pyro_bnn.program.features import Memo
from pyro_bnn.program.handlers import Model
from pyro_bnn.program.joint import Joint
from pyro_bnn.program.program import Program
from pyro_bnn.program.terms import Batch

logger = logging.getLogger("pyro_bnn")

MOST_NAMES = 8  # parameters that a message lists: a network has hundreds


class Facts(ABC):
    """What every problem knows of itself, and tells of its posteriors."""

    model: Model
    init: Init
    engine: str
    seed: int
    declare: Callable[[Mapping[str, Any]], Nature] | None
    progress: bool

    @property
    @abstractmethod
    def joint(self) -> Joint:
        """The model as tensor functions of its sites."""

    @property
    @abstractmethod
    def num_rows(self) -> int:
        """Number of rows that batches are made of."""

    @property
    @abstractmethod
    def rows(self) -> Batch:
        """All of them, where and as the joint computes."""

    @property
    def is_led(self) -> bool:
        """Whether the caller said where to start; the weights of the network may be no optimum."""
        return not (self.init is None or isinstance(self.init, OwnWeights))

    @property
    def has_own_order(self) -> bool:
        """Whether the data come in the order of a ``DataLoader``, which cannot be replayed."""
        return False

    @property
    def own_batch_size(self) -> int | None:
        """Rows of a batch where the model itself says how many it takes."""
        return None

    @abstractmethod
    def batches(self, size: int | None) -> Batches:
        """Batches of so many rows without end, all rows for None; or those of the DataLoader."""

    @abstractmethod
    def prior_draws(self, num_draws: int, seed: int) -> Tensor:
        """Draws z ``[S, P]`` from the prior."""

    @abstractmethod
    def draws_posterior(
        self,
        z: Tensor,
        provenance: Provenance,
        stats: Mapping[str, NDArray[Any]],
        log_q: Tensor | None = None,
    ) -> DrawsPosterior | CallDraws:
        """Draws ``[C, S, P]``, with statistics ``[C, S]`` of chains, or log q ``[C, S]``."""

    @abstractmethod
    def particle_posterior(
        self, z: Tensor, provenance: Provenance, stats: Mapping[str, NDArray[Any]], stages: Tensor
    ) -> ParticlePosterior | CallParticles:
        """The same of islands of particles, with a row of each temperature ``[n, 10]``."""

    @abstractmethod
    def guide_posterior(
        self,
        guide: Guide,
        saves: Checkpoint,
        options: dict[str, Any],
        *,
        method: str | None = None,
        num_parameters: int | None = None,
        losses: list[float] | None = None,
        doubling: Doubling | None = None,
        bound_gap: BoundGap | None = None,
    ) -> GuidePosterior | CallGuide:
        """The posterior of a guide.

        Args:
            guide: The guide.
            saves: The checkpoint of the run.
            options: As they are told.
            method: Name of what it is, by default the engine's.
            num_parameters: How many numbers were fitted, by default those of the guide.
            losses: Minus the objective at each step.
            doubling: What the second half of the run gained.
            bound_gap: How far what was maximised lies below the ELBO.
        """

    @abstractmethod
    def laplace_posterior(
        self, guide: Guide, saves: Checkpoint, options: dict[str, Any], losses: list[float]
    ) -> LaplacePosterior | CallLaplace:
        """That of a Gaussian around a mode; arguments as of :meth:`guide_posterior`."""

    def of_data(self) -> dict[str, Any]:
        """What a provenance says of the data."""
        return {}

    def warn_of_held_parameters(self) -> None:
        """Say which point-estimated parameters an engine that trains none holds at their values.

        What the user froze by ``requires_grad_(False)`` is held by wish, and is not told.
        """
        held = [name for name, value in self.joint.params.items() if value.requires_grad]
        if held:
            more = f" and {len(held) - MOST_NAMES} more" if len(held) > MOST_NAMES else ""
            logger.warning(
                "%s holds point-estimated parameters at their values: %s%s",
                self.engine,
                ", ".join(held[:MOST_NAMES]),
                more,
            )

    def _of_guide(
        self,
        guide: Guide,
        saves: Checkpoint,
        options: dict[str, Any],
        *,
        method: str | None,
        num_parameters: int | None,
        **how: Any,
    ) -> Provenance:
        """How a guide came about; see :meth:`guide_posterior`."""
        if num_parameters is None:
            num_parameters = sum(p.numel() for p in guide.parameters())
        method = method or self.engine
        return self.provenance(
            saves, method=method, options=options, num_parameters=num_parameters, **how
        )

    def provenance(
        self,
        saves: Checkpoint,
        *,
        method: str,
        options: dict[str, Any],
        num_parameters: int,
        losses: list[float] | None = None,
        phases: dict[str, float] | None = None,
        doubling: Doubling | None = None,
        bound_gap: BoundGap | None = None,
    ) -> Provenance:
        """How a posterior of this problem came about; see :class:`Provenance`."""
        return Provenance(
            method=method,
            engine=self.engine,
            options=options,
            seed=self.seed,
            wall_time=saves.wall_time,
            num_parameters=num_parameters,
            losses=np.asarray(losses or [], dtype=np.float64),
            phases=phases or {},
            doubling=doubling,
            bound_gap=bound_gap,
            threads=saves.threads,
            gpu=gpu_name(self.joint.device),
            nature=None if self.declare is None else self.declare(options),
            **self.of_data(),
        )


@dataclass(frozen=True, eq=False)
class Problem(Facts):
    """A model and its data, as :meth:`Engine.run` hands them to an engine.

    Args:
        model: The Pyro model.
        data: The data as the caller gave them.
        dataset: Their rows.
        init: Where to start, or None.
        seed: Seed of the run.
        engine: Name of the engine.
        progress: Whether a run shows how far it is.
        declare: What the engine declares of a posterior of given options; None where there is none.
        memo: The features of a frozen body, once for all problems that are made of this one.
    """

    model: Model
    data: FitData
    dataset: Dataset
    init: Init
    seed: int
    engine: str
    progress: bool = False
    declare: Callable[[Mapping[str, Any]], Nature] | None = None
    memo: Memo = field(default_factory=Memo)

    @cached_property
    def program(self) -> Program:
        """The model as tensor functions; traced when it is first asked for.

        Raises:
            DataError: If y holds classes, and the likelihood is over numbers.
            ModelError, ShapeError, SiteError: As :class:`pyro_bnn.program.Program`.
        """
        return program_of(self.model, self.dataset, self.memo)

    @cached_property
    def _rows(self) -> dict[int, Batch]:
        return {}

    @property
    def rows(self) -> Batch:
        """All rows, where and as the program computes."""
        times_set = self.program.times_set  # features are those of the body as it is now
        if times_set not in self._rows:
            self._rows.clear()
            self._rows[times_set] = self.program.batch(self.dataset.x, self.dataset.y)
        return self._rows[times_set]

    def prior_draws(self, num_draws: int, seed: int) -> Tensor:
        """Draws z ``[S, P]`` from the prior."""
        return self.program.prior_draws(num_draws, self.rows.x[:1], seed)

    @property
    def num_rows(self) -> int:
        """Number of rows N."""
        return len(self.dataset.x)

    @property
    def has_own_order(self) -> bool:
        """Whether the data come in the order of a ``DataLoader``, which cannot be replayed."""
        return isinstance(self.data, DataLoader)

    def batches(self, size: int | None) -> Batches:
        """Batches of so many rows without end, all rows for None; or those of the DataLoader."""
        if isinstance(self.data, DataLoader):
            return LoaderBatches(self.data, self.program, self.rows)
        return Minibatches(self.rows, size, self.seed)

    @property
    def joint(self) -> Joint:
        """The program, as any model's density is used."""
        return self.program

    def of_data(self) -> dict[str, Any]:
        """Units and names of the rows."""
        return of_data(self.dataset)

    def draws_posterior(
        self,
        z: Tensor,
        provenance: Provenance,
        stats: Mapping[str, NDArray[Any]],
        log_q: Tensor | None = None,
    ) -> DrawsPosterior:
        """Draws ``[C, S, P]``, with statistics ``[C, S]`` of chains, or log q ``[C, S]``."""
        return DrawsPosterior(self.program, z, provenance, sample_stats=stats, log_q=log_q)

    def particle_posterior(
        self, z: Tensor, provenance: Provenance, stats: Mapping[str, NDArray[Any]], stages: Tensor
    ) -> ParticlePosterior:
        """The same of islands of particles, with a row of each temperature ``[n, 10]``."""
        return ParticlePosterior(self.program, z, provenance, sample_stats=stats, stages=stages)

    def guide_posterior(
        self,
        guide: Guide,
        saves: Checkpoint,
        options: dict[str, Any],
        *,
        method: str | None = None,
        num_parameters: int | None = None,
        losses: list[float] | None = None,
        doubling: Doubling | None = None,
        bound_gap: BoundGap | None = None,
    ) -> GuidePosterior:
        """The posterior of a guide; see the base class."""
        how: Any = {"num_parameters": num_parameters, "losses": losses}
        how |= {"doubling": doubling, "bound_gap": bound_gap}
        provenance = self._of_guide(guide, saves, options, method=method, **how)
        return GuidePosterior(self.program, guide, provenance)

    def laplace_posterior(
        self, guide: Guide, saves: Checkpoint, options: dict[str, Any], losses: list[float]
    ) -> LaplacePosterior:
        """That of a Gaussian around a mode; see the base class."""
        how: Any = {"method": None, "num_parameters": None, "losses": losses}
        return LaplacePosterior(self.program, guide, self._of_guide(guide, saves, options, **how))
