"""Evaluations in files: beside the draws of a posterior stands all that a report needs of it."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pyro_bnn import arviz_io
from pyro_bnn.data.split import Split
from pyro_bnn.diagnostics.probes import Probes
from pyro_bnn.errors import BNNError, FileFormatError
from pyro_bnn.files.records import Arrays, put_together, taken_apart
from pyro_bnn.files.schema import expect, require_version
from pyro_bnn.report.evaluation.evaluate import Evaluation
from pyro_bnn.report.evaluation.fit_record import ModelRecord

if TYPE_CHECKING:
    from xarray import DataTree

    from pyro_bnn.posterior.protocol import PosteriorLike

GROUP = "evaluation"
"""Group of a tree with the arrays of an evaluation, and all else as text in an attribute."""
VERSION = 1
"""Of that group; a reader refuses others."""


@dataclass(frozen=True, kw_only=True, eq=False)
class SavedEvaluation:
    """What a file has of the comparison that wrote it, beside draws.

    Attributes:
        entry: The numbers of its method.
        split: The rows at which all draws are kept.
        compared: Names of all methods of the comparison.
        num_draws: Draws behind the scores.
        seed: Seed of all draws.
        reference: Name of the reference, or None.
        probes: Rows off the data, or None.
    """

    entry: Evaluation
    split: Split
    compared: tuple[str, ...]
    num_draws: int
    seed: int
    reference: str | None
    probes: Probes | None

    @property
    def title(self) -> str:
        """Its data in words."""
        return f"{self.split.name}, split {self.split.index}"


def tree_of(saved: SavedEvaluation, posterior: PosteriorLike, split: Split) -> DataTree:
    """The ArviZ tree of a method: its draws, all that are stored or those scored; its evaluation.

    Args:
        saved: Its evaluation.
        posterior: The posterior.
        split: All rows.
    """
    import xarray as xr

    count = posterior.num_stored_draws or saved.num_draws
    tree = posterior.to_arviz(split.train, split.test, num_samples=count, seed=saved.seed)
    tree = arviz_io.with_options(tree, {"name": saved.entry.name})
    saved = replace(saved, entry=_with_fingerprint(saved.entry, tree))
    arrays: Arrays = {}
    document = {"version": VERSION, GROUP: taken_apart(saved, GROUP, arrays)}
    variables = {name: (_dims(array.shape), array) for name, array in arrays.items()}
    tree[GROUP] = xr.Dataset(variables, attrs={"document": json.dumps(document)})
    return tree


def _dims(shape: tuple[int, ...]) -> list[str]:
    """Names of dimensions by their sizes, as few as can be: NetCDF stores each."""
    return [f"n{size}_{shape[:axis].count(size)}" for axis, size in enumerate(shape)]


def _with_fingerprint(entry: Evaluation, tree: DataTree) -> Evaluation:
    """The numbers with what tells the model from another; its tree has it, if it is a program."""
    told: Any = arviz_io.options(tree).get("model")
    if told is None or entry.fit.model.fingerprint:
        return entry
    sites = tuple((name, tuple(shape)) for name, shape in told["sites"])
    model = ModelRecord(entry.fit.model.description, sites, tuple(told["fingerprint"]))
    return replace(entry, fit=replace(entry.fit, model=model))


def read(path: str | os.PathLike[str]) -> SavedEvaluation:
    """Read the evaluation in a file of ``Comparison.save``.

    Args:
        path: A NetCDF file.

    Raises:
        FileFormatError: If the file is missing, no NetCDF file, damaged, of another version of this
            package, or holds no evaluation.
    """
    path = Path(path)
    tree = arviz_io.load_netcdf(path)
    if GROUP not in tree.children:
        name = arviz_io.options(tree).get("name") or arviz_io.options(tree).get("method", "name")
        raise FileFormatError(
            f"{path} is an ArviZ file, but holds no evaluation to make a report of, as those of "
            "posterior.to_arviz and of earlier versions: evaluate the posterior again, and save it "
            f"by bnn.compare({{{str(name)!r:.80}: posterior}}, split).save(folder)"
        )
    group = tree[GROUP]
    try:
        document = expect(json.loads(group.attrs["document"]), dict, "document")
        require_version(document, VERSION, path)
        arrays = {str(name): np.asarray(value) for name, value in group.data_vars.items()}
        saved = put_together(SavedEvaluation, document[GROUP], GROUP, arrays)
        _check(saved)
    except FileFormatError:
        raise
    except (BNNError, LookupError, TypeError, ValueError, OverflowError, RuntimeError) as error:
        reason = error if isinstance(error, BNNError) else repr(error)
        raise FileFormatError(f"{path} is damaged: {reason}") from error
    return saved


def _check(saved: SavedEvaluation) -> None:
    """Check the sizes that one part has in common with another.

    Raises:
        ValueError: If two disagree.
    """
    entry, split = saved.entry, saved.split
    scores, num_rows = entry.held_out, len(split.test)
    f = scores.function_draws
    if f.shape[1] != num_rows or len(scores.log_score) < num_rows or not len(f):
        raise ValueError(f"its draws {list(f.shape)} are not of its {num_rows} held-out rows")
    if saved.num_draws < 1:
        raise ValueError(f"it says that {saved.num_draws} draws were scored")
    if entry.fit.num_chains < 1 or len(f) % entry.fit.num_chains:
        raise ValueError(f"its {len(f)} draws are not of {entry.fit.num_chains} chains")
    probes, at = saved.probes, entry.at_probes
    if at is not None and (probes is None or at.shape[:2] != (len(f), len(probes.x))):
        raise ValueError("its draws at the probes are of others")
