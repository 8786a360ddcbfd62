"""Torch's global generators around a piece of work, on a machine of any number of GPUs."""

from __future__ import annotations

import pytest
import torch

from pyro_bnn.program.random_state import own_generators


def test_what_is_drawn_inside_is_not_missing_outside() -> None:
    torch.manual_seed(0)
    expected = torch.randn(2)
    torch.manual_seed(0)
    with own_generators():
        torch.randn(3)
    torch.testing.assert_close(torch.randn(2), expected, rtol=0, atol=0)


def test_no_gpu_is_begun_with_and_none_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with own_generators():  # torch's own choice would warn of two GPUs, and begin with both
        pass
    asked: list[tuple[str, int]] = []
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_rng_state", lambda gpu: asked.append(("get", gpu)))
    monkeypatch.setattr(torch.cuda, "set_rng_state", lambda _, gpu: asked.append(("set", gpu)))
    with own_generators():
        assert asked == [("get", 0), ("get", 1)]
    assert asked[2:] == [("set", 0), ("set", 1)]
