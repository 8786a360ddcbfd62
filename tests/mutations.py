"""Deliberate bugs, and the test that sees each: ``make mutations``.

``tests/mutations.toml`` holds the bugs. Each is written into a copy of the tree, the test files
that it names run there until one test fails, and the copy is mended. The tests are to pass on the
tree as it is: a test that fails anyway would count as one that saw the bug.

    python tests/mutations.py --jobs 2 --out mutations.tsv       # all of them, half an hour or so
    python tests/mutations.py --only split -m "not slow"         # those whose file has "split"
    python tests/mutations.py --tests ../other/tests             # by the tests of another checkout
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import tomllib
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
LIST = Path(__file__).with_suffix(".toml")
SECONDS = 900.0  # of the tests of one bug, before it counts as one that hangs
SURVIVED, HANGS = "survived", "hangs"
AIM = 0.95  # share of the bugs that tests are to see


@dataclass(frozen=True)
class Mutation:
    """A bug: what it breaks, the text replaced in a file, and the tests that should see it."""

    breaks: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]

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


def seen_by(mutation: Mutation, tree: Path, marks: str) -> str:
    """The first test that fails with the bug, ``SURVIVED`` or ``HANGS``."""
    path = tree / mutation.file
    text = path.read_text("utf-8")
    path.write_text(mutation.applied(text), "utf-8")
    options = [
        "-x",
        "-q",
        "-p",
        "no:cacheprovider",
        "--tb=no",
        "-rfE",
        *(["-m", marks] if marks else []),
    ]
    tests = [name for name in mutation.tests if (tree / name).exists()]
    try:
        done = subprocess.run(
            [sys.executable, "-B", "-m", "pytest", *options, *tests],
            cwd=tree,
            env={**os.environ, "PYTHONPATH": str(tree), "OMP_NUM_THREADS": "1", "COLUMNS": "400"},
            capture_output=True,
            text=True,
            check=False,
            timeout=SECONDS,
        )
    except subprocess.TimeoutExpired:
        return HANGS
    finally:
        path.write_text(text, "utf-8")
    if done.returncode in (0, 5):  # 5: none was selected
        return SURVIVED
    failed = re.search(r"^(?:FAILED|ERROR) (\S+)", done.stdout, flags=re.MULTILINE)
    if done.returncode not in (1, 2) or failed is None:  # 2: a test file that is not imported
        raise RuntimeError(f"pytest {done.returncode}: {done.stdout[-500:]} {done.stderr[-500:]}")
    return failed[1]


def try_all(
    mutations: Iterable[Mutation], tests: Path, marks: str, jobs: int
) -> Iterator[tuple[Mutation, str]]:
    """Each bug with the test that saw it, in order; a copy of the tree a process."""
    local = threading.local()
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(jobs) as pool:

        def one(mutation: Mutation) -> tuple[Mutation, str]:
            if not hasattr(local, "tree"):
                local.tree = copy_of(ROOT, tests, Path(tempfile.mkdtemp(dir=folder)))
            return mutation, seen_by(mutation, local.tree, marks)

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
        num_seen += seen != SURVIVED
        rows.append(f"{mutation.file}\t{mutation.breaks}\t{seen}")
        print(f"{seen:90} {mutation.file}: {mutation.breaks}", flush=True)  # noqa: T201  # a command
    print(f"{num_seen} of {len(mutations)} were seen")  # noqa: T201
    if options.out:
        options.out.write_text("\n".join(rows) + "\n", "utf-8")
    return 0 if num_seen >= AIM * len(mutations) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
