"""Members of an ensemble that are one function, and members that are not."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch

from pyro_bnn import Ensemble, data, guides, likelihoods, models
from pyro_bnn.data import Split, from_arrays
from pyro_bnn.posterior import Nature
from pyro_bnn.report import compare
from pyro_bnn.report.evaluation.evaluate import evaluate
from pyro_bnn.report.verdicts.member_verdicts import one_map
from pyro_bnn.report.verdicts.verdict import Judged
from tests.report.conjugate import LinearPosterior, regression_split


@dataclass
class Members(LinearPosterior):
    """Members around the mean of the exact posterior."""

    nature: Nature | None = field(default_factory=lambda: Nature(kind="members"))
    members: int | None = 10

    @property
    def num_atoms(self) -> Any:
        return self.members


def said(posterior: Any, split: Split) -> str:
    entry = evaluate("it", posterior, split, num_draws=1_000, seed=0)
    texts = [text for text, _ in one_map.find(Judged([entry], None))]
    return "".join(texts).replace("\xa0", " ").removeprefix("it: ")


@pytest.mark.parametrize("worth", [0.5, 0.8, 1.25, 2.0])
def test_the_threshold_is_the_spread_of_one_parameter(worth: float) -> None:
    """Leverages of D parameters have the sum D: s times their spread is worth D s^2 of them."""
    split, num_parameters = regression_split(1_200), 4
    text = said(Members(split, spread=(worth / num_parameters) ** 0.5), split)
    if worth > 1:
        assert text == ""
        return
    assert text.startswith("its 10 members are one MAP: the sd of their functions is ")
    own, one = map(float, re.findall(r"0\.\d+", text))
    assert one == pytest.approx(900**-0.5, rel=0.02)
    assert own == pytest.approx((worth / 900) ** 0.5, rel=0.1)  # leverages of other rows


def test_one_point_and_other_posteriors_are_not_spoken_of() -> None:
    split = regression_split()
    assert said(Members(split, spread=0.1), split)
    assert said(Members(split, spread=0.1, members=1), split) == ""
    assert said(Members(split, spread=0.1, members=None), split) == ""  # each has a spread
    assert said(Members(split, spread=0.1, nature=Nature(kind="chains")), split) == ""
    assert said(Members(split, spread=0.1, moments="none"), split) == ""


@pytest.mark.slow("fits")
def test_an_ensemble_on_breast_cancer_is_one_map_and_its_advice_mends_it() -> None:
    """All members end at one log joint; anchors and guides with a spread keep them apart."""
    split = data.load("breast-cancer", split=0)
    model = models.MLP(30, hidden=(50,), likelihood=likelihoods.Categorical(2))
    ensembles = {
        "independent": Ensemble(),
        "anchored": Ensemble(kind="anchored"),
        "member": Ensemble(member=guides.AutoNormal, num_members=2, num_steps=500),
    }
    fits = {n: e.run(model, split.train, progress=False) for n, e in ensembles.items()}
    found = [f for f in compare(fits, split, num_samples=100).findings if f.kind == "one map"]
    assert [f.methods for f in found] == [("independent",)]
    assert 'set kind="anchored" (for Gaussian priors)' in found[0].text
    assert "member to a guide with spread" in found[0].steps["independent"]


def test_members_in_modes_of_their_own_are_not_one_map() -> None:
    """Three tanh units at 20 rows of a sine, with hardly any prior."""
    x = torch.linspace(-1, 1, 25)[:, None]
    y = torch.sin(5 * x[:, 0]) + 0.3 * torch.randn(25, generator=torch.Generator().manual_seed(0))
    split = from_arrays(x.numpy(), y.numpy(), test_fraction=0.2)
    model = models.MLP(1, hidden=(3,), likelihood=likelihoods.Normal(0.3))
    posterior = Ensemble(num_steps=1_000).run(model, split.train, progress=False)
    assert said(posterior, split) == ""
