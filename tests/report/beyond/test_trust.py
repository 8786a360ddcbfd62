"""Trust on classifiers of which every number is known."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import numpy as np
import pandas as pd
import pytest
import torch
from numpy.testing import assert_allclose
from torch import Tensor

import pyro_bnn as bnn
from pyro_bnn.data import Dataset
from pyro_bnn.diagnostics import (
    auroc,
    equal_mass_ece,
    equal_mass_floor,
    fpr95,
    novelty_scores,
    smooth_ece_floor,
)
from pyro_bnn.diagnostics.trust.attack import Attacked, fgsm
from pyro_bnn.errors import DataError, OptionError
from pyro_bnn.report import Trust
from pyro_bnn.report.beyond.images import Pixels
from pyro_bnn.report.beyond.metrics import OF_TEST_ROWS, RESAMPLED
from pyro_bnn.report.beyond.numbers import MOVED, TEST, UNKNOWN, Fit, TrustNumbers
from pyro_bnn.report.beyond.page import _lead, tables
from pyro_bnn.report.beyond.plots import PLOTS
from pyro_bnn.report.beyond.scored import Scored, of_pairs
from pyro_bnn.report.beyond.trust import check_trust
from pyro_bnn.report.evaluation.held_out import class_draws
from pyro_bnn.report.plots.figures import Figures
from pyro_bnn.report.plots.panels import DrawnFigure
from pyro_bnn.report.tables.metric import value_of
from tests.report.beyond.known import NUM_TEST, Known, constant, images, scattered

SPLIT = images()
Y = SPLIT.test.y


def judged(fits: Any, split: bnn.Split = SPLIT, **options: Any) -> Trust:
    """What is made of classifiers that have no more than trust asks of them."""
    return bnn.trust(fits, split, **options)


def drawn(found: TrustNumbers, name: str) -> DrawnFigure:
    """A figure with its words."""
    return Figures(found, PLOTS).drawn(name)


def test_numbers_of_a_constant_classifier() -> None:
    table = judged({"sure": constant(0.8, Y), "less": constant(0.7, Y)}, SPLIT).table
    assert list(table.index) == ["sure", "less"]
    assert_allclose(table["log_score"], np.log([0.8, 0.7]))
    assert_allclose(table["log_score_gap"], [0, math.log(0.7 / 0.8)])
    assert_allclose(table["log_score_gap_se"], 0, atol=1e-12)
    assert_allclose(table["accuracy"], 1)
    assert_allclose(table["brier"], [2 * 0.2**2, 2 * 0.3**2])
    assert_allclose(table["ece"], [0.2, 0.3])
    # one bin of all rows, sqrt(2 / pi) sqrt(p (1 - p) / N)
    floor = math.sqrt(2 / math.pi) * np.sqrt(np.array([0.16, 0.21]) / NUM_TEST)
    assert_allclose(table["floor"], floor)
    assert_allclose(table["smooth_ece"], [0.2, 0.3], rtol=1e-9)
    assert (table["smooth_floor"] < table["smooth_ece"]).all()
    assert_allclose(table["augrc"], 0, atol=1e-12)
    assert table["temperature"].isna().all()  # right in every row: no temperature is best


def test_an_impossible_row_has_no_best_temperature() -> None:
    # both halves are right in 3 of 4 rows, at log odds of log 9 in place of log 3
    scores = np.log(np.where(np.arange(NUM_TEST) // 2 % 4 < 3, 0.9, 0.1))
    table = judged({"one": scattered(scores, Y)}, SPLIT).table
    assert_allclose(table["temperature"], 2.0, rtol=0.1)
    scores[0] = -np.inf
    table = judged({"one": scattered(scores, Y)}, SPLIT).table
    assert table[["temperature", "temperature_gain"]].isna().all(axis=None)


def test_one_row_has_no_best_temperature() -> None:
    # less likely than another class, and likelier than chance: of that row alone there is one
    probs = torch.tensor([[[0.3, 0.6, 0.1]]], dtype=torch.float64)
    table = judged({"one": Known(lambda x: probs)}, images(1)).table
    assert_allclose(table["log_score"], math.log(0.3))
    assert table[["temperature", "temperature_gain"]].isna().all(axis=None)


def test_a_single_output_keeps_small_probabilities() -> None:
    (p,) = class_draws(np.array([[[50.0]]]))
    assert_allclose(p, [[math.exp(-50.0), 1.0]], rtol=1e-12)  # 1 - 1 / (1 + e^-50) rounds to 0


def test_errors_over_seeds_and_their_pairs() -> None:
    fits = {"a": [constant(p, Y) for p in (0.8, 0.9)], "b": [constant(p, Y) for p in (0.4, 0.45)]}
    table = judged(fits, SPLIT).table
    a = np.log([0.8, 0.9])
    assert_allclose(table.loc["a", "log_score"], a.mean())
    assert_allclose(table.loc["a", "log_score_seeds_se"], a.std(ddof=1) / math.sqrt(2))
    assert_allclose(table.loc["b", "log_score_gap"], -math.log(2))  # of each seed
    assert_allclose(table.loc["b", "log_score_gap_se"], 0, atol=1e-12)
    assert_allclose(table["fits"], 2)


def of_log_score(log_score: np.ndarray) -> Fit:
    """A fit of which the log scores alone are given."""
    nothing = np.zeros((len(log_score), 2))
    return {TEST: Scored(nothing, log_score, {})}


@pytest.mark.parametrize(("counts", "spreads"), [((2, 2), (1, 1)), ((3, 1, 1), (1, 1, 1)),
                                                 ((3, 3, 3), (4, 1, 1))])  # fmt: skip
def test_equal_methods_of_few_fits_are_told_apart_in_five_of_a_hundred_pages(
    counts: tuple[int, ...], spreads: tuple[float, ...]
) -> None:
    # fits scatter more than rows do: two of two methods have a t of 2 degrees of freedom
    rng, told = np.random.default_rng(0), 0
    for _ in range(400):
        fits = {
            str(k): [of_log_score(rows + 0.05 * spread * rng.normal()) for _ in range(count)]
            for k, (count, spread) in enumerate(zip(counts, spreads, strict=True))
            for rows in [0.05 * rng.normal(size=NUM_TEST) - 1.0]
        }
        told += any(place.is_behind for place in TrustNumbers(SPLIT, fits, num_draws=1).ranking)
    assert told / 400 < 0.05 + 4 * math.sqrt(0.05 * 0.95 / 400)


def test_methods_that_fits_tell_apart_are_told_apart() -> None:
    # the difference is 20 times its error, of a t of 4 degrees of freedom
    rng = np.random.default_rng(0)
    rows = 0.05 * rng.normal(size=NUM_TEST) - 1.0
    fits = {
        name: [of_log_score(rows + mean + 0.01 * e) for e in (-1.0, 0.0, 1.0)]
        for name, mean in (("a", 0.0), ("b", -0.2 / math.sqrt(1.5)))
    }
    assert [p.is_behind for p in TrustNumbers(SPLIT, fits, num_draws=1).ranking] == [False, True]


def test_a_difference_within_its_error_is_not_told() -> None:
    rng = np.random.default_rng(0)
    base = -rng.uniform(0.1, 0.6, size=NUM_TEST)
    noise = 0.05 * rng.normal(size=NUM_TEST)
    noise -= noise.mean() - 0.003  # half a standard error ahead
    found = judged({"a": scattered(base, Y), "b": scattered(base - noise, Y)}, SPLIT)
    title, statements, _ = found.answer
    assert title == "Not behind on the test rows: a and b; these rows cannot rank them"
    assert "not shown to be behind it: b" in statements[0].text
    clear = judged({"a": scattered(base, Y), "b": scattered(base - 0.1, Y)}, SPLIT)
    assert clear.answer.headline == "Trust a here, by the log score on the test rows"
    assert "behind: b by 0.1" in clear.answer.statements[0].text


def test_rows_are_called_images_where_they_are_some() -> None:
    pixels = Dataset(SPLIT.test.x.reshape(-1, 1, 4, 4), Y)
    fits = {"a": constant(0.8, Y), "b": constant(0.8, Y)}
    inverse: dict[str, Any] = {"corruptions": (1,), "kinds": ("inverse",)}
    for name, found in (
        ("rows", judged(fits)),
        ("images", judged(fits, dataclasses.replace(SPLIT, test=pixels))),
        ("images", judged(fits, **inverse)),
    ):
        for words in ("on the test {}", "these {} cannot", "Test {}:", "least certain {} left"):
            assert words.format(name) in found.summary()
        text = "".join(
            [found.summary(), _lead(found), *(t.title + t.caption for t in tables(found))]
        )
        assert ("images" in text) == (name == "images")
        assert f"on {NUM_TEST} test {name}" in text
        assert f"{NUM_TEST} {name}, {found.num_draws} draws" in text
    assert "test rows" in drawn(judged(fits), "calibration").figure.axes[0].get_title("left")


def test_half_of_calibrated_methods_lie_right_of_the_floor() -> None:
    rng = np.random.default_rng(0)
    probs = np.repeat(rng.uniform(0.5, 1.0, size=(1_000, 1)), 2, axis=1)
    probs[:, 1] = 1 - probs[:, 0]
    draws = [(rng.uniform(size=1_000) > probs[:, 0]).astype(int) for _ in range(400)]
    right = np.mean([equal_mass_ece(probs, y) > equal_mass_floor(probs) for y in draws])
    assert abs(right - 0.5) < 5 * 0.5 / math.sqrt(400)
    caption = drawn(judged({"a": constant(0.8, Y)}, SPLIT), "calibration").caption
    assert "of methods whose probabilities are right about half lie right of it" in caption


def brightness(x: Tensor) -> Tensor:
    """Mean pixel in [0, 1]."""
    return torch.as_tensor(Pixels.of(SPLIT).images(x)).mean((1, 2, 3))


def test_corruption_is_the_mean_of_the_number_of_each_condition() -> None:
    def probs(x: Tensor) -> Tensor:
        right = 0.5 + 0.4 * brightness(x)
        p = (1 - right).repeat(2, 1).T.clone()
        p[torch.arange(len(x)), Y[: len(x)]] = right
        return p.unsqueeze(0)

    method = Known(probs)
    found = judged(
        {"a": method}, SPLIT, corruptions=(1, 5), kinds=("inverse", "brightness"), num_rows=30
    )
    means = [float(torch.log(0.5 + 0.4 * brightness(c.x)).mean()) for c in found.conditions]
    assert_allclose(found.by_condition["log_score"], means, rtol=1e-6)
    assert_allclose(found.shifted.loc["a", "log_score"], np.mean(means), rtol=1e-6)
    eces = found.by_condition["ece"]
    assert_allclose(found.shifted.loc["a", "ece"], eces.mean())  # and not of the pooled rows
    assert_allclose(found.shifted_ranking[0].score, np.mean(means), rtol=1e-6)
    # of each condition the error of a mean over images, and that in the figure is twice as long
    scores = [torch.log(0.5 + 0.4 * brightness(c.x)).numpy() for c in found.conditions]
    errors = [float(np.std(one)) / math.sqrt(30) for one in scores]
    assert_allclose(found.by_condition["log_score_se"], errors, rtol=4 / math.sqrt(2 * 99))
    assert (found.by_condition[[f"{n.key}_se" for n in RESAMPLED]].notna()).all(axis=None)
    bars: Any
    (bars,) = found.figures["shift"].axes[0].containers
    ends = np.array(bars.lines[2][0].get_segments())[1:, :, 1]  # of the severities, without 0
    own = found.by_condition[found.by_condition["kind"] == "inverse"]
    assert_allclose(np.ptp(ends, axis=1), 4 * own["log_score_se"])
    assert all(len(x) in (1, 30, NUM_TEST) for x in method.seen)


def test_scores_are_drawn_in_the_order_of_their_severities() -> None:
    one = {"a": constant(0.8, Y)}
    found = judged(one, corruptions=(5, 1), kinds=("inverse", "contrast"), num_rows=30)
    shift = drawn(found, "shift")
    assert [ax.get_title("left") for ax in shift.figure.axes[:2]] == ["inverse", "contrast"]
    for ax in shift.figure.axes[:2]:
        assert list(np.asarray(ax.lines[0].get_xdata(), dtype=int)) == [0, 1, 5]
    assert "fall" not in shift.words  # they are all equal


def test_every_method_sees_the_same_noise() -> None:
    a, b = constant(0.8, Y), constant(0.6, Y)
    judged({"a": a, "b": b}, SPLIT, corruptions=(3,), kinds=("shot-noise",))
    assert all(torch.equal(one, other) for one, other in zip(a.seen, b.seen, strict=True))
    assert not torch.equal(a.seen[-1], SPLIT.test.x)


def test_unknown_inputs_are_told_apart_by_a_method_that_knows_them() -> None:
    other = images(40, seed=5)
    known = {tuple(row.tolist()) for row in SPLIT.test.x}

    def told(x: Tensor) -> Tensor:
        sure = torch.tensor([0.9 if tuple(row.tolist()) in known else 0.6 for row in x])
        return torch.stack([sure, 1 - sure], -1).double().unsqueeze(0)

    found = judged({"told": Known(told), "blind": constant(0.7, Y)}, SPLIT, ood=other).unknown
    of = found[found["score"] == "entropy"].set_index("method")
    assert_allclose(of["auroc"].loc[["told", "blind"]], [1.0, 0.5])
    assert_allclose(of.loc["told", ["fpr95_known", "fpr95_unknown"]].astype(float), 0)
    assert_allclose(of.loc["blind", "auroc_gap"], -0.5)
    assert_allclose(of.loc["blind", ["auroc_se", "auroc_gap_se"]].astype(float), 0, atol=1e-12)


@pytest.mark.parametrize("num_unknown", [1, 3, 40])
def test_known_and_unknown_images_are_resampled_each_by_itself(num_unknown: int) -> None:
    # the variance over resamples of P(u > k), two samples drawn apart: by the sums over pairs
    split, other = images(300), images(num_unknown, seed=5)
    method = Known(lambda x: torch.stack([1 - (p := 0.5 + 0.01 * x[:, 0]), p], -1)[None].double())
    fit = judged({"one": method}, split, ood=other)
    row = fit.unknown.set_index("score").loc["entropy"]
    own = fit.fits["one"][0]
    k, u = own[TEST].novelty["entropy"][:, None], own[UNKNOWN].novelty["entropy"]
    above = (u > k) + 0.5 * (u == k)
    by_known, by_unknown, each = above.mean(1).var(), above.mean(0).var(), above.var()
    n, m = above.shape
    variance = by_known / n + by_unknown / m + (each - by_known - by_unknown) / n / m
    assert_allclose(row["auroc"], above.mean())
    if num_unknown == 1:
        assert np.isnan(row["auroc_se"])  # one image says nothing of others
    else:
        assert_allclose(row["auroc_se"], math.sqrt(variance), rtol=4 / math.sqrt(2 * 99))


def test_an_attack_moves_each_method_by_its_own_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    moved = []

    def attack(*args: Any, **options: Any) -> Attacked:
        moved.append(fgsm(*args, **options))
        return moved[-1]

    monkeypatch.setattr("pyro_bnn.diagnostics.trust.attack.fgsm", attack)
    model = bnn.models.MLP(16, hidden=(3,), likelihood=bnn.likelihoods.Categorical(2))
    fit = bnn.SVI(bnn.guides.AutoDelta, num_steps=50, compile=False)
    posterior = fit.run(model, SPLIT.train, progress=False)
    found = judged({"map": posterior}, attack=0.1, num_rows=25)
    row = found.attacked.loc["map"]
    assert row["moved"] < row["control"]
    assert_allclose(row["lost"], row["moved"] - row["control"])
    (own,) = found.fits["map"]
    assert len(own[MOVED].probs) == 25
    # by a tenth of the largest pixel, or up to black or white
    before, after = (Pixels.of(SPLIT).images(x) for x in (SPLIT.test.x[:25], moved[0].x))
    step = np.abs(after - before)
    assert_allclose(step[(before > 0.11) & (before < 0.89)], 0.1, atol=1e-6)
    assert step.max() < 0.1 + 1e-6


def test_a_page_is_written_with_its_tables(tmp_path: Path) -> None:
    other = images(20, seed=2)
    fits = {"a": [constant(0.8, Y), constant(0.79, Y)], "b": [constant(0.6, Y)]}
    found = judged(fits, SPLIT, ood=other, corruptions=(2,), kinds=("rotate", "inverse"))
    found.save(tmp_path, command="pyro-bnn trust ...")
    text = (tmp_path / "index.html").read_text()
    for words in (
        found.answer.headline,
        "pyro-bnn trust ...",
        "1 to 2 fits each",
        "Rotate",
        "over seeds",
        "the variance over seeds is that of all methods",
        "smooth ECE",
    ):
        assert words in text
    for name, table in (("table", found.table), ("shifted", found.shifted)):
        read = pd.read_csv(tmp_path / f"{name}.csv", index_col="method")
        pd.testing.assert_frame_equal(read, table, check_dtype=False)
    assert len(pd.read_csv(tmp_path / "unknown.csv")) == len(found.unknown)
    assert not (tmp_path / "attacked.csv").exists()
    assert "Trust a here" in repr(found)
    assert set(found.figures) == {"rejection", "calibration", "shift", "unknown"}


def test_ten_thousand_rows_and_a_hundred_draws_take_two_seconds() -> None:
    """At most eight times one softmax of the draws, of a quarter of a second on a quiet core.

    The numbers alone, not their errors. Both sides are timed in turns, as a machine with other work
    slows both.
    """
    rng = np.random.default_rng(0)
    f = rng.normal(size=(100, 10_000, 10)) + 3 * np.eye(10)[rng.integers(0, 10, 10_000)]
    y = rng.integers(0, 10, 10_000)

    def numbers(f: np.ndarray, y: np.ndarray) -> list[float]:
        draws = class_draws(f)
        probs = draws.mean(0)
        scored = Scored(probs, np.log(probs[np.arange(len(y)), y]), novelty_scores(draws, f))
        found = [value_of(n.value, scored.at(np.arange(len(y)), y)) for n in OF_TEST_ROWS]
        of = scored.novelty["entropy"]
        known, unknown = np.split(of, 2)
        rate = fpr95(known, unknown, positive="known")
        found += of_pairs(scored, y).values()
        floors = equal_mass_floor(probs), smooth_ece_floor(probs)
        return [*found, *floors, auroc(known, unknown), rate]

    def seconds(work: Callable[[], object]) -> float:
        start = time.process_time()
        work()
        return time.process_time() - start

    assert np.isfinite(numbers(f[:, :1_000], y[:1_000])).all()  # imports are not timed
    turns = [(seconds(lambda: numbers(f, y)), seconds(lambda: class_draws(f))) for _ in range(3)]
    assert min(whole for whole, _ in turns) < 8 * min(softmax for _, softmax in turns)


def test_what_cannot_be_judged_is_refused() -> None:
    one = {"a": constant(0.8, Y)}
    with pytest.raises(OptionError, match="nothing to judge"):
        judged({}, SPLIT)
    with pytest.raises(OptionError, match="nothing to judge"):
        judged({"a": []}, SPLIT)
    with pytest.raises(OptionError, match="the name of a posterior is text, not 1: take '1'"):
        judged({1: constant(0.8, Y)}, SPLIT)
    with pytest.raises(DataError, match=r"are a pyro_bnn.data.Split, .* not Dataset"):
        judged(one, cast(Any, SPLIT.test))
    with pytest.raises(DataError, match="diabetes is a regression set"):
        judged(one, bnn.data.load("diabetes"))
    with pytest.raises(OptionError, match="attack is a step > 0"):
        judged(one, SPLIT, attack=0.0)
    with pytest.raises(OptionError, match="attack is a step > 0"):
        check_trust(SPLIT, attack=math.inf)  # before a fit
    with pytest.raises(OptionError, match="give their severities as well"):
        judged(one, SPLIT, kinds=("rotate",))


def test_a_bar_counts_the_sets_that_are_judged(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = SPLIT.test.x[:5]
    monkeypatch.setattr(
        "pyro_bnn.report.beyond.trust._attacked", lambda *_: Attacked(rows, rows, rows)
    )
    fits = {"sure": [constant(0.8, Y), constant(0.7, Y)], "less": constant(0.6, Y)}
    of_others: dict[str, Any] = {"corruptions": [1], "kinds": ["inverse", "shear"], "attack": 0.1}
    judged(fits, ood=images(20, seed=2), **of_others, progress=True)
    assert "18/18" in capsys.readouterr().err  # test, two corruptions, unknown, attack and control
    judged({"sure": constant(0.8, Y)})
    assert not capsys.readouterr().err


def test_agreement_and_total_variation_against_a_reference() -> None:
    methods = {"nuts": constant(0.9, Y), "near": constant(0.8, Y), "far": constant(0.3, Y)}
    table = judged(methods, reference="nuts").table
    assert_allclose(table.loc["near", ["agreement", "total_variation"]].astype(float), [1, 0.1])
    assert_allclose(table.loc["far", ["agreement", "total_variation"]].astype(float), [0, 0.6])
    assert math.isnan(table.loc["nuts", "agreement"])
    assert_allclose(table.loc["far", "total_variation_se"], 0, atol=1e-12)
    found = judged(methods, reference=constant(0.9, Y))  # another posterior
    assert_allclose(found.table["total_variation"], [0, 0.1, 0.6], atol=1e-12)
    assert "likeliest class is that of the reference" in found.summary()
    assert "Distance to the reference" in [table.title for table in tables(found)]
    assert "agreement" not in judged(methods).table
    with pytest.raises(OptionError, match="'hmc' is none of the methods: name one of nuts, near"):
        judged(methods, reference="hmc")
