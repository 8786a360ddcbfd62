"""Rows of pixels as images and back; corrupted and unknown inputs in the network's units."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose

from pyro_bnn.data.dataset import Dataset
from pyro_bnn.data.split import Split
from pyro_bnn.data.standardise import Standardiser
from pyro_bnn.diagnostics import corrupt
from pyro_bnn.errors import DataError, OptionError, ShapeError
from pyro_bnn.report.beyond.images import USUAL, Pixels, corrupted, unknown_inputs
from tests.report.beyond.known import LARGEST, images


def test_images_are_pixels_over_the_largest_one_and_go_back() -> None:
    split = images()
    pixels = Pixels.of(split)
    assert (pixels.shape, pixels.largest) == ((1, 4, 4), LARGEST)
    found = pixels.images(split.test.x)
    raw = split.test.inputs.inverse(split.test.x)  # type: ignore[union-attr]
    assert_allclose(found.reshape(len(raw), -1), raw.numpy() / LARGEST, atol=1e-12)
    torch.testing.assert_close(pixels.inputs(found, split.test.x), split.test.x)


def test_corrupted_inputs_are_the_corrupted_images_in_the_units_of_the_network() -> None:
    split = images()
    pixels = Pixels.of(split)
    found = corrupted(split, (1, 3), kinds=("inverse", "gaussian-noise"), num_rows=5, seed=3)
    assert [(c.kind, c.severity) for c in found] == [
        ("inverse", 1), ("inverse", 3), ("gaussian-noise", 1), ("gaussian-noise", 3),
    ]  # fmt: skip
    own = pixels.images(split.test.x[:5])
    assert_allclose(pixels.images(found[0].x), 1 - own, atol=1e-12)
    noisy = corrupt(own, "gaussian-noise", 3, seed=3)
    assert_allclose(pixels.images(found[3].x), noisy, atol=1e-12)
    assert found[0].x.shape == split.test.x[:5].shape


def test_the_usual_kinds_go_by_the_channels() -> None:
    kinds = [c.kind for c in corrupted(images(), (2,), num_rows=1)]
    assert tuple(kinds) == USUAL["mnist"]


def test_unknown_inputs_keep_their_brightness() -> None:
    split, other = images(), images(30, seed=1)
    darker = Dataset(other.test.x, other.test.y, other.test.inputs)
    units = other.train.inputs
    assert units is not None
    # the same images in other units: from 0 to 1 in place of 0 to 16
    scaled = Standardiser(units.loc / LARGEST, units.scale / LARGEST)
    parts = [Dataset(part.x, part.y, scaled) for part in (other.train, darker)]
    found = unknown_inputs(split, replace(other, train=parts[0], test=parts[1]))
    torch.testing.assert_close(found, unknown_inputs(split, other))
    here = Pixels.of(split)
    assert_allclose(here.images(found), Pixels.of(other).images(other.test.x), atol=1e-6)


def normalised(split: Split) -> Split:
    """The same images, of which a mean of 8 and an sd of 4 were taken off by hand."""
    parts = (split.train, split.test)
    given = [Dataset((d.inputs.inverse(d.x) - 8) / 4, d.y) for d in parts]  # type: ignore[union-attr]
    return replace(split, train=given[0], test=given[1])


def test_normalised_images_are_unknown_inputs_as_they_are() -> None:
    split, other = normalised(images()), normalised(images(30, seed=1))
    torch.testing.assert_close(unknown_inputs(split, other), other.test.x)
    # a split that standardises its columns as well: back to the numbers by hand, then its units
    units = Standardiser(torch.full((1, 16), 0.5), torch.full((1, 16), 2.0))
    again = [Dataset(units.transform(d.x), d.y, units) for d in (split.train, split.test)]
    found = unknown_inputs(replace(split, train=again[0], test=again[1]), other)
    torch.testing.assert_close(found, (other.test.x - 0.5) / 2)
    with pytest.raises(DataError, match=r"is -2, that of .* 0: normalise both alike"):
        unknown_inputs(split, images(30, seed=1))
    with pytest.raises(DataError, match=r"smallest pixel is -2: .* inputs=Standardiser\(mean, sd"):
        corrupted(split, (1,))


def test_what_is_no_image_is_refused() -> None:
    split = images()
    rows = Dataset(torch.rand(4, 3), torch.tensor([0, 1, 0, 1]))
    with pytest.raises(ShapeError, match=r"shape \[4, 3\], but images"):
        Pixels.of(replace(split, train=rows))
    dark = Dataset(torch.rand(4, 16) - 0.5, torch.tensor([0, 1, 0, 1]))
    with pytest.raises(DataError, match="smallest pixel is -"):
        Pixels.of(replace(split, train=dark))
    large = Dataset(torch.rand(4, 25), torch.tensor([0, 1, 0, 1]))
    with pytest.raises(ShapeError, match=r"shape \[1, 5, 5\], those of four by four"):
        unknown_inputs(split, replace(split, train=large, name="five"))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"severities": (1, 1)}, "severities are named once each"),
        ({"severities": ()}, "severities are named once each"),
        ({"severities": (6,)}, "severity is 1, 2, 3, 4 or 5"),
        ({"severities": (1,), "kinds": ("fog",)}, "there is no corruption 'fog'"),
        ({"severities": (1,), "kinds": ("jpeg", "jpeg")}, "corruptions are named once"),
        ({"severities": (1,), "scale": "imagenet"}, 'scale is "cifar" or "mnist"'),
    ],
)
def test_what_cannot_be_made_is_refused(options: dict[str, object], words: str) -> None:
    severities = options.pop("severities")
    with pytest.raises(OptionError, match=words):
        corrupted(images(), severities, **options)  # type: ignore[arg-type]


def test_noise_does_not_depend_on_the_number_of_rows() -> None:
    split = images()
    few, many = (corrupted(split, (5,), kinds=("shot-noise",), num_rows=n)[0].x for n in (3, 20))
    assert np.array_equal(few.numpy(), many[:3].numpy())
