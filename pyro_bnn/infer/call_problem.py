"""What one run is about where the model has any arguments: a ``Call``, a start and a seed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from pyro_bnn.data import Call
from pyro_bnn.errors import OptionError
from pyro_bnn.guides import Guide
from pyro_bnn.handled import model_name
from pyro_bnn.infer.batches import Batches, Minibatches
from pyro_bnn.infer.checkpoints.checkpoint import Checkpoint
from pyro_bnn.infer.inputs import Init
from pyro_bnn.infer.problem import Facts
from pyro_bnn.posterior.bound_gap import BoundGap
from pyro_bnn.posterior.call_posterior import CallDraws, CallGuide, CallLaplace, CallParticles
from pyro_bnn.posterior.doubling import Doubling
from pyro_bnn.posterior.nature import Nature
from pyro_bnn.posterior.provenance import Provenance
from pyro_bnn.program.enumerated import joint_of
from pyro_bnn.program.handlers import Model
from pyro_bnn.program.joint import Joint
from pyro_bnn.program.parts import require_sum_over_rows
from pyro_bnn.program.terms import Batch


@dataclass(frozen=True, eq=False)
class CallProblem(Facts):
    """Any model and the arguments that it is called with.

    Args:
        model: The Pyro model.
        call: Its arguments.
        init: Where to start, or None.
        seed: Seed of the run.
        engine: Name of the engine.
        progress: Whether a run shows how far it is.
        declare: What the engine declares of a posterior of given options; None where there is none.
    """

    model: Model
    call: Call
    init: Init
    seed: int
    engine: str
    progress: bool = False
    declare: Callable[[Mapping[str, Any]], Nature] | None = None

    @cached_property
    def _joint(self) -> Joint:
        return joint_of(self.model, self.call.args, self.call.kwargs)

    @property
    def joint(self) -> Joint:
        """The model as tensor functions; traced when it is first asked for.

        Raises:
            ModelError, SiteError: As :func:`pyro_bnn.program.joint_of`.
        """
        return self._joint

    @property
    def num_rows(self) -> int:
        """How many the plate has that takes some of them; else one, the call itself."""
        return 1 if self.joint.plate is None else self.joint.plate.size

    @property
    def own_batch_size(self) -> int | None:
        """The plate's ``subsample_size``."""
        return None if self.joint.plate is None else self.joint.plate.taken

    @cached_property
    def rows(self) -> Batch:
        """Their numbers, as x and as y."""
        numbers = torch.arange(self.num_rows, device=self.joint.device)
        return Batch(numbers, numbers.clone())

    def batches(self, size: int | None) -> Batches:
        """Batches of so many rows of the plate, or the call again and again."""
        return Minibatches(self.rows, size, self.seed)

    def check_batches(self, batch_size: int | None) -> None:
        """Check that steps can have some of the rows.

        Args:
            batch_size: Option of the engine.

        Raises:
            ModelError, SiteError: As :func:`.require_sum_over_rows`.
            OptionError: If there is a size, and no plate takes some of its rows.
        """
        if self.joint.plate is not None:
            require_sum_over_rows(self.joint)
        elif batch_size is not None:
            raise OptionError(
                f"batch_size={batch_size} needs a plate whose rows a step can choose, and "
                f"{model_name(self.model)} has none: write `with pyro.plate(name, size, "
                f"subsample_size={batch_size}) as rows:` and index the arrays by rows, or leave "
                "batch_size at None"
            )

    def prior_draws(self, num_draws: int, seed: int) -> Tensor:
        """Draws z ``[S, P]`` from the prior."""
        return self.joint.prior_draws(num_draws, seed=seed)

    def draws_posterior(
        self,
        z: Tensor,
        provenance: Provenance,
        stats: Mapping[str, NDArray[Any]],
        log_q: Tensor | None = None,
    ) -> CallDraws:
        """Draws ``[C, S, P]``, with statistics ``[C, S]`` of chains, or log q ``[C, S]``."""
        return CallDraws(self.joint, z, provenance, sample_stats=stats, log_q=log_q)

    def particle_posterior(
        self, z: Tensor, provenance: Provenance, stats: Mapping[str, NDArray[Any]], stages: Tensor
    ) -> CallParticles:
        """The same of islands of particles, with a row of each temperature ``[n, 10]``."""
        return CallParticles(self.joint, z, provenance, sample_stats=stats, stages=stages)

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
    ) -> CallGuide:
        """The posterior of a guide; see the base class."""
        how: Any = {"num_parameters": num_parameters, "losses": losses}
        how |= {"doubling": doubling, "bound_gap": bound_gap}
        provenance = self._of_guide(guide, saves, options, method=method, **how)
        return CallGuide(self.joint, guide, provenance)

    def laplace_posterior(
        self, guide: Guide, saves: Checkpoint, options: dict[str, Any], losses: list[float]
    ) -> CallLaplace:
        """That of a Gaussian around a mode; see the base class."""
        how: Any = {"method": None, "num_parameters": None, "losses": losses}
        return CallLaplace(self.joint, guide, self._of_guide(guide, saves, options, **how))
