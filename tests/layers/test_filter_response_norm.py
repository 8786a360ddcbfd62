"""Filter response normalisation against its formula, a pixel at a time."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from pyro_bnn.errors import OptionError, ShapeError
from pyro_bnn.layers import FilterResponseNorm

SHAPES = [(2, 3, 5), (2, 3, 2, 4), (1, 3, 2, 2, 2)]


def made(**options: Any) -> FilterResponseNorm:
    """A layer of three channels in float64, whose gain, shift and threshold are not their start."""
    layer = FilterResponseNorm(3, **options).double()
    generator = torch.Generator().manual_seed(0)
    for parameter in layer.parameters():
        parameter.data.add_(torch.randn(3, generator=generator))
    return layer


def inputs(*shape: int) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def by_hand(layer: FilterResponseNorm, image: Tensor) -> Tensor:
    """One image ``[C, *spatial]``, a channel and a pixel at a time."""
    gain, shift = layer.weight.tolist(), layer.bias.tolist()
    least = [-math.inf] * 3 if layer.threshold is None else layer.threshold.tolist()
    pixels = []
    for c, channel in enumerate(image.flatten(1).tolist()):
        nu = math.sqrt(sum(v * v for v in channel) / len(channel) + layer.eps)
        pixels += [max(gain[c] * v / nu + shift[c], least[c]) for v in channel]
    return torch.tensor(pixels, dtype=image.dtype).reshape(image.shape)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("options", [{}, {"threshold": False}, {"eps": 0.5}])
def test_each_channel_of_each_image_is_normalised_by_itself(
    shape: tuple[int, ...], options: dict[str, Any]
) -> None:
    layer, x = made(**options), inputs(*shape)
    expected = torch.stack([by_hand(layer, image) for image in x])
    assert_close(layer(x).detach(), expected, rtol=1e-12, atol=1e-12)


def test_a_new_layer_is_a_relu_of_channels_of_mean_square_one() -> None:
    x = inputs(4, 3, 6, 6)
    plain, threshold = FilterResponseNorm(3, threshold=False), FilterResponseNorm(3)
    out = plain.double()(x)
    assert_close(out.square().mean((2, 3)), torch.ones(4, 3).double(), rtol=1e-5, atol=0)
    assert_close(threshold.double()(x), out.relu(), rtol=0, atol=0)
    assert {name: tuple(p.shape) for name, p in threshold.named_parameters()} == {
        "weight": (3,),
        "bias": (3,),
        "threshold": (3,),
    }
    assert [name for name, _ in plain.named_parameters()] == ["weight", "bias"]


def test_batched_over_members_it_is_a_loop_over_them() -> None:
    layer, x = made(), inputs(2, 3, 4, 4)
    values = {name: inputs(5, 3) * (1 + i) for i, name in enumerate(("weight", "bias"))}

    def output(values: dict[str, Tensor]) -> Tensor:
        value: Tensor = torch.func.functional_call(layer, values, (x,))
        return value

    batched = torch.func.vmap(output)(values)
    for k in range(5):
        own = made()
        own.weight.data, own.bias.data = values["weight"][k], values["bias"][k]
        assert_close(batched[k], torch.stack([by_hand(own, i) for i in x]), rtol=1e-12, atol=1e-12)


def test_it_has_gradients_by_finite_differences() -> None:
    layer, x = made(), inputs(2, 3, 4).requires_grad_()
    names = [name for name, _ in layer.named_parameters()]

    def output(x: Tensor, *values: Tensor) -> Tensor:
        named = dict(zip(names, values, strict=True))
        value: Tensor = torch.func.functional_call(layer, named, (x,))
        return value

    assert torch.autograd.gradcheck(output, (x, *layer.parameters()))


@pytest.mark.parametrize("shape", [(2, 4, 5), (2, 3), (3,)])
def test_other_shapes_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ShapeError) as caught:
        made()(torch.zeros(shape))
    assert str(caught.value) == (
        f"x has shape {shape}, but this FilterResponseNorm takes [N, 3, ...], with one or more "
        "spatial dimensions"
    )


def test_a_single_pixel_is_refused() -> None:
    with pytest.raises(ShapeError, match=r"\(2, 3, 1, 1\), one pixel .*torch.nn.GroupNorm"):
        made()(torch.zeros(2, 3, 1, 1))


@pytest.mark.parametrize("num_channels", [0, -1, 2.0, True])
def test_the_number_of_channels_is_checked(num_channels: Any) -> None:
    with pytest.raises(OptionError, match="num_channels is an integer of at least 1, not "):
        FilterResponseNorm(num_channels)


@pytest.mark.parametrize("eps", [0.0, -1e-6, math.inf, "1"])
def test_eps_is_checked(eps: Any) -> None:
    with pytest.raises(OptionError, match="eps is a positive number, not "):
        FilterResponseNorm(3, eps=eps)


def test_it_prints_its_options() -> None:
    assert repr(FilterResponseNorm(3)) == "FilterResponseNorm(3, eps=1e-06, threshold=True)"
