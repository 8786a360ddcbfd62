"""The figures of a comparison by name, drawn when they are first asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from pyro_bnn.errors import UnknownNameError
from pyro_bnn.plotting.theme import svg
from pyro_bnn.report.plots.calibration import pit_differences, rejection, reliability
from pyro_bnn.report.plots.fit import (
    elbo_traces,
    rank_plots,
    with_chains,
    with_elbo,
)
from pyro_bnn.report.plots.panels import DrawnFigure
from pyro_bnn.report.plots.predictive import band, has_one_input, is_regression, predictions
from pyro_bnn.report.plots.score import (
    against_reference,
    has_distances,
    scores,
    spread_by_row,
    with_spread,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class Plot(NamedTuple):
    """One kind of figure.

    Attributes:
        title: Heading in the report.
        applies: Whether a comparison has what the figure shows; anything but empty or None.
        draw: Draws it, with its words.
    """

    title: str
    applies: Callable[[Any], object]
    draw: Callable[[Any], DrawnFigure]


PLOTS = {
    "reference": Plot("Against the reference", has_distances, against_reference),
    "scores": Plot("Score and cost",
                   lambda comparison: len(comparison.ranking) > 1, scores),
    "spread": Plot("Uncertainty of the function, row by row", with_spread, spread_by_row),
    "predictions": Plot("Prediction against observation", is_regression, predictions),
    "band": Plot("Predictive band", has_one_input, band),
    "pit": Plot("Calibration: PIT against uniform", is_regression, pit_differences),
    "reliability": Plot("Calibration: reliability diagrams",
                        lambda comparison: not is_regression(comparison), reliability),
    "rejection": Plot("Accuracy when uncertain rows are rejected",
                      lambda comparison: not is_regression(comparison), rejection),
    "elbo": Plot("ELBO during the fit", with_elbo, elbo_traces),
    "ranks": Plot("Do the chains agree? Ranks of the function", with_chains, rank_plots),
}  # fmt: skip


FIRST = ("reference", "scores")
"""Figures that the answer is read from."""


class Picture(NamedTuple):
    """A figure of a page.

    Attributes:
        name: Unique on the page.
        title: Heading.
        alternative: What it shows with its main number, for readers who cannot see it.
        caption: How to read it.
        svg: The picture.
        inches: Width.
    """

    name: str
    title: str
    alternative: str
    caption: str
    svg: str
    inches: float


class Figures(Mapping[str, "Figure"]):
    """Figures of a comparison; a figure is drawn when it is first looked up.

    Args:
        comparison: The comparison.
        plots: All kinds of figures by name.
    """

    def __init__(self, comparison: Any, plots: Mapping[str, Plot] = PLOTS) -> None:
        self._comparison, self._plots = comparison, plots
        self._names = [name for name, plot in plots.items() if plot.applies(comparison)]
        self._drawn: dict[str, DrawnFigure] = {}

    def drawn(self, name: str) -> DrawnFigure:
        """A figure with its words."""
        if name not in self._names:
            raise UnknownNameError("figure", name, self._names)
        if name not in self._drawn:
            self._drawn[name] = self._plots[name].draw(self._comparison)
        return self._drawn[name]

    def __getitem__(self, name: str) -> Figure:
        return self.drawn(name).figure

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def __repr__(self) -> str:
        return f"Figures({', '.join(self._names)})"

    def describe(self, name: str) -> str:
        """How to read a figure: its caption."""
        return self.drawn(name).caption

    def alternative(self, name: str) -> str:
        """What a figure shows with its main numbers, in place of the picture."""
        return self.drawn(name).words

    def pictures(self) -> list[Picture]:
        """All of them for a page."""
        found = []
        for name in self:
            figure, caption, words = self.drawn(name)
            title, width = self._plots[name].title, figure.get_figwidth()
            found.append(Picture(name, title, words, caption, svg(figure, name), width))
        return found
