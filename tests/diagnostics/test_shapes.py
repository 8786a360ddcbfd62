"""Shape checks name the array, the expected axes and what came."""

import inspect
import re

import numpy as np
import pytest

from pyro_bnn import diagnostics
from pyro_bnn.diagnostics.shapes import check_axes, check_rows
from pyro_bnn.errors import DataError, ShapeError

CLASS_SCORES = [
    name
    for name in diagnostics.__all__
    if inspect.isfunction(function := getattr(diagnostics, name))
    and [*inspect.signature(function).parameters][:2] in (["probs", "y"], ["logits", "y"])
]


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


def test_the_scores_of_classes_are_found() -> None:
    assert {"accuracy", "brier", "ece", "skce", "temperature_scaling"} <= {*CLASS_SCORES}


@pytest.mark.parametrize("wrong", [-1, 3, 0.5, float("nan")])
@pytest.mark.parametrize("score", CLASS_SCORES)
def test_labels_that_no_class_has_are_refused_by_every_score(score: str, wrong: float) -> None:
    values = np.log(np.full((4, 3), 1 / 3))
    y = np.array([0, wrong, 2, 1])
    with pytest.raises(DataError, match=r"classes 0 \.\. 2.*in row 2 \(1 of 4 rows"):
        getattr(diagnostics, score)(values, y)
