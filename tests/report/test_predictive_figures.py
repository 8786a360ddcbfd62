"""What the figures of predictions show is what was computed."""

import numpy as np
from numpy.testing import assert_allclose

from pyro_bnn.report import Comparison
from pyro_bnn.report.predictive_figures import (
    band,
    pit_histograms,
    predictions,
    reliability,
    smooth_edges,
)
from pyro_bnn.report.theme import LIGHT
from tests.report.drawn import heights, xs, ys


def test_predictions_mark_the_points_outside_their_interval(regression: Comparison) -> None:
    figure = predictions(regression, LIGHT)
    panels = [ax for ax in figure.axes if ax.get_visible()]
    assert len(panels) == 5
    for ax, entry in zip(panels, regression.ranked, strict=True):
        inside, outside = ax.lines[:2]
        assert entry.held_out.coverage is not None
        share = xs(inside).size / (xs(inside).size + xs(outside).size)
        assert abs(share - entry.held_out.coverage.observed) <= 1 / 60
        assert f"RMSE {entry.held_out.rmse:.1f}" in ax.texts[0].get_text()
    assert figure.get_supxlabel().replace("\xa0", " ") == "predicted y: mean and 95 % interval"


def test_pit_histograms_hold_every_row(regression: Comparison) -> None:
    figure = pit_histograms(regression, LIGHT)
    for ax in figure.axes[:5]:
        assert heights(ax.patches[-1]).sum() == 60


def test_reliability_shows_every_bin_with_rows(classes: Comparison) -> None:
    figure = reliability(classes, LIGHT)
    for ax, entry in zip(figure.axes, classes.ranked, strict=False):
        curve = entry.held_out.reliability
        assert curve is not None
        shown = ax.collections[-1].get_offsets()
        assert_allclose(np.asarray(shown)[:, 1], curve.accuracy[curve.count > 0])


def test_the_band_is_drawn_over_the_users_units(one_input: Comparison) -> None:
    figure = band(one_input, LIGHT)
    x, y = one_input.split.train.raw()
    grid = xs(figure.axes[0].lines[0])
    assert grid[0] < float(x.min())
    assert grid[-1] > float(x.max())
    assert_allclose(ys(figure.axes[0].lines[1]), y, rtol=1e-5)
    by_name = dict(zip([place.name for place in one_input.ranking], figure.axes, strict=False))
    assert len(by_name["MAP"].collections) == 1  # noise only: a point has no epistemic band
    assert len(by_name["exact"].collections) == 2


def test_smoothing_leaves_lines_straight_and_ends_in_place() -> None:
    edges = np.stack([np.linspace(0, 1, 50), np.linspace(5, 3, 50)])
    assert_allclose(smooth_edges(edges), edges, atol=1e-12)
