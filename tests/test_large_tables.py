"""Tables with more rows than all draws are kept at: what is of all rows, what of some."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import pytest
import torch

import pyro_bnn as bnn
from pyro_bnn import arviz_io
from pyro_bnn.posterior import rows
from pyro_bnn.report import compare_files

KEPT = 40  # of 120 held-out and 480 training rows


def regression() -> tuple[bnn.Posterior, bnn.data.Split]:
    """A short mean-field fit of 480 rows."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(600, 2, generator=generator)
    y = 3 + 5 * x[:, 0] + torch.randn(600, generator=generator)
    split = bnn.data.from_arrays(x, y, test_fraction=0.2, seed=0)
    engine = bnn.SVI(bnn.guides.AutoNormal, num_steps=300, compile=False)
    return engine.run(bnn.models.MLP(2, hidden=(5,)), split.train, progress=False), split


@pytest.fixture
def few_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """All draws at 40 rows, densities of 50 draws."""
    monkeypatch.setattr(rows, "MOST_ROWS", KEPT)
    monkeypatch.setattr(rows, "MOST_DENSITIES", 50 * 480)


def test_scores_are_of_every_row_and_calibration_of_some(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    posterior, split = regression()
    whole = bnn.compare({"q": posterior}, split, num_samples=200)
    monkeypatch.setattr(rows, "MOST_ROWS", KEPT)
    some = bnn.compare({"q": posterior}, split, num_samples=200)
    assert some.evaluations["q"].held_out.function_draws.shape[1] == KEPT
    assert len(some.evaluations["q"].held_out.log_score) == len(split.test)
    for column in ("log_score", "rmse"):
        assert some.table[column]["q"] == pytest.approx(whole.table[column]["q"], rel=1e-4)
    errors = [table["log_score_se"]["q"] for table in (some.table, whole.table)]
    assert errors[0] == pytest.approx(errors[1], rel=0.01)  # its small part of draws is of 40 rows
    y = split.test.y.double().numpy()[np.linspace(0, 119, KEPT).round().astype(int)]
    units = split.test.target
    assert units is not None
    low, high = some.evaluations["q"].held_out.interval  # type: ignore[misc]
    y = float(units.loc) + float(units.scale) * y
    inside = ((low[:, 0] <= y) & (y <= high[:, 0])).mean()
    assert some.table["coverage_95"]["q"] == pytest.approx(inside, abs=1.5 / KEPT)
    assert any("40 of 120 test rows" in note for note in some.evaluations["q"].notes)


def test_classes_too_are_scored_at_every_row(monkeypatch: pytest.MonkeyPatch) -> None:
    split = bnn.data.load("breast-cancer", split=0)
    engine = bnn.SVI(bnn.guides.AutoNormal, num_steps=100, compile=False)
    model = bnn.models.MLP(30, hidden=(3,), likelihood=bnn.likelihoods.Bernoulli())
    posterior = engine.run(model, split.train, progress=False)
    whole = bnn.compare({"q": posterior}, split, num_samples=100).table
    monkeypatch.setattr(rows, "MOST_ROWS", 20)
    some = bnn.compare({"q": posterior}, split, num_samples=100).table
    for column in ("log_score", "accuracy"):
        assert some[column]["q"] == pytest.approx(whole[column]["q"], rel=1e-4)


@pytest.mark.usefixtures("few_rows")
def test_elbo_is_of_all_training_rows_and_of_fewer_draws() -> None:
    posterior, split = regression()
    found = bnn.compare({"q": posterior}, split, num_samples=200)
    elbo, error = posterior.elbo(split.train, 50, seed=0)
    checks = found.evaluations["q"].checks
    assert (checks.elbo, checks.elbo_error) == pytest.approx((elbo, error))
    assert any(
        "ELBO and k-hat are of 50 draws only" in note for note in found.evaluations["q"].notes
    )


@pytest.mark.slow("writes and reads a whole report")
@pytest.mark.usefixtures("few_rows")
def test_files_hold_some_rows_and_give_their_report(tmp_path: Path) -> None:
    posterior, split = regression()
    found = bnn.compare({"q": posterior}, split, num_samples=200)
    with pytest.warns(
        bnn.errors.BNNWarning, match="40 of 480 training and 40 of 120 held-out rows"
    ):
        found.save(tmp_path)
    tree = arviz_io.load_netcdf(tmp_path / "q.nc")
    assert tree["log_likelihood"].sizes["row"] == tree["predictions"].sizes["test_row"] == KEPT
    log_p, log_q = posterior.densities(split.train, 50, seed=0)
    stored = tree["sample_stats"].to_dataset()
    np.testing.assert_allclose(stored["log_p"][0, :50], log_p, rtol=1e-5)
    np.testing.assert_allclose(stored["log_q"][0, :50], log_q, rtol=1e-5)
    assert bool(np.isnan(stored["log_p"][0, 50:]).all())
    again = compare_files([tmp_path / "q.nc"])
    assert again.table["elbo"]["q"] == pytest.approx(found.table["elbo"]["q"])
    assert again.table["coverage_95"]["q"] == found.table["coverage_95"]["q"]


@pytest.mark.usefixtures("few_rows")
def test_chains_of_a_large_table_are_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    _, split = regression()
    engine = bnn.HMC(num_chains=2, warmup_steps=20, num_samples=20, compile=False)
    model = bnn.models.MLP(2, hidden=(2,))
    posterior = engine.run(model, split.train, progress=False)
    monkeypatch.setattr(rows, "MOST_NUMBERS", 400)  # 10 rows of 40 draws
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", bnn.errors.BNNWarning)
        found = bnn.compare({"chains": posterior}, split, num_samples=40)
    assert found.evaluations["chains"].held_out.function_draws.shape[1] == 10
    assert found.evaluations["chains"].checks.sampling is not None


def test_few_rows_are_kept_as_they_are() -> None:
    data = bnn.data.Dataset(torch.zeros(10_000, 1), torch.zeros(10_000))
    assert rows.rows_with_draws(data, 1_000) is data
    more = bnn.data.Dataset(torch.arange(30_001.0)[:, None], torch.zeros(30_001))
    kept = rows.rows_with_draws(more, 1_000).x[:, 0]
    assert (len(kept), float(kept[0]), float(kept[-1])) == (10_000, 0.0, 30_000.0)
    labels = bnn.data.Dataset(torch.zeros(10_000, 1), torch.arange(10_000) % 100)
    assert len(rows.rows_with_draws(labels, 1_000)) == 2**27 // (100 * 1_000)
