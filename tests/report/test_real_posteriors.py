"""The comparison on posteriors of the package itself: tiny fits, no stand-ins."""

from __future__ import annotations

import html
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose

from pyro_bnn import arviz_io, guides
from pyro_bnn.data import Split, from_arrays
from pyro_bnn.infer import SVI
from pyro_bnn.infer.mcmc.nuts import NUTS
from pyro_bnn.likelihoods import Categorical
from pyro_bnn.models import MLP
from pyro_bnn.report import Comparison, compare

pytestmark = pytest.mark.slow("whole comparisons")


def _sine() -> Split:
    rng = np.random.default_rng(0)
    x = rng.uniform(-2, 2, size=(60, 1))
    y = 50.0 + 10.0 * np.sin(2 * x[:, 0]) + 3.0 * rng.normal(size=60)
    return from_arrays(x, y, test_fraction=0.25)


@pytest.fixture(scope="module")
def comparison() -> Comparison:
    split = _sine()
    model = MLP(1, hidden=(4,), activation="tanh")
    posteriors = {
        "MAP": SVI(guides.AutoDelta, num_steps=50).run(model, split.train, progress=False),
        "mean-field": SVI(guides.AutoNormal, num_steps=50).run(model, split.train, progress=False),
        "NUTS": NUTS(num_chains=2, warmup_steps=30, num_samples=40, max_tree_depth=2).run(
            model, split.train, progress=False
        ),
    }
    return compare(posteriors, split, reference="NUTS")


def test_the_log_score_is_that_of_the_prediction_in_the_users_units(comparison: Comparison) -> None:
    x, y = comparison.split.test.raw()
    for name, posterior in comparison.posteriors.items():
        prediction = posterior.predict(x, comparison.num_draws, comparison.seed, raw=True)
        expected = prediction.log_prob(y).mean()
        assert_allclose(comparison.table.loc[name, "log_score"], float(expected), rtol=1e-4)
        rmse = (prediction.mean.reshape(-1) - y).square().mean().sqrt()
        assert_allclose(comparison.table.loc[name, "rmse"], float(rmse), rtol=1e-4)


def test_draws_are_as_many_for_all_but_the_point(comparison: Comparison) -> None:
    assert comparison.num_draws == 80
    assert comparison.table["draws"].to_dict() == {"MAP": 1, "mean-field": 80, "NUTS": 80}


def test_each_method_has_the_checks_that_apply_to_it(comparison: Comparison) -> None:
    table = comparison.table
    assert np.isfinite(table.loc["mean-field", ["elbo", "elbo_error", "khat"]].astype(float)).all()
    assert np.isnan(table.loc["MAP", ["elbo", "khat", "rhat", "loo"]].astype(float)).all()
    assert np.isfinite(table.loc["NUTS", ["rhat", "ess", "divergent", "loo"]].astype(float)).all()
    elbo, _ = comparison.posteriors["mean-field"].elbo(comparison.split.train, 80, 0)
    assert_allclose(table.loc["mean-field", "elbo"], elbo, rtol=1e-9)
    assert comparison.shares_model


def test_the_report_and_its_files_are_written(comparison: Comparison, tmp_path: Path) -> None:
    folder = comparison.save(tmp_path / "report")
    tree = arviz_io.load_netcdf(folder / "nuts.nc")
    assert tree["posterior"]["f"].shape[:2] == (2, 40)
    assert {path.stem for path in folder.glob("*.nc")} == {"map", "mean-field", "nuts"}
    page = (folder / "index.html").read_text(encoding="utf-8")
    assert "figure-band" in page
    assert "figure-ranks" in page
    for verdict in comparison.verdicts:
        assert html.escape(verdict, quote=False).split("'")[0] in page


def test_random_state_is_left_alone(comparison: Comparison) -> None:
    state = torch.random.get_rng_state()
    compare({"mean-field": comparison.posteriors["mean-field"]}, comparison.split, num_samples=30)
    assert torch.equal(torch.random.get_rng_state(), state)


def test_classes_are_compared_too() -> None:
    rng = np.random.default_rng(1)
    x = rng.normal(size=(90, 2))
    split = from_arrays(x, (x[:, 0] > 0).astype(int) + (x[:, 1] > 0.5), test_fraction=0.3)
    model = MLP(2, hidden=(4,), likelihood=Categorical(3))
    posterior = SVI(guides.AutoNormal, num_steps=50).run(model, split.train, progress=False)
    comparison = compare({"mean-field": posterior}, split, num_samples=100)
    prediction = posterior.predict(split.test.x, 100, 0)
    expected = prediction.log_prob(split.test.y).mean()
    assert_allclose(comparison.table.loc["mean-field", "log_score"], float(expected), rtol=1e-5)
    assert 0 <= comparison.table.loc["mean-field", "ece"] <= 1
    comparison.figures["reliability"].draw_without_rendering()
