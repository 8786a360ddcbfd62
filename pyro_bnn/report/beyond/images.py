"""Rows of pixels as images in [0, 1] and back, and the same corrupted images for every method."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from pyro_bnn.data.split import Split
from pyro_bnn.data.standardise import Standardiser
from pyro_bnn.diagnostics.trust.corruptions import COMMON, CorruptionScale, corrupt
from pyro_bnn.errors import DataError, OptionError, ShapeError

USUAL = {
    "mnist": (
        "gaussian-noise", "shot-noise", "impulse-noise", "gaussian-blur", "contrast", "brightness",
        "rotate", "translate",
    ),
    "cifar": (
        "gaussian-noise", "shot-noise", "impulse-noise", "speckle-noise", "gaussian-blur",
        "contrast", "brightness", "pixelate",
    ),
}  # fmt: skip
"""Corruptions of a scale where nothing else is said."""


class Condition(NamedTuple):
    """Test rows under one corruption.

    Attributes:
        kind: Its name.
        severity: 1 to 5.
        x: Inputs in the model's units ``[N, ...]``.
    """

    kind: str
    severity: int
    x: Tensor

    @property
    def name(self) -> str:
        """Kind and severity in a word."""
        return f"{self.kind}-{self.severity}"


@dataclass(frozen=True, eq=False)
class Pixels:
    """How the inputs of a data set are images.

    Attributes:
        shape: Channels, height and width.
        largest: The largest pixel in the data's own units: what white is.
        units: Carries inputs to those units; None if they are in them.
    """

    shape: tuple[int, int, int]
    largest: float
    units: Standardiser | None

    @classmethod
    def of(cls, split: Split) -> Pixels:
        """Of a split's inputs: images ``[N, K, H, W]``, or square ones of one channel in rows.

        Raises:
            ShapeError: If the inputs are neither.
            DataError: If a pixel of a training image is negative: no range is known then.
        """
        x, units = split.train.x, split.train.inputs
        shape = tuple(x.shape[1:])
        side = math.isqrt(math.prod(shape))
        if len(shape) == 1 and side * side == shape[0]:
            shape = (1, side, side)
        if len(shape) != 3:
            raise ShapeError(
                f"{split.name}: inputs have shape {list(x.shape)}, but images [N, K, H, W], or "
                "square ones of one channel in rows, are needed for this"
            )
        raw = x if units is None else units.inverse(x)
        if float(raw.min()) < -1e-3 * float(raw.max()):
            raise DataError(
                f"{split.name}: the smallest pixel is {float(raw.min()):.3g}: images "
                "hold numbers from 0 on"
            )
        return cls((shape[0], shape[1], shape[2]), float(raw.max()) or 1.0, units)

    def images(self, x: Tensor) -> Float[np.ndarray, "N K H W"]:
        """Inputs in the model's units as images in [0, 1]."""
        raw = x if self.units is None else self.units.inverse(x)
        scaled = (raw.double() / self.largest).clamp(0, 1)
        return np.asarray(scaled.reshape(len(x), *self.shape).cpu())

    def inputs(self, images: Float[np.ndarray, "N K H W"], like: Tensor) -> Tensor:
        """Images as inputs of the shape, units and dtype of others."""
        raw = torch.as_tensor(images * self.largest).reshape(-1, *like.shape[1:])
        x = raw if self.units is None else self.units.transform(raw)
        return x.to(like)


def corrupted(
    split: Split,
    severities: Sequence[int],
    *,
    kinds: Sequence[str] | None = None,
    scale: CorruptionScale | None = None,
    num_rows: int | None = None,
    seed: int = 0,
) -> list[Condition]:
    """The first test rows under every kind and severity.

    The noise of a row has a seed of its own, so that it is the same for every method.

    Args:
        split: Whose test rows.
        severities: Some of 1 to 5.
        kinds: Names of corruptions; None for eight usual ones of the scale.
        scale: Whose constants; None for those of MNIST-C for one channel, else CIFAR-10-C's.
        num_rows: How many rows; None for all.
        seed: Of the noise.

    Raises:
        OptionError: If there is no such scale, corruption or severity, or one is named twice.
        ShapeError, DataError: If the inputs are no images, as :meth:`Pixels.of`.
    """
    pixels = Pixels.of(split)
    own: CorruptionScale = scale or ("mnist" if pixels.shape[0] == 1 else "cifar")
    if own not in COMMON:
        raise OptionError(f'scale is "cifar" or "mnist", not {own!r}')
    names = tuple(USUAL[own] if kinds is None else kinds)
    for what, given in (("severities", severities), ("corruptions", names)):
        if not given or len(set(given)) < len(given):
            raise OptionError(f"{what} are named once each, at least one, not {list(given)}")
    x = split.test.x[:num_rows]
    images = pixels.images(x)
    return [
        Condition(
            kind,
            severity,
            pixels.inputs(corrupt(images, kind, severity, scale=own, seed=seed), x),
        )
        for kind in names
        for severity in severities
    ]


def unknown_inputs(split: Split, other: Split) -> Tensor:
    """The test images of another data set as inputs of this one's network, white being white.

    Raises:
        ShapeError: If its images have another shape, or one of both holds no images.
        DataError: As :meth:`Pixels.of`.
    """
    here, there = Pixels.of(split), Pixels.of(other)
    if here.shape != there.shape:
        raise ShapeError(
            f"images of {other.name} have shape {list(there.shape)}, those of {split.name} "
            f"{list(here.shape)}: unknown inputs have the shape of the known ones"
        )
    return here.inputs(there.images(other.test.x), split.test.x)
