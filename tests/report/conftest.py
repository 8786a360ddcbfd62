"""Comparisons of closed-form posteriors that several test files look at."""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable, Iterator
from typing import Any

import joblib
import pytest

from pyro_bnn.arviz_io.loo import _loo
from pyro_bnn.arviz_io.statistics import _by_quantity
from pyro_bnn.report import Comparison, compare
from tests.report.conjugate import LinearPosterior, class_split, losses, regression_split


def remembered(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, called once for arguments of the same bytes."""
    found: dict[str, Any] = {}

    def call(*args: Any, **settings: Any) -> Any:
        key = joblib.hash((args, settings))
        if key not in found:
            found[key] = function(*args, **settings)
        return copy.deepcopy(found[key])

    return call


OF_ARRAYS = [
    (sys.modules[function.__module__], function.__name__, remembered(function))
    for function in (_loo, _by_quantity)
]


@pytest.fixture(scope="module", autouse=True)
def once() -> Iterator[None]:
    """ArviZ's numbers of the same draws, which dozens of tests compare, are computed once."""
    with pytest.MonkeyPatch.context() as patch:
        for module, name, function in OF_ARRAYS:
            patch.setattr(module, name, function)
        yield


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
