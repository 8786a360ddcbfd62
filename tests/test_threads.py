"""Fits and predictions in threads of one process have the numbers that they have one by one."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from typing import Any

import joblib
import numpy as np
import pytest
import torch

from pyro_bnn.guides import AutoNormal
from pyro_bnn.infer import NUTS, SVI, Ensemble
from pyro_bnn.models import MLP
from pyro_bnn.program.random_state import isolated
from pyro_bnn.sklearn import BNNRegressor

X = np.linspace(-2, 2, 30)[:, None]
ENGINES: list[Any] = [
    SVI(AutoNormal, num_steps=60, compile=False),
    Ensemble(num_members=2, num_steps=20),
]


@pytest.fixture(autouse=True)
def _often() -> Iterator[None]:
    """Threads take turns far more often than they do by default."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


def side_by_side(task: Any, count: int = 6) -> tuple[list[Any], list[Any]]:
    """What a task of a seed returns one by one, and in four threads."""
    threads = joblib.Parallel(4, backend="threading")
    return [task(seed) for seed in range(count)], threads(
        joblib.delayed(task)(seed) for seed in range(count)
    )


@pytest.mark.slow("six fits in threads")
@pytest.mark.parametrize(
    "method", [*ENGINES, NUTS(num_chains=1, warmup_steps=5, num_samples=5, max_tree_depth=2)]
)
@pytest.mark.filterwarnings("ignore::pyro_bnn.errors.BNNWarning")
def test_fits(method: Any) -> None:
    def task(seed: int) -> Any:
        net = BNNRegressor(method, hidden=4, random_state=seed).fit(X, np.sin(X[:, 0]))
        return np.column_stack([net.predict_quantiles(X), net.log_prob(X, X[:, 0])])

    alone, together = side_by_side(task)
    np.testing.assert_array_equal(together, alone)


def test_predictions_of_one_posterior() -> None:
    x = torch.tensor(X)
    data = x, x[:, 0]
    fitted = ENGINES[0].run(MLP(1, hidden=(4,)).double(), data, progress=False)

    def task(seed: int) -> list[torch.Tensor]:
        found = fitted.predict(x, 50, seed)
        return [
            found.draws,
            fitted.log_likelihood(data, 50, seed),
            fitted.log_joint(data, 50, seed),
        ]

    for alone, together in zip(*side_by_side(task), strict=True):
        for one, other in zip(alone, together, strict=True):
            torch.testing.assert_close(one, other, rtol=0, atol=0)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_forked_process_does_not_wait_for_a_thread_that_it_lacks() -> None:
    held, done = threading.Event(), threading.Event()

    def hold() -> None:
        with isolated():
            held.set()
            done.wait(30)

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait(30)
    child = os.fork()
    if not child:
        with isolated(0):
            os._exit(0)
    ended = threading.Timer(20, os.kill, (child, 9))
    ended.start()
    _, status = os.waitpid(child, 0)
    ended.cancel()
    done.set()
    thread.join()
    assert status == 0
