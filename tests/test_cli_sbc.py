"""``pyro-bnn sbc``: ranks, table and picture of a method, from the shell."""

from __future__ import annotations

from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pytest
import torch
import typer

from pyro_bnn.cli import main as cli

pytestmark = [pytest.mark.usefixtures("uncaptured"), pytest.mark.slow("whole calibrations")]

TINY = ("--rows", "8", "--hidden", "2", "--steps", "1", "--simulations", "20", "--draws", "19")


class Result(NamedTuple):
    code: int
    out: str
    err: str


def run(*args: str | Path) -> Result:
    """The command line in this process."""
    out, err = StringIO(), StringIO()
    threads = torch.get_num_threads()
    with redirect_stdout(out), redirect_stderr(err):
        code = cli.main([str(arg) for arg in args])
    torch.set_num_threads(threads)  # the commands own their process and set them for good
    return Result(code, out.getvalue(), err.getvalue())


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    generator = np.random.default_rng(0)
    x = generator.normal(size=(30, 2))
    y = x[:, 0] + 0.1 * generator.normal(size=30)
    path = tmp_path / "rows.csv"
    pd.DataFrame({"a": x[:, 0], "b": x[:, 1], "y": y}).to_csv(path, index=False)
    return path


def test_a_point_estimate_is_found_too_narrow_and_the_exit_code_is_0(rows: Path) -> None:
    out = rows.with_name("ranks")
    code, said, err = run("sbc", "--data", rows, "--method", "auto-delta", "--out", out, *TINY)
    assert (code, err) == (0, "")
    lines = said.splitlines()
    assert lines[:3] == [
        "Data:  inputs of 8 training rows of rows; targets are simulated",
        "Noise: likelihood Normal, chosen from the task; --likelihood takes another",
        "Model: MLP 2-2-1 relu, Normal(fan_in) prior, Normal likelihood",
    ]
    assert lines[4] == "AutoDelta: 20 simulated data sets, ranks among 19 draws"
    assert "! likelihood.scale: too narrow, " in said
    assert lines[-3:] == [f"Wrote {out / name}" for name in ("ranks.png", "ranks.csv", "table.csv")]
    ranks = pd.read_csv(out / "ranks.csv", index_col="simulation")
    assert ranks.shape == (20, 11)
    assert set(ranks["f(x[0])"]) <= {0, 19}  # all draws are one point
    assert list(pd.read_csv(out / "table.csv")["quantity"]) == list(ranks.columns)


def test_a_guide_with_a_density_is_asked_for_probabilities_or_ranked(rows: Path) -> None:
    out = rows.with_name("found")
    arguments = ("sbc", "--data", rows, "--method", "auto-normal", "--out", out, *TINY)
    code, said, err = run(*arguments)
    assert (code, err) == (0, "")
    lines = said.splitlines()
    assert lines[4] == "AutoNormal: 20 simulated data sets, probabilities of true values under q"
    files = ("probabilities.png", "probabilities.csv", "table.csv")
    assert lines[-3:] == [f"Wrote {out / name}" for name in files]
    values = pd.read_csv(out / "probabilities.csv", index_col="simulation")
    assert values.shape == (20, 6)  # f at 4 rows, the last bias, the noise scale
    assert values.to_numpy().min() >= 0
    assert values.to_numpy().max() <= 1
    code, said, _ = run(*arguments, "--ranks")
    assert code == 0
    assert "AutoNormal: 20 simulated data sets, ranks among 19 draws" in said


def test_an_engine_with_a_density_is_asked_for_probabilities(rows: Path) -> None:
    out = rows.with_name("found")
    code, said, err = run("sbc", "--data", rows, "--method", "vogn", "--out", out, *TINY)
    assert (code, err) == (0, "")
    assert "VOGN: 20 simulated data sets, probabilities of true values under q" in said


def test_help_names_every_option_and_its_default() -> None:
    code, out, _ = run("sbc", "--help")
    assert code == 0
    assert out.isascii()
    group: Any = typer.main.get_command(cli.app)
    for parameter in group.commands["sbc"].params:
        assert parameter.opts[0] in out
        assert parameter.help.endswith(".")
        known = parameter.required or parameter.is_flag or parameter.default is not None
        assert known or parameter.show_default, parameter.name
