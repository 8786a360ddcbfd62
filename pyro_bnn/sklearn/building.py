"""From the parameters of an estimator, names or objects, to an engine and a likelihood."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, cast

from pyro_bnn.checks import plain
from pyro_bnn.errors import OptionError
from pyro_bnn.guides import Guide
from pyro_bnn.infer import SVI
from pyro_bnn.infer.engine import Engine
from pyro_bnn.likelihoods import Likelihood
from pyro_bnn.registry import find, known_methods, made


def make_engine(method: Any, options: Mapping[str, Any]) -> Engine[Any]:
    """The engine of a method, with those options that are not None.

    Args:
        method: Name of a guide or an engine, a guide class, or an engine.
        options: By name.

    Raises:
        OptionError: If the method is none of these, needs more than a name, or has no such option.
        UnknownNameError: If there is no method of this name; suggests the nearest.
    """
    is_set = {name: plain(value) for name, value in options.items() if value is not None}
    cls: Any = find("method", method, known_methods()) if isinstance(method, str) else method
    if isinstance(cls, type) and issubclass(cls, Guide):
        is_set, cls = {"guide": cls, **is_set}, SVI
    if not isinstance(cls, Engine) and not (isinstance(cls, type) and issubclass(cls, Engine)):
        raise OptionError(
            "method is a name such as 'auto-normal' or 'nuts', a guide class, or an engine such as "
            f"pyro_bnn.NUTS(num_chains=2), not {method!r}"
        )
    kind: Any = cls
    fields = {field.name: field for field in dataclasses.fields(kind)}
    name = cls.__name__ if isinstance(cls, type) else type(cls).__name__
    for option in is_set:
        if option not in fields:
            raise OptionError(
                f"{option} would have no effect, as {name} has the options {', '.join(fields)}: "
                "leave it at None"
            )
    if not isinstance(cls, type):
        return cast("Engine[Any]", dataclasses.replace(kind, **is_set))
    for option, field in fields.items():
        if field.default is dataclasses.MISSING and option not in is_set:
            raise OptionError(f"{name} needs {option}: pass the engine, as in {name}({option}=...)")
    return cast("Engine[Any]", kind(**is_set))


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
