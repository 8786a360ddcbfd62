"""The laws, over every registered guide: a guide is covered by being exported."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from pyro_bnn import registry
from pyro_bnn.errors import SiteError
from pyro_bnn.guides import Guide
from tests import laws
from tests.laws import Problem, made, problem

GUIDES: dict[str, type[Guide]] = registry.entries("guide")
WITH_DENSITY = {name: cls for name, cls in GUIDES.items() if cls.has_log_prob}
WITHOUT_DENSITY = {name: cls for name, cls in GUIDES.items() if not cls.has_log_prob}

Law = Callable[[type[Guide], Problem], None]


@pytest.mark.parametrize("model", ["linear", "mixed"])
@pytest.mark.parametrize("law", laws.EVERY_GUIDE, ids=lambda law: law.__name__)
@pytest.mark.parametrize("guide", GUIDES)
def test_law(guide: str, law: Law, model: str) -> None:
    law(GUIDES[guide], problem(model))


@pytest.mark.parametrize("model", ["linear", "mixed"])
@pytest.mark.parametrize("law", laws.WITH_DENSITY, ids=lambda law: law.__name__)
@pytest.mark.parametrize("guide", WITH_DENSITY)
def test_law_of_a_density(guide: str, law: Law, model: str) -> None:
    law(WITH_DENSITY[guide], problem(model))


@pytest.mark.parametrize("guide", WITHOUT_DENSITY)
def test_a_guide_without_density_says_so(guide: str) -> None:
    made_guide = made(WITHOUT_DENSITY[guide], problem("linear"))
    with pytest.raises(TypeError, match=r"has no density at z \(4,\)"):
        made_guide.log_prob(torch.zeros(4))
    with pytest.raises(SiteError, match="its KL is infinite"):
        made_guide.kl()


def test_there_are_guides_of_both_kinds() -> None:
    assert len(WITH_DENSITY) >= 3
    assert len(WITHOUT_DENSITY) >= 1
