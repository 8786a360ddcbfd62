"""The Cauchy prior against scipy, and the scale that a sum of its draws has."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import stats
from torch.testing import assert_close

from pyro_bnn.priors import Cauchy, PriorModule
from tests.priors.laws import assert_law


@pytest.mark.parametrize(
    ("prior", "shape", "loc", "scale"),
    [
        (Cauchy(), (500, 8), 0.0, 1 / 8),
        (Cauchy(), (100, 2, 4), 0.0, 1 / 8),
        (Cauchy(), (2_000,), 0.0, 1.0),
        (Cauchy(2.5, loc=-1.0), (500, 8), -1.0, 2.5),
    ],
)
def test_density_and_draws(prior: Cauchy, shape: tuple[int, ...], loc: float, scale: float) -> None:
    torch.manual_seed(0)
    fn = prior.distribution(torch.Size(shape))
    assert (fn.batch_shape, fn.event_shape) == (torch.Size([]), torch.Size(shape))
    draws = fn.sample()
    law = stats.cauchy(loc, scale)
    assert_law(draws, law.cdf)
    expected = law.logpdf(draws.double().numpy()).sum()
    assert_close(fn.log_prob(draws).double(), torch.tensor(expected), rtol=1e-4, atol=0)


@pytest.mark.parametrize("num_inputs", [1, 3, 300])
def test_a_sum_over_inputs_has_the_same_law_at_every_width(num_inputs: int) -> None:
    torch.manual_seed(1)
    w = Cauchy().distribution(torch.Size([3_000, num_inputs])).sample()
    assert_law(w.double().sum(1), stats.cauchy.cdf)


def test_it_follows_its_module() -> None:
    module = PriorModule(Cauchy().distribution(torch.Size([2, 3])))
    assert module.double()().sample().dtype == torch.float64
    np.testing.assert_allclose(module().base_dist.scale.numpy(), 1 / 3, rtol=1e-6)
    assert module.to("meta")().sample().device.type == "meta"
