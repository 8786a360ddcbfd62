"""A seed that the generators of torch cannot tell from another one is refused, wherever it goes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from pyro_bnn import prior_predictive
from pyro_bnn.diagnostics import simulation_based_calibration
from pyro_bnn.errors import OptionError
from pyro_bnn.guides import AutoNormal
from pyro_bnn.infer import SVI
from pyro_bnn.sklearn import BNNClassifier, BNNRegressor
from tests.test_engines import ENGINES, X, Y, fit, model, plain_fit, small

TOO_LARGE = 2**32


def refused(name: str = "seed") -> Any:
    return pytest.raises(OptionError, match=rf"{name} is at most 2\^32 - 1, not 4294967296")


@pytest.mark.parametrize("cls", ENGINES)
def test_of_engines(cls: type[Any]) -> None:
    with refused():
        fit(small(cls), seed=TOO_LARGE)


READ: dict[str, Callable[[Any], object]] = {
    "predict": lambda posterior: posterior.predict(X, seed=TOO_LARGE),
    "sample": lambda posterior: posterior.sample(seed=TOO_LARGE),
    "function_draws": lambda posterior: posterior.function_draws(X, seed=TOO_LARGE),
    "log_likelihood": lambda posterior: posterior.log_likelihood((X, Y), seed=TOO_LARGE),
}


@pytest.mark.parametrize("read", READ)
@pytest.mark.parametrize("engine", ["SVI", "NUTS", "Ensemble"])
@pytest.mark.filterwarnings("ignore::pyro_bnn.errors.BNNWarning")
def test_of_posteriors(engine: str, read: str) -> None:
    with refused():
        READ[read](plain_fit(engine))


@pytest.mark.parametrize("cls", [BNNRegressor, BNNClassifier])
@pytest.mark.parametrize("seed", [TOO_LARGE, np.uint64(TOO_LARGE)])
def test_of_estimators(cls: type[Any], seed: Any) -> None:
    x, y = X.double().numpy(), (Y > 0).numpy().astype(float)
    with refused("random_state"):
        cls(num_steps=2, random_state=seed).fit(x, y)
    net = cls(num_steps=2, random_state=2**32 - 1).fit(x, y)
    with refused("random_state"):
        net.sample_y(x, 2, random_state=seed)


def test_of_simulations() -> None:
    with refused():
        simulation_based_calibration(model(), X, SVI(AutoNormal, num_steps=2), seed=TOO_LARGE)


def test_a_seed_of_numpy_is_that_number() -> None:
    posterior = plain_fit("SVI")
    reads: list[Callable[[Any], torch.Tensor]] = [
        lambda seed: prior_predictive(model(), X, 5, seed=seed).function_draws,
        lambda seed: posterior.predict(X, 5, seed=seed).draws,
        lambda seed: posterior.function_draws(X, 5, seed=seed),
        lambda seed: posterior.log_likelihood((X, Y), 5, seed=seed),
    ]
    for read in reads:
        torch.testing.assert_close(read(np.int64(3)), read(3), rtol=0, atol=0)
