"""The notebooks of ``tutorials/``: their form as committed, and that they run.

They run with ``PYRO_BNN_SMOKE=1``: shorter fits, the same cells. Assertions of the last cell that
need converged fits stand under ``if not SMOKE``; the others hold of any fit. The cells run in this
process, where torch is imported already; ``make tutorials`` gives each notebook a kernel.
"""

from __future__ import annotations

import ast
import functools
import importlib
import json
import logging
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from types import ModuleType
from typing import Any

import matplotlib.pyplot as plt
import nbformat
import pytest
import torch

from pyro_bnn.report.beyond import estimate
from tests.conftest import capturing_nothing

ROOT = Path(__file__).parent.parent
NOTEBOOKS = [
    *sorted((ROOT / "tutorials").glob("*.ipynb")),
    *sorted((ROOT / "tutorials" / "research").glob("*.ipynb")),
]
RUNNER = ROOT / "tests" / "run_tutorials.py"
METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}
FOLDED = {"jupyter": {"source_hidden": True}, "tags": ["hide-input"]}
"""Metadata of set-up and assertions, which Jupyter and the site show on request."""
LONG_TREES = {"11", "12", "14", "17", "23"}
"""Notebooks that leave the trees of NUTS as long as they are after a short warm-up."""
SHORT_FITS = {"16"}
"""Notebooks of many fits of few steps, where recording graphs would take the most time."""
MACHINE_PATHS = re.compile(r"/(home|root|tmp|work|Users|usr|opt|var)/|[A-Z]:\\\\")
each_notebook = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


def read(path: Path) -> Any:
    return nbformat.read(path, as_version=4)  # type: ignore[no-untyped-call]


def cells(path: Path, kind: str) -> list[Any]:
    return [cell for cell in read(path).cells if cell.cell_type == kind]


def code(path: Path) -> ast.Module:
    return ast.parse("\n".join(cell.source for cell in cells(path, "code")))


def dotted(node: ast.expr) -> list[str]:
    """``bnn.guides.AutoNormal`` as its names; empty where it does not start with a name."""
    if isinstance(node, ast.Name):
        return [node.id]
    if isinstance(node, ast.Attribute) and (start := dotted(node.value)):
        return [*start, node.attr]
    return []


def test_the_tutorials_are_there() -> None:
    assert [path.stem for path in NOTEBOOKS] == [
        "00_from_mle_to_posteriors",
        "01_compare_guides",
        "02_write_your_own_model",
        "03_priors_you_can_see",
        "04_weight_uncertainty",
        "05_small_data",
        "06_which_guide",
        "07_two_peaks",
        "09_in_between",
        "10_natural_gradients",
        "11_sampling_networks",
        "12_around_a_mode",
        "13_write_your_own_guide",
        "14_stochastic_gradient_mcmc",
        "15_can_you_trust_it",
        "16_rank_one",
        "17_funnels",
        "18_wider_networks",
        "20_classify_and_shift",
        "21_from_csv_to_decision",
        "22_images_and_pretrained",
        "23_in_a_pipeline",
        "24_your_trained_network",
        "07_liberty_or_depth",  # research
        "08_product_matrices",
    ]


@each_notebook
def test_first_cell_has_the_question_and_the_expected_answer(path: Path) -> None:
    first = read(path).cells[0]
    assert first.cell_type == "markdown"
    assert first.source.startswith("# ")
    assert "**Question.**" in first.source
    answer = first.source.partition("**Expected answer.**")[2]
    assert len(re.findall(r"^\d\. .{40}", answer, re.MULTILINE)) >= 2  # numbered, and not empty


@each_notebook
def test_last_cell_asserts_what_could_fail(path: Path) -> None:
    last = read(path).cells[-1]
    assert last.cell_type == "code"
    tree = ast.parse(last.source)
    always = [node for node in tree.body if isinstance(node, ast.Assert | ast.For)]
    assert len(always) >= 3  # not only those that a smoke run leaves out
    for node in ast.walk(tree):
        if isinstance(node, ast.Assert):
            names = {name.id for name in ast.walk(node.test) if isinstance(name, ast.Name)}
            assert names, ast.unparse(node)


@each_notebook
def test_committed_with_the_outputs_of_one_run_from_top_to_bottom(path: Path) -> None:
    notebook = read(path)
    nbformat.validate(notebook)
    code_cells = cells(path, "code")
    assert [cell.execution_count for cell in code_cells] == list(range(1, len(code_cells) + 1))
    outputs = [output for cell in code_cells for output in cell.outputs]
    assert len(outputs) >= 5
    assert all(output.output_type != "error" for output in outputs)
    assert all(output.get("name") != "stderr" for output in outputs)  # warnings go there


@each_notebook
def test_says_nothing_of_the_machine_it_ran_on(path: Path) -> None:
    notebook = read(path)
    assert dict(notebook.metadata) == METADATA
    assert all(cell.metadata in ({}, FOLDED) for cell in notebook.cells)
    without_images = re.sub(r'"image/png": "[^"]*"', "", path.read_text())
    assert MACHINE_PATHS.search(without_images) is None


@each_notebook
def test_set_up_and_assertions_are_folded_and_nothing_else(path: Path) -> None:
    code = cells(path, "code")
    has_set_up = not code[0].outputs  # imports, names of colours, how long to run
    assert [dict(cell.metadata) for cell in code] == [
        FOLDED if has_set_up else {}, *({} for _ in code[1:-1]), FOLDED
    ]  # fmt: skip


@each_notebook
def test_says_what_to_know_before_and_where_to_go_next_and_links_papers(path: Path) -> None:
    text = [cell.source for cell in cells(path, "markdown")]
    assert "You should know" in text[0]
    assert re.search(r"\nNext: .*\[", text[-1])
    for number in re.findall(r"arXiv:(\d{4}\.\d{4,5})", "\n".join(text)):
        assert f"(https://arxiv.org/abs/{number})" in "\n".join(text), number


@each_notebook
def test_every_figure_is_told_in_words(path: Path) -> None:
    notebook = read(path)
    num_figures = 0
    for cell, following in zip(notebook.cells, notebook.cells[1:], strict=False):
        images = [o for o in cell.get("outputs", []) if "image/png" in o.get("data", {})]
        num_figures += len(images)
        if images:
            assert following.source.startswith("**Figure in words.**"), cell.source
    assert num_figures >= 1


@each_notebook
def test_uses_public_names_only(path: Path) -> None:
    for node in ast.walk(code(path)):
        if isinstance(node, ast.Attribute):
            is_dunder = node.attr.startswith("__") and node.attr.endswith("__")
            assert is_dunder or not node.attr.startswith("_"), ast.unparse(node)
    for name, module, attribute in library_names(path):
        exported = getattr(module, "__all__", None)
        assert exported is None or attribute in exported, f"{name} is not exported"
        assert hasattr(module, attribute), name


def library_names(path: Path) -> Iterator[tuple[str, ModuleType, str]]:
    """Dotted names under ``bnn``, each with the module it is looked up in."""
    names = set()
    for node in ast.walk(code(path)):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.startswith("pyro_bnn"):
                    assert (alias.name, alias.asname) == ("pyro_bnn", "bnn")
        if isinstance(node, ast.ImportFrom):
            assert not (node.module or "").startswith("pyro_bnn"), "tutorials write bnn.<name>"
        if isinstance(node, ast.Attribute) and dotted(node)[:1] == ["bnn"]:
            names.add(tuple(dotted(node)))
    assert names
    for parts in sorted(names):
        module: Any = importlib.import_module("pyro_bnn")
        for part in parts[1:]:
            if part.startswith("__"):
                break
            if isinstance(module, ModuleType):
                yield ".".join(parts), module, part
            module = getattr(module, part)


@pytest.mark.slow("a whole notebook")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of libraries, as in a kernel
@each_notebook
def test_runs_from_top_to_bottom_with_short_fits(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PYRO_BNN_SMOKE", "1")
    if path.stem[:2] in LONG_TREES:
        monkeypatch.setattr("pyro_bnn.infer.mcmc.nuts.NUTS._limit", 8)
    monkeypatch.setattr("pyro_bnn.infer.mcmc.members.MOST_STEPS", 50)
    monkeypatch.setattr(estimate, "RESAMPLES", 10)  # which errors are of
    monkeypatch.setattr(estimate, "resamples", functools.cache(estimate.resamples.__wrapped__))
    if folder := os.environ.get("PYRO_BNN_DATA"):
        monkeypatch.setenv("PYRO_BNN_DATA", str(Path(folder).resolve()))
    monkeypatch.chdir(tmp_path)
    plt.switch_backend("agg")
    monkeypatch.setattr(plt, "show", lambda: plt.close("all"))
    module = ModuleType("__main__")  # classes of a notebook are looked up in it
    vars(module)["display"] = shown
    monkeypatch.setitem(sys.modules, "__main__", module)
    # a notebook may send warnings to its own output, which the next one has not
    monkeypatch.setattr(logging.getLogger("pyro_bnn"), "handlers", [])
    threads = torch.get_num_threads()
    with capturing_nothing() if path.stem[:2] in SHORT_FITS else nullcontext():
        for number, cell in enumerate(cells(path, "code")):
            run_cell(cell.source, f"{path.name}, code cell {number}", vars(module))
    torch.set_num_threads(threads)
    assert capfd.readouterr().err == ""


def run_cell(source: str, name: str, names: dict[str, Any]) -> None:
    """Run a cell, and format the value of its last expression as a notebook shows it."""
    tree = ast.parse(source, name)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, name, "exec"), names)
    if isinstance(last, ast.Expr):
        shown(eval(compile(ast.Expression(last.value), name, "eval"), names))


def shown(*values: Any) -> None:
    """Format values as a notebook does to show them."""
    for value in values:
        getattr(value, "_repr_html_", value.__repr__)()


def by_runner(path: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """``tests/run_tutorials.py`` on one notebook."""
    return subprocess.run(
        [sys.executable, str(RUNNER), *options, str(path)],
        capture_output=True,
        text=True,
        check=False,
    )


def notebook_of(source: str, path: Path) -> str:
    """Write a notebook of one code cell that was not run; returns its text."""
    cell = {"cell_type": "code", "id": "a", "source": source, "metadata": {}, "outputs": []}
    notebook = {"cells": [{**cell, "execution_count": None}], "metadata": METADATA}
    path.write_text(json.dumps({**notebook, "nbformat": 4, "nbformat_minor": 5}))
    return path.read_text()


@pytest.mark.slow("processes of their own")
def test_runner_writes_outputs_into_the_notebook_or_into_a_folder(tmp_path: Path) -> None:
    path = tmp_path / "right.ipynb"
    text = notebook_of("import os\nos.environ['PYRO_BNN_SMOKE'] * 2", path)
    for options, folder, output in (
        (["--smoke", "--out", str(tmp_path / "out")], tmp_path / "out", "'11'"),
        ([], tmp_path, "'00'"),
    ):
        done = by_runner(path, *options)
        assert done.returncode == 0, done.stderr
        (cell,) = cells(folder / path.name, "code")
        assert cell.outputs[0]["data"]["text/plain"] == output
        assert cell.execution_count == 1
        assert (path.read_text() == text) == bool(options)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("assert 1 == 2, 'one is not two'", "one is not two"),
        ("import warnings; warnings.warn('look here')", "wrote to stderr"),
    ],
)
@pytest.mark.slow("a process of its own")
def test_runner_fails_where_a_cell_fails_or_warns(
    source: str, message: str, tmp_path: Path
) -> None:
    path = tmp_path / "wrong.ipynb"
    text = notebook_of(source, path)
    done = by_runner(path)
    assert done.returncode == 1
    assert message in done.stderr
    assert path.read_text() == text  # a failed run leaves the file as it was
