"""Corruptions: the published constants, moments of the noise, geometry by SciPy, seeds of rows."""

import io
from collections.abc import Callable

import numpy as np
import pytest
from numpy.testing import assert_allclose
from PIL import Image as PILImage
from scipy import ndimage, stats

from pyro_bnn.diagnostics import corrupt
from pyro_bnn.diagnostics.trust.corruptions import COMMON, KINDS, CorruptionScale
from pyro_bnn.errors import DataError, OptionError, ShapeError

GREY = np.full((20, 3, 32, 32), 0.5)
CASES: list[tuple[CorruptionScale, str]] = [
    (scale, kind) for scale, kinds in COMMON.items() for kind in kinds
]


# Hendrycks & Dietterich (2019) for CIFAR-10-C, Mu & Gilmer (2019) for MNIST-C
PUBLISHED: dict[str, dict[CorruptionScale, list[float]]] = {
    "gaussian-noise": {
        "cifar": [0.04, 0.06, 0.08, 0.09, 0.1], "mnist": [0.08, 0.12, 0.18, 0.26, 0.38],
    },
    "shot-noise": {"cifar": [500, 250, 100, 75, 50], "mnist": [60, 25, 12, 5, 3]},
    "impulse-noise": {
        "cifar": [0.01, 0.02, 0.03, 0.05, 0.07], "mnist": [0.03, 0.06, 0.09, 0.17, 0.27],
    },
    "speckle-noise": {"cifar": [0.06, 0.1, 0.12, 0.16, 0.2], "mnist": [0.15, 0.2, 0.35, 0.45, 0.6]},
    "gaussian-blur": {"cifar": [0.4, 0.6, 0.7, 0.8, 1], "mnist": [1, 2, 3, 4, 6]},
    "contrast": {"cifar": [0.75, 0.5, 0.4, 0.3, 0.15], "mnist": [0.4, 0.3, 0.2, 0.1, 0.05]},
    "brightness": {"cifar": [0.05, 0.1, 0.15, 0.2, 0.3], "mnist": [0.1, 0.2, 0.3, 0.4, 0.5]},
    "pixelate": {"cifar": [0.95, 0.9, 0.85, 0.75, 0.65], "mnist": [0.6, 0.5, 0.4, 0.3, 0.25]},
    "jpeg": {"cifar": [80, 65, 58, 50, 40], "mnist": [25, 18, 15, 10, 7]},
    "rotate": {"mnist": [0.2, 0.4, 0.6, 0.8, 1.0]},
    "shear": {"mnist": [0.2, 0.4, 0.6, 0.8, 1.0]},
    "scale": {"mnist": [1 / 0.9, 1 / 0.8, 1 / 0.7, 1 / 0.6, 1 / 0.5]},
    "translate": {"mnist": [1, 2, 3, 4, 5]},
    "quantise": {"mnist": [5, 4, 3, 2, 1]},
    "inverse": {"mnist": [1] * 5},
    "stripe": {"mnist": [7] * 5},
}  # fmt: skip
Corrupted = Callable[[np.ndarray], np.ndarray]  # images under a kind at a scale and severity


def picture(size: int = 28, channels: int | None = None) -> np.ndarray:
    """One image that is 0 at its edges."""
    shape = (1, size, size) if channels is None else (1, channels, size, size)
    inside = np.random.default_rng(0).uniform(size=(*shape[:-2], size - 14, size - 14))
    return np.pad(inside, [(0, 0)] * (len(shape) - 2) + [(7, 7), (7, 7)])


def is_share(found: float, share: float, count: int) -> bool:
    """Whether it is within 5 standard errors."""
    return bool(abs(found - share) < 5 * np.sqrt(share * (1 - share) / count))


def one_sd_above(corrupted: Corrupted, sd: float) -> bool:
    """Of grey, as many pixels as of a normal number are above one sd, clipped at white or not."""
    found = corrupted(GREY)
    return is_share((found > 0.5 + sd).mean(), stats.norm.sf(1), found.size)


def has_count(corrupted: Corrupted, count: float) -> bool:
    """The dimmest of many dark pixels that are not black has one photon, of ``count`` for white."""
    found = corrupted(GREY / 50)
    return bool(np.isclose(found[found > 0].min(), 1 / count, rtol=1e-12))


def has_blur(corrupted: Corrupted, sd: float) -> bool:
    """A point and its neighbour are as exp(-1 / 2 sd^2), wherever the kernel is cut."""
    point = np.zeros((1, 61, 61))
    point[0, 30, 30] = 1.0
    row = corrupted(point)[0, 30]
    return bool(np.isclose(row[31] / row[30], np.exp(-0.5 / sd**2), rtol=1e-9))


def has_pixels(corrupted: Corrupted, share: float) -> bool:
    """So many columns of a hundred are unlike the one before them."""
    found = corrupted(np.random.default_rng(0).uniform(size=(1, 100, 100)))[0]
    return bool(1 + (np.diff(found, axis=1) != 0).any(0).sum() == round(100 * share))


def has_quality(corrupted: Corrupted, quality: float) -> bool:
    """The same picture as Pillow's."""
    levels = np.arange(1024, dtype=np.uint8).reshape(32, 32)
    buffer = io.BytesIO()
    PILImage.fromarray(levels).save(buffer, "JPEG", quality=int(quality))
    expected = np.asarray(PILImage.open(buffer), dtype=float)
    return np.array_equal(corrupted(levels[None] / 255)[0] * 255, expected)


Places = Callable[[float, float, np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]


def at(places: Places) -> Callable[[Corrupted, float], bool]:
    """Pixels are those at other places, counted from the middle, to one side or the other."""

    def is_moved(corrupted: Corrupted, number: float) -> bool:
        image = picture(29)[0]
        from_middle = np.mgrid[-14:15, -14:15].astype(float)
        moved = [
            ndimage.map_coordinates(image, np.add(places(a, b, *from_middle), 14), order=1)
            for a in (number, -number)
            for b in (number, -number)
        ]
        found = corrupted(image[None])[0]
        return bool(min(np.abs(found - one).max() for one in moved) < 1e-12)

    return is_moved


def by(function: Callable[[np.ndarray, float], np.ndarray]) -> Callable[[Corrupted, float], bool]:
    """Pixels are a function of the image."""
    image = np.random.default_rng(1).uniform(0.1, 0.4, size=(1, 28, 28))
    return lambda corrupted, number: np.allclose(
        corrupted(image), function(image, number), rtol=0, atol=1e-12
    )


def sides(image: np.ndarray, width: float) -> np.ndarray:
    column = np.arange(28)
    return np.where((column < width) | (column >= 28 - width), 1 - image, image)


HAS: dict[str, Callable[[Corrupted, float], bool]] = {
    "gaussian-noise": one_sd_above,
    "shot-noise": has_count,
    "impulse-noise": lambda of, share: is_share((of(GREY) != 0.5).mean(), share, GREY.size),
    "speckle-noise": lambda of, sd: one_sd_above(of, 0.5 * sd),
    "gaussian-blur": has_blur,
    "contrast": by(lambda image, factor: factor * image + (1 - factor) * image.mean()),
    "brightness": by(lambda image, added: image + added),
    "pixelate": has_pixels,
    "jpeg": has_quality,
    "rotate": at(
        lambda angle, _, y, x: (
            np.cos(angle) * y + np.sin(angle) * x,
            np.cos(angle) * x - np.sin(angle) * y,
        )
    ),
    "shear": at(lambda angle, _, y, x: (np.cos(angle) * y, x - np.sin(angle) * y)),
    "scale": at(lambda factor, _, y, x: (abs(factor) * y, abs(factor) * x)),
    "translate": at(lambda down, right, y, x: (y + down, x + right)),
    "quantise": by(lambda image, bits: np.round(image * (2**bits - 1)) / (2**bits - 1)),
    "inverse": by(lambda image, _: 1 - image),
    "stripe": by(sides),
}
"""Whether a corruption has a constant, by what it does to an image made for this."""


@pytest.mark.parametrize(("scale", "kind"), CASES)
def test_every_severity_has_the_published_constant_and_no_other(
    scale: CorruptionScale, kind: str
) -> None:
    published = PUBLISHED[kind][scale]
    for severity, own in enumerate(published, start=1):

        def corrupted(images: np.ndarray, severity: int = severity) -> np.ndarray:
            return corrupt(images, kind, severity, scale=scale)

        assert [n for n in sorted(set(published)) if HAS[kind](corrupted, n)] == [own]


def test_all_published_kinds_are_there() -> None:
    assert sorted(CASES) == sorted((s, k) for k, scales in PUBLISHED.items() for s in scales)


@pytest.mark.parametrize(
    ("kind", "variance"),
    [
        ("gaussian-noise", 0.08**2),
        ("shot-noise", 0.5 / 100),
        ("speckle-noise", 0.5**2 * 0.12**2),
    ],
)
def test_noise_has_the_moments_of_its_constants(kind: str, variance: float) -> None:
    """At severity 3, where grey is far enough from 0 and 1 that nothing is clipped."""
    noise = corrupt(GREY, kind, 3, scale="cifar") - 0.5
    n = noise.size
    assert abs(noise.mean()) < 5 * np.sqrt(variance / n)
    assert abs(noise.var() / variance - 1) < 5 * np.sqrt(2.1 / n)


def test_impulses_are_as_many_black_as_white() -> None:
    found = corrupt(GREY, "impulse-noise", 5, scale="cifar")
    for value in (0.0, 1.0):
        share = (found == value).mean()
        assert abs(share - 0.035) < 5 * np.sqrt(0.035 / found.size)
    assert set(np.unique(found)) == {0.0, 0.5, 1.0}


def test_contrast_and_brightness_by_hand() -> None:
    image = np.array([[[[0.2, 0.4]], [[0.1, 0.2]], [[0.0, 0.0]]]])  # [1, 3, 1, 2]
    less = corrupt(image, "contrast", 2, scale="cifar")  # half the distance to each mean
    assert_allclose(less[0, :, 0], np.array([[0.25, 0.35], [0.125, 0.175], [0, 0]]))
    brighter = corrupt(image, "brightness", 2, scale="cifar")  # value 0.1 higher, hue kept
    assert_allclose(brighter[0, :, 0], np.array([[0.3, 0.5], [0.15, 0.25], [0, 0]]))
    assert_allclose(corrupt(np.zeros((1, 3, 1, 1)), "brightness", 1, scale="cifar"), 0.05)


def test_pixels_of_half_the_size_are_means_of_four() -> None:
    image = picture()
    means = image[0].reshape(14, 2, 14, 2).mean((1, 3))
    expected = means.repeat(2, 0).repeat(2, 1)
    assert_allclose(corrupt(image, "pixelate", 2)[0], expected, atol=1e-6)


@pytest.mark.parametrize("num_channels", [1, 2, 4, 5])
def test_channels_that_are_no_three_colours_are_pictures_of_their_own(num_channels: int) -> None:
    images = np.random.default_rng(2).uniform(size=(1, num_channels, 16, 16))
    (found,) = corrupt(images, "jpeg", 3, scale="cifar")
    for channel, own in zip(images[0], found, strict=True):
        buffer = io.BytesIO()
        levels = np.round(channel * 255).astype(np.uint8)
        PILImage.fromarray(levels).save(buffer, "JPEG", quality=58)
        assert_allclose(own, np.asarray(PILImage.open(buffer)) / 255, rtol=1e-12)


@pytest.mark.parametrize(("scale", "kind"), CASES)
def test_the_noise_of_a_row_is_its_own(scale: CorruptionScale, kind: str) -> None:
    images = np.random.default_rng(1).uniform(size=(5, 3, 16, 16))
    both = corrupt(images, kind, 3, scale=scale, seed=2)
    later = corrupt(images[2:], kind, 3, scale=scale, seed=2, first_row=2)
    assert np.array_equal(both[2:], later)
    assert both.min() >= 0
    assert both.max() <= 1
    is_random = kind.endswith("noise")
    assert np.array_equal(both, corrupt(images, kind, 3, scale=scale, seed=3)) is not is_random or (
        kind in ("rotate", "shear", "translate")
    )


def test_all_kinds_have_constants() -> None:
    assert {kind for _, kind in CASES} == set(KINDS)
    assert all(len(numbers) == 5 for kinds in COMMON.values() for numbers in kinds.values())


def test_a_severity_of_a_table_of_floats_is_one() -> None:
    images = np.random.default_rng(0).uniform(size=(1, 28, 28))
    of_float = corrupt(images, "contrast", 2.0)  # type: ignore[arg-type]
    np.testing.assert_array_equal(of_float, corrupt(images, "contrast", 2))


def test_what_is_refused() -> None:
    images = np.zeros((1, 4, 4))
    with pytest.raises(DataError, match="divide pixels of 0 to 255 by 255"):
        corrupt(images + 2, "inverse", 1)
    with pytest.raises(ShapeError, match=r"\[N, H, W\] or \[N, K, H, W\], got \[4, 4\]"):
        corrupt(images[0], "inverse", 1)
    with pytest.raises(OptionError, match="no corruption 'rotate' at the scale 'cifar', but gauss"):
        corrupt(images, "rotate", 1, scale="cifar")
    with pytest.raises(OptionError, match="severity is 1, 2, 3, 4 or 5, not 6"):
        corrupt(images, "inverse", 6)
    with pytest.raises(OptionError, match='scale is "cifar" or "mnist", not \'imagenet\''):
        corrupt(images, "inverse", 1, scale="imagenet")  # type: ignore[arg-type]
