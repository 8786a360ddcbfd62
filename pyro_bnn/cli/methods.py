"""Methods by name: a guide or an engine, its options, and the prior that it is given."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import math
from collections.abc import Mapping, Sequence
from typing import Any

from pyro_bnn.cli.method_options import own_options, read_options
from pyro_bnn.errors import OptionError
from pyro_bnn.guides import Guide
from pyro_bnn.infer import SVI
from pyro_bnn.infer.svi.estimators.by_name import ESTIMATORS, FOR_ALL, serves
from pyro_bnn.registry import find, known_methods, lookup

AUTO = "auto"
"""What stands for a reference that is looked for."""


@dataclasses.dataclass(frozen=True)
class NamedMethod:
    """A guide or a sampler, on a network with a prior of its own if it names one.

    Args:
        cls: The guide or engine.
        prior: Class of its prior in ``pyro_bnn.priors``; None for that of the command.
        options: Its own options, and those of SVI for a guide; they go before the command's.

    Example:
        >>> find_methods("nuts:target_accept=0.9@half-cauchy-scale")
        {'NUTS:target_accept=0.9 @ HalfCauchyScale': NamedMethod(cls=<class \
'pyro_bnn.infer.mcmc.nuts.NUTS'>, prior='HalfCauchyScale', options={'target_accept': 0.9})}
    """

    cls: type[Any]
    prior: str | None = None
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def name(self) -> str:
        """What a report calls it, and what a command line may."""
        options = (f"{name}={str(value).lower()}" for name, value in self.options.items())
        called = ":".join([self.cls.__name__, *options])
        return called if self.prior is None else f"{called} @ {self.prior}"

    @property
    def fit(self) -> tuple[type[Any], Mapping[str, Any]]:
        """What it does to a network."""
        return self.cls, self.options


def find_method(name: str) -> type[Any]:
    """The guide or sampler of a kebab-case or exact class name, or an unambiguous abbreviation.

    Raises:
        UnknownNameError: If there is none; suggests the nearest.

    Example:
        >>> find_method("auto-low-rank").__name__
        'AutoLowRankMultivariateNormal'
    """
    method: type[Any] = find("method", name, known_methods())
    return method


def find_methods(names: str) -> dict[str, NamedMethod]:
    """The methods of a list separated by commas, by the name of a report, in the order given.

    Args:
        names: Each ``METHOD``, with options ``METHOD:OPTION=VALUE:OPTION=VALUE``, and with
            ``@PRIOR`` after it for a network with that prior.

    Raises:
        UnknownNameError: If a name is not known; suggests the nearest.
        OptionError: If there is no name, a method is named twice, or an option does not do.

    Example:
        >>> list(find_methods("auto-normal, AutoDelta"))
        ['AutoNormal', 'AutoDelta']
    """
    methods: dict[str, NamedMethod] = {}
    expected = "methods are names separated by commas, such as auto-normal,nuts"
    for part in comma_parts(names, expected):
        method = _with_prior(part)
        if method.name in methods:
            raise OptionError(f"{method.name} is named twice in the methods {names!r}")
        methods[method.name] = method
    return methods


def find_one(name: str) -> dict[str, NamedMethod]:
    """The one method of a name as :func:`find_methods` takes it.

    Raises:
        UnknownNameError: If the name is not known; suggests the nearest.
        OptionError: If there are several names.
    """
    methods = find_methods(name)
    if len(methods) > 1:
        raise OptionError(
            f"one method is fitted, not {', '.join(methods)}: choose one, or run 'pyro-bnn compare'"
        )
    return methods


@dataclasses.dataclass(frozen=True)
class Auto:
    """``--reference auto``: a reference that is looked for; see :func:`pyro_bnn.reference`.

    Args:
        seconds: How long it may take.
    """

    seconds: float = 600.0


def find_reference(name: str | None, methods: Mapping[str, NamedMethod]) -> str | Auto | None:
    """Name of the method that the others are measured against, or how one is to be looked for.

    Args:
        name: Its name as :func:`find_methods` takes it, or ``auto``, or ``auto:seconds=120``; None
            for NUTS where it is one of several.
        methods: The methods of the comparison.

    Raises:
        UnknownNameError: If the name is not known; suggests the nearest.
        OptionError: If it is not among the methods, or the seconds are no positive number.

    Example:
        >>> find_reference("auto:seconds=120", find_methods("auto-normal"))
        Auto(seconds=120.0)
    """
    called, has_options, options = (name or "").partition(":")
    if called.strip().lower() == AUTO:
        return _auto(options.strip()) if has_options else Auto()
    if name is None:
        exact = [n for n, one in methods.items() if one.cls.__name__ == "NUTS" and not one.prior]
        return exact[0] if len(exact) == 1 and len(methods) > 1 else None
    asked = _with_prior(name)
    reference = next((n for n, method in methods.items() if method == asked), None)
    if reference is None:
        raise OptionError(
            f"the reference {asked.name} is not among the methods {', '.join(methods)}: "
            "add it to them, or choose one of them"
        )
    return reference


def _auto(options: str) -> Auto:
    """``auto`` with its one option."""
    option, is_set, value = (part.strip() for part in options.partition("="))
    try:
        seconds = float(value)
    except ValueError:
        seconds = math.nan
    if option != "seconds" or not is_set or not 0 < seconds < math.inf:
        raise OptionError(
            "--reference auto takes a positive number of seconds, as in auto:seconds=120, not "
            f"{options!r}"
        )
    return Auto(seconds)


def _with_prior(text: str) -> NamedMethod:
    called, at, prior = (part.strip() for part in text.partition("@"))
    if at and not prior:
        raise OptionError(f"a prior follows the @, as in nuts@half-cauchy-scale, not {text!r}")
    name, has_options, options = (part.strip() for part in called.partition(":"))
    if "=" in name:
        raise OptionError(
            f"options follow their method and one another after a colon, as in "
            f"nuts:target_accept=0.9:num_samples=500, not {text!r}"
        )
    cls = find_method(name)
    return NamedMethod(
        cls,
        lookup("prior", prior).__name__ if at else None,
        read_options(cls, options) if has_options else {},
    )


def make_engines(
    methods: Mapping[str, NamedMethod],
    options: Mapping[str, int | None],
    estimator: str | None = None,
) -> dict[str, Any]:
    """The engine of each method, a guide's being SVI, with the options that it has.

    Args:
        methods: Guides and samplers by name.
        options: Values of options in ``OF_ENGINES``; each engine takes those it knows, and has
            its own defaults for what is left out.
        estimator: Estimator of SVI, of the guides that it serves; None for SVI's own.

    Raises:
        OptionError: If a value is out of its range, or the estimator serves no method.
        UnknownNameError: If there is no such estimator; suggests the nearest.
    """
    estimator = None if estimator is None else estimator.replace("-", "_")
    served = [
        name
        for name, method in methods.items()
        if estimator is not None
        and "estimator" not in method.options
        and issubclass(method.cls, Guide)
        and serves(estimator, method.cls)
    ]
    if estimator is not None and not served:
        needed = "guides" if estimator in FOR_ALL else ESTIMATORS[estimator].takes
        raise OptionError(
            f"--estimator {estimator} does nothing for {', '.join(methods)}: it takes {needed}; "
            "leave it out, or name such a method"
        )
    engines: dict[str, Any] = {}
    for name, method in methods.items():
        is_guide = issubclass(method.cls, Guide)
        engine: Any = SVI if is_guide else method.cls
        how: dict[str, Any] = {o: value for o, value in options.items() if is_set_by(engine, o)}
        if name in served:
            how["estimator"] = estimator
        if takes(engine, "engine"):  # Cyclical runs another engine, which has the options
            inner = {o: value for o, value in options.items() if is_set_by(engine.inner, o)}
            how["engine"] = engine.inner(**inner)
        how |= method.options
        if is_guide:
            of_guide = own_options(method.cls, method.options)
            how = {option: value for option, value in how.items() if option not in of_guide}
            guide: Any = method.cls
            how["guide"] = functools.partial(guide, **of_guide) if of_guide else guide
        engines[name] = engine(**how)
    return engines


def is_set_by(engine: Any, option: str) -> bool:
    """Whether an option of a command sets that of an engine; the steps of a trajectory are others.

    Args:
        engine: An engine, or a class of engines.
        option: Name of a field, in ``OF_ENGINES``.
    """
    is_length = option == "num_steps" and takes(engine, "warmup_steps")
    return takes(engine, option) and not is_length


def takes(made: Any, option: str) -> bool:
    """Whether an engine or a model, or a class of them, has an option, such as ``"hidden"``."""
    cls = made if isinstance(made, type) else type(made)
    return option in inspect.signature(cls).parameters


def comma_parts(text: str, expected: str) -> Sequence[str]:
    """The parts of a list separated by commas.

    Raises:
        OptionError: If there is none, or one is empty.
    """
    parts = [part.strip() for part in text.split(",")]
    if not all(parts):
        raise OptionError(expected if repr(text) in expected else f"{expected}, not {text!r}")
    return parts
