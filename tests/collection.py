"""The guides that tests run over: those of the registry, and kinds of them of another family.

A guide is here by being exported.
"""

from __future__ import annotations

import functools

from pyro_bnn import registry
from pyro_bnn.guides import AutoDropout, AutoLowRankMultivariateNormal, Guide
from pyro_bnn.guides.low_rank_precision import AutoLowRankPrecision
from tests.laws import MakeGuide

GUIDES: dict[str, type[Guide]] = registry.entries("guide")
GENERAL = {name: cls for name, cls in GUIDES.items() if cls.needs_model is None}

# what the defaults of a class do not run
KINDS_WITH_DENSITY: dict[str, MakeGuide] = {
    "low rank by layer": functools.partial(AutoLowRankMultivariateNormal, block="layer"),
    "gaussian dropout": functools.partial(AutoDropout, kind="gaussian"),
}
KINDS: dict[str, MakeGuide] = {
    **KINDS_WITH_DENSITY,
    "concrete dropout": functools.partial(AutoDropout, kind="concrete"),
}
OF_ENGINES: dict[str, MakeGuide] = {  # guides that an engine makes, here SLANG
    "low-rank precision": functools.partial(AutoLowRankPrecision, rank=2),
}
EVERY_KIND: dict[str, MakeGuide] = {**GENERAL, **KINDS}
DENSITIES: dict[str, MakeGuide] = {
    **{name: cls for name, cls in GENERAL.items() if cls.has_log_prob},
    **KINDS_WITH_DENSITY,
    **OF_ENGINES,
}
