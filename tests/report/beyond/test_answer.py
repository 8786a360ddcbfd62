"""What the page says of numbers: which differences it tells, and which it does not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import pyro_bnn as bnn
from pyro_bnn.report import Trust
from pyro_bnn.report.beyond.answer import _unknown
from pyro_bnn.report.beyond.numbers import CONTROL, MOVED, TEST, UNKNOWN, Fit, TrustNumbers
from pyro_bnn.report.beyond.scored import ENTROPY, Scored
from tests.report.beyond.known import NUM_TEST, constant, images

SPLIT = images()
Y = SPLIT.test.y


def said(found: Trust | TrustNumbers) -> dict[str, str]:
    """The statements by their label."""
    from pyro_bnn.report.beyond.answer import answer

    return {one.label: one.text for one in answer(found).statements}


def often_right(share: float, confidence: float, num_rows: int = 600) -> str:
    """What is said of the calibration of one probability for all rows, right in a share of them."""
    right = np.arange(num_rows) // 2 % 20 < 20 * share  # alike in both halves
    p = np.where(right, confidence, 1 - confidence)
    return of_calibration(p)


def of_calibration(p: np.ndarray) -> str:
    """What is said of the calibration of rows, by the probability of the class of each."""
    split = images(len(p))
    y = split.test.y.numpy()
    probs = np.stack([np.where(y == 0, p, 1 - p), np.where(y == 1, p, 1 - p)], -1)
    scored = Scored(probs, np.log(p), {ENTROPY: np.zeros(len(p))})
    fits = {"one": [{TEST: scored}]}
    return said(TrustNumbers(split, fits, num_draws=1))["Calibration"]


def test_who_is_off_is_told_in_which_direction() -> None:
    # right in 3 of 4 rows: log odds of log 3, where log 63 and log(9 / 7) are said; the
    # probabilities are sums of powers of 2, so that those of all rows are equal
    assert "of chance: one (ECE 0.234, floor" in often_right(0.75, 63 / 64)
    assert "too sure: temperature 3.77" in often_right(0.75, 63 / 64)
    assert "of chance: one (ECE 0.188, floor" in often_right(0.75, 9 / 16)
    assert "not sure enough: temperature 0.229" in often_right(0.75, 9 / 16)
    assert often_right(0.75, 0.75).startswith("not shown to be off: one.")


def test_a_calibration_that_too_few_images_tell_is_not_called_right() -> None:
    # a single row is alone in its bin
    assert often_right(0.75, 63 / 64, num_rows=1).startswith("too few rows to say: one.")


@pytest.mark.parametrize(("power", "least", "most"), [(1.0, 0, 3), (2.0, 7, 10)])
def test_too_sure_probabilities_are_found_and_right_ones_are_not(
    power: float, least: int, most: int
) -> None:
    # right ones are off by two standard deviations in 5 of 100 at most, these sharp ones in most
    rng, num_off = np.random.default_rng(0), 0
    for _ in range(10):
        odds = np.exp(2.5 * rng.normal(size=400))
        odds = np.where(rng.uniform(size=400) < odds / (1 + odds), odds, 1 / odds)
        num_off += "probabilities are off" in of_calibration(1 / (1 + odds**-power))
    assert least <= num_off <= most


def of_entropy(entropy: np.ndarray, right: np.ndarray) -> Scored:
    """Rows of two classes, of which the entropy and whether they are right are given."""
    p = np.where(right, 0.7, 0.3)
    probs = np.stack([np.where(Y == 0, p, 1 - p), np.where(Y == 1, p, 1 - p)], -1)
    return Scored(probs, np.log(p), {ENTROPY: entropy})


def test_an_area_under_the_risk_that_is_higher_is_told_as_worse() -> None:
    order, right = np.arange(float(NUM_TEST)), np.arange(NUM_TEST) < 0.7 * NUM_TEST
    fits = {
        "perfect": [{TEST: of_entropy(order, right)}],
        "backward": [{TEST: of_entropy(-order, right)}],
        "alike": [{TEST: of_entropy(order * 2, right)}],
    }
    text = said(TrustNumbers(SPLIT, fits, num_draws=1))["Rejection"]
    assert "of perfect (at random 0.150, at best 0.0450)" in text  # e / 2 and e^2 / 2
    assert "; worse: backward by 0.21" in text  # e (1 - e)
    assert "not told from it: alike" in text
    assert "better" not in text.replace("lower is better", "")
    assert "all pairs at once" in text
    del fits["alike"]
    text = said(TrustNumbers(SPLIT, fits, num_draws=1))["Rejection"]
    assert "; worse: backward by 0.21" in text
    assert text.endswith(" (told from 2 paired errors on).")


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_unknown_inputs_are_told_only_above_chance(sign: float) -> None:
    right = np.ones(NUM_TEST, dtype=bool)
    test = of_entropy(np.linspace(0.0, 1.0, NUM_TEST), right)
    unknown = of_entropy(np.linspace(0.0, 1.0, NUM_TEST) + 0.5 * sign, right)
    fits = {"one": [{TEST: test, UNKNOWN: unknown}]}
    text = said(TrustNumbers(SPLIT, fits, num_draws=1, ood_name="others"))["Unknown inputs"]
    told = "by its entropy one tells others from the test images best (AUROC 0.8"
    not_told = "no method is shown to tell others from the test images by its entropy"
    assert text.startswith(told if sign > 0 else not_told)


def test_each_method_is_told_by_the_scatter_of_its_own_fits() -> None:
    right, even = np.ones(NUM_TEST, dtype=bool), np.linspace(0.0, 1.0, NUM_TEST)

    def fits(*shifts: float) -> list[Fit]:
        test = of_entropy(even, right)
        return [{TEST: test, UNKNOWN: of_entropy(even + shift, right)} for shift in shifts]

    of = {"steady": fits(0.1, 0.1), "also": fits(0.12, 0.12), "scatters": fits(0.2, 0.45)}
    found = TrustNumbers(SPLIT, of, num_draws=1, ood_name="others")
    table = found.unknown.set_index(["score", "method"]).loc[ENTROPY]
    assert table["auroc"].idxmax() == "scatters" != found.names[0]
    best = table.loc["scatters"]
    assert 2.5 < (best["auroc"] - 0.5) / best["auroc_se"] < 5 < best["auroc_told"]
    assert best["auroc_gap_told"] == 2.0
    others = table.drop(index="scatters")
    assert (others["auroc_gap_told"] > 5).all()  # each from the best, whose error has one degree
    assert (others["auroc_told"] < 3).all()
    assert said(found)["Unknown inputs"].startswith("no method is shown to tell others")


@pytest.mark.slow("resamples eight methods on ten pages")
def test_the_best_of_eight_equal_methods_is_seldom_told_from_the_others() -> None:
    # by two errors of each pair more than half of such pages tell some method from the best
    rng, right, num_told = np.random.default_rng(4), np.ones(NUM_TEST, dtype=bool), 0
    for _ in range(10):
        fits = {
            str(k): [{TEST: test, UNKNOWN: unknown}]
            for k in range(8)
            for test, unknown in [
                (of_entropy(rng.normal(size=NUM_TEST) + shift, right) for shift in (0.0, 1.0))
            ]
        }
        found = TrustNumbers(SPLIT, fits, num_draws=1, ood_name="others")
        text = _unknown(found.unknown, "others")  # no other statement is made
        assert "all pairs at once: of equal methods" in text
        num_told += "; worse: " in text
    assert num_told <= 3


def test_an_attack_that_costs_no_more_than_at_random_is_said_to() -> None:
    order, right = np.arange(float(NUM_TEST)), np.arange(NUM_TEST) % 4 > 0
    as_it_is, hurt = of_entropy(order, right), of_entropy(order, np.arange(NUM_TEST) % 4 > 2)
    at_random = of_entropy(order, right & (order > 1))
    fits = {
        "hurt": [{TEST: as_it_is, MOVED: hurt, CONTROL: as_it_is}],
        "spared": [{TEST: as_it_is, MOVED: as_it_is, CONTROL: at_random}],
    }
    text = said(TrustNumbers(SPLIT, fits, num_draws=1, epsilon=0.1))["Attack"]
    assert text.startswith(
        "every pixel is moved by up to 0.1 of the largest, within black and white"
    )
    assert "hurt 0.4" in text  # half of the rows lose log(0.7 / 0.3)
    assert text.endswith("not shown to cost more than at random: spared.")


def test_methods_with_one_fit_are_named_where_others_have_several() -> None:
    fits: Any = {"a": [constant(0.8, Y), constant(0.7, Y)], "b": [constant(0.6, Y)]}
    text = said(bnn.trust(fits, SPLIT))["Not in the errors"]
    assert "one fit of b was judged. The ranking takes its scatter over seeds from the" in text
    several: Any = {"a": fits["a"]}
    assert "Not in the errors" not in said(bnn.trust(several, SPLIT))
