"""The best ELBO that is known: which line has it, and which default fits come near it."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks import best_elbo
from pyro_bnn import SVI, guides


def line(run: str, elbo: float, seconds: float = 1.0, **more: Any) -> dict[str, Any]:
    return {
        "data": "diabetes", "guide": "auto-normal", "run": run, "seed": 0, "elbo": elbo,
        "error": 0.2, "seconds": seconds, "steps": 4_000, "gain": 0.1, "gain_error": 0.1,
        "cpu": "A", **more,
    }  # fmt: skip


def test_the_best_known_is_the_highest_of_all_runs() -> None:
    rows = [
        line("default", -10.0), line("long", -8.0, seed=1), line("long", -9.5, seed=2),
        {"data": "diabetes", "guide": "auto-normal", "run": "long", "seed": 3, "error": "broke"},
    ]  # fmt: skip
    (one,) = best_elbo.best(rows).values()
    assert (one["elbo"], one["run"], one["seed"]) == (-8.0, "long", 1)
    assert (one["long_runs"], one["spread_of_long_runs"]) == (2, 1.5)


@pytest.mark.parametrize(("elbo", "within"), [(-8.9, 1), (-9.1, 0)])
def test_a_default_within_a_nat_is_near(elbo: float, within: int) -> None:
    rows = [line("default", elbo, 3.0), line("as before", -12.0, 2.0), line("long", -8.0)]
    text = best_elbo.page(rows)
    assert f"Of 1 pairs of a data set and a guide, {within} default fits end within 1 nat" in text
    assert "takes 1.5 times the CPU seconds" in text


def test_a_pair_without_a_long_run_is_not_told() -> None:
    assert "Of 0 pairs" in best_elbo.page([line("default", -9.0)])


def test_every_run_is_one_that_svi_takes() -> None:
    for options in best_elbo.RUNS.values():
        SVI(guides.AutoNormal, **options)
    found = list(best_elbo.tasks(["diabetes"], ["auto-normal"]))
    assert len({(task["run"], task["seed"]) for task in found}) == len(found) == 6
