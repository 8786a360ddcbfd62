"""Weights with a half-Cauchy scale a layer, a unit or an input: the laws of their draws."""

from __future__ import annotations

import math
from typing import Any

import pyro
import pytest
import torch
from scipy import stats
from torch import Tensor

from pyro_bnn.errors import OptionError
from pyro_bnn.priors import HalfCauchyScale, Horseshoe
from tests.priors.laws import assert_law, horseshoe_cdf

both = pytest.mark.parametrize("centred", [False, True])


def draws_of(prior: HalfCauchyScale, shape: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """Scale and weight of one draw."""
    hierarchy = prior.hierarchy(torch.Size(shape)).double()
    trace: Any = pyro.poutine.trace(hierarchy).get_trace()
    return trace.nodes["weight.scale"]["value"], trace.nodes["weight"]["value"]


@pytest.mark.parametrize(
    ("per", "shape", "expected"),
    [
        ("layer", (5, 3), ()),
        ("unit", (5, 3), (5, 1)),
        ("input", (5, 3), (1, 3)),
        ("layer", (5,), ()),
        ("unit", (5,), (5,)),
        ("input", (5,), (5,)),
        ("unit", (8, 3, 2, 4), (8, 1, 1, 1)),
        ("input", (8, 3, 2, 4), (1, 3, 1, 1)),
        ("unit", (), ()),
        ("layer", (), ()),
    ],
)
@both
def test_shapes_of_the_scale(
    per: Any, shape: tuple[int, ...], expected: tuple[int, ...], centred: bool
) -> None:
    scale, w = draws_of(HalfCauchyScale(per=per, centred=centred), shape)
    assert (scale.shape, w.shape) == (expected, shape)


@pytest.mark.parametrize(
    ("per", "shape", "median"),
    [
        ("layer", (5, 4), 1 / 2),
        ("unit", (5, 4), 1 / 2),
        ("input", (5, 4), 1 / 4),
        ("unit", (8, 4, 5, 5), 1 / 10),
        ("input", (8, 4, 5, 5), 1 / 20),
        ("layer", (5,), 1.0),
        ("unit", (5,), 1.0),
        ("input", (5,), 1.0),
    ],
)
def test_fan_in_sets_the_median_of_the_scale(
    per: Any, shape: tuple[int, ...], median: float
) -> None:
    hierarchy: Any = HalfCauchyScale(per=per).hierarchy(torch.Size(shape))
    fn = hierarchy.scale_prior()
    middle = torch.full(fn.event_shape, median)
    cdf = stats.halfcauchy(scale=median).logpdf(median)
    torch.testing.assert_close(fn.log_prob(middle), torch.tensor(float(cdf) * middle.numel()))


@both
def test_scales_are_half_cauchy_and_weights_normal_given_them(centred: bool) -> None:
    torch.manual_seed(0)
    prior = HalfCauchyScale(0.5, per="unit", loc=2.0, centred=centred)
    tau, w = draws_of(prior, (3_000, 2))
    assert_law(tau, stats.halfcauchy(scale=0.5).cdf)
    assert_law((w - 2.0) / tau, stats.norm.cdf)
    standard = (w[:, :1] - 2.0) / 0.5  # one entry of each unit: they are independent
    assert_law(standard, horseshoe_cdf)


@both
def test_one_scale_a_layer(centred: bool) -> None:
    torch.manual_seed(0)
    draws = [draws_of(HalfCauchyScale(centred=centred), (2, 4)) for _ in range(600)]
    taus = torch.stack([tau for tau, _ in draws])
    assert_law(2 * taus, stats.halfcauchy.cdf)
    assert_law(torch.stack([w / tau for tau, w in draws]), stats.norm.cdf)
    assert_law(2 * torch.stack([w[0, 0] for _, w in draws]), horseshoe_cdf)


def test_entries_of_a_group_share_their_scale() -> None:
    torch.manual_seed(0)
    for per, dim in (("unit", 1), ("input", 0)):
        tau, w = draws_of(HalfCauchyScale(per=per, centred=True), (200, 200))  # type: ignore[arg-type]
        spread = (w / tau).square().mean(dim)  # of 200 entries: 1 +- sqrt(2/200)
        assert float((spread - 1).abs().max()) < 6 * math.sqrt(2 / 200)
        other = w.square().mean(1 - dim, keepdim=True)
        assert float((w.square() / other).mean(dim).max()) > 3  # the other way they do not


@pytest.mark.parametrize("num_inputs", [1, 4, 400])
def test_a_units_sum_has_the_same_law_at_every_width(num_inputs: int) -> None:
    torch.manual_seed(0)
    _, w = draws_of(HalfCauchyScale(per="unit"), (2_000, num_inputs))
    assert_law(w.sum(1), horseshoe_cdf)


@pytest.mark.slow("about a second")
def test_a_sum_over_inputs_with_scales_of_their_own_is_cauchy_in_the_limit() -> None:
    r"""Tails :math:`P(|w| > t) \sim \frac{2}{\pi} s E|\epsilon| / t` make it stable of index 1."""
    torch.manual_seed(0)
    sums = [draws_of(HalfCauchyScale(per="input"), (1, 400))[1].sum() for _ in range(1_000)]
    assert_law(torch.stack(sums), stats.cauchy(scale=math.sqrt(2 / math.pi)).cdf)


def test_an_unknown_group_is_refused() -> None:
    with pytest.raises(OptionError, match="per is one of 'layer', 'unit', 'input', not 'row'"):
        HalfCauchyScale(per="row")  # type: ignore[arg-type]


@pytest.mark.parametrize("make", [HalfCauchyScale, Horseshoe])
def test_a_centre_that_is_no_number_is_refused(make: Any) -> None:
    with pytest.raises(OptionError, match="loc is a finite number, not nan"):
        make(loc=math.nan)
