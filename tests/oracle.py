r"""The linear-Gaussian model, whose posterior and evidence are known in closed form.

.. math:: y_n \sim \mathcal N(x_n^\top w + b, \sigma^2), \qquad (w, b) \sim \mathcal N(0, \tau^2 I)

With the design matrix :math:`A = [X, 1]`, and z = (w, b), the posterior is Gaussian with
precision :math:`\Lambda = A^\top A / \sigma^2 + I / \tau^2` and mean
:math:`\Lambda^{-1} A^\top y / \sigma^2`; the evidence is
:math:`\mathcal N(y \mid 0, \sigma^2 I + \tau^2 A A^\top)`.
Reference: Bishop, "Pattern Recognition and Machine Learning", 2006, section 3.3.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyro
import pyro.distributions as dist
import torch
from pyro.nn import PyroModule
from scipy.optimize import brentq
from scipy.stats import norm
from torch import Tensor


class LinearModel(PyroModule):
    """The linear-Gaussian model as a plain Pyro model with sites ``w`` [I, 1] and ``b`` [1]."""

    noise: Tensor
    prior_scale: Tensor

    def __init__(self, num_inputs: int, noise: float, prior_scale: float) -> None:
        super().__init__()
        self.num_inputs = num_inputs
        self.register_buffer("noise", torch.tensor(noise, dtype=torch.float64))
        self.register_buffer("prior_scale", torch.tensor(prior_scale, dtype=torch.float64))

    def forward(self, x: Tensor, y: Tensor | None = None) -> Tensor:
        prior = dist.Normal(torch.zeros_like(self.prior_scale), self.prior_scale)
        w = pyro.sample("w", prior.expand([self.num_inputs, 1]).to_event(2))
        b = pyro.sample("b", prior.expand([1]).to_event(1))
        f = pyro.deterministic("f", x @ w + b)  # [N, 1]
        with pyro.plate("data", x.shape[0]):
            sampled: Tensor = pyro.sample("y", dist.Normal(f, self.noise).to_event(1), obs=y)
        return sampled


@dataclass(frozen=True)
class LinearGaussian:
    """Data, model and exact answers, all in float64; z = (w, b) has P = I + 1 entries.

    Attributes:
        x: Inputs ``[N, I]``.
        y: Observations ``[N]``.
        model: The plain Pyro model.
        noise: Noise sd.
        prior_scale: Prior sd of every weight.
        precision: Posterior precision ``[P, P]``.
        covariance: Posterior covariance ``[P, P]``.
        mean: Posterior mean ``[P]``.
        log_evidence: Log p(y | x).
    """

    x: Tensor
    y: Tensor
    model: LinearModel
    noise: float
    prior_scale: float
    precision: Tensor
    covariance: Tensor
    mean: Tensor
    log_evidence: float

    @property
    def mean_field_variance(self) -> Tensor:
        """Variances ``[P]`` of the best factorised Gaussian: 1 / diag(precision)."""
        return 1 / self.precision.diagonal()

    @property
    def mean_field_gap(self) -> float:
        """KL(q || posterior) of the best factorised Gaussian: log evidence minus its ELBO."""
        return self.kl(self.mean, self.mean_field_variance.diag())

    def kl(self, mean: Tensor, covariance: Tensor) -> float:
        """KL of N(mean, covariance) from the posterior: log evidence minus the ELBO."""
        delta = mean - self.mean
        quadratic = delta @ self.precision @ delta + (self.precision @ covariance).trace()
        log_dets = self.precision.logdet() + covariance.logdet()
        return float(0.5 * (quadratic - len(mean) - log_dets))

    def elbo(self, mean: Tensor, covariance: Tensor) -> float:
        """ELBO of N(mean, covariance)."""
        return self.log_evidence - self.kl(mean, covariance)

    def log_joint(self, z: Tensor) -> Tensor:
        """Log p(y, z | x) ``[...]`` of z ``[..., P]``."""
        residual = self.y - z @ design(self.x).T  # [..., N]
        log_likelihood = log_normal(residual, self.noise).sum(-1)
        return log_likelihood + log_normal(z, self.prior_scale).sum(-1)

    def log_posterior(self, z: Tensor) -> Tensor:
        """Log p(z | y, x) ``[...]`` of z ``[..., P]``."""
        return self.log_joint(z) - self.log_evidence

    def function_moments(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Posterior mean and sd ``[N]`` of f at x ``[N, I]``."""
        a = design(x)
        return a @ self.mean, ((a @ self.covariance) * a).sum(-1).sqrt()

    def predictive(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Posterior predictive mean and sd ``[N]`` of y at x ``[N, I]``."""
        mean, sd = self.function_moments(x)
        return mean, (sd**2 + self.noise**2).sqrt()


def mixture_quantile(loc: Tensor, sd: Tensor, level: float) -> np.ndarray[Any, Any]:
    """Quantile ``[N]`` of an equal mixture of Gaussians ``[S, N]``, by SciPy's root finder."""

    def excess(q: float, n: int) -> float:
        return float(norm.cdf(q, loc[:, n].numpy(), sd[:, n].numpy()).mean() - level)

    low, high = float((loc - 9 * sd).min()), float((loc + 9 * sd).max())
    return np.array([brentq(excess, low, high, args=(n,), xtol=1e-15) for n in range(loc.shape[1])])


def linear_gaussian(
    num_rows: int = 20,
    num_inputs: int = 3,
    *,
    noise: float = 0.5,
    prior_scale: float = 1.3,
    correlation: float = 0.6,
    seed: int = 0,
) -> LinearGaussian:
    """A data set drawn from the model, with correlated inputs, and its exact answers."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    shared = normal(num_rows, 1)
    x = math.sqrt(1 - correlation**2) * normal(num_rows, num_inputs) + correlation * shared
    z = prior_scale * normal(num_inputs + 1)
    y = design(x) @ z + noise * normal(num_rows)
    return with_answers(x, y, LinearModel(num_inputs, noise, prior_scale))


def with_answers(x: Tensor, y: Tensor, model: LinearModel) -> LinearGaussian:
    """The exact answers of the model on given data."""
    a = design(x)  # [N, P]
    noise, prior_scale, size = float(model.noise), float(model.prior_scale), a.shape[1]
    eye = torch.eye(size, dtype=torch.float64)
    precision = a.T @ a / noise**2 + eye / prior_scale**2
    covariance = torch.linalg.inv(precision)
    covariance = (covariance + covariance.T) / 2
    marginal = noise**2 * torch.eye(len(x), dtype=torch.float64) + prior_scale**2 * a @ a.T
    log_evidence = -0.5 * (
        len(x) * math.log(2 * math.pi) + marginal.logdet() + y @ torch.linalg.solve(marginal, y)
    )
    return LinearGaussian(
        x=x,
        y=y,
        model=model,
        noise=noise,
        prior_scale=prior_scale,
        precision=precision,
        covariance=covariance,
        mean=torch.linalg.solve(precision, a.T @ y / noise**2),
        log_evidence=float(log_evidence),
    )


def design(x: Tensor) -> Tensor:
    """Design matrix [X, 1] ``[N, P]`` of inputs ``[N, I]``."""
    return torch.cat([x, torch.ones_like(x[:, :1])], 1)


def log_normal(value: Tensor, scale: float) -> Tensor:
    """Log N(value | 0, scale^2), entry by entry."""
    return -0.5 * (value / scale) ** 2 - math.log(scale) - 0.5 * math.log(2 * math.pi)
