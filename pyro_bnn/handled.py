"""Models under Pyro's handlers, such as ``pyro.condition(model, data)``: the model inside."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeAlias

from pyro.poutine.messenger import Messenger
from pyro.poutine.reparam_messenger import ReparamHandler
from torch import nn

Model: TypeAlias = Callable[..., Any]
"""A Pyro model: a function, a module, or one of them under handlers."""


def unhandled(model: object) -> tuple[object, tuple[Messenger, ...]]:
    """The model inside handlers and ``functools.partial``, and the handlers, the outermost first.

    Args:
        model: Pyro model, such as ``pyro.condition(model, data)`` or
            ``poutine.reparam(model, config)``.
    """
    handlers: list[Messenger] = []
    while not isinstance(model, nn.Module):
        if isinstance(model, ReparamHandler):
            handlers.append(model.msngr)
            model = model.fn
        elif not isinstance(model, functools.partial):
            break
        elif model.args and isinstance(model.args[0], Messenger):  # made by Messenger.__call__
            handlers.append(model.args[0])
            model = model.args[1]
        else:
            model = model.func
    return model, tuple(handlers)


def with_handlers(name: str, model: object) -> str:
    """A model's name followed by the handlers around it: ``MLP under condition``."""
    _, handlers = unhandled(model)
    words = [type(handler).__name__.removesuffix("Messenger").lower() for handler in handlers]
    return " under ".join([name, *reversed(words)])


def model_name(model: object) -> str:
    """The name of a model's function or class, and the handlers around it."""
    inner, _ = unhandled(model)
    return with_handlers(getattr(inner, "__name__", type(inner).__name__), model)


def module_of(model: object) -> nn.Module | None:
    """The module that a model is, or that is inside its handlers; None for a plain function."""
    inner, _ = unhandled(model)
    return inner if isinstance(inner, nn.Module) else None


def parameters_of(model: object) -> dict[str, nn.Parameter]:
    """The parameters of a model's module, by name; empty for a plain function."""
    module = module_of(model)
    return {} if module is None else dict(module.named_parameters())
