"""Layers whose weights are Pyro sample sites."""

from pyro_bnn.layers.linear import Linear

__all__ = ["Linear"]
