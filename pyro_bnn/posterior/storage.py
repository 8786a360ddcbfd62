"""Posteriors on disk: tensors and plain values in one file, nothing unpickled on the way back."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from pyro_bnn import guides, memory
from pyro_bnn.data import Standardiser
from pyro_bnn.errors import FileFormatError, OutputError, SiteError
from pyro_bnn.files.tensors import read_tensors, write_tensors
from pyro_bnn.guides import Guide
from pyro_bnn.guides.low_rank_precision import AutoLowRankPrecision
from pyro_bnn.handled import module_of
from pyro_bnn.posterior.document import Stored
from pyro_bnn.posterior.posterior import DrawsPosterior, GuidePosterior, Posterior
from pyro_bnn.program.handlers import Model
from pyro_bnn.program.program import Program
from pyro_bnn.program.terms import Params

FORMAT = "pyro_bnn posterior"
VERSION = 2
DRAWS_OF_UNKNOWN_GUIDES = 1_000
SMALL = 1 << 16  # numbers that a guide may take beside its parameters
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
        "params": dict(posterior.params),
        "buffers": {name: program.snapshot.buffers[name] for name in _buffers(program.model)},
        "fingerprint": _fingerprint(program, posterior.params),
    }
    known = isinstance(posterior, GuidePosterior) and _is_known(posterior.guide)
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
        document["z"] = (
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
    write_tensors(document, path)


def load(path: Path, model: Model) -> Posterior:
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
    if stored.guide is not None:
        guide = _guide(stored, program, path)
        return GuidePosterior(program, guide, stored.provenance)
    return _draws(stored, program, path)


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


def _draws(stored: Stored, program: Program, path: Path) -> DrawsPosterior:
    z = stored.z
    if z is None or z.shape[-1] != program.num_latents:
        raise FileFormatError(
            f"{path} is damaged: its draws have shape {None if z is None else list(z.shape)}, not "
            f"[C, S, {program.num_latents}]"
        )
    return DrawsPosterior(
        program,
        _resident(z, program),
        stored.provenance,
        sample_stats={name: value.numpy() for name, value in stored.sample_stats.items()},
        log_q=stored.log_q,
    )


def _resident(z: Tensor, program: Program) -> Tensor:
    """Draws where and as the model computes, or as they are where they stay in the file."""
    return z if z.nbytes > memory.STORED_DRAWS else z.to(program.initial)


def _guide(stored: Stored, program: Program, path: Path) -> Guide:
    """The guide of a file, whose parameters are as large as those in the file or it is refused."""
    assert stored.guide is not None
    name = stored.guide[0]
    cls = _class_named(name)
    if not (isinstance(cls, type) and issubclass(cls, Guide)):
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
    if json.loads(json.dumps(guide.options())) != options:
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


def _is_known(guide: Guide) -> bool:
    """Whether its class, and that of each guide in it, is of this package."""
    classes = [type(part) for part in guide.modules() if isinstance(part, Guide)]
    return all(_class_named(cls.__name__) is cls for cls in classes)


def _class_named(name: str) -> Any:
    """The guide of this name, that which an engine alone makes among them; None for others."""
    made_by_slang = AutoLowRankPrecision if name == AutoLowRankPrecision.__name__ else None
    return getattr(guides, name, made_by_slang)


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


def _units(units: Standardiser | None) -> dict[str, Tensor] | None:
    return None if units is None else {"loc": units.loc, "scale": units.scale}


def _listed(sites: list[Any]) -> str:
    return ", ".join(f"{name} {tuple(shape)}" for name, shape in sites)
