"""Options that are written after the name of a method: ``auto-low-rank:rank=5``."""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import sys
from collections.abc import Iterator, Mapping
from types import NoneType, SimpleNamespace, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from pyro_bnn.errors import OptionError, UnknownNameError
from pyro_bnn.guides import Guide
from pyro_bnn.infer import SVI

WRITTEN = {int: "a whole number", float: "a number", bool: "true or false", str: "a word"}
"""Types of the values that a command line can hold, and none."""
_WORDS: Mapping[str, tuple[Any, ...]] = {"true": (True,), "false": (False,), "none": (None,)}
_OBJECTS = {"default"}  # named by a class, though their types have words


def read_options(cls: type[Any], text: str) -> dict[str, Any]:
    """The options of a method from ``NAME=VALUE:NAME=VALUE``.

    Args:
        cls: A guide, whose SVI's options count too, or an engine.
        text: Numbers, ``true``, ``false``, ``none`` and words.

    Raises:
        OptionError: If an option is written twice, or its value is of another type.
        UnknownNameError: If an option is not known; suggests the nearest.

    Example:
        >>> from pyro_bnn.infer import NUTS
        >>> read_options(NUTS, "target_accept=0.95:max_tree_depth=8")
        {'target_accept': 0.95, 'max_tree_depth': 8}
    """
    known = written_options(cls)
    options: dict[str, Any] = {}
    for part in text.split(":"):
        name, equals, value = (piece.strip() for piece in part.partition("="))
        if not equals:
            raise OptionError(f"options of a method are NAME=VALUE, such as rank=5, not {part!r}")
        name = name.replace("-", "_")
        if name not in known:
            raise UnknownNameError(f"option of {cls.__name__}", name, known)
        if name in options:
            raise OptionError(f"the option {name} of {cls.__name__} is written twice")
        options[name] = _read(name, value, known[name])
    return options


def written_options(cls: type[Any]) -> dict[str, Any]:
    """Types of the options of a method that can be written, by name.

    Those that take objects, such as an optimiser or another engine, are left out.
    """
    owners: list[type[Any]] = [cls, SVI] if issubclass(cls, Guide) else [cls]
    types = {name: of for owner in owners for name, of in _types(owner)}
    return {
        name: of
        for name, of in types.items()
        if name not in _OBJECTS and {*_kinds(of)} - {NoneType}
    }


def own_options(cls: type[Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """Those of the options of a method that are of its class itself, not of the SVI of a guide."""
    names = {name for name, _ in _types(cls)}
    return {name: value for name, value in options.items() if name in names}


def _types(cls: type[Any]) -> list[tuple[str, Any]]:
    """Names and types of the parameters of a class, None where the type's names are not there."""
    parameters, types = inspect.signature(cls).parameters, dict[str, Any]()
    for base in reversed(cls.__mro__):
        holder = base if dataclasses.is_dataclass(cls) else vars(base).get("__init__", object)
        for name, of in inspect.get_annotations(holder).items():
            alone: Any = SimpleNamespace(__annotations__={name: of})
            if name in parameters:
                with contextlib.suppress(NameError):  # imported for type checkers alone: an object
                    types[name] = get_type_hints(alone, vars(sys.modules[base.__module__]))[name]
    return [(name, types.get(name)) for name in parameters]


def _kinds(of: Any) -> list[Any]:
    """The types and literals of a type that a command line can hold."""
    if get_origin(of) in (Union, UnionType):
        return [kind for part in get_args(of) for kind in _kinds(part)]
    if get_origin(of) is Literal:
        return list(get_args(of))
    return [of] if of in WRITTEN or of is NoneType else []


def _read(name: str, text: str, of: Any) -> Any:
    """The value of an option of a type; a word in kebab case too, as of the command's options."""
    kinds = _kinds(of)
    values: list[Any] = [*_numbers(text), *_WORDS.get(text, ()), text, text.replace("-", "_")]
    for value in values:
        if any(type(value) is kind or (value, type(value)) == (kind, type(kind)) for kind in kinds):
            return value
    allowed = ["none" if kind is NoneType else WRITTEN.get(kind, str(kind)) for kind in kinds]
    raise OptionError(f"{name} is {' or '.join(allowed)}, not {text!r}")


def _numbers(text: str) -> Iterator[int | float]:
    for number in (int, float):
        with contextlib.suppress(ValueError):
            yield number(text)
