"""The rank-1 convolution against the kernel it stands for, and against the moments it claims."""

from __future__ import annotations

import math
from typing import Any

import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from torch import Tensor
from torch.nn.functional import conv2d
from torch.testing import assert_close

from pyro_bnn.errors import OptionError
from pyro_bnn.layers import Rank1Conv2d
from pyro_bnn.priors import HalfCauchyScale, PriorLike
from pyro_bnn.program.handlers import Evaluate

O, I = 3, 2  # noqa: E741  # filters and channels
LOC_R = torch.tensor([1.2, -0.7, 0.4], dtype=torch.float64)
LOC_S = torch.tensor([0.9, -0.4], dtype=torch.float64)
SCALE_R = torch.tensor([0.3, 0.5, 0.2], dtype=torch.float64)
SCALE_S = torch.tensor([0.2, 0.6], dtype=torch.float64)
SIDES = {"both": ["s", "r"], "inputs": ["s"], "outputs": ["r"], "none": []}


def made(side: str = "both", **options: Any) -> Rank1Conv2d:
    """A layer in float64 with Gaussian factors, and a bias that is not zero."""
    torch.manual_seed(0)
    prior = {"s": dist.Normal(LOC_S, SCALE_S), "r": dist.Normal(LOC_R, SCALE_R)}
    s: PriorLike | None = prior["s"] if "s" in SIDES[side] else None
    r: PriorLike | None = prior["r"] if "r" in SIDES[side] else None
    layer = Rank1Conv2d(I, O, (3, 2), input_prior=s, output_prior=r, **options)
    if layer.bias is not None:
        layer.bias.data.normal_()
    return layer.double()


def output(layer: Rank1Conv2d, x: Tensor, **factors: Tensor) -> Tensor:
    """The layer's output with its sites held at given factors, as a program holds them."""
    with Evaluate(factors, {}):
        value: Tensor = layer(x)
    return value


def factors(*shape: int) -> tuple[Tensor, Tensor]:
    """Random r ``[*shape, O]`` and s ``[*shape, I]``, of both signs."""
    generator = torch.Generator().manual_seed(1)
    r = torch.randn(*shape, O, generator=generator, dtype=torch.float64)
    return r, torch.randn(*shape, I, generator=generator, dtype=torch.float64)


def images(num_rows: int = 4) -> Tensor:
    generator = torch.Generator().manual_seed(2)
    return torch.randn(num_rows, I, 5, 6, generator=generator, dtype=torch.float64)


def materialised(layer: Rank1Conv2d, r: Tensor | None, s: Tensor | None) -> Tensor:
    """W' ``[O, I, U, V]``, an entry at a time."""
    weight = layer.weight.detach().clone()
    for o in range(O):
        for i in range(I):
            weight[o, i] *= (1.0 if r is None else r[o]) * (1.0 if s is None else s[i])
    return weight


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("options", [{}, {"stride": 2, "padding": 1}, {"bias": False}])
def test_forward_is_a_convolution_with_the_materialised_kernel(
    side: str, options: dict[str, Any]
) -> None:
    layer, x, (r, s) = made(side, **options), images(), factors()
    given = {name: {"r": r, "s": s}[name] for name in SIDES[side]}
    weight = materialised(layer, given.get("r"), given.get("s"))
    places = {name: value for name, value in options.items() if name != "bias"}
    expected = conv2d(x, weight, layer.bias, **places)
    assert_close(output(layer, x, **given), expected, rtol=1e-12, atol=1e-12)


def test_members_and_rows_with_factors_of_their_own() -> None:
    layer, x, (r, s) = made(padding=1), images(), factors(3, 4)

    def row(x: Tensor, r: Tensor, s: Tensor) -> Tensor:
        return output(layer, x, r=r, s=s)

    rows = torch.func.vmap(row)
    actual = torch.func.vmap(rows, in_dims=(None, 0, 0))(x, r, s)  # [K, N, O, H, W]
    members = torch.func.vmap(row, in_dims=(None, 0, 0))(x, r[:, 0], s[:, 0])
    for k in range(3):
        for n in range(4):
            weight = materialised(layer, r[k, n], s[k, n])
            expected = conv2d(x[n : n + 1], weight, layer.bias, padding=1)[0]
            assert_close(actual[k, n], expected, rtol=1e-12, atol=1e-12)
        expected = conv2d(x, materialised(layer, r[k, 0], s[k, 0]), layer.bias, padding=1)
        assert_close(members[k], expected, rtol=1e-12, atol=1e-12)


def test_gradients_are_those_of_the_materialised_kernel() -> None:
    layer, x, (r, s) = made(), images(), factors()
    (output(layer, x, r=r, s=s) ** 2).sum().backward()
    twin = materialised(layer, r, s).requires_grad_()
    assert layer.bias is not None
    (conv2d(x, twin, layer.bias.detach()) ** 2).sum().backward()
    assert twin.grad is not None
    assert layer.weight.grad is not None
    outer = (r[:, None] * s)[:, :, None, None]
    assert_close(layer.weight.grad, twin.grad * outer, rtol=1e-11, atol=1e-11)


def test_the_clip_bounds_the_factors() -> None:
    far = {"r": torch.tensor([30.0, -2.0, 11.0]).double(), "s": torch.tensor([-12.0, 1.0]).double()}
    near = {name: value.clamp(-10, 10) for name, value in far.items()}
    expected = output(made(clip=None), images(), **near)
    assert_close(output(made(), images(), **far), expected, rtol=1e-12, atol=1e-12)


def test_moments_of_the_kernel_over_draws_of_the_prior() -> None:
    layer, num_draws = made(clip=None), 100_000
    torch.manual_seed(3)
    draw: Any = {name: getattr(layer, f"{name}_prior")().sample((num_draws,)) for name in "rs"}
    # all pixels of a kernel share a factor: pixel (0, 1) of filter o and channel i, in one step
    w = layer.weight.detach()[:, :, 0, 1] * draw["r"][:, :, None] * draw["s"][:, None, :]
    mean = layer.weight.detach()[:, :, 0, 1] * torch.outer(LOC_R, LOC_S)
    assert float(((w.mean(0) - mean) * math.sqrt(num_draws) / w.std(0)).abs().max()) < 5
    second_r = torch.outer(LOC_R, LOC_R) + torch.diag(SCALE_R**2)
    second_s = torch.outer(LOC_S, LOC_S) + torch.diag(SCALE_S**2)
    claimed = torch.einsum("ik,jl->ijkl", second_r, second_s)
    claimed = claimed - torch.einsum("i,j,k,l->ijkl", LOC_R, LOC_S, LOC_R, LOC_S)
    pixel = layer.weight.detach()[:, :, 0, 1]
    claimed = claimed * pixel[:, :, None, None] * pixel
    centred = w - mean
    products = centred[:, :, :, None, None] * centred[:, None, None]
    error = products.std(0) / math.sqrt(num_draws)
    assert float(((products.mean(0) - claimed) / error).abs().max()) < 5


# Sites, parameters, start


@pytest.mark.parametrize("side", SIDES)
def test_sites_are_a_factor_of_each_channel(side: str) -> None:
    layer = made(side)
    trace = poutine.trace(layer).get_trace(images())
    nodes: Any = trace.nodes
    assert trace.stochastic_nodes == SIDES[side]
    shapes = {name: tuple(nodes[name]["value"].shape) for name in SIDES[side]}
    assert shapes == {name: {"r": (O,), "s": (I,)}[name] for name in SIDES[side]}
    found = {name: tuple(p.shape) for name, p in layer.named_parameters()}
    assert found == {"weight": (O, I, 3, 2), "bias": (O,)}
    assert [name for name, _ in made(side, bias=False).named_parameters()] == ["weight"]


def test_hierarchies_serve_too() -> None:
    layer = Rank1Conv2d(I, O, 3, output_prior=HalfCauchyScale(loc=1.0)).double()
    nodes: Any = poutine.trace(layer).get_trace(images()).nodes
    assert {"r.raw", "r.scale"} <= set(nodes)


def test_weights_start_at_the_scale_of_their_fan_in() -> None:
    torch.manual_seed(0)
    layer = Rank1Conv2d(20, 50, 5)
    # mean square of 25,000 draws of N(0, 1/500), whose standard error is sqrt(2/25,000)
    z = (float(layer.weight.detach().square().mean()) * 500 - 1) / math.sqrt(2 / 25_000)
    assert abs(z) < 4
    assert layer.bias is not None
    assert not bool(layer.bias.detach().any())


@pytest.mark.parametrize(
    "sizes",
    [
        {"num_inputs": 0},
        {"num_outputs": -1},
        {"kernel_size": (3, 0)},
        {"stride": 0},
        {"padding": -1},
        {"kernel_size": (3.0, 3)},
        {"kernel_size": (3, 3, 3)},
    ],
)
def test_sizes_are_checked(sizes: dict[str, Any]) -> None:
    options = {"num_inputs": 2, "num_outputs": 3, "kernel_size": 3, **sizes}
    with pytest.raises(
        OptionError, match=r"is an integer of at least [01], not|kernel_size is one number or two"
    ):
        Rank1Conv2d(**options)


def test_the_clip_is_checked() -> None:
    with pytest.raises(OptionError, match=r"clip is a positive number, not -1"):
        Rank1Conv2d(2, 3, 3, clip=-1)
