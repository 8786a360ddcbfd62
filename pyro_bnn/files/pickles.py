"""Pickles that are looked through before they are read: they make tensors and plain values only."""

from __future__ import annotations

import pickletools
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeAlias

from pyro_bnn.errors import FileFormatError
from pyro_bnn.memory import readable

PICKLE_BYTES = 64 << 20
NUM_VALUES = 500_000
NUM_OPERATIONS = 2_000_000  # of which one tensor takes forty
DEPTH = 64

_STORAGES = ("Double", "Float", "Half", "BFloat16", "Long", "Int", "Short", "Char", "Byte", "Bool")
_TENSOR, _HOOKS = "torch._utils _rebuild_tensor_v2", "collections OrderedDict"
_GLOBALS = {_TENSOR, _HOOKS, *(f"torch {name}Storage" for name in _STORAGES)}
_NUMBERS = ("BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT", "NEWTRUE", "NEWFALSE")
_PLAIN = {
    **dict.fromkeys((*_NUMBERS, "NONE", "BINUNICODE"), "value"),
    "EMPTY_TUPLE": "tuple",
    "EMPTY_LIST": "list",
    "EMPTY_DICT": "dict",
}
_COUNTS = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3, "APPEND": 1, "SETITEM": 2}
_Value: TypeAlias = tuple[str, int, int]  # kind, depth, number of values


def check_pickle(path: Path, content: bytes) -> None:
    """Go through the operations of a pickle without doing any, and count what they would make.

    Args:
        path: The file that it is of.
        content: The pickle.

    Raises:
        FileFormatError: If it makes anything but dicts and lists of tensors, numbers, strings and
            None, in bounds; says what.
    """
    if len(content) > PICKLE_BYTES:
        raise FileFormatError(f"{path} has {readable(len(content))} beside its tensors")
    try:
        _walk(content)
    except IndexError as error:
        raise FileFormatError(f"{path} is damaged: its pickle ends too early") from error
    except ValueError as error:
        raise FileFormatError(f"{path} is damaged: {error}") from error


def _walk(content: bytes) -> None:
    """Check each operation; a value on the stack stands as its kind, depth and number of values.

    Lists and dicts are not held twice, so that no value holds itself, and keys are plain values.
    """
    stack: list[_Value] = []
    marks: list[list[_Value]] = []
    memo: dict[int, _Value] = {}
    operations: Iterator[tuple[Any, Any, Any]] = pickletools.genops(content)
    for number, (operation, argument, _) in enumerate(operations):
        name = operation.name
        if name in _PLAIN:
            stack.append((_PLAIN[name], 0, 1))
        elif name == "GLOBAL":
            if argument not in _GLOBALS:
                raise ValueError(f"its pickle names {argument!r}")
            stack.append((argument, 0, 1))
        elif name in ("BINPUT", "LONG_BINPUT"):
            memo[argument] = stack[-1]
        elif name in ("BINGET", "LONG_BINGET"):
            if argument not in memo or memo[argument][0] in ("list", "dict"):
                raise ValueError("its pickle holds a list or a dict twice")
            stack.append(memo[argument])
        elif name == "MARK":
            marks.append(stack)
            stack = []
        elif name in ("TUPLE", "APPENDS", "SETITEMS"):
            items, stack = stack, marks.pop()
            _put(name, stack, items)
        elif name in _COUNTS:
            items = [stack.pop() for _ in range(_COUNTS[name])][::-1]
            _put(name, stack, items)
        elif name in ("BINPERSID", "REDUCE"):
            kind, _, size = stack.pop()
            if kind != "tuple" or (name == "REDUCE" and stack.pop()[0] not in (_TENSOR, _HOOKS)):
                raise ValueError("its pickle calls what is no tensor")
            stack.append(("value", 0, size))
        elif name == "STOP":
            return
        elif name != "PROTO" or argument != 2 or number:
            raise ValueError(f"its pickle has the operation {name}")
        if number > NUM_OPERATIONS:
            raise ValueError(f"its pickle has more than {NUM_OPERATIONS} operations")


def _put(name: str, stack: list[_Value], items: list[_Value]) -> None:
    """Put items into a new tuple, or into the list or dict on top of the stack."""
    own = ("tuple", 0, 1) if name.startswith("TUPLE") else stack.pop()
    expected = {"T": "tuple", "A": "list", "S": "dict"}[name[0]]
    is_dict = expected == "dict"
    if own[0] != expected or (
        is_dict and (len(items) % 2 or any(k[0] != "value" for k in items[::2]))
    ):
        raise ValueError(f"its pickle does {name} to a {own[0]}, or with keys that are not plain")
    depth = max((own[1], *(item[1] + 1 for item in items)))
    size = own[2] + sum(item[2] for item in items)
    if depth > DEPTH or size > NUM_VALUES:
        raise ValueError(f"its pickle is {depth} levels deep and holds {size} values")
    stack.append((own[0], depth, size))
