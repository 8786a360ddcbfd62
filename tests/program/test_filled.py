"""Tensors that a model makes and writes draws into, on many draws at once."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from pyro_bnn.program.joint import Joint
from tests.plain_pyro import default_dtype


@pytest.fixture(autouse=True)
def double() -> Any:
    with default_dtype(torch.float64):
        yield


SITE = dist.Normal(torch.zeros(3).double(), 1.0).to_event(1)
SEEN = torch.tensor([0.5, float("nan"), -1.0, float("nan"), float("nan")]).double()


def series() -> Tensor:
    z = pyro.sample("z", SITE)
    filled = torch.zeros(5)
    filled[0] = z[0]
    for t in range(1, 5):
        filled[t] = 0.5 * filled[t - 1] + z[1]
    return filled


def imputed() -> Tensor:
    filled = SEEN.clone()
    filled[SEEN.isnan()] = pyro.sample("z", SITE)
    return filled


def loadings() -> Tensor:
    """The first is held at 1, so that the factor has a sign and a scale."""
    filled = torch.ones(4)
    filled[1:] = pyro.sample("z", SITE)
    return filled


def matrix() -> Tensor:
    z = pyro.sample("z", SITE)
    filled = z.new_zeros(3, 3)
    rows, columns = torch.tril_indices(3, 3, -1)
    filled[rows, columns] = z
    filled.diagonal().add_(z.exp())
    return filled


def total() -> Tensor:
    z = pyro.sample("z", SITE)
    filled = torch.tensor(0.0)
    for number in z:
        filled += number
    return filled


def clipped() -> Tensor:
    """Numbers at masks that draws decide, of entries and of rows."""
    z = pyro.sample("z", SITE)
    filled = 2 * z
    filled[z > 0] = 0.5
    rows = torch.stack([z, z.exp()], 1)
    rows[z < 0] = torch.tensor(-1.0)
    return torch.cat([filled, rows.flatten()])


@pytest.mark.parametrize("make", [series, imputed, loadings, matrix, total, clipped])
def test_a_batch_has_the_densities_and_slopes_of_each_draw(
    make: Callable[[], Tensor], caplog: pytest.LogCaptureFixture
) -> None:
    def model() -> None:
        f = make()
        pyro.sample("y", dist.Normal(f, 1.0).to_event(f.ndim), obs=torch.zeros_like(f))

    joint = Joint(model)
    z = torch.randn(4, 3, generator=torch.Generator().manual_seed(0)).requires_grad_()
    with caplog.at_level(logging.WARNING, logger="pyro_bnn"):
        as_batch = joint.log_joint(z)
    assert joint.is_batched, caplog.text
    one_by_one = torch.stack([joint.log_joint(row) for row in z])
    assert_close(as_batch, one_by_one)
    slopes = [torch.autograd.grad(value.sum(), z)[0] for value in (as_batch, one_by_one)]
    assert_close(*slopes)


def test_what_a_batch_still_refuses_runs_draw_by_draw(caplog: pytest.LogCaptureFixture) -> None:
    def model() -> None:
        z = pyro.sample("z", SITE)
        pyro.sample("y", dist.Normal(z[z > 0].sum(), 1.0), obs=torch.tensor(0.0))

    joint = Joint(model)
    z = torch.tensor([[1.0, 2.0, -1.0], [-1.0, -2.0, -1.0]])
    with caplog.at_level(logging.WARNING, logger="pyro_bnn"):
        found = joint.log_joint(z)
    assert "model cannot be batched over draws and runs draw by draw" in caplog.text
    expected = SITE.log_prob(z) + dist.Normal(torch.tensor([3.0, 0.0]), 1.0).log_prob(
        torch.tensor(0.0)
    )
    assert_close(found, expected)
