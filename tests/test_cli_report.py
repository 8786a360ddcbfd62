"""``pyro-bnn report``: the report again, from files alone."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path

import pandas as pd
import pytest
import torch
import typer

from pyro_bnn.cli import main as cli

pytestmark = [pytest.mark.usefixtures("short_trajectories"), pytest.mark.slow("whole reports")]

WRITTEN = ("index.html", "table.csv", "verdicts.json")


@pytest.fixture(autouse=True, scope="module")
def _threads_are_given_back() -> Iterator[None]:
    """The commands own their process and set the threads of torch for good."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def run(*args: str | Path) -> tuple[int, str, str]:
    """Exit code and output of the command line in this process."""
    out, err = StringIO(), StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        code = cli.main([str(arg) for arg in args])
    return code, out.getvalue(), err.getvalue()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Reports of a guide and a sampler on moons."""
    folder = tmp_path_factory.mktemp("moons") / "a report"
    sizes = ("--hidden", "3", "--steps", "20", "--chains", "2", "--warmup", "20", "--samples", "20")
    methods = ("--methods", "auto-normal,nuts")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("pyro_bnn.report.plots.figures.Figures.pictures", lambda _: [])
        code, _, err = run("compare", "--data", "moons", *methods, *sizes, "--out", folder)
    assert (code, err) == (0, "")
    return folder


@pytest.mark.usefixtures("no_pictures")
def test_the_same_table_from_the_files(folder: Path, tmp_path: Path) -> None:
    files = [folder / "auto-normal.nc", folder / "nuts.nc"]
    code, out, err = run("report", *files, "--out", tmp_path / "again")
    assert (code, err) == (0, "")
    assert out.startswith("moons: ")
    assert "2 methods on 20 held-out rows (180 for training)" in out
    assert {path.name for path in (tmp_path / "again").iterdir()} == set(WRITTEN)
    for name in WRITTEN:
        assert f"Wrote {tmp_path / 'again' / name}\n" in out
    tables = [pd.read_csv(where / "table.csv") for where in (folder, tmp_path / "again")]
    pd.testing.assert_frame_equal(*tables, rtol=1e-6)
    assert tables[1]["distance"].notna().sum() == 1  # to NUTS, as before
    command = shlex.join(["pyro-bnn", "report", *map(str, files)])
    assert command in (tmp_path / "again" / "index.html").read_text("utf-8").replace("&#39;", "'")


@pytest.mark.usefixtures("no_pictures")
def test_names_and_reference(folder: Path, tmp_path: Path) -> None:
    guide = folder / "auto-normal.nc"
    code, out, err = run(
        "report", f"first={guide}", f"second={guide}", "--reference", "first", "--out", tmp_path
    )
    assert (code, err) == (0, "")
    table = pd.read_csv(tmp_path / "table.csv", index_col="method")
    assert set(table.index) == {"first", "second"}
    assert table["distance"].notna().to_dict() == {"first": False, "second": True}
    assert "The reference first is an approximation, neither exact nor a Markov" in " ".join(
        out.split()
    )


def test_help_names_every_option() -> None:
    code, out, err = run("report", "--help")
    assert (code, err) == (0, "")
    assert all(character.isascii() for character in out)
    group = typer.main.get_command(cli.app)
    parameters = group.commands["report"].params  # type: ignore[attr-defined]
    for parameter in parameters:
        assert parameter.help.endswith("."), parameter.name
    assert {"--out", "--reference"} <= {name for one in parameters for name in one.opts}
