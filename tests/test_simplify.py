"""Simplified graphs return the same bits from fewer operations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import cast

import pytest
import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from pyro_bnn.capture.record import record
from pyro_bnn.capture.simplify import simplify

CONSTANT = torch.arange(3.0)


def recorded(fn: Callable[[Tensor], Tensor], x: Tensor) -> torch.fx.GraphModule:
    """The operations of a function of one tensor, which returns one."""
    module = record(lambda x: (fn(x),), [x])
    (value,) = cast(Sequence[torch.fx.Node], module.graph.output_node().args[0])
    module.graph.output_node().args = (value,)
    module.recompile()
    return module


def _num_calls(module: torch.fx.GraphModule) -> int:
    return sum(node.op == "call_function" for node in module.graph.nodes)


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: (x * 1.0).view(3).add_(1.0),
        lambda x: (x * 2.0).view(3).copy_(x).add(1.0),
    ],
)
def test_what_is_written_through_a_view_is_recorded_as_a_tensor_of_its_own(
    fn: Callable[[Tensor], Tensor],
) -> None:
    x = torch.randn(3)
    before = x.clone()
    module = recorded(fn, x)
    simplify(module)
    torch.testing.assert_close(module(2 * x), fn(2 * x), rtol=0, atol=0)
    assert torch.equal(x, before)
    names = [getattr(node.target, "_opname", "") for node in module.graph.nodes]
    assert not [name for name in names if name.endswith("_")]


def test_a_copy_into_another_layout_stays() -> None:
    x = torch.randn(3, 2)
    module = recorded(lambda x: x.mT.clone(memory_format=torch.contiguous_format).view(6), x)
    simplify(module)
    torch.testing.assert_close(module(x), x.mT.reshape(6), rtol=0, atol=0)


@pytest.mark.parametrize(("dropout", "num_ones"), [(0.0, 0), (0.1, 1)])
def test_attention_without_dropout_draws_nothing(dropout: float, num_ones: int) -> None:
    attention: Callable[..., tuple[Tensor, Tensor]]
    attention = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu

    def fn(x: Tensor) -> Tensor:
        mixed: Tensor = attention(x, x, x, dropout_p=dropout)[0]
        return mixed * torch.ones(()).exp().log()

    x = torch.randn(1, 2, 3, 4)
    module = make_fx(fn, tracing_mode="fake")(x)
    simplify(module)
    targets = [node.target for node in module.graph.nodes]
    assert targets.count(torch.ops.aten.ones.default) == num_ones
    if not dropout:
        torch.testing.assert_close(module(x), fn(x), rtol=0, atol=0)


def test_gradients_of_a_small_network_keep_their_bits() -> None:
    x, y = torch.randn(20, 3), torch.randn(20, 1)

    def gradient(w: Tensor) -> Tensor:
        w = w.detach().requires_grad_()
        loss = ((torch.relu(x @ w.view(3, 1)) - y) ** 2).sum() + (w**2).sum() / 2
        return torch.autograd.grad(loss, w)[0]

    w = torch.randn(3)
    module = recorded(gradient, w)
    before, expected = _num_calls(module), gradient(2 * w)
    simplify(module)
    assert _num_calls(module) < before
    torch.testing.assert_close(module(2 * w), expected, rtol=0, atol=0)


def _ones_of_rows(x: Tensor) -> Tensor:
    return x * torch.ones_like(x).cumsum(0) + torch.zeros_like(x[:, 0]).sum()


@pytest.mark.parametrize(
    "fn",
    [
        _ones_of_rows,
        lambda x: x @ torch.full_like(x, 2.0).mT @ x,
        lambda x: x.sum(0).expand(x.shape[0], 3) + x.mT.reshape(3, -1).mT,
        lambda x: x.view(x.shape[0], 3).expand(x.shape[0], -1) * (6 / x.shape[0]),
        lambda x: x.new_zeros(x.shape[0], 3).add(1.0).mul(x).mT,
        lambda x: x + torch.arange(x.shape[0]).unsqueeze(-1),
        lambda x: x * torch.full_like(CONSTANT, x.shape[0]),
    ],
)
@pytest.mark.parametrize("rows", [3, 4])
def test_sizes_that_are_symbols_are_not_taken_for_those_of_the_example(
    fn: Callable[[Tensor], Tensor], rows: int
) -> None:
    """Three rows of three columns: the example's sizes are equal, others are not."""
    example = torch.arange(3.0 * rows).reshape(rows, 3)
    trace = make_fx(fn, tracing_mode="symbolic", _allow_non_fake_inputs=True)
    module = trace(torch.cat([example, example]))
    before = _num_calls(module)
    simplify(module)
    assert _num_calls(module) <= before
    for count in (2 * rows, 2, 3, 5):
        x = torch.randn(count, 3)
        torch.testing.assert_close(module(x), fn(x), rtol=0, atol=0)


def test_operations_that_do_nothing_go_where_sizes_are_symbols_too() -> None:
    module = make_fx(lambda x: ((x * 1.0) ** 1.0).detach() - 0, tracing_mode="symbolic")(
        torch.zeros(5, 3)
    )
    simplify(module)
    assert _num_calls(module) == 0
    x = torch.randn(4, 3)
    torch.testing.assert_close(module(x), x, rtol=0, atol=0)
