"""Estimators of the expected log likelihood, each unbiased, by name."""
