"""Benchmarks of many fits: lines that a run goes on from, and pages that say what these carry."""

from __future__ import annotations

import itertools
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.stats import ttest_1samp

from benchmarks import _jsonl, _rank1_page, _uci_page, rank1

Row = dict[str, Any]


def fit(task: Row) -> Row:
    """A fit of no time."""
    if task["method"] == "bad":
        raise ValueError("no such method")
    return {"twice": 2 * task["split"], "seconds": 1.0}


def run(path: Path, tasks: list[Row], **options: Any) -> list[str]:
    how: dict[str, Any] = {"minutes": 5, "longest": 100, "seconds": lambda task, rows: None}
    return list(_jsonl.fits(tasks, fit, path, keys=("method", "split"), jobs=1, **(how | options)))


@pytest.mark.slow("starts a process")
def test_a_run_goes_on_where_the_last_one_stopped(tmp_path: Path) -> None:
    path = tmp_path / "lines.jsonl"
    path.write_text('{"method": "a", "split": 0, "twice": 7}\n{"method": "a", "spl')
    tasks = [{"method": m, "split": k} for k in (0, 1) for m in ("a", "bad")]
    run(path, tasks)
    rows = _jsonl.read(path)
    assert [(r["method"], r["split"]) for r in rows] == [
        ("a", 0), ("bad", 0), ("a", 1), ("bad", 1),
    ]  # fmt: skip
    assert (rows[0]["twice"], rows[2]["twice"]) == (7, 2)  # the first one was not fitted again
    assert rows[1]["error"] == "no such method"
    before = path.read_text()
    assert run(path, tasks) == []
    assert path.read_text() == before


def test_no_fit_begins_that_would_not_end_in_time(tmp_path: Path) -> None:
    path, tasks = tmp_path / "lines.jsonl", [{"method": "a", "split": 0}]
    for options in ({"seconds": lambda *_: 101.0}, {"minutes": 0.0}):
        (line,) = run(path, tasks, **options)
        assert line.startswith("a 0: left out")
    assert _jsonl.read(path) == []


def uci_rows(scores: dict[str, list[float]], data: str = "uci/yacht") -> list[Row]:
    return [
        {
            "data": data, "split": k, "method": method, "log_score": value, "rmse": 1.0,
            "coverage": 0.95, "width": 2.0, "seconds": seconds, "train_rows": 90, "test_rows": 10,
            "cpu": "a",
        }
        for seconds, (method, values) in enumerate(scores.items(), start=1)
        for k, value in enumerate(values)
    ]  # fmt: skip


SCORES = {
    "near": [-1.0, -2.1, -1.4, -1.1, -1.6, -1.3],
    "best": [-0.9, -2.0, -1.5, -1.0, -1.5, -1.2],
    "far": [-3.0, -4.1, -3.5, -3.0, -3.6, -3.2],
}


def test_differences_over_splits_have_the_corrected_error() -> None:
    compared = _uci_page.Compared(_uci_page.by_set(uci_rows(SCORES))["uci/yacht"])
    d = np.array(SCORES["near"]) - np.array(SCORES["best"])
    mean, error = compared.to_best("near")
    assert_allclose(mean, d.mean())
    assert_allclose(error, d.std(ddof=1) * math.sqrt(1 / 6 + 10 / 90))  # Nadeau and Bengio
    assert list(compared.fits) == ["best", "near", "far"]
    assert [compared.is_behind(name) for name in compared.fits] == [False, False, True]
    assert_allclose(compared.ranks()["near"], (2 + 2 + 1 + 2 + 2 + 2) / 6)


@pytest.mark.parametrize(
    ("counts", "end"),
    [((6, 6, 6), 6), ((6, 5, 5), 5), ((6, 2), 6), ((6, 1, 1), 6), ((6, 4, 4, 1), 4)],
)
def test_most_fits_are_compared(counts: tuple[int, ...], end: int) -> None:
    """15 of (6, 5, 5) at five splits, 6 at six; methods that lack one are named beside."""
    rows = uci_rows({f"m{i}": SCORES["near"][:n] for i, n in enumerate(counts)})
    compared = _uci_page.Compared(_uci_page.by_set(rows)["uci/yacht"])
    assert compared.splits == list(range(end))
    assert compared.others == {f"m{i}": n for i, n in enumerate(counts) if n < end}


def test_what_a_method_may_lose_is_a_bound_of_the_paired_difference() -> None:
    compared = _uci_page.Compared(_uci_page.by_set(uci_rows(SCORES))["uci/yacht"])
    mean, error = compared.to_best("near")
    assert compared.may_lose("best", 2) == 0.0
    t = 2.5706  # 97.5 % of Student's t with five degrees of freedom, of tables
    assert_allclose(compared.may_lose("near", 2), -mean + t * error, rtol=1e-4)


def test_the_answer_says_what_can_be_lost_for_fewer_seconds() -> None:
    """One that fails on a split has too large an error to be behind: it is not recommended."""
    wild = {"wild": [-0.9, -2.0, -99.0, -1.0, -1.5, -1.2], **SCORES}
    sets = {
        name: _uci_page.Compared(fits)
        for data in ("uci/yacht", "uci/boston")
        for name, fits in _uci_page.by_set(uci_rows(wild, data)).items()
    }
    assert not sets["uci/yacht"].is_behind("wild")
    text = _uci_page.answer(sets, ("nuts",))
    assert "Not run on all of them, and perhaps better: `nuts`." in text
    assert "**`best` can lose least**, of 4 methods on all 2 sets: on none" in text
    assert "more than 0.00 nats a row below" in text
    one = sets["uci/yacht"]
    bounds = f"{one.may_lose('wild', 2):.0f}", f"{one.may_lose('near', 2):.2f}"
    listed = (
        f"`wild` {bounds[0]} nats (1 s), `near` {bounds[1]} nats (2 s), `best` 0.00 nats (3 s)."
    )
    assert f"**The cheaper, the more can be lost**: {listed}" in text
    assert "`far` on 2" in text


def test_two_splits_carry_no_answer() -> None:
    few = {name: values[:2] for name, values in SCORES.items()}
    rows = uci_rows(few)
    assert "No set has 3 splits yet" in _uci_page.answer(
        {"uci/yacht": _uci_page.Compared(_uci_page.by_set(rows)["uci/yacht"])}
    )
    failed = {"data": "uci/yacht", "split": 0, "method": "x", "error": "y", "cpu": "b"}
    page = _uci_page.page([*rows, failed])
    asked = ("1 fits failed: x on uci/yacht: y", "6 fits", "1.58 (.48)", "0.6 to 1.6")
    for words in (*asked, "6 on a, 1 on b; "):
        assert words in page


def rank1_rows(method: str, shift: float, seeds: tuple[float, ...]) -> list[Row]:
    groups = np.linspace(-1, 1, 50)
    return [
        {
            "data": "mnist", "epochs": 2, "train_rows": 100, "test_rows": 50, "corrupted_rows": 0,
            "method": method, "seed": s, "steps": 20, "other_seconds": 3.0,
            "log_score": shift + own, "groups": (groups + shift + own).tolist(),
            "accuracy": 0.5, "ece": 0.1, "floor": 0.1, "seconds": 1.0, "passes": 4, "draws": 16,
            "cpu": "a",
        }
        for s, own in enumerate(seeds)
    ]  # fmt: skip


def test_differences_over_images_and_seeds() -> None:
    a, b = rank1_rows("a", -0.5, (0.0, 0.1, 0.3)), rank1_rows("b", -1.0, (0.0, 0.1, 0.0))
    fits = {row["seed"]: row for row in a}, {row["seed"]: row for row in b}
    pair = _rank1_page.estimate(*fits, "groups", "log_score")
    assert_allclose(pair.each, [0.5, 0.5, 0.8])
    assert_allclose(pair.mean, 0.6)
    assert_allclose(pair.error, np.std(pair.each, ddof=1) / math.sqrt(3))  # images: by nothing
    assert_allclose(pair.p_value, ttest_1samp(pair.each, 0).pvalue)
    alone = _rank1_page.estimate(fits[0], None, "groups", "log_score")
    images = np.linspace(-1, 1, 50).std(ddof=1) / math.sqrt(50)
    seeds = np.std([0.0, 0.1, 0.3], ddof=1) / math.sqrt(3)
    assert_allclose(alone.error, math.hypot(images, seeds))
    same = _rank1_page.estimate(fits[0], fits[0], "groups", "log_score")
    assert (same.error, same.p_value) == (0, 1)


def test_beating_asks_for_more_than_two_errors_over_three_seeds() -> None:
    base = {row["seed"]: row for row in rank1_rows("b", -1.0, (0.0, 0.0, 0.0))}

    def said(*seeds: float) -> str:
        own = {row["seed"]: row for row in rank1_rows("a", -1.0, seeds)}
        found = _rank1_page.paired("a", "b", {"a": own, "b": base})
        assert found
        return _rank1_page.verdict("a", "b", found, "seeds")

    assert "a beats b" in said(0.5, 0.6, 0.7)
    assert "a is behind b" in said(-0.5, -0.6, -0.7)
    assert "a cannot be told from b" in said(0.9, 0.9, -0.01)  # 1.97 errors
    assert "a cannot be told from b" in said(0.01, 0.6, 0.01)
    assert "a cannot be told from b" in said(0.1, 0.5, 0.6)  # 2.6 errors of two degrees of freedom


def test_the_mean_over_data_sets_is_told_from_none_as_seldom_as_it_says() -> None:
    """Of three data sets with three seeds each, whose errors differ up to ten times."""
    generator, count = np.random.default_rng(0), 4_000
    for sds in ([1.0, 1.0, 1.0], [1.0, 0.3, 0.1], [1.0, 0.1, 0.1]):
        seeds = generator.normal(size=(count, 3, 3)) * np.array(sds)[:, None]
        means, errors = seeds.mean(-1), seeds.std(-1, ddof=1) / math.sqrt(3)
        p_values = []
        for i in range(count):
            pairs = zip(means[i], errors[i], strict=True)
            each = [_rank1_page.Estimate(mean, error, 2, ()) for mean, error in pairs]
            p_values.append(_rank1_page.over_data(each).p_value)
        alarms = np.mean(np.array(p_values) <= 0.05)
        assert alarms <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / count)
    assert alarms >= 0.02  # one data set's error is nearly all of it: its own degrees of freedom


def test_the_mean_over_data_sets_stands_before_them() -> None:
    names = ("deterministic", "rank-1 Gaussian")
    fits = [rank1_rows(names[0], -1.0, (0.0, 0.1)), rank1_rows(names[1], 0.0, (0.0, 0.3))]
    other = [[{**row, "data": "cifar", "train_rows": 90} for row in rows] for rows in fits]
    page = _rank1_page.page([*itertools.chain(*fits, *other)], dict.fromkeys(names, "methods"))
    assert page.index("Mean over") < page.index("mnist, 100 training")
    one, two = (_rank1_page.paired(*names[::-1], _by_method(rows)) for rows in (fits, other))
    assert one
    assert two
    both = _rank1_page.over_data([one, two])
    assert_allclose((both.mean, both.error), (one.mean, one.error / math.sqrt(2)))
    assert both.free == 1
    assert f"{both.mean:+.3f} ± {both.error:.3f} nats an image" in page
    alone = _rank1_page.page([*itertools.chain(*fits)], dict.fromkeys(names, "methods"))
    assert "Mean over" not in alone


def _by_method(fits: list[list[Row]]) -> dict[str, dict[int, Row]]:
    return {rows[0]["method"]: {row["seed"]: row for row in rows} for rows in fits}


def test_the_page_of_rank_1_says_what_was_not_run() -> None:
    rows = rank1_rows("deterministic", -1.0, (0.0, 0.1)) + rank1_rows("rank-1 Gaussian", 0, (0, 0))
    tables = {"deterministic": "methods", "rank-1 Gaussian": "methods", "SWAG": "methods"}
    page = _rank1_page.page(rows, tables)
    assert "rank-1 Gaussian beats deterministic" in page
    assert "Not run yet: SWAG" in page


def test_a_fit_of_rank_1_is_expected_to_take_its_steps_and_its_images() -> None:
    rows = rank1_rows("a", 0.0, (0.0, 0.1))  # 20 steps in 1 s, 50 images in 3 s
    task = {"method": "a", "epochs": 5, "train_rows": 1280, "test_rows": 100, "corrupted_rows": 10}
    # 100 steps; 100 images as they are and 10 under 8 kinds in 3 severities
    assert rank1.expected_seconds(task, rows) == pytest.approx(1.0 * 5 + 3.0 * (100 + 240) / 50)
    assert rank1.expected_seconds({**task, "method": "b"}, rows) is None


def test_fits_on_other_images_are_not_compared() -> None:
    rows = rank1_rows("deterministic", -1.0, (0.0,)) + rank1_rows("rank-1 Gaussian", 0, (0,))
    rows[1]["test_rows"] = 60
    tables = {"deterministic": "methods", "rank-1 Gaussian": "methods"}
    page = _rank1_page.page(rows, tables)
    assert "beats" not in page
    assert "## mnist, 100 training images, 2 epochs, 60 test images" in page


def test_few_images_are_groups_of_one() -> None:
    assert rank1.by_group(np.arange(10.0)) == list(range(10))
    assert rank1.by_group(np.arange(100.0)) == [2 * k + 0.5 for k in range(50)]
