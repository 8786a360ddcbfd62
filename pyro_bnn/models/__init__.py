"""Bayesian networks as Pyro models."""
