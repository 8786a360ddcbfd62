"""The arguments of a model that is not one of rows (x, y)."""

from __future__ import annotations

from typing import Any


class Call:
    """Arguments with which any Pyro model is called: ``engine.run(model, Call(y, scale=s))``.

    Args:
        args: The model's arguments.
        kwargs: Its keyword arguments.

    Attributes:
        args: The arguments.
        kwargs: The keyword arguments.

    Example:
        >>> Call(3, weight=0.5)
        Call(3, weight=0.5)
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.args, self.kwargs = args, kwargs

    def __repr__(self) -> str:
        parts = [_short(value) for value in self.args]
        parts += [f"{name}={_short(value)}" for name, value in self.kwargs.items()]
        return f"Call({', '.join(parts)})"


def _short(value: Any) -> str:
    """A tensor by its shape, anything else as it is written."""
    shape = getattr(value, "shape", None)
    return repr(value) if shape is None else f"{type(value).__name__} {list(shape)}"
