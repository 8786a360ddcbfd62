"""Layers whose weights, or factors of the weights, are Pyro sample sites."""

from pyro_bnn.layers.linear import Linear
from pyro_bnn.layers.rank1_linear import Rank1Linear

__all__ = ["Linear", "Rank1Linear"]
