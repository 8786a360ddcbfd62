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
@pytest.mark.slow("whole fits")
def test_mean_field_on_yacht_lies_in_the_band_of_the_literature() -> None:
    split = bnn.data.load("uci/yacht", split=0)
    model = bnn.models.MLP(6, hidden=(50,))
    posterior = bnn.SVI(bnn.guides.AutoNormal).run(model, split.train, seed=0, progress=False)
    x, y = split.test.raw()
    error = posterior.predict(x, raw=True).mean[:, 0] - y
    assert 0.6 < error.square().mean().sqrt() < 1.6  # independent Pyro SVI: 1.32 +- 0.32 (sd)


@needs_uci
@pytest.mark.soak
def test_means_before_scales_find_the_better_optimum_on_energy() -> None:
    """Scales trained from the start switch off units that the data need: another optimum."""
    split = bnn.data.load("uci/energy", split=0)
    x, y = split.test.raw()
    errors, elbos = [], []
    for loc_warmup in (0, None):
        model = bnn.models.MLP(8, hidden=(50,))
        engine = bnn.SVI(bnn.guides.AutoNormal, loc_warmup=loc_warmup)
        posterior = engine.run(model, split.train, seed=0, progress=False)
        error = posterior.predict(x, raw=True).mean[:, 0] - y
        errors.append(float(error.square().mean().sqrt()))
        elbos.append(posterior.elbo(split.train)[0])
    assert elbos[1] - elbos[0] > 100  # nats; the Monte Carlo errors are about 2
    assert errors[1] < 1.4 < errors[0]  # independent Pyro SVI: 1.12 +- 0.29 (sd)


@pytest.mark.soak  # tests/infer/test_nuts_against_pyro.py has NUTS on fewer of these rows
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
