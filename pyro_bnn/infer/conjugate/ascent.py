"""What the engines of conjugate models share: the run around a Gaussian that is known exactly."""

from __future__ import annotations

import copy
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor
from tqdm.auto import tqdm

from pyro_bnn.errors import OptionError
from pyro_bnn.guides import Guide
from pyro_bnn.handled import model_name
from pyro_bnn.infer.checkpoints.checkpoint import Checkpoint, State
from pyro_bnn.infer.checkpoints.identity import Identity
from pyro_bnn.infer.checkpoints.interrupts import Interrupted
from pyro_bnn.infer.engine import Data, Init, as_dataset, check_positive_int, program_of, unchanged
from pyro_bnn.infer.starting_points import starting_points
from pyro_bnn.models.linear_regression import ExactPosterior, LinearRegression
from pyro_bnn.posterior.posterior import GuidePosterior
from pyro_bnn.posterior.provenance import Provenance, of_data
from pyro_bnn.program.handlers import Model
from pyro_bnn.program.random_state import isolated


class Ascent(ABC):
    """One run on an exact posterior, a sweep over the entries of z at a time; none by default.

    Args:
        exact: The posterior.
        start: Where the means start, ``[P]`` float64.

    Attributes:
        mean: Means ``[P]`` float64.
        losses: Minus the ELBO after each sweep, nats.
    """

    def __init__(self, exact: ExactPosterior, start: Tensor) -> None:
        self.exact, self.mean = exact, start
        self.losses: list[float] = []

    @property
    @abstractmethod
    def is_done(self) -> bool:
        """Whether there is no further sweep."""

    @abstractmethod
    def sweep(self) -> None:
        """Visit every entry of z once."""

    @abstractmethod
    def set(self, guide: Any) -> None:
        """Give a guide the Gaussian that was reached."""

    def state(self) -> State:
        """See :class:`pyro_bnn.infer.checkpoints.checkpoint.Resumable`."""
        return {
            "mean": self.mean,
            "losses": torch.tensor(self.losses, dtype=torch.float64),
            "place": f"sweep {len(self.losses)}",
            "compile_path": "eager",
        }

    def restore(self, state: State) -> None:
        """See :class:`pyro_bnn.infer.checkpoints.checkpoint.Resumable`."""
        if state["mean"].shape != self.mean.shape or state["mean"].dtype != self.mean.dtype:
            raise ValueError(f"its means are {tuple(state['mean'].shape)}, {state['mean'].dtype}")
        self.mean, self.losses = state["mean"], state["losses"].tolist()


class ConjugateEngine(ABC):
    """Base of the engines of conjugate models: frozen keyword dataclasses with one :meth:`run`."""

    _guide: ClassVar[type[Guide]]
    _has_start: ClassVar[bool] = True

    @abstractmethod
    def _ascent(self, exact: ExactPosterior, start: Tensor) -> Ascent:
        """The run of these options."""

    @classmethod
    def family(cls, options: Mapping[str, Any]) -> str:  # noqa: ARG003
        """Name of the guide that posteriors of these options are."""
        return cls._guide.__name__

    def run(
        self,
        model: Model,
        data: Data,
        *,
        init: Init = None,
        seed: int = 0,
        progress: bool = True,
        checkpoint: str | Path | None = None,
        resume: bool = False,
    ) -> GuidePosterior:
        """Fit the model.

        Args:
            model: A :class:`pyro_bnn.models.LinearRegression` with Gaussian priors and fixed
                Gaussian noise.
            data: A ``Dataset``, a pair (x, y), or a ``DataLoader``, of which one pass is read.
            init: Where the means start: a posterior, a trained module, or values of sites; by
                default a draw from the prior. The result does not depend on it.
            seed: Seed, >= 0, of the start.
            progress: Whether to show a progress bar over sweeps.
            checkpoint: Folder in which the state of the run is saved.
            resume: Whether to go on from the checkpoint, bit for bit on the same machine.

        Returns:
            The posterior; its options hold the log evidence, in nats.

        Raises:
            DataError, SiteError: If the checkpoint is of another run.
            FileFormatError: If the checkpoint is damaged, foreign or newer.
            Interrupted: If Ctrl-C came; holds the posterior at the sweep that was reached.
            ModelError: If the model is not conjugate.
            OptionError: If the model is no linear regression, the seed is negative, an option has
                no effect, or there is a checkpoint in the folder already and ``resume`` is False.
            OutputError: If the checkpoint cannot be written.
        """
        check_positive_int("seed", seed, minimum=0)
        name, start = type(self).__name__, time.perf_counter()
        if not isinstance(model, LinearRegression):
            raise OptionError(
                f"{name} is for models.LinearRegression, whose posterior has a closed form, not "
                f"{model_name(model)}: take SVI or NUTS"
            )
        if init is not None and not self._has_start:
            raise OptionError(f"init would have no effect on {name}, which has no start: leave it")
        with isolated(seed):
            dataset = as_dataset(data)  # a DataLoader draws from the global random state
        exact = model.exact_posterior(dataset)
        with isolated(seed), unchanged(model):
            program = program_of(model, dataset)
            guide = self._guide(model)
            guide.setup(program.example.x[:1])
            guide.to(device=program.device, dtype=program.dtype)
            z = starting_points(program, init, 1, seed, default=guide.centre())
            begin = guide.centre() if z is None else z[0]
            saves = Checkpoint.open(
                checkpoint,
                resume=resume,
                identify=lambda: Identity.of(
                    program,
                    dataset,
                    engine=name,
                    options=asdict(self),  # type: ignore[call-overload]  # every engine is one
                    seed=seed,
                    trains_params=False,
                ),
                device=program.device,
                start=start,
            )
            ascent = self._ascent(exact, begin.cpu().double())

            def posterior() -> GuidePosterior:
                own = copy.deepcopy(guide)
                ascent.set(own)
                provenance = Provenance(
                    method=name,
                    engine=name,
                    options={
                        **asdict(self),  # type: ignore[call-overload]
                        "sweeps": len(ascent.losses),
                        "log_evidence": exact.log_evidence,
                    },
                    seed=seed,
                    wall_time=saves.wall_time,
                    num_parameters=sum(p.numel() for p in guide.parameters()),
                    losses=np.asarray(ascent.losses),
                    **of_data(dataset),
                    threads=saves.threads,
                )
                return GuidePosterior(program, own, provenance)

            _drive(ascent, saves, posterior, title=name, progress=progress)
            return posterior()


def _drive(
    ascent: Ascent,
    saves: Checkpoint,
    posterior: Callable[[], GuidePosterior],
    *,
    title: str,
    progress: bool,
) -> None:
    """Sweep to the end, from where the checkpoint stands."""
    saves.restore(ascent)
    try:
        hidden = ascent.is_done or not progress
        with saves.watch(), tqdm(disable=hidden, desc=title, unit="sweep") as bar:
            while not ascent.is_done:
                ascent.sweep()
                bar.set_postfix_str(f"ELBO {-ascent.losses[-1]:.4f}", refresh=False)
                bar.update()
                saves.step(ascent)
            saves.finish(ascent)
    except Interrupted as stop:
        stop.posterior = posterior()
        raise
