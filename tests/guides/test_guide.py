"""The base of all guides: set-up, sites it covers, state, refusals."""

from __future__ import annotations

import copy
import math
from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer.autoguide import init_to_median, init_to_value
from pyro.nn import PyroModule
from torch import Tensor, nn

from pyro_bnn import SVI, models
from pyro_bnn.errors import SiteError
from pyro_bnn.guides import AutoDelta, AutoMultivariateNormal, AutoNormal, Guide
from pyro_bnn.guides import AutoLowRankMultivariateNormal as LowRank
from pyro_bnn.program import Program
from tests.laws import MixedModel, one
from tests.oracle import linear_gaussian


class Uniform(Guide):
    """A guide of the least a subclass has to write: z uniform about loc, by inverse cdf."""

    def make_parameters(self, loc: Tensor) -> None:
        self.loc = nn.Parameter(loc)

    def transport(self, noise: Tensor) -> Tensor:
        z: Tensor = self.loc + torch.special.ndtr(noise) - 0.5
        return z

    def log_prob(self, z: Tensor) -> Tensor:
        inside = (z - self.loc).abs() <= 0.5
        return torch.where(inside, 0.0, -math.inf).sum(-1)


def mixed_guide(**options: Any) -> AutoNormal:
    guide = AutoNormal(MixedModel(), **options)
    guide.setup(torch.zeros(2, 3, dtype=torch.float64))
    return guide


# Starting points


def test_real_sites_start_at_a_prior_draw_and_others_at_the_prior_median() -> None:
    with torch.random.fork_rng():
        torch.manual_seed(1)
        expected = dist.Laplace(one(0.0), one(1.0)).expand([3, 1]).sample()  # the first site
        torch.manual_seed(1)
        guide = mixed_guide()
    start = guide.median()
    torch.testing.assert_close(start["w"], expected)
    draws = torch.distributions.HalfNormal(one(1.0)).icdf(one(0.5))
    # init_to_median takes the median of 15 draws: its standard error is about 0.2
    assert abs(float(start["noise"] - draws)) < 5 * 0.2
    assert float(start["mixing"].sum()) == pytest.approx(1)


def test_pyros_initialisation_strategies_are_taken() -> None:
    values = {
        "w": one(0.0).new_tensor([[0.1], [0.2], [-0.3]]),
        "noise": one(0.7),
        "rate": one(1.5).reshape(1),
        "mixing": one(0.0).new_tensor([0.2, 0.3, 0.5]),
        "offset": one(0.0).new_tensor([0.4, -0.1]),
        "gain": one(0.0).new_tensor([1.4, 0.6]),
    }
    guide = mixed_guide(init_loc_fn=init_to_value(values=values))
    median = guide.median()
    for name, value in values.items():
        torch.testing.assert_close(median[name], value)
    with torch.random.fork_rng():
        other = mixed_guide(init_loc_fn=init_to_median(num_samples=3)).median()
    assert bool((other["noise"] > 0).all())


def test_setup_leaves_random_state_and_parameter_store_alone() -> None:
    pyro.clear_param_store()
    pyro.param("mine", torch.ones(2))
    state = torch.get_rng_state()
    mixed_guide()
    torch.testing.assert_close(torch.get_rng_state(), state)
    assert list(pyro.get_param_store()) == ["mine"]
    pyro.clear_param_store()


def test_a_guide_is_set_up_by_its_first_stock_step() -> None:
    """The model's sites must not leak into the trace of the guide."""
    oracle = linear_gaussian()
    guide = AutoNormal(oracle.model)
    with torch.random.fork_rng(), pyro.get_param_store().scope():
        trace = pyro.poutine.trace(guide).get_trace(oracle.x, oracle.y[:, None])
    assert [name for name, node in trace.nodes.items() if node["type"] == "sample"] == ["w", "b"]
    assert guide.num_latents == 4


def test_plates_of_the_model_are_plates_of_the_guide() -> None:
    guide = mixed_guide()
    x = torch.zeros(2, 3, dtype=torch.float64)
    for each in (guide, AutoDelta(guide.model), AutoMultivariateNormal(guide.model)):
        with torch.random.fork_rng(), pyro.get_param_store().scope():
            trace = pyro.poutine.trace(each).get_trace(x)
        trace.compute_log_prob()
        for name in ("offset", "gain"):
            node = trace.nodes[name]
            assert [frame.name for frame in node["cond_indep_stack"]] == ["groups"]
            assert node["log_prob"].shape == (2,)


# The point of a base class


def test_a_guide_without_closed_forms_works_by_monte_carlo() -> None:
    oracle = linear_gaussian()
    guide = Uniform(oracle.model)
    guide.setup(oracle.x)
    value, exact = guide.kl(num_draws=4_000)
    assert not exact
    # KL = -E log p = P log(tau sqrt(2 pi)) + sum(loc^2 + 1/12) / (2 tau^2); sd of one draw < 1
    tau = oracle.prior_scale
    square = float((guide.loc.detach().square() + 1 / 12).sum())
    expected = 4 * math.log(tau * math.sqrt(2 * math.pi)) + square / (2 * tau**2)
    spread = (guide.loc.detach().square() / 12 + 1 / 180).sum().sqrt() / tau**2
    assert abs(value - expected) < 5 * float(spread) / math.sqrt(4_000)
    with pytest.raises(SiteError, match="the marginals of Uniform have no closed form"):
        guide.quantiles([0.5])


def branching(x: Tensor, y: Tensor | None = None) -> None:
    """A prior by a branch on a latent value, which draws cannot be batched over."""
    w = pyro.sample("w", dist.Normal(x.new_zeros(3), 1.0).to_event(1))
    b = pyro.sample("b", dist.Laplace(0.0, w.exp().sum() if w.sum() > 0 else (-w).exp().sum()))
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Normal(x @ w + b, 1.0), obs=y)


def test_the_kl_of_a_model_that_cannot_be_batched_is_that_of_one_draw_after_another() -> None:
    x = linear_gaussian().x
    guide = AutoNormal(branching, init_scale=0.5)
    guide.setup(x)
    value, exact = guide.kl(num_draws=20)
    assert not exact
    z = guide.sample(20)
    loc, scale = guide.loc.detach(), guide.scale.detach()
    d = torch.distributions
    of_w = d.kl_divergence(d.Normal(loc[:3], scale[:3]), d.Normal(one(0.0), one(1.0))).sum()
    w = z[:, :3]
    prior_of_b = d.Laplace(one(0.0), (w * w.sum(1, keepdim=True).sign()).exp().sum(1))
    of_b = -d.Normal(loc[3], scale[3]).entropy() - prior_of_b.log_prob(z[:, 3]).mean()
    assert value == pytest.approx(float(of_w + of_b), rel=1e-10)


def test_svi_trains_a_users_own_guide() -> None:
    oracle = linear_gaussian()
    posterior = SVI(Uniform, num_steps=300, learning_rate=0.05, num_particles=4).run(
        oracle.model, (oracle.x, oracle.y), progress=False
    )
    assert posterior.method == "Uniform"
    losses = torch.as_tensor(posterior.losses)
    assert float(losses[-50:].mean()) < float(losses[:5].mean())


def test_what_a_subclass_leaves_out_is_named() -> None:
    oracle = linear_gaussian()
    guide = Guide(oracle.model)
    with pytest.raises(TypeError, match=r"Guide makes no parameters around loc \(4,\)"):
        guide.setup(oracle.x)
    with pytest.raises(TypeError, match=r"Guide transports no noise \(2, 4\)"):
        guide.transport(torch.zeros(2, 4))
    with pytest.raises(TypeError, match=r"Guide has no density at z \(4,\)"):
        guide.log_prob(torch.zeros(4))
    assert guide.entropy() is None
    assert guide.marginals() is None
    assert guide.options() == {}


def test_before_setup_a_guide_says_what_to_do() -> None:
    guide = AutoNormal(linear_gaussian().model)
    with pytest.raises(SiteError, match=r"AutoNormal has no parameters yet: call guide.setup\(x\)"):
        _ = guide.num_latents
    with pytest.raises(SiteError, match=r"call guide.setup\(x\) before AutoNormal.kl\(\)"):
        guide.kl()


def test_a_model_is_not_a_part_of_its_guide() -> None:
    net = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 1))
    model = models.bayesian(net, {"0.*": models_prior()})
    guide = AutoNormal(model)
    guide.setup(torch.zeros(2, 3))
    assert {name for name, _ in guide.named_parameters()} == {"loc", "scale_unconstrained"}


def models_prior() -> Any:
    from pyro_bnn import priors

    return priors.Normal()


# Sites and state of another model


def test_sites_that_are_missing_or_too_many_are_named() -> None:
    oracle = linear_gaussian()
    guide = AutoNormal(oracle.model)
    guide.setup(oracle.x)
    sites = Program(oracle.model, oracle.x, oracle.y).sites
    guide.check_covers(sites)
    with pytest.raises(SiteError, match="the guide covers b, which the model does not have"):
        guide.check_covers(sites[:1])
    other = Program(MixedModel(), oracle.x, oracle.y).sites
    with pytest.raises(SiteError, match="the guide does not cover 'noise', 'rate', 'mixing', 'off"):
        guide.check_covers(other)


def test_a_state_of_another_model_is_refused() -> None:
    small, large = linear_gaussian(), linear_gaussian(num_inputs=5)
    trained = AutoNormal(small.model)
    trained.setup(small.x)
    fresh = AutoNormal(large.model)
    fresh.load_state_dict(trained.state_dict())
    with pytest.raises(SiteError, match=r"sites w \(3, 1\), b \(1,\), but this model has w \(5, "):
        fresh.setup(large.x)
    other = AutoNormal(large.model)
    other.setup(large.x)
    with pytest.raises(SiteError, match=r"of a guide over w \(3, 1\), b \(1,\), but this guide is"):
        other.load_state_dict(trained.state_dict(), strict=False)


@pytest.mark.parametrize("cls", [AutoDelta, AutoNormal, AutoMultivariateNormal, LowRank])
def test_before_setup_draws_and_densities_say_what_to_do(cls: type[Guide]) -> None:
    guide = cls(linear_gaussian().model)
    text = rf"{cls.__name__} has no parameters yet: call guide.setup\(x\)"
    for call in (lambda: guide.sample(2), lambda: guide.draw_noise(2), guide.get_posterior):
        with pytest.raises(SiteError, match=text):
            call()
    if cls.has_log_prob:
        with pytest.raises(SiteError, match=text):
            guide.log_prob(torch.zeros(4))


def test_options_come_in_pyros_order() -> None:
    model = linear_gaussian().model
    assert LowRank(model, init_to_median, 0.2, 2).options() == {"init_scale": 0.2, "rank": 2}
    assert AutoNormal(model, init_to_median, 0.3).options() == {"init_scale": 0.3}


# A prior that depends on a parameter


class LearnedPrior(PyroModule):
    """w ~ N(0, tau^2) with the point parameter log tau."""

    def __init__(self) -> None:
        super().__init__()
        self.log_scale = nn.Parameter(one(0.0))

    def forward(self, x: Tensor, y: Tensor | None = None) -> Tensor:
        w = pyro.sample("w", dist.Normal(one(0.0), self.log_scale.exp()))
        f = pyro.deterministic("f", x[:, :1] * w)
        with pyro.plate("data", x.shape[0]):
            sampled: Tensor = pyro.sample("y", dist.Normal(f, 0.1).to_event(1), obs=y)
        return sampled


def learned_prior_function(x: Tensor, y: Tensor | None = None) -> None:
    scale = pyro.param("scale", lambda: one(1.0), constraint=dist.constraints.positive)
    w = pyro.sample("w", dist.Normal(one(0.0), scale))
    f = pyro.deterministic("f", x[:, :1] * w)
    with pyro.plate("data", x.shape[0]):
        pyro.sample("y", dist.Normal(f, 0.1).to_event(1), obs=y)


def test_a_guide_of_a_prior_with_parameters_can_be_copied() -> None:
    guide = AutoNormal(LearnedPrior())
    guide.setup(torch.zeros(2, 1, dtype=torch.float64, requires_grad=True) * 1)
    copied = copy.deepcopy(guide)
    torch.testing.assert_close(copied.sample(3), guide.sample(3), rtol=0, atol=0)


@pytest.mark.parametrize("form", ["module", "function"])
def test_the_kl_is_from_the_prior_at_the_given_parameters(form: str) -> None:
    guide = AutoNormal(LearnedPrior() if form == "module" else learned_prior_function)
    guide.setup(torch.zeros(2, 1, dtype=torch.float64))
    guide.loc.data.fill_(0.5)
    name = "log_scale" if form == "module" else "scale"
    for params, scale in ((None, 1.0), ({name: one(math.log(3.0))}, 3.0)):
        value, exact = guide.kl(100_000, params=params)
        assert not exact
        q = torch.distributions.Normal(0.5, 0.01)
        expected = torch.distributions.kl_divergence(q, torch.distributions.Normal(0.0, scale))
        # log p varies by |w| sd(w) / scale^2 = 0.005 / scale^2 from draw to draw
        assert abs(value - float(expected)) < 5 * 0.005 / scale**2 / math.sqrt(100_000) + 1e-6
