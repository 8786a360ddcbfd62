"""Whether a network is as torch made it, by the laws of ``reset_parameters``."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations

from pyro_bnn import bayesian
from pyro_bnn.layers import FilterResponseNorm
from pyro_bnn.models.untrained import is_untrained
from tests.plain_pyro import transformer_net

LAYERS: dict[str, Callable[[], nn.Module]] = {
    "linear": lambda: nn.Linear(30, 20),
    "without biases": lambda: nn.Linear(300, 20, bias=False),
    "one weight": lambda: nn.Linear(1, 1),
    "double": lambda: nn.Linear(100, 300).double(),
    "bfloat16": lambda: nn.Linear(100, 300).bfloat16(),
    "bilinear": lambda: nn.Bilinear(9, 4, 5),
    "convolution": lambda: nn.Conv2d(6, 8, 3, groups=2),
    "transposed convolution": lambda: nn.ConvTranspose2d(6, 8, 3, groups=2),
    "batch normalisation": lambda: nn.Sequential(nn.Conv1d(2, 4, 3), nn.BatchNorm1d(4)),
    "other normalisations": lambda: nn.Sequential(
        nn.Linear(3, 8), nn.LayerNorm(8), nn.GroupNorm(2, 8), FilterResponseNorm(8)
    ),
    "LSTM": lambda: nn.LSTM(3, 8, num_layers=2, bidirectional=True),
    "projected LSTM": lambda: nn.LSTM(3, 8, proj_size=4),
    "GRU cell": lambda: nn.GRUCell(3, 8),
    "embedding": lambda: nn.Embedding(100, 8, padding_idx=0),
    "attention": lambda: nn.MultiheadAttention(8, 2, add_bias_kv=True),
    "attention of other sizes": lambda: nn.MultiheadAttention(8, 2, kdim=4, vdim=5),
    "transformer": transformer_net,
    "weight norm": lambda: parametrizations.weight_norm(nn.Linear(30, 20)),
}
TOO_FEW = {"one weight", "weight norm"}  # weights to tell


@pytest.mark.parametrize("name", LAYERS)
def test_a_new_network_is_untrained(name: str) -> None:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        assert all(is_untrained(LAYERS[name]()) for _ in range(30))


@pytest.mark.parametrize("name", sorted({*LAYERS} - TOO_FEW))
@pytest.mark.parametrize("factor", [0.5, 1.5])
def test_weights_of_another_size_are_not(name: str, factor: float) -> None:
    net = LAYERS[name]()
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.mul_(factor)
    assert not is_untrained(net)


def moved_norm(net: nn.Sequential) -> None:
    net[1].bias[0] = 1e-3  # type: ignore[operator]


def more_batches(net: nn.Sequential) -> None:
    net(torch.zeros(2, 2, 5))


@pytest.mark.parametrize("change", [moved_norm, more_batches])
def test_normalisations_tell_of_training(change: Callable[[nn.Module], None]) -> None:
    net = LAYERS["batch normalisation"]()
    with torch.no_grad():
        change(net)
    assert not is_untrained(net)


def test_a_bias_of_attention_tells_of_training() -> None:
    net = LAYERS["attention"]()
    assert isinstance(net, nn.MultiheadAttention)
    with torch.no_grad():
        net.out_proj.bias[3] = 1e-3
    assert not is_untrained(net)


class Slope(nn.Module):
    """A layer that nobody knows."""

    def __init__(self) -> None:
        super().__init__()
        self.slope = nn.Parameter(torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        return self.slope * x


def test_a_network_of_unknown_layers_counts_as_trained() -> None:
    assert not is_untrained(Slope())
    assert is_untrained(nn.Sequential(nn.Linear(3, 3), Slope()))


@pytest.mark.parametrize("optimizer", [torch.optim.Adam, torch.optim.SGD, torch.optim.AdamW])
def test_a_few_steps_of_training_show(optimizer: Callable[..., torch.optim.Optimizer]) -> None:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        x = torch.randn(100, 10)
        net = nn.Sequential(nn.Linear(10, 50), nn.Tanh(), nn.Linear(50, 1))
    descent = optimizer(net.parameters(), lr=1e-2)
    for _ in range(30):
        descent.zero_grad()
        (net(x) - x[:, :1]).square().mean().backward()
        descent.step()
    model = bayesian(net)
    assert model.is_trained
    own = model.own_weights()
    assert own.keys() == dict(net.named_parameters()).keys()
    for name, value in net.named_parameters():
        assert torch.equal(own[name], value)
