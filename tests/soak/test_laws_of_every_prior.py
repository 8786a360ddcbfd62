"""Laws in which the prior has a part, over the pairs of guide and prior that take turns in CI."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.collection import EVERY_KIND
from tests.laws import MakeGuide, Problem
from tests.prior_problems import PRIORS, prior_problem
from tests.test_laws_of_priors import LAWS, PAIRS, SMALL

LEFT = [(guide, prior) for guide in EVERY_KIND for prior in PRIORS if (guide, prior) not in PAIRS]


@pytest.mark.soak
@pytest.mark.parametrize("law", LAWS, ids=lambda law: law.__name__)
@pytest.mark.parametrize(("guide", "prior"), LEFT)
def test_law(guide: str, prior: str, law: Callable[[MakeGuide, Problem], None]) -> None:
    law({**EVERY_KIND, **SMALL}[guide], prior_problem(prior))
