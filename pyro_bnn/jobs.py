"""What the command line runs: names and numbers become engines, and engines posteriors."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from pyro_bnn.data import Dataset, Split
from pyro_bnn.effects import Model, isolated
from pyro_bnn.errors import DivergenceError, OptionError, UnknownNameError
from pyro_bnn.guides import Guide
from pyro_bnn.handled import module_of
from pyro_bnn.infer import SVI
from pyro_bnn.infer.engine import unchanged
from pyro_bnn.infer.estimators import ESTIMATORS, WEIGHT_SAMPLING, serves
from pyro_bnn.infer.hamiltonian import TYPICAL_STEPS
from pyro_bnn.posterior import Posterior
from pyro_bnn.program import Program
from pyro_bnn.registry import entries, kebab_case, lookup
from pyro_bnn.resuming import Saves

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


@dataclasses.dataclass(frozen=True)
class Method:
    """A guide or a sampler, on a network with a prior of its own if it names one.

    Args:
        cls: The guide or engine.
        prior: Class of its prior in ``pyro_bnn.priors``; None for that of the command.

    Example:
        >>> find_methods("nuts@half-cauchy-scale")
        {'NUTS @ HalfCauchyScale': Method(cls=<class 'pyro_bnn.infer.nuts.NUTS'>, \
prior='HalfCauchyScale')}
    """

    cls: type[Any]
    prior: str | None = None

    @property
    def name(self) -> str:
        """What a report calls it."""
        return self.cls.__name__ if self.prior is None else f"{self.cls.__name__} @ {self.prior}"


def known_methods() -> list[str]:
    """Names of all methods: guides, and engines that need none."""
    return sorted([*entries("guide"), *(name for name in entries("engine") if _is_method(name))])


def find_method(name: str) -> type[Any]:
    """The guide or sampler of a kebab-case or exact class name, or an unambiguous abbreviation.

    Raises:
        UnknownNameError: If there is none; suggests the nearest.

    Example:
        >>> find_method("auto-low-rank").__name__
        'AutoLowRankMultivariateNormal'
    """
    for kind in ("guide", "engine"):
        try:
            found: type[Any] = lookup(kind, name)
        except UnknownNameError:
            continue
        if kebab_case(found.__name__) in known_methods():
            return found
    raise UnknownNameError("method", name, known_methods())


def find_methods(names: str) -> dict[str, Method]:
    """The methods of a list separated by commas, by the name of a report, in the order given.

    Args:
        names: Each ``METHOD``, or ``METHOD@PRIOR`` for a network with that prior.

    Raises:
        UnknownNameError: If a name is not known; suggests the nearest.
        OptionError: If there is no name, or a method is named twice.

    Example:
        >>> list(find_methods("auto-normal, AutoDelta"))
        ['AutoNormal', 'AutoDelta']
    """
    methods: dict[str, Method] = {}
    expected = "methods are names separated by commas, such as auto-normal,nuts"
    for part in comma_parts(names, expected):
        method = _with_prior(part)
        if method.name in methods:
            raise OptionError(f"{method.name} is named twice in the methods {names!r}")
        methods[method.name] = method
    return methods


def find_one(name: str) -> dict[str, Method]:
    """The one method of a name as :func:`find_methods` takes it.

    Raises:
        UnknownNameError: If the name is not known; suggests the nearest.
        OptionError: If there are several names.
    """
    found = find_methods(name)
    if len(found) > 1:
        raise OptionError(
            f"one method is fitted, not {', '.join(found)}: choose one, or run 'pyro-bnn compare'"
        )
    return found


def find_reference(name: str | None, methods: Mapping[str, Method]) -> str | None:
    """Name of the method that the others are measured against.

    Args:
        name: Its name as :func:`find_methods` takes it; None for NUTS where it is one of several.
        methods: The methods of the comparison.

    Raises:
        UnknownNameError: If the name is not known; suggests the nearest.
        OptionError: If it is not among the methods.
    """
    if name is None:
        return "NUTS" if "NUTS" in methods and len(methods) > 1 else None
    reference = _with_prior(name).name
    if reference not in methods:
        raise OptionError(
            f"the reference {reference} is not among the methods {', '.join(methods)}: "
            "add it to them, or choose one of them"
        )
    return reference


def _with_prior(text: str) -> Method:
    name, at, prior = (part.strip() for part in text.partition("@"))
    if at and not prior:
        raise OptionError(f"a prior follows the @, as in nuts@half-cauchy-scale, not {text!r}")
    return Method(find_method(name), lookup("prior", prior).__name__ if at else None)


def make_engines(
    methods: Mapping[str, Method],
    options: Mapping[str, int | None],
    estimator: str | None = None,
) -> dict[str, Any]:
    """The engine of each method, a guide's being SVI, with the options that it has.

    Args:
        methods: Guides and samplers by name.
        options: Values of ``OPTION_WORDS``; each engine takes those it knows.
        estimator: Estimator of SVI, of the guides that it serves; None for SVI's own.

    Raises:
        OptionError: If a value is out of its range, or the estimator serves no method.
        UnknownNameError: If there is no such estimator; suggests the nearest.
    """
    estimator = None if estimator is None else estimator.replace("-", "_")
    served = [
        name
        for name, method in methods.items()
        if estimator is not None and issubclass(method.cls, Guide) and serves(estimator, method.cls)
    ]
    if estimator is not None and not served:
        raise OptionError(
            f"--estimator {estimator} does nothing for {', '.join(methods)}: it takes "
            f"{'guides' if estimator == WEIGHT_SAMPLING else 'independent Gaussian weights'}, such "
            "as auto-normal; leave it out, or name that"
        )
    engines: dict[str, Any] = {}
    for name, method in methods.items():
        guide = {"guide": method.cls} if issubclass(method.cls, Guide) else {}
        engine: Any = SVI if guide else method.cls
        taken = {option: value for option, value in options.items() if takes(engine, option)}
        how = {"estimator": estimator} if name in served else {}
        engines[name] = engine(**guide, **taken, **how)
    return engines


def takes(engine: Any, option: str) -> bool:
    """Whether an engine, or a class of engines, has an option."""
    return any(field.name == option for field in dataclasses.fields(engine))


def _is_method(engine: str) -> bool:
    return not takes(entries("engine")[engine], "guide")


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


def comma_parts(text: str, expected: str) -> Sequence[str]:
    """The parts of a list separated by commas.

    Raises:
        OptionError: If there is none, or one is empty.
    """
    parts = [part.strip() for part in text.split(",")]
    if not all(parts):
        raise OptionError(expected if repr(text) in expected else f"{expected}, not {text!r}")
    return parts
