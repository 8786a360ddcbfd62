"""Predictions of many draws at once: of each draw by its own distribution, and apart."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import scipy.stats
import torch
from torch import Tensor

from pyro_bnn.program import predictions as room
from pyro_bnn.program.enumerated import joint_of
from pyro_bnn.program.joint import Joint

NUM_DRAWS = 3_000

# y of each draw's rate, and the same law by SciPy
FAMILIES: dict[str, tuple[Callable[[Tensor], Any], Callable[[Any], Any]]] = {
    "Normal": (lambda r: dist.Normal(r, r), lambda r: scipy.stats.norm(r, r)),
    "StudentT": (lambda r: dist.StudentT(3.0, r, 1.0), lambda r: scipy.stats.t(3.0, r)),
    "Gamma": (lambda r: dist.Gamma(r, 1.0), scipy.stats.gamma),
    "Exponential": (dist.Exponential, lambda r: scipy.stats.expon(scale=1 / r)),
    "Cauchy": (lambda r: dist.Cauchy(r, 1.0), scipy.stats.cauchy),
    "Beta": (lambda r: dist.Beta(r, 2.0), lambda r: scipy.stats.beta(r, 2.0)),
    "Poisson": (lambda r: dist.Poisson(9 * r), lambda r: scipy.stats.poisson(9 * r)),
    "Binomial": (
        lambda r: dist.Binomial(20, probs=r / (1 + r)),
        lambda r: scipy.stats.binom(20, r / (1 + r)),
    ),
}
IS_ONE_BY_ONE = {"Beta"}


def model_of(family: Callable[[Tensor], Any]) -> Callable[[Tensor], None]:
    def model(y: Tensor) -> None:
        rate = pyro.sample("rate", dist.LogNormal(0.0, 0.5))
        with pyro.plate("rows", len(y)):
            pyro.sample("y", family(rate), obs=y)

    return model


def drawn(joint: Joint, z: Tensor) -> Tensor:
    return room.predictions(joint, None, z, {}, None, seed=7)["y"]


@pytest.mark.parametrize("name", FAMILIES)
def test_each_draw_is_of_its_own_distribution(name: str, caplog: pytest.LogCaptureFixture) -> None:
    family, law = FAMILIES[name]
    joint = joint_of(model_of(family), (torch.full((2,), 0.5 if name == "Beta" else 1.0),))
    z = joint.prior_draws(NUM_DRAWS, seed=1)
    with caplog.at_level("INFO"):
        y = drawn(joint, z).double().numpy()
    assert y.shape == (NUM_DRAWS, 2)
    assert ("one by one" in caplog.text) == (name in IS_ONE_BY_ONE)
    of_draw = law(z.exp().double().numpy())
    u = of_draw.cdf(y)
    if name in ("Poisson", "Binomial"):  # uniform between the steps of its distribution function
        below = of_draw.cdf(y - 1)
        u = below + (u - below) * np.random.default_rng(2).uniform(size=y.shape)
    assert scipy.stats.kstest(u.ravel(), "uniform").pvalue > 1e-3
    assert abs(np.corrcoef(u.T)[0, 1]) < 4 / NUM_DRAWS**0.5


def of_fixed_noise(y: Tensor) -> None:
    shift = pyro.sample("shift", dist.Normal(0.0, 1.0))
    noise = pyro.sample("noise", dist.Normal(torch.zeros(2), 1.0).to_event(1), obs=y)
    pyro.deterministic("y", noise + shift)


def test_noise_that_depends_on_no_site_is_drawn_for_each_draw() -> None:
    joint = joint_of(of_fixed_noise, (torch.zeros(2),))
    z = torch.full((NUM_DRAWS, 1), 5.0)
    y = drawn(joint, z)
    assert len(y.unique(dim=0)) == NUM_DRAWS
    assert scipy.stats.kstest((y - 5).flatten().numpy(), "norm").pvalue > 1e-3


def test_blocks_are_drawn_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    joint = joint_of(of_fixed_noise, (torch.zeros(2),))
    monkeypatch.setattr(room, "NUMBERS", 14)
    y = drawn(joint, torch.zeros(20, 1))
    assert y.shape == (20, 2)
    assert len(y.unique(dim=0)) == 20
