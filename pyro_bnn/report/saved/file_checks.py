"""Whether a saved ArviZ file holds what a comparison takes from it: types, shapes and ranges."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from pyro_bnn.errors import FileFormatError
from pyro_bnn.posterior.nature import SCHEMA as OF_NATURE

if TYPE_CHECKING:
    from xarray import DataTree

SEEDS, COUNTS = range(1 - (1 << 63), 1 << 63), (None, range(1, 1 << 63))
DRAWS = ("chain", "draw")
OF_TARGETS = "y_log_density"  # of each of several targets alone, given a draw
OPTIONS: Mapping[Any, Any] = {
    "method": str,
    "engine": str,
    "options": {"num_steps?": (None, range(1 << 40)), ...: None},
    "seed": SEEDS,
    "draws_seed": SEEDS,
    "wall_time": float,
    "num_parameters": SEEDS,
    "elbo_kind": frozenset({"exact", "bound", "monte_carlo", "none"}),
    "objective": str,
    "task": frozenset({"regression", "classification"}),
    "rows": {  # units are checked where they are made
        "y_ndim": range(1, 3),
        **dict.fromkeys(("input_names?", "class_names?", "target_names?"), (None, [str])),
        "target_name?": (None, str),
        ...: None,
    },
    "doubling?": (None, {"gain": float, "error": float, "num_steps": range(1 << 40)}),
    "name?": (None, str),
    "gpu?": (None, str),
    "nature?": (None, OF_NATURE),
    "compared?": (None, [str]),
    "data?": (None, {"name": str, "index": int, "note": str}),
    **dict.fromkeys(("num_draws?", "num_atoms?", "threads?", "processes?"), COUNTS),
    "model?": (None, {"description": str, "sites": list, "fingerprint": [float]}),
    "params?": (None, {str: str}),
    "probes?": (None, {str: range(1 << 63)}),
    ...: None,
}
"""What each option is, as `pyro_bnn.files.schema.expect` reads it."""
ARRAYS: Mapping[str, str] = {
    "predictions/f": "C S T F",
    "constant_data/x": "N ...",
    "predictions_constant_data/x": "T ...",
    "observed_data/y": "N O",
    "test_data/y": "T O",
    "predictions/y": "C S T O",
    "log_likelihood/y": "C S N",
    "log_likelihood_predictions/y": "C S T",
    "posterior/f": "C S ...",
}
"""Dimensions of the arrays of every file, alike where they have one letter."""
OF_TASK: Mapping[str, Mapping[str, str]] = {
    "regression": {"predictions/y_mean": "C S T O", "predictions/y_variance": "C S T O"},
    "classification": {"predictions/probs": "C S T K"},
}
OPTIONAL: Mapping[str, Mapping[str, str]] = {
    f"predictions/{OF_TARGETS}": {f"predictions/{OF_TARGETS}": "C S T O"},
    "probes": {"probes/f": "C S P F", "probes_constant_data/x": "P I"},
}
"""Arrays of a group or of its own name, where that is there."""
LIKE: Mapping[str, str] = {"posterior": "C S ...", "sample_stats": "C S", "optimization": "L"}
"""Of all arrays of a group."""


def arrays_of(tree: DataTree, task: str) -> dict[str, str]:
    """Names and dimensions of the arrays that a file of a task must have, or has."""
    found = {**ARRAYS, **OF_TASK[task]}
    for name, arrays in OPTIONAL.items():
        if name in tree.children or has(tree, name):
            found |= arrays
    for group, dims in LIKE.items():
        if group in tree.children:
            found |= {f"{group}/{name}": dims for name in tree[group].data_vars}
    return found


def check_arrays(tree: DataTree, task: str) -> None:
    """Check the arrays of a file against one another.

    Raises:
        FileFormatError: If one is missing.
        TypeError: If one does not hold numbers.
        ValueError: If its dimensions or its size do not fit.
    """
    arrays, sizes = arrays_of(tree, task), dict[str, int]()
    if missing := [name for name in arrays if not has(tree, name)]:
        raise FileFormatError(
            f"it lacks {', '.join(missing)}; write it again with posterior.to_arviz(train, test)"
        )
    for name, dims in arrays.items():
        letters = dims.removesuffix(" ...").split()
        values = array(tree, name, *(DRAWS if letters[0] == "C" else ()))
        if values.dtype.kind not in "biuf":
            raise TypeError(f"{name} holds {values.dtype}, not numbers")
        if letters[-1] == "O" and values.ndim == len(letters) - 1:
            values = values[..., None]  # of one target, whose axis files have in version 1 only
        shape = values.shape[: len(letters)] if dims.endswith("...") else values.shape
        known = [sizes.setdefault(*pair) for pair in zip(letters, shape, strict=False)]
        if len(shape) != len(letters) or list(shape) != known:
            expected = ", ".join(str(sizes.get(letter, letter)) for letter in letters)
            raise ValueError(f"{name} has shape {list(values.shape)}, not [{expected}]")
    if not all(sizes[letter] for letter in "CST"):
        raise ValueError("it has no draws, or no held-out rows")
    for name in ("test_data/y", "observed_data/y"):
        y = array(tree, name)
        if task == "regression":
            if y.dtype.kind not in "fiu":  # counts are whole
                raise ValueError("its y are not numbers")
        elif y.dtype.kind not in "iu" or y.min() < 0 or y.max() >= 1 << 31 or sizes["O"] != 1:
            raise ValueError(f"{name} does not hold labels of classes")
        elif name == "test_data/y" and y.max() >= max(2, sizes["K"]):
            raise ValueError("a label of y has no probability")


def array(tree: DataTree, name: str, *first: str) -> np.ndarray:
    """A variable with the named dimensions first."""
    return np.asarray(tree[name].transpose(*first, ...).to_numpy())


def has(tree: DataTree, name: str) -> bool:
    """Whether a file has a variable ``group/name``."""
    group, _, variable = name.partition("/")
    return group in tree.children and variable in tree[group].data_vars
