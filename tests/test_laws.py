"""The laws, over every registered guide: a guide is covered by being exported."""

from __future__ import annotations

import functools
from collections.abc import Callable

import pytest
import torch

from pyro_bnn.errors import SiteError
from pyro_bnn.guides import (
    AutoComposite,
    AutoDelta,
    AutoFlow,
    AutoLowRankMultivariateNormal,
    AutoMultivariateNormal,
    AutoRank1Mixture,
    BatchEnsemble,
)
from tests import laws
from tests.collection import GENERAL, GUIDES, OF_ENGINES, rest_in_soak
from tests.laws import MakeGuide, Problem, made, problem

WITH_DENSITY = {name: cls for name, cls in GENERAL.items() if cls.has_log_prob}
WITHOUT_DENSITY = {name: cls for name, cls in GENERAL.items() if not cls.has_log_prob}

mixture = functools.partial(AutoRank1Mixture, num_components=2)
RANK1: dict[str, MakeGuide] = {
    "one component": functools.partial(AutoRank1Mixture, num_components=1),
    "mixture": functools.partial(mixture, objective="mixture", separate_biases=False),
    "shared biases": functools.partial(mixture, separate_biases=False),
    "own biases": mixture,
}
SPECIAL = {"auto-rank1-mixture", "batch-ensemble"}  # of one kind of model, with laws of their own
POINTS: dict[str, MakeGuide] = {
    "batch ensemble": functools.partial(BatchEnsemble, num_components=2),
    "points of shared biases": functools.partial(mixture, family="delta", separate_biases=False),
}

low_rank = functools.partial(AutoLowRankMultivariateNormal, rank=1)
flow = functools.partial(AutoFlow, num_flows=1, hidden=2)
BLOCKS: dict[str, tuple[MakeGuide, str]] = {
    "low rank by layer": (functools.partial(low_rank, block="layer"), "rank-1"),
    "a family a layer": (functools.partial(AutoComposite, parts={"layers.-1": low_rank}), "rank-1"),
    "groups of sites": (
        functools.partial(
            AutoComposite,
            parts={"[nr]*": AutoMultivariateNormal, "offset": low_rank, "w": flow},
        ),
        "mixed",
    ),
    "estimates of some sites": (
        functools.partial(
            AutoComposite, parts={"rate": AutoDelta, "w": AutoDelta, "gain": AutoMultivariateNormal}
        ),
        "mixed",
    ),
}
PRECISIONS = ["linear", "mixed", "matrix"]  # models for the guide of SLANG

# models for the laws, where "linear" and "mixed" do not suit a guide: they have no matrix
MODELS = {
    "auto-dropout": ["matrix"],
    "auto-k-tied-normal": ["matrix"],
    "auto-matrix-normal": ["matrix"],
}
SMALL: dict[str, MakeGuide] = {"auto-flow": functools.partial(AutoFlow, num_flows=2, hidden=4)}
EVERY = [(guide, name) for guide in GENERAL for name in MODELS.get(guide, ["linear", "mixed"])]
DENSITIES = [(guide, name) for guide, name in EVERY if guide in WITH_DENSITY]

Law = Callable[[MakeGuide, Problem], None]


# of these each takes as long as ten others: they hold of one model here, of all in soak
DEAR = {
    laws.captured_elbo_and_its_gradient_are_right,
    laws.stock_pyro_trains_it,
}
LAWS = [(*pair, law) for pair in EVERY for law in laws.EVERY_GUIDE + laws.UNDER_STOCK_PYRO]
KEPT = [case for case in LAWS if case[2] not in DEAR or case[1] != "linear"]


@pytest.mark.parametrize(("guide", "model", "law"), rest_in_soak(LAWS, KEPT))
def test_law(guide: str, model: str, law: Law) -> None:
    law(SMALL.get(guide, GENERAL[guide]), problem(model))


@pytest.mark.parametrize("law", laws.WITH_DENSITY, ids=lambda law: law.__name__)
@pytest.mark.parametrize(("guide", "model"), DENSITIES)
def test_law_of_a_density(guide: str, law: Law, model: str) -> None:
    law(SMALL.get(guide, WITH_DENSITY[guide]), problem(model))


@pytest.mark.parametrize("law", laws.EVERY_GUIDE, ids=lambda law: law.__name__)
@pytest.mark.parametrize("guide", [*RANK1, *POINTS])
def test_law_of_rank1_mixtures(guide: str, law: Law) -> None:
    law({**RANK1, **POINTS}[guide], problem("rank-1"))


# the ELBO of "shared biases" is looser than that of its mixture density; own biases need our SVI
@pytest.mark.parametrize("law", laws.UNDER_STOCK_PYRO, ids=lambda law: law.__name__)
@pytest.mark.parametrize("guide", ["one component", "mixture"])
def test_law_of_rank1_mixtures_under_stock_pyro(guide: str, law: Law) -> None:
    law(RANK1[guide], problem("rank-1"))


@pytest.mark.parametrize("law", laws.WITH_DENSITY, ids=lambda law: law.__name__)
@pytest.mark.parametrize("guide", ["one component", "mixture", "shared biases"])
def test_law_of_rank1_densities(guide: str, law: Law) -> None:
    law(RANK1[guide], problem("rank-1"))


@pytest.mark.parametrize(
    "law", laws.EVERY_GUIDE + laws.UNDER_STOCK_PYRO, ids=lambda law: law.__name__
)
@pytest.mark.parametrize("guide", BLOCKS)
def test_law_of_blocks(guide: str, law: Law) -> None:
    make, model = BLOCKS[guide]
    law(make, problem(model))


@pytest.mark.parametrize("law", laws.WITH_DENSITY, ids=lambda law: law.__name__)
@pytest.mark.parametrize("guide", list(BLOCKS)[:3])
def test_law_of_densities_of_blocks(guide: str, law: Law) -> None:
    make, model = BLOCKS[guide]
    law(make, problem(model))


@pytest.mark.parametrize(
    "law",
    laws.EVERY_GUIDE + laws.UNDER_STOCK_PYRO + laws.WITH_DENSITY,
    ids=lambda law: law.__name__,
)
@pytest.mark.parametrize("model", PRECISIONS)
def test_law_of_low_rank_precisions(model: str, law: Law) -> None:
    law(OF_ENGINES["low-rank precision"], problem(model))


def test_no_guide_escapes_the_laws() -> None:
    assert {*GENERAL, *SPECIAL} == {*GUIDES}


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
