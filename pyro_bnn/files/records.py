"""Nested dataclasses taken apart into a JSON document and arrays, and put together again.

What is read is only of the types that the hints of a dataclass name: its text makes no class that
the reader did not ask for, and dimensions of one letter are alike within a dataclass.
"""

from __future__ import annotations

import types
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any, Literal, TypeVar, Union, cast, get_args, get_origin, get_type_hints

import numpy as np
import torch
from jaxtyping import AbstractArray, jaxtyped

from pyro_bnn.files.schema import expect

T = TypeVar("T")
Arrays = dict[str, np.ndarray]
KINDS = "biuf"  # of arrays


def taken_apart(value: Any, name: str, arrays: Arrays) -> Any:
    """What JSON can hold of a value.

    Args:
        value: Dataclasses, mappings, lists and tuples of numbers, texts, None, arrays and tensors.
        name: Of the value.
        arrays: Gets the arrays in it, by their names. An empty one is told by its dtype and shape,
            as NetCDF takes it for one that grows.
    """
    if isinstance(value, torch.Tensor):
        value = value.detach().cpu().numpy()
    if isinstance(value, np.ndarray):
        if value.size:
            arrays[name] = value
        return None if value.size else [value.dtype.str, *value.shape]
    if isinstance(value, np.generic):
        return value.item()
    if is_dataclass(value):
        value = {field.name: getattr(value, field.name) for field in fields(value)}
    if isinstance(value, Mapping):
        return {k: taken_apart(v, f"{name}.{k}", arrays) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [taken_apart(v, f"{name}.{i}", arrays) for i, v in enumerate(value)]
    return value


def put_together(kind: type[T], document: Any, name: str, arrays: Arrays) -> T:
    """The value of a type that `taken_apart` was given.

    Args:
        kind: A dataclass.
        document: What `taken_apart` returned.
        name: Of the value.
        arrays: By name.

    Raises:
        KeyError: If a field or an array is missing, or a field is not known.
        TypeError: If something is of another type, or an array has other dimensions.
        ValueError: If a value is out of its range, or as the dataclass itself raises it.
    """
    made: T = _of(kind, document, name, arrays)
    return made


def _of(kind: Any, value: Any, name: str, arrays: Arrays) -> Any:
    origin, parts = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):  # of one type and None
        if value is None and name not in arrays:
            return None
        (kind,) = (part for part in parts if part is not type(None))
        return _of(kind, value, name, arrays)
    if is_dataclass(kind):
        hints, make = get_type_hints(kind), cast(Any, kind)
        if others := sorted(hints.keys() ^ expect(value, dict, name).keys()):
            raise KeyError(f"{name} lacks or should not have {', '.join(others[:5])}")
        # a sum of dimensions, such as B+1, after these
        ordered = sorted(hints, key=lambda k: "+" in getattr(hints[k], "dim_str", ""))
        with jaxtyped("context"):
            return make(**{k: _of(hints[k], value[k], f"{name}.{k}", arrays) for k in ordered})
    if origin is tuple:
        kinds = parts[:1] * len(expect(value, list, name)) if parts[-1] is ... else parts
        named = zip(kinds, value, strict=True)
        return tuple(_of(of, v, f"{name}.{i}", arrays) for i, (of, v) in enumerate(named))
    if isinstance(origin, type) and issubclass(origin, Mapping):
        items = expect(value, dict, name).items()
        return {k: _of(parts[1], v, f"{name}.{k}", arrays) for k, v in items}
    if isinstance(kind, type) and issubclass(kind, np.ndarray | torch.Tensor | AbstractArray):
        return _array(kind, value, name, arrays)
    if origin is Literal:
        return expect(value, frozenset(parts), name)
    return value if kind is Any else expect(value, kind, name)


def _array(kind: Any, empty: Any, name: str, arrays: Arrays) -> Any:
    """An array of a type; what stands for an empty one tells its dtype and shape."""
    if name in arrays:
        array = arrays[name]
    else:
        dtype, *shape = expect(empty, list, name)
        if 0 not in expect(shape, [range(1 << 31)], name):
            raise KeyError(name)
        array = np.zeros(shape, expect(dtype, str, name))
    if array.dtype.kind not in KINDS:
        raise TypeError(f"{name} holds {array.dtype}, not numbers")
    own = getattr(kind, "array_type", kind)
    value = torch.as_tensor(np.ascontiguousarray(array)) if own is torch.Tensor else array
    if not isinstance(value, kind):
        shape = list(array.shape)
        raise TypeError(
            f"{name} is {shape} of {array.dtype}, not {getattr(kind, '__name__', kind)}"
        )
    return value
