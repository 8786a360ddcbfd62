"""The posteriors of :mod:`benchmarks._posteriordb` in NumPyro, with the densities of Pyro's models.

As NumPyro's users write them: loops over time are ``lax.scan``, since a loop of Python compiles for
minutes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist
from numpyro.distributions import constraints

STEPS = 8  # of Runge and Kutta in a year, as in Pyro's model


def flat(name: str, support: Any = constraints.real, size: int | None = None) -> Any:
    """A site with a flat prior, of one number or a vector."""
    shape = () if size is None else (size,)
    return numpyro.sample(name, dist.ImproperUniform(support, (), shape))


def regression(x: Any, y: Any, beta: Any, sigma: Any) -> None:
    """Gaussian noise around ``x @ beta``."""
    with numpyro.plate("data", len(y)):
        numpyro.sample("y", dist.Normal(x @ beta, sigma), obs=y)


def autoregression(lags: Any, y: Any) -> None:
    """y of its K values before; lags are ``[T - K, K]``."""
    alpha = numpyro.sample("alpha", dist.Normal(0.0, 10.0))
    beta = numpyro.sample("beta", dist.Normal(0.0, 10.0).expand([lags.shape[1]]).to_event(1))
    sigma = numpyro.sample("sigma", dist.HalfCauchy(2.5))
    with numpyro.plate("data", len(y)):
        numpyro.sample("y", dist.Normal(alpha + lags @ beta, sigma), obs=y)


def diamonds(x: Any, y: Any) -> None:
    """A regression on centred, badly scaled inputs ``[N, 24]``."""
    b = numpyro.sample("b", dist.Normal(0.0, 1.0).expand([x.shape[1]]).to_event(1))
    intercept = numpyro.sample("Intercept", dist.StudentT(3.0, 8.0, 10.0))
    sigma = numpyro.sample("sigma", dist.FoldedDistribution(dist.StudentT(3.0, 0.0, 10.0)))
    with numpyro.plate("data", len(y)):
        numpyro.sample("y", dist.Normal(intercept + x @ b, sigma), obs=y)


def eight_schools(sigma: Any, y: Any) -> None:
    """Effects of coaching in J schools, not centred."""
    mu = numpyro.sample("mu", dist.Normal(0.0, 5.0))
    tau = numpyro.sample("tau", dist.HalfCauchy(5.0))
    with numpyro.plate("schools", len(y)):
        theta_trans = numpyro.sample("theta_trans", dist.Normal(0.0, 1.0))
        theta = numpyro.deterministic("theta", mu + tau * theta_trans)
        numpyro.sample("y", dist.Normal(theta, sigma), obs=y)


def garch(sigma1: Any, y: Any) -> None:
    """Returns whose variance follows the last return and the last variance.

    beta1 is uniform with its density taken out again: of ``ImproperUniform`` NumPyro 0.22.0 does
    not see that the support depends on alpha1, and returns draws for the support of its start.
    """
    mu = flat("mu")
    alpha0 = flat("alpha0", constraints.positive)
    alpha1 = flat("alpha1", constraints.unit_interval)
    beta1 = numpyro.sample("beta1", dist.Uniform(0.0, 1.0 - alpha1))
    numpyro.factor("beta1_prior", jnp.log(1.0 - alpha1))

    def step(variance: Any, square: Any) -> tuple[Any, Any]:
        variance = alpha0 + alpha1 * square + beta1 * variance
        return variance, variance

    first = jnp.asarray(sigma1) ** 2
    _, later = jax.lax.scan(step, first, (y - mu)[:-1] ** 2)
    variances = jnp.concatenate([first[None], later])
    with numpyro.plate("data", len(y)):
        numpyro.sample("y", dist.Normal(mu, jnp.sqrt(variances)), obs=y)


def poisson_process(x: Any, k: Any) -> None:
    """Counts with a Gaussian process as the logarithm of their rate."""
    rho = numpyro.sample("rho", dist.Gamma(25.0, 4.0))
    alpha = numpyro.sample("alpha", dist.HalfNormal(2.0))
    distances = (x - x[:, None]) ** 2
    covariance = alpha**2 * jnp.exp(-distances / (2 * rho**2)) + 1e-10 * jnp.eye(len(x))
    f_tilde = numpyro.sample("f_tilde", dist.Normal(0.0, 1.0).expand([len(x)]).to_event(1))
    f = numpyro.deterministic("f", jnp.linalg.cholesky(covariance) @ f_tilde)
    with numpyro.plate("data", len(k)):
        numpyro.sample("k", dist.Poisson(jnp.exp(f)), obs=k)


def hidden_markov(y: Any) -> None:
    """Two hidden states, summed out by the forward algorithm."""
    theta1 = numpyro.sample("theta1", dist.Dirichlet(jnp.ones(2)))
    theta2 = numpyro.sample("theta2", dist.Dirichlet(jnp.ones(2)))
    mu = flat("mu", constraints.positive_ordered_vector, 2)
    numpyro.factor("mu_prior", dist.Normal(jnp.array([3.0, 10.0]), 1.0).log_prob(mu).sum())
    log_transition = jnp.log(jnp.stack([theta1, theta2]))  # [from, to]
    log_density = dist.Normal(mu, 1.0).log_prob(jnp.asarray(y)[:, None])  # [T, 2]

    def step(forward: Any, now: Any) -> tuple[Any, None]:
        return jax.nn.logsumexp(forward[:, None] + log_transition, 0) + now, None

    forward, _ = jax.lax.scan(step, log_density[0], log_density[1:])
    numpyro.factor("y", jax.nn.logsumexp(forward, 0))


def lotka_volterra(y: Any) -> None:
    """Hares and lynxes ``[1 + T, 2]`` around the solution of a differential equation."""
    prior = dist.TruncatedNormal(
        jnp.array([1.0, 0.05, 1.0, 0.05]), jnp.array([0.5, 0.05, 0.5, 0.05]), low=0.0
    )
    theta = numpyro.sample("theta", prior.to_event(1))
    sigma = numpyro.sample("sigma", dist.LogNormal(-1.0, 1.0).expand([2]).to_event(1))
    z_init = numpyro.sample("z_init", dist.LogNormal(jnp.log(10.0), 1.0).expand([2]).to_event(1))
    z = solution(theta, z_init, len(y) - 1)
    numpyro.sample("y", dist.LogNormal(jnp.log(z), sigma).to_event(2), obs=y)


def solution(theta: Any, start: Any, years: int) -> Any:
    """Both populations ``[1 + years, 2]`` at each year, by the fourth order of Runge and Kutta."""
    signs, h = jnp.array([1.0, -1.0]), 1 / STEPS
    growth, meeting = theta[::2], theta[1::2]

    def slope(z: Any) -> Any:
        return signs * (growth - meeting * z[::-1]) * z

    def step(z: Any, _: None) -> tuple[Any, Any]:
        a = slope(z)
        b = slope(z + h / 2 * a)
        c = slope(z + h / 2 * b)
        d = slope(z + h * c)
        z = z + h / 6 * (a + 2 * b + 2 * c + d)
        return z, z

    _, found = jax.lax.scan(step, start, None, length=years * STEPS)
    return jnp.concatenate([start[None], found[STEPS - 1 :: STEPS]])


def kidscore(x: Any, y: Any) -> None:
    """A regression with a flat prior on strongly correlated coefficients."""
    beta = flat("beta", size=x.shape[1])
    regression(x, y, beta, numpyro.sample("sigma", dist.HalfCauchy(2.5)))


def mixture(y: Any) -> None:
    """Two Gaussians, ordered by their means."""
    mu = flat("mu", constraints.ordered_vector, 2)
    numpyro.factor("mu_prior", dist.Normal(0.0, 2.0).log_prob(mu).sum())
    sigma = numpyro.sample("sigma", dist.HalfNormal(2.0).expand([2]).to_event(1))
    theta = numpyro.sample("theta", dist.Beta(5.0, 5.0))
    weights = dist.Categorical(probs=jnp.stack([theta, 1 - theta]))
    with numpyro.plate("data", len(y)):
        numpyro.sample("y", dist.MixtureSameFamily(weights, dist.Normal(mu, sigma)), obs=y)


def flat_regression(x: Any, y: Any) -> None:
    """A regression with a flat prior on all of its parameters."""
    beta = flat("beta", size=x.shape[1])
    regression(x, y, beta, flat("sigma", constraints.positive))


def bayesian_regression(x: Any, y: Any) -> None:
    """A regression with wide priors."""
    beta = numpyro.sample("beta", dist.Normal(0.0, 10.0).expand([x.shape[1]]).to_event(1))
    regression(x, y, beta, numpyro.sample("sigma", dist.HalfNormal(10.0)))


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
