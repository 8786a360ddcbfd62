"""Whole fits on real data, against bands of the literature."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

import pyro_bnn as bnn

needs_uci = pytest.mark.skipif(
    not (Path(os.environ.get("PYRO_BNN_DATA", "")) / "uci" / "yacht").is_dir(),
    reason="needs the UCI files: set PYRO_BNN_DATA to the folder that holds uci/",
)


@needs_uci
@pytest.mark.slow
def test_mean_field_on_yacht_lies_in_the_band_of_the_literature() -> None:
    split = bnn.data.load("uci/yacht", split=0)
    model = bnn.models.MLP(6, hidden=(50,))
    posterior = bnn.SVI(bnn.guides.AutoNormal).run(model, split.train, seed=0, progress=False)
    x, y = split.test.raw()
    error = posterior.predict(x, raw=True).mean[:, 0] - y
    assert 0.6 < error.square().mean().sqrt() < 1.6  # independent Pyro SVI: 1.32 +- 0.32 (sd)


@pytest.mark.slow
def test_nuts_on_diabetes_agrees_with_itself_in_function_space() -> None:
    from pyro_bnn.diagnostics import function_convergence

    split = bnn.data.load("diabetes", split=0)
    model = bnn.models.MLP(10, hidden=(50,))
    sampler = bnn.NUTS(num_chains=4, warmup_steps=150, num_samples=150)
    posterior = sampler.run(model, split.train, seed=0, progress=False)
    f = posterior.function_draws(split.test.x, num_samples=600, group_by_chain=True)
    assert f.shape == (4, 150, len(split.test), 1)
    assert function_convergence(f.numpy()).worst_rhat < 1.05
    assert torch.isfinite(f).all()
