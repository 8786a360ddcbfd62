"""Posteriors on disk: tensors and plain values in one file, nothing unpickled on the way back."""

from __future__ import annotations

import json
import mmap
import secrets
import zipfile
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from pyro_bnn import guides, memory
from pyro_bnn.data import Standardiser
from pyro_bnn.effects import Model
from pyro_bnn.errors import FileFormatError, OutputError, SiteError
from pyro_bnn.guides import Guide
from pyro_bnn.posterior import DrawsPosterior, GuidePosterior, Posterior, Provenance
from pyro_bnn.program import Params, Program

FORMAT = "pyro_bnn posterior"
VERSION = 2
DRAWS_OF_UNKNOWN_GUIDES = 1_000
TOLERANCE = 1e-3  # of the fingerprint: precisions and devices differ by less, models by more


def save(posterior: Posterior, path: Path) -> None:
    """Write a posterior to one file; see :meth:`Posterior.save`.

    A guide whose class is not of this package is stored as ``DRAWS_OF_UNKNOWN_GUIDES`` draws.
    """
    program, provenance = posterior.program, posterior.provenance
    x, y = program.example
    document: dict[str, Any] = {
        "format": FORMAT,
        "version": VERSION,
        "header": json.dumps(
            {
                "method": provenance.method,
                "engine": provenance.engine,
                "options": provenance.options,
                "seed": provenance.seed,
                "wall_time": provenance.wall_time,
                "phases": provenance.phases,
                "num_parameters": provenance.num_parameters,
                "num_data": program.num_data,
                "sites": [[site.name, list(site.shape)] for site in program.sites],
            }
        ),
        "x": x,
        "y": y,
        "losses": torch.as_tensor(provenance.losses),
        "inputs": _units(provenance.inputs),
        "target": _units(provenance.target),
        "params": dict(posterior.params),
        "buffers": {name: program.snapshot.buffers[name] for name in _buffers(program.model)},
        "fingerprint": _fingerprint(program, posterior.params),
    }
    known = isinstance(posterior, GuidePosterior) and _class_of(posterior.guide) is not None
    if program.member_params and not known:
        raise OutputError(
            f"cannot save a {posterior.method}, whose class is not of this package and whose draws "
            f"have values of their own of {', '.join(program.member_params)}"
        )
    if known:
        guide = cast(GuidePosterior, posterior).guide
        document["guide"] = {
            "class": type(guide).__name__,
            "options": json.dumps(guide.options()),
            "state": dict(guide.state_dict()),
        }
    else:
        stored = posterior.num_stored_draws or DRAWS_OF_UNKNOWN_GUIDES
        document["z"] = _whole(
            posterior.stored
            if isinstance(posterior, DrawsPosterior)
            else posterior.unconstrained(stored, group_by_chain=True)
        )
        if posterior.has_log_prob:
            log_q = posterior.log_q(stored)
            document["log_q"] = log_q.reshape(document["z"].shape[:2])
        document["sample_stats"] = {
            name: torch.as_tensor(np.ascontiguousarray(value))
            for name, value in posterior.sample_stats.items()
        }
    _write(document, path)


def load(path: Path, model: Model) -> Posterior:
    """Read a posterior; see :meth:`Posterior.load`.

    The model has to be the one that was saved: its buffers are compared and not restored, and its
    prior, network and likelihood are compared by their densities at one z.
    """
    document = _read(path)
    try:
        header = json.loads(document["header"])
        program = Program(model, document["x"], document["y"], num_data=header["num_data"])
        sites = [[site.name, list(site.shape)] for site in program.sites]
        if sites != header["sites"]:
            raise SiteError(
                f"{path} is of a model with sites {_listed(header['sites'])}, but this model has "
                f"{_listed(sites)}"
            )
        _check_buffers(model, document["buffers"], path)
        _restore_params(program, document["params"], path)
        _check_fingerprint(program, document["fingerprint"], path)
        provenance = Provenance(
            method=header["method"],
            engine=header["engine"],
            options=header["options"],
            seed=header["seed"],
            wall_time=header["wall_time"],
            phases=header.get("phases", {}),  # which older files lack
            num_parameters=header["num_parameters"],
            losses=document["losses"].numpy(),
            inputs=_standardiser(document["inputs"]),
            target=_standardiser(document["target"]),
        )
        if "guide" in document:
            guide = _guide(document["guide"], model, path)
            guide.setup(program.example.x)
            guide.to(device=program.device, dtype=program.dtype)
            return GuidePosterior(program, guide, provenance)
        return DrawsPosterior(
            program,
            _resident(document["z"], program),
            provenance,
            sample_stats={k: v.numpy() for k, v in document["sample_stats"].items()},
            log_q=document.get("log_q"),
        )
    except (KeyError, TypeError, AttributeError, json.JSONDecodeError) as error:
        raise FileFormatError(f"{path} is damaged: {error!r} while reading it") from error


def _write(document: dict[str, Any], path: Path) -> None:
    """Write a temporary file beside the target and move it there, so that none is half-written."""
    if not path.name:
        raise OutputError(f"cannot write {str(path)!r}: it names no file")
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        with temporary.open("xb") as file:
            torch.save(document, file)
        temporary.replace(path)
    except OSError as error:
        raise OutputError(f"cannot write {path}: {error.strerror}") from error
    finally:
        if temporary.is_file():
            temporary.unlink()


def _read(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise FileFormatError(f"{path} does not exist or is not a file")
    if not zipfile.is_zipfile(path):
        raise FileFormatError(f"{path} is truncated, or is not a posterior saved by this package")
    try:
        is_large = path.stat().st_size > memory.STORED_DRAWS
        document = _mapped(path) if is_large else _loaded(path)
    except Exception as error:
        raise FileFormatError(f"{path} cannot be read as a saved posterior: {error}") from error
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise FileFormatError(f"{path} is not a posterior saved by this package")
    if document.get("version") != VERSION:
        raise FileFormatError(
            f"{path} has format version {document.get('version')}, this package reads {VERSION}; "
            "read it with the version that wrote it"
        )
    return document


def _loaded(path: Path, *, mapped: bool = False) -> Any:
    return torch.load(path, map_location="cpu", weights_only=True, mmap=mapped)


def _mapped(path: Path) -> Any:
    """The document with its draws left in the file, and all else in memory."""
    try:
        document = _loaded(path, mapped=True)
    except RuntimeError:  # Linux refuses a private map of a file that is larger than the memory
        with torch.serialization.set_default_mmap_options(mmap.MAP_SHARED):
            document = _loaded(path, mapped=True)
    if not isinstance(document, dict):
        return document
    return {
        name: value if name == "z" else tree_map_only(Tensor, Tensor.clone, value)
        for name, value in document.items()
    }


def _whole(z: Tensor) -> Tensor:
    """The draws, or a copy of them where they are a part of a larger tensor, which is written."""
    is_whole = z.is_contiguous() and z.untyped_storage().nbytes() == z.nbytes
    return z if is_whole else z.clone(memory_format=torch.contiguous_format)


def _resident(z: Tensor, program: Program) -> Tensor:
    """Draws where and as the model computes, or as they are where they stay in the file."""
    return z if z.nbytes > memory.STORED_DRAWS else z.to(program.initial)


def _guide(document: dict[str, Any], model: Model, path: Path) -> Guide:
    cls = getattr(guides, document["class"], None)
    if not (isinstance(cls, type) and issubclass(cls, Guide)):
        raise FileFormatError(f"{path} holds a {document['class']}, which is no guide known here")
    guide = cls(model, **json.loads(document["options"]))
    try:
        guide.load_state_dict(document["state"])
    except RuntimeError as error:
        raise FileFormatError(f"{path} is damaged: {error}") from error
    return guide


def _class_of(guide: Guide) -> type[Guide] | None:
    cls = getattr(guides, type(guide).__name__, None)
    return cls if cls is type(guide) else None


def _restore_params(program: Program, params: dict[str, Tensor], path: Path) -> None:
    if {k: v.shape for k, v in params.items()} != {k: v.shape for k, v in program.params.items()}:
        raise SiteError(
            f"{path} has the point-estimated parameters {', '.join(params) or '(none)'}, but this "
            f"model has {', '.join(program.params) or '(none)'}"
        )
    with torch.no_grad():
        for name, value in params.items():
            program.params[name].copy_(value)


def _buffers(model: Model) -> dict[str, Tensor]:
    if not isinstance(model, nn.Module):
        return {}
    parameters = dict(model.named_parameters(remove_duplicate=False))
    return {
        name: value.detach().clone()
        for name, value in model.state_dict().items()
        if isinstance(value, Tensor) and name not in parameters
    }


def _check_buffers(model: Model, saved: dict[str, Tensor], path: Path) -> None:
    own = _buffers(model)
    names = [
        name
        for name in sorted(own.keys() | saved.keys())
        if name not in own
        or name not in saved
        or not torch.equal(own[name].cpu(), saved[name].to(own[name].dtype))
    ]
    if names:
        raise SiteError(
            f"this model differs from the one saved in {path} in its buffers {', '.join(names)}: "
            "build it as it was for the fit"
        )


def _fingerprint(program: Program, params: Params) -> Tensor:
    """Log prior, log likelihoods and f of the example rows at one z, on the CPU."""
    z = torch.arange(1, program.num_latents + 1).sin().to(program.initial)
    x, _ = program.example
    with torch.no_grad():
        values = (
            program.log_prior(z, x, params).reshape(1),
            program.log_likelihood(z, program.example, params),
            program.function(z, x, params).flatten(),
        )
    return torch.cat(values).double().cpu()


def _check_fingerprint(program: Program, saved: Tensor, path: Path) -> None:
    own = _fingerprint(program, program.params)
    same = own.shape == saved.shape and torch.allclose(
        own, saved, rtol=TOLERANCE, atol=TOLERANCE, equal_nan=True
    )
    if not same:
        raise SiteError(
            f"this model differs from the one saved in {path}: its sites are the same, but not its "
            "densities at the same weights; build it with the prior, the activations and the "
            "likelihood of the fit"
        )


def _units(units: Standardiser | None) -> dict[str, Tensor] | None:
    return None if units is None else {"loc": units.loc, "scale": units.scale}


def _standardiser(units: dict[str, Tensor] | None) -> Standardiser | None:
    return None if units is None else Standardiser(units["loc"], units["scale"])


def _listed(sites: list[Any]) -> str:
    return ", ".join(f"{name} {tuple(shape)}" for name, shape in sites)
