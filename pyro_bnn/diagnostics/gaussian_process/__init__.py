"""Gaussian processes: exact regression, and the limit of an infinitely wide network."""
