"""What the figures of predictions show is what was computed."""

import dataclasses

import numpy as np
from numpy.testing import assert_allclose

from pyro_bnn.report import Comparison
from pyro_bnn.report.plots.predictive import smooth_edges
from tests.report.drawn import xs, ys


def test_predictions_mark_the_points_outside_their_interval(regression: Comparison) -> None:
    figure = regression.figures["predictions"]
    panels = [ax for ax in figure.axes if ax.get_visible()]
    assert len(panels) == 5
    for ax, entry in zip(panels, regression.ranked, strict=True):
        inside, outside = ax.lines[:2]
        assert entry.held_out.coverage is not None
        share = xs(inside).size / (xs(inside).size + xs(outside).size)
        assert abs(share - entry.held_out.coverage.observed) <= 1 / 60
        assert f"RMSE {entry.held_out.rmse:.1f}" in ax.texts[0].get_text()
    assert figure.get_supxlabel().replace("\xa0", " ") == "predicted y: mean and 95 % interval"


def test_words_of_predictions_give_both_ends(regression: Comparison) -> None:
    words = regression.figures.alternative("predictions")
    assert "at 60 held-out rows" in words
    for key in ("rmse", "coverage_95"):
        values = regression.table[key]
        assert f"({values.idxmin()}) to " in words
        assert f"({values.idxmax()})" in words


def test_medians_are_called_medians_where_there_is_no_mean(regression: Comparison) -> None:
    entry = regression.evaluations["shifted"]
    held_out = dataclasses.replace(entry.held_out, has_mean=False)
    comparison = Comparison(
        regression.evaluations | {"shifted": dataclasses.replace(entry, held_out=held_out)},
        regression.split,
        reference=None,
        num_draws=1_000,
        seed=0,
    )
    assert "median where the tails have no mean" in comparison.figures.describe("predictions")
    assert "median" not in regression.figures.describe("predictions")


def test_words_of_the_band_give_its_coverage(one_input: Comparison) -> None:
    shares = one_input.table["coverage_95"]
    words = one_input.figures.alternative("band").replace("\xa0", " ")
    assert f"{100 * shares.min():.1f} %" in words
    assert f"of {len(one_input.split.test)} held-out rows" in words


def test_the_band_is_drawn_over_the_users_units(one_input: Comparison) -> None:
    figure = one_input.figures["band"]
    x, y = one_input.split.train.raw()
    grid = xs(figure.axes[0].lines[0])
    assert grid[0] < float(x.min())
    assert grid[-1] > float(x.max())
    assert_allclose(ys(figure.axes[0].lines[1]), y, rtol=1e-5)
    assert_allclose(xs(figure.axes[0].lines[1]), x[:, 0], rtol=1e-5)
    by_name = dict(zip([place.name for place in one_input.ranking], figure.axes, strict=False))
    assert len(by_name["MAP"].collections) == 1  # noise only: a point has no epistemic band
    assert len(by_name["exact"].collections) == 2


def test_smoothing_leaves_lines_straight_and_ends_in_place() -> None:
    edges = np.stack([np.linspace(0, 1, 50), np.linspace(5, 3, 50)])
    assert_allclose(smooth_edges(edges), edges, atol=1e-12)
