"""Images corrupted on purpose, in five severities, with the same noise for every method.

The kinds that need no photographs and no other library than SciPy and Pillow, with the constants of
CIFAR-10-C and of MNIST-C; the noise of a row has a seed of its own, whichever rows come with it.

References:
    Hendrycks & Dietterich, "Benchmarking Neural Network Robustness to Common Corruptions and
    Perturbations", ICLR 2019, arXiv:1903.12261. Mu & Gilmer, "MNIST-C: A Robustness Benchmark for
    Computer Vision", 2019, arXiv:1906.02337.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypeAlias

import numpy as np
from jaxtyping import Float

from pyro_bnn.errors import DataError, OptionError, ShapeError

Image: TypeAlias = Float[np.ndarray, "K H W"]
Corruption: TypeAlias = Callable[[Image, Any, np.random.Generator], Image]
CorruptionScale: TypeAlias = Literal["cifar", "mnist"]


def _gaussian_noise(image: Image, sd: float, rng: np.random.Generator) -> Image:
    return image + sd * rng.normal(size=image.shape)


def _shot_noise(image: Image, count: float, rng: np.random.Generator) -> Image:
    return rng.poisson(image * count) / count


def _speckle_noise(image: Image, sd: float, rng: np.random.Generator) -> Image:
    return image + image * sd * rng.normal(size=image.shape)


def _impulse_noise(image: Image, share: float, rng: np.random.Generator) -> Image:
    """Salt and pepper, as much of each."""
    uniform = rng.uniform(size=image.shape)
    return np.where(uniform < share / 2, 0.0, np.where(uniform < share, 1.0, image))


def _gaussian_blur(image: Image, sd: float, _: np.random.Generator) -> Image:
    from scipy import ndimage

    blurred: Image = ndimage.gaussian_filter(image, (0, sd, sd), mode="nearest")
    return blurred


def _contrast(image: Image, factor: float, _: np.random.Generator) -> Image:
    mean = image.mean((1, 2), keepdims=True)
    return np.asarray((image - mean) * factor + mean)


def _brightness(image: Image, added: float, _: np.random.Generator) -> Image:
    """To the value of hue, saturation and value, which is the largest channel."""
    value = image.max(0)
    higher = np.minimum(value + added, 1.0)
    scaled = image * np.divide(higher, value, out=np.zeros_like(value), where=value > 0)
    return np.asarray(np.where(value > 0, scaled, higher))


def _pixelate(image: Image, share: float, _: np.random.Generator) -> Image:
    from PIL import Image as PILImage

    height, width = image.shape[1:]
    small = (max(1, int(width * share)), max(1, int(height * share)))
    shrunk = [
        PILImage.fromarray(c.astype(np.float32)).resize(small, PILImage.Resampling.BOX)
        for c in image
    ]
    return np.stack(
        [np.asarray(c.resize((width, height), PILImage.Resampling.BOX)) for c in shrunk]
    )


def _jpeg(image: Image, quality: int, _: np.random.Generator) -> Image:
    """Three channels as the colours of one picture, any other number as pictures in grey."""
    from PIL import Image as PILImage

    def kept(levels: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        buffer = io.BytesIO()
        PILImage.fromarray(levels).save(buffer, "JPEG", quality=quality)
        return np.asarray(PILImage.open(buffer), dtype=float) / 255

    levels = np.round(image * 255).astype(np.uint8)
    if len(levels) == 3:
        return np.moveaxis(kept(np.moveaxis(levels, 0, -1)), -1, 0)
    return np.stack([kept(channel) for channel in levels])


def _mapped(image: Image, matrix: Sequence[Sequence[float]], shift: Sequence[float]) -> Image:
    """The image at matrix @ (place - centre) + centre + shift, linear between pixels, 0 outside."""
    from scipy import ndimage

    centre = (np.array(image.shape[1:]) - 1) / 2
    numbers = np.asarray(matrix, dtype=float)
    offset = centre - numbers @ centre + np.asarray(shift, dtype=float)
    return np.stack([ndimage.affine_transform(c, numbers, offset, order=1) for c in image])


def _sign(rng: np.random.Generator) -> float:
    return 1.0 if rng.uniform() < 0.5 else -1.0


def _rotate(image: Image, angle: float, rng: np.random.Generator) -> Image:
    angle *= _sign(rng)
    cos, sin = np.cos(angle), np.sin(angle)
    return _mapped(image, [[cos, -sin], [sin, cos]], [0, 0])


def _shear(image: Image, angle: float, rng: np.random.Generator) -> Image:
    """Rows moved by the sine of the angle, and farther from each other by its cosine.

    This is what MNIST-C's library called a shear at the time.
    """
    angle *= _sign(rng)
    return _mapped(image, [[np.cos(angle), 0], [-np.sin(angle), 1]], [0, 0])


def _zoom_out(image: Image, factor: float, _: np.random.Generator) -> Image:
    return _mapped(image, [[factor, 0], [0, factor]], [0, 0])


def _translate(image: Image, pixels: float, rng: np.random.Generator) -> Image:
    return _mapped(image, [[1, 0], [0, 1]], [pixels * _sign(rng), pixels * _sign(rng)])


def _quantise(image: Image, bits: int, _: np.random.Generator) -> Image:
    levels = 2**bits - 1
    return np.asarray(np.round(image * levels) / levels)


def _inverse(image: Image, _: float, __: np.random.Generator) -> Image:
    return 1 - image


def _stripe(image: Image, width: int, _: np.random.Generator) -> Image:
    """The columns at both sides inverted."""
    changed = image.copy()
    for side in (slice(None, width), slice(image.shape[2] - width, None)):
        changed[..., side] = 1 - image[..., side]
    return changed


KINDS: Mapping[str, Corruption] = {
    "gaussian-noise": _gaussian_noise,
    "shot-noise": _shot_noise,
    "impulse-noise": _impulse_noise,
    "speckle-noise": _speckle_noise,
    "gaussian-blur": _gaussian_blur,
    "contrast": _contrast,
    "brightness": _brightness,
    "pixelate": _pixelate,
    "jpeg": _jpeg,
    "rotate": _rotate,
    "shear": _shear,
    "scale": _zoom_out,
    "translate": _translate,
    "quantise": _quantise,
    "inverse": _inverse,
    "stripe": _stripe,
}

COMMON: Mapping[CorruptionScale, Mapping[str, tuple[float, ...]]] = {
    "cifar": {
        "gaussian-noise": (0.04, 0.06, 0.08, 0.09, 0.10),
        "shot-noise": (500, 250, 100, 75, 50),
        "impulse-noise": (0.01, 0.02, 0.03, 0.05, 0.07),
        "speckle-noise": (0.06, 0.10, 0.12, 0.16, 0.20),
        "gaussian-blur": (0.4, 0.6, 0.7, 0.8, 1),
        "contrast": (0.75, 0.5, 0.4, 0.3, 0.15),
        "brightness": (0.05, 0.1, 0.15, 0.2, 0.3),
        "pixelate": (0.95, 0.9, 0.85, 0.75, 0.65),
        "jpeg": (80, 65, 58, 50, 40),
    },
    "mnist": {
        "gaussian-noise": (0.08, 0.12, 0.18, 0.26, 0.38),
        "shot-noise": (60, 25, 12, 5, 3),
        "impulse-noise": (0.03, 0.06, 0.09, 0.17, 0.27),
        "speckle-noise": (0.15, 0.20, 0.35, 0.45, 0.60),
        "gaussian-blur": (1, 2, 3, 4, 6),
        "contrast": (0.4, 0.3, 0.2, 0.1, 0.05),
        "brightness": (0.1, 0.2, 0.3, 0.4, 0.5),
        "pixelate": (0.6, 0.5, 0.4, 0.3, 0.25),
        "jpeg": (25, 18, 15, 10, 7),
        "rotate": (0.2, 0.4, 0.6, 0.8, 1.0),  # radians
        "shear": (0.2, 0.4, 0.6, 0.8, 1.0),  # radians
        "scale": (1 / 0.9, 1 / 0.8, 1 / 0.7, 1 / 0.6, 1 / 0.5),
        "translate": (1, 2, 3, 4, 5),  # pixels
        "quantise": (5, 4, 3, 2, 1),  # bits
        "inverse": (1, 1, 1, 1, 1),
        "stripe": (7, 7, 7, 7, 7),  # columns
    },
}


def corrupt(
    images: Float[np.ndarray, "N *K H W"],
    kind: str,
    severity: int,
    *,
    scale: CorruptionScale = "mnist",
    seed: int = 0,
    first_row: int = 0,
) -> Float[np.ndarray, "N *K H W"]:
    """Images with a corruption.

    Args:
        images: Numbers in [0, 1], ``[N, H, W]`` or, with K channels, ``[N, K, H, W]``.
        kind: A name in ``KINDS`` that the scale has.
        severity: 1 to 5. ``"inverse"`` and ``"stripe"`` are the same at each.
        scale: Whose constants: ``"cifar"`` for CIFAR-10-C, ``"mnist"`` for MNIST-C, whose
            geometric kinds it alone has.
        seed: Seed of the noise.
        first_row: Number of the first of these rows, for images that come in parts.

    Returns:
        As many images in [0, 1], of the same shape, in float64.

    Raises:
        DataError: If images hold numbers outside [0, 1].
        OptionError: If the scale has no such corruption, or there is no such severity.
        ShapeError: If images have another shape.

    Example:
        >>> images = np.zeros((1, 4, 4))
        >>> float(corrupt(images, "inverse", 1).mean())
        1.0
    """
    images = np.asarray(images, dtype=float)
    if images.ndim not in (3, 4) or 0 in images.shape:
        raise ShapeError(
            f"images must have shape [N, H, W] or [N, K, H, W], got {list(images.shape)}"
        )
    if not ((images >= 0) & (images <= 1)).all():
        raise DataError("images holds numbers outside [0, 1]: divide pixels of 0 to 255 by 255")
    constants = COMMON.get(scale)
    if constants is None:
        raise OptionError(f'scale is "cifar" or "mnist", not {scale!r}')
    if kind not in constants:
        names = ", ".join(constants)
        raise OptionError(f"there is no corruption {kind!r} at the scale {scale!r}, but {names}")
    if severity not in range(1, 6):
        raise OptionError(f"severity is 1, 2, 3, 4 or 5, not {severity!r}")
    number = constants[kind][int(severity) - 1]
    corrupted = np.empty_like(images)
    for row, image in enumerate(images):
        rng = np.random.default_rng([seed, first_row + row])
        channels = image if image.ndim == 3 else image[None]
        corrupted[row] = KINDS[kind](channels, number, rng).reshape(image.shape)
    return corrupted.clip(0, 1)
