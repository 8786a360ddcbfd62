"""Priors over weights: any Pyro distribution, or one of these that know a weight's shape."""

from pyro_bnn.priors.flat import Flat
from pyro_bnn.priors.normal import Normal
from pyro_bnn.priors.prior import Prior, PriorLike, PriorModule, Priors, as_prior, match_priors

__all__ = [
    "Flat",
    "Normal",
    "Prior",
    "PriorLike",
    "PriorModule",
    "Priors",
    "as_prior",
    "match_priors",
]
