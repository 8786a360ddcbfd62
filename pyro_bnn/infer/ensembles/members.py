"""Members of an ensemble that are fits of one engine, each with a seed of its own, side by side."""

from __future__ import annotations

import dataclasses
import functools
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from pyro_bnn.errors import OptionError
from pyro_bnn.guides import Guide
from pyro_bnn.guides.guide_mixture import AutoGuideMixture
from pyro_bnn.infer.checkpoints.checkpoint import Checkpoint, State
from pyro_bnn.infer.engine import Engine, Start
from pyro_bnn.infer.inputs import new_guide, unchanged
from pyro_bnn.infer.parallel.tasks import Task, in_order, number_at_once
from pyro_bnn.infer.problem import Problem
from pyro_bnn.infer.run import Run, drive
from pyro_bnn.infer.svi.options import GuideSpec, name_of
from pyro_bnn.infer.svi.svi import SVI
from pyro_bnn.posterior.guide_posterior import GuidePosterior
from pyro_bnn.program.random_state import derived_seed, isolated

MEMBER = 121  # and following, streams of the members' seeds


def members_start(
    engine: Engine[Any], num_members: int, problem: Problem, options: dict[str, Any]
) -> Start:
    """Get members ready that are fits of one engine; the first has the seed of the ensemble.

    Args:
        engine: Of a guide's posterior, not of chains.
        num_members: Number of members K.
        problem: Model and data.
        options: Of the ensemble beside the engine's.

    Raises:
        OptionError: If the engine has chains, or trains parameters of the model, of which a mixture
            has one value.
    """
    if hasattr(engine, "num_samples") or hasattr(engine, "engine"):
        raise OptionError(
            f"a member is a guide or an engine that ends at one, not {name_of(engine)}, whose "
            "chains are several already: set num_chains there, or take MILE"
        )
    require_weights(engine)
    engine.check_batches(problem.data)
    trained = [name for name, p in problem.program.params.items() if p.requires_grad]
    if trained and engine.trains_params:
        raise OptionError(
            f"each member would train {', '.join(trained)} to values of its own, and a mixture has "
            "one: give them priors, or leave member at None"
        )
    starts, tasks = [], []
    for k in range(num_members):
        seed = derived_seed(problem.seed, MEMBER + k) if k else problem.seed
        own = dataclasses.replace(problem, seed=seed, engine=name_of(engine))
        with isolated(seed):
            start = engine.start(own)
        starts.append(start)
        # without what has been traced of it here, and with the rows that the engine holds out
        tasks.append(functools.partial(_fitted, engine, dataclasses.replace(own, progress=False)))
    made = {**options, "member": name_of(engine), **starts[0].options}

    def make(saves: Checkpoint) -> GuidesRun:
        runs = [start.make(saves) for start in starts]
        problems = [start.problem for start in starts]
        if number_at_once() > 1 and not problem.has_own_order:
            return ApartRun(tasks, runs, problems, options)
        return GuidesRun(runs, problems, options)

    return Start(problem, made, make)


class GuidesRun(Run[GuidePosterior]):
    """A step is one of each member that has not come to its end.

    Args:
        runs: Of the members.
        problems: What each is about.
        options: Of the ensemble.
    """

    def __init__(
        self, runs: Sequence[Run[Any]], problems: Sequence[Problem], options: dict[str, Any]
    ) -> None:
        self.runs, self.problems, self.options = list(runs), list(problems), options
        self.title = f"{len(runs)} x {runs[0].title}"
        steps = [run.num_steps for run in runs if run.num_steps is not None]
        self.num_steps = max(steps, default=None)

    @property
    def is_done(self) -> bool:
        """Whether all members are."""
        return all(run.is_done for run in self.runs)

    def begin(self) -> None:
        """Begin each member."""
        for run in self.runs:
            run.begin()

    def go(self) -> None:
        """One step of each member that is not done.

        Raises:
            DivergenceError: If one diverges; all go on from where they are then.
        """
        for run in self.runs:
            if not run.is_done:
                run.go()
        self.step += 1

    def finish(self) -> None:
        """Finish each member."""
        for run in self.runs:
            run.finish()

    def reached(self) -> tuple[int, float | None]:
        """Steps of each member, and the mean of their objectives."""
        values = [value for _, value in (run.reached() for run in self.runs) if value is not None]
        return self.step, sum(values) / len(values) if values else None

    def state(self) -> State:
        """Those of the members; see ``Resumable``."""
        states = [run.state() for run in self.runs]
        own = {key: states[0][key] for key in ("place", "compile_path")}
        return {**own, "step": self.step, "members": states}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go to a state; see ``Resumable``.

        Raises:
            ValueError: If it has another number of members.
        """
        for run, own in zip(self.runs, state["members"], strict=True):
            if own is None:  # of members that were fitted apart this one had not come to its end
                run.begin()
            else:
                run.restore(own)
        self.step = state["step"]

    def posterior(self, problem: Problem, saves: Checkpoint) -> GuidePosterior | None:
        """The mixture of the members' guides; None before each has one."""
        pairs = zip(self.runs, self.problems, strict=True)
        reached = [run.posterior(own, saves) for run, own in pairs]
        found: list[GuidePosterior] = [each for each in reached if each is not None]
        if len(found) < len(reached):
            return None
        mixture = functools.partial(AutoGuideMixture, members=[each.guide for each in found])
        guide = new_guide(mixture, problem.program)
        losses: list[float] = []
        if len({len(each.losses) for each in found}) == 1:
            losses = np.mean([each.losses for each in found], 0).tolist()
        options = {**_common(found), **self.options, "member": found[0].method}
        told = [each.doubling for each in found if each.doubling is not None]
        doubling = None
        if len(told) == len(found):  # of the member that has most left to gain
            doubling = max(told, key=lambda own: (own.is_unfinished, not own.is_judged, own.gain))
        return problem.guide_posterior(guide, saves, options, losses=losses, doubling=doubling)


class ApartRun(GuidesRun):
    """Members as tasks of ``joblib.parallel_config``: a step waits for the next one's end.

    Each member is what it is in one process, bit for bit. A checkpoint holds those that are done.

    Args:
        tasks: Each returns the state of a member at its end.
        runs: As of the base class, which take these states.
        problems: What each is about.
        options: Of the ensemble.
    """

    unit: ClassVar[str] = "member"

    def __init__(
        self,
        tasks: Sequence[Task[State]],
        runs: Sequence[Run[Any]],
        problems: Sequence[Problem],
        options: dict[str, Any],
    ) -> None:
        super().__init__(runs, problems, options)
        self._tasks, self.num_steps = tasks, len(runs)
        self._waiting: Iterator[tuple[Run[Any], State]] | None = None

    def begin(self) -> None:
        """Each member begins where its task is."""

    def go(self) -> None:
        """Wait for a member.

        Raises:
            DivergenceError: If one diverged; all others are given up.
        """
        if self._waiting is None:
            pairs = zip(self.runs, self._tasks, strict=True)
            left = [(run, task) for run, task in pairs if not run.is_done]
            done = in_order(task for _, task in left)
            self._waiting = zip((run for run, _ in left), done, strict=True)
        run, state = next(self._waiting)
        run.restore(state)
        self.step += 1

    def reached(self) -> tuple[int, float | None]:
        """Number of members done; it is no step that an objective is told of."""
        return self.step, None

    def state(self) -> State:
        """Those of the members; see ``Resumable``."""
        states = [run.state() if run.is_done else None for run in self.runs]
        return {
            "place": f"member {self.step} of {len(self.runs)}",
            "compile_path": next((own["compile_path"] for own in states if own is not None), None),
            "step": max(run.step for run in self.runs),
            "members": states,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go to a state; members that are not at their end begin anew."""
        super().restore(state)
        self.step = sum(run.is_done for run in self.runs)


def _fitted(engine: Engine[Any], problem: Problem) -> State:
    """The state of a member at its end."""
    began = time.perf_counter()
    with isolated(problem.seed), unchanged(problem.model):
        start = engine.start(problem)  # traces the model, of whose draws a run may start
        saves = Checkpoint(device=start.problem.program.device, start=began)
        run = start.make(saves)
        drive(run, saves)
        return run.state()


def require_weights(engine: Engine[Any]) -> None:
    """Refuse an engine whose predictions are not those of the network at draws of z.

    Raises:
        OptionError: If it predicts by the linearised network, as ``Laplace`` does by default.
    """
    if getattr(engine, "predictive", "weights") != "weights":
        raise OptionError(
            f"{name_of(engine)} predicts by a linearised network, and what is made of it here by "
            'draws of the weights: take predictive="weights", or another engine'
        )


def _common(found: Sequence[GuidePosterior]) -> dict[str, Any]:
    """Options of all members: one value, or a list where they differ, as tuned ones do."""
    values = {name: [each.options[name] for each in found] for name in found[0].options}
    return {k: own[0] if all(v == own[0] for v in own) else own for k, own in values.items()}


def engine_of(member: Engine[Any] | GuideSpec, **options: Any) -> Engine[Any]:
    """The engine of a member: itself, or SVI with a guide and these options.

    Raises:
        OptionError: If it is neither an engine nor a class of guides, or a partial of one.
    """
    spec = getattr(member, "guide", None) if isinstance(member, SVI) else member
    made = spec.func if isinstance(spec, functools.partial) else spec
    is_guide = isinstance(made, type) and issubclass(made, Guide)
    if not (is_guide or (isinstance(member, Engine) and spec is member)):
        raise OptionError(
            "a member is a guide class of pyro_bnn.guides, or a partial of one, of which each is "
            f"made anew, or an engine, not {member!r:.80}"
        )
    return member if isinstance(member, Engine) else SVI(member, **options)
