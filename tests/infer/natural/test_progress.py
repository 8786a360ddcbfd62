"""The progress bar of a natural-gradient engine: steps, smoothed ELBO, and where a run goes on."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import numpy as np
import pytest
import torch

from pyro_bnn import Interrupted
from pyro_bnn.infer.run import WINDOW
from tests.infer.natural.test_runs import EACH, ENGINES, STEPS, fit, stop_after

pytestmark = pytest.mark.usefixtures("nothing_captured")


@EACH
def test_the_bar_is_silent_when_off_and_changes_nothing(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    engine = ENGINES[name]
    quiet = fit(engine, progress=False)
    assert capsys.readouterr() == ("", "")
    posterior = fit(engine, progress=True)
    shown = capsys.readouterr()
    assert shown.out == ""
    last = shown.err.rpartition("\r")[2]
    assert last.startswith(f"{type(engine).__name__}: 100%")
    assert f" {STEPS}/{STEPS} " in last
    assert last.rstrip().endswith(f"ELBO {-posterior.losses.mean():.1f}]")
    np.testing.assert_array_equal(posterior.losses, quiet.losses)
    assert torch.equal(posterior.unconstrained(5), quiet.unconstrained(5))


def test_the_elbo_is_smoothed_over_the_last_steps(capsys: pytest.CaptureFixture[str]) -> None:
    posterior = fit(dataclasses.replace(ENGINES["VOGN"], num_steps=2 * WINDOW + 30), progress=True)
    shown = re.findall(r"ELBO (-?[\d.]+)", capsys.readouterr().err)
    ends = (WINDOW, 2 * WINDOW, len(posterior.losses))
    expected = [f"{-posterior.losses[end - WINDOW : end].mean():.1f}" for end in ends]
    assert list(dict.fromkeys(shown)) == list(dict.fromkeys(expected))


def test_a_descent_before_the_first_step_shows_its_log_joint(
    capsys: pytest.CaptureFixture[str],
) -> None:
    engine = dataclasses.replace(ENGINES["VOGN"], descent_steps=WINDOW, num_steps=30, kl_warmup=0)
    posterior = fit(engine, progress=True)
    shown = capsys.readouterr().err
    (descent,) = set(re.findall(r"log joint (-?[\d.]+)", shown))
    assert float(descent) < 0
    assert f" {WINDOW + 30}/{WINDOW + 30} " in shown
    assert shown.rstrip().endswith(f"ELBO {-posterior.losses.mean():.1f}]")


def test_the_bar_of_a_run_that_goes_on_begins_where_it_was_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    stop_after(7, monkeypatch)
    with pytest.raises(Interrupted):
        fit(ENGINES["SLANG"], checkpoint=tmp_path, progress=True)
    capsys.readouterr()
    fit(ENGINES["SLANG"], checkpoint=tmp_path, resume=True, progress=True)
    counts = [int(n) for n in re.findall(rf" (\d+)/{STEPS} ", capsys.readouterr().err)]
    assert counts[0] == 7
    assert counts[-1] == STEPS
