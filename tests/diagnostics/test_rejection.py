"""Uncertainty of classes and accuracy-rejection curves against sums written out."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy import stats

from pyro_bnn.diagnostics import class_uncertainty, rejection_curve
from pyro_bnn.errors import DataError, ShapeError


def test_entropy_is_expected_entropy_plus_the_mean_divergence_of_the_draws() -> None:
    probs = np.random.default_rng(0).dirichlet(np.full(4, 0.3), size=(30, 20))  # [S, N, C]
    found = class_uncertainty(probs)
    mixture = np.broadcast_to(probs.mean(0), probs.shape)
    assert_allclose(found.entropy, stats.entropy(probs.mean(0), axis=-1))
    assert_allclose(found.expected_entropy, stats.entropy(probs, axis=-1).mean(0))
    assert_allclose(found.mutual_information, stats.entropy(probs, mixture, axis=-1).mean(0))
    total = found.expected_entropy + found.mutual_information
    assert_allclose(found.entropy, total, rtol=0, atol=1e-12)


def test_draws_that_agree_have_no_epistemic_uncertainty() -> None:
    one = np.random.default_rng(0).dirichlet(np.ones(5), size=(1, 200))
    found = class_uncertainty(np.tile(one, (7, 1, 1)))
    assert (found.mutual_information == 0).all()  # rounding would put rows in an order


def test_a_curve_by_hand() -> None:
    curve = rejection_curve(np.array([0.4, 0.1, 0.3, 0.2]), np.array([False, True, False, True]))
    assert_allclose(curve.retained, [0.25, 0.5, 0.75, 1.0])
    assert_allclose(curve.accuracy, [1, 1, 2 / 3, 1 / 2])
    assert_allclose((curve.area, curve.best, curve.random), (19 / 24, 19 / 24, 0.5))
    assert curve.gain == 1


def test_ties_are_the_mean_over_all_orders() -> None:
    uncertainty = np.array([0.0, 1.0, 1.0, 1.0, 2.0])
    correct = np.array([True, False, True, True, False])
    orders = [[0, *middle, 4] for middle in itertools.permutations([1, 2, 3])]
    means = np.mean([correct[order].cumsum() / np.arange(1, 6) for order in orders], axis=0)
    assert_allclose(rejection_curve(uncertainty, correct).accuracy, means)


def test_an_uncertainty_that_knows_nothing_gains_nothing() -> None:
    correct = np.random.default_rng(0).uniform(size=50) < 0.8
    curve = rejection_curve(np.zeros(50), correct)
    assert_allclose(curve.accuracy, correct.mean())
    assert curve.gain == pytest.approx(0, abs=1e-12)


def test_where_all_rows_are_right_there_is_nothing_to_gain() -> None:
    curve = rejection_curve(np.arange(3.0), np.ones(3, dtype=bool))
    assert (curve.area, curve.random, curve.best) == (1.0, 1.0, 1.0)
    assert np.isnan(curve.gain)


def test_shapes_that_differ_are_refused() -> None:
    with pytest.raises(ShapeError, match=r"correct must have shape \[3\] to match uncertainty"):
        rejection_curve(np.zeros(3), np.ones((3, 1), dtype=bool))
    with pytest.raises(ShapeError, match=r"probs must have shape \[S, N, C\]"):
        class_uncertainty(np.ones((3, 2)))


def test_other_values_are_refused() -> None:
    with pytest.raises(DataError, match="correct holds truth values"):
        rejection_curve(np.zeros(3), np.array([0, 2, 1]))
    for value in (-0.1, 1.1, np.nan):
        with pytest.raises(DataError, match=r"outside \[0, 1\]: pass probabilities, not logits"):
            class_uncertainty(np.full((2, 3, 2), value))
