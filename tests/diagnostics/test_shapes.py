"""Shape checks name the array, the expected axes and what came."""

import re

import numpy as np
import pytest

from pyro_bnn.diagnostics.shapes import check_axes, check_rows
from pyro_bnn.errors import ShapeError


def test_a_fitting_array_comes_back_as_float() -> None:
    checked = check_axes("draws", np.ones((2, 3), dtype=int), "S N")
    assert checked.dtype == float
    assert checked.shape == (2, 3)


@pytest.mark.parametrize("shape", [(3,), (2, 3, 1), (0, 3)])
def test_a_wrong_number_of_axes_or_an_empty_one_is_refused(shape: tuple[int, ...]) -> None:
    message = f"draws must have shape [S, N] with no empty axis, got {list(shape)}"
    with pytest.raises(ShapeError, match=re.escape(message)):
        check_axes("draws", np.zeros(shape), "S N")


@pytest.mark.parametrize("shape", [(3, 1), (2,), ()])
def test_rows_that_would_broadcast_are_refused(shape: tuple[int, ...]) -> None:
    message = f"y must have shape [3] to match probs, got {list(shape)}"
    with pytest.raises(ShapeError, match=re.escape(message)):
        check_rows("y", np.zeros(shape), 3, of="probs")
