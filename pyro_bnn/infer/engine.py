"""The frame of all engines: ``Engine(options).run(model, data) -> Posterior``."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Generic, NamedTuple, overload

from torch.utils.data import DataLoader

from pyro_bnn.checks import check_seed, plain
from pyro_bnn.data import Call, Dataset
from pyro_bnn.errors import DivergenceError, ModelError, OptionError
from pyro_bnn.handled import model_name
from pyro_bnn.infer.call_problem import CallProblem
from pyro_bnn.infer.checkpoints.checkpoint import Checkpoint
from pyro_bnn.infer.checkpoints.identity import Identity
from pyro_bnn.infer.checkpoints.interrupts import Interrupted
from pyro_bnn.infer.inputs import FitData, Init, rows_for, unchanged
from pyro_bnn.infer.own_weights import chosen_init
from pyro_bnn.infer.problem import Problem
from pyro_bnn.infer.run import OnStep, P, Run, drive
from pyro_bnn.posterior.call_posterior import CallPosterior
from pyro_bnn.posterior.nature import Fault, Nature, PosteriorKind
from pyro_bnn.program.handlers import Model
from pyro_bnn.program.random_state import isolated

SERVE_CALLS = (
    'NUTS, HMC, MAMS, MCLMC, SVI, SMC, Laplace(curvature="hessian"), SGLD, SGHMC, SGNHT, BAOAB, '
    "PSGLD or Cyclical"
)


class Start(NamedTuple):
    """A run that is ready to begin.

    Attributes:
        problem: What it is about.
        options: By which its checkpoint is known, as JSON can hold them.
        make: Makes the run, given the checkpoint that it goes on from, if any: ``compile_path``
            says how that one computes.
    """

    problem: Any
    options: dict[str, Any]
    make: Callable[[Checkpoint], Run[Any]]


class DrawCounts(NamedTuple):
    """How many draws a posterior has, as its engine knows before the run.

    Attributes:
        num_chains: Chains, or members that sample.
        num_stored_draws: Draws of all of them; None where there is no end of draws.
        num_atoms: Members of an ensemble that do not sample.
    """

    num_chains: int = 1
    num_stored_draws: int | None = None
    num_atoms: int | None = None


class Engine(ABC, Generic[P]):
    """Base of the engines: frozen dataclasses of options, which make a run of a problem.

    A subclass writes :meth:`start`, and its run is a :class:`~pyro_bnn.infer.run.Run`. One with an
    option ``batch_size`` takes the batches of a ``DataLoader``; others read one pass of it.

    It declares what its posteriors are, from which the report takes its checks and its advice:
    ``is_exact`` or ``posterior_kind``, :meth:`family` and :meth:`remedies`. What is not declared is
    not guessed: the advice is then in general words.
    """

    trains_params: ClassVar[bool] = False  # the model's point-estimated parameters
    is_exact: ClassVar[bool] = False  # draws of the posterior itself, once converged
    posterior_kind: ClassVar[PosteriorKind | None] = (
        None  # chains if it is exact, else an approximation
    )

    @property
    def saves(self) -> bool:
        """Whether this process saves the run, of several that share it."""
        return True

    @property
    def is_repeatable(self) -> bool:
        """Whether another run starts as the first one did, and not where that one ended."""
        return True

    @abstractmethod
    def start(self, problem: Problem) -> Start:
        """Get a run of these options ready: check model and options, find where it starts."""

    def start_call(self, problem: CallProblem) -> Start:
        """The same for a model of any arguments, by an engine that needs no f and no rows.

        Raises:
            ModelError: If this engine needs them.
        """
        raise ModelError(
            f"{problem.engine} needs a network on rows: model(x, y=None) with f and y, run on "
            f"(x, y). For {model_name(problem.model)} on a Call take {SERVE_CALLS}"
        )

    # What it declares of its posteriors

    @property
    def draw_counts(self) -> DrawCounts:
        """How many draws its posterior will have, as far as the options say."""
        return DrawCounts()

    @classmethod
    def family(cls, options: Mapping[str, Any]) -> str | None:  # noqa: ARG003
        """Name of the guide that a posterior of these options is; None where the guide says."""
        return None

    @classmethod
    def remedies(cls, options: Mapping[str, Any]) -> dict[Fault, str]:  # noqa: ARG003
        """What mends each fault, in a few words that name options of this engine.

        Args:
            options: That a posterior was found with, and what became of those left open.
        """
        return {}

    @classmethod
    def nature(cls, options: Mapping[str, Any]) -> Nature:
        """What a posterior of these options is."""
        return Nature(
            kind=cls.posterior_kind or ("chains" if cls.is_exact else "approximation"),
            family=cls.family(options),
            remedies={str(fault): words for fault, words in cls.remedies(options).items()},
        )

    def check_batches(self, data: FitData | Call) -> None:
        """Refuse a size of batches beside a ``DataLoader``.

        Raises:
            OptionError: If there are both.
        """
        batch_size = getattr(self, "batch_size", None)
        if batch_size is not None and isinstance(data, DataLoader):
            raise OptionError(
                f"batch_size={batch_size} would have no effect, as a DataLoader makes its own "
                "batches: set it there, or pass the data set"
            )

    @overload
    def run(
        self,
        model: Model,
        data: FitData,
        *,
        init: Init = ...,
        seed: int = ...,
        progress: bool = ...,
        on_step: OnStep | None = ...,
        checkpoint: str | Path | None = ...,
        resume: bool = ...,
    ) -> P: ...

    @overload
    def run(
        self,
        model: Model,
        data: Call,
        *,
        init: Init = ...,
        seed: int = ...,
        progress: bool = ...,
        on_step: OnStep | None = ...,
        checkpoint: str | Path | None = ...,
        resume: bool = ...,
    ) -> CallPosterior: ...

    def run(
        self,
        model: Model,
        data: FitData | Call,
        *more: Any,
        init: Init = None,
        seed: int = 0,
        progress: bool = True,
        on_step: OnStep | None = None,
        checkpoint: str | Path | None = None,
        resume: bool = False,
    ) -> P | CallPosterior:
        """Find the posterior of a model given its data.

        Args:
            model: Pyro model ``model(x, y=None)``; with a ``Call`` a model of any arguments.
            data: A ``Dataset``, a pair (x, y), or a ``DataLoader``; or the arguments of the model
                as a ``data.Call``, for the engines that need no network.
            more: Nothing; arguments of the model that are no one ``Call`` are refused here.
            init: Where to start: a posterior, a trained module, or values of sites. What it leaves
                out starts as it does without it. Chains start at draws of a posterior, means at its
                mean; a guide of the form of that of the posterior takes all that this one has.
                Without it ``bayesian(net)`` starts at the weights of the network, if it was
                trained, and says so beside the bar; else, and with ``"prior"``, the start is a
                draw from the prior.
            seed: Seed, from 0 to 2^32 - 1, of the start, the noise and the order of the data.
                Results repeat exactly for a seed on one machine with one number of threads.
            progress: Whether to show a progress bar.
            on_step: Called after every 100 steps, and after the last, with ``step``, ``objective``
                and ``seconds`` (:class:`~pyro_bnn.infer.run.Reached`): where a run is logged.
                What it raises ends the run; what it draws at random changes nothing.
            checkpoint: Folder in which the state of the run is saved, at its start, every half
                minute and at its end.
            resume: Whether to go on from the checkpoint, with the same model, data and options. The
                result is then, bit for bit, that of a run which was never stopped, on the same
                machine with the same number of threads and versions, except with a ``DataLoader``
                of which the engine takes batches; a line says where it is not. Without a checkpoint
                there, the run starts anew. Of ``init`` the values of parameters that are held fixed
                alone are compared: the run goes on from where it was.

        Returns:
            The posterior. The model is as it was; point parameters that were trained are in the
            posterior.

        Raises:
            CaptureError: If ``compile=True`` and the step cannot be compiled.
            DataError, OptionError, SiteError: If the checkpoint is of another run; names what
                differs.
            DivergenceError: If the loss becomes NaN or infinite, or no starting point of finite
                density is found; names the step or the chain, and the sites, and holds the
                posterior at the last good state where there is one.
            FileFormatError: If the checkpoint is damaged, foreign or newer.
            Interrupted: If Ctrl-C came; holds the posterior that was reached, where there is one.
            ModelError: If the model breaks the contract, or the engine does not serve it.
            OptionError: If the seed is none, an option has no effect or does not serve the
                model, or there is a checkpoint in the folder already and ``resume`` is False.
            OutputError: If the checkpoint cannot be written.
            SiteError: If a site of the model is not served.
        """
        if more:
            raise OptionError(
                f"run takes the model and its data, and got {len(more)} more: pass the arguments "
                "of a model as one Call, run(model, bnn.data.Call(x, y)), and the rows of a "
                "network as one pair, run(model, (x, y))"
            )
        seed = plain(seed)
        check_seed(seed)
        began = time.perf_counter()
        self.check_batches(data)
        with isolated(seed):  # a DataLoader draws from the global random state
            given = data if isinstance(data, Call) else rows_for(model, data)
        with isolated(seed), unchanged(model):
            start = self._start(model, data, given, init, seed, progress=progress)
            problem = start.problem
            own_order = hasattr(self, "batch_size") and isinstance(data, DataLoader)
            saves = Checkpoint(
                checkpoint if self.saves else None,
                resume=resume and self.saves,
                identify=lambda: Identity(
                    problem.joint,
                    given,
                    engine=problem.engine,
                    options=start.options,
                    seed=seed,
                    trains_params=self.trains_params,
                    in_order=not own_order,
                ),
                device=problem.joint.device,
                own_order=own_order,
                start=began,
            )
            run: Run[P] = start.make(saves)
            try:
                drive(run, saves, progress=progress, on_step=on_step)
            except (DivergenceError, Interrupted) as error:
                if (reached := run.posterior(problem, saves)) is not None:
                    error.posterior = self._declared(reached)
                raise
            posterior = run.posterior(problem, saves)
            assert posterior is not None
            if isinstance(posterior, CallPosterior) and self.is_repeatable:
                posterior.rerun = partial(self.run, init=init)
            return self._declared(posterior)

    def _start(
        self,
        model: Model,
        data: FitData | Call,
        given: Dataset | Call,
        init: Init,
        seed: int,
        *,
        progress: bool,
    ) -> Start:
        name = type(self).__name__
        how: dict[str, Any] = {"progress": progress, "declare": self.nature}
        names = given.class_names if isinstance(given, Dataset) else None
        init = chosen_init(model, init, is_shown=progress, class_names=names)
        if isinstance(given, Call):
            return self.start_call(CallProblem(model, given, init, seed, name, **how))
        assert not isinstance(data, Call)
        return self.start(Problem(model, data, given, init, seed, name, **how))

    def _declared(self, posterior: P) -> P:
        """The posterior, with what this engine declares where its run has left that out."""
        own: Any = posterior
        if own.provenance.nature is None:
            own.provenance = replace(own.provenance, nature=self.nature(own.options))
        return posterior
