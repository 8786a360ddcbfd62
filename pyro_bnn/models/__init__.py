"""Bayesian networks as plain Pyro models: ``model(x, y=None)``, f recorded, one observed site y."""

from pyro_bnn.models.bayesian import BayesianModule, bayesian
from pyro_bnn.models.mlp import MLP

__all__ = ["MLP", "BayesianModule", "bayesian"]
