"""Laws of guides in which the prior has a part, over every guide and every kind of prior."""

from __future__ import annotations

import functools
from collections.abc import Callable

import pytest
import torch

from pyro_bnn.guides import AutoFlow
from tests import laws
from tests.collection import DENSITIES, EVERY_KIND, cover, rest_in_soak
from tests.laws import MakeGuide, Problem
from tests.prior_problems import PRIORS, prior_problem

# of few parameters, each of which is moved by itself
SMALL: dict[str, MakeGuide] = {"auto-flow": functools.partial(AutoFlow, num_flows=1, hidden=2)}
ALL = [(guide, prior) for guide in EVERY_KIND for prior in PRIORS]
COVERED = {  # and the guide whose closed forms are other ones for each prior
    *cover(EVERY_KIND, PRIORS),
    *(("auto-normal", prior) for prior in PRIORS),
}
ALL_OF_DENSITIES = [(guide, prior) for guide in DENSITIES for prior in PRIORS]
COVERED_DENSITIES = cover(DENSITIES, PRIORS)
LAWS = (
    laws.captured_elbo_and_its_gradient_are_right,
    laws.minibatches_average_to_the_full_batch,
)
LAWS_OF_DENSITIES = (laws.kl_is_the_mean_log_ratio, laws.pyro_trace_has_the_same_density)


@pytest.mark.parametrize("prior", PRIORS)
def test_the_log_prior_is_the_one_by_hand(prior: str) -> None:
    given = prior_problem(prior)
    z = torch.randn(
        5,
        given.program.num_latents,
        dtype=torch.float64,
        generator=torch.Generator().manual_seed(1),
    )
    torch.testing.assert_close(
        given.program.log_prior(z, given.x), given.log_prior(z), rtol=1e-10, atol=1e-10
    )


@pytest.mark.parametrize("law", LAWS, ids=lambda law: law.__name__)
@pytest.mark.parametrize(("guide", "prior"), rest_in_soak(ALL, COVERED))
def test_law(guide: str, prior: str, law: Callable[[MakeGuide, Problem], None]) -> None:
    law({**EVERY_KIND, **SMALL}[guide], prior_problem(prior))


@pytest.mark.parametrize("law", LAWS_OF_DENSITIES, ids=lambda law: law.__name__)
@pytest.mark.parametrize(("guide", "prior"), rest_in_soak(ALL_OF_DENSITIES, COVERED_DENSITIES))
def test_law_of_a_density(
    guide: str, prior: str, law: Callable[[MakeGuide, Problem], None]
) -> None:
    law(DENSITIES[guide], prior_problem(prior))
