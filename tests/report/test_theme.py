"""Canvas and colours."""

import matplotlib as mpl
import pytest

from pyro_bnn.report.theme import (
    DARK,
    LIGHT,
    canvas,
    grid_shape,
    hide_unused,
    name_parts,
    wrap_name,
)


def test_matplotlib_settings_are_restored_even_after_an_error() -> None:
    before = dict(mpl.rcParams)
    with pytest.raises(KeyError), canvas(DARK, 4, 3):
        raise KeyError("inside")
    assert dict(mpl.rcParams) == before


def test_methods_keep_different_colours_and_the_reference_is_ink() -> None:
    names = list("abcdefg")
    for theme in (LIGHT, DARK):
        colours = theme.colours(names, "d")
        assert colours["d"] == theme.ink
        assert len(set(colours.values())) == 7


def test_the_palette_is_okabe_and_ito() -> None:
    assert set(LIGHT.methods) == {"#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00"}


@pytest.mark.parametrize("count", range(1, 10))
def test_a_grid_holds_all_panels_without_an_empty_row(count: int) -> None:
    rows, columns = grid_shape(count)
    assert (rows - 1) * columns < count <= rows * columns


def test_axes_above_a_hidden_panel_get_their_labels_back() -> None:
    with canvas(LIGHT, 4, 3, 2, 2, sharex=True) as (_, axes):
        hide_unused(axes, 3, 2)
    assert not axes[3].get_visible()
    assert axes[1].xaxis.get_tick_params()["labelbottom"]
    assert not axes[0].xaxis.get_tick_params()["labelbottom"]


def test_names_lose_nothing_when_they_are_broken() -> None:
    for name in ("AutoLowRankMultivariateNormal", "mean field, rank 5", "x" * 40, "NUTS"):
        assert "".join(name_parts(name)) == name
        assert wrap_name(name).replace("\n", "").replace(" ", "") == name.replace(" ", "")
