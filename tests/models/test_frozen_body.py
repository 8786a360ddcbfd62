"""Where a network is cut into a frozen body and the rest, and where it must not be."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from pyro_bnn.models.frozen_body import FrozenBody, frozen_body


class Skips(nn.Module):
    """Two heads on one body, of which one is multiplied by a column of x."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.mean, self.scale = nn.Linear(3, 4), nn.Linear(4, 1), nn.Linear(4, 1)

    def forward(self, x: Tensor) -> Any:
        h = self.body(x).tanh()
        f = torch.cat([self.mean(h), self.scale(h) * x[:, :1]], -1)
        return f.view(x.shape[0], -1)


class AroundHead(nn.Module):
    """What comes after the head depends on x, too."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(3, 4), nn.Linear(4, 2)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def forward(self, x: Tensor) -> Any:
        return self.head(self.body(x)) * x[:, :1].exp()


class Transformer(nn.Module):
    """A class token, positions and two blocks, of which the last one is drawn."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(1, 8)
        self.token, self.places = nn.Parameter(torch.ones(1, 1, 8)), nn.Parameter(torch.ones(4, 8))
        block = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        self.blocks = nn.ModuleList([block, copy.deepcopy(block)])
        self.head = nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Any:
        h = self.embed(x.unsqueeze(-1))
        h = torch.cat([self.token.expand(x.shape[0], -1, -1), h], 1) + self.places
        for block in self.blocks:
            h = block(h)
        return self.head(h[:, 0])


class Cumulative(nn.Module):
    """Rows depend on those before them: the first one is the same alone."""

    def forward(self, x: Tensor) -> Tensor:
        return x.cumsum(0)


class Branches(nn.Module):
    """Python decides by values of x, so that no graph can be recorded."""

    def __init__(self, *, is_last: bool) -> None:
        super().__init__()
        self.body, self.head, self.is_last = nn.Linear(3, 4), nn.Linear(4, 2), is_last

    def forward(self, x: Tensor) -> Any:
        h = self.body(x)
        f = self.head(h if len(x) else -h)
        return f if self.is_last else f * 2


class Tied(nn.Module):
    """The head's weight is that of the first layer."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.middle, self.head = nn.Linear(3, 3), nn.Linear(3, 3), nn.Linear(3, 3)
        self.head.weight = self.first.weight

    def forward(self, x: Tensor) -> Any:
        return self.head(self.middle(self.first(x)))


NORMALISED = nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5), nn.Linear(5, 2)).eval()
X = torch.linspace(-1, 1, 30).sin().reshape(10, 3)


def names(net: nn.Module, *prefixes: str) -> list[str]:
    every = (name for name, _ in net.named_parameters(remove_duplicate=False))
    return [name for name in every if name.startswith(prefixes)]


def cut(net: nn.Module, *prefixes: str, x: Tensor = X) -> FrozenBody | None:
    torch.manual_seed(1)
    state = torch.get_rng_state()
    found = frozen_body(net, names(net, *prefixes), x, x.ndim + 1)
    if not any(isinstance(m, nn.Dropout) and m.training for m in net.modules()):
        assert torch.equal(state, torch.get_rng_state())
    return found


@pytest.mark.parametrize(
    ("net", "prefixes", "row_shape"),
    [
        (nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 2)), ("2.",), (1, 5)),
        (nn.Sequential(nn.Linear(3, 5), nn.Linear(5, 4), nn.Linear(4, 2)), ("1.", "2."), (1, 5)),
        (nn.Sequential(nn.Linear(3, 5), nn.Linear(5, 4), nn.Linear(4, 2)), ("1.",), (1, 5)),
        (
            nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5), nn.Linear(5, 2)).eval(),
            ("2.",),
            (1, 5),
        ),
        (nn.Sequential(nn.Linear(3, 5), nn.Dropout(), nn.Linear(5, 2)).eval(), ("2.",), (1, 5)),
        (nn.Sequential(nn.Linear(3, 5), nn.ReLU(inplace=True), nn.Linear(5, 2)), ("2.",), (1, 5)),
        (Skips(), ("mean", "scale"), (1, 5)),
        (AroundHead(), ("head",), (1, 5)),
        (Transformer().eval(), ("head",), (1, 8)),
        (Transformer().eval(), ("blocks.1", "head"), (1, 32)),
        (Branches(is_last=True), ("head",), (1, 4)),
    ],
)
@torch.no_grad()
def test_the_halves_are_the_whole_at_other_weights_and_rows(
    net: nn.Module, prefixes: tuple[str, ...], row_shape: tuple[int, ...]
) -> None:
    torch.manual_seed(0)
    for value in net.parameters():
        value.copy_(torch.randn_like(value))
    body = cut(net, *prefixes)
    assert body is not None
    assert body.row_shape == row_shape
    drawn = {name: torch.randn_like(net.get_parameter(name)) for name in names(net, *prefixes)}
    for x in (X[:1], torch.randn(4, 3)):
        expected = torch.func.functional_call(net, drawn, (x.clone(),))
        features = body.features(x.clone(), {})
        assert body.are_features(features)
        assert not body.are_features(x)
        for each in (body, pickle.loads(pickle.dumps(body)), copy.deepcopy(body)):
            torch.testing.assert_close(each.rest(features.clone(), drawn), expected)


@torch.no_grad()
def test_other_values_stand_in_for_those_of_the_body() -> None:
    net = nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5), nn.Linear(5, 2)).eval()
    body = cut(net, "2.")
    assert body is not None
    values = {
        "0.weight": torch.ones(5, 3),
        "0.bias": torch.zeros(5),
        "1.running_mean": torch.ones(5),
    }
    expected = (X.sum(1, keepdim=True) - 1).expand(-1, 5) / (1 + 1e-5) ** 0.5
    torch.testing.assert_close(body.features(X, values)[:, 0], expected)


@pytest.mark.parametrize(
    ("net", "prefixes"),
    [
        (nn.Sequential(nn.Linear(3, 5), nn.Linear(5, 2)), ("0.", "1.")),  # nothing is frozen
        (nn.Sequential(nn.Linear(3, 5), nn.Linear(5, 2)), ("0.",)),  # nor before what is drawn
        (nn.Sequential(nn.Flatten(), nn.Linear(3, 5), nn.Linear(5, 2)), ("1.",)),
        (nn.Sequential(nn.Linear(3, 5), nn.Linear(5, 2)), ()),
        (nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5), nn.Linear(5, 2)), ("2.",)),
        (nn.Sequential(nn.Linear(3, 5), nn.Dropout(0.01), nn.Linear(5, 2)), ("2.",)),
        (nn.Sequential(nn.Linear(3, 5), nn.Softmax(0), nn.Linear(5, 2)), ("2.",)),
        (nn.Sequential(nn.Linear(3, 5), Cumulative(), nn.Linear(5, 2)), ("2.",)),
        (Branches(is_last=False), ("head",)),
        (Tied(), ("first",)),
    ],
)
def test_no_cut(net: nn.Module, prefixes: tuple[str, ...]) -> None:
    before = {name: value.clone() for name, value in net.state_dict().items()}
    assert cut(net, *prefixes) is None
    for name, value in net.state_dict().items():  # statistics are as they were
        torch.testing.assert_close(value, before[name], rtol=0, atol=0)
    assert not any(module._forward_pre_hooks for module in net.modules())


def test_a_cut_is_known_again() -> None:
    net = Skips()
    one, same, other = cut(net, "mean", "scale"), cut(net, "mean", "scale"), cut(net, "mean")
    assert one is not None
    assert same is not None
    assert other is not None
    assert one.is_same(same)
    assert not one.is_same(other)
    elsewhere = cut(copy.deepcopy(net), "mean", "scale")
    assert elsewhere is not None
    assert not one.is_same(elsewhere)
