"""Function-space convergence on chains whose state is known."""

import numpy as np
import pytest

from pyro_bnn.diagnostics.convergence import function_convergence
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
    f = np.random.default_rng(4).normal(size=(2, 100, 2, 1))
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


def test_shapes_are_checked() -> None:
    with pytest.raises(ShapeError, match=r"f must have shape \[C, S, N, F\]"):
        function_convergence(np.zeros((2, 100, 1)))
    with pytest.raises(ShapeError, match="R-hat needs at least 8 draws in each chain, got 7"):
        function_convergence(np.zeros((2, 7, 1, 1)))
