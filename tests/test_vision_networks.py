"""Networks of torchvision and timm, of random weights: fitted, predicted and exported as they are.

Both are taken where they are installed; a build of torchvision for another torch, which fails at
its import, counts as none.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from pyro_bnn import SVI, Laplace, bayesian, guides, likelihoods, priors
from pyro_bnn.data import Dataset
from pyro_bnn.diagnostics import DDU
from pyro_bnn.posterior import GuidePosterior, Posterior

NUM_CLASSES = 3
NUM_ROWS = 40
HeadAndNet = tuple[str, nn.Module]


def library(name: str) -> Any:
    """The library, or the test is skipped where it is missing, or made for another torch."""
    try:
        return pytest.importorskip(name)
    except RuntimeError as error:
        pytest.skip(f"{name} is not of this torch: {error}")


def resnet18() -> HeadAndNet:
    models = library("torchvision").models
    return "fc", models.resnet18(weights=None, num_classes=NUM_CLASSES)


def mobilenet() -> HeadAndNet:
    models = library("torchvision").models
    net = models.mobilenet_v3_small(weights=None, num_classes=NUM_CLASSES)
    return "classifier.3", net


def vision_transformer() -> HeadAndNet:
    models = library("torchvision").models
    size = {"image_size": 32, "patch_size": 8, "num_layers": 2, "num_heads": 2}
    net = models.VisionTransformer(**size, hidden_dim=16, mlp_dim=32, num_classes=NUM_CLASSES)
    nn.init.normal_(net.heads.head.weight, std=0.1)  # torchvision starts it at 0
    return "heads.head", net


def timm_resnet() -> HeadAndNet:
    return "fc", library("timm").create_model("resnet10t", num_classes=NUM_CLASSES)


def timm_vit() -> HeadAndNet:
    size = {"img_size": 32, "patch_size": 8, "depth": 2, "embed_dim": 24, "num_heads": 3}
    timm = library("timm")
    return "head", timm.create_model("vit_tiny_patch16_224", **size, num_classes=NUM_CLASSES)


NETS = [resnet18, mobilenet, vision_transformer, timm_resnet, timm_vit]


@pytest.fixture(params=NETS, ids=lambda make: make.__name__)
def head_and_net(request: pytest.FixtureRequest) -> HeadAndNet:
    make: Callable[[], HeadAndNet] = request.param
    torch.manual_seed(0)
    head, net = make()
    return head, net.eval().requires_grad_(requires_grad=False)


@pytest.fixture
def rows(head_and_net: HeadAndNet) -> Dataset:
    x = torch.randn(NUM_ROWS, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    return Dataset(x, torch.arange(NUM_ROWS) % NUM_CLASSES)


def inputs_of(layer: nn.Module, net: nn.Module, x: Tensor) -> Tensor:
    """What a layer is given, by a hook of torch."""
    seen: list[Tensor] = []
    handle = layer.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    net(x)
    handle.remove()
    return seen[0]


def mode_of(posterior: Posterior) -> tuple[Tensor, Tensor]:
    """Weight and bias of the head where a Laplace approximation has its centre."""
    assert isinstance(posterior, GuidePosterior)
    z = posterior.guide.centre()
    weight, bias = z[:-NUM_CLASSES], z[-NUM_CLASSES:]
    return weight.reshape(NUM_CLASSES, -1), bias


@pytest.mark.slow("networks of eleven million weights")
def test_a_head_is_fitted_predicts_and_is_exported(
    head_and_net: HeadAndNet, rows: Dataset, tmp_path: Path
) -> None:
    head, net = head_and_net
    model = bayesian(net, {f"{head}.*": priors.Normal(1.0)}, likelihoods.Categorical(NUM_CLASSES))
    features = inputs_of(net.get_submodule(head), net, rows.x)
    posterior = Laplace(subset="last_layer", num_steps=300).run(model, rows, progress=False)
    kept = posterior.program.inputs(rows.x)
    assert kept.shape[0] == NUM_ROWS
    torch.testing.assert_close(kept.flatten(1), features, rtol=1e-4, atol=1e-5)
    # at the mode of this logistic regression the slope of the likelihood is minus the prior's
    weight, bias = mode_of(posterior)
    slopes = nn.functional.one_hot(rows.y, NUM_CLASSES) - (features @ weight.T + bias).softmax(-1)
    torch.testing.assert_close(slopes.T @ features, weight, rtol=0, atol=1e-2)
    torch.testing.assert_close(slopes.sum(0), bias, rtol=0, atol=1e-2)

    svi = SVI(guides.AutoNormal, num_steps=20).run(model, rows, progress=False)
    for number, fit in enumerate((posterior, svi)):
        path = tmp_path / f"{number}.pt2"
        fit.export(path, rows.x[:3], num_samples=5)
        found = torch.export.load(path).module()(rows.x[:7])["probs"]
        expected = fit.predict(rows.x[:7], 5).probs
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)


@pytest.mark.slow("networks of eleven million weights")
def test_the_state_of_a_draw_is_a_state_of_the_network(
    head_and_net: HeadAndNet, rows: Dataset
) -> None:
    head, net = head_and_net
    model = bayesian(net, {f"{head}.*": priors.Normal(1.0)}, likelihoods.Categorical(NUM_CLASSES))
    posterior = SVI(guides.AutoNormal, num_steps=5).run(model, rows, progress=False)
    other = copy.deepcopy(net)
    other.load_state_dict(posterior.state_dict(draw=0, num_samples=1))
    found = other(rows.x[:5]).softmax(-1)
    expected = posterior.predict(rows.x[:5], 1).probs
    torch.testing.assert_close(found, expected.to(found.dtype), rtol=1e-4, atol=1e-5)


@pytest.mark.slow("networks of eleven million weights")
def test_features_of_one_pass_are_those_of_the_head(
    head_and_net: HeadAndNet, rows: Dataset
) -> None:
    head, net = head_and_net
    features = inputs_of(net.get_submodule(head), net, rows.x)
    ddu = DDU(net).fit(rows)
    means = torch.stack([features[rows.y == c].mean(0) for c in range(NUM_CLASSES)])
    assert ddu.density is not None
    found = torch.as_tensor(ddu.density.means)
    torch.testing.assert_close(found, means.double(), rtol=1e-3, atol=1e-4)
