"""LeNet-5 against its textbook recursion, its published size, and real digits."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
from numpy.testing import assert_allclose
from pyro import poutine
from torch.nn.functional import conv2d, max_pool2d
from torch.testing import assert_close

import pyro_bnn as bnn
from pyro_bnn import guides, likelihoods, priors, registry
from pyro_bnn.diagnostics import class_uncertainty
from pyro_bnn.errors import OptionError, ShapeError, SiteError, UnknownNameError
from pyro_bnn.models import LeNet
from pyro_bnn.program import Program


def nodes_of(model: Any, *args: Any) -> Any:
    return poutine.trace(model).get_trace(*args).nodes


def sizes(model: LeNet) -> dict[str, int]:
    """Number of entries of every site."""
    values = nodes_of(model, torch.zeros(1, *model.image_shape))
    return {name: values[name]["value"].numel() for name in model.sites}


def test_it_has_the_weights_of_le_net_5() -> None:
    model = LeNet()
    # with all maps joined to all: He et al. and others quote 61,706
    assert sizes(model) == {
        "conv1.weight": 6 * 25,
        "conv1.bias": 6,
        "conv2.weight": 16 * 6 * 25,
        "conv2.bias": 16,
        "fc1.weight": 120 * 400,
        "fc1.bias": 120,
        "fc2.weight": 84 * 120,
        "fc2.bias": 84,
        "fc3.weight": 10 * 84,
        "fc3.bias": 10,
    }
    assert sum(sizes(model).values()) == 61_706
    assert not list(model.parameters())


@pytest.mark.parametrize(
    ("image_shape", "padding", "num_maps"),
    [((1, 28, 28), 0, 25), ((3, 12, 13), 0, 1), ((1, 8, 8), 2, 4), ((2, 4, 5), 2, 1)],
)
def test_f_is_the_textbook_recursion(
    image_shape: tuple[int, ...], padding: int, num_maps: int
) -> None:
    model = LeNet(image_shape, 3, activation="tanh").double()
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(2, *image_shape, generator=generator, dtype=torch.float64)
    nodes = nodes_of(model, x)
    v = {name: nodes[name]["value"] for name in model.sites}
    h = max_pool2d(torch.tanh(conv2d(x, v["conv1.weight"], v["conv1.bias"], padding=2)), 2)
    h = conv2d(h, v["conv2.weight"], v["conv2.bias"], padding=padding)
    h = max_pool2d(torch.tanh(h), 2).flatten(1)
    assert h.shape[1] == 16 * num_maps
    for i in (1, 2):
        h = torch.tanh(h @ v[f"fc{i}.weight"].T + v[f"fc{i}.bias"])
    f = h @ v["fc3.weight"].T + v["fc3.bias"]
    assert_close(nodes["f"]["value"], f, rtol=1e-10, atol=1e-10)
    assert f.shape == (2, 3)


def test_rows_and_images_are_the_same() -> None:
    torch.manual_seed(0)
    model, x = LeNet((2, 6, 5), 3).double(), torch.randn(4, 2, 6, 5, dtype=torch.float64)
    program = Program(model, x, torch.arange(4) % 3)
    z = torch.randn(3, program.num_latents, dtype=torch.float64)
    f = program.function(z, x)
    assert_close(program.function(z, x.flatten(1)), f, rtol=0, atol=0)
    for k in range(3):
        assert_close(program.function(z[k], x), f[k], rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("shape", [(5, 63), (5, 8, 8), (5, 2, 8, 8), (64,), (5, 1, 8, 9)])
def test_x_of_another_shape_is_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ShapeError) as caught:
        LeNet((1, 8, 8))(torch.zeros(shape))
    assert str(caught.value) == (
        f"x has shape {shape}, but the model takes images [N, 1, 8, 8], or [N, 64] with one in "
        "each row"
    )


@pytest.mark.parametrize("image_shape", [(8, 8), (1, 8.0, 8), (0, 8, 8), 28, (True, 8, 8), "128"])
def test_shapes_that_are_no_images_are_refused(image_shape: Any) -> None:
    with pytest.raises(OptionError, match=r"image_shape is \(channels, height, width\), three pos"):
        LeNet(image_shape)


def test_images_that_vanish_are_refused() -> None:
    with pytest.raises(OptionError, match=r"images are 8 x 3 pixels, .* it takes 4 x 4 or more"):
        LeNet((1, 8, 3))


@pytest.mark.parametrize(
    ("num_outputs", "likelihood", "columns"),
    [
        (None, None, 10),
        (3, None, 3),
        (None, likelihoods.Categorical(4), 4),
        (None, likelihoods.Bernoulli(), 1),
        (2, likelihoods.HeteroscedasticNormal(), 4),
        (None, likelihoods.Poisson(), 1),
    ],
)
def test_outputs_are_those_of_the_likelihood(
    num_outputs: int | None, likelihood: Any, columns: int
) -> None:
    model = LeNet((1, 4, 4), num_outputs, likelihood=likelihood)
    nodes = nodes_of(model, torch.zeros(5, 16))
    assert nodes["f"]["value"].shape == (5, columns)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_outputs": 0}, "num_outputs is an integer of at least 1, not 0"),
        ({"num_outputs": True}, "num_outputs is an integer of at least 1, not True"),
        ({"num_outputs": 1}, "num_classes is an integer of at least 2, not 1"),
        (
            {"num_outputs": 3, "likelihood": likelihoods.Categorical(3)},
            "has one target: leave num_outputs at 1, not 3",
        ),
        ({"likelihood": "categorical"}, "likelihood is a pyro_bnn.likelihoods object"),
        ({"activation": torch.nn.Tanh}, r"is the class Tanh, .* pass an instance, Tanh\(\)"),
    ],
)
def test_options_are_checked(options: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        LeNet((1, 8, 8), **options)


def test_names_are_checked() -> None:
    with pytest.raises(UnknownNameError, match="unknown activation 'tahn': did you mean 'tanh'"):
        LeNet(activation="tahn")
    with pytest.raises(SiteError, match=r"'conv3.\*' matches no parameter; there are conv1.weight"):
        LeNet(prior={"conv3.*": priors.Normal()})


def test_a_head_alone_may_be_bayesian() -> None:
    model = LeNet((1, 8, 8), prior={"fc3.*": priors.Normal()})
    assert model.sites == ("fc3.weight", "fc3.bias")
    assert len(list(model.parameters())) == 8


def test_it_is_listed_and_described() -> None:
    assert registry.lookup("model", "le-net") is LeNet
    words = bnn.models.description.describe(LeNet((1, 8, 8), prior=priors.Laplace(0.5)))
    assert words == "LeNet 1x8x8 relu, Laplace(0, 0.5) prior, Categorical likelihood"


@pytest.mark.slow("whole fits")
def test_it_reads_digits_and_knows_what_it_does_not_know() -> None:
    split = bnn.data.load("digits")
    guide = functools.partial(guides.AutoNormal, init_scale=0.01)
    engine = bnn.SVI(guide, num_steps=200, batch_size=128, kl_warmup=200, compile=False)
    posterior = engine.run(LeNet((1, 8, 8)), split.train, progress=False)
    prediction = posterior.predict(split.test.x, 100)
    assert float((prediction.probs.argmax(-1) == split.test.y).float().mean()) > 0.9
    assert prediction.class_probs is not None
    parts = class_uncertainty(prediction.class_probs.double().numpy())
    total = parts.expected_entropy + parts.mutual_information
    assert_allclose(prediction.entropy.numpy(), total, rtol=0, atol=1e-6)
    assert float(prediction.mutual_information.min()) > 0
