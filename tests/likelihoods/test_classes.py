"""Classes: f as logits."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch.testing import assert_close

from pyro_bnn.errors import OptionError
from pyro_bnn.likelihoods import Bernoulli, Categorical


def test_bernoulli_probability_is_the_logistic_of_f() -> None:
    f = torch.tensor([[0.0], [2.0], [-1.0]])
    fn = Bernoulli().distribution(f)
    assert (fn.batch_shape, fn.event_shape) == ((3,), ())
    assert_close(fn.mean, torch.tensor([0.5, 1 / (1 + math.exp(-2)), 1 / (1 + math.e)]))


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.bool, torch.float32])
def test_bernoulli_takes_labels_of_any_dtype(dtype: torch.dtype) -> None:
    y = Bernoulli()(torch.zeros(3, 1), torch.tensor([0, 1, 1], dtype=dtype))
    assert_close(y, torch.tensor([0.0, 1.0, 1.0]))


def test_categorical_probabilities_are_the_softmax_of_f() -> None:
    f = torch.log(torch.tensor([[1.0, 2.0, 5.0], [4.0, 3.0, 1.0]])) + 3.0
    fn: Any = Categorical(3).distribution(f)
    assert (fn.batch_shape, fn.event_shape) == ((2,), ())
    assert_close(fn.probs, torch.tensor([[1.0, 2.0, 5.0], [4.0, 3.0, 1.0]]) / 8)


@pytest.mark.parametrize("num_classes", [1, 0, -3, 2.0, "3"])
def test_numbers_of_classes_that_are_none_are_refused(num_classes: Any) -> None:
    with pytest.raises(
        OptionError, match=f"num_classes is an integer of at least 2, not {num_classes!r}"
    ):
        Categorical(num_classes)
