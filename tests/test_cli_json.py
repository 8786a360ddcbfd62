"""--json: the tables of a command as one document, and nothing else on standard output."""

import json
import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import typer

from pyro_bnn.cli.catalogue import catalogue
from pyro_bnn.cli.main import app
from pyro_bnn.cli.results import plain
from tests.command_line import run

FIT = ("--steps", "30", "--hidden", "4")


def test_every_command_has_it() -> None:
    commands = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    assert len(commands) == 8
    for name, command in commands.items():
        flags = {flag for own in command.params for flag in own.opts}
        assert {"--json", "--config"} <= flags, name


def test_plain_values() -> None:
    table = pd.DataFrame({"n": [1, 2], "x": [0.1, math.nan]}, pd.Index(["a", "b"], name="method"))
    assert plain(table) == [
        {"method": "a", "n": 1, "x": 0.1},
        {"method": "b", "n": 2, "x": None},
    ]
    assert plain(table.reset_index(drop=True))[0] == {"n": 1, "x": 0.1}
    assert plain({1: np.float64("inf"), "b": (np.bool_(True), Path("c"))}) == {  # noqa: FBT003
        "1": None,
        "b": [True, "c"],
    }


def test_names() -> None:
    result = run("list", "--json")
    assert result.code == 0
    assert json.loads(result.out) == {**catalogue(), "files": []}


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("json") / "rows.csv"
    x = np.random.default_rng(0).normal(size=(40, 2))
    pd.DataFrame({"a": x[:, 0], "b": x[:, 1], "y": x.sum(1)}).to_csv(path, index=False)
    return path


def test_a_fit_and_its_predictions(rows: Path, tmp_path: Path) -> None:
    folder, out = tmp_path / "fit", tmp_path / "out.csv"
    options = ("--data", rows, "--method", "auto-normal", *FIT, "--out", folder, "--json")
    result = run("fit", *options)
    assert result.code == 0, result.err
    found = json.loads(result.out)
    assert found["held_out"]["rows"] == 4
    assert "Data:" in result.err
    assert str(folder / "posterior.safetensors") in found["files"]
    assert found["held_out"] == json.loads((folder / "fit.json").read_text())["held_out"]
    result = run("predict", rows, "--posterior", folder, "--out", out, "--json")
    found = json.loads(result.out)
    assert found["files"] == [str(out)]
    assert found["summary"][-1].startswith("Against 'y' of 40 rows")
    written = pd.read_csv(out)
    np.testing.assert_allclose(
        [row["predicted_mean"] for row in found["rows"]], written["predicted_mean"], rtol=1e-3
    )
    result = run("predict", rows, "--posterior", folder, "--out", "-", "--json")
    assert result.code == 2
    assert "--json and --out - both write to standard output" in result.err


@pytest.mark.slow("fits and compares two methods")
@pytest.mark.usefixtures("no_pictures", "uncaptured", "files_in_memory")
def test_a_comparison(rows: Path, tmp_path: Path) -> None:
    methods = ("--methods", "auto-delta,auto-normal")
    result = run("compare", "--data", rows, *methods, *FIT, "--out", tmp_path, "--json")
    assert result.code == 0, result.err
    found = json.loads(result.out)
    table = pd.read_csv(tmp_path / "table.csv", index_col="method")
    assert [row["method"] for row in found["table"]] == list(table.index)
    for row in found["table"]:
        np.testing.assert_allclose(row["log_score"], table["log_score"][row["method"]], rtol=1e-6)
    verdicts = json.loads((tmp_path / "verdicts.json").read_text())
    assert found["verdicts"] == verdicts["verdicts"]
    files = [tmp_path / f"{name}.nc" for name in ("auto-delta", "auto-normal")]
    again = json.loads(run("report", *files, "--out", tmp_path / "again", "--json").out)
    assert [row["method"] for row in again["table"]] == list(table.index)
