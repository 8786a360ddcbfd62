"""Heat maps show the covariances that were given."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose

from pyro_bnn.diagnostics import MatrixMoments, product_moments
from pyro_bnn.diagnostics.mean_field.matrix_moments import covariance_maps
from pyro_bnn.plotting.theme import PAPER

ONE = torch.ones(2, 2, dtype=torch.float64)


def moments(depth: int) -> MatrixMoments:
    return product_moments([(ONE, 2 * ONE)] * depth)


@pytest.mark.parametrize("correlations", [False, True])
def test_each_panel_shows_its_matrix_on_a_scale_around_zero(correlations: bool) -> None:
    found = {"one layer": moments(1), "two layers": moments(2)}
    figure = covariance_maps(found, correlations=correlations)
    panels = [ax for ax in figure.axes if ax.get_images()]
    assert [ax.get_title(loc="left") for ax in panels] == list(found)
    for ax, given in zip(panels, found.values(), strict=True):
        (image,) = ax.get_images()
        values = given.correlation if correlations else given.matrix
        assert_allclose(np.asarray(image.get_array()), values.numpy())
        low, high = image.get_clim()
        assert low == -high
        assert high == (1.0 if correlations else float(values.max()))


def test_zero_has_the_colour_of_the_paper() -> None:
    from matplotlib.colors import to_rgb

    figure = covariance_maps({"one layer": moments(1)})
    (image,) = figure.axes[0].get_images()
    zero = cast(Any, image.cmap)(image.norm(0.0))[:3]
    assert_allclose(zero, to_rgb(PAPER), atol=0.01)


def test_moments_draw_their_own_figure() -> None:
    (image,) = moments(3).figure.axes[0].get_images()
    assert_allclose(np.asarray(image.get_array()), moments(3).matrix.numpy())
