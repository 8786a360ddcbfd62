"""One mechanism for every layer: ``bayesian(net)`` of convolutions, normalisations and residuals.

The expected f is that of ``torch.func.functional_call`` on the user's own network.
"""

from __future__ import annotations

import math
from typing import Any

import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from torch import Tensor, nn
from torch.testing import assert_close

from pyro_bnn import SVI, bayesian, guides, likelihoods, priors
from pyro_bnn.errors import ModelError
from pyro_bnn.layers import FilterResponseNorm
from pyro_bnn.program import Batch, Program
from tests.laws import objective
from tests.plain_pyro import default_dtype

NUM_ROWS, NUM_CLASSES, NUM_MEMBERS = 6, 3, 4
IMAGE, SIGNAL = (2, 6, 6), (2, 8)


class Residual(nn.Module):
    """A block whose input is added to its output, and a strided shortcut around another."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(2, 4, 3, stride=2, padding=1, bias=False)
        self.shortcut = nn.Conv2d(2, 4, 1, stride=2)
        self.norm, self.second = nn.GroupNorm(2, 4), nn.Conv2d(4, 4, 3, padding=1)
        self.head = nn.Linear(4, NUM_CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.relu(self.norm(self.first(x))) + self.shortcut(x)
        h = torch.relu(self.second(h)) + h
        f: Tensor = self.head(h.mean((2, 3)))
        return f


def headed(*layers: nn.Module, width: int) -> nn.Sequential:
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(width, NUM_CLASSES))


NETWORKS: dict[str, tuple[Any, tuple[int, ...]]] = {
    "Conv1d": (lambda: headed(nn.Conv1d(2, 3, 3), nn.Tanh(), width=18), SIGNAL),
    "Conv2d": (
        lambda: headed(nn.Conv2d(2, 4, 3, groups=2), nn.ReLU(), nn.AvgPool2d(2), width=16),
        IMAGE,
    ),
    "LayerNorm": (
        lambda: headed(nn.Conv2d(2, 3, 3), nn.LayerNorm((3, 4, 4)), nn.SiLU(), width=48),
        IMAGE,
    ),
    "GroupNorm": (
        lambda: headed(nn.Conv2d(2, 4, 3), nn.GroupNorm(2, 4), nn.ReLU(), width=64),
        IMAGE,
    ),
    "FilterResponseNorm": (
        lambda: headed(nn.Conv2d(2, 3, 3), FilterResponseNorm(3), nn.MaxPool2d(2), width=12),
        IMAGE,
    ),
    "residual": (Residual, IMAGE),
}


def rows(shape: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(NUM_ROWS, *shape, generator=generator, dtype=torch.float64)
    return x, torch.arange(NUM_ROWS) % NUM_CLASSES


def made(name: str) -> tuple[nn.Module, Program]:
    """The network in float64, and the program of its model."""
    build, shape = NETWORKS[name]
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net = build().double()
        model = bayesian(net, likelihood=likelihoods.Categorical(NUM_CLASSES))
        return net, Program(model, *rows(shape))


@pytest.mark.parametrize("name", NETWORKS)
def test_members_in_one_batch_are_a_loop_over_functional_calls(name: str) -> None:
    net, program = made(name)
    x, _ = rows(NETWORKS[name][1])
    generator = torch.Generator().manual_seed(2)
    z = torch.randn(NUM_MEMBERS, program.num_latents, generator=generator, dtype=torch.float64)
    named = dict(net.named_parameters())
    assert [site.name for site in program.sites] == list(named)
    for k, f in enumerate(program.function(z, x)):
        values, start = {}, 0
        for key, parameter in named.items():
            stop = start + parameter.numel()
            values[key] = z[k, start:stop].reshape(parameter.shape)
            start = stop
        assert_close(f, torch.func.functional_call(net, values, (x,)), rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("name", NETWORKS)
def test_the_captured_step_is_the_uncaptured_one(name: str) -> None:
    _, program = made(name)
    x, y = rows(NETWORKS[name][1])
    guide = guides.AutoNormal(program.model)
    with torch.random.fork_rng():
        torch.manual_seed(3)
        guide.setup(x[:1])
    guide.to(torch.float64)
    noise = guide.draw_noise(2, torch.Generator().manual_seed(4)).double()
    batch = program.batch(x, y)
    _, captured = objective(guide, program, captured=True)
    _, plain = objective(guide, program, captured=False)
    for ours, theirs in zip(captured(noise, batch), plain(noise, batch), strict=True):
        assert_close(ours, theirs, rtol=1e-10, atol=1e-10)
    more = Batch(torch.cat([batch.x, batch.x]), torch.cat([batch.y, batch.y]))
    assert_close(captured(noise, more)[0], plain(noise, more)[0], rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("name", NETWORKS)
def test_svi_trains_it(name: str) -> None:
    build, shape = NETWORKS[name]
    with default_dtype(torch.float64):
        torch.manual_seed(0)
        model = bayesian(build(), likelihood=likelihoods.Categorical(NUM_CLASSES))
        engine = SVI(guides.AutoDelta, num_steps=60, learning_rate=0.1, compile=False)
        x, y = rows(shape)
        often = x.repeat(10, *(1 for _ in shape)), y.repeat(10)  # so that the data decide
        posterior = engine.run(model, often, progress=False)
    assert posterior.predict(rows(shape)[0], 2).probs.argmax(-1).tolist() == [0, 1, 2, 0, 1, 2]


# Priors


def prior_of(net: nn.Module, name: str, prior: Any = None, shape: Any = IMAGE) -> Any:
    """Base distribution of a site's prior."""
    nodes: Any = poutine.trace(bayesian(net, prior)).get_trace(torch.zeros(1, *shape)).nodes
    fn = nodes[name]["fn"]
    while hasattr(fn, "base_dist"):
        fn = fn.base_dist
    return fn


@pytest.mark.parametrize(
    ("name", "site", "num_inputs"),
    [
        ("Conv1d", "0.weight", 2 * 3),
        ("Conv2d", "0.weight", 1 * 3 * 3),  # each filter sees one of two groups
        ("residual", "first.weight", 2 * 3 * 3),
        ("residual", "shortcut.weight", 2),
        ("residual", "head.weight", 4),
    ],
)
def test_fan_in_is_the_number_of_inputs_of_a_unit(name: str, site: str, num_inputs: int) -> None:
    build, shape = NETWORKS[name]
    prior = prior_of(build(), site, shape=shape)
    assert_close(prior.scale.unique(), torch.tensor([1 / math.sqrt(num_inputs)]))
    assert not bool(prior.loc.any())


NORMS: dict[str, nn.Module] = {
    "LayerNorm": nn.LayerNorm((2, 6, 6)),
    "GroupNorm": nn.GroupNorm(1, 2),
    "RMSNorm": nn.RMSNorm((2, 6, 6)),
    "BatchNorm2d": nn.BatchNorm2d(2).eval(),
    "InstanceNorm2d": nn.InstanceNorm2d(2, affine=True),
    "FilterResponseNorm": FilterResponseNorm(2),
}


@pytest.mark.parametrize("name", NORMS)
@pytest.mark.parametrize(("given", "scale"), [(None, 1.0), (priors.Normal(0.3), 0.3)])
def test_gains_have_the_prior_of_the_weights_around_one(
    name: str, given: Any, scale: float
) -> None:
    net = headed(NORMS[name], width=72)
    for site, _ in net.named_parameters():
        if not site.startswith("0."):
            continue
        prior = prior_of(net, site, given)
        assert_close(prior.scale.unique(), torch.tensor([scale]))
        assert prior.loc.unique().tolist() == [float(site == "0.weight")]


@pytest.mark.parametrize(
    ("given", "loc"),
    [
        (priors.Cauchy(0.2), 1.0),
        (priors.Laplace(0.2), 1.0),
        (priors.StudentT(4.0, 0.2), 1.0),
        (priors.ScaleMixture(), 1.0),
        (priors.Normal(0.2, loc=0.5), 0.5),  # a loc that was chosen
        (priors.LogNormal(0.2), 0.0),  # of median exp(0) already
        (dist.Normal(0.0, 0.2), 0.0),  # of Pyro: as it is
        ({"0.*": priors.Normal(0.2), "*": priors.Normal()}, 0.0),  # said outright
    ],
    ids=str,
)
def test_which_priors_move_to_one(given: Any, loc: float) -> None:
    net = headed(nn.GroupNorm(1, 2), width=72)
    assert float(prior_of(net, "0.weight", given).loc.unique()) == loc


@pytest.mark.parametrize("given", [priors.HalfCauchyScale(), priors.Horseshoe(centred=True)])
def test_hierarchies_over_gains_are_around_one(given: Any) -> None:
    model = bayesian(headed(nn.LayerNorm((2, 6, 6)), width=72), given)
    found = {h.own_name: h.loc for h in model.modules() if isinstance(h, priors.Hierarchy)}
    assert found == {"0.weight": 1.0, "0.bias": 0.0, "2.weight": 0.0, "2.bias": 0.0}


def test_a_flat_prior_stays_flat_and_an_earlier_fit_as_it_is() -> None:
    net = headed(nn.GroupNorm(1, 2), width=72)
    assert type(prior_of(net, "0.weight", priors.Flat())).__name__ == "_ImproperUniform"
    around = prior_of(net, "0.weight", priors.Pretrained(net, scale=0.1))
    assert_close(around.loc, net.get_parameter("0.weight").detach())
    assert_close(around.scale, torch.full((2,), 0.1))


def test_batch_norm_in_training_mode_is_refused_naming_group_norm() -> None:
    model = bayesian(headed(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), width=48))
    with pytest.raises(ModelError, match=r"net.1 is a BatchNorm2d .* use torch.nn.GroupNorm inst"):
        Program(model, *rows(IMAGE))
