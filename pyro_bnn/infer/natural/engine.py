"""What the natural-gradient engines share: their options, and the run around the steps."""

from __future__ import annotations

import copy
import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from torch.utils.data import DataLoader

from pyro_bnn.errors import DivergenceError, OptionError
from pyro_bnn.infer.batches import batches_of
from pyro_bnn.infer.checkpoints.checkpoint import Checkpoint
from pyro_bnn.infer.checkpoints.identity import Identity
from pyro_bnn.infer.checkpoints.interrupts import Interrupted
from pyro_bnn.infer.engine import (
    Data,
    Init,
    as_dataset,
    check_positive_int,
    program_of,
    unchanged,
)
from pyro_bnn.infer.natural.gaussian_prior import GaussianPrior
from pyro_bnn.infer.natural.options import NaturalOptions
from pyro_bnn.infer.natural.run import NaturalRun
from pyro_bnn.infer.warm_start import starting_mean
from pyro_bnn.posterior.posterior import GuidePosterior
from pyro_bnn.posterior.provenance import Provenance, of_data
from pyro_bnn.program.handlers import Model
from pyro_bnn.program.random_state import isolated

logger = logging.getLogger("pyro_bnn")


@dataclass(frozen=True, kw_only=True)
class NaturalEngine(NaturalOptions, ABC):
    r"""Base of the natural-gradient engines: a Gaussian q, moved by its natural gradient.

    With the likelihood's weight :math:`w = \alpha / T` (data factor over temperature), all of them
    maximise

    .. math:: w\, E_q \log p(y \mid x, z) - \mathrm{KL}(q \| p)

    over Gaussians q, exactly or with a bias of their own. The prior is the model's: each site has a
    Gaussian of its own mean and scale, or is positive, such as a noise scale, whose prior enters by
    its mode and curvature in z and, beyond that, by gradients at the draws. Point-estimated
    parameters of the model are held fixed.

    Args:
        num_steps: Steps.
        learning_rate: Rate a of the means, at the start.
        precision_learning_rate: Rate b of the precision, in (0, 1]; None for ``learning_rate``.
        schedule: ``"constant"``; ``"cosine"`` lets the means' rate fall to 0 over ``num_steps``;
            ``"power"`` divides both rates by :math:`t^{0.55}` at step t.
        batch_size: Rows a step; default all.
        num_particles: Draws S of z a step, ``num_samples`` in the papers; named as in ``SVI``.
        antithetic: Whether draws come in pairs :math:`m \pm d`, which makes expectations of linear
            functions, such as the gradient of a quadratic, exact.
        data_factor: How often every row counts.
        temperature: Weight of the KL; below 1 the posterior is a cold one.
        kl_warmup: Steps over which the temperature grows linearly from near 0; 0 for none.
    """

    @abstractmethod
    def _make_run(self) -> type[NaturalRun]:
        """The class of a run."""

    @classmethod
    def family(cls, options: Mapping[str, Any]) -> str:  # noqa: ARG003
        """Name of the guide that posteriors of these options are."""
        return "AutoNormal"

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
        """Fit the Gaussian.

        Args:
            model: Pyro model ``model(x, y=None)`` with independent Gaussian priors over weights.
            data: A ``Dataset``, a pair (x, y), or a ``DataLoader``.
            init: Where the means start: the centre of a fit, a draw of another posterior, a trained
                module, or values of sites. Standard deviations start at the engine's own.
            seed: Seed, >= 0, of the start, the noise and the order of the data.
            progress: Whether to show a progress bar with the smoothed ELBO.
            checkpoint: Folder in which the state of the run is saved, at its start, every half
                minute and at its end.
            resume: Whether to go on from the checkpoint, with the same model, data and options, to
                the same fit, bit for bit, except with a ``DataLoader``. Without a checkpoint there,
                the run starts anew.

        Returns:
            The posterior, a Gaussian with a density; ``losses`` are minus its ELBO, of weight and
            temperature 1, estimated at the draws of each step.

        Raises:
            DataError, OptionError, SiteError: If the checkpoint is of another run.
            DivergenceError: If the loss becomes NaN or infinite, or the precision not positive
                definite; holds the posterior at the last good state.
            FileFormatError: If the checkpoint is damaged, foreign or newer.
            Interrupted: If Ctrl-C came; holds the posterior at the step that was reached.
            ModelError: If the model breaks the contract, or cannot be batched over rows.
            OptionError: If the seed is negative, an option does not serve the model, or there is a
                checkpoint in the folder already and ``resume`` is False.
            OutputError: If the checkpoint cannot be written.
            SiteError: If the prior of a real site is not Gaussian.
        """
        check_positive_int("seed", seed, minimum=0)
        if self.batch_size is not None and isinstance(data, DataLoader):
            raise OptionError(
                f"batch_size={self.batch_size} would have no effect, as a DataLoader makes its own "
                "batches: set it there, or pass the data set"
            )
        name, start = type(self).__name__, time.perf_counter()
        with isolated(seed):
            dataset = as_dataset(data)  # a DataLoader draws from the global random state
        with isolated(seed), unchanged(model):
            program = program_of(model, dataset)
            if program.params:
                fixed = ", ".join(program.params)
                logger.warning(
                    "%s holds point-estimated parameters at their values: %s", name, fixed
                )
            batch = program.batch(dataset.x, dataset.y)
            prior = GaussianPrior.of(program, name)
            centre = starting_mean(program, init, seed)
            own_order = isinstance(data, DataLoader)
            saved = Checkpoint.open(
                checkpoint,
                resume=resume,
                identify=lambda: Identity.of(
                    program,
                    dataset,
                    engine=name,
                    options=asdict(self),
                    seed=seed,
                    trains_params=False,
                    in_order=not own_order,
                ),
                device=program.device,
                own_order=own_order,
                start=start,
            )
            run = self._make_run()(
                self,
                program,
                prior,
                program.initial if centre is None else centre,
                batches_of(data, program, batch, self.batch_size, seed),
                seed,
                saved.compile_path,
            )

            def posterior() -> GuidePosterior:
                with isolated():
                    guide = run.q.make_guide(model)
                    guide.setup(program.example.x[:1])
                guide.to(device=program.device, dtype=program.dtype)
                run.q.set(guide, run.mean)
                provenance = Provenance(
                    method=name,
                    engine=name,
                    options=asdict(self),
                    seed=seed,
                    wall_time=saved.wall_time,
                    num_parameters=sum(p.numel() for p in guide.parameters()),
                    losses=np.asarray(run.losses),
                    **of_data(dataset),
                    threads=saved.threads,
                )
                return GuidePosterior(program, copy.deepcopy(guide), provenance)

            try:
                saved.restore(run)
                run.train(saved, progress=progress)
            except (DivergenceError, Interrupted) as error:
                error.posterior = posterior()
                raise
            return posterior()
