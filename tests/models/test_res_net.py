"""The residual network against its recursion written out, and its published size."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from pyro import poutine
from torch import Tensor
from torch.nn.functional import conv2d, group_norm, relu
from torch.testing import assert_close

from pyro_bnn import guides, priors, registry
from pyro_bnn.errors import OptionError, ShapeError, UnknownNameError
from pyro_bnn.models import ResNet
from pyro_bnn.models.description import describe
from pyro_bnn.program import Program
from tests.laws import objective


def nodes_of(model: Any, *args: Any) -> Any:
    return poutine.trace(model).get_trace(*args).nodes


@pytest.mark.parametrize(
    ("norm", "num_weights"),
    # He et al. give 0.27M for depth 20; two numbers a channel of each normalisation, and
    # thresholds for the first one of each block and that of the first layer
    [("group", 269_722), ("frn", 269_722 + 4 * 16 + 3 * 32 + 3 * 64)],
)
def test_it_has_the_weights_of_res_net_20(norm: Any, num_weights: int) -> None:
    model = ResNet(norm=norm)
    assert sum(buffer.numel() for buffer in model.net.buffers()) == num_weights
    assert len(model.sites) == len(model.priors)
    assert not list(model.parameters())
    assert sum(name.startswith("stage2") and "conv" in name for name in model.sites) == 6


@pytest.mark.parametrize(("depth", "millions"), [(32, 0.46), (44, 0.66), (56, 0.85), (110, 1.7)])
def test_deeper_ones_have_the_sizes_of_the_paper(depth: int, millions: float) -> None:
    net = ResNet(depth=depth).net
    found = sum(buffer.numel() for buffer in net.buffers()) / 1e6
    assert round(found, 1 if depth == 110 else 2) == millions


# The recursion


def normalised(h: Tensor, v: dict[str, Tensor], name: str, norm: str, *, activated: bool) -> Tensor:
    """One normalisation with its activation, where it has one."""
    gain, shift = v[f"{name}.weight"], v[f"{name}.bias"]
    if norm == "group":
        h = group_norm(h, h.shape[1] // 8, gain, shift)
        return relu(h) if activated else h
    h = h / (h.square().mean((2, 3), keepdim=True) + 1e-6).sqrt()
    h = gain[:, None, None] * h + shift[:, None, None]
    return torch.maximum(h, v[f"{name}.threshold"][:, None, None]) if activated else h


def by_hand(x: Tensor, v: dict[str, Tensor], norm: str, num_blocks: int) -> Tensor:
    """F of images ``[N, C, H, W]``, the shortcut a pixel at a time."""
    h = conv2d(x, v["first.weight"], padding=1)
    h = normalised(h, v, "norm", norm, activated=True)
    for stage in (1, 2, 3):
        for b in range(num_blocks):
            name, stride = f"stage{stage}.{b}", 2 if stage > 1 and b == 0 else 1
            r = conv2d(h, v[f"{name}.conv1.weight"], stride=stride, padding=1)
            r = normalised(r, v, f"{name}.norm1", norm, activated=True)
            r = conv2d(r, v[f"{name}.conv2.weight"], padding=1)
            r = normalised(r, v, f"{name}.norm2", norm, activated=False)
            shortcut = torch.zeros_like(r)
            for i in range(r.shape[2]):
                for j in range(r.shape[3]):
                    shortcut[:, : h.shape[1], i, j] = h[:, :, stride * i, stride * j]
            h = relu(r + shortcut)
    return h.mean((2, 3)) @ v["last.weight"].T + v["last.bias"]


@pytest.mark.parametrize("norm", ["group", "frn"])
@pytest.mark.parametrize(("depth", "image_shape"), [(8, (3, 8, 8)), (14, (1, 7, 6))])
def test_f_is_the_recursion_of_the_paper(norm: Any, depth: int, image_shape: Any) -> None:
    torch.manual_seed(0)
    model = ResNet(image_shape, 4, depth=depth, width=8, norm=norm).double()
    x = torch.randn(3, *image_shape, dtype=torch.float64)
    nodes = nodes_of(model, x.flatten(1))
    v = {name: nodes[name]["value"] for name in model.sites}
    expected = by_hand(x, v, norm, (depth - 2) // 6)
    assert_close(nodes["f"]["value"], expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("norm", ["group", "frn"])
def test_members_in_one_batch_are_a_loop_and_the_captured_step_the_uncaptured(norm: Any) -> None:
    torch.manual_seed(0)
    model = ResNet((1, 6, 6), 3, depth=8, width=2, norm=norm).double()
    x, y = torch.randn(5, 1, 6, 6, dtype=torch.float64), torch.arange(5) % 3
    program = Program(model, x, y)
    z = torch.randn(3, program.num_latents, dtype=torch.float64)
    loop = torch.stack([program.function(row, x) for row in z])
    assert_close(program.function(z, x), loop, rtol=1e-10, atol=1e-10)
    guide = guides.AutoNormal(model)
    guide.setup(x[:1])
    guide.to(torch.float64)
    noise, batch = torch.randn(1, program.num_latents, dtype=torch.float64), program.batch(x, y)
    _, captured = objective(guide, program, captured=True)
    _, plain = objective(guide, program, captured=False)
    for ours, theirs in zip(captured(noise, batch), plain(noise, batch), strict=True):
        assert_close(ours, theirs, rtol=1e-10, atol=1e-10)


def test_gains_are_around_one() -> None:
    nodes = nodes_of(ResNet((1, 5, 5), depth=8, width=2, norm="frn"), torch.zeros(1, 25))
    for name, node in nodes.items():
        if "norm" in name:
            loc = float(name.endswith(".weight"))
            assert_close(node["fn"].mean, torch.full(node["value"].shape, loc))
            assert_close(node["fn"].variance, torch.ones(node["value"].shape))


# What is refused


@pytest.mark.parametrize(("depth", "near"), [(18, 20), (7, 8), (2, 8), (50, 50), (1, 8)])
def test_depths_are_of_three_equal_stages(depth: int, near: int) -> None:
    if depth == near:
        assert len(ResNet(depth=depth, width=1).sites) == 3 * (depth - 1) + 2
        return
    with pytest.raises(OptionError, match=f"depth is 6 n .* such as {near}, not {depth}$"):
        ResNet(depth=depth)


@pytest.mark.parametrize("options", [{"depth": 0}, {"width": -1}, {"depth": "20"}, {"width": True}])
def test_sizes_are_positive_integers(options: dict[str, Any]) -> None:
    with pytest.raises(OptionError, match=r"(depth|width) is an integer of at least 1, not "):
        ResNet(**options)


def test_normalisations_by_name() -> None:
    wrong: Any = "batch"
    with pytest.raises(UnknownNameError, match=r"unknown normalisation 'batch': .*known are frn"):
        ResNet(norm=wrong)


def test_images_of_one_pixel_at_the_end_are_for_group_norm() -> None:
    with pytest.raises(OptionError, match=r"images are 4 x 4 pixels, .* it takes 5 x 5 or more"):
        ResNet((1, 4, 4), norm="frn")
    assert ResNet((1, 4, 4), depth=8, width=8)(torch.zeros(2, 16)).shape == (2,)
    with pytest.raises(ShapeError, match=r"takes images \[N, 1, 4, 4\], or \[N, 16\]"):
        ResNet((1, 4, 4), depth=8, width=8)(torch.zeros(2, 17))


def test_it_is_listed_and_described() -> None:
    assert registry.lookup("model", "res-net") is ResNet
    model = ResNet((3, 8, 8), 5, depth=8, width=2, prior=priors.Normal(0.5))
    words = "ResNet 3x8x8, Normal(0, 0.5) and Normal(1, 0.5) priors, Categorical likelihood"
    assert describe(model) == words


def test_images_whose_channels_came_last_are_batched_over_draws() -> None:
    """Torch's vmap refuses their layout, which is a matter of strides alone."""
    x = torch.randn(4, 32, 32, 3).permute(0, 3, 1, 2)
    program = Program(ResNet(depth=8, width=8), x, torch.arange(4))
    z = torch.randn(2, program.num_latents) / 10
    f = program.function(z, program.inputs(x))
    assert program.is_batched
    assert_close(f, program.function(z, x.contiguous()))
