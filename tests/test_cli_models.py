"""``--model`` of the command line: what each model takes, and the truth of a conjugate one."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from pyro_bnn import models
from pyro_bnn.data import load
from tests.command_line import Result, run

pytestmark = pytest.mark.slow("whole comparisons")


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    generator = np.random.default_rng(0)
    x = generator.normal(size=(40, 3))
    x[:, 1] += 2 * x[:, 0]
    y = x.sum(1) + generator.normal(size=40)
    path = tmp_path / "rows.csv"
    pd.DataFrame({"a": x[:, 0], "b": x[:, 1], "c": x[:, 2], "y": y}).to_csv(path, index=False)
    return path


def compared(rows: Path, *options: str) -> Result:
    threads = torch.get_num_threads()
    found = run("compare", "--data", rows, "--out", rows.with_name("report"), *options)
    torch.set_num_threads(threads)
    return found


@pytest.mark.usefixtures("no_pictures")
def test_a_report_holds_the_truth_of_a_conjugate_model(rows: Path) -> None:
    found = compared(
        rows, "--model", "linear-regression", "--methods", "exact,cavi", "--reference", "exact"
    )
    assert (found.code, found.err) == (0, "")
    assert "Model: LinearRegression 3-1, Normal(fan_in) prior, Normal(1) likelihood" in found.out
    assert "The reference" not in found.out  # it can judge
    table = pd.read_csv(rows.with_name("report") / "table.csv", index_col=0)
    train = load(rows).train
    exact = models.LinearRegression(3).exact_posterior(train)
    elbo = table["elbo"]
    assert elbo["Exact"] == pytest.approx(exact.log_evidence, abs=1e-4)  # in float32
    gap = 0.5 * (exact.precision.diagonal().log().sum() - exact.precision.logdet())
    assert abs(elbo["Exact"] - elbo["CAVI"] - float(gap)) < 4 * table["elbo_error"]["CAVI"]


@pytest.mark.usefixtures("no_pictures")
def test_an_estimator_is_used_and_refused_before_the_first_fit(rows: Path) -> None:
    options = ("--estimator", "analytic", "--steps", "4", "--hidden", "3")
    found = compared(rows, "--methods", "auto-delta,auto-normal", *options)
    assert (found.code, found.err) == (0, "")
    of_delta, of_normal = (line for line in found.out.splitlines() if "(SVI, 4 steps" in line)
    assert of_delta.endswith("(SVI, 4 steps)")
    assert of_normal.endswith("(SVI, 4 steps, analytic)")
    for more, message in (
        (("--hidden", "3,3"), 'estimator="analytic" is in closed form for .*has 2 hidden layers'),
        (("--activation", "tanh"), 'estimator="analytic" is in closed .*activation is another'),
    ):
        found = compared(rows, "--methods", "auto-delta,auto-normal", *options, *more)
        assert found.code == 2
        assert "AutoDelta" not in found.out
        assert re.search(message, found.err)


@pytest.mark.usefixtures("no_pictures")
def test_a_deep_linear_network_takes_layers_and_no_activation(rows: Path) -> None:
    options = ("--model", "deep-linear", "--methods", "auto-delta", "--steps", "3")
    found = compared(rows, *options, "--hidden", "4,2")
    assert found.code == 0
    assert "Model: DeepLinear 3-4-2-1, Normal(fan_in) prior, Normal likelihood" in found.out
    found = compared(rows, *options, "--activation", "tanh")
    assert (found.code, found.out) == (2, "")
    assert "--activation does nothing for DeepLinear: leave it out" in found.err


def test_several_targets_of_a_file(rows: Path) -> None:
    options = ("--methods", "auto-delta", "--steps", "3")
    found = compared(rows, "--target", "y,a", *options)
    assert found.code == 0
    assert "Task:  regression of 'y, a'; standardised by the training rows" in found.out
    assert "Model: MLP 2-50-2 relu" in found.out
    page = (rows.with_name("report") / "index.html").read_text()
    assert "Target y" in page
    assert "Target a" in page
    assert "of y, a" not in page


@pytest.fixture
def related(tmp_path: Path) -> Path:
    """Two targets of one input, in units apart: b = 100 (a + noise)."""
    generator = np.random.default_rng(1)
    x = generator.normal(size=120)
    a = 2 * x + 0.3 * generator.normal(size=120)
    b = 100 * (a + 0.3 * generator.normal(size=120))
    path = tmp_path / "related.csv"
    pd.DataFrame({"x": x, "a": a, "b": b, "who": "me"}).to_csv(path, index=False)
    return path


def test_several_targets_are_fitted_predicted_and_scored_each_in_its_units(related: Path) -> None:
    threads = torch.get_num_threads()
    folder, out = related.with_name("fit"), related.with_name("predictions.csv")
    options = ("--method", "cavi", "--model", "linear-regression")
    found = run("fit", "--data", related, "--target", "a,b", "--out", folder, *options)
    torch.set_num_threads(threads)
    assert (found.code, found.err) == (0, "")
    assert "sds of each target" in found.out
    told = run("predict", related, "--posterior", folder, "--out", out)
    assert (told.code, told.err) == (0, "")
    assert "Against 'a, b' of 120 rows: log score" in told.out
    assert "Copied" not in told.out
    table = pd.read_csv(out)
    for name, noise in (("a", 0.3), ("b", 100 * 0.3 * 2**0.5)):
        mean = table[f"predicted_{name}_mean"]
        rmse = float(np.sqrt(np.mean((mean - table[name]) ** 2)))
        assert rmse == pytest.approx(noise, rel=0.2)  # a tenth is one of its standard errors
        line = next(line for line in told.out.splitlines() if f"'{name}' alone" in line)
        assert f"RMSE {rmse:.3g}" in line
        sd = np.sqrt(table[f"predicted_{name}_sd_aleatoric"] ** 2
                     + table[f"predicted_{name}_sd_epistemic"] ** 2)  # fmt: skip
        np.testing.assert_allclose(table[f"predicted_{name}_sd"], sd, rtol=1e-4)
        own = -0.5 * np.log(2 * np.pi * sd**2) - 0.5 * ((mean - table[name]) / sd) ** 2
        score = float(line.split("log score ")[1].split(" nats")[0].replace("\N{MINUS SIGN}", "-"))
        assert score == pytest.approx(own.mean(), abs=0.02)  # of the mixture, nearly Gaussian
    blank = related.with_name("blank.csv")
    table[["x", "a", "who"]].to_csv(blank, index=False)  # one target alone scores nothing
    told = run("predict", blank, "--posterior", folder, "--out", out)
    assert (told.code, "Against" in told.out) == (0, False)


@pytest.mark.usefixtures("no_pictures")
def test_several_binary_targets_of_a_file(rows: Path) -> None:
    table = pd.read_csv(rows)
    table = table.assign(up=table["y"] > 0, left=(table["a"] < 0).astype(int))
    table[["b", "c", "up", "left"]].to_csv(rows, index=False)
    options = ("--target", "up,left", "--methods", "auto-normal", "--steps", "3")
    bernoulli = ("--likelihood", "bernoulli")
    found = compared(rows, *options, "--task", "counts", *bernoulli)
    assert (found.code, found.err) == (0, "")
    assert "Model: MLP 2-50-2 relu, Normal(fan_in) prior, Bernoulli likelihood" in found.out
    found = compared(rows, *options, *bernoulli)
    assert found.code == 1
    assert "several targets are numbers, but 'up' is of classes" in found.err
