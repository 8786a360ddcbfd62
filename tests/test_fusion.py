"""Rewritten graphs: the same numbers, fewer operations, nothing overwritten that is read again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyro.distributions as dist
import pytest
import torch
from torch import Tensor, nn
from torch.fx import GraphModule
from torch.testing import assert_close

from pyro_bnn import bayesian, likelihoods, models
from pyro_bnn.capture.fuse import fuse
from pyro_bnn.capture.record import record
from pyro_bnn.capture.simplify import simplify
from pyro_bnn.program import Program

NUM_DRAWS = 5


def captured(fn: Callable[..., tuple[Tensor, ...]], *args: Tensor) -> GraphModule:
    with torch.no_grad():
        graph = record(fn, args)
    simplify(graph)
    return graph


def operations(module: GraphModule) -> list[str]:
    return [str(n.target).removeprefix("aten.") for n in module.graph.nodes if callable(n.target)]


class Residual(nn.Module):
    """The hidden layer is read twice: by the second layer, and by the sum after it."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.last = nn.Linear(3, 6), nn.Linear(6, 6), nn.Linear(6, 1)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.first(x))
        out: Tensor = self.last(torch.relu(self.second(h)) + h)
        return out


class Shared(nn.Module):
    """Weights of the second layer are point estimates, the same for all draws."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(3, 6), nn.Linear(6, 1)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.second(nn.functional.silu(self.first(x)))
        return out


NETWORKS: dict[str, Callable[[], Any]] = {
    "one hidden layer": lambda: models.MLP(3, hidden=(8,)),
    "three, tanh": lambda: models.MLP(3, 2, hidden=(8, 7, 6), activation="tanh"),
    "no hidden layer": lambda: models.MLP(3, hidden=()),
    "two outputs": lambda: models.MLP(
        3, hidden=(4,), likelihood=likelihoods.HeteroscedasticNormal()
    ),
    "nn.Linear without bias": lambda: bayesian(
        nn.Sequential(nn.Linear(3, 6, bias=False), nn.LeakyReLU(0.1), nn.Linear(6, 1))
    ),
    "layer norm": lambda: bayesian(
        nn.Sequential(nn.Linear(3, 6), nn.LayerNorm(6), nn.SiLU(), nn.Linear(6, 1))
    ),
    "residual": lambda: bayesian(Residual()),
    "point estimates": lambda: bayesian(Shared(), prior={"first*": dist.Normal(0.0, 1.0)}),
    "convolution": lambda: bayesian(
        nn.Sequential(nn.Unflatten(1, (1, 3)), nn.Conv1d(1, 2, 2), nn.Flatten(), nn.Linear(4, 1))
    ),
    "rank-1": lambda: models.Rank1MLP(3, hidden=(5,)),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_numbers_stay_the_same(name: str) -> None:
    torch.manual_seed(0)
    x = torch.randn(11, 3, dtype=torch.float64)
    program = Program(NETWORKS[name]().double(), x, torch.zeros(11, 2 if "tanh" in name else 1))
    z = torch.randn(NUM_DRAWS, program.num_latents, dtype=torch.float64)
    names, values = tuple(program.params), tuple(program.params.values())

    def fn(z: Tensor, x: Tensor, *values: Tensor) -> tuple[Tensor, ...]:
        return program.predictive_tensors(z, x, dict(zip(names, values, strict=True)))

    fn(z, x, *values)  # its checks
    graph = captured(fn, z.clone(), x.clone(), *(v.detach().clone() for v in values))
    inputs = (z.clone(), x.clone())
    fuse(graph)
    assert any(op.split(".")[0].endswith("_") for op in operations(graph)) or "no hidden" in name
    for _ in range(2):  # a second call would see what the first one overwrote
        for ours, theirs in zip(graph(*inputs, *values), fn(z, x, *values), strict=True):
            assert_close(ours, theirs, rtol=1e-12, atol=1e-12)
    assert torch.equal(inputs[0], z)
    assert torch.equal(inputs[1], x)


def test_the_first_layer_is_one_product_and_biases_are_part_of_products() -> None:
    def network(z: Tensor, x: Tensor) -> tuple[Tensor]:
        w, b, v, c = z[:, :12].reshape(-1, 3, 4), z[:, 12:16], z[:, 16:20], z[:, 20:]
        h = torch.relu(torch.bmm(x.expand(len(z), *x.shape), w) + b.unsqueeze(1))
        return (torch.bmm(h, v.unsqueeze(-1)) + c.unsqueeze(-1),)

    z, x = torch.randn(NUM_DRAWS, 21), torch.randn(7, 3)
    graph = captured(network, z, x)
    assert operations(graph).count("bmm.default") == 2
    fuse(graph)
    names = operations(graph)
    assert [op for op in names if "mm" in op] == ["mm.default", "baddbmm.default"]
    assert "relu_.default" in names
    assert not {"bmm.default", "add.Tensor", "relu.default", "add_.Tensor"} & set(names)
    assert_close(graph(z, x)[0], network(z, x)[0])


def test_what_is_read_again_is_not_overwritten() -> None:
    def twice(z: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        h = torch.bmm(z, x)
        return torch.relu(h), h * 2

    def of_an_input(z: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        return torch.relu(z.reshape(2, -1)), x + 1

    def returned(z: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        h = torch.bmm(z, x)
        return torch.tanh(h), h

    def of_an_expanded_one(z: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        h = (z + 1)[:, :1].expand(2, 3, 3)
        return torch.relu(h), x.exp()

    z, x = torch.randn(2, 3, 3), torch.randn(2, 3, 3)
    for fn in (twice, of_an_input, returned, of_an_expanded_one):
        graph = captured(fn, z.clone(), x.clone())
        fuse(graph)
        before = z.clone(), x.clone()
        for ours, theirs in zip(graph(*before), fn(z, x), strict=True):
            assert torch.equal(ours, theirs)
        assert torch.equal(before[0], z)
        assert torch.equal(before[1], x)


@pytest.mark.parametrize(
    ("size", "sides"), [((2, 2), (8, 6)), ((3, 2), (10, 7)), ((1, 4), (3, 9)), ((2,), (5, 6))]
)
def test_the_largest_of_windows_side_by_side_is_that_of_images(
    size: tuple[int, ...], sides: tuple[int, int]
) -> None:
    def network(x: Tensor) -> tuple[Tensor]:
        return (nn.functional.max_pool2d(x, size),)

    x = torch.randn(NUM_DRAWS, 3, *sides)
    x[0, 0, 0, 0] = torch.nan
    graph = captured(network, x)
    fuse(graph)
    assert not [op for op in operations(graph) if "pool" in op]
    assert_close(graph(x)[0], network(x)[0], rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize(
    "network",
    [
        lambda x: (nn.functional.max_pool2d(x, 3, stride=2),),
        lambda x: (nn.functional.max_pool2d(x, 2, padding=1),),
        lambda x: (nn.functional.max_pool2d(x, 2, dilation=2),),
        lambda x: (nn.functional.max_pool2d(x, 2, ceil_mode=True),),
        lambda x: nn.functional.max_pool2d(x, 2, return_indices=True),
    ],
    ids=["stride", "padding", "dilation", "ceil_mode", "indices"],
)
def test_other_windows_are_left_to_torch(network: Callable[[Tensor], tuple[Tensor, ...]]) -> None:
    x = torch.randn(NUM_DRAWS, 3, 7, 7)
    graph = captured(network, x)
    fuse(graph)
    assert "max_pool2d_with_indices.default" in operations(graph)
    for ours, theirs in zip(graph(x), network(x), strict=True):
        assert torch.equal(ours, theirs)


def test_what_follows_a_convolution_overwrites_it() -> None:
    def network(x: Tensor, w: Tensor, b: Tensor) -> tuple[Tensor]:
        h = nn.functional.conv2d(x, w)
        return (torch.relu(h.permute(1, 0, 2, 3) + b[:, None, None, None]),)

    inputs = torch.randn(5, 2, 6, 6), torch.randn(3, 2, 3, 3), torch.randn(3)
    before = [value.clone() for value in inputs]
    graph = captured(network, *inputs)
    fuse(graph)
    assert {"add_.Tensor", "relu_.default"} <= set(operations(graph))
    assert_close(graph(*inputs)[0], network(*inputs)[0])
    assert all(torch.equal(ours, own) for ours, own in zip(inputs, before, strict=True))


def test_a_graph_that_draws_random_numbers_stays_as_it_is() -> None:
    def noisy(z: Tensor) -> tuple[Tensor]:
        return (torch.relu(torch.bmm(z, z) + torch.randn_like(z)),)

    graph = captured(noisy, torch.randn(2, 3, 3))
    before = operations(graph)
    fuse(graph)
    assert operations(graph) == before
