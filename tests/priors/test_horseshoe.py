"""The horseshoe and its slab: the laws of their draws."""

from __future__ import annotations

import math
from typing import Any

import pyro
import pytest
import torch
from scipy import stats
from torch import Tensor

from pyro_bnn.errors import OptionError
from pyro_bnn.priors import Horseshoe
from tests.priors.laws import assert_law, horseshoe_cdf

both = pytest.mark.parametrize("centred", [False, True])
SHAPE = (3_000, 4)


def draws_of(prior: Horseshoe, shape: tuple[int, ...], **fixed: float) -> dict[str, Tensor]:
    """Values of one draw by last name, and the weight; some sites held."""
    model = prior.hierarchy(torch.Size(shape)).double()
    held = {f"weight.{k}": torch.tensor(v, dtype=torch.float64) for k, v in fixed.items()}
    trace: Any = pyro.poutine.trace(pyro.condition(model, data=held)).get_trace()
    nodes = {name: node for name, node in trace.nodes.items() if node["type"] == "sample"}
    return {name.removeprefix("weight."): node["value"] for name, node in nodes.items()}


@both
def test_the_marginal_is_the_horseshoe(centred: bool) -> None:
    torch.manual_seed(0)
    draw = draws_of(Horseshoe(loc=1.0, centred=centred), SHAPE, **{"global": 0.25})
    shrinkage = 1 / (1 + draw["local"].square())
    assert_law(shrinkage, stats.beta(0.5, 0.5).cdf)
    assert_law((draw["weight"] - 1.0) / 0.25, horseshoe_cdf)


@both
def test_weights_are_normal_given_both_scales(centred: bool) -> None:
    torch.manual_seed(0)
    draw = draws_of(Horseshoe(centred=centred), SHAPE)
    assert set(draw) == {"global", "local", "weight", "value" if centred else "raw"}
    assert (draw["global"].shape, draw["local"].shape) == ((), SHAPE)
    assert_law(draw["weight"] / (draw["global"] * draw["local"]), stats.norm.cdf)


@pytest.mark.parametrize(
    ("prior", "shape", "median"),
    [
        (Horseshoe(), (5, 4), 1 / 4),
        (Horseshoe(), (5,), 1.0),
        (Horseshoe(0.01), (5, 4), 0.01),
    ],
)
def test_the_global_scale_is_half_cauchy(
    prior: Horseshoe, shape: tuple[int, ...], median: float
) -> None:
    torch.manual_seed(0)
    draws = torch.stack([draws_of(prior, shape)["global"] for _ in range(500)])
    assert_law(draws, stats.halfcauchy(scale=median).cdf)


@both
def test_the_slab_bounds_the_local_scales(centred: bool) -> None:
    torch.manual_seed(0)
    draw = draws_of(Horseshoe(slab_scale=2.0, centred=centred), SHAPE)
    tau, lam, slab = draw["global"], draw["local"], draw["slab"]
    assert slab.shape == ()
    variance = slab * lam**2 / (slab + tau**2 * lam**2)  # Piironen & Vehtari, equation (8)
    assert_law(draw["weight"] / (tau * variance.sqrt()), stats.norm.cdf)


@pytest.mark.slow("about a second")
def test_the_variance_of_the_slab_is_inverse_gamma() -> None:
    torch.manual_seed(0)
    prior = Horseshoe(slab_scale=2.0, slab_df=5.0)
    draws = torch.stack([draws_of(prior, (1,))["slab"] for _ in range(500)])
    assert_law(draws, stats.invgamma(2.5, scale=10.0).cdf)


@pytest.mark.parametrize("num_inputs", [1, 10, 100])
def test_variance_of_a_sum_with_a_slab(num_inputs: int) -> None:
    r"""With :math:`a = \tau/c`, :math:`E w^2 = c^2 a / (1 + a)`, as E of a half-Cauchy says."""
    torch.manual_seed(0)
    tau, c = 1 / num_inputs, 1.5
    fixed = {"global": tau, "slab": c**2}
    w = draws_of(Horseshoe(slab_scale=9.0), (20_000, num_inputs), **fixed)["weight"]
    squares = w.sum(1).square()
    expected = num_inputs * c**2 * tau / (c + tau)
    assert expected < c
    error = float(squares.std()) / math.sqrt(len(squares))
    assert abs(float(squares.mean()) - expected) < 5 * error


def test_a_sum_of_plain_ones_is_cauchy_in_the_limit() -> None:
    torch.manual_seed(0)
    w = draws_of(Horseshoe(), (2_000, 400), **{"global": 1 / 400})["weight"]
    assert_law(w.sum(1), stats.cauchy(scale=math.sqrt(2 / math.pi)).cdf)


def test_extreme_scales_do_not_overflow() -> None:
    model = Horseshoe(slab_scale=2.0).hierarchy(torch.Size([2]))  # float32
    local = torch.tensor([1e30, 1e-30], requires_grad=True)
    held = {
        "weight.global": torch.tensor(1.0),
        "weight.local": local,
        "weight.slab": torch.tensor(4.0),
        "weight.raw": torch.ones(2),
    }
    w: Tensor = pyro.condition(model, data=held)()
    torch.testing.assert_close(w, torch.tensor([2.0, 1e-30]), rtol=1e-6, atol=0)
    (gradient,) = torch.autograd.grad(w.sum(), local)
    torch.testing.assert_close(gradient, torch.tensor([0.0, 1.0]))


def test_degrees_of_freedom_of_no_slab_are_refused() -> None:
    with pytest.raises(OptionError, match=r"slab_df=1.0 would have no effect, .* pass slab_scale"):
        Horseshoe(slab_df=1.0)
    assert Horseshoe(slab_df=4.0) == Horseshoe()
