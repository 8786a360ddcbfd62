"""No test of the data room may leave a global random state other than it found it."""

import random
from collections.abc import Iterator

import numpy as np
import pytest
import sklearn.datasets  # noqa: F401 its first import draws from Python's generator
import torch


@pytest.fixture(autouse=True)
def _global_random_states_are_left_alone() -> Iterator[None]:
    before = random.getstate()
    before_numpy = str(np.random.get_state(legacy=False))  # noqa: NPY002 the state to watch
    before_torch = torch.get_rng_state()
    yield
    assert random.getstate() == before
    assert str(np.random.get_state(legacy=False)) == before_numpy  # noqa: NPY002
    torch.testing.assert_close(torch.get_rng_state(), before_torch)
