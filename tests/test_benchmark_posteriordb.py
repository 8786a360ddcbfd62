"""The benchmark on posteriordb: densities by SciPy from the formulas, and how draws are judged."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from pyro import poutine
from scipy import stats
from scipy.integrate import solve_ivp

from benchmarks import _posteriordb, _posteriordb_models
from benchmarks._peers import installed
from benchmarks._posteriordb import Array, Data

FOLDER = Path(os.environ.get("PYRO_BNN_DATA", "nowhere")) / "posteriordb"
Values = Mapping[str, Any]
needs_files = pytest.mark.skipif(
    not FOLDER.is_dir(), reason="needs the files of $PYRO_BNN_DATA/posteriordb"
)


@pytest.fixture(autouse=True)
def _float64() -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)


# Log densities of a posterior's parameters up to a constant, from its formulas and raw data


def normal(x: Any, loc: Any, scale: Any) -> float:
    return float(np.sum(stats.norm.logpdf(x, loc, scale)))


def autoregression(v: Values, data: Data) -> float:
    y, order = data["y"], data["K"]
    total = normal([v["alpha"], *v["beta"]], 0, 10) + stats.halfcauchy.logpdf(v["sigma"], 0, 2.5)
    for t in range(order, data["T"]):
        loc = v["alpha"] + sum(v["beta"][k] * y[t - 1 - k] for k in range(order))
        total += normal(y[t], loc, v["sigma"])
    return float(total)


def diamonds(v: Values, data: Data) -> float:
    x = np.array(data["X"])
    total = normal(v["b"], 0, 1) + stats.t.logpdf(v["Intercept"], 3, 8, 10)
    total += stats.t.logpdf(v["sigma"], 3, 0, 10)
    for column in range(1, x.shape[1]):
        x[:, column] -= np.mean(x[:, column])
    return float(total + normal(data["Y"], v["Intercept"] + x[:, 1:] @ v["b"], v["sigma"]))


def eight_schools(v: Values, data: Data) -> float:
    total = normal(v["mu"], 0, 5) + stats.halfcauchy.logpdf(v["tau"], 0, 5)
    total += normal(v["theta_trans"], 0, 1)
    theta = v["mu"] + v["tau"] * v["theta_trans"]
    return float(total + normal(data["y"], theta, data["sigma"]))


def garch(v: Values, data: Data) -> float:
    y, variance, total = data["y"], data["sigma1"] ** 2, 0.0
    for t in range(data["T"]):
        if t:
            square = (y[t - 1] - v["mu"]) ** 2
            variance = v["alpha0"] + v["alpha1"] * square + v["beta1"] * variance
        total += normal(y[t], v["mu"], np.sqrt(variance))
    return total


def poisson_process(v: Values, data: Data) -> float:
    x, n = data["x"], data["N"]
    covariance = np.empty((n, n))
    for i, j in np.ndindex(n, n):
        covariance[i, j] = v["alpha"] ** 2 * np.exp(-((x[i] - x[j]) ** 2) / (2 * v["rho"] ** 2))
    f = np.linalg.cholesky(covariance + 1e-10 * np.eye(n)) @ v["f_tilde"]
    total = stats.gamma.logpdf(v["rho"], 25, scale=1 / 4) + normal(v["f_tilde"], 0, 1)
    total += stats.halfnorm.logpdf(v["alpha"], 0, 2)
    return float(total + np.sum(stats.poisson.logpmf(data["k"], np.exp(f))))


def hidden_markov(v: Values, data: Data) -> float:
    """By products of 2 x 2 matrices, rescaled."""
    transition = np.array([v["theta1"], v["theta2"]])
    total, forward = normal(v["mu"], [3, 10], 1), np.ones(2)
    for t, y in enumerate(data["y"]):
        if t:
            forward = forward @ transition
        forward = forward * stats.norm.pdf(y, v["mu"], 1)
        total += np.log(forward.sum())
        forward = forward / forward.sum()
    return float(total)


def lotka_volterra(v: Values, data: Data) -> float:
    a, b, c, d = v["theta"]

    def slope(_: float, z: Array) -> list[float]:
        return [(a - b * z[1]) * z[0], (-c + d * z[0]) * z[1]]

    found = solve_ivp(
        slope, (0, data["N"]), v["z_init"], t_eval=[0, *data["ts"]], rtol=1e-10, atol=1e-10
    )
    total = normal(v["theta"], [1, 0.05, 1, 0.05], [0.5, 0.05, 0.5, 0.05])
    total += np.sum(stats.lognorm.logpdf(v["sigma"], 1, scale=np.exp(-1)))
    total += np.sum(stats.lognorm.logpdf(v["z_init"], 1, scale=10))
    y = np.array([data["y_init"], *data["y"]])
    return float(total + np.sum(stats.lognorm.logpdf(y, v["sigma"], scale=found.y.T)))


def kidscore(v: Values, data: Data) -> float:
    school, iq, b = np.array(data["mom_hs"]), np.array(data["mom_iq"]), v["beta"]
    loc = b[0] + b[1] * school + b[2] * iq + b[3] * school * iq
    prior = stats.halfcauchy.logpdf(v["sigma"], 0, 2.5)
    return float(prior + normal(data["kid_score"], loc, v["sigma"]))


def mixture(v: Values, data: Data) -> float:
    total = normal(v["mu"], 0, 2) + np.sum(stats.halfnorm.logpdf(v["sigma"], 0, 2))
    total += stats.beta.logpdf(v["theta"], 5, 5)
    for y in data["y"]:
        first, second = stats.norm.pdf(y, v["mu"], v["sigma"])
        total += np.log(v["theta"] * first + (1 - v["theta"]) * second)
    return float(total)


def mesquite(v: Values, data: Data) -> float:
    total = 0.0
    for n in range(data["N"]):
        d1, d2, height = (data[key][n] for key in ("diam1", "diam2", "canopy_height"))
        terms = [1, np.log(d1 * d2 * height), np.log(d1 * d2), np.log(d1 / d2)]
        terms += [np.log(data["total_height"][n]), data["group"][n]]
        total += normal(np.log(data["weight"][n]), np.dot(v["beta"], terms), v["sigma"])
    return total


def nes(v: Values, data: Data) -> float:
    total = 0.0
    for n in range(data["N"]):
        age = data["age_discrete"][n]
        terms = [1, data["real_ideo"][n], data["race_adj"][n], age == 2, age == 3, age == 4]
        terms += [data[key][n] for key in ("educ1", "gender", "income")]
        total += normal(data["partyid7"][n], np.dot(v["beta"], terms), v["sigma"])
    return total


def bayesian_regression(v: Values, data: Data) -> float:
    total = normal(v["beta"], 0, 10) + stats.halfnorm.logpdf(v["sigma"], 0, 10)
    return float(total + normal(data["y"], np.array(data["X"]) @ v["beta"], v["sigma"]))


DENSITIES: Mapping[str, Callable[[Values, Data], float]] = {
    "arK-arK": autoregression,
    "diamonds-diamonds": diamonds,
    "eight_schools-eight_schools_noncentered": eight_schools,
    "garch-garch11": garch,
    "gp_pois_regr-gp_pois_regr": poisson_process,
    "hmm_example-hmm_example": hidden_markov,
    "hudson_lynx_hare-lotka_volterra": lotka_volterra,
    "kidiq-kidscore_interaction": kidscore,
    "low_dim_gauss_mix-low_dim_gauss_mix": mixture,
    "mesquite-logmesquite_logvash": mesquite,
    "nes1988-nes": nes,
    "sblri-blr": bayesian_regression,
}
EVERY = pytest.mark.parametrize("name", _posteriordb.NAMES)
RTOL = {"hudson_lynx_hare-lotka_volterra": 3e-3}  # of 8 steps a year, in nats where others are 1e-9


def points(name: str) -> list[dict[str, Array]]:
    """Four points within about a standard deviation of the reference's means."""
    rng = np.random.default_rng(0)
    found = []
    for _ in range(4):
        values: dict[str, list[float]] = {}
        for key, p in _posteriordb.reference_of(name).items():
            site = key.partition("[")[0]
            values.setdefault(site, []).append(p["mean"] + p["sd"] * rng.uniform(-0.9, 0.9))
        point = {site: np.array(v) for site, v in values.items()}
        if name == "hmm_example-hmm_example":
            point |= {site: point[site] / point[site].sum() for site in ("theta1", "theta2")}
        for other, site in (("f", "f_tilde"), ("theta", "theta_trans")):
            if name.startswith(("gp", "eight")) and other in point:  # a function of the others
                point[site] = rng.normal(size=len(point.pop(other)))
        scalars = {k.partition("[")[0] for k in _posteriordb.reference_of(name) if "[" not in k}
        found.append({k: v[0] if k in scalars else v for k, v in point.items()})
    return found


def differences(values: list[float]) -> Array:
    """Log densities less the first, of which a constant is gone."""
    return np.array(values[1:]) - values[0]


@needs_files
@EVERY
def test_pyros_models_have_the_densities_of_the_formulas(name: str) -> None:
    data, where = _posteriordb.data_of(name), points(name)
    arguments = [torch.as_tensor(a) for a in _posteriordb.arguments(name)]
    found = []
    for point in where:
        held = {site: torch.as_tensor(value) for site, value in point.items()}
        conditioned = poutine.condition(_posteriordb_models.MODELS[name], data=held)
        found.append(float(poutine.trace(conditioned).get_trace(*arguments).log_prob_sum()))
    expected = [DENSITIES[name](point, data) for point in where]
    assert_allclose(differences(found), differences(expected), atol=RTOL.get(name, 1e-9), rtol=1e-9)


@needs_files
@pytest.mark.skipif(not installed("numpyro"), reason="NumPyro is not installed")
@EVERY
def test_numpyros_models_have_the_densities_of_the_formulas(name: str) -> None:
    jax = importlib.import_module("jax")
    models = importlib.import_module("benchmarks._posteriordb_numpyro").MODELS
    log_density = importlib.import_module("numpyro.infer.util").log_density
    data, where = _posteriordb.data_of(name), points(name)
    arguments = _posteriordb.arguments(name)
    with jax.enable_x64(True):  # noqa: FBT003  # JAX names it otherwise in each version
        found = [float(log_density(models[name], arguments, {}, point)[0]) for point in where]
    expected = [DENSITIES[name](point, data) for point in where]
    assert_allclose(differences(found), differences(expected), atol=RTOL.get(name, 1e-9), rtol=1e-9)
