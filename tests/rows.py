"""Small data sets that are not standardised, for the tests of the command line and its parts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

from pyro_bnn.data import Dataset, Split
from pyro_bnn.data.csv_file import csv_fields
from pyro_bnn.data.encoding import Target, table_of
from pyro_bnn.data.labels import Task
from pyro_bnn.data.split import Table


def split_of(x: Any, y: Any) -> Split:
    """The same rows for training and test, not standardised."""
    data = Dataset(x, y)
    task = "regression" if data.num_classes is None else "classification"
    return Split(data, data, task, "rows")  # type: ignore[arg-type]  # mypy widens the literal


def regression(num_rows: int = 6, num_targets: int | None = None) -> Split:
    """Noise with two inputs."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(num_rows, 2, generator=generator)
    shape = (num_rows,) if num_targets is None else (num_rows, num_targets)
    return split_of(x, torch.randn(*shape, generator=generator))


def classes(num_classes: int) -> Split:
    """Twelve rows with three inputs, every class present."""
    generator = torch.Generator().manual_seed(0)
    return split_of(torch.randn(12, 3, generator=generator), torch.arange(12) % num_classes)


def houses(num_rows: int = 80) -> pd.DataFrame:
    """Prices by a number, a text and a truth value."""
    generator = np.random.default_rng(0)
    area = generator.uniform(30, 150, num_rows).round(1)
    town = generator.choice(["Oslo", "Rome"], num_rows)
    lift = generator.random(num_rows) < 0.5
    price = 3000 * area + 50_000 * (town == "Rome") + generator.normal(0, 9_000, num_rows)
    return pd.DataFrame({"area": area, "town": town, "lift": lift, "price": price.round()})


def read_csv(path: Path, target: Target | None = None, task: Task | None = None) -> Table:
    """The data set of a CSV file, unsplit."""
    return table_of(csv_fields(path), target, task, path.stem)
