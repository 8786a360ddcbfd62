"""From a CSV to a fit to predictions, as a user of the command line goes."""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
import pytest
import torch

from pyro_bnn import cli
from pyro_bnn.saved_fit import SavedFit

SCRIPT = Path(sys.executable).parent / "pyro-bnn"
TINY = ("--hidden", "6", "--steps", "200")
FIT = ("fit", "--data", "houses.csv", "--method", "auto-normal")


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


def houses(num_rows: int = 80) -> pd.DataFrame:
    generator = np.random.default_rng(0)
    area = generator.uniform(30, 150, num_rows).round(1)
    town = generator.choice(["Oslo", "Rome"], num_rows)
    lift = generator.random(num_rows) < 0.5
    price = 3000 * area + 50_000 * (town == "Rome") + generator.normal(0, 9_000, num_rows)
    return pd.DataFrame({"area": area, "town": town, "lift": lift, "price": price.round()})


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
    path.write_text("town,id,lift,area\nRome,r1,True,80\nOslo,r2,False,120\nOslo,r3,True,1500\n")
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
    files = ["posterior.pt", "training.pt", "fit.json"]
    assert lines[6:] == [f"Wrote {folder / name}" for name in files]
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
    np.testing.assert_allclose(found["predicted_low"], expected.quantile(0.25)[:, 0], rtol=1e-6)
    np.testing.assert_allclose(found["predicted_high"], expected.quantile(0.75)[:, 0], rtol=1e-6)
    ratio = found["uncertainty_vs_training"]
    assert ratio[2] > 4 * max(ratio[0], ratio[1])
    distance, p_value = found["distance_to_training"], found["distance_p_value"]
    assert distance[2] > 20  # 1,500 square metres, where others have 150 and an sd of about 35
    assert p_value[2] == pytest.approx(1 / 73)
    lines = said.splitlines()
    assert lines[0].startswith(f"{(p_value <= 0.05).sum()} of 3 rows are farther from the training")
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


@pytest.mark.slow("processes of its own")
def test_another_process_writes_the_same_bytes(
    tmp_path: Path, new: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    houses(30).to_csv(tmp_path / "houses.csv", index=False)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")

    def commands(name: str) -> list[tuple[str, ...]]:
        fit = (*FIT, "--seed", "3", "--out", name, "--threads", "1", *TINY)
        predict = ("predict", "new.csv", "--posterior", name, "--out", f"{name}.csv", "--seed", "5")
        return [fit, predict]

    for args in commands("here"):
        result = run(*args)
        assert (result.code, result.err) == (0, "")
    for args in commands("there"):
        done = subprocess.run([str(SCRIPT), *args], capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (0, "")
    here, there = ((tmp_path / f"{name}.csv").read_bytes() for name in ("here", "there"))
    assert here == there
    assert len(here.splitlines()) == 4


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


@pytest.mark.parametrize(
    ("args", "line"),
    [
        (("fit", "--data", "houses.csv"), "Missing option '--method'"),
        (
            ("fit", "--data", "houses.csv", "--method", "nuts,auto-normal"),
            "one method is fitted, not",
        ),
        ((*FIT, "--chains", "3"), "--chains does nothing for AutoNormal: leave it out"),
        ((*FIT, "--all-rows", "--split", "1"), "--split does nothing for --all-rows: leave it out"),
        ((*FIT, "--target", "prize"), "did you mean 'price'?"),
        (
            (*FIT, "--likelihood", "categorical"),
            "Categorical describes 2 classes, but the target h",
        ),
        ((*FIT, "--out", "houses.csv/fit"), "cannot write to the folder 'houses.csv/fit'"),
        (("predict", "new.csv"), "Missing option '--posterior'"),
        (("predict", "--posterior", "fit"), "Missing argument 'NEW.csv'"),
        (("predict", "new.csv", "--posterior", "none"), "'none' is not a folder of 'pyro-bnn fit'"),
        (("predict", "no.csv", "--posterior", "fit"), "no file 'no.csv'; check the path"),
        (
            ("predict", "houses.csv", "--posterior", "fit", "--out", "houses.csv"),
            "is the file that",
        ),
        (("predict", "new.csv", "--posterior", "fit", "--level", "1"), "between 0 and 1, such as"),
        (
            ("predict", "new.csv", "--posterior", "fit", "--samples", "1"),
            "Invalid value for '--sam",
        ),
        (("predict", "new.csv", "--posterior", "fit"), "lacks column 'lift' of the fit; it has"),
        (("predict", "odd.csv", "--posterior", "fit"), "first 'Paris' in line 3; known are 'Oslo'"),
        (("predict", "gap.csv", "--posterior", "fit"), "missing values: 'area' in 1 row of 1, fir"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(
    args: tuple[str, ...],
    line: str,
    fitted: Fitted,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    houses(30).to_csv("houses.csv", index=False)
    Path("new.csv").write_text("area,town\n80,Rome\n")
    Path("odd.csv").write_text("area,town,lift\n80,Rome,1\n80,Paris,1\n")
    Path("gap.csv").write_text("area,town,lift\n,Rome,1\n")
    Path("fit").symlink_to(fitted.folder / "fit")
    before = sorted(path.name for path in tmp_path.iterdir())
    code, out, err = run(*args)
    assert (code, out) == (2, "")
    assert err.startswith("pyro-bnn: ")
    assert err.count("\n") == 1
    assert line in err
    assert sorted(path.name for path in tmp_path.iterdir()) == before
