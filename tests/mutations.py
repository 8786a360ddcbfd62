"""Deliberate bugs, and the test that sees each: ``make mutations``.

``tests/mutations.toml`` holds the bugs. Each is written into a copy of the tree; the test that saw
it last time runs there, then, if it passes, the test files that the bug names, until one test
fails. The copy is mended, and the test that failed is to pass: one that fails anyway saw nothing.
Each run is forked from a process that has imported torch, Pyro and ArviZ, and nothing of this tree.

    python tests/mutations.py --jobs 2 --out mutations.tsv       # all of them
    python tests/mutations.py --only split -m "not slow"         # those whose file has "split"
    python tests/mutations.py --tests ../other/tests             # by the tests of another checkout
"""

from __future__ import annotations

import argparse
import itertools
import multiprocessing
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import tomllib
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
LIST = Path(__file__).with_suffix(".toml")
SECONDS = 300.0  # of the tests of one bug, before it counts as one that hangs
SURVIVED, HANGS = "survived", "hangs"
ALWAYS = "fails without the bug: "
AIM = 0.95  # share of the bugs that tests are to see

FORKS = multiprocessing.get_context("forkserver")
IMPORTED = (  # once, for all runs; pytest imports its plugins itself: hypothesis, jaxtyping
    "arviz",
    "h5netcdf",
    "joblib",
    "matplotlib.figure",
    "pandas",
    "PIL.Image",
    "pooch",
    "pyro.contrib.bnn",
    "pyro.infer.autoguide",
    "safetensors.torch",
    "scipy.stats",
    "sklearn.model_selection",
    "torch",
    "typer.testing",
)


@dataclass(frozen=True)
class Mutation:
    """A bug: what it breaks, the text replaced in a file, and the tests that should see it."""

    breaks: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]  # files
    by: str = ""  # the test that saw it last time, as pytest names it: it runs first

    def applied(self, text: str) -> str:
        """The text of the file with the bug.

        Raises:
            ValueError: If the text that it replaces is not there, or more than once.
        """
        if (count := text.count(self.old)) != 1:
            raise ValueError(f"{self.file} has {count} times, not once: {self.old!r}")
        return text.replace(self.old, self.new)


def read(path: Path = LIST) -> list[Mutation]:
    """The bugs of a list."""
    entries = tomllib.loads(path.read_text("utf-8"))["mutation"]
    return [Mutation(**{**entry, "tests": tuple(entry["tests"])}) for entry in entries]


def copy_of(root: Path, tests: Path, to: Path) -> Path:
    """The files that git knows of under a root, with the tests of this or another checkout."""
    listed = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(listed, cwd=root, check=True, capture_output=True, text=True).stdout
    for name in names.splitlines():
        if (root / name).exists():
            (to / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(root / name, to / name, follow_symlinks=False)
    if tests != root / "tests":
        shutil.rmtree(to / "tests", ignore_errors=True)
        shutil.copytree(tests, to / "tests", ignore=shutil.ignore_patterns("__pycache__"))
    return to


def run_pytest(tree: str, arguments: Sequence[str], output: str) -> None:
    """Pytest in a tree, in a process of its own group; ends it with pytest's status."""
    os.setpgid(0, 0)
    os.chdir(tree)
    sys.path.insert(0, tree)
    sys.dont_write_bytecode = False
    os.environ.update(
        PYTHONPATH=tree, OMP_NUM_THREADS="1", COLUMNS="400", PYTHONDONTWRITEBYTECODE=""
    )
    with Path(output).open("w", encoding="utf-8") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    sys.exit(pytest.main([*arguments]))


class Tree:
    """A copy of the tree, into which bugs are written, and in which tests run."""

    stamps = itertools.count(1)  # no two versions of a file have one time, as bytecode is told by

    def __init__(self, path: Path, marks: str = "") -> None:
        self.path, self.marks = path, marks
        self.passed: set[str] = set()  # tests that are known to pass without a bug

    def failing(self, *tests: str) -> str:
        """The first of these tests that fails; ``SURVIVED`` if none does, ``HANGS`` if one does.

        Raises:
            RuntimeError: If pytest could not run them.
        """
        if not tests:
            return SURVIVED
        options = ["-x", "-q", "-p", "no:cacheprovider", "--tb=no", "-rfE"]
        marks = ["-m", self.marks] if self.marks else []
        output = self.path.with_suffix(".txt")
        process = FORKS.Process(
            target=run_pytest, args=(str(self.path), [*options, *marks, *tests], str(output))
        )
        process.start()
        process.join(SECONDS)
        if process.exitcode is None:
            assert process.pid is not None
            os.killpg(process.pid, signal.SIGKILL)
            process.join()
            return HANGS
        said = output.read_text("utf-8", "replace")
        if process.exitcode in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
            return SURVIVED
        failed = re.search(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", said, flags=re.MULTILINE)
        if failed is None:
            raise RuntimeError(f"pytest ended with {process.exitcode}: {said[-1000:]}")
        return failed[1]

    def seen_by(self, mutation: Mutation) -> str:
        """The first test that fails with the bug, ``SURVIVED`` or ``HANGS``.

        ``ALWAYS`` and its name for a test that fails without the bug too.
        """
        path = self.path / mutation.file
        kept = path.replace(path.with_name(path.name + ".kept"))
        path.write_text(mutation.applied(kept.read_text("utf-8")), "utf-8")
        stamp = next(self.stamps)
        os.utime(path, (stamp, stamp))
        try:
            seen = self.failing(mutation.by) if self.has(mutation.by) else SURVIVED
            if seen == SURVIVED:
                seen = self.failing(*filter(self.has, mutation.tests))
        finally:
            kept.replace(path)
        if seen not in {SURVIVED, HANGS, *self.passed}:
            whole = [] if "::" in seen else ["--collect-only"]  # a file that could not be imported
            if self.failing(seen, *whole) != SURVIVED:
                return ALWAYS + seen
            self.passed.add(seen)
        return seen

    def has(self, test: str) -> bool:
        """Whether the tree has a test file, or its test function."""
        file, *within = test.partition("[")[0].split("::")
        path = self.path / file
        return path.is_file() and (not within or f"def {within[-1]}(" in path.read_text("utf-8"))


def try_all(
    mutations: Iterable[Mutation], tests: Path, marks: str, jobs: int
) -> Iterator[tuple[Mutation, str]]:
    """Each bug with the test that saw it, in order; a copy of the tree a process."""
    local = threading.local()
    os.environ["OMP_NUM_THREADS"] = "1"  # before torch is imported
    FORKS.set_forkserver_preload(list(IMPORTED))
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(jobs) as pool:

        def one(mutation: Mutation) -> tuple[Mutation, str]:
            if not hasattr(local, "tree"):
                copy = copy_of(ROOT, tests, Path(tempfile.mkdtemp(dir=folder)))
                local.tree = Tree(copy, marks)
            return mutation, local.tree.seen_by(mutation)

        yield from pool.map(one, mutations)


def main(arguments: list[str]) -> int:
    """Try the bugs; 0 where at least ``AIM`` of them were seen."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "--only", default="", help="text in the path of the file, or in what breaks"
    )
    parser.add_argument("--tests", type=Path, default=ROOT / "tests", help="folder of the tests")
    parser.add_argument("-m", dest="marks", default="", help="marks, as pytest's -m")
    parser.add_argument("--jobs", type=int, default=2, help="how many are tried side by side")
    parser.add_argument("--out", type=Path, help="where to write the table, tab-separated")
    options = parser.parse_args(arguments)
    mutations = [m for m in read() if options.only in m.file or options.only in m.breaks]
    rows, num_seen = ["file\tbreaks\tseen by"], 0
    for mutation, seen in try_all(mutations, options.tests.resolve(), options.marks, options.jobs):
        num_seen += seen != SURVIVED and not seen.startswith(ALWAYS)
        rows.append(f"{mutation.file}\t{mutation.breaks}\t{seen}")
        print(f"{seen:90} {mutation.file}: {mutation.breaks}", flush=True)  # noqa: T201  # a command
    print(f"{num_seen} of {len(mutations)} were seen")  # noqa: T201
    if options.out:
        options.out.write_text("\n".join(rows) + "\n", "utf-8")
    return 0 if num_seen >= AIM * len(mutations) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
