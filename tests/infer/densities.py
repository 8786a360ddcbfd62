"""Densities with known moments: standard normals sent through a map, and eight schools."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from pyro_bnn.infer.steps.potentials import Potential


@dataclass(frozen=True)
class Density:
    """The density of z = from_normal(n) for n from N(0, I).

    Attributes:
        num_latents: Length P of z.
        potential: Minus its log, up to a constant, and the gradient.
        from_normal: Maps n ``[..., P]`` to z.
        to_normal: The inverse.
    """

    num_latents: int
    potential: Potential
    from_normal: Callable[[Tensor], Tensor]
    to_normal: Callable[[Tensor], Tensor]

    def draws(self, num_draws: int, seed: int = 0) -> Tensor:
        """Exact draws ``[n, P]``."""
        generator = torch.Generator().manual_seed(seed)
        n = torch.randn(num_draws, self.num_latents, dtype=torch.float64, generator=generator)
        return self.from_normal(n)


def with_gradient(energy: Callable[[Tensor], Tensor]) -> Potential:
    """The potential ``[C]`` of z ``[C, P]`` and its gradient."""

    def potential(z: Tensor, *_: Tensor) -> tuple[Tensor, Tensor]:
        with torch.enable_grad():
            z = z.detach().requires_grad_()
            value = energy(z)
            (grad,) = torch.autograd.grad(value.sum(), z)
        return value.detach(), grad

    return potential


def gaussian(covariance: Tensor) -> Density:
    """N(0, covariance)."""
    root = torch.linalg.cholesky(covariance)
    inverse_root = torch.linalg.inv(root)
    precision = inverse_root.mT @ inverse_root

    def potential(z: Tensor, *_: Tensor) -> tuple[Tensor, Tensor]:
        grad = z @ precision
        return 0.5 * (z * grad).sum(-1), grad

    return Density(len(root), potential, lambda n: n @ root.mT, lambda z: z @ inverse_root.mT)


def scales(*values: float) -> Density:
    """A Gaussian of independent entries with these standard deviations, without a matrix."""
    sd = torch.tensor(values, dtype=torch.float64)
    variance = sd.square()

    def potential(z: Tensor, *_: Tensor) -> tuple[Tensor, Tensor]:
        grad = z / variance
        return 0.5 * (z * grad).sum(-1), grad

    return Density(len(sd), potential, lambda n: n * sd, lambda z: z / sd)


def rotated(eigenvalues: Tensor, seed: int = 0) -> Tensor:
    """Covariance ``[P, P]`` with these eigenvalues, in directions drawn at random."""
    generator = torch.Generator().manual_seed(seed)
    normal = torch.randn(2 * eigenvalues.shape, dtype=torch.float64, generator=generator)
    basis = torch.linalg.qr(normal)[0]
    covariance: Tensor = (basis * eigenvalues) @ basis.mT
    return (covariance + covariance.mT) / 2


def autoregressive(num_latents: int, rho: float) -> Tensor:
    """Covariance rho^|i - j| ``[P, P]`` of a stationary AR(1) process."""
    i = torch.arange(num_latents, dtype=torch.float64)
    return rho ** (i[:, None] - i).abs()


def banana(width: float) -> Density:
    """z_0 from N(0, 1), z_1 from N(z_0^2, width^2): a bent ridge of curvature 2."""

    def potential(z: Tensor, *_: Tensor) -> tuple[Tensor, Tensor]:
        n0, n1 = z[:, 0], (z[:, 1] - z[:, 0].square()) / width
        grad = torch.stack([n0 - 2 * z[:, 0] * n1 / width, n1 / width], -1)
        return 0.5 * (n0.square() + n1.square()), grad

    return Density(
        2,
        potential,
        lambda n: torch.stack([n[..., 0], n[..., 0].square() + width * n[..., 1]], -1),
        lambda z: torch.stack([z[..., 0], (z[..., 1] - z[..., 0].square()) / width], -1),
    )


def funnel(num_latents: int) -> Density:
    """Neal's: v from N(0, 3^2) and all others from N(0, e^v), where v is the first entry.

    Neal, "Slice Sampling", Annals of Statistics 2003, section 8.
    """

    def energy(z: Tensor) -> Tensor:
        v, x = z[:, 0], z[:, 1:]
        log_scales = 0.5 * v * (num_latents - 1)
        return v.square() / 18 + log_scales + 0.5 * (-v).exp() * x.square().sum(-1)

    def from_normal(n: Tensor) -> Tensor:
        v = 3 * n[..., :1]
        return torch.cat([v, (v / 2).exp() * n[..., 1:]], -1)

    def to_normal(z: Tensor) -> Tensor:
        v = z[..., :1]
        return torch.cat([v / 3, (-v / 2).exp() * z[..., 1:]], -1)

    return Density(num_latents, with_gradient(energy), from_normal, to_normal)


# Eight schools: effects y of coaching with standard errors (Rubin, "Estimation in Parallel
# Randomized Experiments", 1981). mu from N(0, 5^2), tau from a half-Cauchy of scale 5, effects
# theta = mu + tau eta with eta from N(0, I); z is (mu, log tau, eta).

EFFECTS = torch.tensor([28.0, 8, -3, 7, -1, 1, 18, 12], dtype=torch.float64)
ERRORS = torch.tensor([15.0, 10, 16, 11, 9, 11, 10, 18], dtype=torch.float64)
PUBLISHED = (  # means of theta, mu, tau and their standard errors, posteriordb's reference draws
    [6.1505, 4.9396, 3.9059, 4.7960, 3.6144, 4.0511, 6.3172, 4.8840, 4.4105, 3.6021],
    [0.0557, 0.0462, 0.0542, 0.0475, 0.0461, 0.0485, 0.0499, 0.0543, 0.0330, 0.0319],
)


def _schools(z: Tensor) -> Tensor:
    mu, log_tau, eta = z[:, :1], z[:, 1:2], z[:, 2:]
    theta = mu + log_tau.exp() * eta
    prior = 0.5 * (mu / 5).square() + (1 + (log_tau.exp() / 5).square()).log() - log_tau
    likelihood = 0.5 * ((EFFECTS - theta) / ERRORS).square()
    return prior.squeeze(-1) + (likelihood + 0.5 * eta.square()).sum(-1)


eight_schools = with_gradient(_schools)


def schools_quantities(z: Tensor) -> Tensor:
    """theta, mu and tau ``[..., 10]`` at z ``[..., 10]``."""
    mu, tau = z[..., :1], z[..., 1:2].exp()
    return torch.cat([mu + tau * z[..., 2:], mu, tau], -1)


def schools_moments() -> tuple[Tensor, Tensor]:
    """Means and mean squares of theta, mu and tau, ``[10]`` each, by quadrature over log tau.

    Given tau all else is Gaussian: y_j is N(mu, sigma_j^2 + tau^2), so mu is conjugate, and
    theta_j given mu is too.
    """
    y, variance = EFFECTS.numpy(), ERRORS.numpy() ** 2
    log_tau = np.linspace(-20, 12, 20_001)
    tau = np.exp(log_tau)
    total = variance + tau[:, None] ** 2  # [T, 8]
    mu_variance = 1 / (1 / 25 + (1 / total).sum(1))
    mu_mean = mu_variance * (y / total).sum(1)
    log_weight = 0.5 * (
        np.log(mu_variance) + mu_mean**2 / mu_variance - (np.log(total) + y**2 / total).sum(1)
    )
    log_weight += log_tau - np.log1p((tau / 5) ** 2)
    weight = np.exp(log_weight - log_weight.max())
    weight /= weight.sum()
    shrink = tau[:, None] ** 2 / total  # theta_j = mu + shrink_j (y_j - mu) + noise
    theta_mean = shrink * y + (1 - shrink) * mu_mean[:, None]
    theta_variance = shrink * variance + (1 - shrink) ** 2 * mu_variance[:, None]
    means = np.column_stack([theta_mean, mu_mean, tau])
    variances = np.column_stack([theta_variance, mu_variance, 0 * tau])
    first, second = weight @ means, weight @ (means**2 + variances)
    return torch.from_numpy(first), torch.from_numpy(second)
