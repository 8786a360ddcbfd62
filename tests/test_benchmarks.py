"""The benchmarks: one problem for all sides, fair timing, figures that the README cannot lose."""

from __future__ import annotations

import functools
import importlib
import json
import math
import re
import subprocess
import types
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyro
import pytest
import torch
from pyro import poutine
from pyro.infer import autoguide
from torch import Tensor, nn

import pyro_bnn as bnn
from benchmarks import (
    _contenders,
    _fit,
    _jsonl,
    _peers,
    _plots,
    _posteriors,
    _problem,
    _sampling,
    _settings,
    _tables,
    _timing,
    best_elbo,
    cold,
    devices,
    ensembles,
    estimators,
    heads,
    laplace,
    natural,
    nuts,
    predict,
    samplers,
    scaling,
    sgmcmc,
    svi,
)
from benchmarks._networks import PyroMLP, sequential
from benchmarks._problem import Contender, Problem
from pyro_bnn.diagnostics import function_convergence
from pyro_bnn.infer.svi.training import Training

SMALL = Problem(3, (4, 5), batch=16, num_data=64)
NUM_SMALL = (3 + 1) * 4 + (4 + 1) * 5 + (5 + 1) * 1
RESULTS = sorted(_settings.RESULTS.glob("*.json"))
MODULES = {
    "svi": svi,
    "cold": cold,
    "predict": predict,
    "devices": devices,
    "scaling": scaling,
    "nuts": nuts,
    "estimators": estimators,
    "natural": natural,
    "sgmcmc": sgmcmc,
    "ensembles": ensembles,
    "laplace": laplace,
    "heads": heads,
}
ONE_ROUND = {"scaling", "estimators", "sgmcmc"}
"""Benchmarks run once: as svi, which is run twice, they leave their rounds to ``_timing``."""


# One problem for all


def value_of(trace: poutine.Trace, site: str) -> Tensor:
    """What a trace drew at a site."""
    value = trace.nodes[site]["value"]
    assert isinstance(value, Tensor)
    return value


def test_the_problem_counts_its_weights() -> None:
    assert SMALL.num_weights == NUM_SMALL
    assert sum(p.numel() for p in sequential(SMALL).parameters()) == NUM_SMALL
    assert SMALL.net == "3-4-5-1"


def test_a_batch_is_the_first_rows_of_the_data_every_time() -> None:
    x, y = SMALL.data()
    assert (x.shape, y.shape) == ((64, 3), (64,))
    for _ in range(2):
        torch.testing.assert_close(SMALL.batch_of(), (x[:16], y[:16]), rtol=0, atol=0)


def test_the_models_of_pyro_and_of_this_package_are_one() -> None:
    x, y = SMALL.batch_of()
    program = bnn.Program(_contenders.mlp(SMALL), *SMALL.data())
    trace = poutine.trace(PyroMLP(SMALL)).get_trace(x, y)
    trace.compute_log_prob()
    z = torch.cat([value_of(trace, site.name).flatten() for site in program.sites])
    assert len(z) == NUM_SMALL
    expected = trace.log_prob_sum()
    torch.testing.assert_close(program.log_joint(z, program.batch(x, y)), expected)


def test_pyros_likelihood_is_that_of_the_torch_network_scaled_to_the_data() -> None:
    x, y = SMALL.batch_of()
    trace = poutine.trace(PyroMLP(SMALL)).get_trace(x, y)
    net = sequential(SMALL)
    layers = [m for m in net if isinstance(m, nn.Linear)]
    with torch.no_grad():
        for index, layer in enumerate(layers):
            layer.weight.copy_(value_of(trace, f"layers.{index}.weight"))
            layer.bias.copy_(value_of(trace, f"layers.{index}.bias"))
        f = net(x).squeeze(-1)
    sd = _problem.NOISE_SD
    rows = -0.5 * ((y - f) / sd).square() - math.log(sd * math.sqrt(2 * math.pi))
    trace.compute_log_prob()
    torch.testing.assert_close(trace.nodes["y"]["log_prob_sum"], 64 / 16 * rows.sum())


def test_predictive_of_pyro_has_one_draw_of_y_a_row() -> None:
    problem = Problem(3, (4,), batch=8, num_data=8)
    x, y = problem.data()
    posterior = bnn.SVI(bnn.guides.AutoNormal, num_steps=2).run(
        _contenders.mlp(problem), (x, y), progress=False
    )
    predictive = pyro.infer.Predictive(PyroMLP(problem), posterior_samples=posterior.sample(5))
    assert predictive(x)["y"].shape == (5, 8)


# Contenders


def seen_by(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Tensor, Tensor]]:
    """What every later call of ``batch_of`` gives out."""
    given: list[tuple[Tensor, Tensor]] = []
    original = Problem.batch_of

    def batch_of(self: Problem, device: str = "cpu") -> tuple[Tensor, Tensor]:
        given.append(original(self, device))
        return given[-1]

    monkeypatch.setattr(Problem, "batch_of", batch_of)
    return given


def test_every_side_takes_the_same_rows_and_makes_its_steps(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    given = seen_by(monkeypatch)
    sides = [
        _contenders.deterministic(SMALL),
        _contenders.ours(SMALL, bnn.guides.AutoNormal, "ours", compile=False),
        _contenders.stock_pyro(SMALL, autoguide.AutoNormal, "pyro"),
    ]
    assert len(given) == 3
    for rows in given[1:]:
        torch.testing.assert_close(rows, given[0], rtol=0, atol=0)
    for side in sides:
        assert side.setup > 0
        side.advance(2)


def test_a_block_of_ours_makes_as_many_optimiser_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []
    original = Training._advance

    def counted(run: Any, step: int, batch: Any) -> None:
        made.append(step)
        original(run, step, batch)

    monkeypatch.setattr(Training, "_advance", counted)
    ours = _contenders.ours(SMALL, bnn.guides.AutoNormal, "ours", compile=False)
    made.clear()
    ours.advance(3)
    assert made == [1, 2, 3]  # numbered as in a fit, which notes its values every 100 steps


def test_two_guides_of_stock_pyro_train_their_own_parameters() -> None:
    before = dict(pyro.get_param_store())
    first = _contenders.stock_pyro(SMALL, autoguide.AutoNormal, "first")
    wider = Problem(3, (6, 5), batch=16, num_data=64)  # the sites have the same names
    _contenders.stock_pyro(wider, autoguide.AutoNormal, "second").advance(1)
    first.advance(1)
    assert dict(pyro.get_param_store()) == before


def test_the_mixture_is_divided_by_its_copies() -> None:
    case = svi.QUICK[0]
    sides = [Contender("deterministic", print, 0.0), Contender("mixture", print, 0.0, copies=4)]
    found = {"deterministic": _timing.Spread(2, 1, 3), "mixture": _timing.Spread(12, 9, 15)}
    rows = svi.rows(case, sides, found)
    assert [r["ratio"] for r in rows] == [1, 6]
    assert [r["seconds"] for r in rows] == [2 / case.steps, 12 / case.steps]
    assert "6.00 (1.50 a copy)" in _tables.svi({"rows": rows})


# Timing


def test_contenders_take_turns_after_their_warm_up() -> None:
    calls: list[str] = []
    seconds = _timing.samples(
        {name: functools.partial(calls.append, name) for name in "ab"}, rounds=3, warmup=1
    )
    assert "".join(calls) == "ab" + "ababab"
    assert {name: len(values) for name, values in seconds.items()} == {"a": 3, "b": 3}


def test_medians_and_quartiles(monkeypatch: pytest.MonkeyPatch) -> None:
    assert _timing.spread([5.0, 1.0, 3.0, 2.0, 4.0]) == (3.0, 2.0, 4.0)
    assert _timing.spread([5.0, 1.0, 3.0]) == (3.0, 1.0, 5.0)
    ticks = iter([0.0, 1.0, 10.0, 15.0, 20.0, 22.0, 30.0, 36.0, 40.0, 43.0, 50.0, 57.0])
    monkeypatch.setattr("time.perf_counter", functools.partial(next, ticks))
    assert _timing.medians({"a": tuple, "b": tuple}, rounds=3) == {"a": 2.0, "b": 6.0}


def test_a_known_exponent_is_recovered() -> None:
    sizes = [10, 20, 50, 100]
    slope = _timing.fit_exponent(sizes, [3e-7 * n**2.5 for n in sizes])
    torch.testing.assert_close(torch.tensor(slope), torch.tensor([2.5, 0.0]), rtol=1e-6, atol=1e-6)


def test_the_exponents_error_is_that_of_the_regression() -> None:
    # log t = 2 log n + (1, -2, 1) a: residuals orthogonal to 1 and to log n
    a = 0.1
    sizes = [1.0, math.e, math.e**2]
    times = [math.exp(2 * k + a * r) for k, r in zip(range(3), (1, -2, 1), strict=True)]
    slope = _timing.fit_exponent(sizes, times)
    assert slope.exponent == pytest.approx(2, rel=1e-12)
    assert slope.standard_error == pytest.approx(math.sqrt(6 * a**2 / 1 / 2), rel=1e-10)


@pytest.mark.parametrize(
    ("sizes", "seconds"), [([10], [1.0]), ([3, 3], [1.0, 2.0]), ([1, 2], [1.0])]
)
def test_a_slope_needs_two_sizes(sizes: list[float], seconds: list[float]) -> None:
    with pytest.raises(ValueError, match="a slope needs two sizes or more, with a time each"):
        _timing.fit_exponent(sizes, seconds)


def test_a_short_call_is_repeated_in_its_block(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    monkeypatch.setattr("time.perf_counter", lambda: 2**-7 * len(calls))  # 7.8 ms a call
    found = scaling.timed({"one": lambda: calls.append(1)}, parse(["--rounds", "5"]))
    assert len(calls) == 1 + 1 + 5 * 2  # a first one, one to tell how short it is, blocks of 20 ms
    assert found == {"one": 2**-7}


def test_a_trace_sums_the_variances_of_the_entries() -> None:
    assert estimators.trace(torch.tensor([[0.0, 1.0], [2.0, 5.0]])) == 2 + 8
    # ten blocks of two draws, of variances 0 and 2 in turn: mean 1, and their sd over sqrt(10)
    blocks = [[1.0, 1.0] if i % 2 else [0.0, 2.0] for i in range(10)]
    draws = torch.tensor(blocks).reshape(20, 1)
    assert estimators.trace_error(draws) == pytest.approx(math.sqrt(10 / 9 / 10))


@pytest.mark.parametrize("number", [10**2, 10**4, 10**7])
def test_the_net_has_about_as_many_weights_as_asked_for(number: int) -> None:
    have = scaling.of_weights(number).num_weights
    near = [scaling.square(w).num_weights for w in range(1, 4_000)]
    assert abs(have - number) == min(abs(n - number) for n in near)


# Runs in quick mode


def quick(name: str, out: Path, *options: str) -> dict[str, Any]:
    given = ["--quick", "--threads", "1", "--out", str(out), *options]
    found: dict[str, Any] = MODULES[name].main(given)
    return found


@pytest.fixture(autouse=True)
def _threads() -> Iterator[None]:
    before = torch.get_num_threads()
    allowed = _settings.allowed_cores()
    yield
    torch.set_num_threads(before)
    _settings.hold_to(allowed)


@pytest.mark.parametrize(
    "name", ["svi", "predict", "devices", "scaling", "estimators", "natural", "sgmcmc", "heads"]
)
@pytest.mark.slow("whole benchmarks")
def test_a_quick_run_writes_its_figures_and_pictures(
    name: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(scaling, "SHORT", 0.0)  # no call is repeated in its block
    before = [page.read_text() for page in _tables.PAGES]
    found = quick(name, tmp_path, *(["--rounds", "1"] if name in ONE_ROUND else []))
    assert check_schema(json.loads((tmp_path / f"{name}.json").read_text())) == name
    have_tables_alone = ("sgmcmc", "devices", "heads")
    assert list(tmp_path.glob(f"{name}*.png")) or name in have_tables_alone
    assert _tables.TABLES[name](found) in capsys.readouterr().out
    assert [page.read_text() for page in _tables.PAGES] == before


def parse(argv: list[str]) -> _settings.Settings:
    """Options of a benchmark with 9 rounds that runs on GPUs."""
    return _settings.parse("svi", None, argv, rounds=9, devices=True)


def test_a_quick_run_keeps_nothing_unasked() -> None:
    settings = parse(["--quick", "--threads", "1"])
    assert settings.out is None
    assert parse(["--threads", "1"]).out == _settings.RESULTS


def test_the_command_is_kept_as_it_was_typed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 4)
    monkeypatch.setattr(_settings, "set_threads", lambda threads: None)
    typed = "python -m benchmarks.svi --threads 2 --rounds 3"
    assert parse(["--rounds", "3", "--threads", "2"]).command == typed
    assert parse(["--threads", "4"]).command == "python -m benchmarks.svi"


def test_rounds_are_those_asked_for() -> None:
    assert [parse(argv).rounds for argv in ([], ["--quick"], ["--quick", "--rounds", "5"])] == [
        9,
        2,
        5,
    ]


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--threads", "0"], "--threads is between 1 and"),
        (["--threads", "100000"], "--threads is between 1 and"),
        (["--rounds", "0"], "--rounds is at least 1, not 0"),
        (
            ["--device", "cuda"],
            "--device cuda needs a GPU that torch can use, and",
        ),
    ],
)
def test_impossible_options_are_refused(
    argv: list[str],
    message: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(SystemExit):
        parse(argv)
    assert message in capsys.readouterr().err


@pytest.mark.slow("a process of its own")
def test_a_fit_from_cold_has_a_process_of_its_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = cold.fit("deterministic", 2, 1, tmp_path)
    assert found["process_seconds"] > found["fit_seconds"] > 0
    assert "loss" not in found
    _fit.main(["pyro", "2", "1"])  # prints what the process of a fit prints
    found = json.loads(capsys.readouterr().out)
    assert found["fit_seconds"] > 0
    assert math.isfinite(found["loss"])


def test_a_failed_fit_says_why(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match=r"(?s)_fit unknown 2 1 failed:.*KeyError: 'unknown'"):
        cold.fit("unknown", 2, 1, tmp_path)


def test_every_entry_from_cold_can_be_fitted() -> None:
    assert {entry.library for entry in cold.ENTRIES} == set(_fit.FITS)
    assert not cold.ENTRIES[0].warm


@pytest.mark.parametrize("library", ["pyro_bnn", "pyro", "deterministic"])
def test_a_fit_returns_a_loss_a_step(library: str) -> None:
    losses = _fit.FITS[library]()(3)
    assert len(losses) == 3
    assert all(math.isfinite(loss) for loss in losses)


def test_warm_fits_find_the_cache_of_the_one_before(monkeypatch: pytest.MonkeyPatch) -> None:
    caches: list[Path] = []

    def fit(library: str, steps: int, threads: int, cache: Path) -> dict[str, float]:
        assert not cache.exists() or library == "warm"
        cache.mkdir(exist_ok=True)
        caches.append(cache)
        return {"process_seconds": 1.0}

    monkeypatch.setattr(cold, "fit", fit)
    entries = [cold.Entry("", "cold"), cold.Entry("", "warm", warm=True), cold.Entry("", "other")]
    cold.one_round(entries, 2, 1)
    assert caches[0] == caches[1] != caches[2]


# Samplers in processes of their own

BOTH = pytest.mark.parametrize("target", _posteriors.TARGETS.values(), ids=lambda t: t.name)
SCALE = torch.tensor(0.7)  # of the noise, where it is learned


def at(target: _posteriors.Target, weights: Mapping[str, Tensor]) -> Tensor:
    """Network output ``[N]`` of torch's own layers at the training rows."""
    inputs, *hidden, _ = target.sizes
    net = sequential(Problem(inputs, tuple(hidden), batch=1))
    linear = [m for m in net if isinstance(m, nn.Linear)]
    with torch.no_grad():
        for index, layer in enumerate(linear):
            layer.weight.copy_(weights[f"layers.{index}.weight"])
            layer.bias.copy_(weights[f"layers.{index}.bias"])
        f = net(torch.from_numpy(target.arrays()[0]))
    assert isinstance(f, Tensor)
    return f.squeeze(-1)


def log_joint(target: _posteriors.Target, weights: Mapping[str, Tensor]) -> Tensor:
    """Log density of weights, noise and data, by hand."""
    y, f = torch.from_numpy(target.arrays()[1]), at(target, weights)
    if target.is_binary:
        total = (y * f - torch.nn.functional.softplus(f)).sum()
    else:
        residuals = (y - f) / SCALE
        total = -0.5 * (residuals.square() + math.log(2 * math.pi) + 2 * SCALE.log()).sum()
        total = total + 0.5 * math.log(2 / math.pi) - 0.5 * SCALE.square()
    for name, _, _ in target.priors():
        w = weights[name]
        inputs = w.shape[1] if name.endswith("weight") else 1  # biases have an sd of 1
        total = total - 0.5 * (inputs * w.square() + math.log(2 * math.pi / inputs)).sum()
    return total


def weights_of(target: _posteriors.Target) -> dict[str, Tensor]:
    """Standard normal weights, and the noise where it is learned."""
    generator = torch.Generator().manual_seed(0)
    found = {name: torch.randn(shape, generator=generator) for name, shape, _ in target.priors()}
    return found if target.is_binary else {**found, _posteriors.NOISE_SD: SCALE}


@pytest.mark.parametrize(
    ("target", "net", "num_weights", "num_rows", "num_points"),
    [
        (_posteriors.MOONS, "2-20-20-1", 501, 200, 50),
        (_posteriors.DIABETES, "10-50-1", 601, 398, 44),
    ],
    ids=["moons", "diabetes"],
)
def test_posteriors_have_the_sizes_that_they_say_and_standardised_inputs(
    target: _posteriors.Target, net: str, num_weights: int, num_rows: int, num_points: int
) -> None:
    assert (target.net, target.num_weights) == (net, num_weights)
    assert sum(math.prod(shape) for _, shape, _ in target.priors()) == num_weights
    x, y = target.arrays()
    assert (x.shape, y.shape) == ((num_rows, target.sizes[0]), (num_rows,))
    assert np.allclose(x.mean(0), 0, atol=1e-6)
    assert np.allclose(x.std(0), 1, rtol=1e-5)
    assert (set(y) == {0, 1}) if target.is_binary else np.allclose([y.mean(), y.std()], [0, 1])
    points = set(map(tuple, target.points()))
    assert len(points) == num_points
    assert not points & set(map(tuple, x))


@BOTH
def test_this_package_samples_the_posterior(target: _posteriors.Target) -> None:
    x, y = map(torch.from_numpy, target.arrays())
    program = bnn.Program(_sampling.our_model(target), x, y)
    weights = weights_of(target)
    expected = log_joint(target, weights)
    if not target.is_binary:  # z has the logarithm of the scale
        expected = expected + SCALE.log()
        weights[_posteriors.NOISE_SD] = SCALE.log()
    z = torch.cat([weights[site.name].flatten() for site in program.sites])
    found = program.log_joint(z, program.batch(x, y))
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=0)


@BOTH
def test_pyro_samples_the_posterior(target: _posteriors.Target) -> None:
    weights = weights_of(target)
    conditioned = poutine.condition(_sampling.pyro_model(target), data=weights)
    found = poutine.trace(conditioned).get_trace(*map(torch.from_numpy, target.arrays()))
    expected = log_joint(target, weights)
    torch.testing.assert_close(found.log_prob_sum(), expected, rtol=1e-5, atol=0)


@pytest.mark.skipif(not _peers.installed("numpyro"), reason="NumPyro is not installed")
@BOTH
def test_numpyro_samples_the_posterior(target: _posteriors.Target) -> None:
    weights = weights_of(target)
    log_density = importlib.import_module("numpyro.infer.util").log_density
    params = {name: w.numpy() for name, w in weights.items()}
    found, _ = log_density(_sampling.numpyro_model(target), target.arrays(), {}, params)
    assert float(found) == pytest.approx(log_joint(target, weights).item(), rel=1e-5)


@BOTH
def test_functions_are_those_of_the_torch_network(target: _posteriors.Target) -> None:
    x = target.arrays()[0]
    weights = weights_of(target)
    draws = {
        name: torch.stack([w, -w])[:, None].expand(2, 3, *w.shape) for name, w in weights.items()
    }
    f = torch.from_numpy(replace(target, points=lambda: x[:50]).function_draws(draws))
    assert f.shape == (2, 3, 50, 1)  # [C, S, M, 1]
    for chain, sign in enumerate((1, -1)):
        expected = at(target, {name: sign * w for name, w in weights.items()})[:50]
        for draw in f[chain, :, :, 0]:
            torch.testing.assert_close(draw, expected, rtol=1e-5, atol=1e-5)


SHORT = _sampling.Options(target="two moons", chains=1, warmup=2, draws=8, depth=2)


@pytest.mark.slow("a process of its own")
def test_a_sampler_has_a_process_of_its_own(tmp_path: Path) -> None:
    options = replace(SHORT, warmup=20, draws=20)  # of which some differ
    found = nuts.sampled(nuts.Entry("Pyro", "pyro", options), 1, 0, tmp_path)
    assert found["process_seconds"] > found["import_seconds"] + found["seconds"] > 0
    assert found["import_seconds"] > 0
    assert found["ess_per_second"] == found["ess"] / found["seconds"]
    assert found["ess_tail"] > 0


def test_a_failed_sampler_says_why(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match=r"(?s)_sampling unknown .*KeyError: 'unknown'"):
        nuts.sampled(nuts.Entry("", "unknown", SHORT), 1, 0, tmp_path)


@BOTH
@pytest.mark.parametrize("library", ["pyro_bnn", "pyro"])
def test_a_sampler_returns_functions_by_chain(library: str, target: _posteriors.Target) -> None:
    drawn = _sampling.SAMPLERS[library]()(target, SHORT)  # one chain, so in this process
    assert drawn.function_draws().shape == (1, 8, len(target.points()), 1)
    assert drawn.divergences is not None
    assert drawn.steps is None or 1 <= drawn.steps <= 3


@pytest.mark.parametrize("engine", ["HMC", "MAMS", "MCLMC"])
@pytest.mark.slow("samples")
def test_samplers_past_nuts_return_functions_by_chain(engine: str) -> None:
    target = _posteriors.TARGETS["two moons"]
    drawn = _sampling.SAMPLERS[f"pyro_bnn {engine}"]()(target, SHORT)
    assert drawn.function_draws().shape == (1, 8, len(target.points()), 1)
    assert drawn.steps is not None
    assert drawn.steps >= (8 if engine == "MCLMC" else 9)  # 4 steps of 2, or half of 16 and more


def test_the_ratio_of_variances_has_the_error_of_its_chains() -> None:
    """Of draws of variance 4 over those of variance 1, in 200 chains of 50."""
    rng = np.random.default_rng(0)
    wide, unit = rng.normal(size=(2, 200, 50, 3, 1)).astype(np.float32)
    ratio, error = samplers.variance_ratio(2 * wide, unit)
    # a variance of n draws has the relative error sqrt(2 / n), here of 10,000 a point
    assert error == pytest.approx(2**0.5 * 4 * (2 / 30_000) ** 0.5, rel=0.15)
    assert abs(ratio - 4) < 4 * error


def test_an_answer_is_looked_for_in_the_whole_run_first(monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[int] = []

    def converged(f: np.ndarray) -> Any:
        looks.append(f.shape[1])
        return function_convergence(f)

    monkeypatch.setattr(samplers, "function_convergence", converged)
    agreed = np.random.default_rng(0).normal(size=(4, 1_000, 2, 1)).astype(np.float32)
    apart = agreed + 3 * np.arange(4, dtype=np.float32)[:, None, None, None]
    assert samplers.draws_needed(apart) is None
    assert looks == [1_000]
    needed = samplers.draws_needed(agreed)
    assert needed is not None
    assert 100 <= needed < 1_000  # four chains of 100 independent draws have an ESS of 400
    assert looks[1:] == [1_000, *range(samplers.EVERY, needed + 1, samplers.EVERY)]


@pytest.fixture
def samplers_here(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Samplers run in this process, which has imported torch and what they take."""
    run = subprocess.run

    def here(command: list[str], **options: Any) -> subprocess.CompletedProcess[str]:
        if command[1:3] != ["-m", "benchmarks._sampling"]:  # a compiler
            return run(command, **options)
        capsys.readouterr()
        _sampling.main(command[3:])
        return subprocess.CompletedProcess(command, 0, capsys.readouterr().out, "")

    monkeypatch.setattr(subprocess, "run", here)


@pytest.mark.slow("whole fits")
@pytest.mark.usefixtures("samplers_here")
def test_the_samplers_past_nuts_are_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In parts; one that is not run keeps its rows."""
    monkeypatch.setattr(samplers, "OURS", ("HMC", "MCLMC"))
    monkeypatch.setattr("pyro_bnn.infer.mcmc.nuts.NUTS._limit", 8)  # after so short a warm-up
    monkeypatch.setattr("pyro_bnn.infer.mcmc.members.MOST_STEPS", 50)
    monkeypatch.setattr(samplers, "installed", lambda name: False)
    given = {("uci/yacht", 0): bnn.data.load("diabetes")}
    monkeypatch.setattr(bnn.data, "load", lambda case, split: given[case, split])
    run = ["--quick", "--threads", "1", "--rounds", "1", "--out", str(tmp_path)]
    samplers.main([*run, "--part", "yacht"])
    found = samplers.main([*run, "--part", "moons"])
    assert check_schema(json.loads((tmp_path / "samplers.json").read_text())) == "samplers"
    assert (tmp_path / "samplers.png").exists()
    rows = {row["contender"]: row for row in found["rows"]}
    assert list(rows) == ["HMC", "MCLMC", "MCLMC, num_steps=16", samplers.MEMBERS, "MILE", "NUTS"]
    assert rows["HMC"]["variance_ratio"] == 1
    assert rows["HMC"]["ess_per_gradient"] > 0
    assert rows[samplers.MEMBERS]["gain"] == 0
    assert rows["MILE"]["gain"] == rows["MILE"]["log_score"] - rows[samplers.MEMBERS]["log_score"]
    assert rows["MILE"]["seconds"] > rows[samplers.MEMBERS]["seconds"]


def test_a_time_to_an_answer_is_of_as_many_draws_as_it_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of independent draws a first run of 4 x 80 is too short; one of 160 says how many are not."""
    ran: list[int] = []

    def run(entry: nuts.Entry, threads: int, seed: int, cache: Path) -> tuple[nuts.Row, Any]:
        draws = entry.options.draws
        ran.append(draws)
        f = np.random.default_rng(0).normal(size=(4, 320, 1, 1))[:, :draws]
        found = function_convergence(f)
        return {"rhat": found.worst_rhat, "ess": found.smallest_ess}, f

    monkeypatch.setattr(samplers, "run", run)
    settings = parse(["--threads", "1"])
    entry = nuts.Entry("a", "pyro_bnn", replace(SHORT, draws=80))
    row, enough = samplers.to_an_answer(entry, settings, 0, tmp_path)
    assert ran == [80, 160, enough.options.draws]
    assert 80 < enough.options.draws <= 160
    assert samplers.is_answer(row["rhat"], row["ess"])
    f = run(enough, 1, 0, tmp_path)[1]
    before = function_convergence(f[:, : enough.options.draws - samplers.EVERY])
    assert not samplers.is_answer(before.worst_rhat, before.smallest_ess)


@pytest.mark.parametrize(("rhat", "ess", "expected"), [(1.01, 400, True), (1.011, 900, False)])
def test_an_answer_has_both_figures(rhat: float, ess: float, expected: bool) -> None:
    assert samplers.is_answer(rhat, ess) is expected
    assert not samplers.is_answer(rhat, 399.0)


def test_samplers_are_divided_by_the_best_way_of_numpyro() -> None:
    rows = [
        {"part": "moons", "contender": name, "ess_per_second": speed, "variance_ratio": 1.04}
        for name, speed in (("HMC", 50.0), ("NUTS", 25.0), ("MCLMC", 90.0))
    ]
    rows += [
        {"part": "moons", "contender": f"NumPyro NUTS, {how}", "ess_per_second": speed}
        for how, speed in (("parallel", 20.0), ("vectorized", 10.0))
    ]
    rows += [
        {"part": "diabetes", "contender": name, "seconds": seconds}
        for name, seconds in (("HMC", 3.0), ("NumPyro NUTS, a", 6.0), ("NumPyro NUTS, b", 9.0))
    ]
    rows.append({"part": "yacht", "contender": "MILE", "case": "uci/yacht", "gain": -0.1})
    lines = list(_tables.samplers_goals({"rows": rows}))
    assert [line[1:] for line in lines] == [
        ["2.50", "at least 2.5", "yes"],
        ["2.00", "at least 1.5", "yes"],
        ["4.50", "at least 4", "yes"],
        ["0.04", "at most 0.05", "yes"],
        ["0.50", "at most 0.5", "yes"],
        ["-0.10", "at least 0", "**no**"],
    ]


def test_all_libraries_have_the_chains_the_warm_up_and_the_draws_of_a_case(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(nuts, "installed", lambda name: True)
    for case in nuts.CASES:
        for entry in nuts.entries(case):
            assert replace(entry.options, method="") == case
    names = [[e.contender for e in nuts.entries(replace(SHORT, chains=c))] for c in (1, 4)]
    assert names == [["pyro_bnn", "NumPyro", "Pyro"], ["pyro_bnn", "NumPyro"]]
    monkeypatch.setattr(nuts, "installed", lambda name: False)
    assert [e.contender for e in nuts.entries(SHORT)] == ["pyro_bnn", "Pyro"]


class Stopwatch:
    """Stands in for :func:`nuts.sampled`: seconds for 100 effective samples, by name and cache.

    The third round takes ten times as long, and its chains are apart where they are said to be.
    """

    SECONDS: ClassVar = {
        ("pyro_bnn", False): 8.0,
        ("pyro_bnn", True): 2.0,
        ("NumPyro", False): 4.0,
        ("NumPyro", True): 4.0,
        ("Pyro", False): 40.0,
    }

    def __init__(self, apart: str = "") -> None:
        self.apart = apart
        self.ran: list[tuple[str, int, bool]] = []

    def __call__(self, entry: nuts.Entry, threads: int, seed: int, cache: Path) -> nuts.Row:
        is_filled = cache.exists()
        cache.mkdir(exist_ok=True)
        self.ran.append((entry.contender, seed, is_filled))
        seconds = self.SECONDS[entry.contender, is_filled] * (10 if seed == 2 else 1 + 0.1 * seed)
        return {
            "import_seconds": 1.0,
            "process_seconds": 2 + seconds,
            "seconds": seconds,
            "phases": {"compile": 0.75 * seconds, "sampling": 0.25 * seconds},
            "steps": None,
            "divergences": 0,
            "ess": 100.0,
            "ess_tail": 50.0,
            "ess_per_second": 100 / seconds,
            "rhat": 1.2 if entry.contender == self.apart and seed == 2 else 1.0,
        }


@pytest.fixture
def stopwatch(monkeypatch: pytest.MonkeyPatch) -> Stopwatch:
    fake = Stopwatch("NumPyro")
    monkeypatch.setattr(nuts, "installed", lambda name: True)
    monkeypatch.setattr(nuts, "sampled", fake)
    monkeypatch.setattr(nuts, "QUICK", (replace(SHORT, chains=4), SHORT))
    return fake


def test_ratios_are_of_medians_with_the_range_of_the_rounds(
    stopwatch: Stopwatch,
) -> None:
    _, ratios = nuts.measure(parse(["--quick", "--threads", "1", "--rounds", "3"]))
    assert [(r["chains"], r["cache"], r["peer"], round(r["time"], 9)) for r in ratios] == [
        (4, "empty", "NumPyro", 2.0),
        (4, "filled", "NumPyro", 0.5),
        (1, "empty", "NumPyro", 2.0),
        (1, "empty", "Pyro", 0.2),
        (1, "filled", "NumPyro", 0.5),
        (1, "filled", "Pyro", 0.05),
    ]
    assert [r["speed"] for r in ratios] == pytest.approx([1 / r["time"] for r in ratios])
    mine = {**nuts.row_of(nuts.Entry("a", "pyro_bnn", SHORT), "", [stopwatch_row(2.0)] * 2)}
    mine["all_seconds"], mine["all_ess_per_second"] = [1.0, 3.0], [100.0, 25.0]
    theirs = nuts.row_of(nuts.Entry("b", "pyro", SHORT), "", [stopwatch_row(2.0)] * 2)
    found = nuts.ratio(mine, theirs)
    assert (found["time_range"], found["speed_range"]) == ([0.5, 1.5], [0.5, 2.0])


def stopwatch_row(seconds: float) -> nuts.Row:
    figures = dict.fromkeys(("import_seconds", "process_seconds", "ess", "ess_tail", "rhat"), 1.0)
    speed = {"seconds": seconds, "ess_per_second": 100 / seconds}
    return {**figures, **speed, "steps": None, "divergences": 0, "phases": {}}


def test_rows_have_medians_ranges_and_the_worst_rhat(stopwatch: Stopwatch) -> None:
    rows, _ = nuts.measure(parse(["--quick", "--threads", "1", "--rounds", "3"]))
    row = next(r for r in rows if r["contender"] == "NumPyro")
    assert row["seconds"] == pytest.approx(4.4)  # the third round is an outlier
    assert row["all_seconds"] == pytest.approx([4, 4.4, 40])
    assert row["all_ess_per_second"] == pytest.approx([100 / t for t in (4, 4.4, 40)])
    assert (row["rhat"], row["ess"], row["ess_tail"]) == (1.2, 100, 50)
    assert row["phases"]["compile"] == pytest.approx(0.75 * 4.4)


def test_posteriors_that_are_no_part_keep_their_rows(stopwatch: Stopwatch) -> None:
    settings = parse(["--quick", "--threads", "1", "--rounds", "3"])
    rows, ratios = nuts.measure(settings)
    ran = len(stopwatch.ran)
    others = replace(settings, parts=("diabetes",))
    assert nuts.measure(others, [*rows, {**rows[0], "chains": 99}]) == (rows, ratios)
    assert len(stopwatch.ran) == ran


def test_every_round_starts_from_empty_caches_and_goes_on_with_filled_ones(
    stopwatch: Stopwatch,
) -> None:
    rows, _ = nuts.measure(parse(["--quick", "--threads", "1", "--rounds", "3"]))
    assert {r["cache"] for r in rows if r["library"] == "pyro"} == {""}
    assert [entry for entry in stopwatch.ran if entry[0] == "NumPyro"] == 2 * [
        ("NumPyro", seed, is_filled) for seed in range(3) for is_filled in (False, True)
    ]
    assert [entry for entry in stopwatch.ran if entry[0] == "Pyro"] == [
        ("Pyro", seed, False) for seed in range(3)
    ]


@pytest.mark.slow("about a second")
def test_the_samplers_are_written_to_files(
    stopwatch: Stopwatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = quick("nuts", tmp_path)
    assert check_schema(json.loads((tmp_path / "nuts.json").read_text())) == "nuts"
    assert (tmp_path / "nuts.png").exists()
    printed = capsys.readouterr().out
    assert _tables.nuts(found) in printed
    case = "two moons, 2-20-20-1, 4 chains of 2 + 8"
    times, speeds = "2.1 s (2 s to 2.2 s)", "47.7 (45.5 to 50)"
    assert f"| {case} | pyro_bnn | filled | {times} | 100 | 50 | {speeds} | 1.000 |" in printed
    assert f"| {case} | filled | NumPyro | 0.50 | 2.00" in printed  # the same in both rounds


# Figures and the README


def check_schema(found: Mapping[str, Any]) -> str:
    """The name of a result, every field of which is there and of its kind."""
    fields: dict[str, type | types.UnionType] = {
        "schema": int,
        "benchmark": str,
        "date": str,
        "command": str,
        "threads": int,
        "rounds": int,
        "device": str,
        "machine": dict,
        "versions": dict,
        "rows": list,
    }
    assert {key: isinstance(found.get(key), kind) for key, kind in fields.items()} == dict.fromkeys(
        fields, True
    )
    assert {"cpu", "cores", "python", "system"} <= set(found["machine"])
    libraries = set(_settings.LIBRARIES)
    assert libraries - {"blackjax", "nutpie"} <= set(found["versions"]) <= libraries  # came later
    module, _, part = found["benchmark"].partition("-")
    assert found["command"].startswith(f"python -m benchmarks.{module}")
    assert found["command"].endswith(f" --part {part}" if part else "")
    for row in found["rows"]:
        assert row["contender"]
        if row.get("part") == "uci":  # of scores alone
            assert row["splits"] > 1
            continue
        if "failed" in row:  # in words, of a contender that was stopped
            assert row["failed"]
            continue
        of_stages = [stage["seconds"] for stage in row.get("stages", {}).values()] or None
        seconds = of_stages or row.get("seconds", row.get("fit_seconds"))
        times = seconds if isinstance(seconds, list) else [seconds]
        assert all(0 < time < math.inf for time in times)
    return str(found["benchmark"])


def test_kept_results_have_their_fields() -> None:
    for path in RESULTS:
        found = json.loads(path.read_text())
        assert check_schema(found) == path.stem.removesuffix("-cuda").removesuffix("-rest")
        assert "--quick" not in found["command"]


def test_the_tables_of_the_pages_are_those_of_the_results() -> None:
    shown: set[str] = set()
    for page in _tables.PAGES:
        text = page.read_text()
        assert _tables.filled(text, _settings.RESULTS) == text
        shown |= set(re.findall(r"<!-- table: (.*) -->", text))
    measured = set()
    for path in RESULTS:
        found = json.loads(path.read_text())
        if found["benchmark"] == "best_elbo":  # whose page is made of its lines
            assert best_elbo.PAGE.read_text() == best_elbo.page(_jsonl.read(best_elbo.PATH))
            continue
        measured.add(found["benchmark"])
        parts = range(1, 2 + _tables.TABLES[found["benchmark"]](found).count("\n\n"))
        places = [marker.split()[1:] for marker in shown if marker.split()[0] == path.stem]
        assert [] in places or {str(part) for part in parts} == set().union(*places)
    assert measured == set(_tables.TABLES)
    assert {"goals", "goals missed"} <= shown


def test_the_readme_is_short() -> None:
    assert len(_tables.PAGES[0].read_text().split()) < 4_000


def test_pictures_of_the_pages_are_there() -> None:
    text = "".join(page.read_text() for page in _tables.PAGES)
    shown = set(re.findall(r"\]\(results/([a-z-]+\.png)\)", text))
    there = {path.name for path in _settings.RESULTS.glob("*.png")}
    measured = {path.stem for path in RESULTS}
    assert there <= shown
    assert {name for name in shown if name.removesuffix(".png").split("-")[0] in measured} <= there


def test_a_table_is_written_between_its_markers(tmp_path: Path) -> None:
    rows = [
        {"contender": "ours", "seconds": 0.25, "low": 0.2, "high": 0.3},
        {"contender": "theirs", "seconds": 2.5, "low": 2.0, "high": 3.0},
    ]
    found = {
        "benchmark": "predict",
        "device": "cpu",
        "date": "2026-01-02",
        "command": "python -m benchmarks.predict",
        "threads": 2,
        "machine": {"cpu": "Abacus", "cores": 4, "python": "3.11.1"},
        "versions": {"torch": "2.0", "tyxe": "not installed"},
        "rows": rows,
    }
    (tmp_path / "predict.json").write_text(json.dumps(found))
    text = "before\n<!-- table: predict -->\nold\n<!-- end -->\nafter\n"
    expected = """before
<!-- table: predict -->
Abacus, 4 cores, 2 threads, Python 3.11.1, torch 2.0; not installed: tyxe; 2026-01-02, \
`python -m benchmarks.predict`.

| contender | one prediction | quartiles | over this package's |
| --- | --- | --- | --- |
| ours | 250 ms | 200 ms to 300 ms | 1.0 |
| theirs | 2.5 s | 2 s to 3 s | 10.0 |
<!-- end -->
after
"""
    assert _tables.filled(text, tmp_path) == expected
    assert _tables.filled(expected, tmp_path) == expected


def test_tables_of_several_are_written_between_their_markers() -> None:
    provenance, scores, costs, warm = _tables.made("laplace", _settings.RESULTS).split("\n\n")
    for part, tables in (("1", [scores]), ("3", [warm]), ("1 2", [scores, costs])):
        marker, body = f"<!-- table: laplace {part} -->", "\n\n".join([provenance, *tables])
        found = _tables.filled(f"{marker}\nold\n<!-- end -->", _settings.RESULTS)
        assert found == f"{marker}\n{body}\n<!-- end -->"


def test_one_round_has_no_range() -> None:
    row = {"net": "1-1", "batch": 8, "num_data": 8, "steps": 10, "cache": "empty", "ratio": 0.5}
    for seconds, shown, ratio in (
        ([2.0], "2 s | 4 s | 0.50 |", [0.5, 0.5]),
        ([1.0, 2.0, 3.0], "2 s (1 s to 3 s) | 4 s | 0.50 (0.25 to 0.75) |", [0.25, 0.75]),
    ):
        times = {"seconds": 2.0, "all_seconds": seconds, "base": 4.0, "all_base": [4.0, 4.0]}
        table = _tables.default_fits({"rows": [{**row, **times, "ratio_range": ratio}]})
        assert table.endswith(shown)


@pytest.mark.parametrize(
    ("name", "missing"),
    [
        ("svi", "svi"),
        ("goals", "default-fits, default-wide, default-phases, svi, cold, nuts, samplers"),
    ],
)
def test_a_table_without_its_result_says_so(name: str, missing: str, tmp_path: Path) -> None:
    text = _tables.filled(f"<!-- table: {name} -->\nold\n<!-- end -->", tmp_path)
    assert text == f"<!-- table: {name} -->\nNot measured yet: {missing}.\n<!-- end -->"


def test_goals_say_what_was_missed(tmp_path: Path) -> None:
    step: dict[str, Any] = {"net": "1-1", "batch": 8, "copies": 1}
    steps = [
        {**step, "contender": "pyro_bnn, AutoNormal", "ratio": 1.3},
        {**step, "contender": "pyro_bnn, low rank 10", "ratio": 2.1},
        {**step, "contender": "pyro_bnn, low rank 10", "ratio": 4.9, "net": "784-400-400-1"},
        {**step, "contender": "pyro_bnn, rank-1 mixture of 4", "ratio": 6.0, "copies": 4},
        {**step, "contender": "Pyro, AutoNormal", "ratio": 20.0},
    ]
    fits = [
        {"contender": "pyro_bnn", "process_seconds": 6.0, "fit_seconds": 2.0},
        {"contender": "Pyro", "process_seconds": 10.0, "fit_seconds": 8.0},
    ]
    default = {"net": "1-1", "batch": 8, "num_data": 8, "steps": 10, "ratio": 2.9}
    whole = [{**default, "cache": cache} for cache in ("empty", "filled")]
    late = {"contender": "ours", "ratio": 0.1}
    phases = [
        {**late, "compiled": compiled, "ratio_past_setup": ratio}
        for compiled, ratio in ((False, 1.3), (True, 1.2))
    ]
    case = {"target": "moons", "warmup": 1, "draws": 2, "time": 0.7, "speed": 4.0}
    ratios = [
        {**case, "library": library, "chains": chains, "cache": cache}
        for library, chains in [("numpyro", 4), ("numpyro", 64), ("numpyro", 1), ("pyro", 1)]
        for cache in ("empty", "filled")
    ]
    chains = [
        {"part": "moons", "contender": "NumPyro, NUTS", "ess_per_second": 10.0},
        {"part": "moons", "contender": "NumPyro, NUTS, vectorised", "ess_per_second": 5.0},
        {"part": "moons", "contender": "NUTS", "ess_per_second": 20.0},
        {"part": "moons", "contender": "HMC", "ess_per_second": 26.0},
        {"part": "moons", "contender": "MCLMC", "ess_per_second": 39.0, "variance_ratio": 0.94},
        {"part": "diabetes", "contender": "NumPyro, NUTS", "seconds": 10.0},
        {"part": "diabetes", "contender": "NumPyro, NUTS, vectorised", "seconds": 30.0},
        {"part": "diabetes", "contender": "HMC", "seconds": 5.0},
        {"part": "yacht", "case": "yacht", "contender": "MILE", "gain": -0.01},
    ]
    for name, more in {
        "default-fits": {"rows": whole},
        "default-wide": {"rows": whole[:1]},
        "default-phases": {"rows": phases},
        "svi": {"rows": steps},
        "cold": {"rows": fits, "base": "Pyro", "steps": 10},
        "nuts": {"ratios": ratios, "nets": {"moons": "2-1"}},
        "samplers": {"rows": chains},
    }.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(more))
    goals = _tables.made("goals", tmp_path).splitlines()
    missed = _tables.made("goals", tmp_path, "missed").splitlines()
    assert missed == [*goals[:2], *(line for line in goals if line.endswith("| **no** |"))]
    cells = [line.split(" | ")[1:] for line in goals[2:]]
    assert cells == [
        ["2.90", "at most 3", "yes |"],
        ["2.90", "at most 1.5", "**no** |"],
        ["2.90", "at most 3", "yes |"],
        ["1.30", "at most 1.2", "**no** |"],
        ["1.20", "at most 1.2", "yes |"],
        ["1.30", "at most 1.3", "yes |"],
        ["2.10", "at most 2", "**no** |"],
        ["4.90", "at most 5", "yes |"],
        ["1.50", "at most 2", "yes |"],
        ["0.60", "at most 0.5", "**no** |"],
        ["0.25", "at most 0.5", "yes |"],
        ["0.70", "at most 1", "yes |"],
        ["0.70", "at most 0.6", "**no** |"],
        ["4.00", "at least 3", "yes |"],
        ["4.00", "at least 5", "**no** |"],
        ["4.00", "at least 30", "**no** |"],
        ["4.00", "at least 30", "**no** |"],
        ["2.60", "at least 2.5", "yes |"],
        ["1.30", "at least 1.5", "**no** |"],
        ["3.90", "at least 4", "**no** |"],
        ["0.06", "at most 0.05", "**no** |"],
        ["0.50", "at most 0.5", "yes |"],
        ["-0.01", "at least 0", "**no** |"],
    ]


def test_goals_of_what_is_not_measured_are_named(tmp_path: Path) -> None:
    (tmp_path / "svi.json").write_text(json.dumps({"rows": []}))
    text = _tables.made("goals", tmp_path)
    missing = "default-fits, default-wide, default-phases, cold, nuts, samplers"
    assert text.endswith(f"| --- |\n\nNot measured yet: {missing}.")


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (5e-5, "50 µs"),
        (1.234e-3, "1.23 ms"),
        (0.9999, "1.00 s"),
        (0.25, "250 ms"),
        (61.5, "61.5 s"),
    ],
)
def test_durations_have_a_fitting_unit(seconds: float, text: str) -> None:
    assert _tables.duration(seconds) == text


def test_pictures_leave_the_settings_of_matplotlib(tmp_path: Path) -> None:
    import matplotlib as mpl

    before = dict(mpl.rcParams)
    found = {
        "rows": [{"contender": "ours", "seconds": 0.2, "low": 0.1, "high": 0.3}],
        "net": "1-1",
        "draws": 10,
        "rows_of_x": 10,
    }
    _plots.predict(found, tmp_path / "predict.png")
    assert dict(mpl.rcParams) == before


def test_a_library_has_one_colour() -> None:
    shades = {_plots.colour(n) for n in ("pyro_bnn, a", "Pyro, a", "NumPyro, a", "deterministic")}
    assert len(shades) == 4
    assert _plots.colour("Pyro, a") == _plots.colour("Pyro, b")


@pytest.mark.slow("a process of its own")
def test_pyro_is_measured_without_this_package_and_no_benchmark_imports_a_peer() -> None:
    """One process does all in turn, and says after each what is loaded by then."""
    from tests.test_imports import loaded_after_each

    of_pyro = {
        "benchmarks._fit": "FITS",
        "benchmarks._sampling": "SAMPLERS",
        "benchmarks._default_fit": "FITS",
    }
    makes = [f"from {module} import {name}; {name}['pyro']()" for module, name in of_pyro.items()]
    imports = "from benchmarks import cold, default, nuts, predict, svi"
    *loaded, last = loaded_after_each([*makes, imports], Path(__file__).parent.parent)
    for module, found in zip(of_pyro, loaded, strict=True):
        assert {"pyro", module} <= found
        assert "pyro_bnn" not in found, module
    assert last & {"numpyro", "jax", "bayesian_torch", "tyxe"} == set()
