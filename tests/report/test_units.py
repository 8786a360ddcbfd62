"""Units of the target and their Jacobian."""

import numpy as np
import torch
from numpy.testing import assert_allclose

from pyro_bnn.data import Dataset, Split
from pyro_bnn.report.evaluation.units import Units, to_numpy
from tests.report.conjugate import class_split, regression_split


def test_units_carry_standardised_values_back() -> None:
    split = regression_split()
    units = Units.of(split)
    raw = split.test.raw()[1]
    assert_allclose(units.values(to_numpy(split.test.y)[:, None])[:, 0], raw, rtol=1e-6)
    assert split.train.target is not None
    assert_allclose(units.log_scale, np.log(float(split.train.target.scale)), rtol=1e-6)


def test_several_targets_add_their_log_scales() -> None:
    split = regression_split(num_targets=2)
    assert split.train.target is not None
    expected = split.train.target.scale.log().sum()
    assert_allclose(Units.of(split).log_scale, float(expected), rtol=1e-6)


def test_a_target_that_was_not_standardised_keeps_its_units() -> None:
    data = Dataset(torch.zeros(2, 1), torch.tensor([1.0, 2.0]), target_name="mass (kg)")
    units = Units.of(Split(data, data, "regression", "two"))
    assert (units.log_scale, units.name) == (0.0, "mass (kg)")
    assert Units.of(class_split()).name == "y"


def test_tensors_with_a_graph_become_arrays() -> None:
    assert to_numpy(torch.ones(2, requires_grad=True)).tolist() == [1.0, 1.0]
