"""The bar of a sampler: what it counts and what it shows."""

from __future__ import annotations

import numpy as np
import pytest

from pyro_bnn.infer.mcmc import progress
from pyro_bnn.infer.mcmc.progress import Progress


@pytest.fixture(autouse=True)
def _every_look(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "SECONDS", 0.0)


def add(bar: Progress, chains: list[int], accepted: float, step: float, bad: bool = False) -> None:
    like = np.ones(len(chains))
    bar.add(np.array(chains), accepted * like, np.full(len(chains), bad), step * like)


def test_draws_divergences_acceptance_and_step_size(capsys: pytest.CaptureFixture[str]) -> None:
    bar = Progress("NUTS", 3, 4, show=True)
    add(bar, [0, 2], 0.5, 0.125, bad=True)
    add(bar, [0], 0.8, 0.25)
    bar.close()
    last = capsys.readouterr().err.rpartition("\r")[2]
    assert last.startswith("NUTS:  25%")
    assert "3/12" in last
    assert "2 divergences, acceptance 0.60, step 0.25" in last  # (0.5 + 0.5 + 0.8) / 3
    assert "draw/s" in last


def test_several_draws_of_one_chain_count_each(capsys: pytest.CaptureFixture[str]) -> None:
    bar = Progress("NUTS", 2, 4, show=True)
    add(bar, [0, 0, 0, 1], 0.5, 0.1)
    bar.close()
    assert "4/8" in capsys.readouterr().err.rpartition("\r")[2]


def test_kept_draws_start_the_counts_over(capsys: pytest.CaptureFixture[str]) -> None:
    bar = Progress("NUTS", 1, 4, show=True)
    add(bar, [0], 0.1, 1.0, bad=True)
    bar.start_over()
    add(bar, [0], 0.9, 0.5)
    bar.close()
    last = capsys.readouterr().err.rpartition("\r")[2]
    assert "2/4" in last
    assert "0 divergences, acceptance 0.90, step 0.5" in last


def test_a_fast_chain_counts_no_more_than_its_own_draws(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """In windows by pooled draws a fast chain makes more than its share."""
    bar = Progress("HMC", 2, 3, show=True)
    for _ in range(5):
        add(bar, [0], 0.9, 0.5)
    add(bar, [1], 0.9, 0.5)
    bar.close()
    shown = capsys.readouterr().err
    assert "4/6" in shown
    assert "5/6" not in shown


def test_the_bar_is_redrawn_at_intervals_and_complete_at_the_end(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "SECONDS", 1e9)
    bar = Progress("HMC", 1, 3, show=True)
    for _ in range(3):
        add(bar, [0], 0.9, 0.5, bad=True)
    assert "3/3" not in capsys.readouterr().err
    bar.close()
    last = capsys.readouterr().err
    assert "3/3" in last
    assert "3 divergences, acceptance 0.90, step 0.5" in last


def test_a_bar_closed_before_any_draw(capsys: pytest.CaptureFixture[str]) -> None:
    bar = Progress("HMC", 1, 3, show=True)
    bar.close()
    assert "0/3" in capsys.readouterr().err


def test_completed_bars_are_full(capsys: pytest.CaptureFixture[str]) -> None:
    """A chain that was slow in the warm-up made fewer draws than its share."""
    bar = Progress("HMC", 2, 3, show=True)
    add(bar, [0], 0.9, 0.5)
    bar.complete()
    bar.close()
    assert "6/6" in capsys.readouterr().err


def test_a_hidden_bar_is_silent(capsys: pytest.CaptureFixture[str]) -> None:
    bar = Progress("NUTS", 1, 2, show=False)
    add(bar, [0], 0.9, 0.5)
    bar.start_over()
    bar.close()
    assert capsys.readouterr().err == ""
