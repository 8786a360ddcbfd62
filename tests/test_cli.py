from __future__ import annotations

import logging
import os
import re
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pytest
import torch
import typer

from pyro_bnn import SVI, guides
from pyro_bnn.cli import fits
from pyro_bnn.cli import main as cli
from pyro_bnn.cli.methods import make_engines
from pyro_bnn.data import names
from pyro_bnn.errors import BNNWarning, DivergenceError, OptionError
from pyro_bnn.infer.engine import DrawCounts
from pyro_bnn.registry import KINDS, entries
from tests.command_line import Result, run
from tests.conftest import capturing_nothing
from tests.interruptible import interruptible

pytestmark = pytest.mark.usefixtures("short_trajectories")

SCRIPT = Path(sys.executable).parent / "pyro-bnn"
TINY = ("--hidden", "3", "--steps", "20")
SHORT = ("--chains", "2", "--warmup", "20", "--samples", "20")


INTERRUPTED = "pyro-bnn: interrupted; with --checkpoint FOLDER a run can go on\n"


def start(*args: str | Path, cwd: Path, encoding: str = "utf-8") -> subprocess.Popen[str]:
    """The installed script in a process of its own."""
    return subprocess.Popen(
        interruptible(str(SCRIPT), *(str(arg) for arg in args)),
        cwd=cwd,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONIOENCODING": encoding},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        encoding=encoding,
    )


@pytest.fixture(autouse=True, scope="module")
def _threads_are_given_back() -> Iterator[None]:
    """The commands own their process and set the threads of torch for good."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


# --- the program ---------------------------------------------------------------------------------


@pytest.mark.parametrize(("args", "code"), [(["--version"], 0), (["nonsense"], 2)])
def test_the_package_runs_as_a_module(args: list[str], code: int, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pyro_bnn", *args],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    expected = run(*args)
    assert (done.returncode, done.stdout, done.stderr) == expected
    assert expected.code == code


@pytest.mark.parametrize("args", [(), ("--help",), ("-h",)])
def test_help(args: tuple[str, ...]) -> None:
    code, out, err = run(*args)
    assert (code, err) == (0, "")
    assert out.startswith("Usage: pyro-bnn [OPTIONS] ")
    assert "compare " in out
    assert "..." not in out.partition("\n")[2]  # no sentence is cut


COMMANDS = ("compare", "fit", "predict", "prior", "sbc", "trust")


@pytest.mark.parametrize("command", COMMANDS)
def test_help_is_plain_and_names_every_option(command: str) -> None:
    out = run(command, "--help").out
    assert all(character.isascii() for character in out)
    for parameter in parameters_of(command):
        assert parameter.opts[0] in out or parameter.metavar in out


@pytest.mark.parametrize("command", COMMANDS)
def test_every_option_has_help_and_a_default(command: str) -> None:
    for parameter in parameters_of(command):
        assert parameter.help.endswith("."), parameter.name
        known = parameter.required or parameter.is_flag or parameter.default is not None
        assert known or parameter.show_default, parameter.name


def test_the_networks_that_sbc_simulates_are_small_unless_their_width_is_given() -> None:
    (hidden,) = (each for each in parameters_of("sbc") if each.name == "hidden")
    assert (hidden.default, hidden.hidden) == ("5", False)
    assert re.search(r"--hidden UNITS,\.\.\..*?\[default: 5\]", run("sbc", "--help").out, re.DOTALL)


def test_help_has_a_heading_for_each_group_of_options() -> None:
    out = run("compare", "--help").out
    sections = dict(re.findall(r"^(\w+):\n((?:  .*\n|\n)+)", out, re.MULTILINE))
    assert [*sections] == ["Data", "Options", "Network", "Fits", "Checkpoints"]
    for heading, option in (
        ("Data", "--max-rows"),
        ("Options", "--reference"),
        ("Options", "--json"),
        ("Network", "--width"),
        ("Fits", "--warmup"),
        ("Checkpoints", "--resume"),
    ):
        assert [name for name, text in sections.items() if f"\n  {option} " in f"\n{text}"] == [
            heading
        ], option
    of_report = run("report", "--help").out
    assert re.findall(r"^(\w+):$", of_report, re.MULTILINE) == ["Arguments", "Options"]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("pyro-bnn com", ["compare"]),
        ("pyro-bnn compare --ch", ["--chains", "--checkpoint"]),
        ("pyro-bnn fit --model l", ["le-net", "linear-regression"]),
        ("pyro-bnn fit --likelihood hetero", ["heteroscedastic-normal"]),
    ],
)
def test_a_shell_completes_commands_options_and_names(
    line: str,
    expected: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """As bash asks for it."""
    asked = {"COMP_WORDS": line, "COMP_CWORD": str(len(line.split()) - 1)}
    for name, value in {**asked, "_PYRO_BNN_COMPLETE": "complete_bash"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(SystemExit) as ended:
        cli.main([])
    assert (ended.value.code, capsys.readouterr().out.split()) == (0, expected)


def parameters_of(command: str) -> list[Any]:
    group: Any = typer.main.get_command(cli.app)
    parameters: list[Any] = group.commands[command].params
    assert len(parameters) > 5
    return parameters


def test_help_the_list_and_usage_errors_import_nothing_heavy(tmp_path: Path) -> None:
    """One process runs them all, and says after each what is loaded by then."""
    calls = [["--help"], ["list"], *([command, "--help"] for command in COMMANDS)]
    calls += [["--version"], *([command] for command in COMMANDS if command != "prior")]
    code = f"""import sys
from pyro_bnn.cli.main import main
for args in {calls}:
    main(args)
    print("loaded", *sys.modules)"""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    lines = [line.split()[1:] for line in done.stdout.splitlines() if line.startswith("loaded ")]
    heavy = {"torch", "pyro", "numpy", "arviz", "matplotlib", "sklearn", "pandas", "scipy", "rich"}
    for args, loaded in zip(calls, lines, strict=True):
        assert "typer" in loaded
        assert heavy & set(loaded) == set(), args


def test_list_shows_everything() -> None:
    code, out, err = run("list")
    assert (code, err) == (0, "")
    starts = {line.split("  ")[1] for line in out.splitlines() if line.startswith("  ")}
    registered = {name for kind in KINDS for name in entries(kind)}
    assert registered | set(names()) <= starts
    assert [line for line in out.splitlines() if line and line[0] != " "] == [
        "Guides",
        "Engines",
        "Priors",
        "Likelihoods",
        "Models",
        "Data sets",
    ]


@pytest.mark.parametrize("columns", [60, 80, 300])
def test_list_respects_the_width(columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    widths = [len(line) for line in run("list").out.splitlines()]
    widest_name = max(len(name) for name in entries("guide"))
    assert max(widths) <= max(min(columns, 100), widest_name + 34)


# --- on the way ----------------------------------------------------------------------------------

DIABETES = ("compare", "--data", "diabetes", "--methods")


@pytest.mark.parametrize("command", [("fit", "--method"), ("compare", "--methods")])
@pytest.mark.parametrize(("warmup", "samples"), [(7, 9), (0, 1)])
def test_a_sampler_has_the_warmup_and_the_samples_that_were_asked_for(
    command: tuple[str, str], warmup: int, samples: int,
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    found: list[Any] = []

    def stop(engines: dict[str, Any], *args: Any, **options: Any) -> Any:
        found.extend(engines.values())
        raise OptionError("no fit today")

    monkeypatch.setattr(fits, "fit_all", stop)
    monkeypatch.chdir(tmp_path)
    numbers = ("--warmup", str(warmup), "--samples", str(samples))
    code, _, err = run(command[0], "--data", "moons", command[1], "nuts", *numbers)
    assert (code, err) == (2, "pyro-bnn: no fit today\n")
    assert [(engine.warmup_steps, engine.num_samples) for engine in found] == [(warmup, samples)]


def test_a_bug_keeps_its_traceback(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: Any, **options: Any) -> Any:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr(fits, "fit_all", fail)
    with pytest.raises(ZeroDivisionError, match="a bug"):
        run(*DIABETES, "auto-normal", "--out", tmp_path)


def test_a_command_that_saves_nothing_says_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*args: Any, **options: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr("pyro_bnn.cli.catalogue.listing", interrupt)
    assert run("list") == (130, "", "pyro-bnn: interrupted\n")


@pytest.mark.slow("a process of its own, whole fits")
@pytest.mark.parametrize(
    "options",
    [
        ("auto-normal", "--steps", "900000"),  # a minute, compiled or not
        pytest.param(("nuts", *SHORT), marks=pytest.mark.soak),
    ],
)
def test_ctrl_c_ends_a_run(options: tuple[str, ...], tmp_path: Path) -> None:
    last = ("--samples", "9000000") if "nuts" in options else ()
    process = start(*DIABETES, *options, *last, "--out", "report", cwd=tmp_path)
    assert process.stdout is not None
    while not process.stdout.readline().startswith("Model:"):
        assert process.poll() is None
    time.sleep(1.5)  # into the fit
    process.send_signal(signal.SIGINT)
    try:
        _, err = process.communicate(timeout=30)
    except subprocess.TimeoutExpired:
        process.kill()  # a failure, not a hang
        raise
    assert process.returncode == 130
    assert err == INTERRUPTED


# --- notes ---------------------------------------------------------------------------------------


@pytest.fixture
def with_notes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Instead of fitting, this package warns and logs, another warns, and all ends."""

    def warn(*args: Any, **options: Any) -> Any:
        warnings.warn("few draws", BNNWarning, stacklevel=1)
        logging.getLogger("pyro_bnn").warning("no graph: %s", "plain Pyro")
        warnings.warn("old name", FutureWarning, stacklevel=1)
        raise DivergenceError("the end")

    monkeypatch.setattr(fits, "fit_all", warn)
    # handlers that libraries gave the root, with streams of tests before, say nothing here
    monkeypatch.setattr(logging.getLogger("pyro_bnn"), "propagate", False)


@pytest.mark.usefixtures("with_notes")
def test_notes_of_this_package_are_one_line_each(tmp_path: Path) -> None:
    handlers = list(logging.getLogger("pyro_bnn").handlers)
    shown_before = warnings.showwarning
    with pytest.warns(FutureWarning, match="old name") as others:
        err = run(*DIABETES, "auto-normal", "--out", tmp_path).err
    assert warnings.showwarning is shown_before
    assert [record.category for record in others] == [FutureWarning]
    assert err.splitlines() == [
        "pyro-bnn: note: few draws",
        "pyro-bnn: note: no graph: plain Pyro",
        "pyro-bnn: the end",
    ]
    assert logging.getLogger("pyro_bnn").handlers == handlers


# --- whole runs ----------------------------------------------------------------------------------


class Run(NamedTuple):
    result: Result
    folder: Path
    args: tuple[str, ...]


@pytest.fixture(scope="module")
def moons(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A comparison of a guide and a sampler on moons; its page has no pictures."""
    folder = tmp_path_factory.mktemp("moons") / "a report"
    methods = ("--methods", "auto-normal,nuts")
    options = ("--seed", "3", "--out", str(folder))
    args = ("compare", "--data", "moons", *methods, *TINY, *SHORT, *options)
    with capturing_nothing(), pytest.MonkeyPatch.context() as patch:
        patch.setattr("pyro_bnn.report.plots.figures.Figures.pictures", lambda _: [])
        return Run(run(*args), folder, args)


@pytest.mark.slow("a whole comparison")
def test_a_run_says_what_it_does(moons: Run) -> None:
    code, out, err = moons.result
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[:3] == [
        "Data:  moons, split 0: 180 training and 20 held-out rows, 2 inputs",
        "Task:  classification of 'moon', 2 classes; standardised by the training rows",
        "Noise: likelihood Bernoulli, chosen from the task; --likelihood takes another",
    ]
    assert lines[3].startswith("Model: MLP 2-3-1 relu, ")
    assert lines[4].startswith("AutoNormal ")
    assert lines[4].endswith(" s  (SVI, 20 steps)")
    assert lines[5].startswith("NUTS ")
    assert lines[5].endswith(" s  (NUTS, 2 chains, 20 warm-up steps, 20 draws a chain)")
    assert "Held-out scores" in out
    assert "Against the reference" in out
    assert any(line.startswith("- ") for line in lines)
    assert max(len(line) for line in lines[: -len(list(moons.folder.iterdir()))]) <= 100


@pytest.mark.slow("a second or more")
def test_a_run_names_the_files_it_wrote(moons: Run) -> None:
    written = [line[6:] for line in moons.result.out.splitlines() if line.startswith("Wrote ")]
    assert [Path(name).name for name in written] == [
        "index.html",
        "table.csv",
        "verdicts.json",
        "auto-normal.nc",
        "nuts.nc",
    ]
    assert {Path(name) for name in written} == set(moons.folder.iterdir())


@pytest.mark.slow("a whole comparison")
def test_the_report_tells_how_to_get_it_again(moons: Run) -> None:
    import html
    import shlex

    page = html.unescape((moons.folder / "index.html").read_text("utf-8"))
    (command,) = [line for line in page.splitlines() if "pyro-bnn compare" in line]
    text = command.partition("<code>")[2].partition("</code>")[0]
    assert shlex.split(text) == ["pyro-bnn", *moons.args]


@pytest.mark.slow("a whole comparison")
def test_the_table_holds_every_method(moons: Run) -> None:
    table = pd.read_csv(moons.folder / "table.csv", index_col="method")
    assert sorted(table.index) == ["AutoNormal", "NUTS"]
    assert np.isfinite(table["log_score"]).all()
    assert np.isfinite(table.loc["AutoNormal", "distance"])  # to NUTS, the default reference


@pytest.mark.slow("a second or more")
def test_netcdf_reads_back(moons: Run) -> None:
    from pyro_bnn import arviz_io

    sampler = arviz_io.load_netcdf(moons.folder / "nuts.nc")
    assert dict(sampler["posterior"].sizes)["chain"] == 2
    assert dict(sampler["posterior"].sizes)["draw"] == 20
    assert "diverging" in sampler["sample_stats"]
    guide = arviz_io.load_netcdf(moons.folder / "auto-normal.nc")
    assert "log_q" in guide["sample_stats"]


@pytest.mark.slow("a process")
def test_the_script_runs_on_a_csv_of_ones_own_in_a_terminal_that_lacks_a_character(
    tmp_path: Path,
) -> None:
    generator = np.random.default_rng(0)
    rows = pd.DataFrame(generator.normal(size=(40, 3)), columns=["dose", "age", "group"])
    rows["group"] = generator.integers(0, 3, size=40)
    rows.to_csv(tmp_path / "mine.csv", index=False)
    process = start(
        *("compare", "--data", "mine.csv", "--target", "group", "--task", "classification"),
        *("--methods", "auto-delta", *TINY, "--batch-size", "8", "--threads", "1", "--quiet"),
        cwd=tmp_path,
        encoding="latin-1",
    )
    out, err = process.communicate(timeout=120)
    assert (process.returncode, err) == (0, "")
    assert "± " in out.replace("\xa0", " ")
    assert "?" in out  # the minus sign
    assert out.strip().startswith("mine: 1 method on 4 held-out rows (36 for training)")
    assert "Noise:" not in out
    written = [line for line in out.splitlines() if line.startswith("Wrote ")]
    assert written[0] == f"Wrote {Path('report', 'index.html')}"
    assert (tmp_path / "report" / "auto-delta.nc").is_file()


def test_threads_are_set_before_the_fits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []

    def stop(*args: Any, **options: Any) -> Any:
        assert seen == [3]
        raise DivergenceError("the end")

    monkeypatch.setattr(torch, "set_num_threads", seen.append)
    monkeypatch.setattr(fits, "fit_all", stop)
    code, _, _ = run(*DIABETES, "auto-normal", "--threads", "3", "--out", tmp_path)
    assert (code, seen) == (1, [3])


@pytest.mark.slow("a second or more")
@pytest.mark.usefixtures("no_pictures")
def test_a_method_that_diverges_does_not_take_the_report_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    @dataclass
    class Diverging:
        num_steps: int = 20
        batch_size: int | None = None
        draw_counts = DrawCounts()

        def run(self, *args: Any, **options: Any) -> Any:
            raise DivergenceError("the loss is not finite at step 5")

    make: Callable[..., dict[str, Any]] = make_engines

    def make_with_a_bad_one(*args: Any) -> dict[str, Any]:
        return make(*args) | {"AutoNormal": Diverging()}

    monkeypatch.setattr("pyro_bnn.cli.methods.make_engines", make_with_a_bad_one)
    methods = ("--methods", "auto-normal,auto-delta", "--reference", "auto-normal")
    code, out, err = run("compare", "--data", "moons", *methods, *TINY, "--out", tmp_path)
    assert (code, err) == (1, "pyro-bnn: AutoNormal: the loss is not finite at step 5\n")
    assert "diverged: the loss is not finite at step 5" in out
    assert {path.name for path in tmp_path.iterdir()} == {
        "index.html",
        "table.csv",
        "verdicts.json",
        "auto-delta.nc",
    }


def test_a_fit_that_ends_by_itself_is_told_without_a_number_of_steps() -> None:
    assert list(fits._numbers(SVI(guides.AutoNormal), 100)) == ["steps until it has converged"]
    engine = SVI(guides.AutoNormal, num_steps=2_000, batch_size=512)
    assert list(fits._numbers(engine, 100)) == ["2,000 steps", "100 rows a step"]
