"""CONTRIBUTING.md: its guide obeys the laws, its test passes, its commands exist."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pandas as pd
import pytest
import torch

from pyro_bnn import guides, registry
from pyro_bnn.cli.methods import find_method
from pyro_bnn.guides import Guide
from tests import command_line, laws
from tests.laws import MakeGuide, Problem, problem

ROOT = Path(__file__).parent.parent
TEXT = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
BLOCKS = re.findall(r"```python\n(# (\S+)\n.*?)```", TEXT, flags=re.DOTALL)
CODE = {path: code for code, path in BLOCKS}
GUIDE, TEST = "guides/laplace.py", "tests/guides/test_laplace.py"


def run(path: str) -> ModuleType:
    """The code of a file as a module."""
    module = ModuleType(path.removesuffix(".py").replace("/", "."))
    exec(compile(CODE[path], path, "exec"), module.__dict__)
    return module


@pytest.fixture(scope="module")
def guide() -> type[Guide]:
    cls: type[Guide] = run(GUIDE).AutoLaplace
    return cls


@pytest.fixture
def exported(guide: type[Guide]) -> Iterator[None]:
    """The one export."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(guides, "AutoLaplace", guide, raising=False)
        patch.setattr(guides, "__all__", [*guides.__all__, "AutoLaplace"])
        yield


def test_the_example_is_two_files_and_a_class_of_thirty_lines() -> None:
    assert set(CODE) == {GUIDE, TEST}
    (body,) = re.findall(r"^class AutoLaplace.*\Z", CODE[GUIDE], flags=re.DOTALL | re.MULTILINE)
    assert len([line for line in body.splitlines() if line.strip()]) <= 30
    assert max(map(len, CODE[TEST].splitlines())) <= 100
    assert not (ROOT / GUIDE).exists()  # else the example is to be another


@pytest.mark.parametrize(
    "law",
    laws.EVERY_GUIDE + laws.UNDER_STOCK_PYRO + laws.WITH_DENSITY,
    ids=lambda law: law.__name__,
)
def test_its_guide_obeys_the_law(
    law: Callable[[MakeGuide, Problem], None], guide: type[Guide]
) -> None:
    law(guide, problem("linear"))


@pytest.mark.usefixtures("exported")
@pytest.mark.slow("a whole fit")
def test_its_test_passes_and_every_test_in_it_runs() -> None:
    module = run(TEST)
    tests: dict[str, Any] = {k: v for k, v in vars(module).items() if k.startswith("test_")}
    assert len(tests) == CODE[TEST].count("def test_") == 1
    for test in tests.values():
        test()


@pytest.mark.usefixtures("exported")
def test_the_export_is_all_that_the_command_line_needs(guide: type[Guide]) -> None:
    assert issubclass(guide, Guide)
    assert registry.entries("guide")["auto-laplace"] is guide
    assert find_method("auto-laplace") is guide
    assert "auto-laplace" in registry.known_methods()


SHORT = {
    "compare": "--hidden 2 --steps 20 --chains 2 --warmup 5 --samples 15 --max-rows 60",
    "sbc": "--rows 8 --hidden 2 --steps 5 --simulations 20 --draws 19",
}


def command(name: str, folder: Path) -> None:
    """Runs a command of the text as it stands there, but for its folder and shorter fits."""
    (rest,) = re.findall(rf"\.venv/bin/pyro-bnn {name} (.*)", TEXT)
    arguments = shlex.split(re.sub(r"--out \S+", SHORT[name], rest))
    assert "auto-laplace" in rest
    code, _, err = command_line.run(name, *arguments, "--out", folder)
    assert (code, err) == (0, "")


@pytest.fixture
def _threads_are_given_back() -> Iterator[None]:
    """The commands own their process and set the threads of torch for good."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.slow("whole fits and pages")
@pytest.mark.usefixtures(
    "exported", "_threads_are_given_back", "short_trajectories", "no_pictures", "files_in_memory"
)
def test_its_commands_run_and_the_report_has_its_khat(tmp_path: Path) -> None:
    folder = tmp_path / "report"
    command("compare", folder)
    files = [folder / f"{name}.nc" for name in ("auto-laplace", "auto-normal", "nuts")]
    code, _, err = command_line.run("report", *files, "--out", tmp_path / "again")
    assert (code, err) == (0, "")
    for where in (folder, tmp_path / "again"):
        table = pd.read_csv(where / "table.csv", index_col="method")
        assert set(table.index) == {"AutoLaplace", "AutoNormal", "NUTS"}
        numbers = table.loc["AutoLaplace", ["log_score", "elbo", "khat", "distance"]]
        assert numbers.notna().all()
        page = (where / "index.html").read_text("utf-8")
        assert "AutoLaplace" in page


@pytest.mark.slow("about a second")
@pytest.mark.usefixtures("exported", "_threads_are_given_back", "uncaptured")
def test_its_calibration_is_of_its_density(tmp_path: Path) -> None:
    command("sbc", tmp_path)
    values = pd.read_csv(tmp_path / "probabilities.csv", index_col="simulation").to_numpy()
    assert len(values) == 20
    assert ((values >= 0) & (values <= 1)).all()


def test_targets_files_and_folders_that_it_names_exist() -> None:
    targets = set(re.findall(r"^([.a-z0-9-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = set(re.findall(r"(?:^    |`)make ([.a-z0-9-]+)", TEXT, re.MULTILINE))
    assert named
    assert named <= targets
    paths = set(re.findall(r"`((?:tests|guides|pyro_bnn|tutorials|\.ci)/[\w./]*)`", TEXT))
    assert len(paths) > 5
    missing = {path for path in paths if not (ROOT / path).exists()}
    assert missing == set()


def test_commands_are_those_of_the_command_line() -> None:
    import typer

    from pyro_bnn.cli import main as cli

    group: Any = typer.main.get_command(cli.app)
    lines = re.findall(r"\.venv/bin/pyro-bnn (\S+) (.*)", TEXT)
    assert {name for name, _ in lines} == {"compare", "sbc"}
    for name, rest in lines:
        options = {opt for p in group.commands[name].params for opt in p.opts}
        assert set(re.findall(r"--[a-z-]+", rest)) <= options
