"""Simulation-based calibration of the real No-U-Turn sampler, as it is and broken on purpose.

Every simulated data set has one chain. They move apart, by a step in C, though they are more than
a run moves apart by itself: in a batch all wait for the longest trajectory. What is broken in the
batch is found there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyro.distributions as dist
import pytest
import torch
from numpy.typing import NDArray

from pyro_bnn import likelihoods, models, priors
from pyro_bnn.diagnostics import SimulationRanks, simulation_based_calibration
from pyro_bnn.infer import NUTS
from pyro_bnn.infer.mcmc.lockstep import Lockstep

pytestmark = pytest.mark.slow("samples hundreds of chains")

X = torch.linspace(-1.5, 1.5, 8, dtype=torch.float64).unsqueeze(1)
NUM_SIMULATIONS = 100
LONG: dict[str, Any] = {"thin": 20, "target_accept": 0.95, "warmup_steps": 300, "max_tree_depth": 8}
HIERARCHY = {"*.weight": priors.HalfCauchyScale(0.3), "*.bias": priors.Normal()}


def network(prior: Any) -> models.MLP:
    """Three tanh units; noise sd around 0.37, rarely below 0.1, so that no chain is a crawl."""
    noise = dist.LogNormal(torch.tensor(-1.0), torch.tensor(0.5))
    likelihood = likelihoods.Normal(noise)
    return models.MLP(
        1, hidden=(3,), activation="tanh", prior=prior, likelihood=likelihood
    ).double()


def calibrate(
    model: models.MLP,
    *,
    thin: int,
    target_accept: float = 0.8,
    warmup_steps: int = 100,
    max_tree_depth: int = 5,
    compiled: bool = True,
) -> SimulationRanks:
    nuts = NUTS(
        warmup_steps=warmup_steps,
        num_samples=19 * thin,
        target_accept=target_accept,
        max_tree_depth=max_tree_depth,
        compile=compiled,
    )
    return simulation_based_calibration(
        model, X, nuts, num_simulations=NUM_SIMULATIONS, num_draws=19, progress=False
    )


@pytest.mark.usefixtures("all_apart")
@pytest.mark.parametrize(
    ("prior", "how", "divergences"),
    [
        pytest.param(priors.Normal(), {"thin": 5}, 0.005, id="network", marks=pytest.mark.soak),
        pytest.param(HIERARCHY, LONG, 0.032, id="half-Cauchy hierarchy"),
    ],
)
def test_ranks_are_uniform(prior: Any, how: dict[str, Any], divergences: float) -> None:
    """The hierarchy diverges where its scales are far out in their tails.

    Of 22 seeds of the simulations each has 1.7 +- 0.4 % divergences: the limit is four standard
    deviations above the mean. Its scales have Cauchy tails, in which short trajectories stay:
    thinned by 8, with 31 steps at most, draws were so much alike that in 4,000 simulations the
    scale of the last layer had its rank at an end too often (p = 1e-63).
    """
    thin = how["thin"]
    found = calibrate(network(prior), **how)
    assert found.num_failed == 0
    assert (found.p_values > 0.001).all(), found.summary()
    smooth = [uniformity.smooth_p_value for uniformity in found.uniformities.values()]
    assert min(smooth) > 0.0005, found.summary()  # two degrees of freedom see more
    assert found.ess > 0.8 * found.num_draws
    assert sum(found.num_diverging) < divergences * NUM_SIMULATIONS * 19 * thin


# --- broken on purpose ---------------------------------------------------------------------------


def fast_momenta(monkeypatch: pytest.MonkeyPatch) -> None:
    """Momenta of sd 1.25 under a kinetic energy for 1."""
    right = Lockstep._normal
    monkeypatch.setattr(Lockstep, "_normal", lambda self, count: 1.25 * right(self, count))


def data_left_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chains that go on when others are done go on with the data of the first ones."""
    right = Lockstep.keep

    def keep(self: Lockstep, places: NDArray[np.int64]) -> None:
        x, y = self._inputs
        right(self, places)
        self._inputs = (x, y[: len(places)].clone())
        self._bind()

    monkeypatch.setattr(Lockstep, "keep", keep)


@pytest.mark.usefixtures("all_apart")
@pytest.mark.parametrize(
    ("breaks", "compiled"),
    [(fast_momenta, True), pytest.param(data_left_behind, False, marks=pytest.mark.soak)],
)
def test_a_broken_sampler_is_found(
    breaks: Callable[[pytest.MonkeyPatch], None], compiled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    breaks(monkeypatch)
    found = calibrate(network(priors.Normal()), thin=3, max_tree_depth=4, compiled=compiled)
    assert not found.is_calibrated, found.summary()
    assert found.p_values.min() < 0.001, found.summary()
