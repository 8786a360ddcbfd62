"""``posterior.state_dict``: weights for one's own network of torch."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import pyro_bnn as bnn
from pyro_bnn import guides, likelihoods, models, priors
from pyro_bnn.errors import OptionError
from pyro_bnn.posterior import state


def fitted(model: Any, x: Tensor, guide: Any = guides.AutoNormal) -> Any:
    y = x.reshape(len(x), -1)[:, 0]
    engine = bnn.SVI(guide, num_steps=3, compile=False)
    return engine.run(model, (x, y), progress=False)


def normalised() -> nn.Sequential:
    """With buffers, whose values matter."""
    net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Tanh(), nn.Linear(4, 1))
    net(5 + torch.randn(20, 3))
    return net.eval()


class Tied(nn.Module):
    """One weight and one buffer under two names."""

    scale: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.head = nn.Linear(3, 3), nn.Linear(3, 3), nn.Linear(3, 1)
        self.second.weight = self.first.weight
        self.register_buffer("scale", torch.tensor(2.0))
        self.register_buffer("same_scale", self.scale)

    def forward(self, x: Tensor) -> Tensor:
        """Map x ``[N, 3]`` to ``[N, 1]``."""
        f: Tensor = self.head(torch.tanh(self.second(torch.tanh(self.scale * self.first(x)))))
        return f


MODELS: dict[str, Any] = {
    "all weights": (normalised, bnn.bayesian),
    "some weights, one computed of a hierarchy": (
        normalised,
        lambda net: bnn.bayesian(
            net, {"0.*": priors.Normal(), "3.weight": priors.Horseshoe()}
        ),
    ),
    "a tied weight": (Tied, bnn.bayesian),
    "a tied weight that is a point estimate": (
        Tied, lambda net: bnn.bayesian(net, {"head.*": priors.Normal()})
    ),
    "members with parameters of their own": (
        normalised, lambda net: bnn.bayesian(net, {"3.*": priors.Normal()})
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MODELS)
def test_a_draw_in_ones_own_network_is_a_draw_of_the_function(name: str) -> None:
    make, bayesian = MODELS[name]
    net, x = make(), torch.randn(12, 3)
    guide = guides.AutoDelta if name.startswith("members") else guides.AutoNormal
    if name.startswith("members"):
        engine = bnn.Ensemble(num_members=2, num_steps=3, compile=False)
        posterior: Any = engine.run(bayesian(net), (x, x[:, 0]), progress=False)
    else:
        posterior = fitted(bayesian(net), x, guide)
    f = posterior.function_draws(x, 4, seed=1)
    for draw in range(4):
        other = make()
        other.load_state_dict(posterior.state_dict(draw, 4, seed=1))
        torch.testing.assert_close(other(x), f[draw])


def test_the_mean_is_that_of_all_draws() -> None:
    net, x = normalised(), torch.randn(12, 3)
    posterior = fitted(bnn.bayesian(net), x)
    state, draws = posterior.state_dict(num_samples=700), posterior.sample(700)
    assert state.keys() == net.state_dict().keys()
    for name, values in draws.items():
        if name in state:
            torch.testing.assert_close(state[name], values.mean(0), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(state["1.running_mean"], net.state_dict()["1.running_mean"])


def test_weights_of_a_frozen_body_are_not_copied_for_each_draw(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    net, x = normalised(), torch.randn(12, 3)
    net[0].requires_grad_(requires_grad=False)
    net[1].requires_grad_(requires_grad=False)
    posterior = fitted(bnn.bayesian(net, {"3.*": priors.Normal()}), x)
    seen: list[str] = []
    weights = state._weights

    def spied(program: Any, params: Any, z: Tensor) -> dict[str, Tensor]:
        found = weights(program, params, z)
        seen.extend(found)
        return found

    monkeypatch.setattr(state, "_weights", spied)
    mean = posterior.state_dict(num_samples=5)
    assert set(seen) == {"3.weight", "3.bias", "likelihood.scale"}
    torch.testing.assert_close(mean["0.weight"], net[0].weight)


def test_a_dropout_network_gets_its_trained_weights_back() -> None:
    net = nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.5), nn.Linear(4, 1))
    model = bnn.bayesian_dropout(net, likelihoods.Normal(0.1))
    posterior = bnn.mc_dropout(model, (torch.randn(9, 3), torch.randn(9)))
    state = posterior.state_dict()
    assert state.keys() == net.state_dict().keys()
    for name, value in net.state_dict().items():
        torch.testing.assert_close(state[name], value)


def test_another_model_has_its_own_names() -> None:
    posterior = fitted(models.MLP(3, hidden=(4,)), torch.randn(9, 3))
    assert len([*posterior.in_blocks(700, 0).blocks()]) > 1
    for draw in (2, 690):
        state = posterior.state_dict(draw, 700)
        for name, values in posterior.sample(700).items():
            torch.testing.assert_close(state[name], values[draw])


@pytest.mark.parametrize("draw", [-1, 5])
def test_a_draw_that_is_not_there_is_refused(draw: int) -> None:
    posterior = fitted(models.MLP(3, hidden=(4,)), torch.randn(9, 3))
    with pytest.raises(OptionError, match=rf"draw is one of 0 .. 4, not {draw}"):
        posterior.state_dict(draw, 5)


def test_a_head_on_a_frozen_body_gives_the_whole_network_back() -> None:
    def make() -> nn.Module:
        net = nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 1))
        return net.eval()

    net, x = make(), torch.randn(30, 3)
    for name, parameter in net.named_parameters():
        parameter.requires_grad = name.startswith("3")
    posterior = fitted(bnn.bayesian(net, {"3.*": priors.Normal()}), x)
    other = make()
    other.load_state_dict(posterior.state_dict(2, 5))
    torch.testing.assert_close(other(x), posterior.function_draws(x, 5)[2])
