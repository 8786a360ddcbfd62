r"""What NUTS and HMC share: options, data, starts, and the run of their kernels in lockstep.

.. math:: p(z \mid D) \propto e^{-U(z)}, \qquad U(z) = -\log p(y, z \mid x)

on the flat unconstrained vector z of the program.
"""

from __future__ import annotations

import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pyro_bnn.effects import Model, isolated
from pyro_bnn.errors import ModelError, OptionError, ShapeError
from pyro_bnn.infer.engine import (
    Data,
    Init,
    as_dataset,
    check_compile,
    check_positive_int,
    is_compiled,
    refuse_unbuilt,
    unchanged,
)
from pyro_bnn.infer.leapfrog import Potential
from pyro_bnn.infer.lockstep import Lockstep
from pyro_bnn.infer.progress import Progress
from pyro_bnn.infer.sampling import MassMatrix, Sampled, first_mass, sample
from pyro_bnn.infer.starts import MAX_STARTS, find_starts, stream_seed
from pyro_bnn.posterior import DrawsPosterior, Provenance
from pyro_bnn.program import Batch, Program

logger = logging.getLogger("pyro_bnn")

TYPICAL_STEPS = 64  # of leapfrog a draw
OPERATIONS = 4  # times those of a step of SVI, by which engine.is_compiled counts
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
        checkpoint: str | None = None,
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
            checkpoint: Not built yet.
            resume: Not built yet.

        Returns:
            The draws, with the statistics of each in ``sample_stats``.

        Raises:
            CaptureError: If ``compile=True`` and the step cannot be compiled.
            DivergenceError: If a chain finds no starting point of finite density; names the chain
                and the sites.
            ModelError: If the model breaks the contract.
            OptionError: If the seed is negative, or an option is not built.
        """
        refuse_unbuilt(checkpoint=checkpoint, resume=resume)
        check_positive_int("seed", seed, minimum=0)
        start = time.perf_counter()
        with isolated(seed):
            dataset = as_dataset(data)  # a DataLoader draws from the global random state
        with isolated(seed), unchanged(model):
            program = Program(model, dataset.x, dataset.y)
            batch = program.batch(dataset.x, dataset.y)
            result = self._sample(
                program,
                _of_one(program),
                batch,
                [batch],
                init,
                self.num_chains,
                seed,
                progress,
                start,
            )
        return self._posterior(program, result, seed, dataset, time.perf_counter() - start)

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
            batches = [program.batch(x, y) for y in ys]
            stacked = Batch(batches[0].x, torch.stack([batch.y for batch in batches]))
            result = self._sample(
                program, _of_each(program), stacked, batches, None, len(ys), seed, progress, start
            )
        return result.z, _named(result, self._kernel)

    def _sample(
        self,
        program: Program,
        log_joint: Callable[[Tensor, Batch], Tensor],
        batch: Batch,
        batches: Sequence[Batch],
        init: Init,
        num_chains: int,
        seed: int,
        progress: bool,
        start: float,
    ) -> Sampled:
        name = type(self).__name__
        if program.params:
            names = ", ".join(program.params)
            logger.warning("%s holds point-estimated parameters at their values: %s", name, names)
        potential = _potential(log_joint)
        starts = find_starts(
            program, lambda z: potential(z, *batch), init, num_chains, seed, batches
        )
        num_draws = self.warmup_steps + self.num_samples
        model = getattr(program.model, "__name__", type(program.model).__name__)
        compiled = is_compiled(
            self.compile, OPERATIONS * TYPICAL_STEPS * num_draws, num_chains * program.num_latents
        )
        set_up = time.perf_counter()
        chains = Lockstep(
            self._kernel,
            potential,
            tuple(batch),
            starts,
            first_mass(potential(starts, *batch)[1], self.mass_matrix, each=len(batches) > 1),
            limit=self._limit,
            target_accept=self.target_accept,
            seed=stream_seed(seed, MAX_STARTS),
            name=f"the {name} step of {model}",
            compiled=compiled,
            strict=self.compile is True,
            own_inputs=(1,) if len(batches) > 1 else (),  # y
        )
        phases = {
            "set-up": set_up - start,
            "compile" if chains.is_compiled else "capture": time.perf_counter() - set_up,
        }
        board = Progress(name, num_chains, num_draws, show=progress)
        try:
            result = sample(
                chains,
                warmup_steps=self.warmup_steps,
                num_samples=self.num_samples,
                limit=self._limit,
                progress=board,
            )
        finally:
            board.close()
        return result._replace(phases=phases | result.phases)

    def _posterior(
        self, program: Program, result: Sampled, seed: int, dataset: Any, wall_time: float
    ) -> DrawsPosterior:
        name = type(self).__name__
        provenance = Provenance(
            method=name,
            engine=name,
            options={**asdict(self), "compiled": "compile" in result.phases},
            seed=seed,
            wall_time=wall_time,
            num_parameters=program.num_latents,
            inputs=dataset.inputs,
            target=dataset.target,
            phases=result.phases,
        )
        return DrawsPosterior(
            program, result.z, provenance, sample_stats=_named(result, self._kernel)
        )


def _of_one(program: Program) -> Callable[[Tensor, Batch], Tensor]:
    """Log joint ``[C]`` of z ``[C, P]`` and the data of all chains."""
    params = {name: value.detach() for name, value in program.params.items()}
    return lambda z, batch: program.log_joint(z, batch, params)


def _of_each(program: Program) -> Callable[[Tensor, Batch], Tensor]:
    """Log joint ``[C]`` of z ``[C, P]`` and data x, y ``[C, ...]`` of each chain."""
    params = {name: value.detach() for name, value in program.params.items()}

    def log_joint(z: Tensor, batch: Batch) -> Tensor:
        def one(z: Tensor, y: Tensor) -> Tensor:
            return program.log_joint(z, Batch(batch.x, y), params)

        try:
            return torch.func.vmap(one)(z, batch.y)
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            raise ModelError(
                "the model cannot be batched over data sets: run it on one at a time "
                f"({str(error).strip().splitlines()[0]})"
            ) from error

    return log_joint


def _potential(log_joint: Callable[[Tensor, Batch], Tensor]) -> Potential:
    """U and its gradient as a pure function of z ``[C, P]`` and the data."""

    def potential(z: Tensor, *data: Tensor) -> tuple[Tensor, Tensor]:
        with torch.enable_grad():
            z = z.detach().requires_grad_()
            value = -log_joint(z, Batch(*data))
            (grad,) = torch.autograd.grad(value.sum(), z)
        return value.detach(), grad

    return potential


def _named(result: Sampled, kernel: Any) -> dict[str, NDArray[Any]]:
    """Statistics ``[C, S]`` by ArviZ's names, in their dtypes."""
    return {
        name: result.stats[..., i].astype(DTYPES.get(name, np.float64))
        for i, name in enumerate((*kernel.STATISTICS, "step_size"))
    }
