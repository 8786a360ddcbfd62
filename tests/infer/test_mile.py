"""MILE: members at their optimum, and what chains around them are."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from pyro_bnn.diagnostics import function_convergence, rhat_within
from pyro_bnn.errors import DataError, OptionError, ShapeError
from pyro_bnn.infer import MILE
from pyro_bnn.infer.mcmc import members
from tests.infer.chains import all_draws
from tests.infer.scores import moment_scores
from tests.oracle import LinearGaussian, linear_gaussian


def descended(starts: Tensor, best: Tensor) -> Tensor:
    """From starts to 0 in 0.5 |z|^2; the held-out rows like z = best."""

    def held_out(z: Tensor) -> Tensor:
        return -(z - best).square().sum(-1)

    return members._descend(starts, lambda z: z.clone(), held_out, 0.01, progress=False)


def test_members_go_to_their_optimum_and_stay_where_held_out_rows_were_likeliest() -> None:
    """The first is best at the optimum, the second on the way to it, the third at its start."""
    starts = torch.tensor([[1.0, 1.0], [1.0, 1.0], [-1.0, -1.0]], dtype=torch.float64)
    best = torch.tensor([[0.0, 0.0], [0.4, 0.4], [-2.0, -2.0]], dtype=torch.float64)
    found = descended(starts, best)
    torch.testing.assert_close(found[0], best[0], rtol=0, atol=5e-3)
    torch.testing.assert_close(found[1], best[1], rtol=0, atol=0.06)  # a look every 10 steps
    torch.testing.assert_close(found[2], starts[2], rtol=0, atol=0)


def test_a_member_that_is_not_finite_stays_where_it_was() -> None:
    starts = torch.tensor([[1.0, 1.0], [torch.nan, 0.0]], dtype=torch.float64)
    found = descended(starts, torch.zeros(2, 2).double())
    assert found[0].norm() < 0.01
    assert found[1, 1] == 0


@pytest.mark.slow("samples chains")
@pytest.mark.usefixtures("all_apart")
def test_members_of_one_mode_draw_from_its_posterior(oracle: LinearGaussian) -> None:
    """Of a linear-Gaussian model there is one mode: R-hats agree, and moments are exact."""
    mile = MILE(
        num_members=96,  # side by side they cost little, draws one after another much
        member_learning_rate=0.1,
        warmup_steps=60,
        num_samples=50,
        num_steps=16,
        energy_variance=1e-6,
        compile=True,
    )
    run = mile.run(oracle.model, (oracle.x, oracle.y), progress=False)
    assert (run.method, run.num_chains, run.options["num_members"]) == ("MILE", 96, 96)
    assert moment_scores(all_draws(run), oracle.mean, oracle.covariance).max() < 4.5
    f = np.asarray(run.function_draws(oracle.x, run.num_stored_draws, group_by_chain=True))
    assert function_convergence(f).worst_rhat < 1.05
    assert not MILE.is_exact


def test_r_hat_within_chains_does_not_see_how_far_they_are_apart() -> None:
    f = np.random.default_rng(0).normal(size=(4, 400, 2, 1))
    apart = f + 10 * np.arange(4)[:, None, None, None]
    assert rhat_within(apart) == pytest.approx(rhat_within(f), abs=1e-12)
    # quarters of a normal, of variance 0.140 within and 0.860 * 8/7 between the 8 halves
    assert function_convergence(apart).worst_rhat == pytest.approx(2.835, rel=0.01)
    drifting = f + 3 * np.linspace(0, 1, 400)[:, None, None]
    assert rhat_within(drifting) > 1.2
    alone = [function_convergence(f[c : c + 1]).worst_rhat for c in range(4)]
    assert rhat_within(f) == pytest.approx(max(alone), abs=1e-12)
    with pytest.raises(ShapeError, match="at least 8 draws"):
        rhat_within(f[:, :5])


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"num_members": 0}, "num_members is an integer of at least 1, not 0"),
        ({"member_learning_rate": 0}, "member_learning_rate is a positive number, not 0"),
        ({"energy_variance": -1.0}, "energy_variance is a positive number, not -1.0"),
        ({"integrator": "euler"}, 'integrator is "leapfrog" or "minimal_norm"'),
    ],
)
def test_bad_options_are_refused(options: dict[str, Any], text: str) -> None:
    with pytest.raises(OptionError) as error:
        MILE(**options)
    assert text in str(error.value)


def test_few_rows_are_refused() -> None:
    oracle = linear_gaussian()
    with pytest.raises(DataError, match="at least ten are needed, not 9"):
        MILE().run(oracle.model, (oracle.x[:9], oracle.y[:9]), progress=False)
