"""Imports point one way, from the data to the command line, and heavy packages load only on use."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

# Rooms of one line may import each other and those of the lines above.
ROOMS = (
    ("errors",),
    ("files", "pages", "netcdf_checks", "netcdf_parts"),
    ("data",),
    ("models", "layers", "priors", "likelihoods", "handled"),
    (
        *("program", "capture", "effects", "families", "latents", "simplify", "snapshot", "fusion"),
        *("cuda_graph", "noise", "recording", "kernels", "layout"),
    ),
    ("guides",),
    (
        *("posterior", "prediction", "memory", "export", "storage"),
        *("draws", "streams", "provenance", "chunks", "conditional", "collected", "predictive"),
        "remembered",
        *("disk", "stored", "untrusted", "pickles"),
    ),
    ("infer",),
    ("arviz_io", "trees"),
    ("diagnostics", "prior_checks"),
    ("report",),
    (
        *("registry", "catalogue", "options", "terminal", "jobs", "networks", "saved_fit"),
        *("fit_file", "training_file", "resuming"),
        *("uncertainty", "predictions", "side_by_side", "repeats", "cli", "__main__"),
    ),
)
RANK = {room: rank for rank, rooms in enumerate(ROOMS) for room in rooms}


# --- the checker ---------------------------------------------------------------------------------


def is_type_checking(test: ast.expr) -> bool:
    """Whether the test of an ``if`` is ``TYPE_CHECKING`` or ``typing.TYPE_CHECKING``."""
    name = test.attr if isinstance(test, ast.Attribute) else getattr(test, "id", None)
    return name == "TYPE_CHECKING"


def imports_at_module_level(body: list[ast.stmt]) -> Iterator[ast.Import | ast.ImportFrom]:
    """Imports that run when a module is imported: not those in functions or for type checkers."""
    for statement in body:
        if isinstance(statement, ast.Import | ast.ImportFrom):
            yield statement
        elif isinstance(statement, ast.If) and is_type_checking(statement.test):
            yield from imports_at_module_level(statement.orelse)
        elif not isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
            for field in ("body", "orelse", "finalbody"):
                yield from imports_at_module_level(getattr(statement, field, []))
            for part in (*getattr(statement, "handlers", []), *getattr(statement, "cases", [])):
                yield from imports_at_module_level(part.body)


def imported_names(node: ast.Import | ast.ImportFrom, package: str) -> list[str]:
    """Absolute dotted names that one statement imports; ``package`` resolves relative ones."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    module = node.module or ""
    if node.level:
        parts = package.split(".")
        module = ".".join([*parts[: len(parts) - node.level + 1], *([module] if module else [])])
    return [f"{module}.{alias.name}" for alias in node.names]


def wrong_imports(folder: Path) -> list[str]:
    """Breaches of the direction of imports in the package ``folder``, one line each.

    Args:
        folder: A package laid out as ``pyro_bnn``; its own ``__init__.py`` is exempt (it is lazy).

    Returns:
        Lines ``file:line: what is wrong``; empty if every import points the right way.
    """
    breaches = []
    modules = {path.stem for path in folder.iterdir()}
    for path in sorted(python_files(folder)):
        parts = path.relative_to(folder.parent).with_suffix("").parts
        if parts[1:] == ("__init__",):
            continue
        own, package = parts[1], ".".join(parts[:-1])
        if own not in RANK:
            breaches.append(f"{path}:1: {own!r} has no place in ROOMS")
            continue
        for node in imports_at_module_level(ast.parse(path.read_text("utf-8")).body):
            for name in imported_names(node, package):
                top, _, rest = name.partition(".")
                room = rest.partition(".")[0]
                if top != folder.name or room.startswith("__"):
                    continue
                where = f"{path}:{node.lineno}"
                if RANK.get(room, -1) > RANK[own]:
                    breaches.append(f"{where}: {own!r} imports from {room!r}")
                elif room not in RANK and room not in modules:
                    breaches.append(
                        f"{where}: imports {name!r} through the lazy package; "
                        "import it from the module that defines it"
                    )
    return breaches


def python_files(folder: Path) -> list[Path]:
    """Python files below a folder; links to folders (``pyro_bnn/guides``) are followed."""
    files = []
    for path in folder.iterdir():
        if path.is_dir():
            files += python_files(path)
        elif path.suffix == ".py":
            files.append(path)
    return files


def star_imports(path: Path) -> list[str]:
    """Lines of a file that hold ``import *``."""
    return [
        f"{path}:{node.lineno}"
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.ImportFrom) and any(alias.name == "*" for alias in node.names)
    ]


def loaded_by(statement: str, cwd: Path) -> set[str]:
    """Top-level packages in ``sys.modules`` of a fresh interpreter after one statement."""
    code = f"{statement}\nimport json, sys\nprint(json.dumps(sorted(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=cwd, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return {name.partition(".")[0] for name in json.loads(done.stdout.splitlines()[-1])}


# --- the checker finds what it looks for ---------------------------------------------------------


def write_tree(root: Path, files: dict[str, str]) -> Path:
    """A made-up package ``tiny`` below ``root``."""
    for name, text in {"__init__.py": "", **files}.items():
        path = root / "tiny" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")
    return root / "tiny"


@pytest.mark.parametrize(
    ("name", "text", "breach"),
    [
        ("data/load.py", "import tiny.report", "load.py:1: 'data' imports from 'report'"),
        ("data/load.py", "\nfrom tiny.cli import main", "load.py:2: 'data' imports from 'cli'"),
        ("posterior.py", "from tiny import infer", "'posterior' imports from 'infer'"),
        ("models/deep/mlp.py", "from ...guides import x", "'models' imports from 'guides'"),
        ("models/__init__.py", "from ..guides import x", "'models' imports from 'guides'"),
        ("program.py", "from . import guides", "'program' imports from 'guides'"),
        ("errors.py", "import os, tiny.data", "'errors' imports from 'data'"),
        ("infer/svi.py", "try:\n    import tiny.report\nexcept ImportError: pass", "svi.py:2"),
        ("infer/svi.py", "try: pass\nexcept OSError:\n    import tiny.report", "svi.py:3"),
        ("infer/svi.py", "class A:\n    import tiny.report", "svi.py:2"),
        ("infer/svi.py", "if x: pass\nelse:\n    import tiny.report", "svi.py:3"),
        ("infer/svi.py", "with x:\n    import tiny.report", "svi.py:2"),
        ("infer/svi.py", "match x:\n    case 1:\n        import tiny.report", "svi.py:3"),
        ("infer/svi.py", "if TYPE_CHECKING: pass\nelse:\n    import tiny.report", "svi.py:3"),
        ("report/html.py", "from tiny import SVI", "imports 'tiny.SVI' through the lazy package"),
        ("report/html.py", "import tiny", "imports 'tiny' through the lazy package"),
        ("helper.py", "", "helper.py:1: 'helper' has no place in ROOMS"),
        ("helper.py", "from tiny import helper", "helper.py:1: 'helper' has no place in ROOMS"),
    ],
)
def test_checker_finds_a_breach(tmp_path: Path, name: str, text: str, breach: str) -> None:
    found = wrong_imports(write_tree(tmp_path, {name: text}))
    assert len(found) == 1
    assert breach in found[0]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("__init__.py", "from tiny.infer import SVI"),
        ("data/load.py", "from tiny.errors import DataError\nfrom . import split\nimport json"),
        ("layers/linear.py", "from tiny.priors import Normal\nfrom tiny.models import MLP"),
        ("priors/normal.py", "from tiny.layers import Linear"),
        ("guides/normal.py", "from tiny.program import Program"),
        ("posterior.py", "from tiny import __version__, program"),
        ("data/load.py", "def plot():\n    from tiny.report import html"),
        ("data/load.py", "class A:\n    async def plot(self):\n        import tiny.report"),
        ("data/load.py", "if TYPE_CHECKING:\n    from tiny.report import Comparison"),
        ("data/load.py", "if typing.TYPE_CHECKING:\n    from tiny.report import Comparison"),
        ("data/load.py", "import tiny_report.report"),
        ("cli.py", "from tiny.registry import names\nfrom tiny.report import compare"),
    ],
)
def test_checker_allows_what_is_allowed(tmp_path: Path, name: str, text: str) -> None:
    assert wrong_imports(write_tree(tmp_path, {name: text})) == []


def test_checker_follows_links(tmp_path: Path) -> None:
    (tmp_path / "guides").mkdir()
    (tmp_path / "guides" / "normal.py").write_text("import tiny.infer", "utf-8")
    package = write_tree(tmp_path, {})
    (package / "guides").symlink_to("../guides")
    assert [line.partition(": ")[2] for line in wrong_imports(package)] == [
        "'guides' imports from 'infer'"
    ]


def test_star_imports_are_found(tmp_path: Path) -> None:
    path = tmp_path / "a.py"
    path.write_text("from os import path\ndef f():\n    pass\nfrom os.path import *\n", "utf-8")
    assert star_imports(path) == [f"{path}:4"]


def test_loaded_packages_are_found(tmp_path: Path) -> None:
    (tmp_path / "probe_package.py").write_text("import xmlrpc.client", "utf-8")
    assert {"probe_package", "xmlrpc"} <= loaded_by("import probe_package", tmp_path)


# --- the package ---------------------------------------------------------------------------------


def test_imports_point_one_way() -> None:
    assert wrong_imports(ROOT / "pyro_bnn") == []


def test_every_guide_is_looked_at() -> None:
    seen = {path.resolve() for path in python_files(ROOT / "pyro_bnn")}
    assert seen >= set(python_files(ROOT / "guides"))


@pytest.mark.slow("a second or more")
@pytest.mark.parametrize(
    "folder", ["pyro_bnn", "tests", *(path.name for path in ROOT.glob("benchmarks"))]
)
def test_no_utils_and_no_star_imports(folder: str) -> None:
    files = python_files(ROOT / folder)
    assert [path for path in files if path.name == "utils.py"] == []
    assert [line for path in files for line in star_imports(path)] == []


def test_importing_the_package_is_cheap() -> None:
    heavy = {"torch", "pyro", "arviz", "matplotlib", "sklearn", "pandas", "scipy", "typer"}
    assert loaded_by("import pyro_bnn", ROOT) & heavy == set()


@pytest.mark.parametrize("module", ["arviz_io", "errors"])
def test_needs_neither_torch_nor_pyro(module: str) -> None:
    loaded = loaded_by(f"import pyro_bnn.{module}", ROOT)
    assert "pyro_bnn" in loaded
    assert loaded & {"torch", "pyro"} == set()
