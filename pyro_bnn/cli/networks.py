"""Models of the command line: from names and a data set to a network, and its description."""

from __future__ import annotations

import math
import tempfile
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, cast

import torch
import typer

from pyro_bnn.cli.methods import NamedMethod, comma_parts, takes
from pyro_bnn.cli.options import DataOptions, NetworkOptions
from pyro_bnn.cli.terminal import WIDTH, given
from pyro_bnn.data import Split, load
from pyro_bnn.data.on_disk import is_large_table
from pyro_bnn.data.split import holds_counts
from pyro_bnn.errors import OptionError, UnknownNameError
from pyro_bnn.likelihoods import Poisson
from pyro_bnn.models.description import describe as describe_model
from pyro_bnn.models.network import ACTIVATIONS
from pyro_bnn.program.device import on_device
from pyro_bnn.program.distributions import kind_of_target
from pyro_bnn.program.handlers import Model
from pyro_bnn.program.random_state import isolated
from pyro_bnn.registry import entries, lookup, made

DEFAULT_MODEL, DEFAULT_OF_IMAGES = "MLP", "LeNet"
LAYER_OPTIONS = ("hidden", "activation", "depth", "width")
"""Options of the classes of models that the command line sets, where a class has them."""
FACTORS = {"loc": 1.0, "scale": 0.1}
FACTOR_PRIORS: Mapping[str, Mapping[str, float]] = {
    **dict.fromkeys(("Cauchy", "HalfCauchyScale", "Horseshoe", "Laplace", "StudentT"), FACTORS),
    "LogNormal": {"scale": 0.1},
    "ScaleMixture": {"loc": 1.0, "scale1": 0.1, "scale2": 0.01},
}
"""Arguments of priors over the factors of a rank-1 network, which are around 1 (not 0)."""


@dataclass(frozen=True, kw_only=True)
class NetworkSpec:
    """Everything that a model of the command line is made from, in names and numbers.

    Args:
        model: Class in ``pyro_bnn.models``.
        num_inputs: Number of inputs I.
        num_outputs: Number of targets O.
        num_classes: Number of classes C; None for regression.
        hidden: Units of each hidden layer.
        activation: Name of the activation.
        prior: Class in ``pyro_bnn.priors``, with its defaults; None for the model's own prior.
        likelihood: Class in ``pyro_bnn.likelihoods``.
        seed: Seed of initial weights, if the model has any.
        image_shape: Channels, height and width, if the model takes images.
        depth: Number of layers; None for the model's default.
        width: Filters of the first layers; None for the model's default.
    """

    model: str
    num_inputs: int
    num_outputs: int
    num_classes: int | None
    hidden: tuple[int, ...]
    activation: str
    prior: str | None
    likelihood: str
    seed: int
    image_shape: tuple[int, ...] | None = None
    depth: int | None = None
    width: int | None = None

    def build(self) -> Model:
        """The model; the same for the same values, and the caller's random state stays.

        Raises:
            UnknownNameError: If a class is not known.
            OptionError: If a size is not allowed, or a class needs arguments.
        """
        cls = lookup("model", self.model)
        default = getattr(cls, "default_likelihood", None)
        likelihood = None  # the model's own
        if default is None or type(default).__name__ != self.likelihood:
            likelihood = made("likelihood", self.likelihood, num_classes=self.num_classes or 2)
        prior = None
        if self.prior is not None:
            factors = FACTOR_PRIORS.get(self.prior, {}) if cls.__name__.startswith("Rank1") else {}
            prior = made("prior", self.prior, **factors)
        with isolated(self.seed):
            layers = {name: getattr(self, name) for name in LAYER_OPTIONS if takes(cls, name)}
            model = cls(
                self.num_inputs if self.image_shape is None else self.image_shape,
                self.num_outputs,
                **{name: value for name, value in layers.items() if value is not None},
                prior=prior,
                likelihood=likelihood,
            )
        return cast(Model, model)


def load_rows(source: DataOptions, likelihood: str | None) -> Split:
    """The rows that a command names; a likelihood of counts makes the target one of counts.

    Raises:
        UnknownNameError: If there is no such data set or likelihood; suggests the nearest.
        DataError, OptionError, ShapeError: As :func:`pyro_bnn.data.load`.
    """
    task = source.task
    if task is None and likelihood is not None and lookup("likelihood", likelihood) is Poisson:
        task = "counts"
    rows = load(source.data, target=source.target, task=task, split=source.split)
    _say_if_on_disk(rows)
    return rows if source.max_rows is None else rows.first(source.max_rows)


def _say_if_on_disk(rows: Split) -> None:
    shape = (len(rows.train) + len(rows.test), *rows.train.x.shape[1:])
    if rows.columns is not None and is_large_table(shape):
        typer.echo(
            f"The inputs of {rows.name}, {shape[0]:,} rows, lie on the disk in "
            f"{tempfile.gettempdir()} until this command ends; TMPDIR names another folder",
            err=True,
        )


def check_layers(context: typer.Context, models: Mapping[str, Model]) -> None:
    """Refuse options of layers that no model of the command has; names models that have them.

    Raises:
        OptionError: If there is one.
    """
    classes = dict.fromkeys(type(model) for model in models.values())
    for name in LAYER_OPTIONS:
        if given(context, name) and not any(takes(cls, name) for cls in classes):
            others = [kebab for kebab, cls in entries("model").items() if takes(cls, name)]
            raise OptionError(
                f"--{name} does nothing for {', '.join(cls.__name__ for cls in classes)}: "
                f"leave it out, or take the model {', '.join(others[:-1])} or {others[-1]}"
            )


def make_networks(
    methods: Mapping[str, NamedMethod], split: Split, options: NetworkOptions, seed: int = 0
) -> dict[str, NetworkSpec]:
    """The network of each method, with the likelihood of the task.

    Regression gets Gaussian noise of learned scale, two classes Bernoulli, more Categorical.

    Args:
        methods: By name; each may bring a prior or need a model.
        split: The data.
        options: The user's options of the network.
        seed: Seed of initial weights.

    Raises:
        OptionError: If a size is no positive integer, the likelihood does not fit the task, a
            method needs another model, or two methods are the same on the same network.
        UnknownNameError: If a name is not known; suggests the nearest.
        ShapeError: If an input is not one row of numbers.
    """
    x, y = split.train.x, split.train.y
    if options.activation not in ACTIVATIONS:
        raise UnknownNameError("activation", options.activation, ACTIVATIONS)
    num_outputs = y.shape[1] if y.ndim == 2 else 1
    networks: dict[str, NetworkSpec] = {}
    for name, method in methods.items():
        default = DEFAULT_OF_IMAGES if x.ndim == 4 else DEFAULT_MODEL
        model = _model_name(method, options.model, default)
        cls = lookup("model", model)
        network = NetworkSpec(
            model=model,
            num_inputs=math.prod(x.shape[1:]),
            num_outputs=num_outputs,
            num_classes=split.train.num_classes,
            hidden=layer_units(options.hidden) if takes(cls, "hidden") else (),
            activation=options.activation if takes(cls, "activation") else "identity",
            prior=_prior_name(method.prior or options.prior),
            likelihood=_likelihood_name(options.likelihood, split, num_outputs),
            seed=seed,
            image_shape=_image_shape(split, cls),
            depth=options.depth if takes(cls, "depth") else None,
            width=options.width if takes(cls, "width") else None,
        )
        for other, known in networks.items():
            if methods[other].fit == method.fit and known == network:
                raise OptionError(f"{other} and {name} are the same fit of the same network")
        networks[name] = network
    return networks


def build_models(networks: Mapping[str, NetworkSpec], device: str = "cpu") -> dict[str, Model]:
    """The models of networks by name, on a device; equal networks share ONE model object.

    Raises:
        OptionError: As :meth:`NetworkSpec.build`, or if there is no such device.
    """
    different = dict.fromkeys(networks.values())
    built = {network: on_device(network.build(), device) for network in different}
    return {name: built[network] for name, network in networks.items()}


def _image_shape(split: Split, model: Any) -> tuple[int, ...] | None:
    """Channels, height and width for a model of images; None for one of rows.

    Raises:
        OptionError: If the inputs are images and the model takes rows, or the other way round.
    """
    shape = tuple(split.train.x.shape)
    if not takes(model, "image_shape"):
        if len(shape) != 2:
            raise OptionError(
                f"{split.name}: inputs have shape {list(shape)}, but the network takes one row of "
                "numbers each, [N, I]; flatten them, or take a model of images such as le-net"
            )
        return None
    if len(shape) == 4:
        return shape[1:]
    side = math.isqrt(math.prod(shape[1:]))
    if len(shape) != 2 or side * side != shape[1]:
        raise OptionError(
            f"{split.name}: inputs have shape {list(shape)}, but {model.__name__} takes images "
            "[N, C, H, W], or [N, H * H] for square ones of one channel: take a model of rows, "
            "such as mlp"
        )
    return 1, side, side


def layer_units(hidden: str) -> tuple[int, ...]:
    """Units of the hidden layers from numbers separated by commas.

    Raises:
        OptionError: If it holds anything but positive integers.
    """
    example = f"hidden layers are positive integers such as 50 or 50,50, not {hidden!r}"
    sizes = comma_parts(hidden, example)
    if not all(size.isascii() and size.isdigit() and int(size) > 0 for size in sizes):
        raise OptionError(example)
    return tuple(int(size) for size in sizes)


def describe(
    split: Split, models: Mapping[str, Model], options: NetworkOptions, *, all_rows: bool = False
) -> Iterator[str]:
    """Lines on the rows, the task, the likelihood and where it comes from, and the models.

    Args:
        split: The data.
        models: By name of the method; where there are several, each line names its methods.
        options: The user's options of the network.
        all_rows: Whether the fit is to all rows, so that none is held out.
    """
    data = split.train
    held_out = "no" if all_rows else f"{len(split.test):,}"
    rows = f"{len(data):,} training and {held_out} held-out rows, {_inputs(data.x)}"
    yield f"Data:  {split.name}, {'all rows' if all_rows else f'split {split.index}'}: {rows}"
    target = "" if data.target_name is None else f" of {data.target_name!r}"
    classes = "" if data.num_classes is None else f", {data.num_classes} classes"
    of_counts = " as counts, which stay as they are; inputs" if holds_counts(split) else ";"
    yield f"Task:  {split.task}{target}{classes}{of_counts} standardised by the training rows"
    likelihood = options.likelihood or _task_likelihood(split)
    chosen = "" if options.likelihood else ", chosen from the task; --likelihood takes another"
    yield f"Noise: likelihood {lookup('likelihood', likelihood).__name__}{chosen}"
    shared: dict[int, list[str]] = {}
    for name, model in models.items():
        shared.setdefault(id(model), []).append(name)
    for names in shared.values():
        who = f" ({', '.join(names)})" if len(shared) > 1 else ""
        line = f"Model: {describe_model(models[names[0]])}{who}"
        yield textwrap.fill(line, WIDTH, subsequent_indent=" " * 7)


def _inputs(x: torch.Tensor) -> str:
    if x.ndim == 2:
        return f"{x.shape[1]} inputs"
    return f"inputs of {' x '.join(map(str, x.shape[1:]))}"


# The parts of a network


def _model_name(method: NamedMethod, asked: str | None, default: str) -> str:
    needed = getattr(method.cls, "needs_model", None)
    model = lookup("model", asked or needed or default).__name__
    fitting = (needed, *getattr(method.cls, "suits_models", ()))
    if needed is not None and model not in fitting:
        raise OptionError(
            f"{method.cls.__name__} needs the model {' or '.join(fitting)}, not {model}: leave "
            "--model out"
        )
    return str(model)


def _prior_name(asked: str | None) -> str | None:
    """Class of the prior; None for Normal, the default, so that equal networks compare equal."""
    prior = None if asked is None else str(lookup("prior", asked).__name__)
    return None if prior == "Normal" else prior


def _task_likelihood(split: Split) -> str:
    if split.task == "regression":
        return "Poisson" if holds_counts(split) else "Normal"
    return "Categorical" if (split.train.num_classes or 2) > 2 else "Bernoulli"


def _likelihood_name(asked: str | None, split: Split, num_outputs: int) -> str:
    chosen = _task_likelihood(split)
    if asked is None:
        return chosen
    name = str(lookup("likelihood", asked).__name__)
    num_classes = split.train.num_classes
    described = kind_of_target(made("likelihood", name, num_classes=num_classes or 2), num_outputs)
    target = "counts" if holds_counts(split) else "numbers"
    target = target if num_classes is None else f"{num_classes} classes"
    if described != target:
        or_counts = ", or say --task counts" if (described, target) == ("counts", "numbers") else ""
        raise OptionError(
            f"the likelihood {name} describes {described}, but the target holds {target}: "
            f"leave --likelihood out for {chosen}{or_counts}"
        )
    return name
