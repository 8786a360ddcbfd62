"""The deep linear network: one matrix, made of several."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from pyro import poutine
from torch.testing import assert_close

from pyro_bnn import priors
from pyro_bnn.errors import ShapeError, SiteError
from pyro_bnn.models import DeepLinear
from pyro_bnn.program import Program


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("hidden", [(), (4,), (5, 3)])
def test_the_product_matrix_is_the_jacobian_of_f(hidden: tuple[int, ...], bias: bool) -> None:
    model = DeepLinear(3, 2, hidden=hidden, bias=bias).double()
    x = torch.randn(6, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    program = Program(model, x, x[:, :2])
    names = [site.name for site in program.sites]
    assert ("layers.0.bias" in names) is bias
    assert len(names) == (len(hidden) + 1) * (2 if bias else 1) + 1  # with the noise
    z = program.prior_draws(4, x[:1], seed=1)
    product = model.product_matrix(program.constrain(z))
    assert product.shape == (4, 2, 3)
    for draw, matrix in zip(z, product, strict=True):

        def f(row: torch.Tensor, draw: torch.Tensor = draw) -> torch.Tensor:
            return program.function(draw, row[None])[0]

        jacobian = torch.func.jacrev(f)(x[0])
        assert_close(jacobian, matrix, rtol=1e-12, atol=1e-12)
        if not bias:
            assert_close(program.function(draw, x), x @ matrix.T, rtol=1e-12, atol=1e-12)


def test_layers_apply_in_turn_with_their_biases() -> None:
    model = DeepLinear(2, hidden=(3,))
    x = torch.randn(5, 2)
    nodes = poutine.trace(model).get_trace(x).nodes
    value: Any = {name: node["value"] for name, node in nodes.items() if "value" in node}
    h = x @ value["layers.0.weight"].T + value["layers.0.bias"]
    assert_close(value["f"], h @ value["layers.1.weight"].T + value["layers.1.bias"])


def test_weights_of_several_sites_have_no_product() -> None:
    model = DeepLinear(2, hidden=(3,), prior=priors.HalfCauchyScale())
    program = Program(model, torch.zeros(4, 2), torch.zeros(4))
    draws = program.constrain(program.prior_draws(2, torch.zeros(1, 2)))
    with pytest.raises(SiteError, match=r"no values of layers.0.weight, layers.1.weight, but of"):
        model.product_matrix(draws)


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(SiteError, match=r"no prior pattern matches layers\.0\.bias, layers\.1\."):
        DeepLinear(2, hidden=(3,), prior={"*.weight": priors.Normal()})
    with pytest.raises(SiteError, match=r"the prior pattern '\*.bias' matches no parameter"):
        DeepLinear(2, bias=False, prior={"*.bias": priors.Normal(), "*": priors.Normal()})
    with pytest.raises(ShapeError, match=r"x has shape \(4, 3\)"):
        DeepLinear(2)(torch.zeros(4, 3))
