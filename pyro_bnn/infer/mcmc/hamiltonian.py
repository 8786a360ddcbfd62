r"""What samplers that follow the gradient share: options, data, starts, kernels run in lockstep.

.. math:: p(z \mid D) \propto e^{-U(z)}, \qquad U(z) = -\log p(y, z \mid x)

on the flat unconstrained vector z of the program.
"""

from __future__ import annotations

import logging
import time
from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple

from numpy.typing import NDArray
from torch import Tensor

from pyro_bnn.checks import check_positive_int, check_seed
from pyro_bnn.errors import ModelError, OptionError, ShapeError
from pyro_bnn.handled import model_name
from pyro_bnn.infer.call_problem import CallProblem
from pyro_bnn.infer.checkpoints.checkpoint import Checkpoint
from pyro_bnn.infer.checkpoints.identity import Identity
from pyro_bnn.infer.compiling import check_compile, is_compiled
from pyro_bnn.infer.engine import DrawCounts, Engine, Start
from pyro_bnn.infer.inputs import unchanged
from pyro_bnn.infer.mcmc.chains import in_lockstep
from pyro_bnn.infer.mcmc.isokinetic import INTEGRATORS
from pyro_bnn.infer.mcmc.kernel import Kernel
from pyro_bnn.infer.mcmc.length_search import MOST, LengthSearch
from pyro_bnn.infer.mcmc.lockstep import Energy, Graphs
from pyro_bnn.infer.mcmc.progress import Progress
from pyro_bnn.infer.mcmc.sampling import MassMatrix, Sampling, first_mass
from pyro_bnn.infer.problem import Problem
from pyro_bnn.infer.run import drive
from pyro_bnn.infer.starting_points import take_params
from pyro_bnn.infer.steps.potentials import TargetDensity, of_call, of_each, of_one
from pyro_bnn.infer.steps.starts import MAX_STARTS, find_starts, known_before, stream_seed
from pyro_bnn.posterior.draws_posterior import DrawsPosterior
from pyro_bnn.posterior.nature import Fault, PosteriorKind
from pyro_bnn.program.handlers import Model
from pyro_bnn.program.joint import Joint
from pyro_bnn.program.program import Program
from pyro_bnn.program.random_state import isolated

logger = logging.getLogger("pyro_bnn")


class DataSets(NamedTuple):
    """Inputs ``x [N, I]`` and the targets ``y [C, N, ...]`` of several data sets."""

    x: Tensor
    y: Tensor


TYPICAL_STEPS = 64  # of leapfrog a draw of NUTS; of trajectories of found length
TYPICAL_LENGTH = 24
OPERATIONS = 2  # times those of a step of SVI, by which engine.is_compiled counts
DRAWS = "pyro-bnn-draws.bin"  # in the folder of a checkpoint


@dataclass(frozen=True, kw_only=True)
class HamiltonianSampler(Engine[DrawsPosterior]):
    """Options and run of the samplers that follow the gradient, such as ``NUTS`` and ``MCLMC``."""

    num_chains: int = 4
    warmup_steps: int = 300
    num_samples: int = 1_000
    mass_matrix: MassMatrix = "diagonal"
    compile: Literal["auto"] | bool = "auto"

    posterior_kind: ClassVar[PosteriorKind | None] = "biased chains"

    # trajectories from the last window on over the length that was found
    _stretch: ClassVar[int] = 1

    def __post_init__(self) -> None:
        check_positive_int("num_chains", self.num_chains)
        check_positive_int("warmup_steps", self.warmup_steps, minimum=0)
        check_positive_int("num_samples", self.num_samples)
        if self.mass_matrix not in ("diagonal", "low_rank"):
            raise OptionError(f'mass_matrix is "diagonal" or "low_rank", not {self.mass_matrix!r}')
        check_compile(self.compile)

    @classmethod
    def remedies(cls, options: Mapping[str, Any]) -> dict[Fault, str]:  # noqa: ARG003
        """What mends each fault; see the base class."""
        return {"settling": "raise warmup_steps and num_samples", "few draws": "raise num_samples"}

    @property
    @abstractmethod
    def _kernel(self) -> Kernel:
        """The state machine."""

    @property
    @abstractmethod
    def _target(self) -> float:
        """Value of the kernel's ``AIM`` that step sizes aim at."""

    @property
    @abstractmethod
    def _limit(self) -> int:
        """Length of trajectories, as the kernel counts: most points, or most of mean steps."""

    @property
    def _typical_steps(self) -> int:
        """About how many gradients a draw takes."""
        return min(TYPICAL_STEPS, self._limit)

    @property
    def _finds_length(self) -> bool:
        """Whether the warm-up looks for a length below the limit."""
        return False

    @property
    def _last(self) -> Mapping[str, float]:
        """Fields of the kernel's state and their values from the last window on."""
        return {}

    @property
    def draw_counts(self) -> DrawCounts:
        """As :attr:`Engine.draw_counts`."""
        return DrawCounts(self.num_chains, self.num_chains * self.num_samples)

    def start(self, problem: Problem) -> Start:
        """Find where the chains start; see the base class."""
        return self.start_at(problem, asdict(self))

    def start_call(self, problem: CallProblem) -> Start:
        """The same of any model; see the base class."""
        return self.start_at(problem, asdict(self))

    def start_at(
        self,
        problem: Problem | CallProblem,
        options: dict[str, Any],
        lead: Callable[[Tensor], Tensor] | None = None,
    ) -> Start:
        """A run that is ready, of chains that are led to where they start.

        Args:
            problem: Model and data.
            options: Of the engine, for the provenance.
            lead: Maps starting points ``[C, P]`` to others.
        """
        began = time.perf_counter()
        self._check(problem.joint, problem.engine)
        problem.warn_of_held_parameters()
        take_params(problem.joint, problem.init, problem.seed)
        if isinstance(problem, CallProblem):
            target = of_call(problem.joint)
        else:
            target = of_one(problem.program, problem.rows)
        starts = find_starts(target, problem.init, self.num_chains, problem.seed)

        def make(saves: Checkpoint) -> Sampling:
            is_new = saves.compile_path is None  # else its state has where the chains are
            return self._sampling(
                target,
                lead(starts) if lead and is_new else starts,
                began,
                seed=problem.seed,
                title=problem.engine,
                progress=problem.progress,
                known=known_before(target, problem.init, problem.seed),
                saves=saves,
                options=options,
            )

        return Start(problem, options, make)

    def _check(self, program: Joint, engine: str) -> None:
        """Refuse a model that cannot be sampled so."""

    def run_each(
        self,
        model: Model,
        x: Tensor,
        ys: Tensor,
        *,
        seed: int = 0,
        progress: bool = True,
        checkpoint: str | Path | None = None,
        resume: bool = False,
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
            checkpoint: Folder in which the state of the run is saved, as :meth:`run` does.
            resume: Whether to go on from there.

        Returns:
            Draws z ``[C, S, P]``, and the statistics of each ``[C, S]``.

        Raises:
            CaptureError: If ``compile=True`` and the step cannot be compiled.
            DataError, FileFormatError, OptionError, OutputError, SiteError: Of a checkpoint, as
                :meth:`run` raises them.
            DivergenceError: If a chain finds no starting point of finite density.
            ModelError: If the model breaks the contract, or cannot be batched over data sets.
            ShapeError: If ``ys`` has not the rows of x.
        """
        check_seed(seed)
        if ys.ndim < 2 or ys.shape[1] != len(x) or not len(ys):
            raise ShapeError(f"ys has shape {tuple(ys.shape)}, expected [C, {len(x)}, ...]")
        example = max(ys, key=lambda y: len(y.unique()))  # with all classes, if one has them
        start = time.perf_counter()
        with isolated(seed), unchanged(model):
            program, name = Program(model, x, example), type(self).__name__
            self._check(program, name)
            inputs = program.inputs(x)  # of a frozen body, once for all
            target = of_each(program, [program.batch(inputs, y) for y in ys])
            starts = find_starts(target, None, len(ys), seed)
            saves = Checkpoint(
                checkpoint,
                resume=resume,
                identify=lambda: Identity(
                    program,
                    DataSets(x, ys),
                    engine=name,
                    options=asdict(self),
                    seed=seed,
                    trains_params=False,
                ),
                device=program.device,
                start=start,
            )
            run = self._sampling(
                target, starts, start, seed=seed, title=name, progress=progress, saves=saves
            )
            drive(run, saves, progress=progress)
        return run.result().z, run.sample_stats

    def _sampling(
        self,
        target: TargetDensity,
        starts: Tensor,
        began: float,
        *,
        seed: int,
        title: str,
        progress: bool,
        known: tuple[Tensor, Tensor] | None = None,
        saves: Checkpoint | None = None,
        options: dict[str, Any] | None = None,
    ) -> Sampling:
        """The run, its step captured or compiled; on the path of the run that is resumed."""
        program, potential, data, _ = target
        num_chains, num_draws = len(starts), self.warmup_steps + self.num_samples
        path, is_over = (None, False) if saves is None else (saves.compile_path, saves.is_complete)
        compiled = is_compiled(
            self.compile,
            OPERATIONS * self._typical_steps * num_draws,
            num_chains * program.num_latents,
        )
        set_up = time.perf_counter()
        chains = in_lockstep(
            self._kernel,
            Energy(potential, tuple(data), (1,) if target.has_many else ()),  # y
            starts,
            first_mass(
                potential(starts, *data)[1], self.mass_matrix, each=target.has_many, known=known
            ),
            limit=self._limit,
            target_accept=self._target,
            seed=stream_seed(seed, MAX_STARTS),
            graphs=Graphs(
                f"the {type(self).__name__} step of {model_name(program.model)}",
                captured=path != "eager" and not is_over,
                compiled=compiled if path is None else path in ("apart", "compiled"),
                strict=self.compile is True,
                apart=path in (None, "apart"),
            ),
        )
        recording = "compile" if chains.compile_path in ("apart", "compiled") else "capture"
        phases = {"set-up": set_up - began, recording: time.perf_counter() - set_up}
        return Sampling(
            chains,
            warmup_steps=self.warmup_steps,
            num_samples=self.num_samples,
            limit=self._limit,
            progress=Progress(title, num_chains, num_draws, show=progress, aim=chains.aim),
            search=LengthSearch(starts) if self._finds_length else None,
            last=self._last,
            stretch=self._stretch,
            path=None if saves is None or saves.folder is None else saves.folder / DRAWS,
            phases={} if is_over else phases,
            options=options,
        )


@dataclass(frozen=True, kw_only=True)
class MetropolisSampler(HamiltonianSampler):
    """A sampler that rejects what would leave the posterior."""

    target_accept: float = 0.8

    is_exact = True
    posterior_kind = "chains"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (isinstance(self.target_accept, float) and 0 < self.target_accept < 1):
            raise OptionError(
                f"target_accept is a number between 0 and 1, not {self.target_accept!r}"
            )

    @classmethod
    def remedies(cls, options: Mapping[str, Any]) -> dict[Fault, str]:
        """What mends each fault; see the base class."""
        steps: dict[Fault, str] = {"divergent": "raise target_accept, or use a non-centred prior"}
        return super().remedies(options) | steps

    @property
    def _target(self) -> float:
        return self.target_accept


@dataclass(frozen=True, kw_only=True)
class SamplerOfLength(HamiltonianSampler):
    """A sampler whose trajectories have a mean number of steps, given or found in the warm-up."""

    num_steps: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.num_steps is not None:
            check_positive_int("num_steps", self.num_steps)

    @property
    def _limit(self) -> int:
        return MOST if self.num_steps is None else self.num_steps

    @property
    def _typical_steps(self) -> int:
        return self.num_steps or TYPICAL_LENGTH

    @property
    def _finds_length(self) -> bool:
        return self.num_steps is None


@dataclass(frozen=True, kw_only=True)
class IsokineticSampler(SamplerOfLength):
    """A sampler whose velocities have length 1."""

    integrator: Literal["leapfrog", "minimal_norm"] = "leapfrog"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.integrator not in INTEGRATORS:
            names = " or ".join(f'"{name}"' for name in INTEGRATORS)
            raise OptionError(f"integrator is {names}, not {self.integrator!r}")

    def _check(self, program: Joint, engine: str) -> None:
        if program.num_latents < 2:
            raise ModelError(
                f"{engine} needs at least two latent numbers, for velocities to turn; the model "
                f"has {program.num_latents}: use NUTS"
            )
