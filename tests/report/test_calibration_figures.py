"""What the figures of calibration show is what was computed."""

import numpy as np
import pytest
from matplotlib.patches import Rectangle
from numpy.testing import assert_allclose
from scipy.special import softmax

from pyro_bnn.diagnostics import class_uncertainty
from pyro_bnn.report import Comparison
from pyro_bnn.report.evaluation import held_out
from pyro_bnn.report.evaluation.held_out import HeldOut
from pyro_bnn.report.evaluation.units import to_numpy
from pyro_bnn.report.plots.calibration import rejections
from pyro_bnn.report.plots.panels import span
from tests.report.drawn import xs, ys


def test_pit_lines_are_shares_of_rows_less_uniform_ones_in_bands_of_the_posterior_itself(
    regression: Comparison,
) -> None:
    figure = regression.figures["pit"]
    words = regression.figures.alternative("pit")
    away = {}
    for ax, entry in zip(figure.axes, regression.ranked, strict=False):
        values, ecdf = entry.held_out.pit, entry.held_out.pit_difference
        assert values is not None
        assert ecdf is not None
        place = xs(ax.lines[1])
        below = (values[:, None] < place).mean(0)
        below[-1] = 1.0
        assert_allclose(ys(ax.lines[1]), below - place, atol=1e-12)
        (band,) = ax.collections[0].get_paths()
        corners = np.asarray(band.vertices)
        assert_allclose(corners.max(0)[1], ecdf.high.max())
        assert_allclose(corners.min(0)[1], ecdf.low.min())
        away[entry.name] = np.abs(ecdf.difference).max()
    assert f"distance from zero is {span(away)};" in words


def test_bins_that_the_verdict_names_are_shaded(regression: Comparison) -> None:
    shaded = 0
    for ax, entry in zip(regression.figures["pit"].axes, regression.ranked, strict=False):
        bars = entry.held_out.pit_histogram
        assert bars is not None
        starts = [patch.get_x() for patch in ax.patches if isinstance(patch, Rectangle)]
        assert_allclose(starts, bars.edges[:-1][bars.outside])
        shaded += len(starts)
    assert shaded > 0


@pytest.mark.slow("a second or more")
def test_reliability_shows_every_bin_with_rows(classes: Comparison) -> None:
    figure = classes.figures["reliability"]
    for ax, entry in zip(figure.axes, classes.ranked, strict=False):
        curve = entry.held_out.reliability
        assert curve is not None
        shown = ax.collections[-1].get_offsets()
        assert_allclose(np.asarray(shown)[:, 1], curve.accuracy[curve.count > 0])
        counts = [text.get_text() for text in ax.texts if text.get_text().isdigit()]
        assert counts == [str(count) for count in curve.count if count]


def test_words_of_pit_give_the_coverage(regression: Comparison) -> None:
    shares = regression.table["coverage_95"]
    words = regression.figures.alternative("pit")
    assert "of 60 held-out rows" in words
    assert f"({shares.idxmin()}) to " in words
    assert f"({shares.idxmax()}) of the observations" in words


def test_words_of_reliability_give_error_and_floor(classes: Comparison) -> None:
    errors = classes.table["ece"]
    words = classes.figures.alternative("reliability")
    assert f"error from {errors.min():.3g} ({errors.idxmin()})" in words
    assert f"({errors.idxmax()}); calibrated methods would have " in words
    caption = classes.figures.describe("reliability")
    assert f"more of the {len(classes.split.test)} held-out rows" in caption


def test_rejection_shows_accuracy_on_the_rows_that_are_kept(classes: Comparison) -> None:
    figure = classes.figures["rejection"]
    y = to_numpy(classes.split.test.y)
    for ax, entry in zip(figure.axes, classes.ranked, strict=False):
        probs = entry.held_out.probs
        assert probs is not None
        order = np.argsort(-(probs * np.log(probs)).sum(1))
        correct = (probs.argmax(1) == y)[order]
        kept = np.arange(1, len(y) + 1)
        assert_allclose(xs(ax.lines[0]), 1 - kept / len(y))
        assert_allclose(ys(ax.lines[0]), correct.cumsum() / kept)
        assert len(ax.lines) == (2 if entry.held_out.is_point else 3)


def test_rows_are_taken_a_few_at_a_time(
    classes: Comparison, monkeypatch: pytest.MonkeyPatch
) -> None:
    scores, y = classes.evaluations["wide"].held_out, to_numpy(classes.split.test.y)
    probs = softmax(scores.function_draws, -1)  # [S, N, C]
    kl = (probs * np.log(probs / probs.mean(0))).sum(-1).mean(0)
    correct = (probs.mean(0).argmax(1) == y)[np.argsort(kl)]
    for at_once in (held_out.NUMBERS_AT_ONCE, 7 * scores.function_draws[:, 0].size):
        monkeypatch.setattr(held_out, "NUMBERS_AT_ONCE", at_once)
        curve = rejections(scores, y)["mutual information"]
        assert_allclose(curve.accuracy, correct.cumsum() / np.arange(1, len(y) + 1))


def test_two_classes_of_one_logit_have_the_curves_of_two_probabilities() -> None:
    f = np.random.default_rng(0).normal(0, 2, (50, 30, 1))
    p = 1 / (1 + np.exp(-f[..., 0]))
    probs = np.stack([1 - p, p], -1)  # [S, N, 2]
    y = np.arange(30) % 2
    scores = HeldOut(log_score=np.zeros(30), function_draws=f, is_point=False, probs=probs.mean(0))
    curve = rejections(scores, y)["mutual information"]
    expected = class_uncertainty(probs).mutual_information
    correct = (probs.mean(0).argmax(1) == y)[np.argsort(expected)]
    assert_allclose(curve.accuracy, correct.cumsum() / np.arange(1, 31))


def test_words_of_rejection_give_areas_and_accuracies(classes: Comparison) -> None:
    y = to_numpy(classes.split.test.y)
    areas = [rejections(entry.held_out, y)["entropy"].area for entry in classes.ranked]
    words = classes.figures.alternative("rejection")
    assert f"go first from {min(areas):.3g} (" in words
    assert f"most uncertain of {len(y)} are rejected" in classes.figures.describe("rejection")
