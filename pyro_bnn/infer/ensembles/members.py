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
from pyro_bnn.infer.own_weights import OwnWeights, for_members
from pyro_bnn.infer.parallel.tasks import ParallelTask, in_order, number_at_once
from pyro_bnn.infer.problem import Problem
from pyro_bnn.infer.run import Run, drive
from pyro_bnn.infer.starting_points import take_params
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
        engine: Fits a guide; no sampler of chains.
        num_members: Number of members K.
        problem: Model and data.
        options: Options of the ensemble, beside those of the engine.

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
    take_params(problem.program, problem.init, problem.seed)  # each member takes them as well
    starts, tasks, init = [], [], for_members(problem.init)
    for k in range(num_members):
        seed = derived_seed(problem.seed, MEMBER + k) if k else problem.seed
        own = None if k and isinstance(init, OwnWeights) else init
        member_problem = dataclasses.replace(problem, init=own, seed=seed, engine=name_of(engine))
        with isolated(seed):
            start = engine.start(member_problem)
        starts.append(start)
        # a task starts anew: its problem is not traced yet, and has all rows
        silent = dataclasses.replace(member_problem, progress=False)
        tasks.append(functools.partial(_fitted, engine, silent))
    made = {**options, "member": name_of(engine), **starts[0].options}

    def make(saves: Checkpoint) -> GuidesRun:
        runs = [start.make(saves) for start in starts]
        problems = [start.problem for start in starts]
        if number_at_once() > 1 and not problem.has_own_order:
            return ApartRun(tasks, runs, problems, options)
        return GuidesRun(runs, problems, options)

    return Start(problem, made, make)


class GuidesRun(Run[GuidePosterior]):
    """One step moves each member that is not done.

    Args:
        runs: The run of each member.
        problems: Model and data of each member.
        options: Options of the ensemble.
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
        """Whether all members are done."""
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
        common = {key: states[0][key] for key in ("place", "compile_path")}
        return {**common, "step": self.step, "members": states}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go to a state; see ``Resumable``.

        Raises:
            ValueError: If it has another number of members.
        """
        for run, member_state in zip(self.runs, state["members"], strict=True):
            if member_state is None:  # fitted as a task, which had not ended
                run.begin()
            else:
                run.restore(member_state)
        self.step = state["step"]

    def posterior(self, problem: Problem, saves: Checkpoint) -> GuidePosterior | None:
        """The mixture of the members' guides; None before each has one."""
        pairs = zip(self.runs, self.problems, strict=True)
        reached = [run.posterior(member_problem, saves) for run, member_problem in pairs]
        members: list[GuidePosterior] = [each for each in reached if each is not None]
        if len(members) < len(reached):
            return None
        mixture = functools.partial(AutoGuideMixture, members=[each.guide for each in members])
        guide = new_guide(mixture, problem.program)
        losses: list[float] = []
        if len({len(each.losses) for each in members}) == 1:
            losses = np.mean([each.losses for each in members], 0).tolist()
        options = {**_common(members), **self.options, "member": members[0].method}
        doublings = [each.doubling for each in members if each.doubling is not None]
        doubling = None
        if len(doublings) == len(members):  # of the member that has most left to gain
            doubling = max(doublings, key=lambda d: (d.is_unfinished, not d.is_judged, d.gain))
        return problem.guide_posterior(guide, saves, options, losses=losses, doubling=doubling)


class ApartRun(GuidesRun):
    """Members as tasks of ``joblib.parallel_config``: a step waits for the next one's end.

    Each member is what it is in one process, bit for bit. A checkpoint holds those that are done.

    Args:
        tasks: Each returns the state of a member at its end.
        runs: The run of each member, which is restored to the state that its task returns.
        problems: Model and data of each member.
        options: Options of the ensemble.
    """

    unit: ClassVar[str] = "member"

    def __init__(
        self,
        tasks: Sequence[ParallelTask[State]],
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
        """Number of members done; no objective belongs to it."""
        return self.step, None

    def state(self) -> State:
        """Those of the members; see ``Resumable``."""
        states = [run.state() if run.is_done else None for run in self.runs]
        paths = [each["compile_path"] for each in states if each is not None]
        return {
            "place": f"member {self.step} of {len(self.runs)}",
            "compile_path": next(iter(paths), None),
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
        start = engine.start(problem)  # tracing draws from the prior, where a run may start
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


def _common(members: Sequence[GuidePosterior]) -> dict[str, Any]:
    """Options of all members: one value, or a list where they differ, as tuned ones do."""
    values = {name: [each.options[name] for each in members] for name in members[0].options}
    return {k: v[0] if all(each == v[0] for each in v) else v for k, v in values.items()}


def engine_of(member: Engine[Any] | GuideSpec, **options: Any) -> Engine[Any]:
    """The engine of a member: itself, or SVI with a guide and these options.

    Raises:
        OptionError: If it is neither an engine nor a class of guides, or a partial of one.
    """
    spec = getattr(member, "guide", None) if isinstance(member, SVI) else member
    guide_class = spec.func if isinstance(spec, functools.partial) else spec
    is_guide = isinstance(guide_class, type) and issubclass(guide_class, Guide)
    if not (is_guide or (isinstance(member, Engine) and spec is member)):
        raise OptionError(
            "a member is a guide class of pyro_bnn.guides, or a partial of one, of which each is "
            f"made anew, or an engine, not {member!r:.80}"
        )
    return member if isinstance(member, Engine) else SVI(member, **options)
