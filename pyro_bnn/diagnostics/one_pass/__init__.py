"""Uncertainty of one pass through a network: densities of its features, distance-aware outputs."""
