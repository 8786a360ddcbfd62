"""What the models share."""

from __future__ import annotations

from typing import Any

import pyro.distributions as dist
import pytest
import torch

from pyro_bnn import bayesian
from pyro_bnn.errors import OptionError
from pyro_bnn.likelihoods import Normal
from pyro_bnn.models import MLP
from pyro_bnn.models.network import own_likelihood


def test_a_likelihood_is_copied() -> None:
    likelihood = Normal(0.5)
    own: Any = own_likelihood(likelihood)
    own.scale.fill_(2.0)
    assert float(likelihood.scale) == 0.5


@pytest.mark.parametrize(
    "build", [lambda **k: MLP(3, **k), lambda **k: bayesian(torch.nn.Linear(3, 1), **k)]
)
@pytest.mark.parametrize("likelihood", [Normal, dist.Normal(0.0, 1.0), "normal", 0.1])
def test_what_is_no_likelihood_is_refused(build: Any, likelihood: Any) -> None:
    with pytest.raises(OptionError) as caught:
        build(likelihood=likelihood)
    assert str(caught.value) == (
        "likelihood is a pyro_bnn.likelihoods object, for example likelihoods.Normal(), not "
        f"{likelihood!r}"
    )
