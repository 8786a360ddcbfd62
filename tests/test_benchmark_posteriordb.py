"""The benchmark on posteriordb: densities by SciPy from the formulas, and how draws are judged."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyro
import pytest
import torch
from numpy.testing import assert_allclose
from pyro import poutine
from pyro.distributions import ImproperUniform
from scipy import stats
from scipy.integrate import solve_ivp

from benchmarks import (
    _posteriordb,
    _posteriordb_models,
    _posteriordb_sampling,
    _settings,
    _tables,
    posteriordb,
)
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
    """Four points within about a standard deviation of the reference's means.

    Two have a noise 20 times as large, and an intercept far off, so that their priors are seen.
    """
    rng = np.random.default_rng(0)
    found = []
    for factor in (1, 1, 20, 20):
        values: dict[str, list[float]] = {}
        for key, p in _posteriordb.reference_of(name).items():
            site = key.partition("[")[0]
            values.setdefault(site, []).append(p["mean"] + p["sd"] * rng.uniform(-0.9, 0.9))
        point = {site: np.array(v) for site, v in values.items()}
        if "sigma" in point:
            point["sigma"] = factor * point["sigma"]
        if "Intercept" in point:
            point["Intercept"] = point["Intercept"] + factor - 1
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


def supports(name: str, point: Mapping[str, Any]) -> dict[str, bool]:
    """Whether the value of each site of Pyro's model lies in its support."""
    held = {site: torch.as_tensor(value) for site, value in point.items()}
    conditioned = poutine.condition(_posteriordb_models.MODELS[name], data=held)
    trace = poutine.trace(conditioned).get_trace(
        *map(torch.as_tensor, _posteriordb.arguments(name))
    )
    nodes: dict[str, Any] = {site: trace.nodes[site] for site in held}
    return {site: bool(n["fn"].support.check(n["value"]).all()) for site, n in nodes.items()}


@needs_files
@pytest.mark.parametrize(
    ("name", "outside"),
    [
        ("garch-garch11", {"alpha0": -0.1}),
        ("garch-garch11", {"alpha1": 1.01}),
        ("garch-garch11", {"alpha1": 0.6, "beta1": 0.41}),  # their sum is below 1
        ("garch-garch11", {"alpha1": 0.6, "beta1": -0.01}),
        ("hmm_example-hmm_example", {"mu": [9.0, 3.0]}),
        ("hmm_example-hmm_example", {"mu": [-0.1, 9.0]}),
        ("hudson_lynx_hare-lotka_volterra", {"theta": [0.5, -0.01, 0.8, 0.02]}),
        ("low_dim_gauss_mix-low_dim_gauss_mix", {"mu": [3.0, -3.0]}),
        ("mesquite-logmesquite_logvash", {"sigma": -0.3}),
        ("nes1988-nes", {"sigma": -0.3}),
    ],
)
def test_flat_priors_end_where_the_formulas_say(name: str, outside: dict[str, Any]) -> None:
    inside = points(name)[0]
    assert set(supports(name, inside).values()) == {True}
    changed = {site: np.array(value) for site, value in outside.items()}
    with pyro.validation_enabled(is_validate=False):
        found = supports(name, {**inside, **changed})
    assert not found[list(outside)[-1]]


# How draws are judged


@pytest.fixture
def reference(monkeypatch: pytest.MonkeyPatch) -> dict[str, dict[str, float]]:
    """A reference of a vector and a number, of 10,000 draws."""
    found = {
        "beta[1]": {"mean": 1.0, "sd": 2.0, "ess": 10_000},
        "beta[2]": {"mean": -3.0, "sd": 0.1, "ess": 10_000},
        "sigma": {"mean": 0.0, "sd": 1.0, "ess": 10_000},
    }
    monkeypatch.setattr(_posteriordb, "reference_of", lambda name: found)
    return found


def gaussians(reference: Mapping[str, Mapping[str, float]]) -> Array:
    """Independent draws ``[4, 1000, 3]``, whose means and sds are the reference's exactly."""
    x = np.random.default_rng(0).normal(size=(4_000, 3))
    x = (x - x.mean(0)) / x.std(0, ddof=1)
    loc, scale = (np.array([p[key] for p in reference.values()]) for key in ("mean", "sd"))
    found: Array = (loc + scale * x).reshape(4, 1_000, 3)
    return found


def test_draws_with_the_references_moments_agree(reference: dict[str, dict[str, float]]) -> None:
    found = _posteriordb.agreement(gaussians(reference), "any")
    assert_allclose([found["z_mean"], found["z_sd"]], 0, atol=1e-9)
    assert 0.99 < found["rhat"] < 1.01
    assert 3_000 < found["ess"] < 5_000
    assert 2_500 < found["ess_tail"] < 5_500


def test_the_worst_parameter_is_told_in_standard_errors(
    reference: dict[str, dict[str, float]],
) -> None:
    """Of 4,000 independent draws, and of normal ones the variance of an sd is s^2 / 2n."""
    x = gaussians(reference)
    shift, factor = 0.02, 1.1
    x[..., 1] += shift
    x[..., 2] *= factor
    found = _posteriordb.agreement(x, "any")
    assert found["worst"] == ["beta[2]", "sigma"]
    error = 0.1 * np.sqrt(1 / 4_000 + 1 / 10_000)
    assert found["z_mean"] == pytest.approx(shift / error, rel=0.05)
    error = np.sqrt(factor**2 / 8_000 + 1 / 20_000)
    assert found["z_sd"] == pytest.approx((factor - 1) / error, rel=0.05)


def test_one_chain_has_the_rhat_of_its_halves(reference: dict[str, dict[str, float]]) -> None:
    x = gaussians(reference).reshape(1, 4_000, 3)
    assert 0.99 < _posteriordb.agreement(x, "any")["rhat"] < 1.01
    x[0, 2_000:, 0] += 10
    assert _posteriordb.agreement(x, "any")["rhat"] > 1.5


@pytest.mark.usefixtures("reference")
def test_parameters_are_in_the_references_order() -> None:
    draws = {"sigma": np.full((2, 3), 7.0), "beta": np.arange(12.0).reshape(2, 3, 2)}
    x = _posteriordb.parameters(draws, "any")
    assert x.shape == (2, 3, 3)
    assert_allclose(x[1, 2], [10, 11, 7])
    assert _posteriordb.sites("any") == ["beta", "sigma"]


def test_files_that_are_not_there_are_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYRO_BNN_DATA", "nowhere")
    with pytest.raises(FileNotFoundError, match=r"put NAME.data.json and NAME.reference.json of"):
        _posteriordb.data_of("arK-arK")


# Runs


def test_pyros_chain_is_scaled_to_four_in_two_processes() -> None:
    row: dict[str, Any] = {"import_seconds": 2.0, "seconds": 9.0, "ess": 30.0, "ess_tail": 20.0}
    row |= {"phases": {"warm-up": 3.0, "sampling": 4.0}}
    options = _posteriordb_sampling.Options(name="any", chains=1, warmup=100, draws=200)
    found = posteriordb.scaled(row, options)
    # 1,000 warm-up steps of 30 ms and 1,000 draws of 20 ms, twice on each of two cores
    assert found["seconds"] == pytest.approx(2 + 2 * (30 + 20))
    assert (found["ess"], found["ess_tail"]) == (30 * 20, 20 * 20)
    assert (found["own_seconds"], found["own_ess"]) == (9, 30)


def test_rounds_have_medians_and_the_worst_agreement() -> None:
    rounds = [
        {"seconds": s, "ess": 100.0, "z_mean": z, "z_sd": 3 - z, "rhat": 1.0 + z / 100, "steps": s}
        | {"worst": [f"mean {z}", f"sd {z}"], "phases": {"sampling": s}}
        for s, z in ((1.0, 1.0), (4.0, 2.0), (2.0, 0.5))
    ]
    found = posteriordb.summary(rounds)
    assert (found["seconds"], found["steps"], found["phases"]) == (2, 2, {"sampling": 2})
    assert (found["z_mean"], found["z_sd"], found["rhat"]) == (2, 2.5, 1.02)
    assert found["worst"] == ["mean 2.0", "sd 0.5"]
    assert found["ess_per_second"] == 50
    assert found["all_ess_per_second"] == [100, 25, 50]


def run(tmp_path: Path, *options: str) -> dict[str, Any]:
    given = ["--threads", "1", "--rounds", "1", "--quick", "--out", str(tmp_path)]
    return posteriordb.main([*given, *options])


def test_what_is_not_run_keeps_its_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_settings, "set_threads", lambda threads: None)
    monkeypatch.setattr(posteriordb, "installed", lambda name: True)
    seconds = iter(np.arange(1.0, 100.0))

    def sampled(entry: posteriordb.Entry, options: Any, cache: Path) -> dict[str, Any]:
        agreed = {"z_mean": 1.0, "z_sd": 1.0, "rhat": 1.0, "worst": ["a", "b"], "parameters": 2}
        phases = {"warm-up": 1.0, "sampling": 1.0}
        return {
            "import_seconds": 0.5, "seconds": next(seconds), "phases": phases, "steps": None,
            "divergences": 0, "ess": 8.0, "ess_tail": 8.0, **agreed,
        }  # fmt: skip

    monkeypatch.setattr(posteriordb, "sampled", sampled)
    name, other = "sblri-blr", "arK-arK"
    run(tmp_path, "--part", "ours", "pyro", "--only", name, other)
    before = {(r["name"], r["contender"], r["cache"]): r["seconds"] for r in rows_in(tmp_path)}
    assert list(before) == [
        (n, *of) for n in (other, name)  # in the order of all
        for of in (("pyro_bnn", "empty"), ("pyro_bnn", "filled"), ("Pyro", ""))
    ]  # fmt: skip
    found = run(tmp_path, "--part", "ours", "numpyro", "--only", name)
    after = {(r["name"], r["contender"], r["cache"]): r["seconds"] for r in rows_in(tmp_path)}
    assert len(after) == len(before) + 4
    assert {key for key, value in before.items() if after[key] != value} == {
        (name, "pyro_bnn", "empty"), (name, "pyro_bnn", "filled"),
    }  # fmt: skip
    # the quicker of NumPyro's two ways
    times = {(r["contender"], r["cache"]): r["seconds"] for r in found["rows"] if r["name"] == name}
    expected = times["pyro_bnn", "filled"] / times["NumPyro, parallel", "filled"]
    assert f"| {name} | filled | " in _tables.posteriordb(found)
    assert f"| {expected:.2g} | " in _tables.posteriordb(found)


def rows_in(folder: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads((folder / "posteriordb.json").read_text())["rows"]
    return rows


@needs_files
def test_pyro_samples_models_with_flat_priors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ImproperUniform, "sample", ImproperUniform.sample)  # put back
    options = _posteriordb_sampling.Options(
        name="mesquite-logmesquite_logvash", chains=1, warmup=2, draws=4
    )
    drawn = _posteriordb_sampling.SAMPLERS["pyro"]()(options)
    assert _posteriordb.parameters(drawn.draws, options.name).shape == (1, 4, 7)
    assert set(drawn.phases) == {"warm-up", "sampling"}


@needs_files
@pytest.mark.slow("compiles")
def test_this_package_samples_plain_models_and_gives_all_draws() -> None:
    options = _posteriordb_sampling.Options(
        name="eight_schools-eight_schools_noncentered", chains=2, warmup=20, draws=600
    )
    drawn = _posteriordb_sampling.SAMPLERS["pyro_bnn"]()(options)
    assert _posteriordb.parameters(drawn.draws, options.name).shape == (2, 600, 10)


@needs_files
@pytest.mark.slow("a process of its own")
def test_a_run_has_a_process_of_its_own(tmp_path: Path) -> None:
    options = _posteriordb_sampling.Options(
        name="eight_schools-eight_schools_noncentered", chains=1, warmup=20, draws=20
    )
    found = posteriordb.sampled(posteriordb.ENTRIES[-1], options, tmp_path)
    assert found["seconds"] > found["import_seconds"] > 0
    assert found["parameters"] == 10  # theta among them, which is no latent site


@pytest.mark.usefixtures("reference")
def test_a_run_with_fewer_draws_than_asked_for_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def here(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        np.savez(command[-1], beta=np.zeros((4, 250, 2)), sigma=np.zeros((4, 250)))
        return subprocess.CompletedProcess(command, 0, "{}", "")

    monkeypatch.setattr(subprocess, "run", here)
    options = _posteriordb_sampling.Options(name="any")
    with pytest.raises(RuntimeError, match=r"pyro_bnn gave draws \(4, 250, 3\) of Options"):
        posteriordb.sampled(posteriordb.ENTRIES[0], options, tmp_path)


def test_a_run_that_fails_says_why(tmp_path: Path) -> None:
    options = _posteriordb_sampling.Options(name="any")
    with pytest.raises(RuntimeError, match=r"(?s)_sampling unknown .*KeyError: 'unknown'"):
        posteriordb.sampled(posteriordb.Entry("", "unknown", ""), options, tmp_path)
