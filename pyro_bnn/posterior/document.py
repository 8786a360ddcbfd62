"""What the file of a posterior says, once it is known to be of the types and shapes it must be."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import torch
from torch import Tensor

from pyro_bnn import memory
from pyro_bnn.data import Standardiser
from pyro_bnn.errors import BNNError, FileFormatError
from pyro_bnn.posterior.provenance import Provenance

EXAMPLE_ROWS = 2
BLOCK = 1 << 22  # numbers that are looked at together
Sites: TypeAlias = list[list[Any]]  # name and shape of each

COMMON = (
    *("format", "version", "header", "x", "y", "losses", "inputs", "target"),
    *("params", "buffers", "fingerprint"),
)
HEADER = {
    "method": str,
    "engine": str,
    "options": dict,
    "seed": int,
    "phases": dict,
    "processes": int,
    "wall_time": float,
    "num_parameters": int,
    "num_data": int,
    "sites": list,
}
NAMES = ("input_names", "target_names", "class_names")


@dataclass(frozen=True, eq=False, kw_only=True)
class Stored:
    """The contents of the file of a posterior, before its model is looked at.

    Args:
        x: Rows of inputs, at most two.
        y: Their targets.
        num_data: Number of rows N of the fit.
        sites: Name and shape of each site.
        provenance: How the posterior came about.
        params: Point-estimated parameters.
        buffers: Buffers of the model.
        fingerprint: Densities of the model at one z.
        guide: Class, options and state of the guide; None where there are draws.
        z: Draws ``[C, S, P]``; None where there is a guide.
        log_q: Their log densities ``[C, S]``, or None.
        sample_stats: Their statistics ``[C, S]``.
    """

    x: Tensor
    y: Tensor
    num_data: int
    sites: Sites
    provenance: Provenance
    params: dict[str, Tensor]
    buffers: dict[str, Tensor]
    fingerprint: Tensor
    guide: tuple[str, dict[str, Any], dict[str, Any]] | None
    z: Tensor | None
    log_q: Tensor | None
    sample_stats: dict[str, Tensor]

    @classmethod
    def of(cls, document: dict[str, Any], path: Path) -> Stored:
        """The contents of a document.

        Raises:
            FileFormatError: If something is missing, is not known, or is of another type, shape or
                range; says what.
        """
        try:
            return cls(**_values(document))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            what = str(error) if isinstance(error, BNNError) else f"{type(error).__name__}: {error}"
            raise FileFormatError(f"{path} is damaged: {what}") from error


def _values(document: dict[str, Any]) -> dict[str, Any]:
    kind = ("guide",) if "guide" in document else ("z", "sample_stats")
    _require_keys(document, (*COMMON, *kind), optional=() if "guide" in document else ("log_q",))
    header = _header(document)
    x, y = _finite(document["x"], "x"), _finite(document["y"], "y")
    if not (x.ndim and y.ndim and 0 < len(x) == len(y) <= min(EXAMPLE_ROWS, header["num_data"])):
        raise ValueError(
            f"x {list(x.shape)} and y {list(y.shape)} are not rows of {header['num_data']}"
        )
    names = header["input_names"]
    if names is not None and (x.ndim < 2 or len(names) != x.shape[1]):
        raise ValueError(f"x {list(x.shape)} has another number of columns than of names")
    values: dict[str, Any] = {
        "x": x,
        "y": y,
        "num_data": header["num_data"],
        "sites": _sites(header["sites"]),
        "provenance": _provenance(header, document),
        "params": {k: _finite(v, k) for k, v in _tensors(document["params"], "params").items()},
        "buffers": _tensors(document["buffers"], "buffers"),
        "fingerprint": _of_dtype(document["fingerprint"], torch.float64, 1, "fingerprint"),
        "guide": None,
        "z": None,
        "log_q": None,
        "sample_stats": {},
    }
    if "guide" in document:
        return {**values, "guide": _guide(document["guide"])}
    z = _floating(document["z"], "z")
    if z.ndim != 3 or not z.shape[0] or not z.shape[1]:
        raise ValueError(f"draws have shape {list(z.shape)}, not [C, S, P]")
    stats = _tensors(document["sample_stats"], "sample_stats")
    log_q = document.get("log_q")
    for name, value in {
        **stats,
        **({} if log_q is None else {"log_q": _floating(log_q, "log_q")}),
    }.items():
        if value.shape[:2] != z.shape[:2]:
            raise ValueError(f"{name} has shape {list(value.shape)}, draws have {list(z.shape)}")
    if z.nbytes <= memory.STORED_DRAWS:
        _finite(z, "z")
    return {**values, "z": z, "log_q": log_q, "sample_stats": stats}


def _header(document: dict[str, Any]) -> dict[str, Any]:
    header = dict(_of_type(document["header"], dict, "header"))
    _require_keys(header, (*HEADER, "threads", *NAMES))
    for name, kind in HEADER.items():
        _of_type(header[name], kind, name)
    if header["num_parameters"] < 0 or not 0 < header["num_data"] < 1 << 62:
        raise ValueError("num_parameters or num_data is out of range")
    if header["threads"] is not None and _of_type(header["threads"], int, "threads") < 1:
        raise ValueError(f"threads is {header['threads']}")
    if header["processes"] < 1:
        raise ValueError(f"processes is {header['processes']}")
    for name, value in header["phases"].items():
        _of_type(value, float, f"phase {name!r}")
    for own in NAMES:
        if header[own] is not None:
            header[own] = tuple(_of_type(v, str, own) for v in _of_type(header[own], list, own))
    return header


def _provenance(header: dict[str, Any], document: dict[str, Any]) -> Provenance:
    losses = _of_dtype(document["losses"], torch.float64, 1, "losses")
    return Provenance(
        method=header["method"],
        engine=header["engine"],
        options=header["options"],
        seed=header["seed"],
        wall_time=header["wall_time"],
        phases=header["phases"],
        threads=header["threads"],
        processes=header["processes"],
        num_parameters=header["num_parameters"],
        losses=losses.numpy(),
        inputs=_standardiser(document["inputs"], "inputs"),
        target=_standardiser(document["target"], "target"),
        **{kind: header[kind] for kind in NAMES},
    )


def _guide(document: object) -> tuple[str, dict[str, Any], dict[str, Any]]:
    guide = _of_type(document, dict, "guide")
    _require_keys(guide, ("class", "options", "state"))
    state = dict(_of_type(guide["state"], dict, "state"))
    own = "_extra_state"  # of the guide, and after a dot that of one in it
    extra = {own: _of_type(state.pop(own), dict, own)}
    for name in [name for name in state if str(name).endswith(f".{own}")]:
        extra[name] = _of_type(state.pop(name), dict, name)
    tensors = {name: _finite(v, name) for name, v in _tensors(state, "state").items()}
    return (
        _of_type(guide["class"], str, "class"),
        _of_type(guide["options"], dict, "options"),
        {**tensors, **extra},
    )


def _sites(sites: Sites) -> Sites:
    for site in sites:
        name, shape = _of_type(site, list, "site")
        _of_type(name, str, "site")
        if any(type(size) is not int or size < 0 for size in shape):
            raise ValueError(f"site {name!r} has shape {shape}")
    return sites


def _standardiser(units: object, name: str) -> Standardiser | None:
    if units is None:
        return None
    found = _of_type(units, dict, name)
    _require_keys(found, ("loc", "scale"))
    return Standardiser(_floating(found["loc"], name), _floating(found["scale"], name))


def _require_keys(
    found: Mapping[str, Any], names: tuple[str, ...], *, optional: tuple[str, ...] = ()
) -> None:
    missing = [name for name in names if name not in found]
    extra = [name for name in found if name not in (*names, *optional)]
    if missing:
        raise KeyError(*missing)
    if extra:
        raise ValueError(
            f"it has {', '.join(f'{name!r:.50}' for name in extra[:5])}, which is not known"
        )


def _of_type(value: Any, kind: type, name: str) -> Any:
    """The value itself; a whole number counts as a float, and a bool as neither."""
    kinds = (int, float) if kind is float else (kind,)
    if type(value) not in kinds:
        raise TypeError(f"{name} is a {type(value).__name__}, not a {kind.__name__}")
    return value


def _tensors(values: object, name: str) -> dict[str, Tensor]:
    found = _of_type(values, dict, name)
    for key, value in found.items():
        _of_type(key, str, name)
        _tensor(value, key)
    return dict(found)


def _tensor(value: object, name: str) -> Tensor:
    if not isinstance(value, Tensor) or value.layout != torch.strided:
        raise TypeError(f"{name} is a {type(value).__name__}, not a tensor")
    return value


def _floating(value: object, name: str) -> Tensor:
    tensor = _tensor(value, name)
    if not tensor.is_floating_point():
        raise TypeError(f"{name} is of {tensor.dtype}, not of a floating dtype")
    return tensor


def _of_dtype(value: object, dtype: torch.dtype, ndim: int, name: str) -> Tensor:
    tensor = _tensor(value, name)
    if tensor.dtype != dtype or tensor.ndim != ndim:
        raise TypeError(f"{name} is {list(tensor.shape)} of {tensor.dtype}, expected {dtype}")
    return tensor


def _finite(value: object, name: str) -> Tensor:
    tensor = _tensor(value, name)
    for block in tensor.reshape(-1).split(BLOCK):
        if not bool(block.isfinite().all()):
            raise ValueError(f"{name} has values that are NaN or infinite")
    return tensor
