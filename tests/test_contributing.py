"""CONTRIBUTING.md: its examples do what it says of them, its commands exist."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
import typer

from pyro_bnn import guides, likelihoods, registry
from pyro_bnn.cli.commands import predict as predict_command
from pyro_bnn.cli.methods import find_method, find_methods
from pyro_bnn.cli.networks import make_networks
from pyro_bnn.cli.option_groups import GroupedCommand, spread, values_taken
from pyro_bnn.cli.options import NetworkOptions
from pyro_bnn.cli.results import Result
from pyro_bnn.cli.terminal import USAGE_ERROR
from pyro_bnn.data import from_arrays
from pyro_bnn.guides import Guide
from pyro_bnn.likelihoods import Likelihood
from pyro_bnn.report import Comparison, compare
from pyro_bnn.report.tables import metrics, table
from pyro_bnn.report.tables.metric import SCORES
from pyro_bnn.report.verdicts import calibration_verdicts, merits, verdicts
from pyro_bnn.report.verdicts.verdict import Judged, rules_of
from tests import command_line, laws
from tests.laws import MakeGuide, Problem, problem
from tests.likelihoods import test_laws
from tests.report.conjugate import LinearPosterior, regression_split

ROOT = Path(__file__).parent.parent
TEXT = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
BLOCKS = re.findall(r"```python\n(# (\S+)\n.*?)```", TEXT, flags=re.DOTALL)
CODE = {path: code for code, path in BLOCKS}
GUIDE, TEST = "guides/laplace.py", "tests/guides/test_laplace.py"
LIKELIHOOD = "pyro_bnn/likelihoods/laplace.py"
TEST_OF_LIKELIHOOD = "tests/likelihoods/test_laplace.py"
OPTION = "pyro_bnn/cli/commands/predict.py"
METRICS = "pyro_bnn/report/tables/metrics.py"
VERDICTS = "pyro_bnn/report/verdicts/calibration_verdicts.py"


def run(path: str, names: Mapping[str, Any] | None = None) -> ModuleType:
    """The code of a file as a module; in a file that is there, with the names that it has."""
    module = ModuleType(path.removesuffix(".py").replace("/", "."))
    vars(module).update(names or {})
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
    assert set(CODE) >= {GUIDE, TEST}
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


def run_tests(path: str) -> None:
    """The one test of a file of the text."""
    module = run(path)
    tests: dict[str, Any] = {k: v for k, v in vars(module).items() if k.startswith("test_")}
    assert len(tests) == CODE[path].count("def test_") == 1
    for test in tests.values():
        test()


@pytest.mark.usefixtures("exported")
@pytest.mark.slow("a whole fit")
def test_its_test_passes_and_every_test_in_it_runs() -> None:
    run_tests(TEST)


@pytest.mark.usefixtures("exported")
def test_the_export_is_all_that_the_command_line_needs(guide: type[Guide]) -> None:
    assert issubclass(guide, Guide)
    assert registry.entries("guide")["auto-laplace"] is guide
    assert find_method("auto-laplace") is guide
    assert "auto-laplace" in registry.known_methods()


@pytest.fixture
def likelihood() -> Iterator[type[Likelihood]]:
    """The likelihood of the text, exported."""
    cls: type[Likelihood] = run(LIKELIHOOD).Laplace
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(likelihoods, "Laplace", cls, raising=False)
        patch.setattr(likelihoods, "__all__", [*likelihoods.__all__, "Laplace"])
        yield cls


@pytest.mark.usefixtures("likelihood")
def test_the_test_of_its_likelihood_passes() -> None:
    assert not (ROOT / LIKELIHOOD).exists()  # else the example is to be another
    run_tests(TEST_OF_LIKELIHOOD)


def test_its_likelihood_obeys_the_laws_and_the_command_line_has_it(
    likelihood: type[Likelihood], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert registry.entries("likelihood")["laplace"] is likelihood
    y = torch.linspace(-2.0, 3.0, test_laws.NUM_ROWS)
    monkeypatch.setitem(test_laws.CASES, "laplace", (likelihood, y))
    test_laws.test_no_likelihood_escapes_the_laws()
    test_laws.test_density_and_gradient_are_those_of_plain_pyro_captured_or_not("laplace")
    test_laws.test_predictions_are_mixtures_of_what_plain_pyro_gives_each_draw("laplace")
    rows = from_arrays(torch.linspace(-1, 1, 20).reshape(10, 2), torch.linspace(-1, 1, 10))
    options = NetworkOptions(likelihood="laplace")
    (network,) = make_networks(find_methods("nuts"), rows, options).values()
    assert network.likelihood == "Laplace"


def test_the_line_of_its_option_is_all_that_declares_it(capsys: pytest.CaptureFixture[str]) -> None:
    (line,) = CODE[OPTION].splitlines()[1:]
    names = dict(vars(predict_command))
    exec(f"@dataclass(frozen=True, kw_only=True)\nclass Group(PredictOptions):\n{line}\n", names)
    group, read = names["Group"], []

    def command(options: Any) -> Iterator[Result]:
        read.append(options.digits)
        yield from ()

    command.__annotations__ = {"options": group, "return": Iterator[Result]}
    app = typer.Typer(rich_markup_mode=None)
    app.command(cls=GroupedCommand)(spread()(command))
    program: Any = typer.main.get_command(app)
    given = ["--posterior", "fit"]
    program.main([*given, "--digits", "3"], standalone_mode=False)
    program.main(given, standalone_mode=False)
    assert read == [3, 7]
    assert values_taken(program)["--digits"] == "value"  # so that a file of --config may have it
    with pytest.raises(USAGE_ERROR) as refused:
        program.main([*given, "--digits", "0"], standalone_mode=False)
    refusal: Any = refused.value
    assert "'--digits'" in refusal.format_message()
    program.main(["--help"], standalone_mode=False)
    words = " ".join(capsys.readouterr().out.split())
    assert "--digits N Significant digits of the numbers in FILE. [default: 7; 1<=x<=17]" in words


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
    from pyro_bnn.cli import main as cli

    group: Any = typer.main.get_command(cli.app)
    lines = re.findall(r"\.venv/bin/pyro-bnn (\S+) (.*)", TEXT)
    assert {name for name, _ in lines} == {"compare", "sbc"}
    for name, rest in lines:
        options = {opt for p in group.commands[name].params for opt in p.opts}
        assert set(re.findall(r"--[a-z-]+", rest)) <= options


def two_fits() -> Comparison:
    split = regression_split()
    return compare({"a": LinearPosterior(split), "b": LinearPosterior(split, spread=0.5)}, split)


def test_its_column_is_one_entry(monkeypatch: pytest.MonkeyPatch) -> None:
    metric = run(METRICS, vars(metrics)).WORST
    place = 1 + [other.key for other in metrics.METRICS].index("log_score")
    every = [*metrics.METRICS[:place], metric, *metrics.METRICS[place:]]
    monkeypatch.setattr(table, "METRICS", every)
    monkeypatch.setattr(table, "ON_PAGE", metrics.in_order_of_the_page(every))
    comparison = two_fits()
    for name, entry in comparison.evaluations.items():
        expected = min(entry.held_out.log_score)
        assert comparison.table.loc[name, "worst_row"] == expected
    titles = [column.title for column in table.sections(comparison.units, "regression")[SCORES]]
    assert titles[titles.index("log score") + 1] == "worst row"
    assert "worst row" in repr(comparison)


def test_its_verdict_is_one_function(monkeypatch: pytest.MonkeyPatch) -> None:
    module = run(VERDICTS, vars(calibration_verdicts))
    rule = module.outliers
    assert rules_of(module) == [*rules_of(calibration_verdicts), rule]
    for where in (verdicts, merits):
        monkeypatch.setattr(where, "RULES", [*verdicts.RULES, rule])
    comparison = two_fits()
    entries = list(comparison.evaluations.values())
    scores = entries[0].held_out.log_score
    monkeypatch.setattr(module, "MOST_LOST", np.median(scores) - scores.min() + 1e-9)
    assert not [v for v in rule.verdicts(Judged(entries[:1], None)) if "a:" in v.text]
    monkeypatch.setattr(module, "MOST_LOST", 0.1)
    found = [v for v in two_fits().findings if v.kind == "outliers"]
    assert [v.methods for v in found] == [("a",), ("b",)]
    assert found[0].text.startswith("a: its worst row is ")
    assert found[0].text.endswith("; look at these rows, or take a likelihood with heavier tails.")
    assert two_fits().answer.status == comparison.answer.status  # a caveat
