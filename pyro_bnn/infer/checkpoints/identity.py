"""What a run is: that which must be equal for another to go on where it stopped."""

from __future__ import annotations

import hashlib
import json
import math
import platform
from collections.abc import Iterable
from typing import Any, Protocol

import numpy as np
import pyro
import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from pyro_bnn import __version__
from pyro_bnn.data import Call
from pyro_bnn.errors import DataError, OptionError, SiteError
from pyro_bnn.program.device import gpu_name
from pyro_bnn.program.fingerprint import fingerprint, wave
from pyro_bnn.program.joint import Joint
from pyro_bnn.program.program import Program

TOLERANCE = 1e-3  # of densities: precisions and devices differ by less, models by more


class IdentifiedRows(Protocol):
    """Inputs and targets, or the targets of several data sets with these inputs."""

    @property
    def x(self) -> Tensor:
        """The inputs."""

    @property
    def y(self) -> Tensor:
        """The targets."""


class Identity:
    """What a run is.

    Args:
        program: The model as tensor functions.
        data: Rows as the caller gave them, or the arguments of a model that has none.
        engine: Name of the engine.
        options: What must be equal, those of the guide and the optimiser included, JSON-able.
        seed: Seed of the run.
        trains_params: Whether the engine trains the model's point-estimated parameters, whose
            values at the start are then no part of what the run is.
        in_order: Whether the order of rows is part of it: not that of a ``DataLoader``.

    Attributes:
        plain: What a checkpoint says of it, as JSON has it. ``"sites"`` has the shape of each;
            ``"fingerprint"`` log prior, norm of its gradient by each site, log likelihoods and f of
            the example rows, at one z; ``"data"`` the SHA-256 of x and y.
    """

    def __init__(
        self,
        program: Joint,
        data: IdentifiedRows | Call,
        *,
        engine: str,
        options: dict[str, Any],
        seed: int,
        trains_params: bool,
        in_order: bool = True,
    ) -> None:
        run = {
            "engine": engine,
            "options": options,
            "seed": seed,
            "sites": {site.name: list(site.shape) for site in program.sites},
            "dtype": str(program.dtype),
            "fingerprint": _fingerprint(program, trains_params=trains_params),
            "num_data": getattr(program, "num_data", 1),
            "data": _of_call(data)
            if isinstance(data, Call)
            else _checksum(data, in_order=in_order),
        }
        self.plain: dict[str, Any] = json.loads(json.dumps(run))

    def check(self, saved: dict[str, Any], where: object) -> None:
        """Compare with what a checkpoint says.

        Args:
            saved: The attributes of the run that was saved.
            where: The checkpoint, for the message.

        Raises:
            DataError: If it was run on other data.
            OptionError: If it was another engine, with other options or another seed.
            SiteError: If it was a run of another model.
        """
        own = self.plain
        options = {"engine": own["engine"], "seed": own["seed"], **own["options"]}
        theirs = {"engine": saved["engine"], "seed": saved["seed"], **saved["options"]}
        if differ := [name for name in options | theirs if _differ(name, options, theirs)]:
            what = ", ".join(
                f"{name}={theirs.get(name)!r} where this run has {options.get(name)!r}"
                for name in differ
            )
            raise OptionError(
                f"the checkpoint {where} is of a run with {what}: run it with the same options, or "
                "pass another folder"
            )
        if _differ("sites", own, saved) or own["dtype"] != saved["dtype"]:
            raise SiteError(
                f"the checkpoint {where} is of a model with {_listed(saved)}, but this model has "
                f"{_listed(own)}"
            )
        data, their_data = (f"{v['num_data']} rows, {v['data'][:12]}" for v in (own, saved))
        if own["num_data"] != saved["num_data"] or own["data"] != saved["data"]:
            raise DataError(
                f"the checkpoint {where} is of a run on other data ({their_data}) than this one "
                f"({data}): pass the data as they were"
            )
        if differ_at := _first_difference(own["fingerprint"], saved["fingerprint"], own["sites"]):
            raise SiteError(
                f"the checkpoint {where} is of another model: its sites are the same, but not its "
                f"densities at the same weights, {differ_at}; build it with the prior, the "
                "activations and the likelihood of that run"
            )

    def has_bits_of(self, saved: dict[str, Any]) -> bool:
        """Whether the densities are those of the run that was saved in every bit."""
        return not _differ("fingerprint", self.plain, saved)


def surroundings(device: torch.device) -> dict[str, Any]:
    """What the bits of a run depend on beside what it is, by the words of a message."""
    return {
        "threads": torch.get_num_threads(),
        "device": gpu_name(device) or device.type,
        "processor": f"{platform.machine()} {torch.backends.cpu.get_cpu_capability()}",
        "Python": platform.python_version(),
        "torch": str(torch.__version__),
        "pyro-ppl": pyro.__version__,
        "numpy": np.__version__,
        "pyro-bnn": __version__,
    }


def _fingerprint(program: Joint, *, trains_params: bool) -> list[float]:
    params = {name: value.detach() for name, value in program.params.items()}
    if trains_params:
        is_trained = {name: value.requires_grad for name, value in program.params.items()}
        params = {k: wave(value) if is_trained[k] else value for k, value in params.items()}
    z = wave(program.initial).requires_grad_()
    with torch.enable_grad():
        log_prior = program.log_prior(z, params=params)
        gradient = torch.zeros_like(z)
        if log_prior.requires_grad:  # false where every prior is flat
            (gradient,) = torch.autograd.grad(log_prior, z, materialize_grads=True)
    # one total hides a prior that differs at a site of few numbers among many
    norms = [float(gradient[site.start : site.stop].norm()) for site in program.sites]
    if not isinstance(program, Program):
        with torch.no_grad():
            parts = [float(part) for part in program.log_densities(z.detach(), params=params)]
        return [parts[1], *norms, parts[0]]
    first, *others = fingerprint(program, z.detach(), params, program.example).tolist()
    return [first, *norms, *others]


def _of_call(call: Call) -> str:
    """SHA-256 of the arguments: of tensors and arrays by their bytes, of all else by its words."""
    digest = hashlib.sha256()
    for leaf in tree_leaves((call.args, call.kwargs)):
        if isinstance(leaf, np.ndarray | Tensor):
            array = np.ascontiguousarray(leaf.detach().cpu() if isinstance(leaf, Tensor) else leaf)
            digest.update(f"{array.dtype} {array.shape} ".encode() + array.tobytes())
        else:
            words = (
                repr(leaf) if isinstance(leaf, int | float | str | None) else type(leaf).__name__
            )
            digest.update(words.encode())
    digest.update(repr(sorted(call.kwargs)).encode())
    return digest.hexdigest()


def _checksum(dataset: IdentifiedRows, *, in_order: bool) -> str:
    rows = [_bytes_of_rows(values) for values in (dataset.x, dataset.y)]
    if not in_order:
        joint = np.hstack(rows)
        rows = [np.sort(joint.view(f"V{joint.shape[1]}"), axis=0)]
    digest = hashlib.sha256()
    for values in (dataset.x, dataset.y):
        digest.update(f"{values.dtype} {tuple(values.shape)} ".encode())
    for block in rows:
        digest.update(block.data)
    return digest.hexdigest()


def _bytes_of_rows(values: Tensor) -> Any:
    plain = values.detach().cpu().contiguous().reshape(len(values), -1)
    return plain.view(torch.uint8).numpy()


def _differ(name: str, ours: dict[str, Any], theirs: dict[str, Any]) -> bool:
    return json.dumps(ours.get(name)) != json.dumps(theirs.get(name))  # NaN equals itself


def _first_difference(ours: list[float], theirs: list[float], sites: Iterable[str]) -> str:
    """Where two fingerprints differ, in words; empty if they do not."""
    if len(ours) != len(theirs):
        return f"of which there are {len(theirs)} where this model has {len(ours)}"
    parts = ["log p(z)", *(f"the norm of its gradient by {name}" for name in sites)]
    parts += ["log p(y | z)"] * 2
    for i, (a, b) in enumerate(zip(ours, theirs, strict=True)):
        is_close = math.isclose(a, b, rel_tol=TOLERANCE, abs_tol=TOLERANCE)
        if not is_close and not (math.isnan(a) and math.isnan(b)):
            what = parts[i] if i < len(parts) else "f"
            return f"{what} = {b:.6g} where this model has {a:.6g}"
    return ""


def _listed(run: dict[str, Any]) -> str:
    sites = ", ".join(f"{name} {tuple(shape)}" for name, shape in run["sites"].items())
    return f"{sites} in {str(run['dtype']).removeprefix('torch.')}"
