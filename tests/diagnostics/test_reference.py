"""W1 against closed forms."""

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy import stats

from pyro_bnn.diagnostics.reference import reference_distance, w1
from pyro_bnn.errors import ShapeError


def test_w1_of_shifted_draws_is_the_shift() -> None:
    draws = np.random.default_rng(0).normal(size=(100, 3))
    shifts = np.array([0.0, 1.5, -2.0])
    assert_allclose(w1(draws, (draws + shifts)[::-1]), np.abs(shifts), atol=1e-12)


@pytest.mark.parametrize(("S", "T"), [(7, 7), (6, 9), (1, 5), (5, 4)])
def test_w1_matches_scipy_at_equal_and_unequal_sizes(S: int, T: int) -> None:
    rng = np.random.default_rng(1)
    a, b = rng.normal(size=(S, 4)), rng.normal(0.5, 2, size=(T, 4))
    expected = [stats.wasserstein_distance(a[:, m], b[:, m]) for m in range(4)]
    assert_allclose(w1(a, b), expected, rtol=1e-12)


def test_w1_of_scaled_draws_is_the_gap_of_sds_times_the_mean_absolute_value() -> None:
    draws = np.random.default_rng(2).normal(size=(1_000, 1))
    draws -= draws.mean(0)
    assert_allclose(w1(draws, 3 * draws), 2 * np.abs(draws).mean(0), rtol=1e-12)


def test_distance_of_another_sample_of_the_reference_is_its_floor() -> None:
    rng = np.random.default_rng(3)
    distances = [
        reference_distance(rng.normal(size=(400, 20, 1)), rng.normal(size=(4, 100, 20, 1)))
        for _ in range(50)
    ]
    gaps = np.array([distance.value - distance.floor for distance in distances])
    assert abs(gaps.mean()) < 5 * gaps.std(ddof=1) / np.sqrt(50)
    assert distances[0].num_draws == 200


def test_distance_of_a_shift_is_the_shift_in_sds_of_y() -> None:
    reference = np.random.default_rng(4).normal(size=(2, 500, 5, 1))
    f = reference[0] + 8.0
    distance = reference_distance(f, np.stack([reference[0], reference[0]]), scale=4.0)
    assert_allclose(distance.value, 2.0, rtol=1e-12)
    assert distance.floor == 0.0


def test_chains_that_disagree_raise_the_floor() -> None:
    reference = np.random.default_rng(5).normal(size=(2, 500, 5, 1))
    reference[1] += 3.0
    assert_allclose(reference_distance(reference[0], reference).floor, 3.0, rtol=0.05)


def test_one_chain_is_halved_in_time() -> None:
    reference = np.concatenate([np.zeros((1, 50, 2, 1)), np.ones((1, 50, 2, 1))], axis=1)
    assert reference_distance(reference[0], reference).floor == 1.0


def test_a_point_estimate_is_as_far_as_the_mean_absolute_deviation() -> None:
    reference = np.random.default_rng(6).normal(size=(2, 400, 3, 1))
    distance = reference_distance(np.zeros((1, 3, 1)), reference[:, :1].repeat(400, 1))
    assert_allclose(distance.value, np.abs(reference[:, :1]).mean(), rtol=1e-12)


def test_shapes_are_checked() -> None:
    with pytest.raises(ShapeError, match=r"a and b must have the same columns"):
        w1(np.zeros((5, 2)), np.zeros((5, 3)))
    with pytest.raises(ShapeError, match=r"f and reference must agree on points and outputs"):
        reference_distance(np.zeros((5, 2, 1)), np.zeros((2, 5, 3, 1)))
    with pytest.raises(ShapeError, match=r"the reference needs at least 2 draws to be halved"):
        reference_distance(np.zeros((5, 2, 1)), np.zeros((1, 1, 2, 1)))
    with pytest.raises(ShapeError, match=r"f must have shape \[S, N, F\]"):
        reference_distance(np.zeros((5, 2)), np.zeros((2, 5, 2, 1)))
