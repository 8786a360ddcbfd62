"""The posterior of a network on real data is that of Pyro's own NUTS.

Pyro's draws are kept in ``pyro_nuts_diabetes.npz``, with the versions that made them, as its chains
take minutes. ``make soak`` draws them anew and compares; to keep new ones:

    python -m tests.infer.test_nuts_against_pyro
"""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pyro
import pytest
import torch
from pyro.infer import Predictive, mcmc
from torch import Tensor

from pyro_bnn import arviz_io, data
from pyro_bnn.infer import HMC, NUTS
from pyro_bnn.models import MLP
from tests.plain_pyro import default_dtype

NUM_ROWS = 60  # so few that Pyro's chains take seconds
NUM_CHAINS = 3
KEPT = Path(__file__).with_name("pyro_nuts_diabetes.npz")
ENGINES = {
    "NUTS": NUTS(num_chains=60, warmup_steps=70, num_samples=40, compile=True),
    "HMC": HMC(num_chains=16, warmup_steps=150, num_samples=150, num_steps=12, compile=True),
}


@pytest.fixture(scope="module")
def split() -> Any:
    return data.load("diabetes", split=0)


def moments(f: Tensor) -> np.ndarray:
    """First and second moments of f at test rows, ``[C, S, 2 N]``, from f ``[C, S, N]``."""
    values: np.ndarray = torch.cat([f, f.square()], -1).double().numpy()
    return values


@pytest.fixture(scope="module")
def by_pyro() -> np.ndarray:
    """Moments of the kept draws of Pyro's NUTS, ``[C, S, 2 N]``."""
    with np.load(KEPT) as kept:
        return moments(torch.from_numpy(kept["f"]).double())


def drawn_by_pyro(split: Any) -> Tensor:
    """F ``[C, S, N]`` by Pyro's NUTS, of the model as it is: its handlers, its adaptation."""
    x, y = split.train.x[:NUM_ROWS].double(), split.train.y[:NUM_ROWS].double()
    with default_dtype(torch.float64):
        model = MLP(10, hidden=(3,), activation="tanh").double()
        chains = [pyro_chain(model, x, y, seed) for seed in range(NUM_CHAINS)]
        predict = Predictive(model, chains_as_one(chains), return_sites=["f"])
        f: Tensor = predict(split.test.x[:8].double())["f"][..., 0]
    return f.reshape(NUM_CHAINS, -1, 8)


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


@pytest.mark.slow("samples chains")
@pytest.mark.parametrize("name", ["NUTS", pytest.param("HMC", marks=pytest.mark.soak)])
def test_moments_of_the_function_on_diabetes(name: str, split: Any, by_pyro: np.ndarray) -> None:
    rows = (split.train.x[:NUM_ROWS].double(), split.train.y[:NUM_ROWS].double())
    with default_dtype(torch.float64):
        model = MLP(10, hidden=(3,), activation="tanh").double()
        run = ENGINES[name].run(model, rows, progress=False)
        f = run.function_draws(split.test.x[:8].double(), 2_400, group_by_chain=True)
    ours = moments(f[..., 0])
    assert_same_means(ours, by_pyro)
    # and the comparison is a sharp one: in units of the posterior's sd of f
    sd = ours[..., :8].std((0, 1))
    assert (errors_of(ours, by_pyro)[:8] / sd).max() < 0.15


def errors_of(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Standard errors of the differences of two means over chains and draws."""
    return np.hypot(arviz_io.mcse_mean(a), arviz_io.mcse_mean(b))


def assert_same_means(a: np.ndarray, b: np.ndarray) -> None:
    assert arviz_io.rhat(a).max() < 1.05
    assert arviz_io.rhat(b).max() < 1.05
    difference = a.mean((0, 1)) - b.mean((0, 1))
    assert np.abs(difference / errors_of(a, b)).max() < 4


@pytest.mark.soak
def test_draws_made_anew_have_the_moments_of_those_that_are_kept(
    split: Any, by_pyro: np.ndarray
) -> None:
    assert_same_means(moments(drawn_by_pyro(split)), by_pyro)


def keep() -> None:
    """Draw anew, and keep the draws with how they were made."""
    f = drawn_by_pyro(data.load("diabetes", split=0))
    made = {
        "command": "python -m tests.infer.test_nuts_against_pyro",
        "pyro": pyro.__version__,
        "torch": torch.__version__,
        "seeds": list(range(NUM_CHAINS)),
    }
    np.savez_compressed(KEPT, f=f.float().numpy(), made=json.dumps(made))


if __name__ == "__main__":
    torch.set_num_threads(1)
    keep()
