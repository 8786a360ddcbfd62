"""A dropout network as a model: masks draw by draw, moments of torch's own dropout, training."""

from __future__ import annotations

import copy
import functools
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from pyro import poutine
from pyro.infer import Predictive
from torch import Tensor, nn
from torch.testing import assert_close

from pyro_bnn import SVI, Posterior, bayesian_dropout, likelihoods, mc_dropout, models
from pyro_bnn.errors import ModelError, OptionError, SiteError
from pyro_bnn.guides import AutoDropout
from pyro_bnn.program import Batch, Program
from tests.laws import assert_mean

NOISE = likelihoods.Normal(0.5)
exact = functools.partial(assert_close, rtol=1e-12, atol=1e-12)


def seeded(make: Any) -> Any:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return make().double()


def dense() -> nn.Module:
    net: nn.Module = seeded(
        lambda: nn.Sequential(
            *(nn.Dropout(0.1), nn.Linear(3, 6), nn.ReLU(), nn.Dropout(0.4)),
            *(nn.LayerNorm(6), nn.Linear(6, 1)),
        )
    )
    return net


class Shared(nn.Module):
    """One dropout layer in two places, and one whose activation is not a row of numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.out = nn.Linear(3, 4), nn.Linear(4, 4), nn.Linear(4, 1)
        self.drop = nn.Dropout(0.3)

    def forward(self, x: Tensor) -> Tensor:
        h = self.drop(torch.tanh(self.first(x)))
        out: Tensor = self.out(self.drop(torch.tanh(self.second(h))))
        return out


def conv() -> nn.Module:
    net: nn.Module = seeded(
        lambda: nn.Sequential(
            *(nn.Unflatten(1, (1, 1, 3)), nn.Conv2d(1, 4, (1, 2)), nn.Dropout2d(0.4), nn.Tanh()),
            *(nn.Flatten(), nn.Dropout(0.2), nn.Linear(8, 2)),
        )
    )
    return net


def rows(num_rows: int = 6) -> Tensor:
    return torch.randn(num_rows, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def by_hand(net: nn.Module, values: dict[str, Tensor], x: Tensor) -> Tensor:
    """The user's network in training mode, with torch's masks replaced by those of one draw."""
    net = copy.deepcopy(net).train()
    calls: dict[str, int] = {}

    def hook(module: Any, args: tuple[Tensor], _: Tensor, *, name: str) -> Tensor:
        calls[name] = calls.get(name, 0) + 1
        noise = values[f"{name}.noise" + (f"_{calls[name]}" if calls[name] > 1 else "")]
        kept = torch.distributions.Normal(0.0, 1.0).cdf(noise) > module.p
        out: Tensor = args[0] * kept / (1 - module.p)
        return out

    for name, module in net.named_modules():
        if type(module).__name__.startswith("Dropout"):
            module.register_forward_hook(functools.partial(hook, name=name))
    with torch.no_grad():
        out: Tensor = net(x)
    return out


@pytest.mark.parametrize("build", [dense, functools.partial(seeded, Shared), conv])
def test_a_draw_is_the_network_under_one_mask_for_all_rows(build: Any) -> None:
    net, x = build(), rows()
    posterior = mc_dropout(bayesian_dropout(net, NOISE), (x, net.eval()(x).detach()))
    f, draws = posterior.function_draws(x, 6), posterior.sample(6)
    for s in range(6):
        exact(f[s], by_hand(net, {name: value[s] for name, value in draws.items()}, x))
    assert len(f.unique(dim=0)) == 6


def test_sites_are_named_after_layers_and_calls() -> None:
    x = rows()
    nodes: Any = poutine.trace(bayesian_dropout(seeded(Shared), NOISE)).get_trace(x).nodes
    assert [name for name in nodes if "noise" in name] == ["drop.noise", "drop.noise_2"]
    nodes = poutine.trace(bayesian_dropout(conv(), NOISE)).get_trace(x, x[:, :2]).nodes
    shapes = {name: tuple(nodes[name]["value"].shape) for name in nodes if "noise" in name}
    assert shapes == {"2.noise": (4, 1, 1), "5.noise": (8,)}


def test_moments_are_those_of_torch_in_training_mode() -> None:
    net, x = dense(), rows(1)
    posterior = mc_dropout(bayesian_dropout(net, NOISE), (x, x[:, 0]))
    ours = posterior.function_draws(x, 20_000)[:, 0, 0]
    with torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(2)
        theirs = net.train()(x.expand(20_000, -1))[:, 0]  # a mask a row
    for power in (1, 2, 3):
        a, b = (ours**power, theirs**power)
        error = math.hypot(float(a.std()), float(b.std())) / math.sqrt(20_000)
        assert abs(float(a.mean() - b.mean())) < 4 * error
    prediction = posterior.predict(x, 20_000)
    exact(prediction.sd[:, 0].square(), ours.var(correction=0).reshape(1) + 0.25)


def test_rate_zero_is_the_network_itself_and_rate_one_drops_all() -> None:
    net, x = dense(), rows()
    none = copy.deepcopy(net)
    none[0].p = none[3].p = 0.0  # type: ignore[index]
    f = mc_dropout(bayesian_dropout(none, NOISE), (x, x[:, 0])).function_draws(x, 3)
    exact(f, net.eval()(x).detach().expand(3, -1, -1))
    everything = copy.deepcopy(net)
    everything[3].p = 1.0  # type: ignore[index]
    f = mc_dropout(bayesian_dropout(everything, NOISE), (x, x[:, 0])).function_draws(x, 3)
    exact(f, everything.train()(x).detach().expand(3, -1, -1))


def test_svi_trains_the_weights_under_masks_of_the_prior() -> None:
    net, x = dense(), rows(30)
    y = x[:, 0].sin()
    before = copy.deepcopy(net.state_dict())
    model = bayesian_dropout(net)
    engine = SVI(AutoDropout, num_steps=150, batch_size=16, per_example_draws=True, compile=False)
    posterior = engine.run(model, (x, y), progress=False)
    assert posterior.losses[-20:].mean() < posterior.losses[:20].mean() - 10
    noise = posterior.sample(20_000)["3.noise"]
    assert_mean(noise, 0.0)
    assert_mean(noise.square(), 1.0)
    trained = {name: posterior.params[f"net.{name}"] for name in before}
    assert all(bool((trained[name] != before[name]).any()) for name in before)
    assert all(torch.equal(net.state_dict()[name], value) for name, value in before.items())
    numbers = sum(value.numel() for value in before.values()) + 1  # and the noise's scale
    assert posterior.provenance.num_parameters == numbers


def test_masks_cost_nothing_under_their_own_prior() -> None:
    """The KL is 0, so that the objective is a bound on the log evidence of the weights."""
    x = rows()
    model = bayesian_dropout(dense(), NOISE)
    program, guide = Program(model, x, x[:, 0]), AutoDropout(model)
    guide.setup(x[:1])
    guide.double()
    program.prepare(guide)
    params: dict[str, Tensor] = {f"guide.{k}": v for k, v in guide.named_parameters()}
    batch: Batch = program.batch(x, x[:, 0])
    assert abs(float(program.elbo(guide, params, guide.draw_noise(4), batch).kl)) < 1e-12


def test_the_masks_of_a_transformer_layer_reach_it() -> None:
    """Its fused kernel of evaluation mode would pass them by."""

    class Encoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.5, batch_first=True)
            self.layer.self_attn.dropout = 0.0
            self.embed, self.out = nn.Linear(1, 4), nn.Linear(12, 1)

        def forward(self, x: Tensor) -> Tensor:
            h = self.layer(self.embed(x.unsqueeze(-1)))
            out: Tensor = self.out(h.flatten(1))
            return out

    net, x = seeded(Encoder), rows()
    model = bayesian_dropout(net, NOISE)
    posterior = mc_dropout(model.eval(), (x, x[:, 0]))
    f, draws = posterior.function_draws(x, 3), posterior.sample(3)
    for s in range(3):
        exact(f[s], by_hand(net, {name: value[s] for name, value in draws.items()}, x))
    net.layer.self_attn.dropout = 0.1
    with pytest.raises(ModelError, match=r"layer.self_attn is a MultiheadAttention, whose dropout"):
        bayesian_dropout(net)


def test_it_is_a_pyro_model_and_its_posterior_goes_through_a_file(tmp_path: Path) -> None:
    net, x = dense(), rows()
    model = bayesian_dropout(net, NOISE)
    assert model.rates == {"0": 0.1, "3": 0.4}
    drawn = Predictive(model, num_samples=3)(x)
    assert (len(drawn["f"]), *drawn["f"].shape[-2:]) == (3, 6, 1)
    assert (len(drawn["0.noise"]), drawn["0.noise"].shape[-1]) == (3, 3)
    posterior = mc_dropout(model, (x, x[:, 0]))
    posterior.save(tmp_path / "fit.pt")
    loaded = Posterior.load(tmp_path / "fit.pt", bayesian_dropout(net, NOISE))
    exact(loaded.function_draws(x, 5), posterior.function_draws(x, 5), rtol=0, atol=0)
    assert "dropout 0.1 and 0.4" in model.describe()


def time_first() -> nn.Module:
    return nn.Sequential(nn.Unflatten(1, (3, 1)), Turned(), nn.Dropout(0.1), nn.Linear(1, 1))


class Turned(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.transpose(0, 1)


def test_what_has_no_mask_for_all_rows_is_refused() -> None:
    x = rows(4)
    for net, error, message in (
        (lambda x: x, OptionError, "net is a torch.nn.Module, not <function"),
        (models.MLP(3), OptionError, "a Pyro model already: fit it with guides.AutoDropout"),
        (nn.Dropout(0.1), ModelError, "Dropout has no parameters"),
        (nn.Sequential(nn.Linear(3, 1)), ModelError, "Sequential holds no torch.nn.Dropout"),
        (nn.Sequential(nn.Linear(3, 1), nn.AlphaDropout(0.1)), ModelError, "1 is a AlphaDropout"),
    ):
        with pytest.raises(error, match=message):
            bayesian_dropout(net)  # type: ignore[arg-type]
    with pytest.raises(ModelError, match=r"layer 2 is given \(3, 4, 1\) in a pass of 4 rows"):
        bayesian_dropout(time_first().double(), NOISE)(x)
    flat = nn.Sequential(nn.Linear(3, 2), nn.Dropout(0.1), nn.Flatten(0)).double()
    with pytest.raises(ModelError, match=r"maps x of shape \(4, 3\) to \(8,\)"):
        bayesian_dropout(flat, NOISE)(x)
    with pytest.raises(SiteError, match=r"likelihood.scale is to be learned: pass a likelihood"):
        mc_dropout(bayesian_dropout(dense()), (x, x[:, 0]))
    options: dict[str, Any]
    for options in ({"rate": 0.7}, {"kind": "concrete"}, {"drop_inputs": True}):
        guide = AutoDropout(bayesian_dropout(dense(), NOISE), **options)
        with pytest.raises(SiteError, match=r"the model has dropout of its own.* kind, rate and"):
            guide.setup(x)
