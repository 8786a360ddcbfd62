"""What the figures of scores show is what was computed."""

import dataclasses
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose

from pyro_bnn.diagnostics.ranking import rank
from pyro_bnn.plotting.theme import PAPER
from pyro_bnn.report import Comparison, compare
from pyro_bnn.report.plots.score import _left_end, against_reference, scores
from tests.report.conjugate import LinearPosterior, regression_split
from tests.report.drawn import bar_ends, xs, ys


def test_scores_show_paired_differences_with_two_standard_errors(regression: Comparison) -> None:
    ax, times = regression.figures["scores"].axes
    labels = [label.get_text().replace("\n", "") for label in ax.get_yticklabels()]
    assert labels == [place.name for place in regression.ranking]
    for container, place in zip(ax.containers, regression.ranking, strict=True):
        low, high = bar_ends(container)
        assert_allclose((low + high) / 2, place.difference.mean, atol=1e-12)
        assert_allclose((high - low) / 4, place.difference.standard_error, atol=1e-12)
    texts = [text.get_text() for text in ax.texts]
    assert texts[0] == "best"
    assert sum("tied" in text for text in texts) == 3
    assert texts[4].endswith("behind")
    at = [float(xs(line)[-1]) for line in times.lines if xs(line).size == 2]
    assert_allclose(
        at, [regression.table.loc[place.name, "seconds"] for place in regression.ranking]
    )
    assert times.get_xscale() == "log"


def with_a_loss(comparison: Comparison, lost: float) -> Comparison:
    """The comparison where "shifted" loses so many nats on one row."""
    entry = comparison.evaluations["shifted"]
    log_score = entry.held_out.log_score.copy()
    log_score[3] -= lost
    held_out = dataclasses.replace(entry.held_out, log_score=log_score)
    return Comparison(
        comparison.evaluations | {"shifted": dataclasses.replace(entry, held_out=held_out)},
        comparison.split,
        reference=None,
        num_draws=1_000,
        seed=0,
    )


def test_an_infinite_score_is_written_but_not_drawn(regression: Comparison) -> None:
    drawn = scores(with_a_loss(regression, np.inf))
    ax, _ = drawn.figure.axes
    assert len(ax.containers) == 4
    assert "−∞" in drawn.words


def test_a_method_that_fails_on_a_row_leaves_the_others_in_view(
    regression: Comparison, classes: Comparison
) -> None:
    comparison = with_a_loss(regression, 1e5)
    drawn = scores(comparison)
    ax, _ = drawn.figure.axes
    bars = [bar_ends(bar) for bar in ax.containers]
    left, right = ax.get_xlim()
    assert comparison.ranking[-1].name == "shifted"
    assert all(left < low <= high < right for low, high in bars[:-1])
    assert left > 3 * min(low for low, _ in bars[:-1])
    assert bars[-1][0] < left
    arrows = [line for line in ax.lines if line.get_marker() == "<"]
    assert [float(ys(line)[0]) for line in arrows] == [len(bars) - 1]
    assert "An arrow at the edge: shifted reaches beyond it" in drawn.caption
    assert "An arrow" not in scores(classes).caption


def ends(**rows: list[float]) -> float:
    """The left end of the axis of methods with these log scores."""
    return _left_end(rank({name: np.tile(row, 3) for name, row in rows.items()}))


def test_the_axis_ends_beyond_the_nearer_half_of_the_methods() -> None:
    """Bars of scores that differ by a constant have no length."""
    best = [0.0, 1.0]
    assert ends(a=best, b=[-0.3, 0.7], c=[-1500.0, -1499.0]) == pytest.approx(-0.3)
    assert ends(a=best, b=[-0.3, 0.7], c=[-3.0, -2.0]) == pytest.approx(-3.0)
    assert ends(a=best, b=best, c=[-0.1, 0.9]) == pytest.approx(-0.1)
    assert ends(a=best, b=best) == -np.inf  # no bar but at 0
    impossible = [-np.inf, 1.0], [-np.inf, 2.0]  # on one row, so that no mean is above another
    assert ends(a=impossible[0], b=impossible[1]) == -np.inf


def test_the_reference_figure_shows_values_floor_and_ratio(regression: Comparison) -> None:
    left, right = regression.figures["reference"].axes
    compared = [entry.at_rows for entry in regression.ranked if entry.at_rows is not None]
    ends = [xs(line)[-1] for line in left.lines if xs(line).size == 2]
    expected = [at_rows.distance.value for at_rows in compared]
    assert_allclose(np.array(ends), np.array(expected))
    assert "sds of y" in left.get_xlabel()
    both = [it for e in regression.ranked for it in (e.at_rows, e.off_data) if it is not None]
    assert len(both) == 2 * len(compared)
    for container, at in zip(right.containers, both, strict=True):
        assert_allclose(bar_ends(container), np.quantile(at.sd_ratio.values, [0.05, 0.95]))
    assert regression.probes is not None
    assert regression.probes.description in regression.figures.describe("reference")


@pytest.mark.slow("about a second")
def test_marks_are_open_where_the_reference_is_of_another_model() -> None:
    split = regression_split()
    comparison = compare(
        {
            "alike": LinearPosterior(split, spread=0.9),
            "elsewhere": LinearPosterior(split, spread=0.9, model="another"),
            "NUTS": LinearPosterior(split, "NUTS", "NUTS", stored=1_200, num_chains=4),
        },
        split,
        reference="NUTS",
    )
    names = [entry.name for entry in comparison.ranked if entry.at_rows is not None]
    found = against_reference(comparison)
    left, right = found.figure.axes
    marks = [line for line in left.lines if line.get_marker() not in ("None", "")]
    bars: list[Any] = [container.lines[0] for container in right.containers]  # type: ignore[attr-defined]
    for drawn in (marks, bars[::2], bars[1::2]):
        inside = {name: mark.get_markerfacecolor() for name, mark in zip(names, drawn, strict=True)}
        outside = {
            name: mark.get_markeredgecolor() for name, mark in zip(names, drawn, strict=True)
        }
        assert inside["elsewhere"] == PAPER != outside["elsewhere"]
        assert inside["alike"] == outside["alike"] != PAPER
    words = "The open mark is of elsewhere, which answers under another model than NUTS or holds"
    assert words in found.caption
    assert "the grey does not judge it" in found.caption
    assert "Of another model, not judged: elsewhere." in found.words


def test_marks_are_full_where_all_share_the_reference_model(regression: Comparison) -> None:
    left, _ = regression.figures["reference"].axes
    marks: list[Any] = [line for line in left.lines if line.get_marker() not in ("None", "")]
    assert all(mark.get_markerfacecolor() == mark.get_markeredgecolor() for mark in marks)
    assert "open" not in regression.figures.describe("reference")
    assert "not judged" not in regression.figures.alternative("reference")


def test_words_of_scores_name_the_best_the_tied_and_the_last(regression: Comparison) -> None:
    best, *others = regression.ranking
    words = regression.figures.alternative("scores").replace("\xa0", " ")
    assert f"{best.name} is best with −{abs(best.score):.2f}" in words
    tied = ", ".join(place.name for place in others if not place.is_behind)
    assert f"tied with it: {tied};" in words
    assert f"last is {others[-1].name}, " in words


def test_words_of_the_reference_give_both_ends(regression: Comparison) -> None:
    words = regression.figures.alternative("reference")
    for key in ("distance", "sd_ratio"):
        values = regression.table[key].dropna()
        assert f"({values.idxmin()}) to " in words
        assert f"({values.idxmax()})" in words


def test_epistemic_sds_are_drawn_row_by_row(regression: Comparison) -> None:
    figure = regression.figures["spread"]
    titles = [ax.get_title(loc="left").replace("\n", "") for ax in figure.axes if ax.get_visible()]
    expected = [e.name for e in regression.ranked if e.name not in ("MAP", "NUTS")]
    assert titles == expected  # a point has no spread
    across = regression.evaluations["NUTS"].held_out.function_draws.std(0).ravel()
    for ax, name in zip(figure.axes, titles, strict=False):
        (marks,) = [line for line in ax.lines if len(xs(line)) == 60]
        own = regression.evaluations[name].held_out.function_draws.std(0).ravel()
        assert_allclose(xs(marks), across, rtol=1e-6)
        assert_allclose(ys(marks), own, rtol=1e-6)
    share = (
        regression.evaluations["shifted"].held_out.function_draws.std(0).ravel() > across
    ).mean()
    assert f"to {100 * share:.1f}\xa0% (shifted)." in regression.figures.alternative("spread")
