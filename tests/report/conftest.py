"""Comparisons of closed-form posteriors that several test files look at."""

from __future__ import annotations

import pytest

from pyro_bnn.report import Comparison, compare
from tests.report.conjugate import LinearPosterior, class_split, losses, regression_split


@pytest.fixture(scope="session")
def regression() -> Comparison:
    split = regression_split()
    return compare(
        {
            "MAP": LinearPosterior(split, "AutoDelta", spread=0.0, losses=losses(seed=3)),
            "narrow": LinearPosterior(split, "AutoNormal", spread=0.5, losses=losses(slope=0.01)),
            "AutoLowRankMultivariateNormal": LinearPosterior(
                split, spread=0.9, losses=losses(seed=1) - 1.0
            ),
            "shifted": LinearPosterior(split, shift=12.0, losses=losses(seed=2)),
            "NUTS": LinearPosterior(
                split, "NUTS", "NUTS", stored=1_200, num_chains=4, num_divergent=3
            ),
        },
        split,
        reference="NUTS",
    )


@pytest.fixture(scope="session")
def one_input() -> Comparison:
    split = regression_split(num_inputs=1)
    return compare(
        {
            "MAP": LinearPosterior(split, "AutoDelta", spread=0.0),
            "exact": LinearPosterior(split),
        },
        split,
    )


@pytest.fixture(scope="session")
def classes() -> Comparison:
    split = class_split()
    return compare(
        {
            "MAP": LinearPosterior(split, "AutoDelta", spread=0.0),
            "wide": LinearPosterior(split, "AutoNormal", spread=6.0, losses=losses()),
            "NUTS": LinearPosterior(
                split, "NUTS", "NUTS", stored=1_200, num_chains=4, chain_shift=1.0
            ),
        },
        split,
        reference="NUTS",
    )
