"""Canvas and colours."""

import re
from xml.etree import ElementTree as ET

import matplotlib as mpl
import pytest

from pyro_bnn.plotting.theme import (
    BAD,
    GOOD,
    INK,
    METHODS,
    MUTED,
    ON_BLACK,
    PAPER,
    canvas,
    grid_shape,
    hide_unused,
    name_parts,
    name_words,
    rows_height,
    styles,
    svg,
    wrap_name,
)


def test_matplotlib_settings_are_restored_even_after_an_error() -> None:
    before = dict(mpl.rcParams)
    with pytest.raises(KeyError), canvas(4, 3):
        raise KeyError("inside")
    assert dict(mpl.rcParams) == before


def test_methods_keep_different_colours_and_the_reference_is_ink() -> None:
    names = list("abcdefg")
    found = styles(names, "d")
    assert found["d"].colour == INK
    assert len({style.colour for style in found.values()}) == 7
    assert len({ON_BLACK[style.colour] for style in found.values()}) == 7


def test_no_two_of_nine_methods_look_alike_without_colour() -> None:
    names = list("abcdefghi")
    found = list(styles(names, "d").values())
    assert len({style.mark for style in found}) == 9
    assert len({(style.colour, style.dashes) for style in found}) == 9


def test_a_picture_has_dark_colours_in_dark_surroundings_and_ids_of_its_own() -> None:
    with canvas(3, 2) as (figure, (ax,)):
        ax.plot([0, 1], [0, 1], color=METHODS[0])
        ax.set_title("straight")
    text = svg(figure, "one")
    colours = set(re.findall("#[0-9a-f]{6}", text))
    assert colours <= {*ON_BLACK, *ON_BLACK.values()}
    for light in (METHODS[0], INK, PAPER):
        assert f"light-dark({light}, {ON_BLACK[light]})" in text
    ids = re.findall(r'\bid="([^"]*)"', text)
    assert len(set(ids)) == len(ids)
    assert all(name.startswith("one-") for name in ids)
    assert {name for _, name in re.findall(r'(href="#|url\(#)([^")]*)', text)} <= set(ids)
    root = ET.fromstring(text)
    assert (root.get("width"), root.get("height")) == ("216pt", "144pt")


def _luminance(colour: str) -> float:
    """Relative luminance of WCAG 2.2."""
    channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return sum(weight * c for weight, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


@pytest.mark.parametrize("colour", [*METHODS, GOOD, BAD, INK, MUTED])
def test_every_colour_has_a_contrast_of_three_to_one(colour: str) -> None:
    for drawn, paper in ((colour, PAPER), (ON_BLACK[colour], ON_BLACK[PAPER])):
        low, high = sorted((_luminance(drawn), _luminance(paper)))
        assert (high + 0.05) / (low + 0.05) >= 3


@pytest.mark.parametrize("count", range(1, 10))
def test_a_grid_holds_all_panels_without_an_empty_row(count: int) -> None:
    rows, columns = grid_shape(count)
    assert (rows - 1) * columns < count <= rows * columns


def test_axes_above_a_hidden_panel_get_their_labels_back() -> None:
    with canvas(4, 3, 2, 2, sharex=True) as (_, axes):
        hide_unused(axes, 3, 2)
    assert not axes[3].get_visible()
    shown = [[label.get_visible() for label in one.get_xticklabels()] for one in axes[:2]]
    assert all(shown[1])
    assert not any(shown[0])


@pytest.mark.parametrize(
    "name",
    ["AutoLowRankMultivariateNormal @ HalfCauchyScale", "mean field, rank 5", "x" * 40, "NUTS"],
)
def test_names_lose_nothing_when_they_are_broken(name: str) -> None:
    words = name_words(name)
    assert " ".join(words) == name
    assert all("".join(name_parts(word)) == word for word in words)
    assert wrap_name(name).replace("\n", "").replace(" ", "") == name.replace(" ", "")


def test_names_are_broken_at_spaces_before_words_are() -> None:
    assert wrap_name("AutoLowRankMultivariateNormal @ HalfCauchyScale").splitlines() == [
        "AutoLowRank",
        "MultivariateNormal",
        "@ HalfCauchyScale",
    ]
    assert wrap_name("mean field") == "mean field"
    assert wrap_name("AutoRank1Mixture @ x") == "AutoRank1Mixture @ x"


def test_rows_are_as_high_as_their_names() -> None:
    assert rows_height(["a", "b"]) == 1.0
    long = "AutoLowRankMultivariateNormal @ HalfCauchyScale"  # three lines of 11 points
    assert rows_height([long, "b", "c"]) / 3 > 3 * 1.2 * 11 / 72
