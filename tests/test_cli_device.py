"""--device: every command that fits or predicts moves its networks there, and refuses at once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from pyro_bnn.cli import networks, saved_fit
from pyro_bnn.errors import OptionError
from pyro_bnn.sklearn import BNNRegressor
from tests.command_line import run

MISSING = "cuda:99"
WORDS = f"there is no device '{MISSING}'"
FITTED = ("--data", "rows.csv", "--steps", "5", "--quiet")


@pytest.fixture(autouse=True)
def _rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    x = np.random.default_rng(0).normal(size=(60, 2))
    pd.DataFrame({"a": x[:, 0], "b": x[:, 1], "y": x.sum(1)}).to_csv("rows.csv", index=False)


@pytest.mark.parametrize(
    "command",
    [
        ("compare", *FITTED, "--methods", "auto-delta,auto-normal", "--jobs", "1"),
        ("fit", *FITTED, "--method", "auto-normal"),
        ("sbc", *FITTED, "--method", "auto-normal", "--simulations", "20"),
        ("trust", "--data", "digits", "--steps", "5", "--methods", "auto-normal"),
    ],
    ids=lambda words: words[0],
)
def test_networks_are_moved_before_anything_is_fitted(
    command: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = run(*command, "--device", MISSING)
    assert found.code == 2
    assert WORDS in found.err
    assert not list(Path().glob("*/"))  # no report, fit or page was begun

    moved: list[str] = []

    def on_device(model: Any, device: str) -> Any:
        moved.append(device)
        raise OptionError("far enough")

    monkeypatch.setattr(networks, "on_device", on_device)
    run(*command)
    run(*command, "--device", "cuda")
    assert moved == ["cpu", "cuda"]


def test_a_saved_fit_predicts_where_it_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    assert run("fit", *FITTED, "--method", "auto-normal").code == 0
    predict = ("predict", "rows.csv", "--posterior", "fit")
    found = run(*predict, "--device", MISSING)
    assert (found.code, WORDS in found.err) == (2, True)
    assert not Path("predictions.csv").exists()
    moved: list[str] = []

    def on_device(model: Any, device: str) -> Any:
        moved.append(device)
        return model

    monkeypatch.setattr(saved_fit, "on_device", on_device)
    assert run(*predict).code == 0
    assert moved == ["cpu"]


def test_an_estimator_refuses_it_when_it_fits() -> None:
    x = np.random.default_rng(0).normal(size=(20, 2))
    net = BNNRegressor(num_steps=5, device=MISSING)  # as scikit-learn has it, not when it is made
    with pytest.raises(OptionError, match=WORDS):
        net.fit(x, x.sum(1))
