"""Reads what a figure shows as arrays."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
from matplotlib.container import ErrorbarContainer
from matplotlib.lines import Line2D
from matplotlib.patches import Patch, StepPatch


def xs(line: Line2D) -> np.ndarray:
    return np.asarray(line.get_xdata(), dtype=float)


def ys(line: Line2D) -> np.ndarray:
    return np.asarray(line.get_ydata(), dtype=float)


def heights(patch: Patch) -> np.ndarray:
    values: Any = cast(StepPatch, patch).get_data()
    return np.asarray(values.values)


def bar_ends(container: object) -> np.ndarray:
    """Both ends of a horizontal error bar."""
    (bars,) = cast(ErrorbarContainer, container).lines[2]
    (segment,) = bars.get_segments()
    return np.asarray(segment)[:, 0]
