"""The engines of a command are checked and run, one after another."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from pyro_bnn.cli.kept import EndedFits
from pyro_bnn.cli.methods import takes
from pyro_bnn.cli.options import OF_ENGINES
from pyro_bnn.cli.saves import OtherRunError, Saves
from pyro_bnn.cli.terminal import too_large
from pyro_bnn.data import Dataset, Split
from pyro_bnn.errors import BNNError, DivergenceError, OptionError
from pyro_bnn.handled import module_of
from pyro_bnn.infer.engine import Engine
from pyro_bnn.infer.ensembles.swag import SWAG
from pyro_bnn.infer.inputs import set_up, unchanged
from pyro_bnn.infer.mcmc.hamiltonian import TYPICAL_STEPS
from pyro_bnn.infer.steps.rounds import AUTO
from pyro_bnn.infer.svi.estimators.by_name import FOR_ALL, make_estimator
from pyro_bnn.infer.svi.options import LIKELY_STEPS
from pyro_bnn.memory import is_exceeded
from pyro_bnn.posterior.posterior import Posterior
from pyro_bnn.program.handlers import Model
from pyro_bnn.program.program import Program
from pyro_bnn.program.random_state import isolated

if TYPE_CHECKING:
    from pyro_bnn.report.verdicts.verdict import Verdict

logger = logging.getLogger("pyro_bnn")

MANY_NUMBERS = 500_000  # of the inputs: 640 images of 28 x 28, or 50,000 rows of 10 columns
ROWS_OF_MANY = 256
SECONDS_A_STEP = 1e-3
SECONDS_A_NUMBER = 1e-8  # of a guide, in a step of Adam's
FEW_WEIGHTS = 2_000  # of a network, whose guides are set up at once to count their numbers


def check_starts(engines: Mapping[str, Any], models: Mapping[str, Model], data: Dataset) -> None:
    """Refuse guides and estimators that do not suit their model, and weights that no fit trains.

    Args:
        engines: By name of the method, in the order of their runs.
        models: The model of each.
        data: Rows to run the models on.

    Raises:
        OptionError, SiteError: As a guide raises them; if an estimator does not suit the model;
            or if a sampler's model has point-estimated parameters, which it holds fixed, and no
            method before it trains them.
    """
    for name, engine in engines.items():
        model, estimator = models[name], getattr(engine, "estimator", AUTO)
        if takes(engine, "guide"):
            with isolated(0), unchanged(model):
                guide = engine.guide(model)
                if estimator not in FOR_ALL:
                    program = Program(model, data.x[:2], data.y[:2])
                    set_up(guide, program)
                    make_estimator(estimator, program, guide)
    for name in engines:
        if holds_fixed(engines[name], models[name]) and not _trained(name, engines, models):
            raise OptionError(
                f"{name} holds the weights of {type(models[name]).__name__} fixed: name a guide of "
                "the same network before it, whose fit trains them"
            )


def check_draws(engines: Mapping[str, Any]) -> None:
    """Refuse samplers that keep a single draw, which looks like a point estimate.

    Raises:
        OptionError: If there is one.
    """
    for name, engine in engines.items():
        if getattr(engine, "num_samples", 2) * getattr(engine, "num_chains", 1) < 2:
            raise OptionError(
                f"{name} keeps one draw, which does not tell a spread from a point estimate: "
                "raise --samples or --chains"
            )


def fit_all(
    engines: Mapping[str, Engine[Any]],
    models: Mapping[str, Model],
    split: Split,
    *,
    seed: int,
    progress: bool,
    say: Callable[[str], object],
    saves: Mapping[str, Saves] | None = None,
    only: str | None = None,
    done: Mapping[str, Callable[[], Posterior]] | None = None,
    ended: EndedFits | None = None,
    then: Callable[[str, Posterior], object] | None = None,
) -> tuple[dict[str, Posterior], dict[str, str]]:
    """Run the engines one after another; one that fails does not stop the others.

    A sampler holds point-estimated parameters of its model fixed, at the values of the first
    method of the same model that trained them, and starts at that posterior.

    Args:
        engines: By name of the method.
        models: The model of each; methods of one model share the object.
        split: Its training rows are fitted.
        seed: Seed of every run.
        progress: Whether to show progress bars.
        say: Receives a line when a method is done, or has failed, with the reason.
        saves: Where the run of each is saved, and whether it goes on from there; default nowhere.
        only: The one method that is run; None for all.
        done: For each method that has run elsewhere, a function that returns its posterior, or
            raises the error of that run.
        ended: Keeps each fit as it ends.
        then: Is called with each name and posterior, before the next engine runs.

    Returns:
        The posteriors by name, and why the others have none: one diverged, was refused, took more
        memory than there is, or lost its process.

    Raises:
        BNNError: If the one method failed.
        DivergenceError: If all of several did.
        OtherRunError: If a checkpoint is of another run.
    """
    posteriors: dict[str, Posterior] = {}
    lost: dict[str, str] = {}
    width = max(map(len, engines))

    def fit(name: str) -> Posterior:
        label, engine = f"{name:{width}}  ", engines[name]
        start: dict[str, Any] = {}
        if holds_fixed(engine, models[name]):
            there = [other for other in _trained(name, engines, models) if other in posteriors]
            if not there:
                raise BNNError("no fit of its network is left to take weights from")
            start = {"init": posteriors[there[0]]}
            say(f"{label}starts from {there[0]}, whose point estimates it holds fixed")
        run = partial(engine.run, models[name], split.train, seed=seed, progress=progress, **start)
        posterior = (saves or {}).get(name, Saves()).run(run, say, label)
        if ended is not None:
            ended.keep(name, posterior.save)
        how = ", ".join([type(engine).__name__, *_numbers(engine, len(split.train))])
        say(f"{label}{posterior.wall_time:6.1f} s  ({how})")
        return posterior

    def is_begun(name: str) -> bool:
        save = (saves or {}).get(name, Saves())
        is_free = not holds_fixed(engines[name], models[name])
        return is_free and save.resume and save.place is not None

    names = list(engines) if only is None else [only]
    # a checkpoint of another run is found before others are written beside it
    for name in sorted(names, key=is_begun, reverse=True):
        try:
            posteriors[name] = (done or {}).get(name, partial(fit, name))()
        except OtherRunError:
            raise
        except Exception as error:
            why = why_lost(error)
            if done is None or name not in done:
                how = "diverged" if isinstance(error, DivergenceError) else "failed"
                say(f"{name:{width}}  {how}: {why}")
            if len(engines) == 1:
                raise error if isinstance(error, BNNError) else BNNError(why) from error
            lost[name] = why
            continue
        if then is not None:
            then(name, posteriors[name])
    if not posteriors:
        raise DivergenceError("; ".join(f"{name}: {why}" for name, why in lost.items()))
    in_order = {name: posteriors[name] for name in names if name in posteriors}
    return in_order, lost


def why_lost(error: Exception) -> str:
    """Why there is no fit, or no evaluation of it, in terms of the command's options.

    An error of another package is logged with its traceback.
    """
    if is_exceeded(error):
        return too_large()
    if isinstance(error, BNNError):
        return str(error)
    logger.warning("this error was not foreseen; please report it:", exc_info=error)
    return f"{type(error).__name__}: {' '.join(str(error).split())}"


def convergence(name: str, posterior: Posterior, rows: Split, seed: int) -> list[Verdict]:
    """Verdicts on the convergence of a fit, and on the errors that the checks could have found.

    Args:
        name: The method.
        posterior: Its fit.
        rows: The data.
        seed: Seed of the draws of the function.
    """
    from pyro_bnn.report.verdicts import verdict
    from pyro_bnn.report.verdicts.verdicts import of_run

    try:
        return of_run(name, posterior, rows, seed)
    except BNNError as error:  # draws that exceed the memory: the fit is saved all the same
        text = f"{name}: convergence not judged: {error}"
        return [verdict.Verdict(text, "unchecked")]


def in_batches(
    engines: Mapping[str, Any], models: Mapping[str, Model], rows: Dataset
) -> dict[str, Any]:
    """Engines with a batch size where inputs are many and no option sets one.

    Args:
        engines: By name of the method.
        models: The model of each.
        rows: Training rows.
    """
    if rows.x.numel() <= MANY_NUMBERS:
        return dict(engines)
    return {name: _in_batches(engine, models[name]) for name, engine in engines.items()}


def _in_batches(engine: Any, model: Model) -> Any:
    if takes(engine, "engine"):
        return dataclasses.replace(engine, engine=_in_batches(engine.engine, model))
    takes_all = takes(engine, "batch_size") and not isinstance(engine, SWAG)  # SWAG has a default
    if not takes_all or engine.batch_size is not None:
        return engine
    if takes(engine, "guide"):
        with isolated(0), unchanged(model):
            if engine.guide(model).needs_all_rows:
                return engine
    try:
        return dataclasses.replace(engine, batch_size=ROWS_OF_MANY)
    except OptionError:  # it needs all rows, as an ensemble whose targets are randomised
        return engine


def expected_seconds(engine: Any, num_numbers: int = 0) -> float:
    """A very rough number of seconds of a run: a millisecond a step, or more for large guides.

    Args:
        engine: The engine.
        num_numbers: Parameters of its guide.
    """
    warmup, draws = getattr(engine, "warmup_steps", 0), getattr(engine, "num_samples", 0)
    thin = getattr(engine, "thin", 0)  # of a chain whose warm-up counts steps, not draws
    of_chain = warmup + thin * draws if thin else TYPICAL_STEPS * (warmup + draws)
    a_step = SECONDS_A_STEP + SECONDS_A_NUMBER * num_numbers
    num_steps = getattr(engine, "num_steps", 0) or 0
    if num_steps == AUTO:
        num_steps = LIKELY_STEPS
    return a_step * num_steps + SECONDS_A_STEP * of_chain


def count_numbers(engine: Any, model: Model, data: Dataset) -> int:
    """Number of parameters of an engine's guide on a small network; 0 otherwise."""
    if not takes(engine, "guide"):
        return 0
    with isolated(0), unchanged(model):
        program = Program(model, data.x[:2], data.y[:2])
        if program.num_latents > FEW_WEIGHTS:
            return 0
        guide = engine.guide(model)
        set_up(guide, program)
    return sum(value.numel() for value in guide.parameters())


def holds_fixed(engine: Any, model: Model) -> bool:
    """Whether an engine keeps point-estimated parameters at the values of an earlier fit.

    It starts from that fit, and so has to wait for it.
    """
    module = module_of(model)
    has_any = module is not None and any(p.requires_grad for p in module.parameters())
    return has_any and not takes(engine, "guide")


def _trained(name: str, engines: Mapping[str, Any], models: Mapping[str, Model]) -> list[str]:
    """Methods before the named one that train the parameters of its model."""
    before = list(engines)[: list(engines).index(name)]
    same = [other for other in before if models[other] is models[name]]
    return [other for other in same if takes(engines[other], "guide")]


def _numbers(engine: Any, num_rows: int) -> Iterator[str]:
    for option, (_, words) in OF_ENGINES.items():
        value = getattr(engine, option, None)
        if option == "batch_size" and value is not None:
            value = min(value, num_rows)  # a minibatch has at most all rows
        if value == AUTO:
            yield f"{words} until it has converged"
        elif value is not None:
            yield f"{value:,} {words}"
    estimator = getattr(engine, "estimator", AUTO)
    if estimator not in FOR_ALL:
        yield estimator.replace("_", " ")
