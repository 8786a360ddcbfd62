"""The file ``fit.json`` of a fit: read without trust, each value of its type and range."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_args

from pyro_bnn.cli.networks import Network
from pyro_bnn.cli.uncertainty import Uncertainty
from pyro_bnn.data.csv_file import Column
from pyro_bnn.data.labels import Task
from pyro_bnn.errors import FileFormatError
from pyro_bnn.files.tensors import read_json

FORMAT = "pyro_bnn fit"
VERSION = 2
BYTES_OF_A_WEIGHT = 2  # of the narrowest dtype
BYTES_OF_A_LAYER = 20  # its sites are named, with their shapes
SEEDS = 1 << 63


def read_document(path: Path) -> dict[str, Any]:
    """The contents of the file.

    Raises:
        FileFormatError: If it cannot be read, or is of another format or version.
    """
    document = read_json(path)
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise FileFormatError(f"{path} is not of 'pyro-bnn fit'")
    version = document.get("version")
    if version != VERSION:
        is_newer = type(version) is int and version > VERSION
        raise FileFormatError(
            f"{path} has format version {version!r:.50}, this package reads {VERSION}; "
            f"read it with the {'newer ' * is_newer}version that wrote it"
        )
    return document


def values(document: dict[str, Any]) -> dict[str, Any]:
    """The fields of a :class:`pyro_bnn.cli.saved_fit.SavedFit` but its posterior.

    Raises:
        FileFormatError: If the columns are not the inputs of the network.
        KeyError: If a value is missing.
        TypeError: If it is of another type.
        ValueError: If it is out of its range.
    """
    found = {
        "network": _network(document["network"]),
        "columns": tuple(
            _column(entry) for entry in _of_type(document["columns"], list, "columns")
        ),
        "task": document["task"],
        "target_name": _or_none(document["target_name"], str, "target_name"),
        "class_names": _texts(document["class_names"], "class_names"),
        "data": _of_type(document["data"], str, "data"),
        "num_rows": _of_type(document["num_rows"], int, "num_rows"),
        "split": _or_none(document["split"], int, "split"),
        "uncertainty": _uncertainty(document["uncertainty"]),
        "held_out": _scores(document["held_out"]),
        "command": _of_type(document["command"], str, "command"),
        "target_names": _texts(document["target_names"], "target_names"),
    }
    if found["task"] not in get_args(Task):
        raise ValueError(f"its task is {found['task']!r:.50}")
    network, names = found["network"], found["class_names"]
    num_inputs = sum(len(column.inputs) for column in found["columns"])
    if num_inputs != network.num_inputs:
        raise FileFormatError(
            f"its columns are {num_inputs} inputs, its network has {network.num_inputs}"
        )
    if (len(names) if names else None) != network.num_classes:
        raise ValueError("its network has another number of classes than it has names")
    targets = found["target_names"]
    if (len(targets) if targets else 1) != network.num_outputs:
        raise ValueError("its network has another number of targets than it has names")
    for name in targets or () if found["held_out"] else ():
        for score in ("rmse", "coverage"):
            _of_type(found["held_out"][f"{score} of {name}"], float, score)
    return found


def check_size(network: Network, posterior: Path) -> None:
    """Check that the weights of a network are not more than a file of its posterior holds.

    Those of a network of images follow from its columns, each of which the file names, and from its
    depth and width: a residual network has at least depth - 2 convolutions of width squared.

    Raises:
        FileFormatError: If they are.
    """
    if network.image_shape is not None:
        layers = (network.depth or 2) - 2
        weights = max(9 * layers, 1) * (network.width or 1) ** 2
    else:
        outputs = network.num_outputs * (network.num_classes or 1)
        sizes = (network.num_inputs, *network.hidden, outputs)
        layers = len(sizes)
        weights = sum(rows * columns for rows, columns in itertools.pairwise(sizes))
    least = BYTES_OF_A_WEIGHT * weights + BYTES_OF_A_LAYER * layers
    if posterior.is_file() and posterior.stat().st_size < least:
        raise FileFormatError(f"its network has {weights} weights, more than {posterior} holds")


def _network(document: object) -> Network:
    given = dict(_of_type(document, dict, "network"))
    given["hidden"] = tuple(_of_type(given["hidden"], list, "hidden"))
    if (shape := _or_none(given.get("image_shape"), list, "image_shape")) is not None:
        given["image_shape"] = tuple(_of_type(size, int, "image_shape") for size in shape)
        if math.prod(shape) != given["num_inputs"]:
            raise ValueError(f"images of {shape!r:.50} are not its {given['num_inputs']} inputs")
    for name in ("depth", "width"):
        if (size := _or_none(given.get(name), int, name)) is not None and size < 1:
            raise ValueError(f"{name} is {size}")
    network = Network(**given)
    for name in ("model", "activation", "likelihood"):
        _of_type(given[name], str, name)
    _or_none(given["prior"], str, "prior")
    _or_none(given["num_classes"], int, "num_classes")
    if not abs(_of_type(given["seed"], int, "seed")) < SEEDS:
        raise ValueError(f"its seed is {given['seed']}")
    sizes = ("num_inputs", "num_outputs", *(("num_classes",) if given["num_classes"] else ()))
    for name in sizes:
        if _of_type(given[name], int, name) < 1:
            raise ValueError(f"{name} is {given[name]}")
    for units in given["hidden"]:
        if type(units) is not int or units < 1:
            raise ValueError(f"layer sizes are positive integers, not {units!r:.50}")
    return network


def _column(document: object) -> Column:
    entry = _of_type(document, dict, "column")
    return Column(_of_type(entry["name"], str, "name"), _texts(entry["categories"], "categories"))


def _uncertainty(document: object) -> Uncertainty:
    entry = _of_type(document, dict, "uncertainty")
    for name in ("median", "maximum"):
        _number(_or_none(entry[name], float, name), name)
    return Uncertainty(
        measure=_of_type(entry["measure"], str, "measure"),
        median=entry["median"],
        maximum=entry["maximum"],
    )


def _scores(document: object) -> dict[str, float] | None:
    scores: dict[str, float] | None = _or_none(document, dict, "held_out")
    if scores is None:
        return None
    for name in (
        "rows",
        "log_score",
        *(("accuracy",) if "accuracy" in scores else ("rmse", "coverage")),
    ):
        _of_type(scores[name], float, name)
    for name, value in scores.items():
        _of_type(value, float, name)
    return scores


def _number(value: float | None, name: str) -> None:
    if value is not None and math.isnan(value):
        raise ValueError(f"{name} is not a number")


def _texts(document: object, name: str) -> tuple[str, ...] | None:
    entries: Sequence[object] | None = _or_none(document, list, name)
    return None if entries is None else tuple(_of_type(entry, str, name) for entry in entries)


def _or_none(value: Any, kind: type, name: str) -> Any:
    return None if value is None else _of_type(value, kind, name)


def _of_type(value: Any, kind: type, name: str) -> Any:
    """The value itself; a whole number counts as a float, and a bool as neither."""
    if type(value) not in ((int, float) if kind is float else (kind,)):
        raise TypeError(f"{name} is a {type(value).__name__}, not a {kind.__name__}")
    return value
