"""Layers whose weights, or factors of them, are sample sites; plain ones for ``bayesian(net)``."""

from pyro_bnn.layers.filter_response_norm import FilterResponseNorm
from pyro_bnn.layers.gru_cell import GRUCell
from pyro_bnn.layers.linear import Linear
from pyro_bnn.layers.rank1_conv2d import Rank1Conv2d
from pyro_bnn.layers.rank1_layer import Rank1Layer
from pyro_bnn.layers.rank1_linear import Rank1Linear

__all__ = ["FilterResponseNorm", "GRUCell", "Linear", "Rank1Conv2d", "Rank1Layer", "Rank1Linear"]
