"""What was fitted and used survives a copy and a file, and answers as before in another process."""

from __future__ import annotations

import copy
import io
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import cloudpickle
import joblib
import numpy as np
import pytest
import torch

import pyro_bnn
from pyro_bnn import guides, likelihoods, models
from pyro_bnn.guides import Guide
from pyro_bnn.infer import SVI
from pyro_bnn.posterior import Posterior
from pyro_bnn.predictive.prediction import StreamedPrediction
from pyro_bnn.registry import known_methods
from pyro_bnn.sklearn import BNNClassifier, BNNRegressor
from tests.test_engines import X, Y, model, small

pytestmark = pytest.mark.filterwarnings("ignore::pyro_bnn.errors.BNNWarning")


def by_joblib(value: Any) -> Any:
    file = io.BytesIO()
    joblib.dump(value, file)
    file.seek(0)
    return joblib.load(file)


COPIES: dict[str, Callable[[Any], Any]] = {
    "pickle": lambda value: pickle.loads(pickle.dumps(value)),
    "joblib": by_joblib,
    "cloudpickle": lambda value: pickle.loads(cloudpickle.dumps(value)),
    "deepcopy": copy.deepcopy,
}


@pytest.fixture(autouse=True)
def _graphs_of_small_networks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A recorded graph is what a copy of a larger network stumbled over."""
    monkeypatch.setattr("pyro_bnn.predictive.map_draws.CAPTURE_FROM", 0)


def engines() -> Iterator[Any]:
    """An engine of each method of the registry."""
    for name, cls in known_methods().items():
        yield pytest.param(cls, id=name)


def used(cls: type[Any]) -> Posterior:
    """A posterior of a method, from which everything was read once."""
    if issubclass(cls, Guide):
        kind = getattr(models, cls.needs_model or "MLP")
        network: Any = kind(2, likelihood=likelihoods.Normal(0.3))
        engine = SVI(cls, num_steps=3, compile=False)
    else:
        network, engine = model(), small(cls)
    found: Posterior = engine.run(network, (X, Y), progress=False)
    answers(found)
    return found


def answers(posterior: Posterior) -> list[torch.Tensor]:
    """What a posterior says, by every way to compute it."""
    found = posterior.predict(X, seed=3)
    return [
        found.draws,
        found.log_prob(Y),
        posterior.log_likelihood((X, Y), seed=3),
        posterior.function_draws(X, seed=3),
    ]


def assert_same(a: list[torch.Tensor], b: list[torch.Tensor]) -> None:
    for one, other in zip(a, b, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("cls", [*engines()])
def test_a_posterior_that_was_used_is_copied(cls: type[Any]) -> None:
    posterior = used(cls)
    before = answers(posterior)
    for copied in COPIES.values():
        assert_same(answers(copied(posterior)), before)


@pytest.mark.parametrize("way", COPIES)
@pytest.mark.parametrize("memory", [1 << 30, 900_000])
def test_a_prediction_is_copied(way: str, memory: int) -> None:
    posterior = used(guides.AutoNormal)
    found = posterior.predict(torch.linspace(-1, 1, 800).reshape(400, 2), 20, memory=memory)
    assert isinstance(found, StreamedPrediction) == (memory < 1 << 20)
    y = torch.zeros(400)
    copied = COPIES[way](found)
    assert_same(
        [copied.mean, copied.sd, copied.quantile(0.3), copied.log_prob(y)],
        [found.mean, found.sd, found.quantile(0.3), found.log_prob(y)],
    )


@pytest.mark.slow("another process")
@pytest.mark.parametrize("cls", [BNNRegressor, BNNClassifier])
def test_an_estimator_is_read_in_another_process(cls: type[Any], tmp_path: Path) -> None:
    x, y = X.double().numpy(), (Y > 0).numpy().astype(float)
    net = cls(num_steps=3, random_state=0).fit(x, y)
    expected = net.log_prob(x, y)
    net.predict(x)
    (tmp_path / "net").write_bytes(pickle.dumps(net))
    (tmp_path / "rows").write_bytes(pickle.dumps((x, y)))
    code = (
        "import pickle, sys, numpy as np\n"
        "net, (x, y) = (pickle.load(open(name, 'rb')) for name in sys.argv[1:3])\n"
        "net.predict(x)\n"
        "np.save(sys.argv[3], net.log_prob(x, y))"
    )
    files = [str(tmp_path / name) for name in ("net", "rows", "found.npy")]
    root = Path(pyro_bnn.__file__).parents[1]
    subprocess.run([sys.executable, "-c", code, *files], check=True, cwd=root)
    # a graph and the operations one by one differ by rounding
    np.testing.assert_allclose(np.load(files[2]), expected, rtol=1e-12)
