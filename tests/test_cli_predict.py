"""From a CSV to a fit to predictions, as a user of the command line goes."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import threading
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pytest
import torch

from pyro_bnn.cli import main as cli
from pyro_bnn.cli.saved_fit import SavedFit
from tests.oracle import mixture_quantile
from tests.rows import houses

TINY = ("--hidden", "6", "--steps", "200")
FIT = ("fit", "--data", "houses.csv", "--method", "auto-normal")
NEW = "town,id,lift,area\nRome,r1,True,80\nOslo,r2,False,120\nOslo,r3,True,1500\n"


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


class Fitted(NamedTuple):
    result: Result
    folder: Path


@pytest.fixture(scope="module")
def fitted(tmp_path_factory: pytest.TempPathFactory) -> Fitted:
    folder = tmp_path_factory.mktemp("houses")
    houses().to_csv(folder / "houses.csv", index=False)
    options = ("--target", "price", "--method", "auto-normal", "--out", folder / "fit", *TINY)
    return Fitted(run("fit", "--data", folder / "houses.csv", *options), folder)


@pytest.fixture
def new(tmp_path: Path) -> Path:
    path = tmp_path / "new.csv"
    path.write_text(NEW)
    return path


def test_a_fit_says_what_it_does_and_scores_rows_that_it_did_not_see(fitted: Fitted) -> None:
    code, out, err = fitted.result
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[:3] == [
        "Data:  houses, split 0: 72 training and 8 held-out rows, 4 inputs",
        "Task:  regression of 'price'; standardised by the training rows",
        "Noise: likelihood Normal, chosen from the task; --likelihood takes another",
    ]
    assert lines[4].startswith("AutoNormal ")
    assert lines[5].startswith("Held-out, 8 rows: log score ")
    folder = fitted.folder / "fit"
    files = ["posterior.safetensors", "training.safetensors", "fit.json"]
    told = "AutoNormal: not converged, the second half of its 200 steps gained "
    assert lines[6].startswith(told)
    assert lines[7:] == [f"Wrote {folder / name}" for name in files]
    assert {path.name for path in folder.iterdir()} == set(files)
    document = json.loads((folder / "fit.json").read_text("utf-8"))
    assert document["command"].startswith("pyro-bnn fit --data ")


def test_predictions_of_a_file_in_its_own_units(fitted: Fitted, new: Path) -> None:
    out = new.with_name("out.csv")
    code, said, err = run(
        *("predict", new, "--posterior", fitted.folder / "fit", "--out", out),
        *("--level", "0.5", "--samples", "400", "--seed", "7"),
    )
    assert (code, err) == (0, "")
    found = pd.read_csv(out)
    assert list(found["id"]) == ["r1", "r2", "r3"]
    posterior = SavedFit.load(fitted.folder / "fit").posterior
    x = torch.tensor([[80, 0, 1, 1], [120, 1, 0, 0], [1500, 1, 0, 1]], dtype=torch.float64)
    expected = posterior.predict(x, 400, seed=7, raw=True)
    np.testing.assert_allclose(found["predicted_mean"], expected.mean[:, 0], rtol=1e-6)
    assert expected.means is not None
    assert expected.variances is not None
    mixture = expected.means[..., 0], expected.variances[..., 0].sqrt()
    for name, level in (("low", 0.25), ("median", 0.5), ("high", 0.75)):
        exact = mixture_quantile(*mixture, level)
        np.testing.assert_allclose(found[f"predicted_{name}"], exact, rtol=2e-6)
    ratio = found["uncertainty_vs_training"]
    assert ratio[2] > 4 * max(ratio[0], ratio[1])
    distance, p_value = found["distance_to_training"], found["distance_p_value"]
    assert distance[2] > 20  # 1,500 square metres, where others have 150 and an sd of about 35
    assert p_value[2] == pytest.approx(1 / 73)
    lines = said.splitlines()
    assert lines[0].startswith(f"{(p_value <= 0.05).sum()} of 3 rows look")
    assert " unusual: far from the training rows, distance_p_value at most 0.05 (" in lines[0]
    assert " of 3 rows are more uncertain than any training row (uncertainty_vs_trai" in lines[1]
    assert lines[1].endswith("; a small uncertainty proves nothing")
    assert lines[2:] == ["Copied 1 column that is not of the fit: 'id'", f"Wrote {out}"]


def test_the_held_out_rows_score_as_the_fit_said(fitted: Fitted, tmp_path: Path) -> None:
    from pyro_bnn.data.split import published_rows

    held_out = houses().iloc[published_rows(80, 0)[1].numpy()]
    held_out[["lift", "price", "area", "town"]].to_csv(tmp_path / "held.csv", index=False)
    code, out, _ = run(
        *("predict", tmp_path / "held.csv", "--posterior", fitted.folder / "fit"),
        *("--out", tmp_path / "out.csv"),
    )
    assert code == 0
    said = fitted.result.out.splitlines()[5].partition("log score ")[2]
    log_score, rmse = said.split(" nats a row, RMSE ")
    (line,) = [line for line in out.splitlines() if line.startswith("Against 'price' of 8 rows: ")]
    assert f"log score {log_score} nats a row, RMSE {rmse.split(' ')[0]}, 95 % interval" in line


def test_standard_input_and_output_take_the_place_of_files(
    fitted: Fitted, new: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(new.parent)
    fit = ("--posterior", fitted.folder / "fit")
    code, said, _ = run("predict", new, *fit, "--out", "out.csv")
    assert code == 0
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(new.read_bytes())))
    code, out, err = run("predict", "-", *fit, "--out", "-")
    assert (code, out) == (0, Path("out.csv").read_text())
    assert err == said.replace("Wrote out.csv\n", "")  # the words
    assert sorted(path.name for path in new.parent.iterdir()) == ["new.csv", "out.csv"]


def fit_and_predict(name: str) -> list[tuple[str, ...]]:
    """Commands of a fit and of its predictions."""
    fit = (*FIT, "--seed", "3", "--out", name, "--threads", "1", *TINY)
    predict = ("predict", "new.csv", "--posterior", name, "--out", f"{name}.csv", "--seed", "5")
    return [fit, predict]


APART = """
import contextlib, io, json, pathlib, sys
from pyro_bnn.cli.main import main
*first, last = json.loads(sys.argv[1])
said = io.StringIO()
with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(said):
    codes = [main(args) for args in first]
pathlib.Path("said.json").write_text(json.dumps([codes, said.getvalue()]))
sys.argv = ["pyro-bnn", *last]
sys.exit(main())
"""


class Apart(NamedTuple):
    """A process that fits, predicts, and predicts into a pipe whose reader takes two lines.

    Attributes:
        folder: Where it ran.
        said: The exit codes and the errors of its first two commands.
        lines: What came through the pipe.
        errors: What it wrote to standard error meanwhile.
    """

    folder: Path
    said: list[Any]
    lines: list[bytes]
    errors: bytes


@pytest.fixture(scope="module")
def apart(fitted: Fitted, tmp_path_factory: pytest.TempPathFactory) -> Apart:
    """Its terminal is one of Latin-1."""
    folder = tmp_path_factory.mktemp("apart")
    houses(30).to_csv(folder / "houses.csv", index=False)
    (folder / "new.csv").write_text(NEW)
    (folder / "many.csv").write_text(NEW.replace("r1", "größe") + "Oslo,r,True,80\n" * 9_000)
    piped = ("predict", "-", "--posterior", str(fitted.folder / "fit"), "--samples", "2")
    commands = json.dumps([*fit_and_predict("there"), (*piped, "--out", "-")])
    with (folder / "many.csv").open("rb") as rows, (folder / "errors").open("wb") as errors:
        process = subprocess.Popen(
            [sys.executable, "-c", APART, commands],
            cwd=folder,
            env={**os.environ, "PYTHONIOENCODING": "latin-1", "OMP_NUM_THREADS": "1"},
            stdin=rows,
            stdout=subprocess.PIPE,
            stderr=errors,
        )
        assert process.stdout is not None
        with process.stdout as pipe:
            lines = [pipe.readline() for _ in range(2)]
        process.wait(timeout=300)
    said = json.loads((folder / "said.json").read_text())
    return Apart(folder, said, lines, (folder / "errors").read_bytes())


@pytest.mark.slow("a process of its own")
@pytest.mark.skipif(sys.platform == "win32", reason="pipes of POSIX")
def test_predictions_go_through_pipes(apart: Apart) -> None:
    """UTF-8 where the terminal is not, and quietly where the reader of a pipe has gone."""
    assert apart.lines[1].decode().startswith("Rome,größe,True,80,")
    assert b"Traceback" not in apart.errors
    assert b"Exception" not in apart.errors


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes with names")
def test_predictions_are_written_into_a_pipe_and_where_a_link_leads(
    fitted: Fitted, new: Path
) -> None:
    pipe, link, found = new.with_name("pipe"), new.with_name("link"), list[str]()
    os.mkfifo(pipe)
    link.symlink_to("out.csv")
    reader = threading.Thread(target=lambda: found.append(pipe.read_text()), daemon=True)
    reader.start()
    for out in (pipe, link):
        code, said, err = run("predict", new, "--posterior", fitted.folder / "fit", "--out", out)
        assert (code, err) == (0, "")
        assert said.endswith(f"Wrote {out}\n")
    assert pipe.is_fifo()
    assert link.is_symlink()
    reader.join(20)
    assert found == [new.with_name("out.csv").read_text()]


@pytest.mark.slow("a process of its own")
def test_another_process_writes_the_same_bytes(
    apart: Apart, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(apart.folder)
    for args in fit_and_predict("here"):
        result = run(*args)
        assert (result.code, result.err) == (0, "")
    assert apart.said == [[0, 0], ""]
    here, there = ((apart.folder / f"{name}.csv").read_bytes() for name in ("here", "there"))
    assert here == there
    assert len(here.splitlines()) == 4


@pytest.mark.slow("about a second")
def test_all_rows_and_classes(tmp_path: Path) -> None:
    rows = houses(40)
    rows["price"] = np.where(rows["price"] > 300_000, "dear", "cheap")
    rows.to_csv(tmp_path / "houses.csv", index=False)
    code, out, err = run(
        *("fit", "--data", tmp_path / "houses.csv", "--method", "auto-normal@half-cauchy-scale"),
        *("--all-rows", "--out", tmp_path / "fit", "--quiet", *TINY),
    )
    assert (code, err) == (0, "")
    assert out.splitlines()[0] == "All 40 rows were fitted: none is left to score"
    rows[["town", "lift", "area"]].to_csv(tmp_path / "new.csv", index=False)
    out_file = tmp_path / "out.csv"
    code, _, err = run(
        "predict", tmp_path / "new.csv", "--posterior", tmp_path / "fit", "--out", out_file
    )
    assert (code, err) == (0, "")
    found = pd.read_csv(out_file)
    most_probable = np.where(found["predicted_p_dear"] > 0.5, "dear", "cheap")
    assert list(found["predicted_class"]) == list(most_probable)
    assert found["uncertainty_vs_training"].median() == pytest.approx(1, rel=0.2)
    assert (found["distance_to_training"] == 0).all()  # they are the training rows
    assert (found["distance_p_value"] == 1).all()
