"""How a posterior came about: by what method, with which options, in which units."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from pyro_bnn.data import Dataset, Standardiser
from pyro_bnn.posterior.bound_gap import BoundGap
from pyro_bnn.posterior.doubling import Doubling
from pyro_bnn.posterior.nature import Nature

_processes: ContextVar[int] = ContextVar("processes", default=1)


@dataclass(frozen=True)
class Provenance:
    """How a posterior came about.

    Attributes:
        method: Name of the guide or sampler, such as ``"AutoNormal"``.
        engine: Name of the engine, such as ``"SVI"``.
        options: The engine's options, JSON-able.
        seed: Seed of the run.
        wall_time: Duration of the run in seconds, capture included; NaN where it is not known.
        num_parameters: Numbers that the run fitted: the guide's and the model's parameters, or P
            for a sampler.
        losses: Negative ELBO estimate of each step ``[steps]``, nats; empty for samplers.
        inputs: Units of x, or None.
        target: Units of y, or None.
        phases: Seconds of each phase of the run, such as warm-up, by name; may be empty.
        threads: CPU threads that torch used in the process of the run; None where it is not known,
            as in older files.
        processes: How many such processes the run shared the machine with, itself included, as
            far as :func:`one_of_processes` said.
        gpu: Name of the GPU of the run; None where it was on the CPU.
        input_names: Names of the I columns of x, in their order; None where unknown.
        target_names: Names of several targets; None of one, or where unknown.
        class_names: Names of the classes 0 .. C-1, or None.
        doubling: What the second half of the run gained; None where it was not compared.
        bound_gap: How far what was maximised lies below the ELBO; None where it is no such bound.
        nature: What the engine declares that it is; None where nobody did, as in older files.
    """

    method: str
    engine: str
    options: dict[str, Any] = field(default_factory=dict)
    seed: int = 0
    wall_time: float = 0.0
    num_parameters: int = 0
    losses: NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))
    inputs: Standardiser | None = None
    target: Standardiser | None = None
    phases: dict[str, float] = field(default_factory=dict)
    threads: int | None = field(default_factory=torch.get_num_threads)
    processes: int = field(default_factory=_processes.get)
    gpu: str | None = None
    input_names: tuple[str, ...] | None = None
    target_names: tuple[str, ...] | None = None
    class_names: tuple[str, ...] | None = None
    doubling: Doubling | None = None
    bound_gap: BoundGap | None = None
    nature: Nature | None = None


def of_data(data: Dataset | Provenance) -> dict[str, Any]:
    """Units and names of the rows of a fit, as a :class:`Provenance` takes them."""
    names = ("inputs", "target", "input_names", "target_names", "class_names")
    return {name: getattr(data, name) for name in names}


@contextmanager
def one_of_processes(count: int, threads: int) -> Iterator[None]:
    """Runs inside know that they are one of some processes, and keep to their threads of torch."""
    before, token = torch.get_num_threads(), _processes.set(count)
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)
        _processes.reset(token)
