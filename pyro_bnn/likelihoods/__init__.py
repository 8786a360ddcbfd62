"""Likelihoods: how a network output f ``[N, F]`` becomes a distribution of y."""

from pyro_bnn.likelihoods.classes import Bernoulli, Categorical
from pyro_bnn.likelihoods.counts import Poisson
from pyro_bnn.likelihoods.likelihood import Likelihood, as_columns, match_observation
from pyro_bnn.likelihoods.normal import HeteroscedasticNormal, Normal
from pyro_bnn.likelihoods.student_t import StudentT

__all__ = [
    "Bernoulli",
    "Categorical",
    "HeteroscedasticNormal",
    "Likelihood",
    "Normal",
    "Poisson",
    "StudentT",
    "as_columns",
    "match_observation",
]
