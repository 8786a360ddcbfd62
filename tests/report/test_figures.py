"""Figures are lazy, named, and free of pyplot."""

import re
import sys

import pytest
from matplotlib.figure import Figure

from pyro_bnn.errors import UnknownNameError
from pyro_bnn.report import Comparison
from pyro_bnn.report.comparison import Evaluations
from pyro_bnn.report.plots.figures import PLOTS, Figures
from pyro_bnn.report.plots.panels import DrawnFigure


def test_each_comparison_offers_what_it_can_show(
    regression: Comparison, one_input: Comparison, classes: Comparison
) -> None:
    assert list(regression.figures) == [
        "reference", "scores", "spread", "predictions", "pit", "elbo", "ranks",
    ]  # fmt: skip
    assert "band" in one_input.figures
    assert "reference" not in one_input.figures
    assert "reliability" in classes.figures
    assert "predictions" not in classes.figures
    assert "rejection" in classes.figures
    assert len(classes.figures) == 7
    assert repr(one_input.figures) == "Figures(scores, predictions, band, pit)"


def test_a_figure_is_drawn_once_and_only_when_asked_for(
    regression: Comparison, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[Evaluations] = []
    plot = PLOTS["scores"]

    def draw(comparison: Evaluations) -> DrawnFigure:
        drawn.append(comparison)
        return plot.draw(comparison)

    monkeypatch.setitem(PLOTS, "scores", plot._replace(draw=draw))
    figures = Figures(regression)
    assert drawn == []
    assert figures["scores"] is figures["scores"]
    assert figures.describe("scores").endswith(".")
    assert drawn == [regression]


def test_an_unknown_figure_suggests_the_nearest(regression: Comparison) -> None:
    with pytest.raises(UnknownNameError, match=r"unknown figure 'score': did you mean 'scores'"):
        regression.figures["score"]


@pytest.mark.slow("a second or more")
@pytest.mark.parametrize("kind", ["regression", "one_input", "classes"])
def test_every_figure_draws_and_says_what_it_shows(
    kind: str, request: pytest.FixtureRequest
) -> None:
    comparison: Comparison = request.getfixturevalue(kind)
    figures = comparison.figures
    for name, figure in figures.items():
        assert isinstance(figure, Figure)
        figure.draw_without_rendering()
        assert any(ax.get_visible() for ax in figure.axes)
        for words in (figures.describe(name), figures.alternative(name)):
            assert words.endswith(".")
            assert not re.search(r"\bnan\b", words)
        assert re.search(r"\d", figures.alternative(name))


def test_pyplot_holds_no_figure(regression: Comparison) -> None:
    before = open_figures()
    assert isinstance(regression.figures["elbo"], Figure)
    assert open_figures() == before


def open_figures() -> list[int]:
    """Those of pyplot, of which other tests may have left some."""
    pyplot = sys.modules.get("matplotlib.pyplot")
    return [] if pyplot is None else list(pyplot.get_fignums())
