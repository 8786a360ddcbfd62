"""Agreement and total variation: by hand, and against SciPy."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.spatial.distance import cityblock

from pyro_bnn.diagnostics import class_agreement, class_total_variation
from pyro_bnn.errors import ShapeError

RNG = np.random.default_rng(0)
P, R = RNG.dirichlet(np.ones(4), 50), RNG.dirichlet(np.ones(4), 50)


def test_total_variation_is_half_the_distance_of_blocks() -> None:
    expected = [cityblock(p, r) / 2 for p, r in zip(P, R, strict=True)]
    assert_allclose(class_total_variation(P, R), expected)
    assert_allclose(class_total_variation(P, P), 0)
    apart = np.eye(2)
    assert_allclose(class_total_variation(apart, apart[::-1]), 1)


def test_agreement_counts_equal_classes() -> None:
    expected = [float(list(p).index(max(p)) == list(r).index(max(r))) for p, r in zip(P, R)]  # noqa: B905
    assert class_agreement(P, R).tolist() == expected


def test_other_rows_are_refused() -> None:
    with pytest.raises(ShapeError, match="give both the same rows and classes"):
        class_agreement(P, R[:3])
