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

from pyro_bnn.data.dataset import Dataset
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
        shape, raw = _shape_of(split), _raw(split.train)
        if _is_below_zero(raw):
            raise DataError(
                f"{split.name}: the smallest pixel is {float(raw.min()):.3g}: images hold numbers "
                "from 0 on. Where a mean was taken off, pass the images with it, as "
                "Dataset(x, y, inputs=Standardiser(mean, sd)) of both parts of the split"
            )
        return cls(shape, float(raw.max()) or 1.0, split.train.inputs)

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


def _shape_of(split: Split) -> tuple[int, int, int]:
    """Channels, height and width of the inputs of a split; see :meth:`Pixels.of`."""
    shape = tuple(split.train.x.shape[1:])
    side = math.isqrt(math.prod(shape))
    if len(shape) == 1 and side * side == shape[0]:
        shape = (1, side, side)
    if len(shape) != 3:
        raise ShapeError(
            f"{split.name}: inputs have shape {list(split.train.x.shape)}, but images "
            "[N, K, H, W], or square ones of one channel in rows, are needed for this"
        )
    return shape[0], shape[1], shape[2]


def _raw(data: Dataset) -> Tensor:
    """Inputs in the units that the user gave them in."""
    return data.x if data.inputs is None else data.inputs.inverse(data.x)


def _is_below_zero(raw: Tensor) -> bool:
    """Whether images were normalised by a mean that nothing tells of; rounding is none."""
    return float(raw.min()) < -1e-3 * float(raw.max())


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
    """The test images of another data set as inputs of this one's network.

    White is white. Of images of both that are normalised by a mean no white is known: they are
    taken to be normalised alike, and keep their numbers.

    Raises:
        ShapeError: If its images have another shape, or one of both holds no images.
        DataError: If the images of one are normalised by a mean, and those of the other are not.
    """
    here, there = _shape_of(split), _shape_of(other)
    if here != there:
        raise ShapeError(
            f"images of {other.name} have shape {list(there)}, those of {split.name} "
            f"{list(here)}: unknown inputs have the shape of the known ones"
        )
    raws = [_raw(each.train) for each in (split, other)]
    are_below = [_is_below_zero(raw) for raw in raws]
    if not any(are_below):
        images = Pixels.of(other).images(other.test.x)
        return Pixels.of(split).inputs(images, split.test.x)
    if not all(are_below):
        known, unknown = (float(raw.min()) for raw in raws)
        raise DataError(
            f"the smallest pixel of {split.name} is {known:.3g}, that of the unknown images, "
            f"{other.name}, {unknown:.3g}: normalise both alike, by the mean and sd of the first"
        )
    raw = _raw(other.test).reshape(-1, *split.test.x.shape[1:])
    units = split.train.inputs
    return (raw if units is None else units.transform(raw)).to(split.test.x)
