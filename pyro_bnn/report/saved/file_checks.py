"""Whether a saved ArviZ file holds what a comparison takes from it: types, shapes and ranges."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from xarray import DataTree

SEEDS = 1 << 63
MOST_STEPS = 1 << 40
DRAWS = ("chain", "draw")
GIVEN_DRAW = ("y_mean", "y_variance")
KINDS = ("exact", "bound", "monte_carlo", "none")
OPTIONS: Mapping[str, type] = {
    "method": str,
    "engine": str,
    "options": dict,
    "seed": int,
    "draws_seed": int,
    "wall_time": float,
    "num_parameters": int,
    "elbo_kind": str,
    "objective": str,
    "task": str,
    "rows": dict,
}
OF_TARGETS = "y_log_density"  # of each of several targets alone, given a draw
OPTIONAL: Mapping[str, type] = {
    "name": str,
    "compared": list,
    "data": dict,
    "num_draws": int,
    "num_atoms": int,
    "threads": int,
    "processes": int,
    "model": dict,
    "params": dict,
    "probes": dict,
}


def check_options(options: Mapping[str, Any]) -> None:
    """Check the options of a file, but its units, which are checked where they are made.

    Raises:
        KeyError: If one is missing.
        TypeError: If one is of another type.
        ValueError: If one is out of its range.
    """
    for name, kind in OPTIONS.items():
        _of_type(options[name], kind, name)
    for name, kind in OPTIONAL.items():
        if options.get(name) is not None:
            _of_type(options[name], kind, name)
    for name in ("seed", "draws_seed"):
        _require(abs(options[name]) < SEEDS, f"{name} is {options[name]}")
    _require(math.isfinite(options["wall_time"]), "wall_time is not finite")
    _require(abs(options["num_parameters"]) < SEEDS, "num_parameters is out of range")
    _require(abs(options.get("num_draws") or 1) < SEEDS, "num_draws is out of range")
    for name in ("threads", "processes", "num_atoms"):
        count = options.get(name)
        _require(count is None or 1 <= count < SEEDS, f"{name} is {count}")
    _require(options["elbo_kind"] in KINDS, f"elbo_kind is {options['elbo_kind']!r:.50}")
    _require(options["task"] in ("regression", "classification"), "task is not known")
    _texts(options.get("compared") or [], "compared")
    if (steps := options["options"].get("num_steps")) is not None:
        _of_type(steps, int, "num_steps")
        _require(0 <= steps < MOST_STEPS, "num_steps is out of range")
    if data := options.get("data"):
        for name, kind in (("name", str), ("index", int), ("note", str)):
            _of_type(data[name], kind, name)
    if model := options.get("model"):
        _of_type(model["description"], str, "description")
        _of_type(model["sites"], list, "sites")
        for value in _of_type(model["fingerprint"], list, "fingerprint"):
            _of_type(value, float, "fingerprint")
    for name, value in (options.get("params") or {}).items():
        _of_type(value, str, name)
    for kind, count in (options.get("probes") or {}).items():
        _require(0 <= _of_type(count, int, kind) < SEEDS, f"there are {count} probes")
    rows = options["rows"]
    _require(rows["y_ndim"] in (1, 2), "y has neither one nor two axes")
    for name in ("input_names", "class_names"):
        _texts(rows[name] or [], name)
    _texts(rows.get("target_names") or [], "target_names")
    if rows["target_name"] is not None:
        _of_type(rows["target_name"], str, "target_name")


def check_arrays(tree: DataTree, task: str) -> None:
    """Check the arrays of a file against one another.

    Raises:
        KeyError: If one is missing.
        TypeError: If one does not hold numbers.
        ValueError: If its dimensions or its size do not fit.
    """
    f = _array(tree, "predictions/f", DRAWS, 4)
    *draws, num_test, _ = f.shape
    _require(min(draws) > 0 and num_test > 0, "it has no draws, or no held-out rows")
    num_train = _array(tree, "constant_data/x", (), None).shape[:1]
    rows = _array(tree, "predictions_constant_data/x", (), None).shape[:1]
    _require(rows == (num_test,), "held-out x and f differ in their rows")
    y = _targets(tree, "test_data/y", ())
    _require(len(y) == num_test, "held-out y and f differ in their rows")
    train = _targets(tree, "observed_data/y", ())
    _require(train.shape[:1] == num_train, "training x and y differ in their rows")
    of_y = (*draws, *y.shape)
    _of_shape(_targets(tree, "predictions/y", DRAWS), of_y, "predictions/y")
    if task == "classification":
        probs = _array(tree, "predictions/probs", DRAWS, 4)
        _of_shape(probs[..., 0], of_y[:-1], "predictions/probs")
        _of_shape(y, (num_test, 1), "test_data/y")
        for labels, name in ((train, "observed_data/y"), (y, "test_data/y")):
            is_label = labels.dtype.kind in "iu" and labels.min() >= 0 and labels.max() < 1 << 31
            _require(bool(is_label), f"{name} does not hold labels of classes")
        _require(int(y.max()) < max(2, probs.shape[-1]), "a label of y has no probability")
    else:
        for name in GIVEN_DRAW:
            _of_shape(_targets(tree, f"predictions/{name}", DRAWS), of_y, name)
        if OF_TARGETS in tree["predictions"].data_vars:
            _of_shape(_array(tree, f"predictions/{OF_TARGETS}", DRAWS, 4), of_y, OF_TARGETS)
        is_number = all(values.dtype.kind in "fiu" for values in (y, train))  # counts are whole
        _require(is_number, "its y are not numbers")
    for name, count in (("log_likelihood", (len(train),)), ("log_likelihood_predictions", rows)):
        _of_shape(_array(tree, f"{name}/y", DRAWS, 3), (*draws, *count), name)
    for name in map(str, tree["posterior"].data_vars):
        _require(_array(tree, f"posterior/{name}", DRAWS, None).shape[:2] == tuple(draws), name)
    if {"probes", "probes_constant_data"} & set(tree.children):
        at_probes = _array(tree, "probes/f", DRAWS, 4)
        x = _array(tree, "probes_constant_data/x", (), 2)
        num_inputs = tree["constant_data/x"].shape[1:]
        _of_shape(x, (at_probes.shape[2], *num_inputs), "probes_constant_data/x")
        _of_shape(at_probes, (*draws, len(x), f.shape[3]), "probes/f")
    if "sample_stats" in tree.children:
        for name in map(str, tree["sample_stats"].data_vars):
            stat = _array(tree, f"sample_stats/{name}", DRAWS, None)
            _of_shape(stat, tuple(draws), name)
    if "optimization" in tree.children:
        (trace,) = tree["optimization"].data_vars
        _array(tree, f"optimization/{trace}", (), 1)


def _array(tree: DataTree, name: str, dims: Sequence[str], ndim: int | None) -> np.ndarray:
    """A variable with the named dimensions first."""
    found = tree[name]
    values = found.transpose(*dims, ...).to_numpy() if dims else found.to_numpy()
    if values.dtype.kind not in "biuf":
        raise TypeError(f"{name} holds {values.dtype}, not numbers")
    if values.ndim != (ndim or values.ndim) or not values.ndim:
        raise ValueError(f"{name} has shape {list(values.shape)}")
    return np.asarray(values)


def _targets(tree: DataTree, name: str, dims: Sequence[str]) -> np.ndarray:
    """Values of y ``[..., N, O]``; of one target files have that axis in version 1 only."""
    values = _array(tree, name, dims, None)
    values = values[..., None] if values.ndim == len(dims) + 1 else values
    _require(values.ndim == len(dims) + 2, f"{name} has shape {list(values.shape)}")
    return values


def _of_shape(values: np.ndarray, shape: tuple[int, ...], name: str) -> None:
    _require(values.shape == shape, f"{name} has shape {list(values.shape)}, not {list(shape)}")


def _texts(values: Any, name: str) -> None:
    for value in _of_type(values, list, name):
        _of_type(value, str, name)


def _of_type(value: Any, kind: type, name: str) -> Any:
    """The value itself; a whole number counts as a float, and a bool as neither."""
    if type(value) not in ((int, float) if kind is float else (kind,)):
        raise TypeError(f"{name} is a {type(value).__name__}, not a {kind.__name__}")
    return value


def _require(is_fine: bool, what: str) -> None:
    if not is_fine:
        raise ValueError(what)
