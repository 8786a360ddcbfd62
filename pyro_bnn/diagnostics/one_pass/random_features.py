r"""Random Fourier features, under which a linear model is about a Gaussian process.

.. math:: \phi(h) = a \sqrt{2 / M}\, \cos(W h + b), \qquad
          W_{ij} \sim \mathcal N(0, \ell^{-2}), \; b_i \sim \mathcal U(0, 2 \pi), \qquad
          \phi(h)^\top \phi(h') \to a^2 e^{-\lVert h - h' \rVert^2 / 2 \ell^2}

With weights :math:`\beta \sim \mathcal N(0, I)` and curvatures :math:`w_n` of the likelihood, the
Laplace approximation of :math:`\phi(h)^\top \beta` has the variance

.. math:: \phi(h)^\top \Bigl(\sum_n w_n \phi_n \phi_n^\top + I\Bigr)^{-1} \phi(h)

References:
    Rahimi & Recht, "Random Features for Large-Scale Kernel Machines", NeurIPS 2007.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from pyro_bnn.checks import check_positive, check_positive_int
from pyro_bnn.program.random_state import seeded

AT_ONCE = 4_096  # rows


class RandomFeatures:
    """Features of a squared-exponential kernel, frozen.

    Args:
        num_inputs: Length D of h.
        num_features: Number M of features.
        length_scale: Of the kernel, in the units of h.
        amplitude: Standard deviation of the Gaussian process.
        seed: Of the frequencies.
        like: A tensor of the dtype and on the device of h.

    Example:
        >>> phi = RandomFeatures(1, 10_000, like=torch.zeros(1))
        >>> h = torch.tensor([[0.0], [1.0]])
        >>> bool((phi(h) @ phi(h).T - torch.tensor([[1, 0.6065], [0.6065, 1]])).abs().max() < 0.03)
        True
    """

    def __init__(
        self,
        num_inputs: int,
        num_features: int,
        *,
        length_scale: float = 1.0,
        amplitude: float = 1.0,
        seed: int = 0,
        like: Tensor,
    ) -> None:
        check_positive_int("num_features", num_features)
        check_positive("length_scale", length_scale)
        check_positive("amplitude", amplitude)
        generator = seeded(seed)
        W = torch.randn(num_features, num_inputs, generator=generator, dtype=torch.float64)
        b = torch.rand(num_features, generator=generator, dtype=torch.float64) * 2 * math.pi
        self.frequencies, self.phases = (W / length_scale).to(like), b.to(like)
        self.amplitude = amplitude * math.sqrt(2 / num_features)

    def __call__(self, h: Tensor) -> Tensor:
        """Features ``[N, M]`` of h ``[N, D]``."""
        value: Tensor = self.amplitude * (h @ self.frequencies.mT + self.phases).cos()
        return value


def laplace_roots(phi: Tensor, curvature: Tensor) -> Tensor:
    r"""Lower roots ``[K, M, M]`` of the precisions :math:`\sum_n w_{nk} \phi_n \phi_n^\top + I`.

    Args:
        phi: Features ``[N, M]``.
        curvature: Second derivatives ``[N, K]`` of minus the log likelihood of K outputs.
    """
    M, K = phi.shape[-1], curvature.shape[-1]
    precision = torch.eye(M, dtype=torch.float64, device=phi.device).repeat(K, 1, 1)
    for rows, weights in zip(phi.split(AT_ONCE), curvature.split(AT_ONCE), strict=True):
        wide = rows.double()
        for k in range(K):
            precision[k] += (wide * weights[:, k : k + 1].double()).mT @ wide
    roots: Tensor = torch.linalg.cholesky(precision)
    return roots


def laplace_variance(roots: Tensor, phi: Tensor) -> Tensor:
    """Variances ``[N, K]`` of the K outputs at features ``[N, M]``."""
    columns = phi.double().mT
    white = [torch.linalg.solve_triangular(root, columns, upper=False) for root in roots]
    return torch.stack([part.square().sum(0) for part in white], -1)
