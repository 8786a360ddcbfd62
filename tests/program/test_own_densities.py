"""Densities of this package for distributions of torch are torch's own numbers."""

from __future__ import annotations

import math
from typing import Any

import pyro.distributions as dist
import pytest
import torch
from torch.testing import assert_close

from pyro_bnn.priors.prior import unvalidated
from pyro_bnn.program.distributions import with_own_density

K = torch.tensor([[2.0, 0.3], [0.3, 1.0]]).double()
V = torch.tensor([[1.0, 0.2], [0.2, 2.0]]).double()


@pytest.mark.parametrize("df", [torch.tensor(4.5), torch.tensor([3.0, 7.0])])
def test_a_wishart_is_torchs(df: torch.Tensor) -> None:
    fn: Any = dist.Wishart(df.double(), V)
    value = torch.stack([K, 2 * V])
    own: Any = with_own_density(unvalidated(fn))
    assert type(own) is not type(fn)
    assert type(fn) is dist.Wishart  # the user's stays
    assert_close(own.log_prob(value), fn.log_prob(value), rtol=1e-10, atol=1e-10)
    events = dist.Wishart(torch.tensor(4.5).double().expand(2), V).to_event(1)
    found: Any = with_own_density(unvalidated(events))
    assert_close(found.log_prob(value), events.log_prob(value), rtol=1e-10, atol=1e-10)


def test_where_a_matrix_is_not_definite_there_is_no_density() -> None:
    own: Any = with_own_density(unvalidated(dist.Wishart(torch.tensor(4.0).double(), V)))
    assert math.isnan(own.log_prob(-K))
