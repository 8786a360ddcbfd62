"""The flat prior: density one everywhere, with a proposal that follows dtype and device."""

from __future__ import annotations

import math

import pytest
import torch
from torch.testing import assert_close

from pyro_bnn.models import MLP
from pyro_bnn.priors import Flat, PriorModule
from pyro_bnn.program import Program
from tests.plain_pyro import data


@pytest.mark.parametrize("shape", [(4,), (4, 3)])
def test_the_density_is_one_everywhere(shape: tuple[int, ...]) -> None:
    fn = Flat().distribution(torch.Size(shape))
    assert (fn.batch_shape, fn.event_shape) == (torch.Size([]), torch.Size(shape))
    for value in (torch.zeros(shape), torch.full(shape, -1e6)):
        assert_close(fn.log_prob(value), torch.zeros(()))
    assert fn.sample((5,)).shape == (5, *shape)


def test_draws_are_fan_in_gaussian() -> None:
    torch.manual_seed(0)
    draws = Flat().distribution(torch.Size([1_000, 25])).sample()
    assert abs(float(draws.var()) * 25 - 1) / math.sqrt(2 / draws.numel()) < 5


def test_draws_follow_the_module_in_dtype_and_device() -> None:
    module = PriorModule(Flat().distribution(torch.Size([2, 3])))
    assert module().sample().dtype == torch.float32
    assert module.double()().sample().dtype == torch.float64
    assert module.to("meta")().sample().device.type == "meta"


def test_a_flat_model_has_the_likelihood_as_its_joint() -> None:
    x, y = data()
    program = Program(MLP(3, hidden=(4,), prior=Flat()).double(), x, y)
    batch, z = program.batch(x, y), program.initial
    assert program.latents.improper == {site.name for site in program.sites[:-1]}
    scale = program.sites[-1]
    prior = torch.distributions.HalfNormal(1.0).log_prob(z[-1].exp()) + z[-1]
    assert scale.name == "likelihood.scale"
    expected = program.log_likelihood(z, batch).sum() + prior
    assert_close(program.log_joint(z, batch), expected, rtol=1e-10, atol=0)
