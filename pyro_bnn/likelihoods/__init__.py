"""Likelihoods: how a network output becomes a distribution of y."""
