r"""What NUTS and HMC share: options, data, starts, and the run of their kernels in lockstep.

.. math:: p(z \mid D) \propto e^{-U(z)}, \qquad U(z) = -\log p(y, z \mid x)

on the flat unconstrained vector z of the program.
"""

from __future__ import annotations

import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from pyro_bnn.data import Dataset
from pyro_bnn.errors import OptionError, ShapeError
from pyro_bnn.infer.checkpoints.checkpoint import Checkpoint
from pyro_bnn.infer.checkpoints.identity import Identity
from pyro_bnn.infer.checkpoints.interrupts import Interrupted
from pyro_bnn.infer.engine import (
    Data,
    Init,
    as_dataset,
    check_compile,
    check_positive_int,
    is_compiled,
    program_of,
    unchanged,
)
from pyro_bnn.infer.mcmc.lockstep import Lockstep
from pyro_bnn.infer.mcmc.potentials import Target, of_each, of_one
from pyro_bnn.infer.mcmc.progress import Progress
from pyro_bnn.infer.mcmc.sampling import MassMatrix, Sampled, Sampling, first_mass
from pyro_bnn.infer.mcmc.starts import MAX_STARTS, find_starts, stream_seed
from pyro_bnn.posterior.posterior import DrawsPosterior
from pyro_bnn.posterior.provenance import Provenance, of_data
from pyro_bnn.program.handlers import Model
from pyro_bnn.program.program import Program
from pyro_bnn.program.random_state import isolated

logger = logging.getLogger("pyro_bnn")

TYPICAL_STEPS = 64  # of leapfrog a draw
OPERATIONS = 2  # times those of a step of SVI, by which engine.is_compiled counts
DRAWS = "pyro-bnn-draws.bin"  # in the folder of a checkpoint
DTYPES: dict[str, type[np.generic]] = {
    "tree_depth": np.int64,
    "n_steps": np.int64,
    "diverging": np.bool_,
}


@dataclass(frozen=True, kw_only=True)
class HamiltonianSampler(ABC):
    """Options and run of the samplers that follow the gradient; see ``NUTS`` and ``HMC``."""

    num_chains: int = 4
    warmup_steps: int = 300
    num_samples: int = 1_000
    target_accept: float = 0.8
    mass_matrix: MassMatrix = "diagonal"
    compile: Literal["auto"] | bool = "auto"

    _kernel: ClassVar[Any]  # a module that is a lockstep.Kernel

    def __post_init__(self) -> None:
        check_positive_int("num_chains", self.num_chains)
        check_positive_int("warmup_steps", self.warmup_steps, minimum=0)
        check_positive_int("num_samples", self.num_samples)
        if not (isinstance(self.target_accept, float) and 0 < self.target_accept < 1):
            raise OptionError(
                f"target_accept is a number between 0 and 1, not {self.target_accept!r}"
            )
        if self.mass_matrix not in ("diagonal", "low_rank"):
            raise OptionError(f'mass_matrix is "diagonal" or "low_rank", not {self.mass_matrix!r}')
        check_compile(self.compile)

    @property
    @abstractmethod
    def _limit(self) -> int:
        """Length of trajectories, as the kernel counts: most points, or mean steps."""

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
    ) -> DrawsPosterior:
        """Sample the posterior.

        Args:
            model: Pyro model ``model(x, y=None)``.
            data: A ``Dataset``, a pair (x, y), or a ``DataLoader``, of which one pass is read.
            init: Where the chains start: a posterior (a draw of it for each chain), a trained
                module, or values of sites. Sites that it leaves out, all of them by default, start
                at draws from the prior, others for each chain.
            seed: Seed, >= 0. Draws repeat exactly for a seed and a number of chains, on one
                machine with one number of threads.
            progress: Whether to show a progress bar over all chains.
            checkpoint: Folder that the run is saved to every half minute: its draws in a file that
                is written once, the state of the chains beside it.
            resume: Whether to go on from what the folder holds, on one machine and with one number
                of threads to the same draws, bit for bit; else a line says why not. Of ``init``
                the model's point parameters alone are compared: the chains go on from where they
                were.

        Returns:
            The draws, with the statistics of each in ``sample_stats``.

        Raises:
            CaptureError: If ``compile=True`` and the step cannot be compiled.
            DivergenceError: If a chain finds no starting point of finite density; names the chain
                and the sites.
            ModelError: If the model breaks the contract.
            DataError, OptionError, SiteError: If the checkpoint is of another run.
            FileFormatError: If the checkpoint is damaged, foreign or newer.
            Interrupted: On Ctrl-C, after saving; ``posterior`` has the draws that every chain has.
            OptionError: If the seed is negative, there is a checkpoint in the folder and ``resume``
                is False, or ``resume`` is True without a folder.
            OutputError: If the checkpoint cannot be written.
        """
        check_positive_int("seed", seed, minimum=0)
        start = time.perf_counter()
        with isolated(seed):
            dataset = as_dataset(data)  # a DataLoader draws from the global random state
        with isolated(seed), unchanged(model):
            program = program_of(model, dataset)
            target = of_one(program, program.batch(dataset.x, dataset.y))
            starts = self._starts(target, init, self.num_chains, seed)
            saves = Checkpoint.open(
                checkpoint,
                resume=resume,
                identify=lambda: Identity.of(
                    program,
                    dataset,
                    engine=type(self).__name__,
                    options=asdict(self),
                    seed=seed,
                    trains_params=False,
                ),
                device=starts.device,
                start=start,
            )
            with self._board(self.num_chains, show=progress) as board:
                sampling = self._sampling(target, starts, seed, board, saves, start)
                try:
                    _drive(sampling, saves)
                except Interrupted as stop:
                    if sampling.num_common:
                        stop.posterior = self._posterior(program, sampling, seed, dataset, saves)
                    raise
        return self._posterior(program, sampling, seed, dataset, saves)

    def run_each(
        self,
        model: Model,
        x: Tensor,
        ys: Tensor,
        *,
        seed: int = 0,
        progress: bool = True,
    ) -> tuple[Tensor, dict[str, NDArray[Any]]]:
        """Sample the posteriors of many data sets with the same inputs, one chain for each.

        Each chain has a diagonal mass matrix of its own; ``num_chains`` and ``mass_matrix`` are not
        used.

        Args:
            model: Pyro model ``model(x, y=None)``.
            x: Inputs ``[N, I]``.
            ys: Targets of each data set ``[C, N]`` or ``[C, N, O]``.
            seed: Seed, >= 0.
            progress: Whether to show a progress bar over all chains.

        Returns:
            Draws z ``[C, S, P]``, and the statistics of each ``[C, S]``.

        Raises:
            CaptureError: If ``compile=True`` and the step cannot be compiled.
            DivergenceError: If a chain finds no starting point of finite density.
            ModelError: If the model breaks the contract, or cannot be batched over data sets.
            ShapeError: If ``ys`` has not the rows of x.
        """
        check_positive_int("seed", seed, minimum=0)
        if ys.ndim < 2 or ys.shape[1] != len(x) or not len(ys):
            raise ShapeError(f"ys has shape {tuple(ys.shape)}, expected [C, {len(x)}, ...]")
        example = max(ys, key=lambda y: len(y.unique()))  # with all classes, if one has them
        start = time.perf_counter()
        with isolated(seed), unchanged(model):
            program = Program(model, x, example)
            target = of_each(program, [program.batch(x, y) for y in ys])
            starts = self._starts(target, None, len(ys), seed)
            with self._board(len(ys), show=progress) as board:
                sampling = self._sampling(target, starts, seed, board, None, start)
                sampling.begin()
                while not sampling.is_done:
                    sampling.step()
        result = sampling.result()
        return result.z, _named(result, self._kernel)

    def _starts(self, target: Target, init: Init, num_chains: int, seed: int) -> Tensor:
        program, potential, data, batches = target
        name = type(self).__name__
        if program.params:
            names = ", ".join(program.params)
            logger.warning("%s holds point-estimated parameters at their values: %s", name, names)
        return find_starts(program, lambda z: potential(z, *data), init, num_chains, seed, batches)

    @contextmanager
    def _board(self, num_chains: int, *, show: bool) -> Iterator[Progress]:
        num_draws = self.warmup_steps + self.num_samples
        board = Progress(type(self).__name__, num_chains, num_draws, show=show)
        try:
            yield board
        finally:
            board.close()

    def _sampling(
        self,
        target: Target,
        starts: Tensor,
        seed: int,
        board: Progress,
        saves: Checkpoint | None,
        start: float,
    ) -> Sampling:
        """The run, its step captured or compiled; on the path of the run that is resumed."""
        program, potential, data, _ = target
        num_chains, num_draws = len(starts), self.warmup_steps + self.num_samples
        path, is_over = (None, False) if saves is None else (saves.compile_path, saves.is_complete)
        steps = min(TYPICAL_STEPS, self._limit)
        compiled = is_compiled(
            self.compile, OPERATIONS * steps * num_draws, num_chains * program.num_latents
        )
        set_up = time.perf_counter()
        model = getattr(program.model, "__name__", type(program.model).__name__)
        chains = Lockstep(
            self._kernel,
            potential,
            tuple(data),
            starts,
            first_mass(potential(starts, *data)[1], self.mass_matrix, each=target.has_many),
            limit=self._limit,
            target_accept=self.target_accept,
            seed=stream_seed(seed, MAX_STARTS),
            name=f"the {type(self).__name__} step of {model}",
            captured=path != "eager" and not is_over,
            compiled=compiled if path is None else path == "compiled",
            strict=self.compile is True,
            own_inputs=(1,) if target.has_many else (),  # y
        )
        recording = "compile" if chains.compile_path == "compiled" else "capture"
        phases = {"set-up": set_up - start, recording: time.perf_counter() - set_up}
        return Sampling(
            chains,
            warmup_steps=self.warmup_steps,
            num_samples=self.num_samples,
            limit=self._limit,
            progress=board,
            path=None if saves is None or saves.folder is None else saves.folder / DRAWS,
            phases={} if is_over else phases,
        )

    def _posterior(
        self, program: Program, sampling: Sampling, seed: int, dataset: Dataset, saves: Checkpoint
    ) -> DrawsPosterior:
        """The draws that every chain has."""
        name, result = type(self).__name__, sampling.result()
        options = {**asdict(self), "compiled": "compile" in result.phases}
        provenance = Provenance(
            method=name,
            engine=name,
            options=options if sampling.is_done else {**options, "interrupted": True},
            seed=seed,
            wall_time=saves.wall_time,
            num_parameters=program.num_latents,
            **of_data(dataset),
            phases=result.phases,
            threads=saves.threads,
        )
        return DrawsPosterior(
            program, result.z, provenance, sample_stats=_named(result, self._kernel)
        )


def _drive(sampling: Sampling, saves: Checkpoint) -> None:
    """Sample to the end, from where the checkpoint stands."""
    with saves.watch():
        if not saves.restore(sampling):
            sampling.begin()
        while not sampling.is_done:
            sampling.step()
            saves.step(sampling)
        saves.finish(sampling)


def _named(result: Sampled, kernel: Any) -> dict[str, NDArray[Any]]:
    """Statistics ``[C, S]`` by ArviZ's names, in their dtypes."""
    return {
        name: result.stats[..., i].astype(DTYPES.get(name, np.float64))
        for i, name in enumerate((*kernel.STATISTICS, "step_size"))
    }
