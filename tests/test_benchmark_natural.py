"""The benchmark of natural gradients: one ELBO and one start for all, and when it is reached."""

from __future__ import annotations

import math

import pytest
import torch
from torch.testing import assert_close

import pyro_bnn as bnn
from benchmarks import natural
from benchmarks._elbo_runs import ELBO, Trajectory, watch
from pyro_bnn.program import Program
from tests.oracle import design, linear_gaussian

NOISE = 0.5


def test_the_elbo_is_the_closed_form_within_its_monte_carlo_error() -> None:
    """Of a linear regression with a prior of variance 1 at a Gaussian of means 0.3 and sds 0.2."""
    oracle = linear_gaussian()
    model = bnn.models.LinearRegression(
        3, prior=bnn.priors.Normal(1.0), likelihood=bnn.likelihoods.Normal(NOISE)
    ).double()
    program = Program(model, oracle.x, oracle.y)
    batch = program.batch(oracle.x, oracle.y)
    guide = bnn.guides.AutoNormal(model)
    guide.setup(oracle.x[:1])
    guide.to(torch.float64)
    program.prepare(guide)
    mean, sd = torch.full((4,), 0.3).double(), torch.full((4,), 0.2).double()
    guide.move_to(mean)
    guide.set_sds(sd)
    a, y = design(oracle.x), oracle.y.flatten()
    squares = (y - a @ mean).square() + (a.square() @ sd.square())  # E (y - f)^2
    fit = -0.5 * squares / NOISE**2 - math.log(NOISE * math.sqrt(2 * math.pi))
    kl = (-sd.log() + 0.5 * (sd.square() + mean.square()) - 0.5).sum()
    num_draws = 4_000
    found = ELBO(program, batch, num_draws)(guide)
    # log likelihoods of draws: their variance from the same noise, drawn apart
    f = (mean + sd * torch.randn(num_draws, 4, generator=torch.Generator().manual_seed(3))) @ a.T
    each = -0.5 * ((y - f) / NOISE).square().sum(-1)
    error = float(each.std()) / num_draws**0.5
    assert abs(found - float(fit.sum() - kl)) < 4 * error


def test_all_engines_start_at_the_same_gaussian() -> None:
    case, data = natural.CASES[0], bnn.data.load("breast-cancer").train
    train = bnn.Dataset(data.x[:40], data.y[:40])
    starts = [
        natural.run(case._replace(epochs=0), train, contender, contender.grid[0], seed=1).elbo
        for contender in natural.CONTENDERS
        if contender.name != "IVON"  # its sds are smaller by the prior's share
    ]
    assert len(starts) == 5
    for start in starts[1:]:
        assert_close(start, starts[0], rtol=1e-4, atol=0)


def test_runs_are_looked_at_before_the_first_epoch_and_after_each() -> None:
    data = bnn.data.load("breast-cancer").train
    engine = bnn.VOGN(num_steps=10**9, batch_size=16, schedule="constant")
    model = bnn.models.MLP(30, hidden=(3,), likelihood=bnn.likelihoods.Bernoulli())
    train = bnn.Dataset(data.x[:40], data.y[:40])
    seen = watch(engine, model, train, epochs=3, seed=0, num_draws=8)
    assert len(seen.elbo) == len(seen.seconds) == 4
    assert seen.seconds[0] == 0
    assert sorted(seen.seconds) == seen.seconds
    assert not seen.has_diverged


COURSE = Trajectory([-3.0, -1.0, -0.5, -0.7, -0.4], [0.0, 2.0, 3.0, 4.5, 6.0])


@pytest.mark.parametrize(
    ("target", "epochs"), [(-1.0, 1), (-0.45, 4), (-3.5, 0), (-0.1, None)], ids=str
)
def test_an_elbo_is_reached_at_the_first_look_above_it(target: float, epochs: int | None) -> None:
    assert natural.reached(COURSE, target) == epochs


def test_options_are_chosen_by_the_near_elbo_then_the_far_one_then_the_end() -> None:
    targets = [-1.0, -0.45]
    near = Trajectory([-9.0, -9.0, -0.4], [0.0, 1.0, 2.0])
    far = Trajectory([-1.0, -0.6, -0.6], [0.0, 1.0, 2.0])
    neither = Trajectory([-5.0, -4.0, -3.0], [0.0, 1.0, 2.0])
    worse = Trajectory([-5.0, -4.0, -3.5], [0.0, 1.0, 2.0])
    broken = Trajectory([-5.0], [0.0], has_diverged=True)
    runs = [broken, worse, far, neither, near]
    ranked = sorted(runs, key=lambda seen: natural.merit(seen, targets))
    assert ranked == [near, far, neither, worse, broken]


def test_the_time_of_a_step_leaves_out_the_first_epoch() -> None:
    assert COURSE.step_seconds(2) == [0.5, 0.75, 0.75]


def test_epochs_and_seconds_of_seeds() -> None:
    found = natural.summary(
        [COURSE, Trajectory([-3.0], [0.0], has_diverged=True)], [-1.0, -0.45], 2
    )
    assert found["epochs"] == [[1, None], [4, None]]
    assert found["seconds_to"] == [[2.0, None], [6.0, None]]
    assert (found["seconds"], found["diverged"], found["steps"]) == (0.75, 1, 2)
    assert found["elbo"] == [-3.0, -1.0, -0.5, -0.7, -0.4]
