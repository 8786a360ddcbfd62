"""Ensembles, SWAG and subspaces as references: shown, and never judging others."""

from __future__ import annotations

from typing import Any

import pytest

from pyro_bnn import NUTS, SVI, SWAG, Ensemble, Subspace, data, guides, models
from pyro_bnn.report import compare

SPLIT = data.load("diabetes")
SMALL = SWAG(num_steps=10, num_iterates=4, rank=2, compile=False)
CHAINS = NUTS(num_chains=4, warmup_steps=5, num_samples=20, max_tree_depth=3, compile=False)


def fitted(engine: Any) -> Any:
    return engine.run(MODEL, SPLIT.train, progress=False)


MODEL = models.MLP(10, hidden=(3,))
APPROXIMATION = "is an approximation, neither exact nor a Markov chain"


@pytest.mark.parametrize(
    ("engine", "why"),
    [
        (Ensemble(num_members=3, num_steps=10, compile=False), APPROXIMATION),
        (Ensemble(num_members=2, member=SMALL), APPROXIMATION),
        (SMALL, APPROXIMATION),
        (Subspace(CHAINS, rank=2, around=SMALL), "is a biased sampler, whose chains do not"),
    ],
    ids=["points", "MultiSWAG", "SWAG", "subspace"],
)
def test_it_does_not_judge(engine: Any, why: str) -> None:
    point = fitted(SVI(guides.AutoDelta, num_steps=10, compile=False))
    found = compare({"reference": fitted(engine), "point": point}, SPLIT, reference="reference")
    said = [finding.text for finding in found.findings if finding.kind == "reference"]
    assert len(said) == 1
    assert why in said[0]
    assert "shown but not judged" in said[0]
    # of the point, which has no spread at all
    assert not any("times that of reference" in finding.text for finding in found.findings)
