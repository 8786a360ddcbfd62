"""Posteriors on disk: tensors and plain values in one file, nothing unpickled on the way back."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from pyro_bnn import memory
from pyro_bnn.data import Standardiser
from pyro_bnn.errors import FileFormatError, SiteError
from pyro_bnn.files.tensors import read_tensors, write_tensors
from pyro_bnn.guides import Guide
from pyro_bnn.handled import module_of
from pyro_bnn.posterior.document import Stored
from pyro_bnn.posterior.provenance import Provenance
from pyro_bnn.program.handlers import Model
from pyro_bnn.program.program import Program
from pyro_bnn.program.terms import Params

FORMAT = "pyro_bnn posterior"
VERSION = 3
SMALL = 1 << 16  # numbers that a guide may take beside its parameters
TOLERANCE = 1e-3  # of the fingerprint: precisions and devices differ by less, models by more


class Loaded(NamedTuple):
    """A posterior as it was read.

    Attributes:
        program: Its model.
        provenance: How it came about.
        guide: Its guide; None where there are draws.
        z: Its draws ``[C, S, P]``, empty where there is a guide.
        sample_stats: Their statistics ``[C, S]``.
        log_q: Their log densities ``[C, S]``, or None.
    """

    program: Program
    provenance: Provenance
    guide: Guide | None
    z: Tensor
    sample_stats: dict[str, NDArray[Any]]
    log_q: Tensor | None


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
    x, y = program.example
    document: dict[str, Any] = {
        "format": FORMAT,
        "version": VERSION,
        "header": _plain(
            {
                "method": provenance.method,
                "engine": provenance.engine,
                "options": provenance.options,
                "seed": provenance.seed,
                "wall_time": provenance.wall_time,
                "phases": provenance.phases,
                "threads": provenance.threads,
                "processes": provenance.processes,
                "num_parameters": provenance.num_parameters,
                "num_data": program.num_data,
                "input_names": provenance.input_names,
                "target_names": provenance.target_names,
                "class_names": provenance.class_names,
                "sites": [[site.name, list(site.shape)] for site in program.sites],
            }
        ),
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


def guide_contents(guide: Guide) -> dict[str, Any]:
    """What the file of a guide of this package holds of it."""
    return {
        "guide": {
            "class": type(guide).__name__,
            "options": _plain(guide.options()),
            "state": dict(guide.state_dict()),
        }
    }


def draws_contents(
    z: Tensor, log_q: Tensor | None, sample_stats: Mapping[str, NDArray[Any]]
) -> dict[str, Any]:
    """What a file holds of draws ``[C, S, P]``, their log q ``[C, S]`` and their statistics."""
    contents: dict[str, Any] = {"z": z}
    if log_q is not None:
        contents["log_q"] = log_q.reshape(z.shape[:2])
    contents["sample_stats"] = {
        name: torch.as_tensor(np.ascontiguousarray(value)) for name, value in sample_stats.items()
    }
    return contents


def load(path: Path, model: Model) -> Loaded:
    """Read a posterior; see :meth:`Posterior.load`.

    The model has to be the one that was saved: its buffers are compared and not restored, and its
    prior, network and likelihood are compared by their densities at one z. Draws of a file above
    ``memory.STORED_DRAWS`` stay in it, and are not looked at here.
    """
    stored = Stored.of(_read(path), path)
    program = _program(model, stored, path)
    sites = [[site.name, list(site.shape)] for site in program.sites]
    if sites != stored.sites:
        raise SiteError(
            f"{path} is of a model with sites {_listed(stored.sites)}, but this model has "
            f"{_listed(sites)}"
        )
    _check_buffers(model, stored.buffers, path)
    _restore_params(program, stored.params, path)
    _check_fingerprint(program, stored.fingerprint, path)
    guide = None if stored.guide is None else _guide(stored, program, path)
    return Loaded(
        program,
        stored.provenance,
        guide,
        _draws(stored, program, path) if guide is None else program.initial.new_empty(0),
        {name: value.numpy() for name, value in stored.sample_stats.items()},
        stored.log_q,
    )


def _read(path: Path) -> dict[str, Any]:
    document = read_tensors(path, mapped=("z",))
    if document.get("format") != FORMAT:
        raise FileFormatError(f"{path} is not a posterior saved by this package")
    version = document.get("version")
    if version != VERSION:
        is_newer = isinstance(version, int) and version > VERSION
        raise FileFormatError(
            f"{path} has format version {version!r:.50}, this package reads {VERSION}; "
            f"read it with the {'newer ' * is_newer}version that wrote it"
        )
    return document


def _program(model: Model, stored: Stored, path: Path) -> Program:
    """The model, evaluated at the rows of the file; what is wrong with these may be of either."""
    try:
        return Program(model, stored.x, stored.y, num_data=stored.num_data)
    except Exception as error:
        reason = str(error).strip().splitlines()[:1]
        raise SiteError(
            f"this model cannot be evaluated at the rows saved in {path}: {''.join(reason)}; build "
            "it as it was for the fit"
        ) from error


def _draws(stored: Stored, program: Program, path: Path) -> Tensor:
    z = stored.z
    if z is None or z.shape[-1] != program.num_latents:
        raise FileFormatError(
            f"{path} is damaged: its draws have shape {None if z is None else list(z.shape)}, not "
            f"[C, S, {program.num_latents}]"
        )
    return _resident(z, program)


def _resident(z: Tensor, program: Program) -> Tensor:
    """Draws where and as the model computes, or as they are where they stay in the file."""
    return z if z.nbytes > memory.STORED_DRAWS else z.to(program.initial)


def _guide(stored: Stored, program: Program, path: Path) -> Guide:
    """The guide of a file, whose parameters are as large as those in the file or it is refused."""
    assert stored.guide is not None
    name = stored.guide[0]
    cls = Guide.known.get(name)
    if cls is None:
        raise FileFormatError(f"{path} holds a {name}, which is no guide known here")
    try:
        guide = _rebuilt(cls, stored.guide, program)
    except Exception as error:  # of whatever a guide makes of another's options and parameters
        reason = " ".join(str(error).strip().splitlines())
        raise FileFormatError(f"{path} is damaged: {type(error).__name__}: {reason}") from error
    return guide


def _rebuilt(
    cls: type[Guide], saved: tuple[str, dict[str, Any], dict[str, Any]], program: Program
) -> Guide:
    name, options, state = saved
    sites = [[site.name, list(site.shape), site.stop - site.start] for site in program.sites]
    if [list(site) for site in state["_extra_state"]["sites"]] != sites:
        raise ValueError(f"its {name} is of other sites than its posterior")
    numbers = sum(value.numel() for value in state.values() if isinstance(value, Tensor))
    with _Within(2 * numbers + SMALL):
        guide = cls(program.model, **options)
        guide.load_state_dict(state)
    guide.setup(program.example.x)
    guide.to(device=program.device, dtype=program.dtype)
    if _plain(guide.options()) != options:
        raise ValueError(f"its {name} has options {guide.options()} once it is read")
    return guide


class _Within(TorchDispatchMode):
    """Refuses tensors of more numbers than a bound before they are made.

    Args:
        bound: How many numbers a tensor may have.
    """

    def __init__(self, bound: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        self.bound = bound

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        for value in args:
            count = value.numel() if isinstance(value, Tensor) else 0
            if isinstance(value, list | tuple) and all(type(size) is int for size in value):
                count = math.prod(value)
            if abs(count) > self.bound:
                raise ValueError(f"its options ask for {abs(count)} numbers, its state has fewer")
        return func(*args, **(kwargs or {}))


def is_known(guide: Guide) -> bool:
    """Whether its class, and that of each guide in it, is of this package."""
    classes = [type(part) for part in guide.modules() if isinstance(part, Guide)]
    return all(Guide.known.get(cls.__name__) is cls for cls in classes)


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


def _plain(values: dict[str, Any]) -> Any:
    """The values as JSON has them, lists for tuples and numbers of Python for NumPy's."""
    return json.loads(json.dumps(values))


def _units(units: Standardiser | None) -> dict[str, Tensor] | None:
    return None if units is None else {"loc": units.loc, "scale": units.scale}


def _listed(sites: list[Any]) -> str:
    return ", ".join(f"{name} {tuple(shape)}" for name, shape in sites)
