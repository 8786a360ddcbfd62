"""Documents that were read from files: of the names and types that they must have, or refused.

The one language for what posteriors, checkpoints, reports and saved fits hold: plain values and
tensors, of which JSON schemas and pydantic know no tensors.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from pyro_bnn.errors import FileFormatError


def require_version(document: Mapping[str, Any], version: int, path: Path) -> None:
    """Check the format version of what was read from a path.

    Raises:
        FileFormatError: If it is another one; says whether a newer package wrote it.
    """
    stated = document.get("version")
    if stated != version:
        is_newer = isinstance(stated, int) and stated > version
        raise FileFormatError(
            f"{path} has format version {stated!r:.50}, this package reads {version}; "
            f"read it with the {'newer ' * is_newer}version that wrote it"
        )


def expect(value: Any, kind: Any, name: str) -> Any:
    """The value itself, once it is known to be of a kind.

    Args:
        value: What was read.
        kind: A type, of which a whole number counts as a ``float`` and a bool as no number;
            a ``range`` or a ``frozenset`` of values; ``[kind]``, a list of such; ``{str: kind}``,
            a dictionary of such; a dictionary of exactly these names with their kinds, where a
            name that ends in ``?`` may be missing, and others may stand beside them if ``...`` is
            one of the names; or a tuple of kinds, any of which will do. ``None`` is a kind too.
        name: Of the value, for the message.

    Raises:
        KeyError: If a name is missing.
        TypeError: If something is of another type.
        ValueError: If there is a name that is not known, or a value out of its range.

    Example:
        >>> expect({"seed": 3, "loss": [2]}, {"seed": int, "loss": [float], "note?": str}, "fit")
        {'seed': 3, 'loss': [2]}
    """
    if isinstance(kind, tuple):
        *others, last = kind
        for other in others:
            with suppress(TypeError):
                return expect(value, other, name)
        return expect(value, last, name)
    if isinstance(kind, range | frozenset):
        one: Any = next(iter(kind))
        if expect(value, type(one), name) not in kind:
            raise ValueError(f"{name} is {value!r:.50}")
    elif isinstance(kind, list):
        for item in expect(value, list, name):
            expect(item, kind[0], name)
    elif isinstance(kind, dict) and str in kind:
        for key, item in expect(value, dict, name).items():
            expect(item, kind[str], expect(key, str, name))
    elif isinstance(kind, dict):
        items = expect(value, dict, name)
        kinds = {key.removesuffix("?"): of for key, of in kind.items() if key is not ...}
        if missing := [key for key in kinds if key in kind and key not in items]:
            raise KeyError(missing[0])
        extra = [f"{key!r:.50}" for key in items if key not in kinds]
        if extra and ... not in kind:
            raise ValueError(f"{name} has {', '.join(extra[:5])}, which is not known")
        for key, of in kinds.items():
            if key in items:
                expect(items[key], of, key)
    elif (
        value is not None
        if kind is None
        else type(value) not in (kind, int if kind is float else kind)
    ):
        raise TypeError(
            f"{name} is a {type(value).__name__}, not a {getattr(kind, '__name__', kind)}"
        )
    return value
