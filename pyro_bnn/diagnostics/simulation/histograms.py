"""Figures of simulation-based calibration: histograms with the band that chance allows."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol

import numpy as np

from pyro_bnn.diagnostics.bands import BAND_PROBABILITY, binomial_band
from pyro_bnn.diagnostics.simulation.uniformity import Uniformity
from pyro_bnn.plotting.theme import LIGHT, Theme, canvas, grid_shape, hide_unused, show_counts

if TYPE_CHECKING:
    from matplotlib.figure import Figure


MAX_COLUMNS = 3  # room for two words in a title


class Simulated(Protocol):
    """What is drawn of simulations; see ``SimulationRanks`` and ``SimulationProbabilities``."""

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the quantities."""
        ...

    @property
    def num_simulations(self) -> int:
        """Number of simulated data sets."""
        ...

    @property
    def uniformities(self) -> Mapping[str, Uniformity]:
        """Test of each quantity, with the counts of its histogram."""
        ...

    def is_uniform(self, name: str) -> bool:
        """Whether no error was found in a quantity."""
        ...

    def shape_of(self, name: str) -> str:
        """What is found of a quantity, in words."""
        ...


def histograms(
    found: Simulated,
    p_values: Mapping[str, float],
    ends: tuple[float, float],
    label: str,
    theme: Theme = LIGHT,
) -> Figure:
    """Histograms, a panel a quantity; those with an error in another colour.

    Args:
        found: What was simulated.
        p_values: The smallest p-value of each quantity.
        ends: Ends of the histograms.
        label: What they are over.
        theme: Colours.
    """
    from matplotlib.ticker import MaxNLocator

    rows, columns = grid_shape(len(found.names), MAX_COLUMNS)
    with canvas(
        theme, max(3.0 * columns, 6.6), 2.0 * rows + 0.9, rows, columns, sharex=True, sharey=True
    ) as (figure, axes):
        fine, wrong = theme.methods[0], theme.methods[1]
        for ax, (name, uniformity) in zip(axes, found.uniformities.items(), strict=False):
            num_bins = len(uniformity.counts)
            edges = np.linspace(*ends, num_bins + 1)
            limits = binomial_band(found.num_simulations, 1 / num_bins)
            colour = fine if found.is_uniform(name) else wrong
            show_counts(ax, uniformity.counts, edges, limits, colour, theme)
            title = f"{name}\n{found.shape_of(name)}, p = {p_values[name]:.2g}"
            ax.set_title(title, fontsize=9)
            ax.yaxis.set_major_locator(MaxNLocator(integer=True))
            ax.set_xlim(*ends)
            first, last = ax.set_xticks([math.ceil(ends[0]), math.floor(ends[1])])
            first.label1.set_horizontalalignment("left")  # so that no panel's last number
            last.label1.set_horizontalalignment("right")  # runs into the next one's first
        hide_unused(axes, len(found.names), columns)
        figure.supylabel("simulations", fontsize=11)
        figure.supxlabel(
            f"{label} (grey: where chance leaves a bar, {BAND_PROBABILITY:.0%})", fontsize=11
        )
    return figure
