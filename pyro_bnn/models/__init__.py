"""Bayesian networks as plain Pyro models: ``model(x, y=None)``, f recorded, one observed site y."""

from pyro_bnn.models.from_network import BayesianModule, bayesian
from pyro_bnn.models.mlp import MLP
from pyro_bnn.models.rank1_mlp import Rank1MLP

__all__ = ["MLP", "BayesianModule", "Rank1MLP", "bayesian"]
