"""What a report says of a fit beside its draws: all that is read of a posterior, once."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from pyro_bnn.models.description import describe
from pyro_bnn.posterior.arviz_groups import digest
from pyro_bnn.posterior.nature import Nature
from pyro_bnn.report.evaluation.natures import nature_of

if TYPE_CHECKING:
    from pyro_bnn.posterior.protocol import PosteriorLike

SAME = (
    "method", "engine", "wall_time", "threads", "processes", "num_parameters", "num_chains",
    "num_stored_draws", "num_atoms", "elbo_kind", "objective", "seed",
)  # fmt: skip
"""Fields that a record has from its posterior as they are."""


@dataclass(frozen=True, eq=False)
class ModelRecord:
    """A model in words: one object for all methods that share it.

    Attributes:
        description: One line.
        sites: Name and shape of each latent site; empty where it is not known.
        fingerprint: Densities of the model at one fixed point, which tell it from another of the
            same words; empty until it is saved, and of a model that is no program.
    """

    description: str
    sites: tuple[tuple[str, tuple[int, ...]], ...] = ()
    fingerprint: tuple[float, ...] = ()


def record_of(model: object, records: dict[Any, ModelRecord]) -> ModelRecord:
    """The record of a model: one for an object, or for equal words that stand for a model.

    Args:
        model: The model of a posterior.
        records: Those of the models so far; added to.
    """
    key = model if isinstance(model, str) else id(model)
    if key not in records:
        records[key] = ModelRecord(describe(model))
    return records[key]


@dataclass(frozen=True, kw_only=True, eq=False)
class FitRecord:
    """What a report says of a fit; see `pyro_bnn.posterior.protocol.PosteriorLike`.

    Attributes:
        method: Name of the guide or sampler.
        engine: Name of the engine.
        seed: Seed of the fit.
        options: Options of engine and guide, as JSON holds them.
        wall_time: Seconds the fit took.
        threads: CPU threads of the fit; None where it is not known.
        processes: Processes that shared the machine.
        gpu: Name of the GPU; None on the CPU.
        num_parameters: Numbers that were fitted.
        num_chains: Chains C.
        num_stored_draws: Stored draws over all chains; None if there is no end of them.
        num_atoms: Number of functions that all draws are of; None where each draw is its own.
        elbo_kind: ``"none"`` where there is no ELBO.
        objective: Name of what the fit maximised.
        nature: What the posterior is.
        model: Its model.
        point_estimates: Digests of the parameters of the model that are held as points, by name.
        sample_stats: Statistics of a sampler ``[C, S]``; empty for approximations.
        rows: What a log evidence is a probability of, in words: number of training rows, units of
            y, densities or masses; empty where it is not known.
    """

    method: str
    engine: str
    seed: int = 0
    options: Mapping[str, Any] = field(default_factory=dict)
    wall_time: float = 0.0
    threads: int | None = None
    processes: int = 1
    gpu: str | None = None
    num_parameters: int = 0
    num_chains: int = 1
    num_stored_draws: int | None = None
    num_atoms: int | None = None
    elbo_kind: str = "none"
    objective: str = ""
    nature: Nature = field(default_factory=Nature)
    model: ModelRecord
    point_estimates: Mapping[str, str] = field(default_factory=dict)
    sample_stats: Mapping[str, np.ndarray] = field(default_factory=dict)
    rows: str = ""

    @classmethod
    def of(
        cls, posterior: PosteriorLike, models: dict[Any, ModelRecord] | None = None
    ) -> FitRecord:
        """That of a posterior.

        Args:
            posterior: The posterior.
            models: Records of models, by the models; added to.
        """
        params: Mapping[str, Any] = getattr(posterior, "params", {})  # which not everybody's has
        return cls(
            **{name: getattr(posterior, name) for name in SAME},
            options=json.loads(json.dumps(dict(posterior.options), default=_plain)),
            gpu=getattr(posterior, "gpu", None),
            nature=nature_of(posterior),
            model=record_of(posterior.model, {} if models is None else models),
            point_estimates={
                name: digest(torch.as_tensor(value)) for name, value in params.items()
            },
            sample_stats=dict(posterior.sample_stats),
            rows=evidence_rows(posterior),
        )


def _plain(value: Any) -> Any:
    """A number or list for one of NumPy; words for all else that JSON has not."""
    return value.tolist() if isinstance(value, np.generic | np.ndarray) else str(value)


def evidence_rows(posterior: PosteriorLike) -> str:
    """What a log evidence is a probability of, in words; empty of what is no program."""
    program, provenance = (getattr(posterior, name, None) for name in ("program", "provenance"))
    if program is None or provenance is None:
        return ""
    target = provenance.target
    units = target and (target.loc.flatten().tolist(), target.scale.flatten().tolist())
    kind = "masses" if program.likelihood_family.support.is_discrete else "densities"
    return f"{program.num_data} rows, units {units}, {kind}"
