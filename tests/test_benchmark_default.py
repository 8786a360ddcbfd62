"""The benchmark of defaults: one ELBO for all, states of the caches, when an ELBO is reached."""

from __future__ import annotations

import io
import json
import math
import subprocess
import sys
from collections.abc import Iterator
from contextlib import redirect_stdout
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pyro
import pytest
import torch
from pyro.infer import SVI, Trace_ELBO, autoguide
from pyro.optim import Adam  # type: ignore[attr-defined]  # made at import time
from torch.testing import assert_close

import pyro_bnn as bnn
from benchmarks import _default_fit, _settings, _tables, default
from benchmarks._default_elbo import ELBO, end, entropy, reached
from benchmarks._default_fit import (
    EVERY,
    FITS,
    METHODS,
    PROBLEMS,
    STEPS,
    Course,
    Options,
    our_model,
    our_svi,
    pyro_shape,
)
from benchmarks._posteriors import DIABETES
from benchmarks._problem import LEARNING_RATE
from benchmarks._sampling import pyro_model
from benchmarks.default import Run
from tests.oracle import linear_gaussian
from tests.test_benchmarks import check_schema

OURS = Options(library="pyro_bnn", problem="diabetes")
SHORT = Options(library="pyro_bnn", problem="quick", steps=2 * EVERY, marks=True, compile=False)


# What is fitted


def test_only_the_steps_and_what_is_drawn_are_set() -> None:
    counted = partial(
        bnn.SVI,
        bnn.guides.AutoNormal,
        num_steps=STEPS,
        schedule="cosine",
        estimator="weight_sampling",
    )
    assert bnn.SVI(bnn.guides.AutoNormal).learning_rate == LEARNING_RATE
    assert our_svi(OURS) == counted()
    for name, size in (("batches", 128), ("wide", 256)):
        assert our_svi(replace(OURS, problem=name)) == counted(batch_size=size)


def test_the_deterministic_network_has_the_rows_of_the_problem() -> None:
    problem = PROBLEMS["diabetes"]
    x, y = problem.batch_of()
    expected = tuple(map(torch.from_numpy, DIABETES.arrays()))
    assert_close((x, y), expected, rtol=0, atol=0)
    assert (problem.net, problem.batch, problem.num_data) == ("10-50-1", len(x), len(x))


@pytest.mark.parametrize("name", METHODS)
def test_every_method_has_a_model_and_an_engine(name: str) -> None:
    options, course = replace(SHORT, method=name, steps=EVERY), Course()
    FITS["pyro_bnn"]()(options, course)
    assert len(course.seconds) == 1
    prior = METHODS[name].prior
    if prior is not None:
        kinds = {type(module).__name__ for module in our_model(options).modules()}
        assert f"_{prior}" in kinds


@pytest.mark.slow("about a second")
def test_marks_are_the_states_after_every_hundred_steps() -> None:
    course = Course()
    FITS["pyro_bnn"]()(SHORT, course)
    assert 0 < course.seconds[0] < course.seconds[1] < course.elapsed()
    x, y = PROBLEMS[SHORT.problem].data()
    posterior = our_svi(SHORT).run(our_model(SHORT), (x, y), progress=False)
    guide = posterior.guide
    assert_close(torch.from_numpy(course.shapes[1]["loc"]), guide.loc.detach(), rtol=0, atol=0)
    assert_close(torch.from_numpy(course.shapes[1]["scale"]), guide.scale.detach(), rtol=0, atol=0)
    assert len(course.shapes) == 2
    assert (course.shapes[0]["loc"] != course.shapes[1]["loc"]).all()


def test_without_marks_svi_is_left_alone() -> None:
    course = Course()
    FITS["pyro_bnn"]()(replace(SHORT, marks=False), course)
    assert not course.seconds


@pytest.mark.slow("about a second")
def test_pyro_makes_its_steps() -> None:
    course, steps = Course(), []
    original: Any = SVI.step
    with pytest.MonkeyPatch.context() as patch, pyro.get_param_store().scope():
        patch.setattr(SVI, "step", lambda *a: steps.append(original(*a)))
        FITS["pyro"]()(replace(OURS, library="pyro", steps=EVERY, marks=True), course)
    assert len(steps) == EVERY
    assert len(course.seconds) == 1
    assert set(course.shapes[0]) == {"loc", "scale"}


# One ELBO for all


@pytest.mark.parametrize("name", default.CONVERGED)
def test_the_elbo_of_a_guide_of_pyro_is_pyros_own(name: str) -> None:
    x, y = map(torch.from_numpy, DIABETES.arrays())
    model = pyro_model(DIABETES)
    with pyro.get_param_store().scope(), torch.random.fork_rng():
        torch.manual_seed(0)
        guide = getattr(autoguide, name)(model)
        svi = SVI(model, guide, Adam({"lr": LEARNING_RATE}), Trace_ELBO())
        for _ in range(5):
            svi.step(x, y)
        elbo = ELBO(our_model(replace(OURS, method=name)), x, y, 500)
        found = elbo(pyro_shape(guide))
        if len(found) == 1:
            assert name == "AutoDelta"
            assert found[0] == pytest.approx(-svi.evaluate_loss(x, y), rel=1e-5)
            return
        theirs = np.array([-svi.evaluate_loss(x, y) for _ in range(300)])
    error = math.hypot(found.std() / math.sqrt(500), theirs.std() / math.sqrt(300))
    assert abs(found.mean() - theirs.mean()) < 5 * error
    assert 5 * error < 0.02 * abs(theirs.mean())  # so that it can fail


@pytest.mark.parametrize("rank", [None, 2])
def test_the_elbo_is_the_closed_form_within_its_monte_carlo_error(rank: int | None) -> None:
    oracle = linear_gaussian()
    generator = torch.Generator().manual_seed(1)
    d = torch.tensor([0.2, 0.1, 0.3, 0.15]).double()
    q = {"loc": oracle.mean + 0.1, "scale": d}
    covariance = d.square().diag()
    if rank is not None:
        q["factor"] = torch.randn(4, rank, generator=generator).double()
        root = d.unsqueeze(-1) * q["factor"]
        covariance = covariance + root @ root.mT
    dense = torch.distributions.MultivariateNormal(q["loc"], covariance)
    assert entropy(*list(q.values())[1:]) == pytest.approx(float(dense.entropy()), rel=1e-12)
    values = ELBO(oracle.model, oracle.x, oracle.y, 2_000)(q)
    error = float(values.std()) / math.sqrt(len(values))
    assert abs(float(values.mean()) - oracle.elbo(q["loc"], covariance)) < 5 * error


def test_the_end_is_the_mean_of_the_last_marks() -> None:
    values = np.arange(40.0).reshape(20, 2)  # the last ten rows have means 20.5, 22.5 to 38.5
    found = end(values)
    assert found.elbo == pytest.approx(29.5)
    # of draws 29 and 30, whose sd is sqrt(1/2), over the root of two
    assert found.error == pytest.approx(0.5)
    assert end(values[:, :1]).error == 0


def test_it_is_reached_in_the_middle_of_the_first_smooth_stretch_within_a_nat() -> None:
    values = np.concatenate([np.full(20, -50.0), np.zeros(20)])[:, None]
    # marks 19 to 28 are nine 0 and one -50: a mean of -5; marks 20 to 29 are the first at 0
    assert reached(values, 0.0) == 25
    assert reached(values, -4.0) == 24
    assert reached(values, -3.99) == 25
    assert reached(values, 1.01) is None
    assert reached(values[:4], -50) == 2  # fewer marks than are smoothed over


# Rounds and caches


class Stopwatch:
    """Stands in for :func:`default.fitted`: a time by library and cache."""

    SECONDS: ClassVar = {
        ("pyro_bnn", False): 6.0,
        ("pyro_bnn", True): 2.0,
        ("deterministic", False): 3.0,
    }

    def __init__(self) -> None:
        self.ran: list[tuple[str, int, bool]] = []

    def __call__(self, options: Options, cache: Path) -> Run:
        is_filled = any(cache.iterdir())
        if options.library == "pyro_bnn":
            (cache / "kernel").touch()
        self.ran.append((options.library, options.seed, is_filled))
        seconds = self.SECONDS[options.library, is_filled]
        return Run(seconds * (1.5 if options.seed and is_filled else 1), [], {})


@pytest.fixture
def settings() -> _settings.Settings:
    return _settings.Settings(threads=1, rounds=2, device="cpu", quick=True, out=None, command="")


def test_a_round_has_empty_then_filled_caches_then_the_deterministic_steps(
    settings: _settings.Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(default, "fitted", fake := Stopwatch())
    empty, filled = default.fits(settings, tmp_path)
    one = [("pyro_bnn", False), ("pyro_bnn", True), ("deterministic", False)]
    assert fake.ran == [(name, seed, full) for seed in (0, 1) for name, full in one]
    assert (empty["ratio"], empty["ratio_range"]) == (2, [2, 2])
    assert filled["ratio"] == pytest.approx(2.5 / 3)
    assert filled["ratio_range"] == pytest.approx([2 / 3, 1])
    assert (empty["cache"], filled["cache"]) == ("empty", "filled")


def test_a_course_that_never_gets_there_counts_as_the_longest() -> None:
    assert default.over_rounds("a", [1.0, None, 2.0]) == {"a": 2.0, "all_a": [1.0, None, 2.0]}
    assert default.over_rounds("a", [1.0, None, None])["a"] is None


def test_setting_up_is_one_block_of_ten() -> None:
    marks = np.cumsum([7.0, *[0.1] * 9, *[0.2] * 10, *[0.5] * 70, *[0.3] * 10])
    first, second, last = default.tenths(list(marks), 10_000)
    assert (first, second, last) == pytest.approx((1e-3, 2e-3, 3e-3))


def test_the_optimiser_alone_moves_as_many_numbers_a_weight_as_are_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    moved: list[int] = []
    original = torch.optim.Adam.step

    def step(self: Any) -> None:
        moved.append(sum(p.numel() for group in self.param_groups for p in group["params"]))
        original(self)

    monkeypatch.setattr(torch.optim.Adam, "step", step)
    problem = PROBLEMS["quick"]
    parts = list(default.bare_parts(problem))
    for part, _ in parts:
        part.advance(2)
    weights = problem.num_weights
    assert moved == [2 * weights, 2 * weights, 12 * weights, 12 * weights]
    assert [of for part, of in parts if "Adam" in part.name] == [
        [default.MEAN_FIELD],
        [default.LOW_RANK],
    ]


@pytest.mark.slow("a process of its own")
def test_a_fit_has_a_process_of_its_own(tmp_path: Path) -> None:
    found = default.fitted(replace(SHORT, steps=EVERY), tmp_path)
    assert 0 < found.marks[0] < found.seconds
    assert set(found.q(0)) == {"loc", "scale"}
    with pytest.raises(RuntimeError, match=r"(?s)_default_fit .* failed:.*KeyError: 'unknown'"):
        default.fitted(replace(SHORT, library="unknown"), tmp_path)


# Figures


@pytest.fixture
def _threads() -> Iterator[None]:
    before, allowed = torch.get_num_threads(), _settings.allowed_cores()
    yield
    torch.set_num_threads(before)
    _settings.hold_to(allowed)


@pytest.fixture
def _in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a fit's process runs and prints, without the seconds that it takes to begin."""

    def run(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        assert command[:3] == [sys.executable, "-m", "benchmarks._default_fit"]
        printed = io.StringIO()
        with redirect_stdout(printed), pyro.get_param_store().scope():
            _default_fit.main(command[3:])
        return subprocess.CompletedProcess(command, 0, printed.getvalue(), "")

    monkeypatch.setattr(default, "subprocess", SimpleNamespace(run=run))


@pytest.mark.slow("a whole benchmark")
@pytest.mark.usefixtures("_threads", "_in_this_process")
def test_a_quick_run_writes_the_figures_of_every_part(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(default, "QUICK_STEPS", 2 * EVERY)
    before = [page.read_text() for page in _tables.PAGES]
    command = ["--quick", "--threads", "1", "--rounds", "1", "--out", str(tmp_path)]
    found = default.main(command)
    printed = capsys.readouterr().out
    assert list(found) == list(default.PARTS)
    for part, result in found.items():
        written = json.loads((tmp_path / f"default-{part}.json").read_text())
        assert check_schema(written) == f"default-{part}"
        assert _tables.TABLES[f"default-{part}"](result) in printed
    assert [page.read_text() for page in _tables.PAGES] == before
    rows = found["elbo"]["rows"]
    assert [(r["contender"], r["cache"]) for r in rows] == [
        ("pyro_bnn", "empty"),
        ("pyro_bnn", "filled"),
        ("Pyro", ""),
    ]
    assert all(0 < r["seconds"] < r["whole"] for r in rows)
    assert rows[2]["seconds"] == rows[2]["to_pyro"]


@pytest.mark.slow("about a second")
@pytest.mark.usefixtures("_threads")
def test_parts_can_be_run_alone(capsys: pytest.CaptureFixture[str]) -> None:
    found = default.main(["--quick", "--threads", "1", "--part", "steps"])
    assert list(found) == ["steps"]
    assert found["steps"]["command"].partition(" --part ")[2] == "steps"  # that one alone
    with pytest.raises(SystemExit):
        default.main(["--part", "none"])
    assert "invalid choice: 'none'" in capsys.readouterr().err


def test_the_parts_of_a_step_are_summed_for_each_guide() -> None:
    parts = {"a": ["one", "other"], "b": ["one"], "c": ["other"]}
    rows = [
        {"contender": name, "part_of": parts.get(name, []), "low": t, "high": t}
        | {"seconds": t, "ratio": t / 2}
        for name, t in zip(["deterministic", "ours", *parts], [2.0, 9.0, 1, 3, 4], strict=True)
    ]
    lines = _tables.default_steps({"rows": rows}).splitlines()
    assert lines[-2:] == [
        "| the sum of the parts, one | 4 s |  | 2.00 |",
        "| the sum of the parts, other | 5 s |  | 2.50 |",
    ]


def test_what_is_not_reached_is_said() -> None:
    row = {
        "contender": "pyro_bnn",
        "method": "AutoNormal",
        "cache": "filled",
        "elbo": -12.34,
        "elbo_error": 0.5,
        "seconds": 2.0,
        "all_seconds": [1.0, 3.0],
        "to_pyro": None,
        "all_to_pyro": [None, None],
        "whole": 4.0,
        "all_whole": [4.0, 4.0],
    }
    cells = _tables.default_elbo({"rows": [row]}).splitlines()[-1].strip("| ").split(" | ")
    assert cells[3:6] == ["-12.3 ± 0.5", "2 s (1 s to 3 s)", "not reached"]
