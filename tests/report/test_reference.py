"""A reference that is looked for: the first that passes, the best that does not, what is said."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from torch import Tensor

import pyro_bnn as bnn
from pyro_bnn.data import Split, from_arrays
from pyro_bnn.diagnostics.convergence import RHAT_THRESHOLD, ChainChecks, function_convergence
from pyro_bnn.errors import DataError, DivergenceError, ModelError, OptionError
from pyro_bnn.infer import MAMS, MCLMC, NUTS
from pyro_bnn.infer.checkpoints.interrupts import Interrupted
from pyro_bnn.infer.engine import Engine, Start
from pyro_bnn.infer.problem import Problem
from pyro_bnn.models import MLP, LinearRegression
from pyro_bnn.plotting.numbers import percent
from pyro_bnn.posterior.draws_posterior import DrawsPosterior
from pyro_bnn.posterior.posterior import Posterior
from pyro_bnn.report import account, compare, compare_files, reference
from pyro_bnn.report.evaluation.fit_checks import FitChecks
from pyro_bnn.report.ladder.reference import times_as_long
from pyro_bnn.report.ladder.rungs import BEFORE, PRIOR, RUNGS, Rung, climb
from pyro_bnn.report.verdicts.reference_verdicts import CLIMB

SHORT = NUTS(warmup_steps=50, num_samples=16, compile=True)  # ESS below a fourth of 400
HALF = replace(SHORT, num_samples=60)
ENOUGH = replace(SHORT, num_samples=500)
POOR = replace(SHORT, warmup_steps=1, num_samples=10, max_tree_depth=1)


@pytest.fixture
def rows() -> Split:
    rng = np.random.default_rng(0)
    x = rng.uniform(-1, 1, size=(40, 1))
    return from_arrays(x, 2 * x[:, 0] + 0.3 * rng.normal(size=40))


@pytest.fixture
def on_rungs(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Puts other rungs in place of the ladder."""

    def put(*rungs: Rung) -> None:
        monkeypatch.setattr("pyro_bnn.report.ladder.reference.climb", lambda: iter(rungs))

    return put


@dataclass(frozen=True, kw_only=True)
class Breaking(Engine[DrawsPosterior]):
    """An engine that finds no starting point, or is stopped by Ctrl-C."""

    interrupted: bool = False
    unforeseen: bool = False

    def start(self, problem: Problem) -> Start:
        if self.unforeseen:
            raise RuntimeError("out of memory")
        if self.interrupted:
            raise Interrupted("stopped")
        raise DivergenceError("no starting point of finite density")


def two_modes(x: Tensor, y: Tensor | None = None) -> Tensor:
    """A slope that is known up to its sign: chains of one sign never meet those of the other."""
    slope = pyro.sample("slope", dist.Normal(0.0, 1.0))
    f = pyro.deterministic("f", slope * x)  # [N, 1]
    with pyro.plate("data", len(x)):
        drawn: Tensor = pyro.sample("y", dist.Normal(f.square(), 0.05).to_event(1), obs=y)
    return drawn


def found(posterior: Posterior) -> Any:
    said = account(posterior)
    assert said is not None
    return said


@pytest.mark.slow("the default chains")
def test_a_small_net_passes_on_the_first_rung(rows: Split) -> None:
    lines: list[str] = []
    model = MLP(1, hidden=(8,), activation="tanh")
    posterior = reference(model, rows, progress=False, say=lines.append)
    said = found(posterior)
    assert (said.passed, said.reached, said.ended, said.agreement) == (True, 0, "it passed", None)
    assert [one.name for one in said.tried] == [RUNGS[0].name]
    assert lines == [f"Reference, rung 1: {said.tried[0].words}"]
    assert "passed the checks of a reference" in lines[0]
    assert said.seconds >= said.tried[0].seconds > 0
    assert bnn.reference is reference


def test_a_rung_that_fails_by_its_draws_is_followed_by_one_that_has_enough(
    rows: Split, on_rungs: Any
) -> None:
    on_rungs(Rung(engine=SHORT), Rung(engine=ENOUGH, start=BEFORE), Rung(engine=Breaking()))
    posterior = reference(LinearRegression(1), rows, progress=False)
    said = found(posterior)
    assert (said.passed, said.reached, len(said.tried)) == (True, 1, 2)
    assert any("ESS" in why and "below 400" in why for why in said.tried[0].failed)
    assert said.tried[1].start == "the draws of rung 1"
    assert posterior.options["num_samples"] == 500
    again = reference(LinearRegression(1), rows, progress=False)
    assert torch.equal(again.stored, posterior.stored)  # all by the seed


def test_chains_that_lack_only_draws_get_them_before_another_engine(
    rows: Split, on_rungs: Any
) -> None:
    on_rungs(Rung(engine=HALF), Rung(engine=Breaking()))
    said = found(reference(LinearRegression(1), rows, progress=False))
    assert (said.passed, said.reached) == (True, len(said.tried) - 1)
    for before, after in itertools.pairwise(said.tried):
        assert "R-hat" in str(before.failed) or "ESS" in str(before.failed)
        assert after.name.startswith("NUTS:compile=True:num_samples=")
    assert said.tried[1].start == "the draws of rung 1"


@pytest.mark.parametrize(
    ("ess", "tail", "saturated", "times"),
    [(99, 500, 0.0, 1), (100, 500, 0.0, 6), (500, 200, 0.0, 3), (900, 900, 0.0, 2),
     (200, 200, 0.5, 1), (float("nan"), 500, 0.0, 1)],
)  # fmt: skip
def test_how_many_draws_chains_lack(ess: float, tail: float, saturated: float, times: int) -> None:
    draws = np.random.default_rng(0).normal(size=(4, 50, 1, 1))
    f = replace(function_convergence(draws), smallest_ess=ess, smallest_ess_tail=tail)
    sampling = ChainChecks(
        num_chains=4, quantities={"f": f}, divergent=0.0, saturated=saturated, ebfmi=1.0
    )
    checks = FitChecks(
        trend=None, losses=np.zeros(0), convergence=f, chains=None, sampling=sampling,
        num_divergent=0, sampler_bias=np.nan, rhat_within=np.nan, notes=(),
    )  # fmt: skip
    assert times_as_long(checks) == times  # 1.5 times 400 over what there is, at least twice
    assert times_as_long(replace(checks, sampling=None)) == 1


def test_chains_that_cannot_agree_are_kept_and_what_they_share_is_said(on_rungs: Any) -> None:
    x = torch.linspace(0.5, 1.5, 20).unsqueeze(-1)
    data = x, x[:, 0].square()  # the slope is 1 or -1
    engine = replace(ENOUGH, num_chains=8)
    on_rungs(Rung(engine=engine), Rung(engine=engine, start=BEFORE))
    posterior = reference(two_modes, data, progress=False)
    slopes = posterior.sample(4_000, group_by_chain=True)["slope"].mean(1)
    assert {round(float(slope)) for slope in slopes} == {-1, 1}  # the seed has chains in both
    said = found(posterior)
    assert not said.passed
    assert said.ended == "the ladder has no further rung"
    failed = "; ".join(said.tried[said.reached].failed)
    assert "R-hat" in failed
    assert f"of f at the worst test row, above {RHAT_THRESHOLD}" in failed
    assert said.agreement.between > 0.99
    assert said.agreement.rhat["f"] > 1.2
    assert said.agreement.rhat["log likelihood"] < 1.02  # the modes are copies
    assert abs(said.agreement.gain) < 0.01
    words = str(said)
    assert f"None passed: rung {said.reached + 1} is taken, whose R-hat is smallest" in words
    share = percent(said.agreement.between, 0)
    assert f"{share} of the variance of f at the median row is between chains" in words
    assert "a training row above the mean of single chains" in words


def test_the_bound_of_time_ends_the_climb_after_the_first_rung(rows: Split) -> None:
    posterior = reference(MLP(1, hidden=(3,)), rows, seconds=1e-3, progress=False)
    said = found(posterior)
    assert len(said.tried) == 1
    assert posterior.num_stored_draws >= 4 * 50
    if not said.passed:
        assert said.ended.startswith("the next, MAMS:")
        assert ", would take about " in said.ended
        assert said.ended.endswith(" 0 s were left")


def test_a_run_is_cut_at_the_bound_and_its_draws_are_kept(rows: Split, on_rungs: Any) -> None:
    on_rungs(Rung(engine=replace(ENOUGH, num_samples=100_000)))
    posterior = reference(LinearRegression(1), rows, seconds=0.2, progress=False)
    said = found(posterior)
    assert said.tried[0].was_cut
    assert "ended by the bound of time" in str(said)
    assert 50 <= posterior.num_stored_draws // 4 < 100_000


def test_a_rung_that_raises_is_one_rung_less(rows: Split, on_rungs: Any) -> None:
    on_rungs(Rung(engine=Breaking()), Rung(engine=ENOUGH, start=BEFORE))
    said = found(reference(LinearRegression(1), rows, progress=False))
    assert (said.passed, said.reached) == (True, 1)
    assert said.tried[0].failed == ("DivergenceError: no starting point of finite density",)
    assert said.tried[1].start == PRIOR  # there are no draws before it


def test_so_is_a_start_that_raises(rows: Split, on_rungs: Any) -> None:
    on_rungs(Rung(engine=ENOUGH, start=Breaking()), Rung(engine=ENOUGH))
    said = found(reference(LinearRegression(1), rows, progress=False))
    assert said.tried[0].start == "Breaking"
    assert (said.passed, said.reached) == (True, 1)


def test_draws_outlive_any_error_of_a_later_rung(rows: Split, on_rungs: Any) -> None:
    breaking = Rung(engine=Breaking(unforeseen=True))
    on_rungs(Rung(engine=SHORT), *[breaking] * 9)
    posterior = reference(LinearRegression(1), rows, progress=False)
    said = found(posterior)
    assert (said.passed, said.reached, said.ended) == (False, 0, "the last one has no draws")
    assert said.tried[1].failed == ("RuntimeError: out of memory",)
    assert len(said.tried) == len(RUNGS)  # and not again and again
    on_rungs(breaking)
    with pytest.raises(RuntimeError, match="out of memory"):
        reference(LinearRegression(1), rows, progress=False)


def test_without_any_draws_it_is_refused_with_every_reason(rows: Split, on_rungs: Any) -> None:
    on_rungs(Rung(engine=Breaking()))
    with pytest.raises(DivergenceError, match="no rung of the ladder has draws: Breaking: Diverg"):
        reference(LinearRegression(1), rows, progress=False)


def test_a_model_that_no_engine_takes_gets_its_own_error(rows: Split) -> None:
    def without_f(x: Tensor, y: Tensor | None = None) -> Tensor:
        drawn: Tensor = pyro.sample("y", dist.Normal(x, 1.0).to_event(2), obs=y)
        return drawn

    with pytest.raises(ModelError):
        reference(without_f, rows, progress=False)


def test_a_worse_rung_does_not_replace_a_better_one(rows: Split, on_rungs: Any) -> None:
    on_rungs(Rung(engine=SHORT), Rung(engine=POOR))
    posterior = reference(LinearRegression(1), rows, progress=False)
    said = found(posterior)
    assert (said.passed, said.reached, len(said.tried)) == (False, 0, 2)
    assert posterior.options["num_samples"] == SHORT.num_samples


def test_ctrl_c_hands_back_the_best_so_far(rows: Split, on_rungs: Any) -> None:
    on_rungs(Rung(engine=SHORT), Rung(engine=Breaking(interrupted=True)))
    with pytest.raises(Interrupted) as stopped:
        reference(LinearRegression(1), rows, progress=False)
    assert isinstance(stopped.value.posterior, DrawsPosterior)
    assert stopped.value.posterior.options["num_samples"] == SHORT.num_samples


def test_rungs_that_were_done_are_not_run_again(rows: Split, on_rungs: Any, tmp_path: Path) -> None:
    on_rungs(Rung(engine=SHORT), Rung(engine=ENOUGH, start=BEFORE))
    first = reference(LinearRegression(1), rows, progress=False, checkpoint=tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"rung-1", "rung-2"}
    again = reference(LinearRegression(1), rows, progress=False, checkpoint=tmp_path, resume=True)
    assert torch.equal(first.stored, again.stored)
    with pytest.raises(OptionError, match="holds a checkpoint already"):
        reference(LinearRegression(1), rows, progress=False, checkpoint=tmp_path)


def test_no_sampler_with_a_bias_and_only_longer_chains_are_on_the_ladder() -> None:
    rungs: Iterator[Rung] = climb()
    first = [next(rungs) for _ in range(len(RUNGS) + 3)]
    assert tuple(first[: len(RUNGS)]) == RUNGS
    assert all(type(rung.engine).is_exact for rung in first)
    *_, one, two = first
    assert two.num_draws == 2 * one.num_draws
    assert two.start == BEFORE
    assert Rung(engine=NUTS()).name == "NUTS"
    assert Rung(engine=MAMS(num_samples=5, target_accept=0.9)).name == (
        "MAMS:num_samples=5:target_accept=0.9"
    )
    assert not MCLMC.is_exact


@pytest.mark.parametrize("seconds", [0, -1.0, float("nan"), "long"])
def test_seconds_are_positive(rows: Split, seconds: Any) -> None:
    with pytest.raises(OptionError, match="seconds is a positive number"):
        reference(LinearRegression(1), rows, seconds=seconds)


def test_other_data_are_refused_as_by_an_engine() -> None:
    with pytest.raises(DataError, match=r"data is a pyro_bnn.data.Dataset"):
        reference(LinearRegression(1), 3)  # type: ignore[arg-type]


@pytest.mark.slow("a comparison, saved and read")
def test_the_account_is_a_verdict_of_reports_and_of_those_made_from_files(
    rows: Split, on_rungs: Any, tmp_path: Path
) -> None:
    on_rungs(Rung(engine=SHORT))
    model = LinearRegression(1)
    failing = reference(model, rows, progress=False)
    on_rungs(Rung(engine=ENOUGH))
    passing = reference(model, rows, progress=False)
    kept = Posterior.load(_saved(failing, tmp_path / "fit.safetensors"), model)
    assert account(kept) == account(failing)
    for posterior in (failing, passing):
        comparison = compare({"NUTS": posterior}, rows, reference="NUTS")
        comparison.save(tmp_path / "report")
        files = {"NUTS": tmp_path / "report" / "nuts.nc"}
        for one in (comparison, compare_files(files, reference="NUTS")):
            (said,) = (finding for finding in one.findings if finding.kind == CLIMB)
            assert said.text.startswith("The reference NUTS was looked for in ")
            assert said.is_warning is (posterior is failing)
            assert said.methods == ("NUTS",)
            assert ("None passed" in said.text) is (posterior is failing)
    plain = compare({"NUTS": ENOUGH.run(model, rows.train, progress=False)}, rows, reference="NUTS")
    assert not [finding for finding in plain.findings if finding.kind == CLIMB]


def _saved(posterior: Posterior, path: Path) -> Path:
    posterior.save(path)
    return path
