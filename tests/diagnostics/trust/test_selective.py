"""Errors of the rows kept: areas by hand, at random and at best, and by the AUROC for errors."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

from pyro_bnn.diagnostics import auroc, selective_risk
from pyro_bnn.errors import DataError, ShapeError


def test_areas_by_hand() -> None:
    found = selective_risk(np.array([1.0, 2.0, 3.0]), np.array([True, True, False]))
    assert_allclose(found.risk, [0, 0, 1 / 3])
    assert_allclose(found.joint_risk, [0, 0, 1 / 3])
    assert_allclose(found.kept, [1 / 3, 2 / 3, 1])
    assert_allclose(found.aurc, 1 / 9)
    assert_allclose(found.augrc, 1 / 18)  # the triangle under the last third


def test_an_uncertainty_that_knows_nothing() -> None:
    correct = np.arange(10) % 5 > 0
    found = selective_risk(np.zeros(10), correct)
    assert_allclose([found.aurc, found.augrc, found.random], [0.2, 0.1, 0.1])


def test_errors_rejected_first() -> None:
    correct = np.arange(100_000) >= 30_000
    found = selective_risk(-np.arange(100_000.0), correct)
    assert_allclose([found.augrc, found.best], 0.3**2 / 2, rtol=1e-12)
    assert_allclose(found.aurc, 0.3 + 0.7 * np.log(0.7), rtol=1e-4)


def test_the_area_is_that_by_the_auroc_of_errors() -> None:
    rng = np.random.default_rng(0)
    correct = rng.uniform(size=500) > 0.2
    uncertainty = (rng.normal(size=500) - correct).round(1)  # with ties
    found = selective_risk(uncertainty, correct)
    e = found.error
    missed = 1 - auroc(uncertainty[correct], uncertainty[~correct])
    assert_allclose(found.augrc, missed * e * (1 - e) + e**2 / 2, rtol=1e-12)


def test_areas_do_not_depend_on_the_scale_of_the_uncertainty() -> None:
    rng = np.random.default_rng(1)
    uncertainty, correct = rng.normal(size=50), rng.uniform(size=50) > 0.3
    found = [selective_risk(u, correct) for u in (uncertainty, np.exp(3 * uncertainty))]
    assert found[0].augrc == found[1].augrc
    assert found[0].aurc == found[1].aurc


def test_what_is_no_truth_value_is_refused() -> None:
    with pytest.raises(DataError, match="correct holds truth values"):
        selective_risk(np.zeros(2), np.array([0, 2]))
    with pytest.raises(ShapeError, match=r"correct must have shape \[2\]"):
        selective_risk(np.zeros(2), np.zeros(3))
