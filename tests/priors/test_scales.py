"""The scale option of heavy-tailed priors."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from pyro_bnn import priors
from pyro_bnn.checks import check_positive
from pyro_bnn.errors import OptionError
from pyro_bnn.priors.scales import scale_for


@pytest.mark.parametrize(
    ("shape", "expected"), [((7,), 1), ((7, 5), 1 / 5), ((8, 3, 2, 4), 1 / 24), ((), 1)]
)
def test_fan_in_is_one_over_the_inputs(shape: tuple[int, ...], expected: float) -> None:
    assert scale_for(torch.Size(shape), "fan_in", priors.Horseshoe().fan_in_scale) == expected
    assert scale_for(torch.Size(shape), 2, priors.Horseshoe().fan_in_scale) == 2.0


NOT_POSITIVE = [0, 0.0, -1.0, math.inf, math.nan, "fan-in", None, True, torch.ones(())]


@pytest.mark.parametrize("value", NOT_POSITIVE)
def test_numbers_that_are_not_positive_are_refused(value: Any) -> None:
    with pytest.raises(OptionError, match="slab_df is a positive number, not ") as caught:
        check_positive("slab_df", value)
    assert str(caught.value).endswith(f"not {value!r}")


def test_the_word_beside_a_number_is_named() -> None:
    check_positive("scale", "fan_in", also="fan_in")
    with pytest.raises(OptionError, match="scale is a positive number or 'fan_in', not 'fan-in'"):
        check_positive("scale", "fan-in", also="fan_in")
    with pytest.raises(OptionError, match="scale is a positive number, not 'fan_in'"):
        check_positive("scale", "fan_in")


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (priors.Cauchy, "scale"),
        (priors.LogNormal, "scale"),
        (priors.HalfCauchy, "scale"),
        (priors.HalfCauchyScale, "scale"),
        (priors.Horseshoe, "scale"),
        (lambda value: priors.Horseshoe(slab_scale=value), "slab_scale"),
        (lambda value: priors.Horseshoe(slab_df=value), "slab_df"),
    ],
)
def test_every_prior_checks_its_scales(make: Any, name: str) -> None:
    with pytest.raises(OptionError, match=rf"{name} is a positive number( or 'fan_in')?, not -1.0"):
        make(-1.0)
