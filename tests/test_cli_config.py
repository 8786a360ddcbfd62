"""--config: options out of a file; --fail-on: verdicts that end a command with another code."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from pyro_bnn.cli.app import AGAINST
from pyro_bnn.cli.config_file import Takes, with_file
from pyro_bnn.errors import BNNError, OptionError
from pyro_bnn.report.verdicts import verdicts
from pyro_bnn.report.verdicts.verdict import FUNCTION, PREDICTIONS, REFIT, UNCHECKED
from pyro_bnn.report.verdicts.verdicts import RULES
from tests.command_line import run

OPTIONS: dict[str, Takes] = {
    "--data": "value",
    "--methods": "value",
    "--steps": "value",
    "--quiet": "nothing",
    "--fail-on": "values",
}


@pytest.fixture
def rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    x = np.random.default_rng(0).normal(size=(60, 2))
    pd.DataFrame({"a": x[:, 0], "b": x[:, 1], "y": x.sum(1)}).to_csv("rows.csv", index=False)
    return tmp_path


@pytest.mark.parametrize("spelt", [["--config", "run.toml"], ["--config=run.toml"]])
def test_options_of_the_file_come_first(
    spelt: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    text = '[compare]\ndata = "moons"\nmethods = ["nuts", "cavi"]\nsteps = 5\nquiet = true\n[fit]\n'
    Path("run.toml").write_text(text)
    of_file = ["--data=moons", "--methods=nuts,cavi", "--steps=5", "--quiet"]
    assert with_file(spelt, "compare", OPTIONS) == of_file
    of_file.remove("--steps=5")
    assert with_file(["--steps", "9", *spelt], "compare", OPTIONS) == [*of_file, "--steps", "9"]
    assert with_file(spelt, "fit", OPTIONS) == []
    assert with_file(["--steps", "9"], "compare", OPTIONS) == ["--steps", "9"]
    assert with_file([*spelt, "--help"], "compare", OPTIONS) == ["--help"]
    Path("run.toml").write_text("[compare]\nquiet = [true]\n")
    assert with_file(spelt, "compare", OPTIONS) == ["--quiet"]
    Path("run.toml").write_text('[compare]\nquiet = false\nfail-on = ["refit", "function"]\n')
    assert with_file(spelt, "compare", OPTIONS) == ["--fail-on=refit", "--fail-on=function"]
    given = [*spelt, "--fail-on=unchecked"]  # in place of those of the file, not beside them
    assert with_file(given, "compare", OPTIONS) == ["--fail-on=unchecked"]


@pytest.mark.parametrize("args", [["--config", ""], ["--config=a", "--config", "b"]])
def test_one_file_is_named(args: list[str]) -> None:
    with pytest.raises(OptionError, match="--config names one file, not "):
        with_file([*args, "--json"], "compare", OPTIONS)
    assert with_file(["--config"], "compare", OPTIONS) == ["--config"]  # which the parser refuses


@pytest.mark.parametrize(
    ("text", "code", "message"),
    [
        (
            "[compare]\nstepz = 5",
            2,
            "[compare] of run.toml 'stepz': did you mean 'steps'",
        ),
        ("[fit]\nsteps = 5", 2, "run.toml has no table [compare], only [fit]"),
        ("", 2, "run.toml has no table [compare], nothing"),
        ("[compare]\nquiet = 1", 2, "quiet in [compare] of run.toml is true or false, not 1"),
        (
            "[compare]\nsteps = true",
            2,
            "of run.toml is text, a number or a list, not True",
        ),
        ("[compare]\nconfig = 'b'", 2, "unknown option in [compare] of run.toml 'config'"),
        ("[compare]\nsteps = 'many'", 2, "Invalid value for '--steps'"),
        ("[compare", 1, "run.toml is no TOML: "),
        (None, 1, "run.toml: No such file or directory"),
    ],
)
def test_files_that_are_refused(text: str | None, code: int, message: str, rows: Path) -> None:
    if text is not None:
        (rows / "run.toml").write_text(text)
    result = run("compare", "--config", "run.toml", "--data", "rows.csv", "--methods", "auto-delta")
    assert result.code == code
    assert message in result.err
    assert not (rows / "report").exists()


def test_a_run_of_a_file_is_that_of_its_options(rows: Path) -> None:
    (rows / "run.toml").write_text('[fit]\ndata = "rows.csv"\nmethod = "auto-normal"\nsteps = 40\n')
    of_file = run("fit", "--config", "run.toml", "--out", "a", "--json")
    given = run(
        *("fit", "--data=rows.csv", "--method=auto-normal", "--steps=40", "--out", "b", "--json")
    )
    assert of_file.code == given.code == 0
    a, b = json.loads(of_file.out), json.loads(given.out)
    assert a["held_out"] == b["held_out"]
    a, b = (json.loads((rows / name / "fit.json").read_text())["command"] for name in "ab")
    options = "--data=rows.csv --method=auto-normal --steps=40"
    assert [a, b] == [f"pyro-bnn fit {options} --out {name} --json" for name in "ab"]


def test_names_of_fail_on_are_those_of_the_rules() -> None:
    assert set(AGAINST) == {"warning", REFIT, UNCHECKED, FUNCTION, PREDICTIONS}
    assert {rule.against for rule in RULES} == {"", REFIT, UNCHECKED, FUNCTION, PREDICTIONS}


def test_verdicts_that_are_named_end_with_another_code(rows: Path) -> None:
    short = ("fit", "--data", "rows.csv", "--method", "auto-normal", "--steps", "150")
    result = run(*short)
    assert result.code == 0
    (warned,) = [line for line in result.out.splitlines() if "It is not known whether" in line]
    failed = run(*short, "--fail-on", "warning")
    assert failed.code == 3
    assert f"pyro-bnn: --fail-on warning: {warned}" in failed.err
    assert "Wrote fit/posterior.safetensors" in failed.out  # all was done
    assert run("fit", "--fail-on", "refit").code == 2


def test_a_fit_that_cannot_be_judged_fails(rows: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def of_run(*args: object) -> list[str]:
        raise BNNError("draws of f exceed the memory")

    monkeypatch.setattr(verdicts, "of_run", of_run)
    args = ("fit", "--data", "rows.csv", "--method", "auto-normal", "--steps", "50")
    failed = run(*args, "--fail-on", "warning")
    assert failed.code == 3
    assert "convergence not judged: draws of f exceed the memory" in failed.err


@pytest.mark.slow("five commands, one of them over two seeds")
@pytest.mark.usefixtures("no_pictures", "uncaptured", "files_in_memory")
def test_a_comparison_fails_on_what_is_named_alone(rows: Path) -> None:
    short = ("compare", "--data", "rows.csv", "--methods", "auto-normal", "--steps", "9")
    passed = run(*short, "--fail-on", "predictions", "--json")
    assert passed.code == 0, passed.err
    found = json.loads(passed.out)
    kinds = {v["kind"] for v in found["verdicts"] if v["is_warning"]}
    assert "unchecked" in kinds
    failed = run(*short, "--fail-on", "predictions", "--fail-on", "unchecked")
    assert failed.code == 3
    assert "pyro-bnn: --fail-on predictions,unchecked: It is not known whether " in failed.err
    several = run(*short, "--seeds", "0-1", "--out", "several", "--fail-on", "unchecked")
    assert several.code == 3
    files = [str(path) for path in sorted(Path("report").glob("*.nc"))]
    assert files == ["report/auto-normal.nc"]
    assert run("report", *files, "--out", "again", "--fail-on", "unchecked").code == 3
    assert run("report", *files, "--out", "again").code == 0
