"""Priors over weights: any Pyro distribution, or one of these that know a weight's shape."""

from pyro_bnn.priors.cauchy import Cauchy
from pyro_bnn.priors.flat import Flat
from pyro_bnn.priors.half_cauchy_scale import HalfCauchyScale
from pyro_bnn.priors.hierarchy import Hierarchy, assign_prior, value_of
from pyro_bnn.priors.horseshoe import Horseshoe
from pyro_bnn.priors.normal import Normal
from pyro_bnn.priors.positive import HalfCauchy, LogNormal
from pyro_bnn.priors.prior import (
    HierarchicalPrior,
    Prior,
    PriorLike,
    PriorModule,
    Priors,
    as_prior,
    match_priors,
)

__all__ = [
    "Cauchy",
    "Flat",
    "HalfCauchy",
    "HalfCauchyScale",
    "HierarchicalPrior",
    "Hierarchy",
    "Horseshoe",
    "LogNormal",
    "Normal",
    "Prior",
    "PriorLike",
    "PriorModule",
    "Priors",
    "as_prior",
    "assign_prior",
    "match_priors",
    "value_of",
]
