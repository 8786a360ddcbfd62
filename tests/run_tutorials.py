"""Execute notebooks of ``tutorials/`` from top to bottom: ``tests/run_tutorials.py FILE...``.

In place by default, as ``make tutorials`` does it; ``--out FOLDER`` leaves the files alone, and
``--smoke`` sets ``PYRO_BNN_SMOKE=1``, at which the notebooks shorten their fits. A cell that raises
or writes to stderr, as every warning does, fails the run.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, DeadKernelError

METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}  # the same whoever executes them
CELL_SECONDS = 600
ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",  # the networks are small: threads of one operation wait for each other
    "MPLBACKEND": "module://matplotlib_inline.backend_inline",
    "PYTHONWARNINGS": "ignore:IProgress not found",  # tqdm's, where ipywidgets is not installed
}


def execute(path: Path) -> Any:
    """The notebook with fresh outputs, run in an empty folder.

    Raises:
        CellExecutionError: If a cell raises.
        RuntimeError: If a cell writes to stderr.
    """
    notebook: Any = nbformat.read(path, as_version=4)  # type: ignore[no-untyped-call]
    with tempfile.TemporaryDirectory() as folder:
        client = NotebookClient(
            notebook,
            kernel_name="python3",
            timeout=CELL_SECONDS,
            record_timing=False,
            resources={"metadata": {"path": folder}},
        )
        client.execute()
    notebook.metadata = METADATA
    for number, cell in enumerate(notebook.cells):
        for output in cell.get("outputs", []):
            if output.get("name") == "stderr":
                raise RuntimeError(f"cell {number} of {path.name} wrote to stderr: {output.text}")
    nbformat.validate(notebook)
    return notebook


def main(arguments: list[str]) -> int:
    """Execute the notebooks named on the command line; 0 where all went well."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition(":")[0])
    parser.add_argument("notebooks", nargs="+", type=Path)
    parser.add_argument("--out", type=Path, help="folder for the executed notebooks")
    parser.add_argument("--smoke", action="store_true", help="shorten the fits")
    options = parser.parse_args(arguments)
    os.environ.update(ENVIRONMENT, PYRO_BNN_SMOKE="1" if options.smoke else "0")
    if folder := os.environ.get("PYRO_BNN_DATA"):  # notebooks run in a folder of their own
        os.environ["PYRO_BNN_DATA"] = str(Path(folder).resolve())
    for path in options.notebooks:
        start = time.monotonic()
        try:
            notebook = execute(path)
        except (CellExecutionError, DeadKernelError, RuntimeError) as error:
            print(f"{path}: {error}", file=sys.stderr)  # noqa: T201  # a command
            return 1
        target = path if options.out is None else options.out / path.name
        target.parent.mkdir(parents=True, exist_ok=True)
        nbformat.write(notebook, target)  # type: ignore[no-untyped-call]
        print(f"{target}: {time.monotonic() - start:.0f} s")  # noqa: T201  # a command
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
