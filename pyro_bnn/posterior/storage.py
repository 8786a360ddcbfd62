"""Posteriors on disk: tensors and plain values in one file, nothing unpickled on the way back."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pyro_bnn import memory
from pyro_bnn.data import Standardiser
from pyro_bnn.data.arrays import is_finite
from pyro_bnn.errors import BNNError, FileFormatError, SiteError
from pyro_bnn.files.schema import expect, require_version
from pyro_bnn.files.tensors import read_tensors, write_tensors
from pyro_bnn.guides import Guide
from pyro_bnn.handled import module_of
from pyro_bnn.posterior.arguments import packed, unpacked
from pyro_bnn.posterior.bound_gap import BoundGap
from pyro_bnn.posterior.doubling import Doubling
from pyro_bnn.posterior.nature import SCHEMA as OF_NATURE
from pyro_bnn.posterior.nature import Nature
from pyro_bnn.posterior.provenance import Provenance
from pyro_bnn.program.enumerated import joint_of
from pyro_bnn.program.fingerprint import fingerprint, wave
from pyro_bnn.program.handlers import Model
from pyro_bnn.program.joint import Joint
from pyro_bnn.program.program import Program
from pyro_bnn.program.terms import Params

FORMAT, CALL_FORMAT = "pyro_bnn posterior", "pyro_bnn posterior of a call"
VERSION = 3
LAPLACE = "Laplace"  # engine of Gaussians around a mode, in files that do not declare it
SMALL = 1 << 16  # most numbers that a guide makes beside its parameters
# fingerprints differ by less between precisions and devices, by more between models
TOLERANCE = 1e-3
MOST = 1 << 62  # of anything that is counted

NAMES = ("input_names", "target_names", "class_names")
OF_PROVENANCE = {
    "method": str,
    "engine": str,
    "options": dict,
    "seed": int,
    "wall_time": float,
    "phases": {str: float},
    "threads": (None, range(1, MOST)),
    "processes": range(1, MOST),
    "gpu?": (None, str),
    "num_parameters": range(MOST),
    "doubling?": (None, {"gain": float, "error": float, "num_steps": range(MOST)}),
    "bound_gap?": (None, {"gap": float, "error": float, "num_rows": range(MOST)}),
    **dict.fromkeys(NAMES, (None, [str])),
    "nature?": (None, OF_NATURE),
}
FIELDS = [name.removesuffix("?") for name in OF_PROVENANCE]
UNITS = (None, {"loc": Tensor, "scale": Tensor})
SCHEMA = {
    "format": str,
    "version": int,
    "header": {**OF_PROVENANCE, "num_data": range(1, MOST), "sites": [list]},
    "x": Tensor,  # two rows at most
    "y": Tensor,
    "losses": Tensor,
    "inputs": UNITS,
    "target": UNITS,
    "params": {str: Tensor},
    "buffers": {str: Tensor},
    "fingerprint": Tensor,
}
CALL_SCHEMA = {
    "format": str,
    "version": int,
    "header": {**OF_PROVENANCE, "sites": [list]},
    "args": list,
    "kwargs": dict,
    "losses": Tensor,
    "params": {str: Tensor},
    "fingerprint": Tensor,
}
OF_GUIDE = {"guide": {"class": str, "options": dict, "state": {str: (dict, Tensor)}}}
OF_DRAWS = {"z": Tensor, "sample_stats": {str: Tensor}, "log_q?": Tensor, "stages?": Tensor}

Document: TypeAlias = dict[str, Any]


def save(
    path: Path,
    program: Program,
    params: Params,
    provenance: Provenance,
    contents: Mapping[str, Any],
) -> None:
    """Write a posterior to one file; see :meth:`Posterior.save`.

    Args:
        path: The file.
        program: Its model.
        params: Values of its point-estimated parameters.
        provenance: How it came about.
        contents: What `guide_contents` or `draws_contents` gives.
    """
    x, y = program.example_x, program.example.y
    header = _header(provenance)
    document: Document = {
        "format": FORMAT,
        "version": VERSION,
        "header": _plain({**header, "num_data": program.num_data, "sites": _sites(program)}),
        "x": x,
        "y": y,
        "losses": torch.as_tensor(provenance.losses),
        "inputs": _units(provenance.inputs),
        "target": _units(provenance.target),
        "params": dict(params),
        "buffers": {name: program.snapshot.buffers[name] for name in _buffers(program.model)},
        "fingerprint": _fingerprint(program, params),
        **contents,
    }
    write_tensors(document, path)


def _header(provenance: Provenance) -> Document:
    header = {name: getattr(provenance, name) for name in FIELDS}
    if provenance.doubling is not None:
        header["doubling"] = asdict(provenance.doubling)
    if provenance.bound_gap is not None:
        header["bound_gap"] = asdict(provenance.bound_gap)
    header["nature"] = None if provenance.nature is None else provenance.nature.to_json()
    return header


def save_call(
    path: Path,
    joint: Joint,
    params: Params,
    provenance: Provenance,
    contents: Mapping[str, Any],
) -> None:
    """Write a posterior of any model to one file; see :meth:`CallPosterior.save`.

    Args:
        path: The file.
        joint: Its model, with its arguments.
        params: Values of its point-estimated parameters.
        provenance: How it came about.
        contents: What `draws_contents` gives.
    """
    document: Document = {
        "format": CALL_FORMAT,
        "version": 1,
        "header": _plain({**_header(provenance), "sites": _sites(joint)}),
        "args": [packed(value, f"argument {i}") for i, value in enumerate(joint.args, 1)],
        "kwargs": {name: packed(value, name) for name, value in joint.kwargs.items()},
        "losses": torch.as_tensor(provenance.losses),
        "params": dict(params),
        "fingerprint": _densities(joint, params),
        **contents,
    }
    write_tensors(document, path)


def load_call(path: Path, model: Model) -> tuple[str, dict[str, Any]]:
    """Read a posterior of any model: its kind, and what its class takes; see `load`."""
    document = read_tensors(path, mapped=("z",))
    if document.get("format") != CALL_FORMAT:
        raise FileFormatError(
            f"{path} is not a posterior of a Call saved by this package; read that of a network "
            "with Posterior.load"
        )
    require_version(document, 1, path)
    try:
        schema = OF_GUIDE if "guide" in document else OF_DRAWS
        expect(document, {**CALL_SCHEMA, **schema}, "it")
        _check_guide(document["guide"]) if "guide" in document else _check_draws(document)
        provenance = _provenance(document)
        args, kwargs = unpacked(document["args"]), unpacked(document["kwargs"])
    except (KeyError, TypeError, ValueError) as error:
        what = str(error) if isinstance(error, BNNError) else f"{type(error).__name__}: {error}"
        raise FileFormatError(f"{path} is damaged: {what}") from error
    try:
        joint = joint_of(model, args, kwargs)
    except Exception as error:
        reason = str(error).strip().splitlines()[:1]
        raise SiteError(
            f"this model cannot be run on the arguments saved in {path}: {''.join(reason)}; build "
            "it as it was for the run"
        ) from error
    if (sites := _sites(joint)) != document["header"]["sites"]:
        raise SiteError(
            f"{path} is of a model with sites {_listed(document['header']['sites'])}, but this "
            f"model has {_listed(sites)}"
        )
    _restore_params(joint, document["params"], path)
    _compare(_densities(joint, joint.params), document["fingerprint"], path)
    contents = {"program": joint, "provenance": provenance}
    if "guide" in document:
        kind = f"call {_kind_of_guide(provenance)}"
        return kind, {**contents, "guide": _guide(document, joint, path)}
    kind = "call particles" if "stages" in document else "call draws"
    return kind, contents | _stored(document, joint, path)


def _densities(joint: Joint, params: Params) -> Tensor:
    """The two parts of the log joint at one z, in double precision."""
    with torch.no_grad():
        parts = joint.log_densities(wave(joint.initial), params=params)
    return torch.stack(parts).double().cpu()


def guide_contents(guide: Guide) -> Document:
    """What the file of a guide of this package holds of it."""
    options, state = _plain(guide.options()), dict(guide.state_dict())
    return {"guide": {"class": type(guide).__name__, "options": options, "state": state}}


def draws_contents(
    z: Tensor, log_q: Tensor | None, sample_stats: Mapping[str, NDArray[Any]]
) -> Document:
    """What a file holds of draws ``[C, S, P]``, their log q ``[C, S]`` and their statistics."""
    of_q = {} if log_q is None else {"log_q": log_q.reshape(z.shape[:2])}
    stats = {k: torch.as_tensor(np.ascontiguousarray(v)) for k, v in sample_stats.items()}
    return {"z": z, **of_q, "sample_stats": stats}


def load(path: Path, model: Model) -> tuple[str, dict[str, Any]]:
    """Read a posterior: its kind, and what its class takes, by name.

    The kinds are ``"guide"``, ``"laplace"``, ``"draws"`` and ``"particles"``.

    The model has to be the one that was saved: its buffers are compared and not restored, and its
    prior, network and likelihood are compared by their densities at one z. Draws of a file above
    ``memory.STORED_DRAWS`` stay in it, and are not looked at here. See :meth:`Posterior.load`.
    """
    document, provenance = _read(path)
    program = _program(model, document, path)
    if (sites := _sites(program)) != document["header"]["sites"]:
        raise SiteError(
            f"{path} is of a model with sites {_listed(document['header']['sites'])}, but this "
            f"model has {_listed(sites)}"
        )
    _check_buffers(model, document["buffers"], path)
    _restore_params(program, document["params"], path)
    _check_fingerprint(program, document["fingerprint"], path)
    contents = {"program": program, "provenance": provenance}
    if "guide" in document:
        kind = _kind_of_guide(provenance)
        return kind, {**contents, "guide": _guide(document, program, path)}
    kind = "particles" if "stages" in document else "draws"
    return kind, contents | _stored(document, program, path)


def _kind_of_guide(provenance: Provenance) -> str:
    nature = provenance.nature
    of_laplace = provenance.engine == LAPLACE if nature is None else nature.is_around_a_mode
    return "laplace" if of_laplace else "guide"


# What a file says


def _read(path: Path) -> tuple[Document, Provenance]:
    """A document of the types, shapes and ranges it must have, and how its posterior came about."""
    document = read_tensors(path, mapped=("z",))
    if document.get("format") != FORMAT:
        raise FileFormatError(f"{path} is not a posterior saved by this package")
    require_version(document, VERSION, path)
    try:
        kind = OF_GUIDE if "guide" in document else OF_DRAWS
        expect(document, {**SCHEMA, **kind}, "it")
        _check_rows(document)
        _check_guide(document["guide"]) if "guide" in document else _check_draws(document)
        return document, _provenance(document)
    except (KeyError, TypeError, ValueError) as error:
        what = str(error) if isinstance(error, BNNError) else f"{type(error).__name__}: {error}"
        raise FileFormatError(f"{path} is damaged: {what}") from error


def _check_rows(document: Document) -> None:
    header, x, y = document["header"], document["x"], document["y"]
    if not (x.ndim and y.ndim and 0 < len(x) == len(y) <= min(2, header["num_data"])):
        shapes = f"x {list(x.shape)} and y {list(y.shape)}"
        raise ValueError(f"{shapes} are not rows of {header['num_data']}")
    names = header["input_names"]
    if names is not None and (x.ndim < 2 or len(names) != x.shape[1]):
        raise ValueError(f"x {list(x.shape)} has another number of columns than of names")
    for site in header["sites"]:
        name, shape = site
        expect(shape, [int], expect(name, str, "site"))
    for name in ("losses", "fingerprint"):
        value = document[name]
        if value.dtype != torch.float64 or value.ndim != 1:
            raise TypeError(f"{name} is {list(value.shape)} of {value.dtype}, not [n] of float64")
    _require_finite({"x": x, "y": y, **document["params"]})


def _check_guide(guide: Document) -> None:
    expect(guide["state"]["_extra_state"], dict, "_extra_state")
    _require_finite({k: v for k, v in guide["state"].items() if isinstance(v, Tensor)})


def _check_draws(document: Document) -> None:
    z = document["z"]
    of_draws = {k: v for k, v in document.items() if k == "log_q"}
    for name, value in {"z": z, **of_draws}.items():
        if not value.is_floating_point():
            raise TypeError(f"{name} is of {value.dtype}, not of a floating dtype")
    if z.ndim != 3 or not z.shape[0] or not z.shape[1]:
        raise ValueError(f"draws have shape {list(z.shape)}, not [C, S, P]")
    for name, value in {**document["sample_stats"], **of_draws}.items():
        if value.shape[:2] != z.shape[:2]:
            raise ValueError(f"{name} has shape {list(value.shape)}, draws have {list(z.shape)}")
    if z.nbytes <= memory.STORED_DRAWS:
        _require_finite({"z": z})


def _require_finite(tensors: Mapping[str, Tensor]) -> None:
    for name, value in tensors.items():
        if not is_finite(value.reshape(-1)):
            raise ValueError(f"{name} has values that are NaN or infinite")


def _provenance(document: Document) -> Provenance:
    header = {name: document["header"].get(name) for name in FIELDS}
    names = {name: tuple(header[name]) for name in NAMES if header[name] is not None}
    inputs, target = (
        units and Standardiser(**units)
        for units in (document.get("inputs"), document.get("target"))
    )
    if header["doubling"] is not None:
        header["doubling"] = Doubling(**header["doubling"])
    if header["bound_gap"] is not None:
        header["bound_gap"] = BoundGap(**header["bound_gap"])
    losses = document["losses"].numpy()
    header["nature"] = Nature.from_json(header["nature"])
    return Provenance(**{**header, **names}, losses=losses, inputs=inputs, target=target)


# What the model makes of it


def _program(model: Model, document: Document, path: Path) -> Program:
    """The model, evaluated at the rows of the file; what is wrong with these may be of either."""
    try:
        num_data = document["header"]["num_data"]
        return Program(model, document["x"], document["y"], num_data=num_data)
    except Exception as error:
        reason = str(error).strip().splitlines()[:1]
        raise SiteError(
            f"this model cannot be evaluated at the rows saved in {path}: {''.join(reason)}; build "
            "it as it was for the fit"
        ) from error


def _stored(document: Document, program: Joint, path: Path) -> dict[str, Any]:
    """Draws of a file, their log q, their statistics and, of particles, the stages."""
    stats = {name: value.numpy() for name, value in document["sample_stats"].items()}
    z = _draws(document["z"], program, path)
    stored = {"z": z, "sample_stats": stats, "log_q": document.get("log_q")}
    return stored | {name: document[name] for name in ("stages",) if name in document}


def _draws(z: Tensor, program: Joint, path: Path) -> Tensor:
    """Draws where and as the model computes, or as they are where they stay in the file."""
    if z.shape[-1] != program.num_latents:
        raise FileFormatError(
            f"{path} is damaged: its draws have shape {list(z.shape)}, not "
            f"[C, S, {program.num_latents}]"
        )
    return z if z.nbytes > memory.STORED_DRAWS else z.to(program.initial)


def _guide(document: Document, program: Joint, path: Path) -> Guide:
    """The guide of a file, whose parameters are as large as those in the file or it is refused."""
    name, options, state = (document["guide"][key] for key in ("class", "options", "state"))
    cls = Guide.known.get(name)
    if cls is None:
        raise FileFormatError(f"{path} holds a {name}, which is no guide known here")
    try:
        return _rebuilt(cls, options, state, program)
    except Exception as error:  # a guide may raise anything for foreign options or parameters
        reason = " ".join(str(error).strip().splitlines())
        raise FileFormatError(f"{path} is damaged: {type(error).__name__}: {reason}") from error


def _rebuilt(cls: type[Guide], options: Document, state: Document, program: Joint) -> Guide:
    sites = [[site.name, list(site.shape), site.stop - site.start] for site in program.sites]
    if [list(site) for site in state["_extra_state"]["sites"]] != sites:
        raise ValueError(f"its {cls.__name__} is of other sites than its posterior")
    numbers = sum(value.numel() for value in state.values() if isinstance(value, Tensor))
    message = "its options ask for {} numbers, its state has fewer"
    with memory.AtMost(2 * numbers + SMALL, message):
        guide = cls(program.model, **options)
        guide.load_state_dict(state)
    guide.set_up_for(program)
    if _plain(guide.options()) != options:
        raise ValueError(f"its {cls.__name__} has options {guide.options()} once it is read")
    return guide


def is_known(guide: Guide) -> bool:
    """Whether its class, and that of each guide in it, is of this package."""
    classes = [type(part) for part in guide.modules() if isinstance(part, Guide)]
    return all(Guide.known.get(cls.__name__) is cls for cls in classes)


def _restore_params(program: Joint, params: dict[str, Tensor], path: Path) -> None:
    if {k: v.shape for k, v in params.items()} != {k: v.shape for k, v in program.params.items()}:
        raise SiteError(
            f"{path} has the point-estimated parameters {', '.join(params) or '(none)'}, but this "
            f"model has {', '.join(program.params) or '(none)'}"
        )
    program.set_params(params)


def _buffers(model: Model) -> dict[str, Tensor]:
    module = module_of(model)
    if module is None:
        return {}
    parameters = dict(module.named_parameters(remove_duplicate=False))
    return {
        name: value.detach().clone()
        for name, value in module.state_dict().items()
        if isinstance(value, Tensor) and name not in parameters
    }


def _check_buffers(model: Model, saved: dict[str, Tensor], path: Path) -> None:
    buffers = _buffers(model)
    names = [
        name
        for name in sorted(buffers.keys() | saved.keys())
        if name not in buffers
        or name not in saved
        or not torch.equal(buffers[name].cpu(), saved[name].to(buffers[name].dtype))
    ]
    if names:
        raise SiteError(
            f"this model differs from the one saved in {path} in its buffers {', '.join(names)}: "
            "build it as it was for the fit"
        )


def _fingerprint(program: Program, params: Params) -> Tensor:
    return fingerprint(program, wave(program.initial), params, program.example).cpu()


def _check_fingerprint(program: Program, saved: Tensor, path: Path) -> None:
    _compare(_fingerprint(program, program.params), saved, path)


def _compare(fresh: Tensor, saved: Tensor, path: Path) -> None:
    same = fresh.shape == saved.shape and torch.allclose(
        fresh, saved, rtol=TOLERANCE, atol=TOLERANCE, equal_nan=True
    )
    if not same:
        raise SiteError(
            f"this model differs from the one saved in {path}: its sites are the same, but not its "
            "densities at the same weights; build it with the prior, the activations and the "
            "likelihood of the fit"
        )


def _plain(values: Document) -> Any:
    """The values as JSON has them, lists for tuples and numbers of Python for NumPy's."""
    return json.loads(json.dumps(values))


def _units(units: Standardiser | None) -> dict[str, Tensor] | None:
    return None if units is None else {"loc": units.loc, "scale": units.scale}


def _sites(program: Joint) -> list[Any]:
    return [[site.name, list(site.shape)] for site in program.sites]


def _listed(sites: list[Any]) -> str:
    return ", ".join(f"{name} {tuple(shape)}" for name, shape in sites)
