"""Imports point one way, from the data to the command line, and heavy packages load only on use."""

from __future__ import annotations

import ast
import functools
import json
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests import house
from tests.house import (
    MOST_IN_ROOT,
    ROOMS,
    ROOT,
    against_the_flow,
    arrows,
    circles,
    in_root,
    python_files,
    upward,
)
from tests.house import code_lines as lines_of_code

PACKAGE = ROOT / "pyro_bnn"
STAR = re.compile(r"import[\s\\]*\*")  # spaces and the end of a line may stand between


def star_imports(path: Path) -> list[str]:
    """Lines of a file that hold ``import *``."""
    text = path.read_text("utf-8")
    if not STAR.search(text):
        return []  # parsing takes longer than all else here
    return [
        f"{path}:{node.lineno}"
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.ImportFrom) and any(alias.name == "*" for alias in node.names)
    ]


def loaded_by(statement: str, cwd: Path) -> set[str]:
    """Top-level packages in ``sys.modules`` of a fresh interpreter after one statement."""
    return {name.partition(".")[0] for name in modules_after(statement, cwd)}


def modules_after(statement: str, cwd: Path) -> list[str]:
    """``sys.modules`` of a fresh interpreter after one statement."""
    code = f"{statement}\nimport json, sys\nprint(json.dumps(sorted(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=cwd, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    modules: list[str] = json.loads(done.stdout.splitlines()[-1])
    return modules


def loaded_after_each(statements: Sequence[str], cwd: Path) -> list[set[str]]:
    """``sys.modules`` of a fresh interpreter after each of some statements, in turn."""
    say = "print('loaded', *sys.modules)"
    code = "\n".join(["import sys", *(f"{one}\n{say}" for one in statements)])
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=cwd, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stdout.splitlines() if line.startswith("loaded ")]
    return [set(line.split()[1:]) for line in lines]


def through_the_lazy_package(folder: Path) -> list[str]:
    """Imports of names that the package's ``__init__`` would have to load, one line each."""
    rooms = {module.split(".")[1] for module in python_files(folder) if "." in module}
    return [
        f"{arrow.source}:{arrow.line}: imports {arrow.name!r} through the lazy package; import it "
        "from the module that defines it"
        for arrow in arrows(folder)
        if arrow.target == folder.name != arrow.source
        and not arrow.name.startswith("__")
        and arrow.name not in rooms
    ]


def first_sentence(path: Path) -> str:
    """The first line of a module's docstring."""
    return (ast.get_docstring(ast.parse(path.read_text("utf-8"))) or "").partition("\n")[0]


# --- the checker finds what it looks for ---------------------------------------------------------


def write_tree(root: Path, files: dict[str, str]) -> Path:
    """A made-up package ``tiny`` below ``root``; folders get an empty ``__init__.py``."""
    for name, text in {"__init__.py": "", **files}.items():
        path = root / "tiny" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        (path.parent / "__init__.py").touch()
        path.write_text(text, "utf-8")
    return root / "tiny"


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("data/load.py", "from tiny.report import html"),
        ("posterior/posterior.py", "from tiny.infer import svi"),
        ("models/deep/mlp.py", "from ...guides import x"),
        ("models/__init__.py", "from ..guides import x"),
        ("program/program.py", "from .. import guides"),
        ("errors.py", "import os, tiny.data"),
        ("infer/svi.py", "try:\n    import tiny.report\nexcept ImportError: pass"),
        ("infer/svi.py", "class A:\n    import tiny.report"),
        ("infer/svi.py", "match x:\n    case 1:\n        import tiny.report"),
        ("data/load.py", "def plot():\n    from tiny.report import html"),
        ("data/load.py", "class A:\n    async def plot(self):\n        import tiny.report"),
        ("data/load.py", "if TYPE_CHECKING:\n    from tiny.report import Comparison"),
    ],
)
def test_an_import_upward_is_found(tmp_path: Path, name: str, text: str) -> None:
    rooms = {"report/__init__.py": "", "guides/__init__.py": "", "data/__init__.py": ""}
    rooms |= {"infer/svi.py": "", "errors.py": ""}
    found = upward(arrows(write_tree(tmp_path, {**rooms, name: text})))
    expected = f"tiny.{name.removesuffix('.py').replace('/', '.')}".removesuffix(".__init__")
    assert [arrow.source for arrow in found] == [expected]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("__init__.py", "from tiny.infer import SVI"),
        ("data/load.py", "from tiny.errors import DataError\nfrom . import split\nimport json"),
        ("guides/normal.py", "def f():\n    from tiny.program import Program"),
        ("posterior/posterior.py", "from tiny import __version__, program"),
        ("data/load.py", "import tiny_report.report"),
        ("cli/main.py", "from tiny.registry import names\nfrom tiny.report import compare"),
    ],
)
def test_what_points_down_is_allowed(tmp_path: Path, name: str, text: str) -> None:
    package = write_tree(tmp_path, {"program/__init__.py": "", name: text})
    assert upward(arrows(package)) == []
    assert circles(arrows(package)) == []
    assert through_the_lazy_package(package) == []


def test_an_import_through_the_lazy_package_is_found(tmp_path: Path) -> None:
    package = write_tree(tmp_path, {"report/html.py": "from tiny import SVI\nimport tiny"})
    lines = through_the_lazy_package(package)
    assert [line.partition(" through")[0] for line in lines] == [
        "tiny.report.html:1: imports 'SVI'",
        "tiny.report.html:2: imports ''",
    ]


def test_a_circle_is_found_also_through_what_a_package_exports(tmp_path: Path) -> None:
    files = {
        "infer/a.py": "def f():\n    from tiny.infer.b import g",
        "infer/b.py": "if TYPE_CHECKING:\n    from tiny.infer import C",
        "infer/c.py": "from tiny.infer.a import f",
        "infer/d.py": "from tiny.infer.a import f",
    }
    package = write_tree(tmp_path, files)
    (package / "infer/__init__.py").write_text("from tiny.infer.c import C", "utf-8")
    assert circles(arrows(package)) == [["tiny.infer.a", "tiny.infer.b", "tiny.infer.c"]]


def test_links_are_followed(tmp_path: Path) -> None:
    (tmp_path / "guides").mkdir()
    (tmp_path / "guides" / "normal.py").write_text("import tiny.infer", "utf-8")
    package = write_tree(tmp_path, {"infer/svi.py": ""})
    (package / "guides").symlink_to("../guides")
    (arrow,) = upward(arrows(package))
    assert (arrow.source, arrow.target) == ("tiny.guides.normal", "tiny.infer")


def test_star_imports_are_found(tmp_path: Path) -> None:
    path = tmp_path / "a.py"
    path.write_text("from os import path\ndef f():\n    pass\nfrom os.path import *\n", "utf-8")
    assert star_imports(path) == [f"{path}:4"]


def test_loaded_packages_are_found(tmp_path: Path) -> None:
    (tmp_path / "probe_package.py").write_text("import xmlrpc.client", "utf-8")
    assert {"probe_package", "xmlrpc"} <= loaded_by("import probe_package", tmp_path)


def test_lines_of_code_leave_out_what_is_none() -> None:
    code = "x = 1  # one\n# a comment\n\n\n"
    text = f'"""Doc\n\nof two."""\n\n{code}def f():\n    """Doc."""\n    return x\n'
    assert lines_of_code(text) == 3


def test_big_classes_are_found(tmp_path: Path) -> None:
    long = "\n".join(["class Long:", *[f"    x{i} = 1" for i in range(house.MOST_IN_CLASS)]])
    text = f"if True:\n    class Short:\n        x = 1\n{long}\n"
    package = write_tree(tmp_path, {"infer/svi.py": text})
    assert house.big_classes(package) == {"tiny.infer.svi.Long": house.MOST_IN_CLASS + 1}


def test_names_that_mean_several_things_are_found(tmp_path: Path) -> None:
    family = "class Laplace:\n    pass"
    files = {
        "infer/laplace.py": f"{family}\nRows = list\nclass _Rows: pass\nROWS = 1",
        "priors/laplace.py": f"{family}\ndef Kind(): pass",
        "data/rows.py": "Rows: type = tuple",
        "likelihoods/normal.py": "class Normal: pass\nclass _Rows: pass\nROWS = 2",
        "priors/normal.py": "class Normal: pass\nKind = int",
        "priors/density.py": "class Normal: pass",
        "data/table.py": "if x:\n    from tiny.infer.laplace import Rows",
        "guides/a.py": "class Kind: pass",
    }
    assert house.homonyms(write_tree(tmp_path, files)) == {
        "Kind": ["tiny.guides.a", "tiny.priors.normal"],
        "Normal": ["tiny.likelihoods.normal", "tiny.priors.density", "tiny.priors.normal"],
        "Rows": ["tiny.data.rows", "tiny.infer.laplace"],
    }


def test_vague_names_of_attributes_are_found(tmp_path: Path) -> None:
    text = "class A:\n    told: int\n    x: int\ndef f(own):\n    own.past = own.mine\n"
    package = write_tree(tmp_path, {"infer/svi.py": text})
    assert house.vague_names(package) == ["tiny.infer.svi:1 told", "tiny.infer.svi:5 past"]


# --- the package ---------------------------------------------------------------------------------


def test_imports_point_one_way() -> None:
    assert [*map(str, upward(arrows(PACKAGE)))] == []
    assert through_the_lazy_package(PACKAGE) == []


def test_the_report_flows_one_way() -> None:
    assert [*map(str, against_the_flow(arrows(PACKAGE)))] == []


def test_a_report_that_flows_back_is_found(tmp_path: Path) -> None:
    files = {
        "report/evaluation/a.py": "from tiny.report.verdicts import b",
        "report/verdicts/b.py": "from tiny.report.evaluation import c",
        "report/evaluation/c.py": "",
    }
    (arrow,) = against_the_flow(arrows(write_tree(tmp_path, files)))
    assert arrow.source == "tiny.report.evaluation.a"


def test_no_files_import_each_other_in_a_circle() -> None:
    assert circles(arrows(PACKAGE)) == []


def test_every_room_has_a_floor_and_few_stand_in_the_root() -> None:
    rooms = {module.split(".")[1] for module in python_files(PACKAGE) if "." in module}
    assert rooms == set(ROOMS)
    assert len(in_root(PACKAGE)) <= MOST_IN_ROOT


@pytest.mark.slow("parses the package three times")
def test_big_classes_homonyms_and_vague_names_become_fewer() -> None:
    assert len(house.big_classes(PACKAGE)) <= house.MOST_BIG_CLASSES
    assert len(house.homonyms(PACKAGE)) <= house.MOST_HOMONYMS
    assert len(house.vague_names(PACKAGE)) <= house.MOST_VAGUE


def test_contributing_says_what_each_room_is_for() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
    folders = [PACKAGE / room / "__init__.py" for room in ROOMS]
    modules = [PACKAGE / f"{room}.py" for room in ROOMS if room != "__main__"]
    rows = [
        f"| `{(path.parent if path.stem == '__init__' else path).stem}` | {first_sentence(path)} |"
        for path in (*folders, *modules)
        if path.exists()
    ]
    assert len(rows) == len(ROOMS) - 1
    assert [row for row in rows if row not in text] == []


def test_every_guide_is_looked_at() -> None:
    seen = {path.resolve() for path in python_files(PACKAGE).values()}
    assert seen >= set(python_files(ROOT / "guides").values())


@pytest.mark.slow("a second or more")
@pytest.mark.parametrize(
    "folder", ["pyro_bnn", "tests", *(path.name for path in ROOT.glob("benchmarks"))]
)
def test_no_utils_and_no_star_imports(folder: str) -> None:
    files = python_files(ROOT / folder).values()
    assert [path for path in files if path.name == "utils.py"] == []
    assert [line for path in files for line in star_imports(path)] == []


LIGHT = ("pyro_bnn", "pyro_bnn.errors", "pyro_bnn.arviz_io")  # from the lightest on


@functools.cache
def packages_after_light() -> dict[str, set[str]]:
    """The packages that one process has loaded after it imported each of the light modules."""
    found = loaded_after_each([f"import {name}" for name in LIGHT], ROOT)
    return {
        name: {module.partition(".")[0] for module in loaded}
        for name, loaded in zip(LIGHT, found, strict=True)
    }


def test_importing_the_package_is_cheap() -> None:
    heavy = {"torch", "pyro", "arviz", "matplotlib", "sklearn", "pandas", "scipy", "typer"}
    loaded = packages_after_light()["pyro_bnn"]
    assert "pyro_bnn" in loaded
    assert loaded & heavy == set()


SMALL_NETWORK = """
import tempfile, torch, pyro_bnn as bnn
x = torch.linspace(-1, 1, 20).unsqueeze(-1)
data = bnn.Dataset(x, x[:, 0])
model = bnn.models.MLP(1, hidden=(3,))
engines = [
    bnn.SVI(bnn.guides.AutoNormal, num_steps=5, compile=True),
    bnn.SVI(bnn.guides.AutoLowRankMultivariateNormal, num_steps=5),
    bnn.NUTS(num_chains=2, warmup_steps=2, num_samples=2),
]
posteriors = [engine.run(model, data, progress=False) for engine in engines]
posteriors[0].predict(torch.linspace(-1, 1, 5_000).unsqueeze(-1)).mean
with tempfile.NamedTemporaryFile(suffix=".safetensors") as file:
    posteriors[0].save(file.name)
    bnn.Posterior.load(file.name, model).to_arviz(data, data)"""


# what is taken for granted is missed as the graph is recorded: nothing needs to be compiled
POOLING = """
import torch, pyro_bnn as bnn
from pyro_bnn.capture.inductor import compiling as inductor
inductor._compiled = lambda graph, *_, **__: graph.forward
net = torch.nn.Sequential(torch.nn.MaxPool2d(2), torch.nn.Flatten(), torch.nn.Linear(4, 1))
x = torch.randn(6, 1, 4, 4)
svi = bnn.SVI(bnn.guides.AutoDelta, num_steps=2, batch_size=4, compile=True)
svi.run(bnn.bayesian(net), (x, x[:, 0, 0, 0]), progress=False)"""


@functools.cache
def modules_after_fits() -> list[set[str]]:
    """The modules of one process after the small network, and after the one that pools too."""
    return loaded_after_each([SMALL_NETWORK, POOLING], ROOT)


@pytest.mark.slow("imports all that a day's work needs")
def test_a_small_network_imports_none_of_torchs_compiler() -> None:
    compiler = {"torch._dynamo", "torch._inductor.compile_fx", "sympy"}
    modules, _ = modules_after_fits()
    assert "pyro_bnn.infer.mcmc.nuts" in modules
    assert compiler.isdisjoint(modules)


@pytest.mark.slow("records for Inductor in a fresh process")
def test_a_network_that_pools_is_compiled_by_the_first_fit_of_a_process() -> None:
    """Inductor's form of max pooling takes for granted that its lowering has been imported.

    The first fit, that is, which Inductor compiles: those before it import nothing of it.
    """
    before, after = modules_after_fits()
    assert "torch._inductor.lowering" not in before
    assert "torch._inductor.lowering" in after


@pytest.mark.parametrize("module", ["arviz_io", "errors"])
def test_needs_neither_torch_nor_pyro(module: str) -> None:
    assert packages_after_light()[f"pyro_bnn.{module}"] & {"torch", "pyro"} == set()
