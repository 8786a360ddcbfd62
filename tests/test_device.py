"""The device a user names; that models, fits and draws go there is in tests/test_gpu.py."""

from __future__ import annotations

import pytest
import torch

from pyro_bnn import models
from pyro_bnn.errors import OptionError
from pyro_bnn.program.device import on_device


def test_a_model_stays_itself() -> None:
    model = models.MLP(2)
    assert on_device(model, "cpu") is model


@pytest.mark.parametrize("name", ["tpu", "meta", "", "cpu:0", "cuda:", "cuda:-1", "cuda:x", "CUDA"])
def test_other_names_are_refused(name: str) -> None:
    with pytest.raises(OptionError, match=f"a device is cpu or cuda.* not '{name}'"):
        on_device(models.MLP(2), name)


@pytest.mark.parametrize(
    ("name", "count", "words"),
    [
        ("cuda", 0, "there is no device 'cuda': torch finds no GPU that it can use"),
        ("cuda:1", 1, "there is no device 'cuda:1': torch finds 1 GPU$"),
        ("cuda:8", 2, "there is no device 'cuda:8': torch finds 2 GPUs$"),
    ],
)
def test_a_gpu_that_is_not_there_is_refused(
    name: str, count: int, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    with pytest.raises(OptionError, match=words):
        on_device(models.MLP(2), name)
