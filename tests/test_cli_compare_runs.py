"""``pyro-bnn compare`` over several splits and seeds, as a user calls it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import joblib
import numpy as np
import pandas as pd
import pytest
import torch
from numpy.testing import assert_allclose

from pyro_bnn import arviz_io, report
from pyro_bnn.cli import many_runs, runs
from pyro_bnn.cli.methods import make_engines
from pyro_bnn.cli.saves import Saves
from pyro_bnn.errors import DataError, DivergenceError
from pyro_bnn.infer.engine import DrawCounts
from pyro_bnn.report.compare import compare_all
from tests.command_line import Result, run
from tests.plain_runs import run_plainly

pytestmark = pytest.mark.slow("whole comparisons")

MOONS = ("compare", "--data", "moons", "--hidden", "3", "--steps", "20")
METHODS = ("--methods", "auto-normal,auto-delta")


@pytest.fixture(autouse=True, scope="module")
def _threads_are_given_back() -> Iterator[None]:
    """The command sets the threads of torch for good."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@contextmanager
def quick_files() -> Iterator[None]:
    """Pages without figures and empty files of draws: here only their names are looked at."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("pyro_bnn.report.plots.figures.Figures.pictures", lambda _: [])
        patch.setattr(arviz_io, "save_netcdf", lambda tree, path, **_: path.touch())
        yield


@pytest.fixture
def plainly_beside(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs in other processes are plain too, which a patch of this one does not reach."""
    monkeypatch.setattr(many_runs, "_run_beside", run_plainly)


@pytest.fixture(scope="module")
def four(tmp_path_factory: pytest.TempPathFactory) -> tuple[Result, Path]:
    """Two methods on two splits with two seeds."""
    folder = tmp_path_factory.mktemp("runs") / "out"
    with quick_files():
        arguments = (*MOONS, *METHODS, "--splits", "0-1", "--seeds", "3,5", "--out", folder)
        return run(*arguments), folder


def test_every_run_has_a_report_and_a_page_over_all_links_them(four: tuple[Result, Path]) -> None:
    (code, out, err), folder = four
    assert (code, err) == (0, "")
    names = [f"split-{split}-seed-{seed}" for split in (0, 1) for seed in (3, 5)]
    assert {path.name for path in folder.iterdir()} == {
        "index.html", "table.csv", "runs.csv", *names,
    }  # fmt: skip
    for name in names:
        assert {path.name for path in (folder / name).iterdir()} == {
            "index.html", "table.csv", "verdicts.json", "auto-normal.nc", "auto-delta.nc",
        }  # fmt: skip
    page = (folder / "index.html").read_text("utf-8")
    assert re.findall(r'href="([^"]*)"', page) == [f"{name}/index.html" for name in names]
    written = [line[6:] for line in out.splitlines() if line.startswith("Wrote ")]
    assert [Path(name).relative_to(folder).as_posix() for name in written] == [
        "index.html", "table.csv", "runs.csv", *(f"{name}/index.html" for name in names),
    ]  # fmt: skip
    assert all(Path(name).is_file() for name in written)
    assert "--splits 0-1 --seeds 3,5" in page
    assert "--splits 0-1 --seeds 3,5" in (folder / names[2] / "index.html").read_text("utf-8")


def test_the_table_is_that_of_the_single_tables(four: tuple[Result, Path]) -> None:
    _, folder = four
    table = pd.read_csv(folder / "table.csv", index_col="method")
    every = pd.read_csv(folder / "runs.csv", index_col=["split", "seed", "method"])
    for method in ("AutoNormal", "AutoDelta"):
        own = [
            pd.read_csv(folder / f"split-{k}-seed-{s}" / "table.csv", index_col="method")
            for k in (0, 1)
            for s in (3, 5)
        ]
        scores = [single.loc[method, "log_score"] for single in own]
        assert_allclose(table.loc[method, "log_score"], np.mean(scores), rtol=1e-12)
        assert_allclose(every.xs(method, level="method")["log_score"], scores, rtol=1e-12)
    assert table["log_score_se"].isna().all()  # two splits
    assert len({round(float(score), 12) for score in every["log_score"]}) > 4  # seeds differ


def test_it_says_run_by_run_what_it_does_and_claims_no_rank_from_two_splits(
    four: tuple[Result, Path],
) -> None:
    out = four[0].out
    lines = out.splitlines()
    assert "Run 1 of 4: split 0, seed 3, 180 training and 20 held-out rows" in lines
    assert "Run 4 of 4: split 1, seed 5, 180 training and 20 held-out rows" in lines
    assert sum(line.startswith("Data:") for line in lines) == 1
    assert "moons: 2 methods in 4 runs (splits 0, 1; seeds 3, 5), 20 held-out rows" in out
    assert "No ranking: 2 splits give no standard error over splits, 3 do." in " ".join(out.split())


def test_one_run_of_several_is_the_same_as_that_run_alone(
    four: tuple[Result, Path], tmp_path: Path
) -> None:
    alone = tmp_path / "alone"
    command = (*MOONS, *METHODS, "--splits", "1", "--seed", "5", "--quiet", "--out", alone)
    with quick_files():
        code, _, err = run(*command)
    assert (code, err) == (0, "")
    assert {path.name for path in alone.iterdir()} == {
        "index.html", "table.csv", "verdicts.json", "auto-normal.nc", "auto-delta.nc",
    }  # fmt: skip
    own, other = (
        pd.read_csv(path / "table.csv", index_col="method").drop(columns="seconds")
        for path in (alone, four[1] / "split-1-seed-5")
    )
    pd.testing.assert_frame_equal(own, other, rtol=1e-6)


@pytest.mark.slow("processes of its own")
@pytest.mark.skipif(joblib.cpu_count() < 2, reason="two processes need two cores")
@pytest.mark.usefixtures("plainly_beside")
def test_runs_side_by_side_are_the_same(four: tuple[Result, Path], tmp_path: Path) -> None:
    code, out, err = run(
        *MOONS, *METHODS, "--splits", "0-1", "--seeds", "5", "--jobs", "2", "--out", tmp_path
    )
    assert (code, err) == (0, "")
    said = out.splitlines()
    for i in (1, 2):
        (first, *rest, last) = [line for line in said if line.startswith(f"Run {i} of 2: ")]
        assert first.endswith(f": split {i - 1}, seed 5, 180 training and 20 held-out rows")
        assert len(rest) == 2
        assert last.endswith(": Comparing ...")
    beside, alone = (pd.read_csv(folder / "runs.csv") for folder in (tmp_path, four[1]))
    alone = alone[alone["seed"] == 5].reset_index(drop=True)
    assert (beside["processes"] == 2).all()
    assert (alone["processes"] == 1).all()
    assert (beside["threads"] == 1).all()
    clock = ["seconds", "processes"]
    pd.testing.assert_frame_equal(
        beside.drop(columns=clock), alone.drop(columns=clock), check_exact=True
    )
    assert "--jobs 2" in (tmp_path / "split-1-seed-5" / "index.html").read_text("utf-8")


@pytest.mark.slow("processes of its own")
@pytest.mark.skipif(joblib.cpu_count() < 2, reason="two processes need two cores")
@pytest.mark.usefixtures("plain_pages", "files_in_memory")
def test_methods_side_by_side_are_the_same(tmp_path: Path) -> None:
    """On a linear model, whose trajectories are short also after so little warm-up.

    Only the processes write files: draws of this one are kept as they are.
    """
    command = ["compare", "--data", "diabetes", "--model", "linear-regression", "--steps", "30"]
    command += ["--methods", "auto-delta,nuts", "--warmup", "5"]
    command += ["--samples", "10", "--chains", "2"]
    alone = run(*command, "--jobs", "1", "--out", tmp_path / "alone")
    beside = run(*command, "--jobs", "2", "--out", tmp_path / "beside")
    assert (alone.code, beside.code, beside.err) == (0, 0, "")

    def fits_said(said: str) -> set[str]:
        lines = re.sub(r" *\d+\.\d s", " ? s", said).splitlines()
        return {line for line in lines if "(SVI" in line or "(NUTS" in line}

    assert fits_said(alone.out) == fits_said(beside.out)
    assert len(fits_said(alone.out)) == 2
    own, other = (
        pd.read_csv(tmp_path / name / "table.csv", index_col="method")
        for name in ("alone", "beside")
    )
    assert (own["processes"] == 1).all()
    assert (other["processes"] == 2).all()
    clock = ["seconds", "processes"]
    pd.testing.assert_frame_equal(own.drop(columns=clock), other.drop(columns=clock))
    for name in ("auto-delta", "nuts"):
        first, second = (
            arviz_io.load_netcdf(tmp_path / way / f"{name}.nc")["posterior/f"]
            for way in ("alone", "beside")
        )
        np.testing.assert_array_equal(first, second)


@pytest.fixture
def plain_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reports of single runs without figures, which take most of the time of so small fits."""
    monkeypatch.setattr("pyro_bnn.report.output.html.render", lambda *args: "a report")


@pytest.fixture
def bare_reports(plain_pages: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """And without the files of draws, which take most of the rest."""
    monkeypatch.setattr(report.Comparison, "write_draws", lambda *args: None)


def _diverges_at(monkeypatch: pytest.MonkeyPatch, *names: str, seed: int | None = None) -> None:
    """Engines of these methods diverge, with one seed or always."""
    make: Callable[..., dict[str, Any]] = make_engines

    @dataclass
    class Diverging:
        engine: Any
        guide: Any
        num_steps: int
        batch_size: int | None
        draw_counts = DrawCounts()

        def run(self, *args: Any, **options: Any) -> Any:
            if seed is None or options["seed"] == seed:
                raise DivergenceError("the loss is not finite at step 5")
            return self.engine.run(*args, **options)

    def make_with_bad_ones(*args: Any) -> dict[str, Any]:
        engines = make(*args)
        bad = [(name, engines[name]) for name in names]
        return engines | {n: Diverging(e, e.guide, e.num_steps, e.batch_size) for n, e in bad}

    monkeypatch.setattr("pyro_bnn.cli.methods.make_engines", make_with_bad_ones)


@pytest.mark.usefixtures("bare_reports")
def test_a_method_that_diverges_in_one_run_keeps_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _diverges_at(monkeypatch, "AutoNormal", seed=1)
    code, out, err = run(*MOONS, *METHODS, "--seeds", "0-2", "--quiet", "--out", tmp_path)
    assert code == 1
    assert err == ("pyro-bnn: split 0, seed 1: AutoNormal: the loss is not finite at step 5\n")
    table = pd.read_csv(tmp_path / "table.csv", index_col="method")
    assert table["runs"].to_dict() == {"AutoNormal": 2, "AutoDelta": 3}
    own = [
        pd.read_csv(tmp_path / f"split-0-seed-{s}" / "table.csv", index_col="method")
        for s in (0, 2)
    ]
    mean = np.mean([single.loc["AutoDelta", "log_score"] for single in own])
    assert_allclose(table.loc["AutoDelta", "log_score"], mean, rtol=1e-12)  # common runs alone
    text = " ".join(out.split())
    assert "AutoNormal has 2 of 3 runs (split 0, seed 1: the loss is not finite at step 5)." in text
    assert "± is the standard deviation over 2 seeds on the same rows" in text


@pytest.mark.usefixtures("bare_reports")
def test_a_run_in_which_all_diverge_is_lost_and_not_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _diverges_at(monkeypatch, "AutoNormal", "AutoDelta", seed=0)
    code, out, err = run(*MOONS, *METHODS, "--seeds", "0,1", "--out", tmp_path)
    assert code == 1
    assert err.startswith("pyro-bnn: split 0, seed 0: AutoNormal: ")
    assert "No comparison: AutoNormal: the loss is not finite at step 5; AutoDelta:" in out
    assert "AutoDelta has 1 of 2 runs" in out
    assert not (tmp_path / "split-0-seed-0").exists()
    page = (tmp_path / "index.html").read_text("utf-8")
    assert re.findall(r'href="([^"]*)"', page) == ["split-0-seed-1/index.html"]


@pytest.mark.usefixtures("bare_reports")
def test_where_every_run_is_lost_there_is_no_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _diverges_at(monkeypatch, "AutoDelta")
    code, _, err = run(*MOONS, "--methods", "auto-delta", "--seeds", "0,1", "--out", tmp_path)
    assert code == 1
    assert err.count("the loss is not finite at step 5") == 2
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("bare_reports")
def test_an_undefined_score_loses_one_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def undefined(*args: Any, seed: int, **options: Any) -> Any:
        if seed == 1:
            raise DataError("the scores of 'AutoDelta' hold 3 NaN of 20")
        return compare_all(*args, seed=seed, **options)

    monkeypatch.setattr(runs, "compare_all", undefined)
    code, out, err = run(
        *MOONS, "--methods", "auto-delta", "--seeds", "0,1", "--quiet", "--out", tmp_path
    )
    assert code == 1
    assert (
        err == "pyro-bnn: split 0, seed 1: AutoDelta: the scores of 'AutoDelta' hold 3 NaN of 20\n"
    )
    assert "AutoDelta has 1 of 2 runs" in out


@pytest.mark.usefixtures("bare_reports")
def test_a_run_whose_report_needs_more_memory_than_there_is_loses_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save: Any = report.Comparison.save

    def save_some(self: report.Comparison, *args: Any, **options: Any) -> Path:
        if self.seed == 0:
            raise MemoryError
        found: Path = save(self, *args, **options)
        return found

    monkeypatch.setattr(report.Comparison, "save", save_some)
    code, out, err = run(
        *MOONS, "--methods", "auto-delta", "--seeds", "0,1", "--jobs", "1", "--out", tmp_path
    )
    assert code == 1
    assert "No comparison: there is not enough memory: fewer rows" in out
    assert err.startswith("pyro-bnn: split 0, seed 0: AutoDelta: there is not enough memory")
    assert "AutoDelta has 1 of 2 runs" in out
    assert [path.name for path in tmp_path.glob("split-0-seed-0/fits/*")] == [
        "auto-delta.safetensors"
    ]


@pytest.mark.usefixtures("bare_reports", "plainly_beside")
def test_a_backend_of_joblib_does_the_runs_and_does_them_again_from_their_checkpoints(
    four: tuple[Result, Path], tmp_path: Path
) -> None:
    command = [*MOONS, *METHODS, "--seeds", "3", "--backend", "loky", "--jobs", "2", "--out"]
    own = ("--splits", "0-1", "--checkpoint", tmp_path / "saved")
    beside = run(*command, tmp_path / "beside", *own)
    assert (beside.code, beside.err) == (0, "")
    assert re.search(r"Run 2 of 2: AutoDelta +\d", beside.out)
    second, first = (pd.read_csv(folder / "runs.csv") for folder in (tmp_path / "beside", four[1]))
    first = first[first["seed"] == 3].reset_index(drop=True)
    clock = ["seconds", "processes"]
    pd.testing.assert_frame_equal(first.drop(columns=clock), second.drop(columns=clock))
    assert run(*command, tmp_path / "one").code == 0
    tables = [
        pd.read_csv(path / "table.csv").drop(columns=clock)
        for path in (tmp_path / "one", four[1] / "split-0-seed-3")
    ]
    pd.testing.assert_frame_equal(*tables)
    # a task that is begun again, as where its worker was lost, goes on from what there is
    plan = runs.RunPlan(
        methods={}, engines={}, choice=None, reference=None, progress=True,  # type: ignore[arg-type]
        say=str, command="", saves=Saves(checkpoint=tmp_path / "saved"), backend=nullcontext,
    ).again()  # fmt: skip
    assert (plan.backend, plan.progress, plan.saves.resume) == (None, False, True)
    assert plan.saves.checkpoint == tmp_path / "saved"
