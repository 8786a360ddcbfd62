"""What all tests share: each starts from the same random state and an empty parameter store."""

from __future__ import annotations

from collections.abc import Iterator

import pyro
import pytest
import torch


@pytest.fixture(autouse=True)
def _same_start() -> Iterator[None]:
    with torch.random.fork_rng(devices=[]), pyro.get_param_store().scope():
        torch.manual_seed(0)
        yield
