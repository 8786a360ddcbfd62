"""What the command line runs: names and numbers become engines, and engines posteriors."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from pyro_bnn.cli.methods import takes
from pyro_bnn.cli.saves import Saves
from pyro_bnn.data import Dataset, Split
from pyro_bnn.errors import DivergenceError, OptionError
from pyro_bnn.handled import module_of
from pyro_bnn.infer.engine import unchanged
from pyro_bnn.infer.mcmc.hamiltonian import TYPICAL_STEPS
from pyro_bnn.infer.svi.estimators.by_name import ESTIMATORS, WEIGHT_SAMPLING
from pyro_bnn.posterior.posterior import Posterior
from pyro_bnn.program.handlers import Model
from pyro_bnn.program.program import Program
from pyro_bnn.program.random_state import isolated

SECONDS_A_STEP = 1e-3
OPTION_WORDS: Mapping[str, str] = {
    "num_steps": "steps",
    "batch_size": "rows a step",
    "num_chains": "chains",
    "warmup_steps": "warm-up steps",
    "num_samples": "draws a chain",
}
"""Options of engines that a job sets, with the words that follow their number in a line of text."""


class Engine(Protocol):
    """What a job needs of an engine."""

    def run(
        self,
        model: Model,
        data: Any,
        *,
        init: Any = None,
        seed: int = 0,
        progress: bool = True,
        checkpoint: str | Path | None = None,
        resume: bool = False,
    ) -> Posterior:
        """Fit or sample the model."""
        ...


# From engines to posteriors


def check_starts(engines: Mapping[str, Any], models: Mapping[str, Model]) -> None:
    """Refuse samplers whose model has weights that nothing trains.

    Args:
        engines: By name of the method, in the order of their runs.
        models: The model of each.

    Raises:
        OptionError: If a sampler's model has point-estimated parameters, which it holds fixed, and
            no method before it trains them.
    """
    for name in engines:
        if _holds_fixed(engines[name], models[name]) and not _trained(name, engines, models):
            raise OptionError(
                f"{name} holds the weights of {type(models[name]).__name__} fixed: name a guide of "
                "the same network before it, whose fit trains them"
            )


def check_estimators(
    engines: Mapping[str, Any], models: Mapping[str, Model], data: Dataset
) -> None:
    """Refuse estimators that do not serve the model of a method.

    Args:
        engines: By name of the method.
        models: The model of each.
        data: Rows to look at the models with.

    Raises:
        OptionError, SiteError: If there is one; names what the estimator does not serve.
    """
    for name, engine in engines.items():
        estimator = ESTIMATORS.get(getattr(engine, "estimator", WEIGHT_SAMPLING))
        if estimator is not None:
            with isolated(0), unchanged(models[name]):
                estimator(Program(models[name], data.x[:2], data.y[:2]))


def fit_all(
    engines: Mapping[str, Engine],
    models: Mapping[str, Model],
    split: Split,
    *,
    seed: int,
    progress: bool,
    say: Callable[[str], object],
    saves: Mapping[str, Saves] | None = None,
) -> tuple[dict[str, Posterior], list[str]]:
    """Run the engines one after another; one that diverges does not stop the others.

    A sampler holds point-estimated parameters of its model fixed, at the values of the first
    method of the same model that trained them, and starts at that posterior.

    Args:
        engines: By name of the method.
        models: The model of each; methods of one model share the object.
        split: Its training rows are fitted.
        seed: Seed of every run.
        progress: Whether to show progress bars.
        say: Gets a line when a method is done.
        saves: Where the run of each is saved, and whether it goes on from there; default nowhere.

    Returns:
        The posteriors by name, and a line for each method that diverged.

    Raises:
        DivergenceError: If every method diverged.
        OptionError: If a checkpoint is of another run.
    """
    posteriors: dict[str, Posterior] = {}
    diverged: list[str] = []
    for name in engines:
        save = Saves() if saves is None else saves[name]
        run = partial(fit, name, engines, models, split, seed=seed, progress=progress, say=say)
        try:
            posteriors[name] = run(save=save, earlier=posteriors)
        except DivergenceError as error:
            diverged.append(f"{name}: {error}")
    if not posteriors:
        raise DivergenceError("; ".join(diverged))
    return posteriors, diverged


def fit(
    name: str,
    engines: Mapping[str, Engine],
    models: Mapping[str, Model],
    split: Split,
    *,
    seed: int,
    progress: bool,
    say: Callable[[str], object],
    save: Saves,
    earlier: Mapping[str, Posterior],
) -> Posterior:
    """Run one engine of several; see :func:`fit_all`.

    Args:
        name: Its method.
        engines: By name of the method.
        models: The model of each.
        split: Its training rows are fitted.
        seed: Seed of the run.
        progress: Whether to show a progress bar.
        say: Gets a line when it is done, or why it is not.
        save: Where it is saved, and whether it goes on from there.
        earlier: Posteriors of the methods before it.

    Raises:
        DivergenceError: If it diverged, or has nothing to start from.
        OptionError: If the checkpoint is of another run.
    """
    width = max(len(other) for other in engines)
    engine = engines[name]
    start: dict[str, Any] = {}
    if has_to_wait(name, engines, models):
        there = [other for other in _trained(name, engines, models) if other in earlier]
        if not there:
            say(f"{name:{width}}  left out: no fit of its network to take weights from")
            raise DivergenceError("no fit of its network is left to take weights from")
        start = {"init": earlier[there[0]]}
        say(f"{name:{width}}  starts from {there[0]}, whose point estimates it holds fixed")
    run = partial(engine.run, models[name], split.train, seed=seed, progress=progress, **start)
    try:
        posterior = save.run(run, say, f"{name:{width}}  ")
    except DivergenceError as error:
        say(f"{name:{width}}  diverged: {error}")
        raise
    how = ", ".join([_name(engine), *_numbers(engine, len(split.train))])
    say(f"{name:{width}}  {posterior.wall_time:6.1f} s  ({how})")
    return posterior


def expected_seconds(engine: Any) -> float:
    """Seconds of a run, by its numbers alone and very roughly: a millisecond a step."""
    draws = getattr(engine, "warmup_steps", 0) + getattr(engine, "num_samples", 0)
    return SECONDS_A_STEP * (getattr(engine, "num_steps", 0) + TYPICAL_STEPS * draws)


def has_to_wait(name: str, engines: Mapping[str, Any], models: Mapping[str, Model]) -> bool:
    """Whether an engine starts from the posterior of a method before it."""
    return _holds_fixed(engines[name], models[name])


def _holds_fixed(engine: Any, model: Model) -> bool:
    """Whether an engine leaves point-estimated parameters of its model as they are."""
    module = module_of(model)
    has_any = module is not None and any(p.requires_grad for p in module.parameters())
    return has_any and not takes(engine, "guide")


def _trained(name: str, engines: Mapping[str, Any], models: Mapping[str, Model]) -> list[str]:
    """Methods before one of a name that train the parameters of its model."""
    before = list(engines)[: list(engines).index(name)]
    return [
        other
        for other in before
        if models[other] is models[name] and takes(engines[other], "guide")
    ]


def _numbers(engine: Engine, num_rows: int) -> Iterator[str]:
    for option, words in OPTION_WORDS.items():
        value = getattr(engine, option, None)
        if option == "batch_size" and value is not None:
            value = min(value, num_rows)  # a step has no more rows than there are
        if value is not None:
            yield f"{value:,} {words}"
    estimator = getattr(engine, "estimator", WEIGHT_SAMPLING)
    if estimator != WEIGHT_SAMPLING:
        yield estimator.replace("_", " ")


def _name(thing: object) -> str:
    return type(thing).__name__
