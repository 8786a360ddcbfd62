"""The test of symmetry against all tosses of a few coins, and against SciPy's distance."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from scipy import stats

from pyro_bnn.diagnostics import symmetry_test
from pyro_bnn.errors import ShapeError


@pytest.mark.parametrize("num", [1, 7, 10])
def test_p_values_are_those_of_all_ways_the_signs_may_fall(num: int) -> None:
    far = np.linspace(0.45, 0.05, num)
    samples = [0.5 + far * signs for signs in itertools.product([-1, 1], repeat=num)]
    found = np.array([symmetry_test(p) for p in samples])  # [2^n, 2]
    share = [(found[:, 0] >= distance).mean() for distance in found[:, 0]]
    np.testing.assert_allclose(found[:, 1], share, rtol=1e-12)


def test_the_distance_is_that_of_the_two_sample_test() -> None:
    generator = np.random.default_rng(0)
    ties = generator.integers(0, 9, 50) / 8
    for p in (generator.random(101), generator.beta(0.5, 0.4, 64), ties):
        expected = stats.ks_2samp(p, 1 - p).statistic
        np.testing.assert_allclose(symmetry_test(p)[0], expected, rtol=1e-9)


def test_a_u_is_symmetric_and_a_slope_is_not() -> None:
    generator = np.random.default_rng(1)
    assert symmetry_test(generator.beta(0.4, 0.4, 400))[1] > 0.01
    assert symmetry_test(generator.beta(1.5, 1.0, 400))[1] < 1e-4
    assert symmetry_test(np.full(9, 0.5)) == (0.0, 1.0)


@pytest.mark.slow("a second or more")
def test_the_level_is_kept_and_the_two_sample_table_would_not_keep_it() -> None:
    generator = np.random.default_rng(2)
    samples = generator.random((2_000, 100))
    ours = np.mean([symmetry_test(p)[1] < 0.05 for p in samples])
    theirs = np.mean([stats.ks_2samp(p, 1 - p).pvalue < 0.05 for p in samples])
    error = np.sqrt(0.05 * 0.95 / len(samples))
    assert ours < 0.05 + 4 * error  # at most: the distance takes steps
    assert theirs > 0.05 + 4 * error


@pytest.mark.parametrize("p", [np.zeros((2, 2)), np.array([]), np.array([0.2, 1.1])])
def test_what_is_no_probability_is_refused(p: np.ndarray) -> None:
    with pytest.raises(ShapeError, match=r"numbers in \[0, 1\], \[D\]; got shape"):
        symmetry_test(p)
