"""Mean and covariance of the entries of random matrices, and their heat maps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float
from torch import Tensor

from pyro_bnn.plotting.theme import (
    METHODS,
    MUTED,
    PAPER,
    canvas,
    grid_shape,
    hide_unused,
    wrap_name,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MAX_LINES = 40  # of blocks: more would hide what lies between them


def covariance_maps(found: Mapping[str, MatrixMoments], *, correlations: bool = False) -> Figure:
    """A heat map for each matrix, its entries taken row by row; lines part the rows.

    Args:
        found: Moments by the name of the matrix.
        correlations: Whether correlations are drawn, all on one scale from -1 to 1, in place of
            covariances, each on its own scale: their sizes are those of the matrices.
    """
    rows, columns = grid_shape(len(found))
    with canvas(3.3 * columns + 0.6, 3.1 * rows + 0.5, rows, columns) as (figure, axes):
        for ax, (name, moments) in zip(axes, found.items(), strict=False):
            _show(ax, moments, correlations)
            ax.set_title(wrap_name(name, 30))
        hide_unused(axes, len(found), columns)
        what = "correlation" if correlations else "covariance"
        figure.supxlabel(f"entries of the matrix, row by row; colour: their {what}", fontsize=11)
    return figure


def _show(ax: Axes, moments: MatrixMoments, correlations: bool) -> None:
    from matplotlib.colors import LinearSegmentedColormap

    values = (moments.correlation if correlations else moments.matrix).cpu().numpy()
    limit = 1.0 if correlations else float(abs(values).max()) or 1.0
    # below zero orange, at zero the paper, above zero blue
    colours = LinearSegmentedColormap.from_list("covariance", [METHODS[1], PAPER, METHODS[0]])
    image = ax.imshow(values, cmap=colours, vmin=-limit, vmax=limit, interpolation="nearest")
    bar = ax.figure.colorbar(image, ax=ax, shrink=0.85)
    bar.ax.spines["outline"].set_visible(False)
    ax.set_xticks([])
    ax.set_yticks([])
    num_rows, num_columns = moments.mean.shape
    if num_columns > 1 and num_rows <= MAX_LINES:
        for row in range(1, num_rows):
            for line in (ax.axhline, ax.axvline):
                line(row * num_columns - 0.5, color=MUTED, lw=0.4)


@dataclass(frozen=True, kw_only=True, eq=False)
class MatrixMoments:
    """Mean and covariance of the entries of a random matrix.

    Attributes:
        mean: Of each entry ``[O, I]``.
        covariance: Between entries, ``[a, b, c, d]`` that of m_ab and m_cd.
        error: Standard error of each covariance, zero where it is exact. It takes fourth moments
            of the draws, so that products of many layers, whose tails are heavy, need many.
        num_draws: Draws that the moments were estimated from; None where they are exact.
    """

    mean: Float[Tensor, "O I"]
    covariance: Float[Tensor, "O I O I"]
    error: Float[Tensor, "O I O I"]
    num_draws: int | None = None

    @property
    def matrix(self) -> Float[Tensor, "OI OI"]:
        """The covariance of the entries taken row by row."""
        return self.covariance.flatten(2).flatten(0, 1)

    @property
    def correlation(self) -> Float[Tensor, "OI OI"]:
        """Correlations of the entries taken row by row; 0 for entries that are constant."""
        sd = self.matrix.diagonal().sqrt()
        return (self.matrix / torch.outer(sd, sd)).nan_to_num(0.0, 0.0, 0.0)

    @property
    def figure(self) -> Figure:
        """Heat map of the covariance, entries taken row by row."""
        return covariance_maps({"": self})
