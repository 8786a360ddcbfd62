"""A posterior predictive as a file that other programs run."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np
import torch
from torch import Tensor

from pyro_bnn.data.arrays import ArrayLike, check_finite
from pyro_bnn.errors import BNNWarning, ShapeError
from pyro_bnn.memory import GIB
from pyro_bnn.posterior.protocol import ProgramPosterior
from pyro_bnn.posterior.rows import in_order_of_fit
from pyro_bnn.predictive.exported import QUANTILES, Summary, compare, require_suffix, served, write
from pyro_bnn.predictive.prediction import require_level
from pyro_bnn.program.random_state import derived_seed

if TYPE_CHECKING:
    from pyro_bnn.posterior.provenance import Provenance
    from pyro_bnn.program.program import Program


class Exportable(ProgramPosterior, Protocol):
    """What an export reads of a posterior."""

    provenance: Provenance
    predictor: Program

    @property
    def has_moments(self) -> bool:
        """Whether predictions have a mean and sd."""
        ...

    def count(self, num_samples: int | None) -> int:
        """The number of draws asked for."""
        ...


NUM_EXPORTED = 100  # draws by default
COMPARED = 3  # rows at which a program is compared with the prediction


def export(
    posterior: Exportable,
    path: Path,
    example: ArrayLike,
    num_samples: int | None,
    seed: int,
    *,
    raw: bool,
    level: float | None,
) -> None:
    """Write the program of a posterior; see :meth:`Posterior.export`."""
    require_suffix(path)
    if level is not None:
        require_level(level)
    fit = posterior.provenance
    rows = in_order_of_fit(example, fit, raw=raw)
    if rows.ndim < 1 or not len(rows):
        raise ShapeError(f"example has shape {tuple(rows.shape)}, but holds N rows, N at least 1")
    check_finite(rows, "example")
    rows = rows.to(posterior.program.device, _own_dtype(example, rows))
    count = posterior.count(_default(posterior) if num_samples is None else num_samples)
    summary = Summary(
        posterior.predictor,
        posterior.params,
        posterior.in_blocks(count, seed),
        derived_seed(seed, 1),
        level,
        posterior.has_moments,
    )
    target = fit.target if raw else None
    program = served(summary, rows, fit.inputs if raw else None, target)
    if level is not None and summary.is_number and QUANTILES[0] not in program.names:
        warnings.warn(
            f"the program has no {', '.join(QUANTILES)}: quantiles of this likelihood are not made "
            "of operations of torch. level=None leaves them out without a warning",
            BNNWarning,
            stacklevel=4,
        )
    some = example[:COMPARED] if not hasattr(example, "iloc") else example.iloc[:COMPARED]
    expected = posterior.predict(some, count, seed, raw)
    compare(program, rows[:COMPARED], expected, level, summary.program.dtype)
    write(program, rows, path)


def _own_dtype(example: ArrayLike, rows: Tensor) -> torch.dtype:
    """The dtype in which rows will come: that of an array of numbers, else of the tensor."""
    if isinstance(example, Tensor):
        return example.dtype
    if isinstance(example, np.ndarray) and example.dtype.kind in "fiu":
        return torch.as_tensor(example[:1]).dtype
    return rows.dtype


def _default(posterior: Exportable) -> int:
    """At most 100 draws in 1 GiB: as many of each atom, and one at least of each chain and atom."""
    fits = max(1, GIB // max(1, posterior.program.initial.nbytes))
    most = min(NUM_EXPORTED, fits)
    atoms = posterior.num_atoms
    if atoms is not None:
        return atoms * max(1, NUM_EXPORTED // atoms)  # each is in the file once
    return min(posterior.count(None), max(most, posterior.num_chains))
