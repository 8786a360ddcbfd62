"""How many inputs reach a unit: torch's number where it holds, else counted on the layer itself."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from pyro_bnn import bayesian, priors
from pyro_bnn.errors import OptionError
from pyro_bnn.layers import FilterResponseNorm
from pyro_bnn.models.fan_in import fan_in


def scale_of(model: Any, name: str) -> Tensor:
    """Scale of the prior of a site."""
    prior = model.priors[model.sites.index(name)]
    return prior.distribution.base_dist.scale.flatten()[0]  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    "layer",
    [
        nn.Linear(5, 3),
        nn.Conv1d(4, 6, 3),
        nn.Conv2d(4, 6, (3, 2), groups=2, stride=2),
        nn.Conv3d(2, 3, 2, dilation=2),
        nn.Bilinear(3, 4, 2),
    ],
    ids=lambda layer: type(layer).__name__,
)
def test_it_is_that_of_torch_for_weights_with_outputs_first(layer: nn.Module) -> None:
    weight = layer.get_parameter("weight")
    expected, _ = nn.init._calculate_fan_in_and_fan_out(weight)
    assert fan_in(layer, "weight") == expected
    model = bayesian(nn.Sequential(layer))
    assert_close(scale_of(model, "0.weight"), torch.tensor(expected**-0.5))
    assert scale_of(model, "0.bias") == 1


@pytest.mark.parametrize(
    "layer",
    [
        nn.ConvTranspose1d(3, 2, 4, stride=2),
        nn.ConvTranspose2d(4, 6, 3, stride=2, groups=2, padding=1, output_padding=1),
        nn.ConvTranspose2d(2, 3, (2, 5), stride=(3, 1), dilation=(1, 2)),
        nn.ConvTranspose3d(2, 1, 3),
    ],
    ids=lambda layer: f"{type(layer).__name__}-{layer.stride}",
)
def test_a_transposed_convolution_is_counted_on_its_outputs(layer: Any) -> None:
    """Weights and inputs of 1 give each output the number of its inputs.

    That of torch, which takes the outputs for the inputs, is another.
    """
    num_dims = layer.weight.ndim - 2
    with torch.no_grad():
        layer.weight.fill_(1.0)
        layer.bias.zero_()
        counts = layer(torch.ones(1, layer.in_channels, *(30,) * num_dims))[0, 0]
    for dim, stride in enumerate(layer.stride):  # places away from the edges, in whole periods
        counts = counts.narrow(dim, 12, stride * ((counts.shape[dim] - 24) // stride))
    assert fan_in(layer, "weight") == pytest.approx(float(counts.mean()), rel=1e-6)
    wrong, _ = nn.init._calculate_fan_in_and_fan_out(layer.weight)
    assert fan_in(layer, "weight") != wrong
    model = bayesian(nn.Sequential(layer), {"*.weight": priors.Normal(), "*": priors.Normal()})
    assert_close(scale_of(model, "0.weight"), counts.mean() ** -0.5)


FAN_IN_PRIORS = [
    priors.Normal(),
    priors.Laplace(),
    priors.Cauchy(),
    priors.StudentT(4.0),
    priors.StudentT(1.5),
]


@pytest.mark.parametrize("prior", FAN_IN_PRIORS, ids=repr)
def test_a_row_that_is_looked_up_is_one_input(prior: Any) -> None:
    """Of a one-hot input one entry is not 0, so that scales are those of a bias."""
    net = nn.Sequential(nn.Embedding(7, 5), nn.Flatten(), nn.Linear(10, 1))
    model = bayesian(net, prior)
    assert scale_of(model, "0.weight") == scale_of(model, "2.bias")
    linear = prior.distribution(torch.Size([1, 10])).base_dist.scale[0, 0]
    assert scale_of(model, "2.weight") == linear < scale_of(model, "2.bias")


@pytest.mark.parametrize(
    ("prior", "median"), [(priors.HalfCauchyScale(), 12**-0.5), (priors.Horseshoe(), 1 / 12)]
)
def test_hierarchies_have_the_fan_in_of_the_layer(prior: Any, median: float) -> None:
    net = nn.Sequential(nn.ConvTranspose1d(4, 3, 6, stride=2), nn.Flatten())  # 4 * 6 / 2 inputs
    found: Any = bayesian(net, {"0.weight": prior}).priors[0]
    assert found.median == pytest.approx(median, rel=1e-12)
    assert prior.hierarchy(torch.Size([3, 12])).median == pytest.approx(median, rel=1e-12)


def test_gains_and_biases_of_any_shape_act_on_one_entry() -> None:
    net = nn.Sequential(nn.LayerNorm((3, 4)), FilterResponseNorm(3), nn.Flatten())
    model = bayesian(net, {"*": priors.Normal()})  # as they are: around 0
    assert {float(scale_of(model, name)) for name in model.sites} == {1.0}
    attention = nn.MultiheadAttention(4, 2, add_bias_kv=True)
    assert fan_in(attention, "bias_k") == 1
    assert fan_in(attention, "in_proj_weight") == 4


class Tied(nn.Module):
    """Tokens in and scores of tokens out, by one matrix."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(6, 4), nn.Linear(4, 6, bias=False)
        self.head.weight = self.embed.weight


def test_a_weight_of_two_fan_ins_or_none_needs_a_scale() -> None:
    message = r"embed.weight is shared by layers of .* fan-ins, Embedding \(1\) and Linear \(4\)"
    with pytest.raises(OptionError, match=message):
        bayesian(Tied())
    bag = nn.Sequential(nn.EmbeddingBag(5, 3))
    with pytest.raises(OptionError, match=r"0.weight is of an EmbeddingBag, whose fan-in is"):
        bayesian(bag)
    for net, name in ((Tied(), "embed.weight"), (bag, "0.weight")):
        assert scale_of(bayesian(net, {name: priors.Normal(0.3)}), name) == torch.tensor(0.3)
    with pytest.raises(OptionError, match=r"per='unit' is for weights \[O, I, ...\], but 0.w"):
        bayesian(nn.Sequential(nn.ConvTranspose1d(2, 3, 2)), priors.HalfCauchyScale(per="unit"))
