"""How a posterior came about: by what method, with which options, in which units."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pyro_bnn.data import Standardiser


@dataclass(frozen=True)
class Provenance:
    """How a posterior came about.

    Attributes:
        method: Name of the guide or sampler, such as ``"AutoNormal"``.
        engine: Name of the engine, such as ``"SVI"``.
        options: The engine's options, JSON-able.
        seed: Seed of the run.
        wall_time: Duration of the run in seconds, capture included.
        num_parameters: Numbers that the run fitted: the guide's and the model's parameters, or P
            for a sampler.
        losses: Negative ELBO estimate of each step ``[steps]``, nats; empty for samplers.
        inputs: Units of x, or None.
        target: Units of y, or None.
        phases: Seconds of each phase of the run, such as warm-up, by name; may be empty.
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
