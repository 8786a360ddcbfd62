"""The posterior of a network on real data is that of Pyro's own NUTS."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
import torch
from pyro.infer import Predictive, mcmc
from torch import Tensor

from pyro_bnn import arviz_io, data
from pyro_bnn.infer import HMC, NUTS
from pyro_bnn.models import MLP
from tests.plain_pyro import default_dtype

NUM_ROWS = 60  # so few that Pyro's chains take seconds
ENGINES = {
    "NUTS": NUTS(num_chains=16, warmup_steps=150, num_samples=150, compile=False),
    "HMC": HMC(num_chains=16, warmup_steps=150, num_samples=150, num_steps=12, compile=False),
}


@pytest.fixture(scope="module")
def split() -> Any:
    return data.load("diabetes", split=0)


def moments(f: Tensor) -> np.ndarray:
    """First and second moments of f at test rows, ``[C, S, 2 N]``, from f ``[C, S, N]``."""
    values: np.ndarray = torch.cat([f, f.square()], -1).double().numpy()
    return values


@pytest.fixture(scope="module")
def by_pyro(split: Any) -> np.ndarray:
    """Draws of Pyro's NUTS, in the model as it is: its handlers, its transforms, its adaptation."""
    x, y = split.train.x[:NUM_ROWS].double(), split.train.y[:NUM_ROWS].double()
    with default_dtype(torch.float64):
        model = MLP(10, hidden=(3,), activation="tanh").double()
        chains = [pyro_chain(model, x, y, seed) for seed in range(3)]
        predict = Predictive(model, chains_as_one(chains), return_sites=["f"])
        f = predict(split.test.x[:8].double())["f"][..., 0]
    return moments(f.reshape(3, -1, 8))


def pyro_chain(model: Any, x: Tensor, y: Tensor, seed: int) -> dict[str, Tensor]:
    with torch.random.fork_rng(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of torch, on the tracer that Pyro uses
        torch.manual_seed(seed)
        kernel = mcmc.NUTS(model, jit_compile=True, ignore_jit_warnings=True)
        sampler: Any = mcmc.MCMC(kernel, num_samples=200, warmup_steps=100, disable_progbar=True)
        sampler.run(x, y)
    samples: dict[str, Tensor] = sampler.get_samples()
    return samples


def chains_as_one(chains: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    return {name: torch.cat([chain[name] for chain in chains]) for name in chains[0]}


@pytest.mark.slow
@pytest.mark.parametrize("name", ENGINES)
def test_moments_of_the_function_on_diabetes(name: str, split: Any, by_pyro: np.ndarray) -> None:
    rows = (split.train.x[:NUM_ROWS].double(), split.train.y[:NUM_ROWS].double())
    with default_dtype(torch.float64):
        model = MLP(10, hidden=(3,), activation="tanh").double()
        run = ENGINES[name].run(model, rows, progress=False)
        f = run.function_draws(split.test.x[:8].double(), 2_400, group_by_chain=True)
    ours = moments(f[..., 0])
    assert arviz_io.rhat(ours).max() < 1.05
    assert arviz_io.rhat(by_pyro).max() < 1.05
    error = np.hypot(arviz_io.mcse_mean(ours), arviz_io.mcse_mean(by_pyro))
    difference = ours.mean((0, 1)) - by_pyro.mean((0, 1))
    assert np.abs(difference / error).max() < 4
    # and the comparison is a sharp one: in units of the posterior's sd of f
    sd = ours[..., :8].std((0, 1))
    assert (error[:8] / sd).max() < 0.15
