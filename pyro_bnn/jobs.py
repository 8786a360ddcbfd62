"""What the command line runs: names and numbers become a model, engines, and their posteriors."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

from pyro_bnn.data import Split
from pyro_bnn.effects import Model
from pyro_bnn.errors import DivergenceError, OptionError, ShapeError, UnknownNameError
from pyro_bnn.guides import Guide
from pyro_bnn.infer import SVI
from pyro_bnn.likelihoods import Bernoulli, Categorical, Likelihood, Normal
from pyro_bnn.models import MLP
from pyro_bnn.posterior import Posterior
from pyro_bnn.registry import KINDS, entries, kebab_case, lookup

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

    def run(self, model: Model, data: Any, *, seed: int = 0, progress: bool = True) -> Posterior:
        """Fit or sample the model."""
        ...


# From names to engines


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


def find_methods(names: str) -> dict[str, type[Any]]:
    """The methods of a list of names separated by commas, by class name, in the order given.

    Raises:
        UnknownNameError: If a name is not known; suggests the nearest.
        OptionError: If there is no name, or a method is named twice.

    Example:
        >>> list(find_methods("auto-normal, AutoDelta"))
        ['AutoNormal', 'AutoDelta']
    """
    methods: dict[str, type[Any]] = {}
    for name in _parts(names, "methods are names separated by commas, such as auto-normal,nuts"):
        method = find_method(name)
        if method.__name__ in methods:
            raise OptionError(f"{method.__name__} is named twice in the methods {names!r}")
        methods[method.__name__] = method
    return methods


def find_reference(name: str | None, methods: Mapping[str, type[Any]]) -> str | None:
    """Class name of the method that the others are measured against.

    Args:
        name: Its name as :func:`find_method` takes it; None for NUTS where it is one of several.
        methods: The methods of the comparison.

    Raises:
        UnknownNameError: If the name is not known; suggests the nearest.
        OptionError: If it is not among the methods.
    """
    if name is None:
        return "NUTS" if "NUTS" in methods and len(methods) > 1 else None
    reference = find_method(name).__name__
    if reference not in methods:
        raise OptionError(
            f"the reference {reference} is not among the methods {', '.join(methods)}: "
            "add it to them, or choose one of them"
        )
    return reference


def make_engines(
    methods: Mapping[str, type[Any]], options: Mapping[str, int | None]
) -> dict[str, Any]:
    """The engine of each method, a guide's being SVI, with the options that it has.

    Args:
        methods: Guides and samplers by name.
        options: Values of ``OPTION_WORDS``; each engine takes those it knows.

    Raises:
        OptionError: If a value is out of its range.
    """
    engines: dict[str, Any] = {}
    for name, method in methods.items():
        guide = {"guide": method} if issubclass(method, Guide) else {}
        engine: Any = SVI if guide else method
        taken = {option: value for option, value in options.items() if takes(engine, option)}
        engines[name] = engine(**guide, **taken)
    return engines


def takes(engine: Any, option: str) -> bool:
    """Whether an engine, or a class of engines, has an option."""
    return any(field.name == option for field in dataclasses.fields(engine))


def _is_method(engine: str) -> bool:
    return not takes(entries("engine")[engine], "guide")


# From data to a model


def make_model(split: Split, hidden: str) -> MLP:
    """A multilayer perceptron with fan-in Gaussian prior and the likelihood of the task.

    Args:
        split: Regression gets Gaussian noise of learned scale, two classes Bernoulli, more
            Categorical.
        hidden: Units of the hidden layers, separated by commas.

    Raises:
        OptionError: If ``hidden`` holds anything but positive integers.
        ShapeError: If an input is not one row of numbers.
    """
    x, y = split.train.x, split.train.y
    if x.ndim != 2:
        raise ShapeError(
            f"{split.name}: inputs have shape {list(x.shape)}, but the network takes one row of "
            "numbers each, [N, I]; flatten them"
        )
    example = f"hidden layers are positive integers such as 50 or 50,50, not {hidden!r}"
    sizes = _parts(hidden, example)
    if not all(size.isascii() and size.isdigit() and int(size) > 0 for size in sizes):
        raise OptionError(example)
    likelihood: Likelihood
    if split.task == "regression":
        likelihood = Normal()
    elif (num_classes := split.train.num_classes) is not None and num_classes > 2:
        likelihood = Categorical(num_classes)
    else:
        likelihood = Bernoulli()
    num_outputs = y.shape[1] if y.ndim == 2 else 1
    return MLP(x.shape[1], num_outputs, hidden=[int(size) for size in sizes], likelihood=likelihood)


def describe(split: Split, model: MLP) -> Iterator[str]:
    """Lines on the rows, the task, and a network of :func:`make_model`."""
    data, likelihood = split.train, model.likelihood
    yield (
        f"Data:  {split.name}, split {split.index}: {len(data):,} training and "
        f"{len(split.test):,} held-out rows, {data.x.shape[1]} inputs"
    )
    target = "" if data.target_name is None else f" of {data.target_name!r}"
    classes = "" if data.num_classes is None else f", {data.num_classes} classes"
    yield f"Task:  {split.task}{target}{classes}; standardised by the training rows"
    sizes = [model.num_inputs, *(layer.num_outputs for layer in model.layers)]
    words = "Normal of learned scale" if isinstance(likelihood, Normal) else _name(likelihood)
    yield (
        f"Model: network {'-'.join(map(str, sizes))}, {model.activation.__name__}, fan-in Normal "
        f"prior, likelihood {words}"
    )


# From engines to posteriors


def fit_all(
    engines: Mapping[str, Engine],
    model: Model,
    split: Split,
    *,
    seed: int,
    progress: bool,
    say: Callable[[str], object],
) -> tuple[dict[str, Posterior], list[str]]:
    """Run the engines one after another on one model; one that diverges does not stop the others.

    Args:
        engines: By name of the method.
        model: The one model that all fit.
        split: Its training rows are fitted.
        seed: Seed of every run.
        progress: Whether to show progress bars.
        say: Gets a line when a method is done.

    Returns:
        The posteriors by name, and a line for each method that diverged.

    Raises:
        DivergenceError: If every method diverged.
    """
    posteriors: dict[str, Posterior] = {}
    diverged = []
    width = max(len(name) for name in engines)
    for name, engine in engines.items():
        try:
            posterior = engine.run(model, split.train, seed=seed, progress=progress)
        except DivergenceError as error:
            diverged.append(f"{name}: {error}")
            say(f"{name:{width}}  diverged: {error}")
            continue
        posteriors[name] = posterior
        how = ", ".join([_name(engine), *_numbers(engine)])
        say(f"{name:{width}}  {posterior.wall_time:6.1f} s  ({how})")
    if not posteriors:
        raise DivergenceError("; ".join(diverged))
    return posteriors, diverged


def _numbers(engine: Engine) -> Iterator[str]:
    for option, words in OPTION_WORDS.items():
        value = getattr(engine, option, None)
        if value is not None:
            yield f"{value:,} {words}"


def _name(thing: object) -> str:
    return type(thing).__name__


# What there is


def catalogue() -> dict[str, dict[str, str]]:
    """Everything with a name: kind, then name, then its first sentence."""
    found = {
        f"{kind}s": {name: first_sentence(cls.__doc__ or "") for name, cls in entries(kind).items()}
        for kind in KINDS
    }
    return found | {"data sets": dict(_data_sets())}


def _data_sets() -> Iterator[tuple[str, str]]:
    from pyro_bnn.data.sklearn_sets import SKLEARN_SETS
    from pyro_bnn.data.uci import UCI_SETS

    for name, make in SKLEARN_SETS.items():
        yield name, first_sentence(make.__doc__ or "")
    for name, spec in UCI_SETS.items():
        yield name, f"{spec.target_name} from {spec.num_inputs} inputs."


def first_sentence(docstring: str) -> str:
    r"""The first sentence of a docstring as plain text; formulas and what follows are left out.

    Example:
        >>> first_sentence("Two classes: :math:`y \\sim p`, labels 0 and 1.\n\nMore.")
        'Two classes.'
        >>> first_sentence("One ``rank``, e.g. 2.5. Two.")
        'One rank, e.g. 2.5.'
    """
    text = " ".join(docstring.strip().partition("\n\n")[0].split()).replace("``", "")
    text, formula, _ = text.partition(":math:")
    if formula:
        return f"{text.rstrip(' :,;')}."
    words = text.split(" ")
    for i, word in enumerate(words):
        starts_next = i + 1 < len(words) and words[i + 1][0].isupper()
        if word.endswith(".") and starts_next and word not in ("e.g.", "i.e.", "cf."):
            return " ".join(words[: i + 1])
    return text


def _parts(text: str, expected: str) -> Sequence[str]:
    """The parts of a list separated by commas.

    Raises:
        OptionError: If there is none, or one is empty.
    """
    parts = [part.strip() for part in text.split(",")]
    if not all(parts):
        raise OptionError(expected if repr(text) in expected else f"{expected}, not {text!r}")
    return parts
