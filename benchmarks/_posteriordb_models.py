"""The posteriors of :mod:`benchmarks._posteriordb` as plain Pyro models.

Each is written as in Pyro's own examples: a function of its data, sites named as the reference
names them, loops where the formulas have loops. Nothing in here is of this package.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pyro
import pyro.distributions as dist
import torch
from pyro.distributions import constraints
from torch import Tensor

Constraint = constraints.Constraint
STEPS = 8  # of Runge and Kutta in a year


def flat(name: str, support: Constraint = constraints.real, size: int | None = None) -> Tensor:
    """A site with a flat prior, of one number or a vector."""
    shape = () if size is None else (size,)
    value: Tensor = pyro.sample(name, dist.ImproperUniform(support, (), shape))
    return value


def regression(x: Tensor, y: Tensor, beta: Tensor, sigma: Tensor) -> None:
    """Gaussian noise around ``x @ beta``."""
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Normal(x @ beta, sigma), obs=y)


def autoregression(lags: Tensor, y: Tensor) -> None:
    """y of its K values before; lags are ``[T - K, K]``."""
    alpha = pyro.sample("alpha", dist.Normal(0.0, 10.0))
    beta = pyro.sample("beta", dist.Normal(0.0, 10.0).expand([lags.shape[1]]).to_event(1))
    sigma = pyro.sample("sigma", dist.HalfCauchy(2.5))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Normal(alpha + lags @ beta, sigma), obs=y)


def diamonds(x: Tensor, y: Tensor) -> None:
    """A regression on centred, badly scaled inputs ``[N, 24]``."""
    b = pyro.sample("b", dist.Normal(0.0, 1.0).expand([x.shape[1]]).to_event(1))
    intercept = pyro.sample("Intercept", dist.StudentT(3.0, 8.0, 10.0))
    sigma = pyro.sample("sigma", dist.FoldedDistribution(dist.StudentT(3.0, 0.0, 10.0)))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Normal(intercept + x @ b, sigma), obs=y)


def eight_schools(sigma: Tensor, y: Tensor) -> None:
    """Effects of coaching in J schools, not centred."""
    mu = pyro.sample("mu", dist.Normal(0.0, 5.0))
    tau = pyro.sample("tau", dist.HalfCauchy(5.0))
    with pyro.plate("schools", len(y)):
        theta_trans = pyro.sample("theta_trans", dist.Normal(0.0, 1.0))
        theta = pyro.deterministic("theta", mu + tau * theta_trans)
        pyro.sample("y", dist.Normal(theta, sigma), obs=y)


def garch(sigma1: Tensor, y: Tensor) -> None:
    """Returns whose variance follows the last return and the last variance."""
    mu = flat("mu")
    alpha0 = flat("alpha0", constraints.positive)
    alpha1 = flat("alpha1", constraints.unit_interval)
    beta1 = flat("beta1", constraints.interval(0.0, 1.0 - alpha1))
    squares = (y - mu) ** 2
    variances = [sigma1**2]
    for square in squares[:-1]:
        variances.append(alpha0 + alpha1 * square + beta1 * variances[-1])
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Normal(mu, torch.stack(variances).sqrt()), obs=y)


def poisson_process(x: Tensor, k: Tensor) -> None:
    """Counts with a Gaussian process as the logarithm of their rate."""
    rho = pyro.sample("rho", dist.Gamma(25.0, 4.0))
    alpha = pyro.sample("alpha", dist.HalfNormal(2.0))
    distances = (x - x[:, None]) ** 2
    covariance = alpha**2 * torch.exp(-distances / (2 * rho**2)) + 1e-10 * torch.eye(len(x))
    f_tilde = pyro.sample("f_tilde", dist.Normal(0.0, 1.0).expand([len(x)]).to_event(1))
    f = pyro.deterministic("f", torch.linalg.cholesky(covariance) @ f_tilde)
    with pyro.plate("data", len(k)):
        pyro.sample("k", dist.Poisson(f.exp()), obs=k)


def hidden_markov(y: Tensor) -> None:
    """Two hidden states, summed out by the forward algorithm."""
    theta1 = pyro.sample("theta1", dist.Dirichlet(torch.ones(2)))
    theta2 = pyro.sample("theta2", dist.Dirichlet(torch.ones(2)))
    mu = flat("mu", constraints.positive_ordered_vector, 2)
    pyro.factor("mu_prior", dist.Normal(torch.tensor([3.0, 10.0]), 1.0).log_prob(mu).sum())
    log_transition = torch.stack([theta1, theta2]).log()  # [from, to]
    log_density = dist.Normal(mu, 1.0).log_prob(y[:, None])  # [T, 2]
    forward = log_density[0]
    for now in log_density[1:]:
        forward = torch.logsumexp(forward[:, None] + log_transition, 0) + now
    pyro.factor("y", torch.logsumexp(forward, 0))


def lotka_volterra(y: Tensor) -> None:
    """Hares and lynxes ``[1 + T, 2]`` around the solution of a differential equation."""
    theta = flat("theta", constraints.positive, 4)
    prior = dist.Normal(torch.tensor([1.0, 0.05, 1.0, 0.05]), torch.tensor([0.5, 0.05, 0.5, 0.05]))
    pyro.factor("theta_prior", prior.log_prob(theta).sum())
    sigma = pyro.sample("sigma", dist.LogNormal(-1.0, 1.0).expand([2]).to_event(1))
    z_init = pyro.sample(
        "z_init", dist.LogNormal(torch.tensor(10.0).log(), 1.0).expand([2]).to_event(1)
    )
    z = solution(theta, z_init, len(y) - 1)
    pyro.sample("y", dist.LogNormal(z.log(), sigma).to_event(2), obs=y)


def solution(theta: Tensor, start: Tensor, years: int) -> Tensor:
    """Both populations ``[1 + years, 2]`` at each year, by the fourth order of Runge and Kutta."""
    signs = torch.tensor([1.0, -1.0])
    growth, meeting = theta[::2], theta[1::2]

    def slope(z: Tensor) -> Tensor:
        return signs * (growth - meeting * z.flip(-1)) * z

    found, z, h = [start], start, 1 / STEPS
    for _ in range(years):
        for _ in range(STEPS):
            a = slope(z)
            b = slope(z + h / 2 * a)
            c = slope(z + h / 2 * b)
            d = slope(z + h * c)
            z = z + h / 6 * (a + 2 * b + 2 * c + d)
        found.append(z)
    return torch.stack(found)


def kidscore(x: Tensor, y: Tensor) -> None:
    """A regression with a flat prior on strongly correlated coefficients."""
    beta = flat("beta", size=x.shape[1])
    regression(x, y, beta, pyro.sample("sigma", dist.HalfCauchy(2.5)))


def mixture(y: Tensor) -> None:
    """Two Gaussians, ordered by their means."""
    mu = flat("mu", constraints.ordered_vector, 2)
    pyro.factor("mu_prior", dist.Normal(0.0, 2.0).log_prob(mu).sum())
    sigma = pyro.sample("sigma", dist.HalfNormal(2.0).expand([2]).to_event(1))
    theta = pyro.sample("theta", dist.Beta(5.0, 5.0))
    weights = dist.Categorical(torch.stack([theta, 1 - theta]))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.MixtureSameFamily(weights, dist.Normal(mu, sigma)), obs=y)


def flat_regression(x: Tensor, y: Tensor) -> None:
    """A regression with a flat prior on all of its parameters."""
    beta = flat("beta", size=x.shape[1])
    regression(x, y, beta, flat("sigma", constraints.positive))


def bayesian_regression(x: Tensor, y: Tensor) -> None:
    """A regression with wide priors."""
    beta = pyro.sample("beta", dist.Normal(0.0, 10.0).expand([x.shape[1]]).to_event(1))
    regression(x, y, beta, pyro.sample("sigma", dist.HalfNormal(10.0)))


MODELS: Mapping[str, Callable[..., None]] = {
    "arK-arK": autoregression,
    "diamonds-diamonds": diamonds,
    "eight_schools-eight_schools_noncentered": eight_schools,
    "garch-garch11": garch,
    "gp_pois_regr-gp_pois_regr": poisson_process,
    "hmm_example-hmm_example": hidden_markov,
    "hudson_lynx_hare-lotka_volterra": lotka_volterra,
    "kidiq-kidscore_interaction": kidscore,
    "low_dim_gauss_mix-low_dim_gauss_mix": mixture,
    "mesquite-logmesquite_logvash": flat_regression,
    "nes1988-nes": flat_regression,
    "sblri-blr": bayesian_regression,
}
