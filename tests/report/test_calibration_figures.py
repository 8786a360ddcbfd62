"""What the figures of calibration show is what was computed."""

import numpy as np
from numpy.testing import assert_allclose

from pyro_bnn.report import Comparison
from pyro_bnn.report.calibration_figures import (
    describe_reliability,
    pit_histograms,
    pit_in_words,
    reliability,
    reliability_in_words,
)
from pyro_bnn.report.theme import LIGHT
from tests.report.drawn import heights


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


def test_words_of_pit_give_the_coverage(regression: Comparison) -> None:
    shares = regression.table["coverage_95"]
    words = pit_in_words(regression)
    assert "of 60 held-out rows" in words
    assert f"({shares.idxmin()}) to " in words
    assert f"({shares.idxmax()}) of the observations" in words


def test_words_of_reliability_give_error_and_floor(classes: Comparison) -> None:
    errors = classes.table["ece"]
    words = reliability_in_words(classes)
    assert f"error from {errors.min():.3g} ({errors.idxmin()})" in words
    assert f"({errors.idxmax()}); calibrated methods would have " in words
    assert f"more of the {len(classes.split.test)} held-out rows" in describe_reliability(classes)
