"""The documentation's site: every public name has a place in it, every link leads somewhere."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import json
import pkgutil
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import typer

import pyro_bnn
from tests.report.browser import find_programs, start

ROOT = Path(__file__).parent.parent
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")),
    *(path for path in sorted((ROOT / "docs").rglob("*.md")) if "made" not in path.parts),
    *sorted((ROOT / "benchmarks").rglob("*.md")),
    *sorted((ROOT / "tutorials").rglob("*.md")),
    *sorted((ROOT / "tutorials").rglob("*.ipynb")),
]
INNER_ROOMS = {"cli", "registry", "memory", "errors"}
"""Rooms whose names are not a user's, or that have none."""


def module_of(name: str) -> Any:
    """``docs/<name>.py``."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "docs" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def generate() -> Any:
    """``docs/generate.py``."""
    return module_of("generate")


def public_rooms() -> dict[str, ModuleType]:
    """Rooms that say which of their names are public."""
    names = [module.name for module in pkgutil.iter_modules(pyro_bnn.__path__)]
    rooms = {name: importlib.import_module(f"pyro_bnn.{name}") for name in names}
    return {name: room for name, room in rooms.items() if getattr(room, "__all__", None)}


def test_every_public_name_is_in_the_reference_once(generate: Any) -> None:
    pages = generate.api()
    described = re.findall(
        r"^\.\. auto(?:class|function|data):: (.*)$", "\n".join(pages.values()), re.MULTILINE
    )
    assert len(described) == len(set(described)) > 200
    for name, room in {"": pyro_bnn, **public_rooms()}.items():
        if name in INNER_ROOMS:
            continue
        page = pages[name or "pyro_bnn"]
        for each in room.__all__:
            if not inspect.ismodule(getattr(room, each)):
                assert re.search(rf"[.:` ]{each}\b", page), f"{name}.{each}"


def test_every_rule_column_and_command_has_a_line(generate: Any) -> None:
    from pyro_bnn.cli.main import app
    from pyro_bnn.report.tables.metrics import METRICS
    from pyro_bnn.report.verdicts.verdicts import RULES

    verdicts, columns, commands = generate.verdicts(), generate.columns(), generate.command_line()
    assert [
        r.kind for r in RULES if f"| {r.kind} | {generate.escaped(r.what)} |" not in verdicts
    ] == []
    told = [metric for metric in METRICS if metric.meaning]
    assert [metric.key for metric in told if f"`{metric.key}`" not in columns] == []
    names = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    assert [name for name in names if f"## pyro-bnn {name}" not in commands] == []


def test_bibliography_has_the_papers_of_docstrings(generate: Any) -> None:
    text = generate.bibliography()
    assert "Leibig et al." in text  # one of several in a docstring
    assert "https://arxiv.org/abs/1706.04599" in text


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_link_leads_to_a_file(path: Path) -> None:
    text = path.read_text()
    if path.suffix == ".ipynb":
        text = re.sub(r'"image/png": "[^"]*"', "", text)
    for target in re.findall(r"\]\(([^)#\s:]+)(?:#[^)]*)?\)", text):
        if path.suffix == ".md" or target.endswith((".ipynb", ".md")):
            assert (path.parent / target).exists(), target


def test_every_page_is_in_a_table_of_contents() -> None:
    """Without Sphinx; a page that is in none is a warning, so an error, of ``make docs``."""
    listed = {
        (path.parent / name).with_suffix("").resolve()
        for path in (ROOT / "docs").rglob("*.md")
        for block in re.findall(r"```{toctree}\n(.*?)```", path.read_text(), re.DOTALL)
        for name in re.findall(r"^([\w./]+)$", block, re.MULTILINE)
    }
    pages = [path for path in PAGES if path.is_relative_to(ROOT / "docs")]
    pages += (ROOT / "benchmarks").glob("*.md")
    index = ROOT / "docs" / "index.md"
    assert [page for page in pages if page != index and page.with_suffix("") not in listed] == []


def test_continuous_integration_builds_the_site() -> None:
    assert "\nmake docs\n" in (ROOT / ".ci" / "run").read_text()


def test_the_first_screens_ratios_are_those_of_the_stored_run() -> None:
    rows = json.loads((ROOT / "benchmarks" / "results" / "svi.json").read_text())["rows"]
    small = {r["contender"]: r["ratio"] for r in rows if (r["net"], r["batch"]) == ("10-50-1", 128)}
    screen = " ".join((ROOT / "README.md").read_text().partition("<!-- home ends -->")[0].split())
    assert f"takes {small['pyro_bnn, AutoNormal']:.2f} times as long as" in screen
    assert f"stock Pyro takes {small['Pyro, AutoNormal']:.0f} times as long" in screen


PAGE = """<html><head><link rel="stylesheet" href="{css}"></head><body id="top">
<a href="{link}">a</a><a href="https://arxiv.org/abs/1">b</a><math><mi>x</mi></math></body></html>"""


@pytest.mark.parametrize(
    ("css", "link", "found"),
    [
        ("_static/a.css", "b.html#top", []),
        ("_static/a.css", "c.html", ["a.html: c.html does not exist"]),
        ("_static/a.css", "b.html#middle", ["a.html: b.html#middle has no such place"]),
        (
            "https://cdn.example.org/a.css",
            "b.html",
            ["a.html: fetches https://cdn.example.org/a.css from elsewhere"],
        ),
    ],
)
def test_build_finds_dead_links_and_what_is_fetched_elsewhere(
    css: str, link: str, found: list[str], tmp_path: Path
) -> None:
    pytest.importorskip("sphinx", reason="the extra docs is not installed")
    build = module_of("build")
    (tmp_path / "a.html").write_text(PAGE.format(css=css, link=link))
    (tmp_path / "b.html").write_text(PAGE.format(css="a.css", link="a.html"))
    assert list(build.broken(tmp_path)) == found


def test_formulas_are_mathml_and_a_wrong_one_is_told() -> None:
    pytest.importorskip("sphinx", reason="the extra docs is not installed")
    nodes = pytest.importorskip("docutils.nodes")
    mathml = module_of("mathml")
    node = nodes.math_block(text=r"a &= \tfrac12 \\ b &= 3")
    made = mathml.mathml(node, display=True)
    assert made.startswith('<math display="block"><mtable')
    assert made.count("<mtr>") == 2
    assert mathml.mathml(nodes.math(text="x"), display=False) == "<math><mi>x</mi></math>"
    with pytest.raises(mathml.LatexError, match="nonsense"):
        mathml.CONVERTER.convert_with_local_state(r"\nonsense", displaystyle=False)


@pytest.fixture(scope="module")
def page_of_estimators(generate: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A site of one page, the API of ``pyro_bnn.sklearn``, under the settings of the whole site."""
    pytest.importorskip("sphinx", reason="the extra docs is not installed")
    folder = tmp_path_factory.mktemp("site")
    (folder / "docs").mkdir()
    (folder / "docs" / "index.rst").write_text(generate.api()["sklearn"])
    options = ["-q", "-c", str(ROOT / "docs"), "-b", "html"]  # no -W: links lead out of this page
    done = subprocess.run(
        [sys.executable, "-m", "sphinx", *options, str(folder), str(folder / "html")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return folder / "html" / "docs" / "index.html"


@pytest.mark.slow("builds a page with Sphinx")
def test_fitted_attributes_keep_their_underscore(page_of_estimators: Path) -> None:
    """docutils takes ``posterior_`` for a link to ``posterior``."""
    text = page_of_estimators.read_text()
    for name in ("posterior_", "classes_", "seed_", "n_features_in_"):
        assert f"<strong>{name}</strong>" in text
        assert f"<strong>{name[:-1]}</strong>" not in text


@pytest.mark.slow("builds a page with Sphinx, in a browser")
def test_a_page_of_the_api_fits_a_narrow_screen(page_of_estimators: Path, tmp_path: Path) -> None:
    programs = find_programs()
    if programs is None:
        pytest.skip("needs chromium and chromedriver: apt-get install chromium chromium-driver")
    with start(programs, tmp_path) as browser:
        browser.open(page_of_estimators, 390)
        article = "document.querySelector('.bd-article-container')"
        widths = browser.run(f"return [{article}.scrollWidth, {article}.clientWidth]")
    assert widths == [390, 390]


@pytest.mark.soak
def test_site_is_built_without_a_warning_and_its_links_lead_somewhere(tmp_path: Path) -> None:
    pytest.importorskip("sphinx", reason="the extra docs is not installed")
    done = subprocess.run(
        [sys.executable, str(ROOT / "docs" / "build.py"), str(tmp_path / "html")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
