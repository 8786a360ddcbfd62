"""Graphs with long dimensions last: the same numbers, and the products that they are made of."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch._inductor.decomposition import select_decomp_table
from torch.fx import GraphModule

from pyro_bnn.capture.inductor.recording import record_rows
from pyro_bnn.capture.simplify import simplify
from pyro_bnn.capture.transpose import lay_out
from tests.collection import rest_in_soak

C, N, H = 3, 50, 4
Function = Callable[..., tuple[Tensor, ...]]


def normal(*shape: int) -> Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(*shape, dtype=torch.float64, generator=generator)


def laid_out(fn: Function, *args: Tensor) -> GraphModule:
    """The graph of a function whose arguments have a symbol for C, if they begin with it."""
    rows = {i: 0 for i, arg in enumerate(args) if arg.shape[0] == C}
    graph, _, _ = record_rows(fn, args, rows, select_decomp_table())
    simplify(graph)
    lay_out(graph)
    for found, expected in zip(graph(*args), fn(*args), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    return graph


def products(graph: GraphModule) -> list[tuple[int, ...]]:
    """Rows and columns of the results of all batched products."""
    found = [node for node in graph.graph.nodes if node.target is torch.ops.aten.bmm.default]
    return [tuple(int(size) for size in node.meta["val"].shape[1:]) for node in found]


def network(num_inputs: int, activation: Callable[[Tensor], Tensor]) -> Function:
    """Gradient by the weights of sum y f of networks of two layers, one for each chain."""

    def gradient(w1: Tensor, b1: Tensor, w2: Tensor, w3: Tensor, x: Tensor) -> tuple[Tensor, ...]:
        with torch.enable_grad():
            weights = [w.detach().requires_grad_() for w in (w1, b1, w2, w3)]

            def one(w1: Tensor, b1: Tensor, w2: Tensor, w3: Tensor) -> Tensor:
                h = activation(x @ w1.mT + b1)
                return (activation(h @ w2.mT) @ w3.mT).tanh().sum()

            total = torch.func.vmap(one)(*weights).sum()
            return tuple(torch.autograd.grad(total, weights))

    return gradient


@pytest.mark.slow("about a second")
@pytest.mark.parametrize(
    ("num_inputs", "activation", "num_outputs"),
    [(1, torch.relu, 1), (2, torch.tanh, 2), (3, torch.nn.functional.silu, 3), (60, torch.relu, 1)],
)
def test_networks_keep_their_gradients_and_write_no_tall_product(
    num_inputs: int, activation: Callable[[Tensor], Tensor], num_outputs: int
) -> None:
    shapes = (C, H, num_inputs), (C, H), (C, H, H), (C, num_outputs, H)
    args = [normal(*shape) for shape in shapes]
    graph = laid_out(network(num_inputs, activation), *args, normal(N, num_inputs))
    assert N not in [rows for rows, _ in products(graph)]


@pytest.mark.slow("about a second")
def test_products_of_one_or_two_terms_or_lines_are_elementwise() -> None:
    """Forwards a sum over two inputs; backwards two columns, of which each is a sum over rows."""
    args = [normal(C, H, 2), normal(C, H), normal(C, H, H), normal(C, 1, H)]
    graph = laid_out(network(2, torch.relu), *args, normal(N, 2))
    assert products(graph) == [(H, N), (1, N), (H, H), (H, N)]


@pytest.mark.parametrize(("num_terms", "target"), [(1, "aten.mul.Tensor"), (2, "aten.mm.default")])
def test_an_outer_product_is_elementwise(num_terms: int, target: str) -> None:
    graph = laid_out(lambda a, b: (a @ b,), normal(N, num_terms), normal(num_terms, H))
    assert [str(node.target) for node in graph.graph.nodes if callable(node.target)] == [target]


def test_a_product_whose_transpose_is_read_is_made_as_that() -> None:
    graph = laid_out(lambda a, b: (torch.bmm(a, b).mT,), normal(C, H, 9), normal(C, 9, 7))
    assert products(graph) == [(7, H)]


def test_a_matrix_of_each_chain_serves_as_inputs_too() -> None:
    def fn(x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
        f = torch.bmm(x, w).relu()
        return f, torch.bmm(x.mT, f), torch.bmm(f.mT, x), f.sum(1), f + x[:, :, :1]

    assert products(laid_out(fn, normal(C, N, 2), normal(C, 2, H))) == []


def test_wide_products_stay() -> None:
    graph = laid_out(lambda a, b: (torch.bmm(a, b),), normal(C, H, 7), normal(C, 7, N))
    assert [str(n.target) for n in graph.graph.nodes if n.op == "call_function"] == [
        "aten.bmm.default"
    ]


@pytest.mark.slow("a second or more")
@pytest.mark.parametrize(
    ("num_rows", "num_inputs", "num_outputs", "width"),
    rest_in_soak(
        list(itertools.product((1, 2), (1, 2), (1, 2), (1, 2, H))),
        # every pair of two of them
        [(1, 1, 1, 1), (2, 2, 2, 1), (1, 2, 2, 2), (2, 1, 1, 2), (1, 1, 2, H), (2, 2, 1, H)],
    ),
)
def test_few_rows_and_few_inputs_keep_their_gradients(
    num_rows: int, num_inputs: int, num_outputs: int, width: int
) -> None:
    """The inputs and their transpose both have one or two columns, and are told apart."""
    shapes = (C, width, num_inputs), (C, width), (C, width, width), (C, num_outputs, width)
    args = [normal(*shape) for shape in shapes]
    laid_out(network(num_inputs, torch.tanh), *args, normal(num_rows, num_inputs))


@pytest.mark.parametrize("shape", [(1, 1), (1, 2), (2, 1), (2, 2), (1, 7), (7, 1), (2, 7), (7, 2)])
@pytest.mark.parametrize("is_turned", [False, True])
def test_a_matrix_that_all_share_is_taken_as_it_lies(
    shape: tuple[int, int], is_turned: bool
) -> None:
    """From either side of a product, and with a row that is expanded."""

    def fn(a: Tensor, b: Tensor, x: Tensor, row: Tensor) -> tuple[Tensor, ...]:
        shared = [v.expand(a.shape[0], *x.shape) for v in (x, row)]
        if is_turned:
            shared = [v.mT for v in shared]
        return tuple(p for v in shared for p in (torch.bmm(a, v), torch.bmm(v, b)))

    rows, columns = shape[::-1] if is_turned else shape
    laid_out(fn, normal(C, 5, rows), normal(C, columns, 5), normal(*shape), normal(1, shape[1]))
