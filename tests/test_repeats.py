"""Runs over splits and seeds: their numbers on the command line, and processes side by side."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import joblib
import numpy as np
import pandas as pd
import pytest
import threadpoolctl  # type: ignore[import-untyped]
import torch
import typer

from pyro_bnn.cli import fits
from pyro_bnn.cli import main as cli
from pyro_bnn.cli.fits import count_numbers, expected_seconds
from pyro_bnn.cli.jobs import number_of_jobs, require_cores
from pyro_bnn.cli.many_runs import run_all
from pyro_bnn.cli.methods import find_methods
from pyro_bnn.cli.number_lists import numbers, one_or_several
from pyro_bnn.cli.options import NetworkOptions
from pyro_bnn.cli.runs import OneRun, RunPlan
from pyro_bnn.data import Dataset, Split, from_arrays
from pyro_bnn.errors import OptionError
from pyro_bnn.guides import AutoDelta, AutoMultivariateNormal, AutoNormal
from pyro_bnn.infer import NUTS, SVI
from pyro_bnn.infer.engine import Engine
from pyro_bnn.models import MLP
from pyro_bnn.posterior.provenance import Provenance, one_of_processes
from pyro_bnn.report.splits.table import keys_of


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0-4", [0, 1, 2, 3, 4]),
        ("0,3,7", [0, 3, 7]),
        ("7, 0 - 2", [7, 0, 1, 2]),
        ("5", [5]),
        ("3-3", [3]),
        ("4294967295", [2**32 - 1]),
    ],
)
def test_numbers_and_ranges_are_read(text: str, expected: list[int]) -> None:
    assert numbers(text, "--seeds") == expected


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "takes whole numbers from 0 such as 0-4 or 0,3,7, not ''"),
        ("0,,1", "such as 0-4 or 0,3,7, not '0,,1'"),
        ("a", "such as 0-4 or 0,3,7, not 'a'"),
        ("-1", "such as 0-4 or 0,3,7, not '-1'"),
        ("0-1-2", "such as 0-4 or 0,3,7, not '0-1-2'"),
        ("1.5", "such as 0-4 or 0,3,7, not '1.5'"),
        ("²", "such as 0-4 or 0,3,7, not '²'"),
        ("0, 4-2", "such as 0-4 or 0,3,7; '4-2' runs backwards"),
        ("0-2,1", "each once; '0-2,1' names one twice"),
        ("0-1000", "; '0-1000' holds more than 1,000"),
        ("4294967296", "at most 4294967295; '4294967296' is above"),
    ],
)
def test_anything_else_is_refused(text: str, said: str) -> None:
    with pytest.raises(OptionError) as caught:
        numbers(text, "--seeds")
    assert str(caught.value).startswith("--seeds takes whole numbers from 0")
    assert said in str(caught.value)


def test_a_thousand_numbers_are_not_too_many() -> None:
    assert len(numbers("0-999", "--seeds")) == 1_000
    with pytest.raises(OptionError, match="holds more than 1,000"):
        numbers("0-998,1000,1001", "--seeds")


def test_one_option_or_the_other() -> None:
    def values(*args: str) -> list[int]:
        command = typer.main.get_command(cli.app).commands["compare"]  # type: ignore[attr-defined]
        needed = ["--data", "moons", "--methods", "nuts"]
        context = command.make_context("compare", [*needed, *args])
        return one_or_several(context, "split", context.params["splits"])

    assert values() == [0]
    assert values("--split", "3") == [3]
    assert values("--splits", "1-2") == [1, 2]
    with pytest.raises(OptionError, match="--split and --splits are both given: leave one of them"):
        values("--split", "0", "--splits", "0")
    with pytest.raises(OptionError, match="--splits takes whole numbers"):
        values("--splits", "x")


# Runs in processes of their own


def test_no_more_threads_than_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(joblib, "cpu_count", lambda: 4)
    require_cores(1, 8)  # the caller's own affair
    require_cores(4, 1)
    require_cores(2, 2)
    with pytest.raises(OptionError, match="3 processes of 2 threads need 6 cores, and there are 4"):
        require_cores(3, 2)


def test_fits_go_side_by_side_where_that_saves_more_than_processes_take_to_begin(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(joblib, "cpu_count", lambda: 4)

    def number(*steps: int, runs: int = 1, threads: int = 1, asked: int | None = None) -> int:
        engines = {str(i): SVI(AutoNormal, num_steps=n) for i, n in enumerate(steps)}
        return number_of_jobs(asked, engines, runs, threads)

    assert number(10_000, 10_000, 10_000) == 3  # one for each method
    assert number(*[10_000] * 9) == 4  # one for each core
    assert number(*[10_000] * 9, threads=2) == 2
    assert number(*[10_000] * 9, threads=8) == 1
    assert number(100, 100) == number(10_000) == number(20_000, 100) == 1  # nothing to be saved
    assert number(10_000, runs=3) == 3
    assert number(10, 10, runs=3) == 1
    assert number(10, 10, asked=2) == 2
    nuts = {"a": NUTS(warmup_steps=100, num_samples=100), "b": SVI(AutoNormal, num_steps=10_000)}
    assert number_of_jobs(None, nuts, 1, 1) == 2
    assert number_of_jobs(None, nuts, 1, 1, device="cuda") == 1  # which is one for all
    assert number_of_jobs(2, nuts, 1, 1, device="cuda") == 2
    for asked, runs, said in [
        (3, 1, "--jobs 3 does nothing beyond one for each method, and there are 2 methods"),
        (3, 2, "--jobs 3 does nothing beyond one for each run, and there are 2 runs"),
        (5, 9, "5 processes of 1 threads need 5 cores"),
    ]:
        with pytest.raises(OptionError, match=said):
            number(10, 10, runs=runs, asked=asked)
    with pytest.raises(OptionError, match="there is 1 method: leave it out, or name more --m"):
        number(10, asked=2)


def test_a_guide_of_many_numbers_is_expected_to_take_longer() -> None:
    """A full covariance keeps a square of P x P, a mean and a scale for each of P weights."""
    rows = Dataset(torch.zeros(4, 6), torch.zeros(4))
    small, large = MLP(6, 1, hidden=(3, 2)), MLP(6, 1, hidden=(400,))
    count = 7 * 3 + 4 * 2 + 3 + 1  # and the scale of the noise
    full, mean_field = SVI(AutoMultivariateNormal), SVI(AutoNormal)
    assert count_numbers(mean_field, small, rows) == 2 * count
    assert count_numbers(full, small, rows) == count**2 + 2 * count
    assert count_numbers(full, large, rows) == 0  # too many to set the guide up
    assert count_numbers(NUTS(), small, rows) == 0
    nuts = NUTS(warmup_steps=300, num_samples=300)
    at_602 = expected_seconds(full, 602**2 + 2 * 602)
    assert at_602 > expected_seconds(nuts) > expected_seconds(mean_field, 2 * 602)


def test_a_run_knows_that_it_is_one_of_several() -> None:
    before = torch.get_num_threads()
    with one_of_processes(3, before + 1):
        inside = Provenance("NUTS", "NUTS")
    outside = Provenance("NUTS", "NUTS")
    assert (inside.threads, inside.processes) == (before + 1, 3)
    assert (outside.threads, outside.processes) == (before, 1)


class WithoutFits(RunPlan):
    """Comparisons whose tables say what the process of the run has."""

    def models(self, rows: Split, seed: int) -> dict[str, Any]:
        return {}

    def run(self, models: Any, rows: Split, seed: int, out: Path, *, num_processes: int = 1) -> Any:
        pools = [pool["num_threads"] for pool in threadpoolctl.threadpool_info()]
        provenance = Provenance("NUTS", "NUTS")
        record = {
            **{key: np.nan for how in ("mean", "largest") for key in keys_of(how, "regression")},
            "log_score": float(rows.index),
            "log_score_se": 0.1,
            "threads": provenance.threads,
            "processes": provenance.processes,
            "pools": max(pools, default=1),
            "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS"),
            "pid": os.getpid(),
        }
        table = pd.DataFrame([record], index=pd.Index(["NUTS"], name="method"))
        sizes = {"num_train": len(rows.train), "num_test": len(rows.test)}
        found = SimpleNamespace(split=rows, seed=seed, table=table, findings=(), **sizes)
        return SimpleNamespace(comparison=found, lost={}, why="")


@pytest.mark.slow("about a second")
def test_fits_side_by_side_have_posteriors_in_order_and_those_that_diverged_are_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """In this process: the longest first, and one that needs another's weights after it."""
    ran: list[str] = []

    def in_turn(
        tasks: Any, processes: int, threads: int, say: Any, *, progress: bool, if_killed: Any
    ) -> Any:
        ran.extend(tasks)
        assert processes == 2
        return {name: task(say) for name, task in tasks.items()}

    monkeypatch.setattr("pyro_bnn.cli.side_by_side.run", in_turn)
    x = np.linspace(-1, 1, 24).reshape(12, 2)
    rows = from_arrays(x, x[:, 0])
    methods = find_methods("auto-normal,nuts,auto-delta")
    engines: dict[str, Engine[Any]] = {
        "AutoNormal": SVI(AutoNormal, num_steps=20, learning_rate=1e30, schedule="constant"),
        "NUTS": NUTS(num_chains=1, warmup_steps=2, num_samples=8, max_tree_depth=2),
        "AutoDelta": SVI(AutoDelta, num_steps=10),
    }
    plan = RunPlan(
        methods=methods, engines=engines, choice=NetworkOptions(hidden="2"), reference=None,
        progress=False, say=str, command="",
    )  # fmt: skip
    models = plan.models(rows, 0)

    def fit() -> tuple[dict[str, Any], dict[str, str]]:
        ran.clear()
        one = OneRun(plan, models, rows, 0, tmp_path, 2)
        done = one.fit_side_by_side()
        assert one.alone.keys() == one.ended.paths.keys()
        return fits.fit_all(
            engines, models, rows, seed=0, progress=False, say=str, saves=None, done=done
        )

    found, lost = fit()
    assert ran == ["NUTS", "AutoNormal", "AutoDelta"]
    assert list(found) == ["NUTS", "AutoDelta"]
    assert list(lost) == ["AutoNormal"]
    alone = engines["AutoDelta"].run(models["AutoDelta"], rows.train, progress=False)
    assert torch.equal(found["AutoDelta"].unconstrained(1), alone.unconstrained(1))
    np.testing.assert_array_equal(found["AutoDelta"].losses, alone.losses)

    delta = engines["AutoDelta"]
    monkeypatch.setattr(fits, "holds_fixed", lambda engine, _: engine is delta)
    found, lost = fit()
    assert ran == ["NUTS", "AutoNormal"]
    assert lost["AutoDelta"] == "no fit of its network is left to take weights from"


@pytest.mark.slow("processes")
@pytest.mark.skipif(joblib.cpu_count() < 2, reason="two processes need two cores")
def test_processes_side_by_side_do_not_oversubscribe(tmp_path: Path) -> None:
    x = np.linspace(-1, 1, 20).reshape(10, 2)
    rows = from_arrays(x, x[:, 0])
    splits = {number: dataclasses.replace(rows, index=number) for number in range(3)}
    plan = WithoutFits(
        methods={}, engines={}, choice=NetworkOptions(hidden="4"), reference=None, progress=True,
        say=str, command="",
    )  # fmt: skip
    with one_of_processes(1, 1):
        apart, *_ = run_all(plan, splits, [3], tmp_path / "apart")
        beside, *_ = run_all(plan, splits, [3], tmp_path / "beside", num_processes=2)
        with pytest.raises(OptionError, match="1000 processes of 1 threads need 1000 cores"):
            run_all(plan, splits, [3], tmp_path, num_processes=1_000)
    assert [run.name for run in beside.runs] == [run.name for run in apart.runs]
    for run, other in zip(apart.runs, beside.runs, strict=True):
        here, there = run.table.loc["NUTS"], other.table.loc["NUTS"]
        assert there["log_score"] == here["log_score"] == run.split
        assert (here["pid"], here["processes"]) == (os.getpid(), 1)
        assert there["pid"] != os.getpid()
        assert there["processes"] == 2
        assert there["threads"] == there["pools"] == 1  # of torch, and of every library beside it
        assert there["OMP_NUM_THREADS"] == "1"
    page = (tmp_path / "beside" / "index.html").read_text()
    assert "threads" in page
    assert "processes" in page
