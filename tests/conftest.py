"""What all tests share: each starts from the same random state and an empty parameter store."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pyro
import pytest
import torch


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The processes of ``pytest -n`` must collect the same names: none may hold an address."""
    for item in items:
        if " at 0x" in item.nodeid:
            raise pytest.UsageError(f"{item.nodeid}: give this parameter an id")


@pytest.fixture(autouse=True)
def _same_start() -> Iterator[None]:
    with torch.random.fork_rng(devices=[]), pyro.get_param_store().scope():
        torch.manual_seed(0)
        yield


@pytest.fixture(autouse=True)
def _answers_ctrl_c() -> Iterator[None]:
    """Python's own handler, also where the tests run in the background of a shell."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, signal.SIG_DFL if before is None else before)
