"""Function-space convergence on chains whose state is known."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from pyro_bnn import arviz_io
from pyro_bnn.diagnostics.convergence import ChainChecks, ebfmi, function_convergence
from pyro_bnn.errors import ShapeError


def test_independent_draws_pass_with_about_as_many_effective_draws() -> None:
    f = np.random.default_rng(0).normal(size=(4, 500, 3, 2))
    result = function_convergence(f)
    assert result.converged
    assert result.rhat.shape == (3, 2)
    assert 0.7 < result.median_ess / result.num_draws < 1.3
    assert result.worst_rhat == result.rhat.max()
    assert result.smallest_ess == result.ess.min()


def test_the_point_where_chains_disagree_is_found() -> None:
    f = np.random.default_rng(1).normal(size=(4, 500, 3, 2))
    f[0, :, 2, 1] += 5.0
    result = function_convergence(f)
    assert result.worst == (2, 1)
    assert result.worst_rhat > 1.05
    assert not result.converged
    assert result.median_rhat < 1.01


def test_one_chain_that_stands_still_passes() -> None:
    assert function_convergence(np.random.default_rng(5).normal(size=(1, 500, 2, 1))).converged


def test_a_drift_within_one_chain_is_found_by_the_split() -> None:
    f = np.random.default_rng(2).normal(size=(1, 500, 1, 1))
    f[0, :, 0, 0] += np.linspace(0, 5, 500)
    assert function_convergence(f).worst_rhat > 1.05


def test_autocorrelation_lowers_the_effective_sample_size_by_the_known_factor() -> None:
    rng = np.random.default_rng(3)
    phi = 0.8
    f = np.empty((4, 5_000, 1, 1))
    state = rng.normal(size=(4, 1, 1))
    for step in range(5_000):
        state = phi * state + np.sqrt(1 - phi**2) * rng.normal(size=state.shape)
        f[:, step] = state
    expected = 20_000 * (1 - phi) / (1 + phi)
    assert abs(function_convergence(f).smallest_ess / expected - 1) < 0.2


def test_a_function_that_is_constant_at_a_point_is_left_out() -> None:
    f = np.random.default_rng(4).normal(size=(4, 500, 2, 1))
    f[:, :, 0] = 1.5
    result = function_convergence(f)
    assert np.isnan(result.rhat[0, 0])
    assert result.worst == (1, 0)
    assert result.converged


def test_chains_stuck_apart_have_an_infinite_rhat() -> None:
    f = np.zeros((2, 100, 1, 1))
    f[1] = 1.0
    result = function_convergence(f)
    assert result.worst_rhat == np.inf
    assert result.smallest_ess == 2
    assert not result.converged


def test_one_chain_that_is_stuck_among_others_that_move_has_a_finite_rhat() -> None:
    f = np.random.default_rng(6).normal(size=(4, 100, 1, 1))
    f[0] = 0.0
    result = function_convergence(f)
    assert 1 < result.worst_rhat < np.inf
    assert 4 < result.smallest_ess < 400  # it is 4 where all four are stuck apart


def test_a_function_that_is_constant_everywhere_has_not_converged() -> None:
    result = function_convergence(np.zeros((2, 100, 1, 1)))
    assert np.isnan(result.worst_rhat)
    assert np.isnan(result.smallest_ess)
    assert not result.converged


def test_draws_worth_fewer_than_400_have_not_converged() -> None:
    f = np.random.default_rng(7).normal(size=(4, 300, 1, 1))
    few = function_convergence(f[:, :80])
    assert few.worst_rhat < 1.02
    assert few.smallest_ess < 400
    assert not few.converged
    enough = function_convergence(f)
    assert enough.converged
    assert not replace(enough, smallest_ess=399.0).converged
    assert not replace(enough, smallest_ess_tail=399.0).converged


def test_tails_that_mix_slower_than_the_bulk_are_found() -> None:
    # a scale that stays for some 200 draws: medians mix at once, extreme quantiles do not
    rng = np.random.default_rng(8)
    switches = rng.random(size=(4, 500, 1, 1)) < 0.005
    scale = np.where(switches.cumsum(1) % 2 == 0, 0.1, 1.0)
    f = scale * rng.normal(size=scale.shape)
    result = function_convergence(f)
    assert result.smallest_ess > 400
    assert result.smallest_ess_tail < 400
    assert not result.converged
    assert result.smallest_ess_tail == arviz_io.ess(f, kind="tail").min()


@pytest.mark.parametrize("num_points", [1, 3])
def test_draws_that_are_no_numbers_have_not_converged(num_points: int) -> None:
    f = np.random.default_rng(9).normal(size=(4, 500, num_points, 1))
    f[1, 100:150, 0] = np.nan
    result = function_convergence(f)
    assert (result.worst, result.worst_rhat) == ((0, 0), np.inf)
    assert result.smallest_ess == result.smallest_ess_tail == 0
    assert not result.converged


def test_infinite_values_that_stand_still_are_constant() -> None:
    assert np.isnan(function_convergence(np.full((4, 100, 1, 1), -np.inf)).worst_rhat)


# --- energies, and all checks together -----------------------------------------------------------


@pytest.mark.parametrize("correlation", [0.0, 0.5, 0.9])
def test_ebfmi_of_energies_of_known_autocorrelation(correlation: float) -> None:
    # E (E_s - E_{s-1})^2 = 2 (1 - rho) Var E
    rng = np.random.default_rng(9)
    energy = rng.normal(size=(4, 20_000))
    for step in range(1, 20_000):
        innovation = np.sqrt(1 - correlation**2) * energy[:, step]
        energy[:, step] = correlation * energy[:, step - 1] + innovation
    np.testing.assert_allclose(ebfmi(energy), 2 * (1 - correlation), rtol=0.08)


def test_ebfmi_is_that_of_arviz() -> None:
    from arviz_stats.base.array import array_stats

    stats: Any = array_stats
    energy = np.random.default_rng(10).gamma(3.0, size=(3, 50)).cumsum(1)
    expected = stats.bfmi(energy, chain_axis=0, draw_axis=1)
    np.testing.assert_allclose(ebfmi(energy), expected, rtol=1e-12)


def test_a_chain_whose_energy_stands_still_has_no_energy_to_move() -> None:
    assert ebfmi(np.full((1, 10), 3.0)).tolist() == [0.0]


def checks(**changes: Any) -> ChainChecks:
    """Of chains without a fault, but for the changes."""
    f = np.random.default_rng(11).normal(size=(4, 300, 3, 1))
    fine: dict[str, Any] = {
        "num_chains": 4,
        "quantities": {"f": function_convergence(f), "scale": function_convergence(f[:, :, :1])},
        "divergent": 0.0,
        "saturated": 0.0,
        "ebfmi": 1.0,
    }
    return ChainChecks(**{**fine, **changes})


def of_scale(draws: np.ndarray) -> dict[str, Any]:
    """Quantities of which the last is of other draws."""
    return {**checks().quantities, "scale": function_convergence(draws)}


DRIFT = (
    np.random.default_rng(12).normal(size=(4, 300, 1, 1)) + np.linspace(0, 1, 300)[:, None, None]
)
NAN = float("nan")


@pytest.mark.parametrize(
    ("changes", "can_judge"),
    [
        ({}, True),
        ({"divergent": NAN, "saturated": NAN, "ebfmi": NAN}, True),  # not of this sampler
        ({"divergent": 0.001, "saturated": 0.01, "ebfmi": 0.3}, True),
        ({"num_chains": 3}, False),
        ({"divergent": 0.0011}, False),
        ({"saturated": 0.011}, False),
        ({"ebfmi": 0.29}, False),
        ({"quantities": {}}, False),
        ({"quantities": of_scale(DRIFT)}, False),
        ({"quantities": of_scale(np.zeros((4, 300, 1, 1)))}, False),
    ],
    ids=str,
)
def test_one_defect_is_enough_not_to_judge_others(changes: Any, can_judge: bool) -> None:
    assert checks(**changes).can_judge is can_judge


def test_the_worst_of_all_quantities_is_shown() -> None:
    found = checks(quantities=of_scale(DRIFT))
    scale = found.quantities["scale"]
    assert found.worst_rhat == scale.worst_rhat > 1.01
    assert found.smallest_ess == scale.smallest_ess
    assert found.smallest_ess_tail == scale.smallest_ess_tail
    assert np.isnan(checks(quantities=of_scale(np.zeros((4, 300, 1, 1)))).worst_rhat)
    assert np.isnan(checks(quantities={}).smallest_ess)


def test_shapes_are_checked() -> None:
    with pytest.raises(ShapeError, match=r"f must have shape \[C, S, N, F\]"):
        function_convergence(np.zeros((2, 100, 1)))
    with pytest.raises(ShapeError, match="R-hat needs at least 8 draws in each chain, got 7"):
        function_convergence(np.zeros((2, 7, 1, 1)))
