"""What a plain model's failure on its arguments is told as: the model, its arguments, the site."""

from __future__ import annotations

import inspect
import linecache
import reprlib
import textwrap
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, cast

import pyro
import torch

from pyro_bnn.errors import BNNError, ModelError
from pyro_bnn.handled import Model, model_name, module_of, unhandled
from pyro_bnn.program.handlers import Starting


@contextmanager
def named_failures(
    model: Model, args: Sequence[Any], kwargs: Mapping[str, Any], starting: Starting
) -> Iterator[None]:
    """Say of a failure of a model which model, arguments and site it is of.

    Args:
        model: Pyro model, which runs inside.
        args: Its arguments.
        kwargs: Its keyword arguments.
        starting: Sees the sites that it samples.

    Raises:
        ModelError: In place of whatever the model raises.
    """
    try:
        yield
    except torch.OutOfMemoryError:
        raise
    except BNNError as error:
        message, _, shapes = str(error).partition("Trace Shapes:")  # which Pyro appends
        if not shapes:
            raise
        raise type(error)(message.strip()) from error.__cause__
    except Exception as error:
        site, line = _where(error)
        place = "before its first site"
        if site or starting.last:
            place = f"at the site {site!r}" if site else f"after the site {starting.last!r}"
        what = str(error).partition("Trace Shapes:")[0]
        what = textwrap.shorten(what, 400, placeholder=" ...") or "no message"
        raise ModelError(
            f"{model_name(model)} raised while it was run on its arguments "
            f"({_shapes(model, args, kwargs)}), {place}: {type(error).__name__}: {what}"
            f"{f'; in the line {line}' if line else ''}"
        ) from error


def _where(error: Exception) -> tuple[str, str]:
    """The site whose sample statement failed, or "", and the last line of the user's own code."""
    site = line = ""
    for frame, number in traceback.walk_tb(error.__traceback__):
        if frame.f_code is pyro.sample.__code__:
            site = frame.f_locals["name"]
        if frame.f_globals["__name__"].partition(".")[0] not in ("torch", "pyro", "pyro_bnn"):
            line = linecache.getline(frame.f_code.co_filename, number).strip()
    return site, line


def _shapes(model: Model, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
    """The arguments with their names and shapes: ``x (5, 2), num_groups 3``."""
    module, inner = module_of(model), cast(Model, unhandled(model)[0])
    named: dict[str, Any] = {}
    try:
        bound = inspect.signature(inner if module is None else module.forward).bind(*args, **kwargs)
    except (TypeError, ValueError):  # not as the model takes them, or not known
        named = {str(place): value for place, value in enumerate(args, 1)} | {**kwargs}
    else:
        for name, value in bound.arguments.items():
            kind = bound.signature.parameters[name].kind
            if kind is inspect.Parameter.VAR_KEYWORD:
                named.update(value)
            elif kind is inspect.Parameter.VAR_POSITIONAL:
                named.update({f"{name}[{place}]": part for place, part in enumerate(value)})
            else:
                named[name] = value
    return ", ".join(f"{name} {_shape(value)}" for name, value in named.items()) or "none"


def _shape(value: Any) -> str:
    if hasattr(value, "shape"):
        return str(tuple(value.shape))
    if isinstance(value, list | tuple | dict | set):
        return f"{type(value).__name__} of {len(value)}"
    return reprlib.repr(value)
