"""The figures of a comparison by name, drawn when they are first asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyro_bnn.errors import UnknownNameError
from pyro_bnn.plotting.theme import LIGHT, Theme
from pyro_bnn.report.plots import calibration as calibration_figures
from pyro_bnn.report.plots import fit as fit_figures
from pyro_bnn.report.plots import predictive as predictive_figures
from pyro_bnn.report.plots import score as score_figures

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from pyro_bnn.report.evaluation.comparison import Evaluations


@dataclass(frozen=True)
class Plot:
    """One kind of figure.

    Attributes:
        title: Heading in the report.
        applies: Whether a comparison has what the figure shows.
        draw: Draws it.
        describe: How to read it: the caption.
        in_words: What it shows with its main numbers, for readers who cannot see it.
    """

    title: str
    applies: Callable[[Evaluations], bool]
    draw: Callable[[Evaluations, Theme], Figure]
    describe: Callable[[Evaluations], str]
    in_words: Callable[[Evaluations], str]


PLOTS: dict[str, Plot] = {
    "scores": Plot(
        "Held-out log score, difference to the best",
        lambda comparison: len(comparison.ranking) > 1,
        score_figures.scores,
        score_figures.describe_scores,
        score_figures.scores_in_words,
    ),
    "predictions": Plot(
        "Prediction against observation",
        predictive_figures.is_regression,
        predictive_figures.predictions,
        predictive_figures.describe_predictions,
        predictive_figures.predictions_in_words,
    ),
    "band": Plot(
        "Predictive band",
        predictive_figures.has_one_input,
        predictive_figures.band,
        predictive_figures.describe_band,
        predictive_figures.band_in_words,
    ),
    "pit": Plot(
        "Calibration: PIT histograms",
        predictive_figures.is_regression,
        calibration_figures.pit_histograms,
        calibration_figures.describe_pit,
        calibration_figures.pit_in_words,
    ),
    "reliability": Plot(
        "Calibration: reliability diagrams",
        lambda comparison: not predictive_figures.is_regression(comparison),
        calibration_figures.reliability,
        calibration_figures.describe_reliability,
        calibration_figures.reliability_in_words,
    ),
    "rejection": Plot(
        "Accuracy when uncertain rows are rejected",
        lambda comparison: not predictive_figures.is_regression(comparison),
        calibration_figures.rejection,
        calibration_figures.describe_rejection,
        calibration_figures.rejection_in_words,
    ),
    "reference": Plot(
        "Against the reference",
        score_figures.has_distances,
        score_figures.against_reference,
        score_figures.describe_reference,
        score_figures.reference_in_words,
    ),
    "elbo": Plot(
        "ELBO during the fit",
        fit_figures.has_losses,
        fit_figures.elbo_traces,
        fit_figures.describe_elbo,
        fit_figures.elbo_in_words,
    ),
    "ranks": Plot(
        "Do the chains agree? Ranks of the function",
        fit_figures.has_chains,
        fit_figures.rank_plots,
        fit_figures.describe_ranks,
        fit_figures.ranks_in_words,
    ),
    "khat": Plot(
        "k-hat: can draws of the guides be reweighted to the posterior?",
        fit_figures.has_khat,
        fit_figures.khats,
        fit_figures.describe_khat,
        fit_figures.khat_in_words,
    ),
}


class Figures(Mapping[str, "Figure"]):
    """Figures of a comparison; a figure is drawn when it is first looked up.

    Args:
        comparison: The comparison.
        theme: Colours, light where not given.
    """

    def __init__(self, comparison: Evaluations, theme: Theme = LIGHT) -> None:
        self._comparison = comparison
        self.theme = theme
        self._names = [name for name, plot in PLOTS.items() if plot.applies(comparison)]
        self._drawn: dict[str, Figure] = {}

    def __getitem__(self, name: str) -> Figure:
        if name not in self._names:
            raise UnknownNameError("figure", name, self._names)
        if name not in self._drawn:
            self._drawn[name] = PLOTS[name].draw(self._comparison, self.theme)
        return self._drawn[name]

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
        return PLOTS[name].describe(self._comparison)

    def alternative(self, name: str) -> str:
        """What a figure shows with its main numbers, in place of the picture."""
        return PLOTS[name].in_words(self._comparison)
