"""Gradients of single rows, layer by layer, against a loop of autograd over rows.

For ``bayesian(net)`` the loop runs through ``torch.func.functional_call`` on the user's own
network and the likelihood written out, for rank-1 networks through their log likelihood.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from pyro_bnn import bayesian, layers, likelihoods
from pyro_bnn.infer.curvature.rows import RowTermsOf
from pyro_bnn.layers import GRUCell
from pyro_bnn.models import Rank1MLP, Rank1ResNet
from pyro_bnn.program import Batch, Program
from tests.layers.test_gru_cell import Recurrent
from tests.models.test_network_layers import NETWORKS as IMAGE_NETWORKS
from tests.plain_pyro import TiedNet, linear_net, transformer_net

NUM_ROWS, NUM_CLASSES = 5, 3
SCALE = 0.25  # exact in float32, in which likelihoods are made


NETWORKS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], bool]] = {
    **{name: (build, shape, True) for name, (build, shape) in IMAGE_NETWORKS.items()},
    "Linear": (linear_net, (3,), False),
    "tied": (TiedNet, (3,), False),
    "TransformerEncoderLayer": (transformer_net, (3,), False),
    "GRUCell": (lambda: Recurrent(GRUCell(2, 3)), (4, 2), False),
}  # each with the shape of a row and whether f are logits of classes
RANK1: dict[str, tuple[Callable[[], Any], tuple[int, ...], bool]] = {
    "Rank1Linear": (
        lambda: Rank1MLP(3, hidden=(4,), activation="tanh", likelihood=likelihoods.Normal(SCALE)),
        (3,),
        False,
    ),
    "Rank1Conv2d": (
        lambda: Rank1ResNet((1, 8, 8), 3, depth=8, width=2),
        (1, 8, 8),
        True,
    ),
}


ONE = [("squared_gradients", NUM_ROWS)]
ALL = [(name, chunk) for name in ("gradients", "squared_gradients") for chunk in (NUM_ROWS, 2)]


def rows(shape: tuple[int, ...], has_classes: bool) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(NUM_ROWS, *shape, generator=generator, dtype=torch.float64)
    if has_classes:
        return x, torch.arange(NUM_ROWS) % NUM_CLASSES
    return x, torch.randn(NUM_ROWS, generator=generator, dtype=torch.float64)


def nll(f: Tensor, y: Tensor, has_classes: bool) -> Tensor:
    """Minus the log likelihood of one row."""
    if has_classes:
        return nn.functional.cross_entropy(f, y)
    value: Tensor = -torch.distributions.Normal(f.reshape(-1), SCALE).log_prob(y).sum()
    return value


def loop(of_row: Callable[[Tensor, int], Tensor], z: Tensor) -> Tensor:
    """Gradients ``[B, P]`` of the rows at z ``[P]``."""
    gradients = []
    for i in range(NUM_ROWS):
        leaf = z.clone().requires_grad_()
        gradients.append(torch.autograd.grad(of_row(leaf, i), leaf)[0])
    return torch.stack(gradients)


def check(
    program: Program,
    batch: Batch,
    of_row: Callable[[Tensor, int], Tensor],
    *,
    captured: Sequence[tuple[str, int]],
) -> None:
    """Gradients and squared gradients of the rows at two draws, all rows and two at a time.

    Args:
        program: The model.
        batch: The rows.
        of_row: Minus the log likelihood of a row at z ``[P]``.
        captured: For which kinds and numbers of rows at a time a graph is made.
    """
    generator = torch.Generator().manual_seed(2)
    z = 0.5 * torch.randn(2, program.num_latents, generator=generator, dtype=torch.float64)
    expected = torch.stack([loop(of_row, row) for row in z])  # [S, B, P]
    assert float(expected.abs().amax((0, 1)).gt(0).double().mean()) > 0.5
    for chunk in (NUM_ROWS, 2):
        found = {}
        for name in ("gradients", "squared_gradients"):
            is_captured = (name, chunk) in captured
            terms = RowTermsOf(program, name, batch, len(z), is_captured=is_captured)
            terms.chunk = chunk
            found[name] = terms(z, batch)
            assert_close(found[name].gradient, expected.sum(1), rtol=1e-9, atol=1e-9)
        each = found["gradients"].curvature
        assert each is not None
        assert_close(each, expected.flatten(0, 1) / 2**0.5, rtol=1e-9, atol=1e-9)
        squares = found["squared_gradients"].curvature
        assert_close(squares, expected.square().sum(1).mean(0), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", NETWORKS)
def test_gradients_of_rows_of_a_network(name: str) -> None:
    build, shape, has_classes = NETWORKS[name]
    net = build().double()
    likelihood = likelihoods.Categorical(3) if has_classes else likelihoods.Normal(SCALE)
    x, y = rows(shape, has_classes)
    program = Program(bayesian(net, likelihood=likelihood), x, y)
    sizes = {key: parameter.shape for key, parameter in net.named_parameters()}
    assert [site.name for site in program.sites] == list(sizes)

    def of_row(z: Tensor, i: int) -> Tensor:
        parts = z.split([size.numel() for size in sizes.values()])
        values = {key: part.reshape(sizes[key]) for key, part in zip(sizes, parts, strict=True)}
        f = torch.func.functional_call(net, values, (x[i : i + 1],))
        return nll(f, y[i : i + 1], has_classes)

    check(program, program.batch(x, y), of_row, captured=ALL if name == "Linear" else ONE)


@pytest.mark.parametrize("name", RANK1)
def test_gradients_of_rows_by_the_factors_of_a_network(name: str) -> None:
    build, shape, has_classes = RANK1[name]
    x, y = rows(shape, has_classes)
    program = Program(build().double(), x, y)
    batch = program.batch(x, y)

    def of_row(z: Tensor, i: int) -> Tensor:
        return -program.log_likelihood(z, Batch(batch.x[i : i + 1], batch.y[i : i + 1])).sum()

    check(program, batch, of_row, captured=ONE)


def test_every_layer_is_looked_at() -> None:
    """All of the package; ``Rank1Layer`` is the base of two."""
    assert set(layers.__all__) - {"Rank1Layer"} <= {*NETWORKS, *RANK1}
