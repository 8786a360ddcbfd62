"""Every model with every guide, compiled: the values and gradients of plain Pyro."""

from __future__ import annotations

import pytest
import torch

from tests.plain_pyro import default_dtype
from tests.test_paths import COMPILED, PAIRS, check


@pytest.mark.soak
@pytest.mark.parametrize(("model", "guide"), [pair for pair in PAIRS if pair not in COMPILED])
def test_compiled_values_and_gradients_are_those_of_plain_pyro(model: str, guide: str) -> None:
    with default_dtype(torch.float64):
        check(model, guide, compiled=True, rtol=1e-10)
