"""Corruptions: moments of the noise, geometry by hand and by SciPy, seeds of rows."""

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy import ndimage

from pyro_bnn.diagnostics import corrupt
from pyro_bnn.diagnostics.trust.corruptions import COMMON, KINDS
from pyro_bnn.errors import DataError, OptionError, ShapeError

GREY = np.full((20, 3, 32, 32), 0.5)
CASES = [(scale, kind) for scale, kinds in COMMON.items() for kind in kinds]


def picture(size: int = 28, channels: int | None = None) -> np.ndarray:
    """One image that is 0 at its edges."""
    shape = (1, size, size) if channels is None else (1, channels, size, size)
    inside = np.random.default_rng(0).uniform(size=(*shape[:-2], size - 14, size - 14))
    return np.pad(inside, [(0, 0)] * (len(shape) - 2) + [(7, 7), (7, 7)])


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


def test_a_blur_spreads_a_point_by_its_variance() -> None:
    point = np.zeros((1, 61, 61))
    point[0, 30, 30] = 1.0
    blurred = corrupt(point, "gaussian-blur", 3)[0]
    places = np.arange(61) - 30
    assert_allclose(blurred.sum(), 1, rtol=1e-12)
    assert_allclose((blurred.sum(0) * places**2).sum(), 9, rtol=0.01)  # cut at four sds


def test_pixels_of_half_the_size_are_means_of_four() -> None:
    image = picture()
    means = image[0].reshape(14, 2, 14, 2).mean((1, 3))
    expected = means.repeat(2, 0).repeat(2, 1)
    assert_allclose(corrupt(image, "pixelate", 2)[0], expected, atol=1e-6)


def test_jpeg_of_less_quality_is_farther_off() -> None:
    image = ndimage.gaussian_filter(picture(32, channels=3), (0, 0, 1, 1))
    errors = [np.abs(corrupt(image, "jpeg", s, scale="cifar") - image).mean() for s in range(1, 6)]
    assert 0 < errors[0] < errors[-1] < 0.1
    assert corrupt(picture(), "jpeg", 1).shape == (1, 28, 28)


def test_rotation_is_by_its_angle_to_one_side_or_the_other() -> None:
    image = picture()
    degrees = np.degrees(0.6)
    found = corrupt(image, "rotate", 3)[0]
    sides = [
        ndimage.rotate(image[0], angle, reshape=False, order=1) for angle in (degrees, -degrees)
    ]
    assert min(np.abs(found - side).max() for side in sides) < 1e-12
    assert np.abs(sides[0] - sides[1]).max() > 0.1


def test_translation_moves_by_whole_pixels() -> None:
    image = picture()
    found = corrupt(image, "translate", 3)[0]
    moves = [np.roll(image[0], (a, b), (0, 1)) for a in (3, -3) for b in (3, -3)]
    assert sum(np.array_equal(found, move) for move in moves) == 1


def test_shear_moves_rows_by_their_distance_from_the_middle() -> None:
    """A column through the middle becomes a line of slope 0.2."""
    line = np.zeros((1, 29, 29))
    line[0, 4:25, 14] = 1.0
    found = corrupt(line, "shear", 1)[0]
    places = (found * np.arange(29)).sum(1)[4:25] - 14
    slope = np.polyfit(np.arange(4, 25) - 14, places, 1)[0]
    assert_allclose(abs(slope), 0.2, rtol=1e-9)


def test_smaller_images_have_their_width_times_the_share() -> None:
    disc = np.hypot(*np.mgrid[-30:31, -30:31]) <= 20
    found = corrupt(disc[None].astype(float), "scale", 5)[0]
    assert_allclose(found.sum() / disc.sum(), 0.25, rtol=0.03)


def test_quantised_inverted_and_striped_by_hand() -> None:
    image = np.linspace(0, 1, 28 * 28).reshape(1, 28, 28)
    assert_allclose(corrupt(image, "quantise", 5), np.round(image))
    assert_allclose(corrupt(image, "inverse", 1), 1 - image)
    striped = corrupt(image, "stripe", 1)
    assert_allclose(striped[..., 7:21], image[..., 7:21])
    assert_allclose(striped[..., :7], 1 - image[..., :7])
    assert_allclose(striped[..., 21:], 1 - image[..., 21:])


@pytest.mark.parametrize(("scale", "kind"), CASES)
def test_the_noise_of_a_row_is_its_own(scale: str, kind: str) -> None:
    images = np.random.default_rng(1).uniform(size=(5, 3, 16, 16))
    both = corrupt(images, kind, 3, scale=scale, seed=2)  # type: ignore[arg-type]
    later = corrupt(images[2:], kind, 3, scale=scale, seed=2, first_row=2)  # type: ignore[arg-type]
    assert np.array_equal(both[2:], later)
    assert both.min() >= 0
    assert both.max() <= 1
    is_random = kind.endswith("noise")
    assert np.array_equal(both, corrupt(images, kind, 3, scale=scale, seed=3)) is not is_random or (  # type: ignore[arg-type]
        kind in ("rotate", "shear", "translate")
    )


def test_all_kinds_have_constants() -> None:
    assert {kind for _, kind in CASES} == set(KINDS)
    assert all(len(numbers) == 5 for kinds in COMMON.values() for numbers in kinds.values())


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
