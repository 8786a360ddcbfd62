"""Engines are tested on one thread: their problems are small, and the cores may be shared."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from pyro_bnn.infer.mcmc import chains as chains_module
from tests.conftest import capturing_nothing
from tests.infer.drive import uncaptured_step
from tests.oracle import LinearGaussian, linear_gaussian


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def uncaptured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chains whose step is not recorded as a graph."""
    monkeypatch.setattr(chains_module, "Captured", uncaptured_step)


@pytest.fixture
def nothing_captured() -> Iterator[None]:
    """Of a test of few steps nothing is recorded as a graph."""
    with capturing_nothing():
        yield


@pytest.fixture(scope="session")
def oracle() -> LinearGaussian:
    """A linear-Gaussian posterior, to be read alone."""
    return linear_gaussian()
