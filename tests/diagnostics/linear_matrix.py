r"""A linear-Gaussian model whose weights are a matrix, isotropic or correlated in its rows.

With rows of x from a Hadamard matrix every weight has the same posterior precision and no
correlation. With :math:`X = H_2 \otimes B`, :math:`H_2` the Hadamard matrix of size 2, it is

.. math:: \Lambda = I \otimes (2 B^\top B / \sigma^2 + I / \tau^2)

so that the rows of the matrix are independent, and the two entries of a row are correlated: the
posterior is in every family that holds a Kronecker product, or one factor a row, and in no other.
"""

from __future__ import annotations

import pyro
import pyro.distributions as dist
import torch
from pyro.nn import PyroModule
from torch import Tensor

NOISE, PRIOR_SCALE = 0.5, 1.3


class LinearMatrix(PyroModule):
    """Weights ``w`` [2, 2] of prior sd 1.3 that act as the vector of their rows."""

    def __init__(self, noise: float = NOISE) -> None:
        super().__init__()
        self.noise = noise

    def forward(self, x: Tensor, y: Tensor | None = None) -> Tensor:
        prior = dist.Normal(x.new_zeros(()), x.new_tensor(PRIOR_SCALE))
        w = pyro.sample("w", prior.expand([2, 2]).to_event(2))
        f = pyro.deterministic("f", x @ w.reshape(4, 1))  # [N, 1]
        with pyro.plate("data", x.shape[0]):
            noise = x.new_tensor(self.noise)
            sampled: Tensor = pyro.sample("y", dist.Normal(f, noise).to_event(1), obs=y)
        return sampled


def hadamard(size: int) -> Tensor:
    two = torch.tensor([[1.0, 1.0], [1.0, -1.0]], dtype=torch.float64)
    return torch.kron(two, hadamard(size // 2)) if size > 1 else torch.ones_like(two[:1, :1])


# B^T B has correlation 0.8: the data tell the sum of a row's entries, and less of their difference
CORRELATED = torch.kron(
    hadamard(2), 2 * torch.tensor([[1.0, 1.0], [1 / 3, -1 / 3]], dtype=torch.float64)
)  # X [4, 4]
PRECISION = CORRELATED.T @ CORRELATED / NOISE**2 + torch.eye(4, dtype=torch.float64) / (
    PRIOR_SCALE**2
)
COVARIANCE = PRECISION.inverse()
MEAN_FIELD = PRECISION.diagonal().reciprocal()  # variances of the best independent Gaussians

# families that hold this posterior; names of `tests.collection.DENSITIES`
EXACT = (
    "auto-composite",  # whose last layer, here the only one, has a full covariance
    "auto-low-rank-multivariate-normal",
    "auto-matrix-normal",
    "auto-multivariate-normal",
    "low rank by layer",
    "low-rank precision",
)
DENSE = ("auto-composite", "auto-multivariate-normal")  # of P^2 numbers: these fits take longer
