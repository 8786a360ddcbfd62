"""The UCI regression benchmark in its standard splits, regenerated from the published seed."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from pyro_bnn.data.dataset import Dataset
from pyro_bnn.data.fetch import fetch_uci
from pyro_bnn.data.split import NUM_SPLITS, Split, Table, check_index, published_split
from pyro_bnn.data.tables import read_table
from pyro_bnn.errors import DataError


@dataclass(frozen=True, kw_only=True)
class UCISet:
    """What is known about one set; columns 0 .. ``num_inputs - 1`` are inputs, the next the target.

    Args:
        folder: In the public repository and below ``$PYRO_BNN_DATA/uci``.
        num_columns: Columns of the file.
        num_inputs: I; also the column of the target. Later columns are dropped: the last of
            ``uci/naval``, turbine decay, is a second target and no input.
        target_name: Target with its unit.
        sha256: Checksum of ``data.txt``, None where unknown.
        input_names: Names of the inputs, where known.
        num_splits: Splits of the protocol.
        note: What a reader of results should know.
    """

    folder: str
    num_columns: int
    num_inputs: int
    target_name: str
    sha256: str | None = None
    input_names: Sequence[str] | None = None
    num_splits: int = NUM_SPLITS
    note: str = ""


@functools.cache
def uci_sets() -> Mapping[str, UCISet]:
    """The sets by name, in alphabetical order; they stand in ``uci_sets.json``."""
    text = Path(__file__).with_name("uci_sets.json").read_text(encoding="utf-8")
    return {name: UCISet(**entries) for name, entries in json.loads(text).items()}


def load_uci(name: str, index: int = 0) -> Split:
    """Load one standard split of a UCI set.

    Args:
        name: A key of :func:`uci_sets`.
        index: Number of the split: 0 .. 19, for protein 0 .. 4.

    Returns:
        The split, by the published protocol (see :func:`published_rows`).

    Raises:
        OptionError: If ``index`` is out of range.
        DataError: If the file cannot be had, fails its checksum or has other columns.

    References:
        Hernandez-Lobato & Adams, "Probabilistic Backpropagation for Scalable Learning of Bayesian
        Neural Networks", ICML 2015, arXiv:1502.05336; files of Gal & Ghahramani, "Dropout as a
        Bayesian Approximation", ICML 2016, arXiv:1506.02142.
    """
    spec = uci_sets()[name]
    check_index(index, spec.num_splits, name)
    path = fetch_uci(spec.folder, spec.sha256)
    rows = read_table(path)
    if rows.shape[1] != spec.num_columns:
        raise DataError(
            f"{name}: expected {spec.num_columns} columns in {str(path)!r}, got {rows.shape[1]}"
        )
    data = Dataset(
        torch.tensor(rows[:, : spec.num_inputs]),
        torch.tensor(rows[:, spec.num_inputs]),
        input_names=spec.input_names,
        target_name=spec.target_name,
    )
    return published_split(Table(data, "regression", name, spec.note), index)
