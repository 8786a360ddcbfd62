"""Runs that end by themselves: rounds, paired objectives, starts, and what is told of them."""

from __future__ import annotations

import math
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pyro.infer import autoguide
from torch import Tensor

from pyro_bnn import SVI, Ensemble, Interrupted, guides, likelihoods, models
from pyro_bnn.data import Dataset
from pyro_bnn.errors import BNNWarning, DivergenceError, OptionError
from pyro_bnn.infer.checkpoints.checkpoint import Checkpoint
from pyro_bnn.infer.inputs import new_guide
from pyro_bnn.infer.problem import Problem
from pyro_bnn.infer.steps import rounds
from pyro_bnn.infer.steps.rounds import ends_of_rounds, step_size_factor
from pyro_bnn.infer.svi import options
from pyro_bnn.infer.svi.paired import PairedObjective
from pyro_bnn.infer.svi.starts import Starts
from pyro_bnn.infer.svi.training import Training
from pyro_bnn.posterior import GuidePosterior, Posterior
from pyro_bnn.posterior.doubling import Doubling
from pyro_bnn.program.program import Program
from pyro_bnn.program.terms import Batch
from tests.kills import assert_same
from tests.oracle import LinearGaussian, linear_gaussian
from tests.saves import end_state

PROBLEM = linear_gaussian()
FAMILIES = {
    guides.AutoNormal: PROBLEM.mean_field_gap,
    guides.AutoMultivariateNormal: 0.0,
}


def elbo_of(problem: LinearGaussian, posterior: Posterior) -> float:
    """The ELBO of a Gaussian guide on the linear model, in closed form."""
    assert isinstance(posterior, GuidePosterior)
    guide: Any = posterior.guide
    with torch.no_grad():
        if isinstance(guide, guides.AutoMultivariateNormal):
            tril = guide.scale.unsqueeze(-1) * guide.scale_tril
            return problem.elbo(guide.loc, tril @ tril.mT)
        return problem.elbo(guide.loc, guide.scale.square().diag())


# Rounds


@pytest.mark.parametrize(
    ("num_steps", "ends"),
    [
        (10_000, (1_250, 2_500, 5_000, 10_000)),
        (2_000, (1_000, 2_000)),
        (1_999, (999, 1_999)),
        (200, (100, 200)),
        (199, (199,)),
        (1, (1,)),
    ],
)
def test_rounds_end_at_halves_of_halves(num_steps: int, ends: tuple[int, ...]) -> None:
    assert ends_of_rounds(num_steps) == ends


def test_the_step_size_falls_over_the_second_half_of_each_round() -> None:
    factors = [step_size_factor(step, (4, 8, 16)) for step in range(17)]
    falling = [1, 1, 1, 1, 1, 0.75, 0.5, 0.25]
    assert factors == [1, 1, 1, 0.5, 1, 1, 1, 0.5, *falling, 0]


# Paired objectives


def objective(problem: LinearGaussian, seed: int = 3) -> tuple[PairedObjective, Any]:
    program = Program(problem.model, problem.x, problem.y)
    guide = new_guide(guides.AutoNormal, program)
    program.prepare(guide)
    names = [f"guide.{name}" for name, _ in guide.named_parameters()]

    def at(values: Any, noise: Any, rows: Batch) -> Tensor:
        terms = program.elbo(guide, dict(zip(names, values, strict=True)), noise[0], rows)
        return terms.expected_log_likelihood - terms.kl

    paired = PairedObjective(
        at, guide.draw_noise, Batch(problem.x, problem.y.unsqueeze(-1)), seed=seed
    )
    return paired, guide


def snapshot(guide: Any, loc: Tensor, scale: Tensor) -> list[Tensor]:
    guide.move_to(loc)
    guide.set_sds(scale)
    return [value.detach().clone() for _, value in guide.named_parameters()]


def test_the_gain_between_two_snapshots_is_that_of_the_closed_form() -> None:
    paired, guide = objective(PROBLEM)
    sds = PROBLEM.mean_field_variance.sqrt()
    pairs = [(PROBLEM.mean - 0.3 * sds, 1.4 * sds), (PROBLEM.mean + 0.1 * sds, 0.9 * sds)]
    snapshots = [snapshot(guide, *pair) for pair in pairs]
    exact = [PROBLEM.elbo(loc, scale.square().diag()) for loc, scale in pairs]
    gain, error = paired.gain(snapshots[0], snapshots[1])
    assert 0 < error <= 0.2
    assert abs(gain - (exact[1] - exact[0])) < 5 * error
    back, _ = paired.gain(snapshots[1], snapshots[0])
    assert back == pytest.approx(-gain, rel=1e-9)
    assert paired.best(snapshots, 1) == [1]
    assert paired.best(snapshots, 2) == [1, 0]


@pytest.mark.slow("60 gains")
def test_of_a_large_table_a_gain_and_its_error_are_those_of_some_rows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A pair has 31 rows of 4,000; gains over the closed form, in their errors, are about 1."""
    monkeypatch.setattr("pyro_bnn.infer.svi.paired.PART", 31)
    problem = linear_gaussian(4_000)
    sds = problem.mean_field_variance.sqrt()
    pairs = [(problem.mean - 2 * sds, 1.4 * sds), (problem.mean + sds, 0.9 * sds)]
    exact = [problem.elbo(loc, scale.square().diag()) for loc, scale in pairs]
    scores = []
    for seed in range(60):
        paired, guide = objective(problem, seed)
        before, after = (snapshot(guide, *pair) for pair in pairs)
        gain, error = paired.gain(before, after, most=24)
        scores.append((gain - (exact[1] - exact[0])) / error)
    mean, square = np.mean(scores), np.mean(np.square(scores))
    assert abs(mean) < 4 / math.sqrt(60)
    assert 0.5 < square < 1.7  # 60 squares, each of 23 degrees of freedom: 0.9 +- 0.2


def test_parts_of_a_large_table_are_all_of_its_rows_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pyro_bnn.infer.svi.paired.PART", 62)
    x = torch.arange(2_000.0).unsqueeze(-1)
    made = PairedObjective(lambda *_: x.sum(), lambda n, g: torch.zeros(n, 1), Batch(x, x), seed=0)
    rows = torch.cat([made._part(k).x for k in range(32)]).squeeze(-1)
    assert torch.equal(rows.sort().values, x.squeeze(-1))
    assert not torch.equal(rows, x.squeeze(-1))
    assert torch.equal(made._part(0).x, made._part(32).x)
    assert {len(made._part(k).x) for k in range(32)} == {62, 63}


def begun(engine: SVI) -> Any:
    """A run of the linear problem before its first step."""
    data = PROBLEM.x, PROBLEM.y
    problem = Problem(PROBLEM.model, data, Dataset(*data), None, 0, "SVI")
    run: Any = engine.start(problem).make(Checkpoint(device=torch.device("cpu"), start=0.0))
    run.begin()
    return run


@pytest.mark.parametrize("is_compiled", [False, True])
def test_a_round_that_lost_is_taken_back_and_gone_again_in_smaller_steps(
    is_compiled: bool,
) -> None:
    run = begun(SVI(guides.AutoNormal, max_steps=1_600, loc_warmup=0, compile=is_compiled))
    told = iter([Doubling(-10.0, 0.1, 1_600)])
    assert run.rounds.ends == (800, 1_600)
    while run.position < 800:
        run.go()
    before = {name: value.clone() for name, value in run.values().items()}
    run._compared = lambda *_: next(told)
    while not run.is_done:
        run.go()
    for name, value in run.values().items():
        assert torch.equal(value, before[name])
    assert run.descent.peak == 0.5
    assert run.doubling_here(run.position).is_falling


def test_noise_that_costs_more_than_a_round_gains_halves_the_step_size() -> None:
    """On a linear model whose optimum is reached at once, all that falls is noise."""
    peaks = {}
    for num_steps in (2_000, 8_000):  # rounds of 1,000, 1,000, 2,000 and 4,000 steps
        run = begun(SVI(guides.AutoNormal, num_steps=num_steps, estimator="weight_sampling"))
        while not run.is_done:
            run.go()
        peaks[num_steps] = run.descent.peak
    assert peaks[2_000] == 1  # it still rose, by more than its noise
    assert peaks[8_000] < 1


def test_what_is_odd_in_the_noise_drops_out() -> None:
    rows = Batch(torch.zeros(3, 1, dtype=torch.float64), torch.zeros(3, 1, dtype=torch.float64))
    made = PairedObjective(
        lambda values, noise, rows: values[0] + 100 * values[0] * noise[0].sum(),
        lambda count, generator: torch.randn(count, 2, generator=generator, dtype=torch.float64),
        rows,
        seed=0,
    )
    gain, error = made.gain([torch.tensor(1.0)], [torch.tensor(3.5)])
    assert gain == pytest.approx(2.5, rel=1e-12)
    assert error < 1e-9


def test_rows_in_parts_count_by_their_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pyro_bnn.infer.svi.paired.ROWS", 4)
    x = torch.arange(10.0).unsqueeze(-1)

    def mean_of_rows(values: Any, noise: Any, rows: Batch) -> Tensor:
        mean: Tensor = values[0] * rows.x.mean()
        return mean

    made = PairedObjective(
        mean_of_rows,
        lambda n, g: torch.zeros(n, 1),
        Batch(x, x),
        seed=0,
        is_exact=True,
    )
    assert made.gain([torch.tensor(0.0)], [torch.tensor(2.0)]) == (9.0, 0.0)


# Runs


@pytest.mark.slow("fits")
@pytest.mark.parametrize("guide", FAMILIES)
@pytest.mark.parametrize("seed", range(3))
def test_a_default_fit_ends_within_half_a_nat_of_the_best_of_its_family(
    guide: Any, seed: int
) -> None:
    posterior = SVI(guide).run(PROBLEM.model, (PROBLEM.x, PROBLEM.y), seed=seed, progress=False)
    assert posterior.doubling is not None
    assert posterior.doubling.has_converged
    assert elbo_of(PROBLEM, posterior) > PROBLEM.log_evidence - FAMILIES[guide] - 0.5
    assert posterior.options["num_steps"] == posterior.doubling.num_steps < 64_000
    assert len(posterior.losses) == posterior.doubling.num_steps


@pytest.mark.parametrize("schedule", ["rounds", "constant"])
def test_a_fit_that_is_short_is_told_by_what_its_second_half_gained(schedule: Any) -> None:
    engine = SVI(guides.AutoNormal, num_steps=200, schedule=schedule)
    posterior = engine.run(PROBLEM.model, (PROBLEM.x, PROBLEM.y), progress=False)
    missing = PROBLEM.log_evidence - PROBLEM.mean_field_gap - elbo_of(PROBLEM, posterior)
    assert missing > 5
    assert posterior.doubling is not None
    assert posterior.doubling.is_rising
    assert posterior.doubling.num_steps == 200


@pytest.mark.slow("6,000 steps")
def test_the_gain_of_a_run_is_that_of_its_snapshots_in_closed_form() -> None:
    data = PROBLEM.x, PROBLEM.y
    ends = {}
    for num_steps in (2_000, 4_000):  # rounds of 1,000, 1,000 and 2,000 steps
        engine = SVI(guides.AutoNormal, num_steps=num_steps, loc_warmup=0, compile=False)
        ends[num_steps] = engine.run(PROBLEM.model, data, progress=False)
    whole = ends[4_000].doubling
    assert whole is not None
    gained = elbo_of(PROBLEM, ends[4_000]) - elbo_of(PROBLEM, ends[2_000])
    assert abs(whole.gain - gained) < max(5 * whole.error, 1e-6)


def test_a_point_has_a_gain_without_error() -> None:
    engine = SVI(guides.AutoDelta, num_steps=200)
    posterior = engine.run(PROBLEM.model, (PROBLEM.x, PROBLEM.y), progress=False)
    assert posterior.doubling is not None
    assert posterior.doubling.error == 0
    assert posterior.doubling.gain > 0


def test_a_run_of_a_cosine_and_one_of_few_steps_are_not_compared() -> None:
    data = PROBLEM.x, PROBLEM.y
    for engine in (
        SVI(guides.AutoNormal, num_steps=300, schedule="cosine"),
        SVI(guides.AutoNormal, num_steps=30),
    ):
        assert engine.run(PROBLEM.model, data, progress=False).doubling is None


@pytest.mark.slow("plain Pyro")
def test_a_guide_of_stock_pyro_is_compared_too() -> None:
    engine = SVI(autoguide.AutoNormal, num_steps=200)
    posterior = engine.run(PROBLEM.model, (PROBLEM.x, PROBLEM.y), progress=False)
    assert posterior.doubling is not None
    assert posterior.doubling.is_rising


def test_more_than_a_thousand_rows_are_taken_in_batches() -> None:
    x = torch.linspace(-1, 1, 1_025).unsqueeze(-1)
    model = models.MLP(1, hidden=(3,))
    few, many = (
        SVI(guides.AutoNormal, num_steps=3).run(model, (x[:n], x[:n, 0]), progress=False)
        for n in (1_024, 1_025)
    )
    assert few.options["batch_size"] is None
    assert many.options["batch_size"] == 256
    told = SVI(guides.AutoNormal, num_steps=3, batch_size=2_000).run(
        model, (x, x[:, 0]), progress=False
    )
    assert told.options["batch_size"] == 2_000


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"schedule": "cosine"}, 'schedule="cosine" falls to 0 at a number of steps'),
        ({"patience": 100}, "patience=100 is a rule of its own"),
        ({"num_steps": 100, "max_steps": 500}, "max_steps=500 would have no effect beside"),
        ({"num_steps": "automatic"}, "num_steps"),
        ({"max_steps": 0}, "max_steps"),
        ({"kl_warmup": 200_000}, "longer than the run of max_steps=64000"),
    ],
)
def test_options_of_the_length_that_do_not_fit_are_refused(
    given: dict[str, Any], text: str
) -> None:
    with pytest.raises(OptionError, match=text):
        SVI(guides.AutoNormal, **given)


# Starts


def test_the_better_half_of_the_starts_goes_on() -> None:
    """Start k is worth k, and a round adds a tenth; four of 2, two of 2, one of 4 steps."""
    starts = Starts(4, (2, 4, 8), lambda k: {"guide.a": torch.tensor(float(k))})
    assert starts.num_extra == 3 * 2 + 1 * 2
    starts.begin({"guide.a": torch.tensor(0.0)})
    values, position, visited = torch.tensor(0.0), 0, []
    losses: list[float] = []
    before: Any = None

    def ranked(snapshots: Any, count: int) -> list[int]:
        order = sorted(range(len(snapshots)), key=lambda k: -float(snapshots[k]["guide.a"]))
        return order[:count]

    while starts.are_several:
        visited.append((round(float(values), 1), position))
        losses = [*losses, 0.0, 0.0]
        starts.park({"guide.a": values + 0.1}, None, losses, before)
        following, is_last = starts.next(ranked)
        values, position = following.values["guide.a"], following.position
        losses, before = following.losses, following.before
    assert visited == [(0, 0), (1, 0), (2, 0), (3, 0), (3.1, 2), (2.1, 2)]
    assert is_last
    assert float(values) == pytest.approx(3.2)
    assert position == 4
    assert following.before is not None
    assert float(following.before["guide.a"]) == pytest.approx(3.1)


@pytest.fixture
def _short_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rounds of 8, 8, 16, 32 and 64 steps, of which four starts make the first."""
    monkeypatch.setattr(rounds, "FIRST_ROUND", 8)
    monkeypatch.setattr(options, "FIRST_ROUND", 8)


@pytest.mark.usefixtures("_short_rounds")
@pytest.mark.parametrize("guide", [guides.AutoNormal, guides.AutoLowRankMultivariateNormal])
def test_a_run_of_several_starts_goes_on_bit_for_bit(
    guide: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = SVI(guide, max_steps=128, loc_warmup=0)
    data = PROBLEM.x, PROBLEM.y

    def fit(folder: str, *, resume: bool = False) -> Posterior:
        return engine.run(
            PROBLEM.model, data, progress=False, checkpoint=tmp_path / folder, resume=resume
        )

    whole = fit("whole")
    assert whole.options["num_starts"] == 4
    assert whole.options["num_steps"] == 128  # it rose to the end
    go = Training.go
    for i, stop in enumerate((3, 13, 36, 45, 60)):

        def stopped(self: Training, stop: int = stop) -> None:
            go(self)
            if self.step == stop:
                monkeypatch.setattr(Training, "go", go)
                signal.raise_signal(signal.SIGINT)

        monkeypatch.setattr(Training, "go", stopped)
        with pytest.raises(Interrupted, match=f"stopped at step {stop} of"):
            fit("parts", resume=i > 0)
    parts = fit("parts", resume=True)
    assert_same(end_state(tmp_path / "parts"), end_state(tmp_path / "whole"))
    np.testing.assert_array_equal(parts.losses, whole.losses)
    assert parts.doubling == whole.doubling
    assert torch.equal(parts.unconstrained(7), whole.unconstrained(7))
    again = fit("parts", resume=True)  # of a run that has ended
    assert again.doubling == whole.doubling


@pytest.mark.usefixtures("_short_rounds")
def test_the_start_that_is_best_goes_on() -> None:
    """The first start is far away, the others are not: the fit is none of the first's."""
    calls = []

    def init_loc(site: Any) -> Tensor:
        calls.append(site["name"])
        far = 40.0 if len(calls) <= 2 else 0.0  # the two sites of the first start
        return torch.full(site["fn"].shape(), far, dtype=torch.float64)

    engine = SVI(
        lambda model: guides.AutoNormal(model, init_loc_fn=init_loc), max_steps=128, compile=False
    )
    posterior = engine.run(PROBLEM.model, (PROBLEM.x, PROBLEM.y), progress=False)
    assert isinstance(posterior, GuidePosterior)
    assert float(posterior.guide.centre().abs().max()) < 10


@pytest.mark.usefixtures("_short_rounds")
@pytest.mark.parametrize("lost", [{0}, {1, 3}, {0, 1, 2}])
def test_a_start_that_diverges_is_left_out(
    lost: set[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others make their steps, the run ends where it would, and its checkpoint says so."""
    calls = []

    def init_loc(site: Any) -> Tensor:
        calls.append(site["name"])  # two sites a start
        far = 1e200 if (len(calls) - 1) // 2 in lost else 0.0
        return torch.full(site["fn"].shape(), far, dtype=torch.float64)

    engine = SVI(
        lambda model: guides.AutoNormal(model, init_loc_fn=init_loc), max_steps=128, compile=False
    )
    data = PROBLEM.x, PROBLEM.y
    with pytest.warns(BNNWarning, match="one of 4 starts is left out: the loss") as told:
        posterior = engine.run(PROBLEM.model, data, progress=False)
    assert len([w for w in told if "is left out" in str(w.message)]) == len(lost)
    assert posterior.options["num_steps"] == 128
    assert len(posterior.losses) == 128
    assert np.isfinite(posterior.losses).all()
    go = Training.go

    def stopped(self: Training) -> None:
        go(self)
        if self.position == 40:  # of the start that is left
            monkeypatch.setattr(Training, "go", go)
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(Training, "go", stopped)
    calls.clear()
    with pytest.warns(BNNWarning), pytest.raises(Interrupted, match="stopped at step"):
        engine.run(PROBLEM.model, data, progress=False, checkpoint=tmp_path)
    again = engine.run(PROBLEM.model, data, progress=False, checkpoint=tmp_path, resume=True)
    assert torch.equal(again.unconstrained(7), posterior.unconstrained(7))
    np.testing.assert_array_equal(again.losses, posterior.losses)


def test_where_each_start_diverges_the_run_does() -> None:
    def init_loc(site: Any) -> Tensor:
        return torch.full(site["fn"].shape(), 1e200, dtype=torch.float64)

    engine = SVI(lambda model: guides.AutoNormal(model, init_loc_fn=init_loc), compile=False)
    with (
        pytest.warns(BNNWarning, match="is left out") as told,
        pytest.raises(DivergenceError, match="not finite at step 0"),
    ):
        engine.run(PROBLEM.model, (PROBLEM.x, PROBLEM.y), progress=False)
    assert len(told) == 3


@pytest.mark.slow("two fits")
def test_a_guide_that_is_given_has_one_start() -> None:
    """A second set-up would give it other parameters than those that are trained."""
    data = PROBLEM.x, PROBLEM.y
    for make in (lambda one: one, lambda one: lambda model: one):
        guide = guides.AutoNormal(PROBLEM.model)
        posterior = SVI(make(guide), max_steps=4_000, compile=False).run(
            PROBLEM.model, data, progress=False
        )
        assert isinstance(posterior, GuidePosterior)
        assert torch.equal(posterior.guide.centre(), guide.centre())
        assert elbo_of(PROBLEM, posterior) > PROBLEM.log_evidence - PROBLEM.mean_field_gap - 3


@pytest.mark.slow("three fits")
def test_members_are_told_by_the_one_that_has_most_to_gain() -> None:
    data = PROBLEM.x, PROBLEM.y
    engine = Ensemble(num_members=2, member=guides.AutoNormal, num_steps=400, compile=False)
    posterior = engine.run(PROBLEM.model, data, progress=False)
    first = SVI(guides.AutoNormal, num_steps=400, compile=False).run(
        PROBLEM.model, data, progress=False
    )
    assert posterior.doubling is not None
    assert first.doubling is not None
    assert posterior.doubling.gain >= first.doubling.gain > 0
    points = Ensemble(num_members=2, num_steps=400, compile=False)
    assert points.run(PROBLEM.model, data, progress=False).doubling is not None


def test_the_rows_of_randomised_targets_are_never_in_batches(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("pyro_bnn.infer.svi.paired.ROWS", 1_000)
    x = torch.linspace(-1, 1, 1_025, dtype=torch.float64).unsqueeze(-1)
    model = models.MLP(1, hidden=(3,), likelihood=likelihoods.Normal(0.1)).double()
    cases: tuple[tuple[Any, int | None], ...] = (("rto", None), ("independent", 256))
    for kind, size in cases:
        engine = Ensemble(num_members=2, kind=kind, num_steps=2, compile=False)
        dataset = Dataset(x, x[:, 0])
        problem = Problem(model, (x, x[:, 0]), dataset, None, 0, "Ensemble")
        run: Any = engine.start(problem).make(Checkpoint(device=torch.device("cpu"), start=0.0))
        assert run.batches.size == (size or len(x))
        assert run._judge._size == (1_025 if size is None else 1_000)


@pytest.mark.slow("a fit")
def test_a_run_that_was_stopped_within_a_round_is_not_judged_by_the_one_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    go = Training.go

    def stopped(self: Training) -> None:
        go(self)
        if self.step == 2_500:  # of rounds that end at 1,000, 2,000 and 4,000
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(Training, "go", stopped)
    engine = SVI(guides.AutoNormal, num_steps=4_000, compile=False)
    with pytest.raises(Interrupted) as caught:
        engine.run(PROBLEM.model, (PROBLEM.x, PROBLEM.y), progress=False)
    posterior = caught.value.posterior
    assert isinstance(posterior, Posterior)
    assert posterior.doubling is None


# What is told


def test_a_doubling_is_judged_by_gain_and_error() -> None:
    assert Doubling(0.4, 0.1, 8).has_converged
    assert Doubling(0.5, 0.1, 8).is_rising
    assert not Doubling(0.5, 0.3, 8).is_rising  # below two errors
    assert Doubling(-0.4, 0.1, 8).has_converged
    assert not Doubling(-3.0, 0.1, 8).has_converged
    assert not Doubling(1.0, 1.6, 8).is_judged
    assert not Doubling(1.0, 1.6, 8).has_converged
    assert Doubling(9.0, 1.6, 8).is_judged
    assert Doubling(float("nan"), 0.1, 8).is_rising


def test_a_doubling_is_in_the_file_and_in_the_tree(tmp_path: Path) -> None:
    engine = SVI(guides.AutoNormal, num_steps=200)
    posterior = engine.run(PROBLEM.model, (PROBLEM.x, PROBLEM.y), progress=False)
    posterior.save(tmp_path / "fit")
    assert Posterior.load(tmp_path / "fit", PROBLEM.model).doubling == posterior.doubling


def test_on_step_tells_the_gain() -> None:
    told: list[float | None] = []
    SVI(guides.AutoNormal, num_steps=400).run(
        PROBLEM.model,
        (PROBLEM.x, PROBLEM.y),
        progress=False,
        on_step=lambda at: told.append(at.gain),
    )
    assert told[:3] == [None] * 3
    assert told[3] is not None
    assert told[3] > 0
