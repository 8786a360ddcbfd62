"""The figure of simulation-based calibration: rank histograms with the band chance allows."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from pyro_bnn.diagnostics.calibration import BAND_PROBABILITY, binomial_band
from pyro_bnn.report.theme import LIGHT, Theme, canvas, grid_shape, hide_unused, show_counts

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from pyro_bnn.diagnostics.simulation_ranks import SimulationRanks

MAX_COLUMNS = 3  # room for two words in a title


def simulation_ranks(found: SimulationRanks, theme: Theme = LIGHT) -> Figure:
    """Histograms of ranks, a panel a quantity; those that are not uniform in another colour.

    Args:
        found: The ranks.
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
            edges = np.linspace(0, found.num_draws + 1, num_bins + 1) - 0.5
            limits = binomial_band(found.num_simulations, 1 / num_bins)
            shape = found.shape_of(name)
            colour = fine if found.is_uniform(name) else wrong
            show_counts(ax, uniformity.counts, edges, limits, colour, theme)
            ax.set_title(f"{name}\n{shape}, p = {uniformity.smallest[1]:.2g}", fontsize=9)
            ax.yaxis.set_major_locator(MaxNLocator(integer=True))
            ax.set_xlim(-0.5, found.num_draws + 0.5)
            first, last = ax.set_xticks([0, found.num_draws])
            first.label1.set_horizontalalignment("left")  # so that no panel's last number
            last.label1.set_horizontalalignment("right")  # runs into the next one's first
        hide_unused(axes, len(found.names), columns)
        figure.supylabel("simulations", fontsize=11)
        figure.supxlabel(
            f"rank of the true value among {found.num_draws} draws of {found.method} "
            f"(grey: where chance leaves a bar, {BAND_PROBABILITY:.0%})",
            fontsize=11,
        )
    return figure
