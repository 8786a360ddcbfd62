"""A prior centred on a trained network: by name, by order, and what fits neither."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from pyro_bnn import models, priors
from pyro_bnn.errors import OptionError, ShapeError, SiteError
from pyro_bnn.layers import Linear
from pyro_bnn.models import bayesian
from pyro_bnn.priors import Pretrained
from pyro_bnn.program import Program


def trained(num_inputs: int = 3, hidden: int = 4) -> nn.Sequential:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(num_inputs, hidden), nn.ReLU(), nn.Linear(hidden, 1))


def sites(model: Any) -> dict[str, Any]:
    """The prior of each weight, by name."""
    program = Program(model, torch.zeros(2, 3), torch.zeros(2))
    run = program.run_at(program.initial, (torch.zeros(1, 3),))
    return {name: msg["fn"].base_dist for name, msg in run.latent.items() if "like" not in name}


@pytest.mark.parametrize("scale", [0.1, "fan_in"])
def test_by_order_and_by_name(scale: Any) -> None:
    net: Any = trained()
    values = [p.detach().clone() for p in net.parameters()]
    by_order = sites(models.MLP(3, hidden=(4,), prior=Pretrained(net, scale)))
    by_name = sites(
        bayesian(trained(), Pretrained(dict(reversed(net.state_dict().items())), scale))
    )
    sds = [0.1] * 4 if scale == 0.1 else [3**-0.5, 1.0, 4**-0.5, 1.0]
    for found in (by_order, by_name):
        for fn, value, sd in zip(found.values(), values, sds, strict=True):
            assert_close(fn.loc, value)
            assert_close(fn.scale, torch.full_like(value, sd))


def test_a_part_of_the_network_by_pattern() -> None:
    net: Any = trained()
    patterns: Any = {"0.*": Pretrained(net, 0.2), "2.*": priors.Laplace()}
    prior = Pretrained(net[:1], 0.2)  # without the old head
    body: Any = {"layers.0.*": prior, "*": priors.Normal()}
    for found, name in (
        (sites(bayesian(trained(), patterns)), "0.weight"),
        (sites(models.MLP(3, hidden=(4,), prior=body)), "layers.0.weight"),
    ):
        assert_close(found[name].loc, net[0].weight.detach())
        assert bool((list(found.values())[2].loc == 0).all())


def test_training_on_changes_no_prior() -> None:
    net: Any = trained()
    prior, before = Pretrained(net), net[0].weight.detach().clone()
    with torch.no_grad():
        net[0].weight.add_(1.0)
    model = models.MLP(3, hidden=(4,), prior=prior)
    assert_close(sites(model)["layers.0.weight"].loc, before)
    moved: Any = model.double()
    assert moved.layers[0].weight_prior().sample().dtype == torch.float64
    assert prior.weights["0.weight"].dtype == torch.float32


def test_networks_that_do_not_fit_are_refused() -> None:
    with pytest.raises(SiteError, match=r"it has 0.weight, 0.bias, 2.weight, 2.bias; the prior is"):
        models.MLP(3, hidden=(4, 4), prior=Pretrained(trained()))
    message = r"'0.weight' of the trained network has shape \(4, 3\), but the weight .* has \(5, 3"
    with pytest.raises(ShapeError, match=message):
        models.MLP(3, hidden=(5,), prior=Pretrained(trained()))
    with pytest.raises(OptionError, match="net is a trained torch module or a mapping"):
        Pretrained(0.1)  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="scale is a positive number or 'fan_in', not -1"):
        Pretrained(trained(), -1)
    with pytest.raises(OptionError, match="Pretrained holds priors of several weights by name"):
        Linear(3, 4, Pretrained(trained()), priors.Normal())  # type: ignore[arg-type]


def test_arrays_and_half_precision_become_weights_of_a_network() -> None:
    net: Any = trained()
    expected = {name: value.half() for name, value in net.state_dict().items()}
    arrays = {name: value.numpy() for name, value in expected.items()}
    for given in (net.half(), expected, arrays):
        for name, value in Pretrained(given).weights.items():
            assert_close(value, expected[name].float(), rtol=0, atol=0)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (torch.tensor([0.0, float("nan")]), "'w' of the trained network has values that are NaN"),
        ("text", "'w' of the trained network must hold real numbers"),
    ],
)
def test_values_that_are_no_weights_are_refused(value: Any, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        Pretrained({"w": value})
