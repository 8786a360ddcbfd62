"""Laws of guides in which the prior has a part, over every guide and every kind of prior."""

from __future__ import annotations

import functools
from collections.abc import Callable

import pytest
import torch

from pyro_bnn.guides import AutoFlow
from tests import laws
from tests.collection import DENSITIES, EVERY_KIND
from tests.laws import MakeGuide, Problem
from tests.prior_problems import PRIORS, prior_problem

# of few parameters, each of which is moved by itself
SMALL: dict[str, MakeGuide] = {"auto-flow": functools.partial(AutoFlow, num_flows=1, hidden=2)}
# the ways of a prior into the objective: at a point, in closed form, by draws, by component
WAYS = ["auto-delta", "auto-normal", "auto-radial", "auto-normal-mixture"]
OTHERS = [guide for guide in EVERY_KIND if guide not in WAYS]  # take turns at two priors each
TURNS = [(guide, i + k) for i, guide in enumerate(OTHERS) for k in (0, 3)]
PAIRS = [(guide, prior) for guide in WAYS for prior in PRIORS]
PAIRS += [(guide, list(PRIORS)[turn % len(PRIORS)]) for guide, turn in TURNS]
LAWS = (
    laws.gradient_matches_finite_differences,
    laws.captured_elbo_equals_uncaptured,
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
@pytest.mark.parametrize(("guide", "prior"), PAIRS)
def test_law(guide: str, prior: str, law: Callable[[MakeGuide, Problem], None]) -> None:
    law({**EVERY_KIND, **SMALL}[guide], prior_problem(prior))


@pytest.mark.parametrize("law", LAWS_OF_DENSITIES, ids=lambda law: law.__name__)
@pytest.mark.parametrize("prior", PRIORS)
@pytest.mark.parametrize("guide", DENSITIES)
def test_law_of_a_density(
    guide: str, prior: str, law: Callable[[MakeGuide, Problem], None]
) -> None:
    law(DENSITIES[guide], prior_problem(prior))
