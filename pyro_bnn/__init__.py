"""Bayesian neural networks as Pyro models, any posterior, one honest comparison."""

__version__ = "0.1.0"
