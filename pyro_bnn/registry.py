"""Names of everything the library has, as the command line and the documentation use them.

The registry reads the exports of the packages: a class that is exported is registered.
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import re
from collections.abc import Mapping
from typing import Any

from pyro_bnn.errors import OptionError, UnknownNameError

KINDS: Mapping[str, str] = {
    "guide": "guides",
    "engine": "infer",
    "prior": "priors",
    "likelihood": "likelihoods",
    "model": "models",
}
"""The package that exports each kind; it is imported when its classes are asked for."""

NOT_ENTRIES = {
    "BayesianModule",
    "DropoutModule",
    "Guide",
    "HierarchicalPrior",
    "Hierarchy",
    "Likelihood",
    "Prior",
    "PriorModule",
}


def kebab_case(name: str) -> str:
    """A class name as the command line writes it.

    Example:
        >>> kebab_case("AutoLowRankMultivariateNormal"), kebab_case("SVI"), kebab_case("MLP")
        ('auto-low-rank-multivariate-normal', 'svi', 'mlp')
    """
    spaced = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "-", name)
    return spaced.lower()


def entries(kind: str) -> dict[str, Any]:
    """Classes of one kind by kebab-case name.

    Args:
        kind: ``"guide"``, ``"engine"``, ``"prior"``, ``"likelihood"`` or ``"model"``.

    Raises:
        UnknownNameError: If there is no such kind.
    """
    if kind not in KINDS:
        raise UnknownNameError("kind", kind, KINDS)
    module = importlib.import_module(f"pyro_bnn.{KINDS[kind]}")
    exported = {name: getattr(module, name) for name in module.__all__}
    return {
        kebab_case(name): value
        for name, value in sorted(exported.items())
        if isinstance(value, type) and name not in NOT_ENTRIES
    }


def known_methods() -> dict[str, Any]:
    """All methods by name: guides, which SVI fits, and the engines that need none.

    Example:
        >>> "auto-normal" in known_methods(), "nuts" in known_methods(), "svi" in known_methods()
        (True, True, False)
    """
    engines = {
        name: cls
        for name, cls in entries("engine").items()
        if all(field.name != "guide" for field in dataclasses.fields(cls))
    }
    return dict(sorted((entries("guide") | engines).items()))


def lookup(kind: str, name: str) -> Any:
    """The class of one kind with a kebab-case or exact class name, or an unambiguous prefix.

    Raises:
        UnknownNameError: If there is none; suggests the nearest.
    """
    return find(kind, name, entries(kind))


def find(kind: str, name: str, known: Mapping[str, Any]) -> Any:
    """What is known by a name in kebab case; see :func:`lookup`.

    Raises:
        UnknownNameError: If there is none; suggests the nearest.
    """
    for candidate in (name, kebab_case(name)):
        if candidate in known:
            return known[candidate]
    starting = [key for key in known if key.startswith(f"{name}-")]
    if len(starting) == 1:
        return known[starting[0]]
    raise UnknownNameError(kind, name, known)


def made(kind: str, name: str, **given: Any) -> Any:
    """An object of a registered class with its defaults, and those arguments that it takes.

    Raises:
        OptionError: If it needs arguments beyond those given.
        UnknownNameError: If the name is not known; suggests the nearest.
    """
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
            f"the {kind} {cls.__name__} needs {' and '.join(missing)}, which its name does not "
            "set: take another, or in Python pass an object, as in "
            f"pyro_bnn.{KINDS[kind]}.{cls.__name__}({missing[0]}=...)"
        )
    return cls(**known)
