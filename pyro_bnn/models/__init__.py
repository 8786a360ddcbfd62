"""Bayesian networks as plain Pyro models: ``model(x, y=None)``, f recorded, one observed site y."""

from pyro_bnn.models.deep_linear import DeepLinear
from pyro_bnn.models.from_dropout import DropoutModule, bayesian_dropout
from pyro_bnn.models.from_network import BayesianModule, bayesian
from pyro_bnn.models.le_net import LeNet
from pyro_bnn.models.linear_regression import LinearRegression
from pyro_bnn.models.mlp import MLP
from pyro_bnn.models.rank1_mlp import Rank1MLP
from pyro_bnn.models.rank1_res_net import Rank1ResNet
from pyro_bnn.models.res_net import ResNet

__all__ = [
    "MLP",
    "BayesianModule",
    "DeepLinear",
    "DropoutModule",
    "LeNet",
    "LinearRegression",
    "Rank1MLP",
    "Rank1ResNet",
    "ResNet",
    "bayesian",
    "bayesian_dropout",
]
