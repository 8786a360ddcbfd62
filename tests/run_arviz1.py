"""Run the tests of ``pyro_bnn.arviz_io`` under ArviZ 1.x, which needs Python 3.12 or newer.

``python tests/run_arviz1.py`` looks for such a Python on the path and among pyenv's versions, makes
``.venv-arviz1`` with ArviZ and without torch and Pyro, has trees of posteriors written by the
Python that runs it, which has both, and runs pytest there, with the arguments that it was given. It
exits with pytest's status; with 0 and one line where there is no such Python.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv-arviz1"
REQUIREMENTS = (
    "arviz>=1.1",
    "numpy",
    "h5netcdf",
    "h5py",
    "pytest",
    "pytest-xdist",
    "matplotlib",
    "jaxtyping",
)
TESTED = (
    *(f"pyro_bnn/arviz_io/{name}.py" for name in ("statistics", "loo", "tree", "netcdf")),
    "tests/test_arviz_io.py",
    "tests/test_arviz_on_posteriors.py",
)

SUITS = "import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 12))"
READY = (
    "import arviz, h5netcdf, h5py, jaxtyping, matplotlib, pytest, sys, xdist; "
    "sys.exit(tuple(map(int, arviz.__version__.split('.')[:2])) < (1, 1))"
)


def candidates() -> Iterator[str]:
    """Interpreters that may be new enough, best known first."""
    yield sys.executable
    for name in ("python3.13", "python3.12", "python3.14"):
        if found := shutil.which(name):
            yield found
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    yield from map(str, sorted(pyenv.glob("versions/3.1[2-9]*/bin/python"), reverse=True))


def accepts(python: str, code: str) -> bool:
    """Whether an interpreter starts and runs ``code`` to exit status 0; a pyenv shim may not."""
    try:
        done = subprocess.run([python, "-c", code], capture_output=True, check=False)
    except OSError:
        return False
    return done.returncode == 0


def main() -> int:
    """Find the interpreter, make the environment, run the tests; returns the exit status."""
    # bin/python on POSIX, Scripts/python.exe on Windows
    python = str(VENV / ("Scripts/python.exe" if os.name == "nt" else "bin/python"))
    if not accepts(python, READY):
        base = next((found for found in candidates() if accepts(found, SUITS)), None)
        if base is None:
            sys.stdout.write(
                "test-arviz1: skipped, no Python 3.12 or newer on the path or under pyenv\n"
            )
            return 0
        for command in (
            [base, "-m", "venv", "--clear", str(VENV)],
            [python, "-m", "pip", "install", "--quiet", *REQUIREMENTS],
        ):
            if subprocess.run(command, cwd=ROOT, check=False).returncode:
                sys.stderr.write(f"test-arviz1: failed to make {VENV.name}: {command}\n")
                return 1
    env = {**os.environ, "PYTHONPATH": str(ROOT), "MPLBACKEND": "Agg"}
    with tempfile.TemporaryDirectory() as trees:
        command = [sys.executable, "-m", "tests.arviz_trees", trees]
        if subprocess.run(command, cwd=ROOT, env=env, check=False).returncode:
            sys.stderr.write("test-arviz1: failed to write trees of posteriors\n")
            return 1
        # conftest.py and the installed package may need torch, which this environment has not
        done = subprocess.run(
            [
                *(python, "-m", "pytest", "--noconftest", "-p", "no:cacheprovider"),
                *sys.argv[1:],
                *TESTED,
            ],
            cwd=ROOT,
            env={**env, "PYRO_BNN_TREES": trees},
            check=False,
        )
    return done.returncode


if __name__ == "__main__":
    sys.exit(main())
