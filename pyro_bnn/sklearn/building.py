"""From the parameters of an estimator, names or objects, to an engine and a network."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Mapping, Sequence
from typing import Any, cast

from torch import nn

from pyro_bnn.errors import OptionError
from pyro_bnn.guides import Guide
from pyro_bnn.infer import SVI
from pyro_bnn.infer.engine import Engine
from pyro_bnn.likelihoods import Likelihood
from pyro_bnn.program.handlers import Model
from pyro_bnn.program.random_state import isolated
from pyro_bnn.registry import KINDS, find, known_methods, lookup


def make_engine(method: Any, options: Mapping[str, Any]) -> Engine[Any]:
    """The engine of a method, with those options that are not None.

    Args:
        method: Name of a guide or an engine, a guide class, or an engine.
        options: By name.

    Raises:
        OptionError: If the method is none of these, needs more than a name, or has no such option.
        UnknownNameError: If there is no method of this name; suggests the nearest.
    """
    given = {name: value for name, value in options.items() if value is not None}
    cls: Any = find("method", method, known_methods()) if isinstance(method, str) else method
    if isinstance(cls, type) and issubclass(cls, Guide):
        given, cls = {"guide": cls, **given}, SVI
    if not isinstance(cls, Engine) and not (isinstance(cls, type) and issubclass(cls, Engine)):
        raise OptionError(
            "method is a name such as 'auto-normal' or 'nuts', a guide class, or an engine such as "
            f"pyro_bnn.NUTS(num_chains=2), not {method!r}"
        )
    kind: Any = cls
    fields = {field.name: field for field in dataclasses.fields(kind)}
    name = cls.__name__ if isinstance(cls, type) else type(cls).__name__
    for option in given:
        if option not in fields:
            raise OptionError(
                f"{option} would have no effect, as {name} has the options {', '.join(fields)}: "
                "leave it at None"
            )
    if not isinstance(cls, type):
        return cast("Engine[Any]", dataclasses.replace(kind, **given))
    for option, field in fields.items():
        if field.default is dataclasses.MISSING and option not in given:
            raise OptionError(f"{name} needs {option}: pass the engine, as in {name}({option}=...)")
    return cast("Engine[Any]", kind(**given))


def make_model(
    engine: Engine[Any],
    num_inputs: int,
    num_outputs: int,
    *,
    model: str | None,
    hidden: int | Sequence[int],
    activation: Any,
    prior: Any,
    likelihood: Likelihood | None,
    seed: int,
) -> Model:
    """The network of an estimator, in float64; the caller's random state stays.

    Args:
        engine: By which it is fitted; a guide may need a model of its own.
        num_inputs: Number of inputs I.
        num_outputs: Number of targets O.
        model: Name of a class in ``pyro_bnn.models``; None for the one that the guide needs, or a
            multilayer perceptron.
        hidden: Units of each hidden layer; a number is one layer.
        activation: As the model takes it.
        prior: Name of a prior, a prior, or a mapping from patterns of names; None for the model's.
        likelihood: Distribution of y given f; None for the model's own.
        seed: Seed of initial weights, where the model has any.

    Raises:
        OptionError: If a size is not allowed, the model takes no rows of numbers, or a name does
            not say enough of a prior.
        UnknownNameError: If a name is not known; suggests the nearest.
    """
    needed = getattr(getattr(engine, "guide", None), "needs_model", None)
    cls = lookup("model", model or needed or "MLP")
    options = inspect.signature(cls).parameters
    if "image_shape" in options or "num_inputs" not in options:
        raise OptionError(
            f"{cls.__name__} takes no rows of numbers: an estimator has a model such as mlp or "
            "linear-regression; fit this one by an engine, as in SVI(guide).run(model, data)"
        )
    if isinstance(prior, str):
        if cls.__name__.startswith("Rank1"):
            raise OptionError(
                f"the factors of {cls.__name__} are around 1, which the name {prior!r} does not "
                "say: pass the prior, as in pyro_bnn.priors.Normal(loc=1.0, scale=0.1)"
            )
        prior = made("prior", prior)
    layers = {
        "hidden": (hidden,) if isinstance(hidden, int) else tuple(hidden),
        "activation": activation,
    }
    with isolated(seed):
        network: nn.Module = cls(
            num_inputs,
            num_outputs,
            **{name: value for name, value in layers.items() if name in options},
            prior=prior,
            likelihood=likelihood,
        )
    return cast(Model, network.double())


def make_likelihood(likelihood: Any, num_classes: int | None = None) -> Likelihood:
    """The likelihood of a name with its defaults, or a likelihood as it is.

    Raises:
        OptionError: If it is neither, or the name does not say enough.
        UnknownNameError: If the name is not known; suggests the nearest.
    """
    if isinstance(likelihood, str):
        return cast(Likelihood, made("likelihood", likelihood, num_classes=num_classes))
    if not isinstance(likelihood, Likelihood):
        raise OptionError(
            "likelihood is a name such as 'student-t', or an object such as "
            f"pyro_bnn.likelihoods.StudentT(), not {likelihood!r}"
        )
    return likelihood


def made(kind: str, name: str, **given: Any) -> Any:
    """An object of a registered class with its defaults, and those arguments that it takes."""
    cls = lookup(kind, name)
    parameters = inspect.signature(cls).parameters
    known = {name: value for name, value in given.items() if name in parameters}
    missing = [
        parameter.name
        for parameter in parameters.values()
        if parameter.default is parameter.empty
        and parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
        and parameter.name not in known
    ]
    if missing:
        raise OptionError(
            f"the {kind} {cls.__name__} needs {' and '.join(missing)}: pass an object, as in "
            f"pyro_bnn.{KINDS[kind]}.{cls.__name__}({missing[0]}=...)"
        )
    return cls(**known)
