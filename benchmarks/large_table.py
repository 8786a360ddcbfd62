"""A table of any number of rows, and what each stage of a report on it costs.

    python -m benchmarks.large_table table.csv 1000000      # write one; .parquet too
    python -m benchmarks.large_table --stages table.csv     # read, fit, evaluate, write: JSON

Twenty-one standard normal inputs, of which four matter, and a target with Gaussian noise of sd 0.3:
numbers of four decimals, 165 MB for a million rows of CSV.
"""

from __future__ import annotations

import argparse
import json
import resource
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

NUM_INPUTS = 21
NOISE = 0.3
TARGET = "y"
ROWS_AT_ONCE = 250_000
STAGES = ("read", "fit", "evaluate", "write")


def write(path: Path, num_rows: int, seed: int = 0) -> None:
    """Write a table as CSV or, where the path ends in ``.parquet``, as Parquet."""
    import pyarrow as pa
    from pyarrow import csv, parquet

    names = [*(f"x{i}" for i in range(NUM_INPUTS)), TARGET]
    schema = pa.schema([(name, pa.float64()) for name in names])
    is_parquet = path.suffix == ".parquet"
    writer = parquet.ParquetWriter if is_parquet else csv.CSVWriter
    generator = np.random.default_rng(seed)
    with writer(path, schema) as file:
        for start in range(0, num_rows, ROWS_AT_ONCE):
            x, y = rows(min(ROWS_AT_ONCE, num_rows - start), generator)
            columns = [pa.array(np.ascontiguousarray(column)) for column in (*x.T, y)]
            file.write_table(pa.table(columns, schema=schema))


def rows(count: int, generator: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Inputs ``[N, 21]`` and a target ``[N]``."""
    x = generator.standard_normal((count, NUM_INPUTS)).round(4)
    f = np.sin(2 * x[:, 0]) + x[:, 1] * x[:, 2] / 2 + x[:, 3] / 2
    return x, (f + NOISE * generator.standard_normal(count)).round(4)


def stages(path: Path) -> dict[str, dict[str, float]]:
    """Seconds of each stage at the defaults, and the peak of memory until its end, GB."""
    import pyro_bnn as bnn

    found: dict[str, dict[str, float]] = {}

    def timed(stage: str, call: Callable[[], Any]) -> Any:
        start = time.perf_counter()
        value = call()
        unit = 1 if sys.platform == "darwin" else 1024  # of ru_maxrss
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e9
        found[stage] = {"seconds": time.perf_counter() - start, "peak_gb": peak}
        return value

    split = timed("read", lambda: bnn.data.load(str(path), target=TARGET))
    model = bnn.models.MLP(NUM_INPUTS)
    engine = bnn.SVI(bnn.guides.AutoNormal)
    posterior = timed("fit", lambda: engine.run(model, split.train, progress=False))
    comparison = timed("evaluate", lambda: bnn.report.compare({"AutoNormal": posterior}, split))
    with tempfile.TemporaryDirectory() as folder:
        timed("write", lambda: comparison.save(folder))
    return found


def main(argv: list[str] | None = None) -> None:
    """Write a table, or print what its stages cost."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.large_table",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("path", type=Path)
    parser.add_argument("rows", type=int, nargs="?", help="how many rows to write")
    parser.add_argument("--stages", action="store_true", help="read, fit, evaluate and write it")
    given = parser.parse_args(argv)
    if given.stages == (given.rows is not None):
        parser.error("give a number of rows to write, or --stages to read those that are there")
    if given.stages:
        print(json.dumps(stages(given.path)))
    else:
        write(given.path, given.rows)


if __name__ == "__main__":
    main()
