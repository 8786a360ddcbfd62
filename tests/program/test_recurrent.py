"""Recurrent layers in plain operations are those of torch, to rounding, with their gradients."""

from __future__ import annotations

from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.nn import PyroModule, PyroSample
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.testing import assert_close

import pyro_bnn as bnn
from pyro_bnn.data import Call
from pyro_bnn.program.recurrent import is_plain, recurrence
from tests.plain_pyro import default_dtype


@pytest.fixture(autouse=True)
def double() -> Any:
    with default_dtype(torch.float64), torch.random.fork_rng():
        torch.manual_seed(0)
        yield


class _Plain(TorchFunctionMode):
    """Counts the layers that it computes in plain operations."""

    count = 0

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if is_plain(func, args):
            self.count += 1
            return recurrence(func, args)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("cls", [nn.GRU, nn.LSTM, nn.RNN])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"batch_first": True, "bias": False},
        {"num_layers": 2, "bidirectional": True},
    ],
    ids=str,
)
def test_layers_are_those_of_torch(cls: Any, options: dict[str, Any]) -> None:
    layer, x = cls(2, 3, **options), torch.randn(4, 5, 2, requires_grad=True)
    inputs = [x, *layer.parameters()]
    found = []
    for mode in (_Plain(), None):
        if mode is None:
            values, states = layer(x)
        else:
            with mode:
                values, states = layer(x)
            assert mode.count == 1
        states = states if isinstance(states, tuple) else (states,)
        total = sum(part.square().sum() for part in (values, *states))
        found.append([values, *states, *torch.autograd.grad(total, inputs)])
    assert_close(*found)


def test_a_relu_and_a_row_without_a_batch() -> None:
    layer, x = nn.RNN(2, 3, nonlinearity="relu"), torch.randn(4, 2)
    with _Plain() as mode:
        found = layer(x)
    assert mode.count == 1
    assert_close(found, layer(x))


def test_projections_dropout_and_packed_sequences_stay_torchs() -> None:
    x = torch.randn(4, 2, 2)
    packed: Any = nn.utils.rnn.pack_padded_sequence(x, torch.tensor([4, 3]))
    with _Plain() as mode:
        nn.LSTM(2, 3, proj_size=2)(x)
        nn.GRU(2, 3, num_layers=2, dropout=0.5)(x)
        nn.GRU(2, 3)(packed)
    assert mode.count == 0


class Driven(PyroModule):
    """A recurrent layer that is held, whose input is scaled by a site."""

    def __init__(self, cls: Any) -> None:
        super().__init__()
        self.layer = cls(1, 2, batch_first=True).requires_grad_(requires_grad=False)
        self.scale = PyroSample(dist.Normal(0.0, 1.0))

    def last(self, scale: Tensor, x: Tensor) -> Tensor:
        states: Tensor = self.layer(scale * x[..., None])[0]
        return states[:, -1].sum(-1)

    def forward(self, x: Tensor, y: Tensor) -> None:
        scale: Any = self.scale
        f = self.last(scale, x)
        with pyro.plate("rows", len(x)):
            pyro.sample("y", dist.Normal(f, 0.2), obs=y)


@pytest.mark.parametrize("cls", [nn.GRU, nn.LSTM, nn.RNN])
@pytest.mark.parametrize("engine", [bnn.NUTS(num_samples=400, warmup_steps=100), bnn.SMC()])
def test_the_input_of_a_layer_may_depend_on_a_site(
    cls: Any, engine: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """Against a sum over a grid of the site, of torch's own layer."""
    model, x = Driven(cls), torch.randn(8, 4)
    y = model.last(torch.tensor(0.7), x) + 0.2 * torch.randn(8)
    at = torch.linspace(-5, 5, 2_001)
    logs = torch.stack([dist.Normal(model.last(s, x), 0.2).log_prob(y).sum() for s in at])
    p = (logs - at**2 / 2).softmax(0)
    mean = (p * at).sum()
    sd = (p * (at - mean) ** 2).sum().sqrt()
    with caplog.at_level("INFO", logger="pyro_bnn"):
        posterior = engine.run(model, Call(x, y), progress=False)
    draws = posterior.sample(1_000)["scale"]
    assert abs(float(draws.mean() - mean)) < 5 * float(sd) / 10
    assert abs(float(draws.std() / sd) - 1) < 0.25
    assert "cannot be" not in caplog.text
