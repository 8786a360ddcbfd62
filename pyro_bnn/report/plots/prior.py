"""Figures of what priors believe: functions along a line of inputs, and f at its middle."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

import numpy as np
import torch
from torch import Tensor

from pyro_bnn.diagnostics.simulation.prior_predictive import PriorPredictive, TailIndex, tail_index
from pyro_bnn.errors import OptionError, OutputError, ShapeError
from pyro_bnn.files.atomic import check_file, written
from pyro_bnn.plotting.numbers import number, with_error
from pyro_bnn.plotting.theme import INK, MUTED, add_legend, canvas, hide_unused, styles, wrap_name
from pyro_bnn.report.evaluation.units import to_numpy

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from numpy.typing import NDArray

Along: TypeAlias = Literal["principal", "features"]

SUFFIXES = (".png", ".svg", ".pdf")
NUM_GRID = 161  # odd: the middle is one of them
NUM_DRAWN = 25  # functions of their own line
MAX_FEATURES = 8
WIDTH_IN_SDS = 6  # of the histogram, to each side; beyond it a Gaussian has 2e-9
NUM_BINS = 48
IQR_OF_GAUSSIAN = 1.3489795  # of standard deviation one
BANDS = ((0.025, 0.975, 0.18), (0.25, 0.75, 0.38))  # quantiles and opacity


class Line(NamedTuple):
    """Inputs along a line.

    Attributes:
        name: What changes along it.
        place: Where each point stands ``[G]``.
        x: The points ``[G, I]``.
    """

    name: str
    place: Tensor
    x: Tensor


def lines(x: Tensor, along: Along = "principal", names: Sequence[str] | None = None) -> list[Line]:
    """Lines through inputs: that of the one input, or of several.

    Args:
        x: Inputs ``[N, I]``.
        along: Of several inputs ``"principal"``, the first principal direction through their mean,
            of unit length; or ``"features"``, a line for each of the first eight inputs that vary,
            the others at 0.
        names: Names of the inputs.

    Raises:
        ShapeError: If an input is not one row of numbers.
        OptionError: If ``along`` is another word, or the inputs do not vary.
    """
    if x.ndim != 2:
        raise ShapeError(
            f"inputs of shape {list(x.shape)} lie on no line: functions are drawn of [N, I]"
        )
    if along not in ("principal", "features"):
        raise OptionError(f"along is 'principal' or 'features', not {along!r}")
    num_inputs = x.shape[1]
    if num_inputs == 1:
        return [_line(x[:, 0], torch.zeros_like(x[0]), torch.ones_like(x[0]), _name(names, 0))]
    if along == "features":
        eye = torch.eye(num_inputs, dtype=x.dtype, device=x.device)
        zero = torch.zeros_like(x[0])
        varied = [i for i in range(num_inputs) if bool((x[:, i] != x[0, i]).any())]
        if not varied:
            raise OptionError("no input varies over the rows, so that there is no line to draw")
        return [_line(x[:, i], zero, eye[i], _name(names, i)) for i in varied[:MAX_FEATURES]]
    centre = x.mean(0)
    direction = torch.linalg.svd(x - centre, full_matrices=False).Vh[0]
    direction = direction * direction[direction.abs().argmax()].sign()  # the same on all machines
    return [_line((x - centre) @ direction, centre, direction, "first principal direction of x")]


def _name(names: Sequence[str] | None, index: int) -> str:
    return names[index] if names else f"x{index + 1}" if index else "x"


def _line(places: Tensor, centre: Tensor, direction: Tensor, name: str) -> Line:
    low, high = float(places.min()), float(places.max())
    if not low < high:
        raise OptionError(f"{name} is {low:g} in all rows, so that there is no line to draw")
    place = torch.linspace(low, high, NUM_GRID, dtype=places.dtype, device=places.device)
    return Line(name, place, centre + place.unsqueeze(-1) * direction)


class Middle(NamedTuple):
    """The prior of f at the middle of a line.

    Attributes:
        values: Draws ``[S]``.
        scale: Interquartile range over that of the standard Gaussian.
        interval: Ends of the central 95 %.
        tail: Tail index.
    """

    values: NDArray[np.float64]
    scale: float
    interval: tuple[float, float]
    tail: TailIndex


def middle(found: PriorPredictive, line: Line) -> Middle:
    """The prior of the first network output at the middle of a line.

    Raises:
        ShapeError: If there are fewer than 400 draws.
    """
    centre = line.x[NUM_GRID // 2].unsqueeze(0)
    values = found.prior.function_draws(centre, found.prior.num_stored_draws)[:, 0, 0]
    array = to_numpy(values).astype(np.float64)
    low, first, third, high = np.quantile(array, [0.025, 0.25, 0.75, 0.975])
    scale = float(third - first) / IQR_OF_GAUSSIAN
    return Middle(array, scale, (float(low), float(high)), tail_index(values))


def prior_functions(found: Mapping[str, PriorPredictive], along: Sequence[Line]) -> Figure:
    """Functions of each prior along lines, and the histogram of f at the middle of the first.

    Args:
        found: The priors' draws by name.
        along: The lines.
    """
    columns = 2 if len(along) == 1 else 3
    num_panels = len(found) * (len(along) + 1)
    rows = -(-num_panels // columns)
    with canvas(4.1 * columns, 2.7 * rows + 0.8, rows, columns) as (figure, axes):
        panels: Iterator[Axes] = iter(axes)
        for (name, draws), style in zip(found.items(), styles(list(found)).values(), strict=True):
            for line in along:
                ax = next(panels)
                _show_functions(ax, draws, line, style.colour)
                ax.set_title(wrap_name(name), fontweight="bold")
            _show_middle(next(panels), middle(draws, along[0]), style.colour)
        hide_unused(axes, num_panels, columns)
        _show_legend(figure)
    return figure


def _show_functions(ax: Axes, found: PriorPredictive, line: Line, colour: str) -> None:
    f = to_numpy(found.prior.function_draws(line.x, found.prior.num_stored_draws))[..., 0]  # [S, G]
    place = to_numpy(line.place)
    for low, high, alpha in BANDS:
        ax.fill_between(
            place, *np.quantile(f, [low, high], axis=0), color=colour, alpha=alpha, lw=0
        )
    ax.plot(place, f[:NUM_DRAWN].T, color=INK, lw=0.7, alpha=0.45)
    ax.plot(place, np.median(f, axis=0), color=colour, lw=2)
    ax.set_ylim(*_limits(f))
    ax.set_xlim(place[0], place[-1])
    outputs = found.prior.program.num_function_outputs
    ax.set_ylabel("f" if outputs == 1 else f"f, output 1 of {outputs}")
    ax.set_xlabel(line.name)


def _limits(f: NDArray[np.float64]) -> tuple[float, float]:
    """Ends of the axis of functions ``[S, G]``: all of the 95 % band, unless its tails are heavy.

    Then they run off it, as the histogram's do, so that the functions in the middle are seen.
    """
    low, first, centre, third, high = np.quantile(f, [0.025, 0.25, 0.5, 0.75, 0.975], axis=0)
    room = 0.25 * (high.max() - low.min())
    most = WIDTH_IN_SDS * (third - first).max() / IQR_OF_GAUSSIAN
    bottom = float(max(low.min() - room, centre.min() - most))
    top = float(min(high.max() + room, centre.max() + most))
    return (bottom, top) if bottom < top else (bottom - 1, top + 1)  # of one function


def _show_middle(ax: Axes, found: Middle, colour: str) -> None:
    centre = float(np.median(found.values))
    scale = found.scale or 1.0  # half of the draws may be the same number
    edges = centre + scale * np.linspace(-WIDTH_IN_SDS, WIDTH_IN_SDS, NUM_BINS + 1)
    counts, _ = np.histogram(found.values, edges)
    density = counts / (len(found.values) * np.diff(edges))
    ax.stairs(density, edges, fill=True, color=colour, alpha=0.6)
    u = np.linspace(-WIDTH_IN_SDS, WIDTH_IN_SDS, 200)
    gaussian = np.exp(-0.5 * u**2) / (scale * np.sqrt(2 * np.pi))
    if found.scale:
        ax.plot(centre + scale * u, gaussian, color=MUTED, lw=1.4, ls=(0, (4, 3)))
    ax.set_yscale("log")
    one_draw = 1 / (len(found.values) * (edges[1] - edges[0]))
    ax.set_ylim(0.6 * one_draw, 3 * max(float(density.max()), float(gaussian.max())))
    ax.set_xlim(edges[0], edges[-1])
    beyond = len(found.values) - int(counts.sum())
    ax.set_title(
        f"tail index {_tail(found)}\n{beyond:,} of {len(found.values):,} draws lie off the axis",
        fontsize=9.5,
    )
    ax.set_xlabel("f at the middle")
    ax.set_ylabel("density")


def _show_legend(figure: Figure) -> None:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    gaussian = Line2D([], [], color=MUTED, lw=1.4, ls=(0, (4, 3)))
    marks = {
        "draws": Line2D([], [], color=INK, lw=0.7, alpha=0.6),
        "median": Line2D([], [], color=MUTED, lw=2),
        "50 %": Patch(color=MUTED, alpha=0.55, lw=0),
        "95 %": Patch(color=MUTED, alpha=0.25, lw=0),
    }
    add_legend(figure, marks | {"Gaussian of the same quartiles": gaussian})


def describe_middle(name: str, found: Middle) -> str:
    """One line of text on the prior of f at the middle of a line."""
    low, high = found.interval
    return (
        f"{name}: f in the middle is within [{number(low)}, {number(high)}] for 95 % of "
        f"{len(found.values):,} draws; tail index {_tail(found)}"
    )


def _tail(found: Middle) -> str:
    return with_error(*found.tail) or "none"  # of a constant


def check_picture(path: Path) -> None:
    """Check that a picture can be written, before the work.

    Raises:
        OptionError: If the name does not end as a picture's.
        OutputError: If the folder cannot be written to, or the path is a folder.
    """
    if path.suffix.lower() not in SUFFIXES:
        raise OptionError(f"a picture ends in {', '.join(SUFFIXES)}, not {path.name!r}")
    if path.is_dir():
        raise OutputError(f"{str(path)!r} is a folder: name the picture in it")
    check_file(path)


def save_picture(figure: Figure, path: Path) -> None:
    """Write a picture; an old file stays until the new one is complete.

    Raises:
        OutputError: If it cannot be written; says why.
    """
    with written(path) as partial:
        figure.savefig(partial, dpi=150, format=path.suffix[1:].lower())
