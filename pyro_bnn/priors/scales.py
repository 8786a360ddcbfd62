"""What the heavy-tailed priors share: their scale option, and how it follows a weight's shape."""

from __future__ import annotations

import math
from typing import Literal, TypeAlias

import torch

from pyro_bnn.errors import OptionError

Scale: TypeAlias = float | Literal["fan_in"]


def check_positive(name: str, value: object, *, also: str = "") -> None:
    """Check a positive finite number, or the one word allowed beside it.

    Raises:
        OptionError: If it is neither.
    """
    if also and value == also:
        return
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not (is_number and 0 < value < math.inf):  # type: ignore[operator]
        expected = f"a positive number or {also!r}" if also else "a positive number"
        raise OptionError(f"{name} is {expected}, not {value!r}")


def check_finite(name: str, value: object) -> None:
    """Check a finite number.

    Raises:
        OptionError: If it is none.
    """
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not (is_number and math.isfinite(value)):  # type: ignore[arg-type]
        raise OptionError(f"{name} is a finite number, not {value!r}")


def heavy_tailed_scale(scale: Scale, shape: torch.Size) -> float:
    r"""The scale itself, or :math:`1/I` for a weight of I inputs, 1 for a bias.

    Of independent entries with tails :math:`P(|w| > t) \sim c/t`, as Cauchy ones have them, the
    sum over I inputs grows like I: of Cauchy entries with scale s it is Cauchy with scale I s.
    """
    return 1.0 / math.prod(shape[1:]) if scale == "fan_in" else float(scale)
