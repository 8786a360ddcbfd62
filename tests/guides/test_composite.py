"""AutoComposite: the sums over its parts, the keys that share sites out, and its state."""

from __future__ import annotations

import functools
import math
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from pyro import poutine
from pyro.infer.autoguide import init_to_value
from torch import Tensor

from pyro_bnn import SVI, guides, likelihoods, models, priors
from pyro_bnn.errors import OptionError, SiteError, UnknownNameError
from pyro_bnn.guides import (
    AutoComposite,
    AutoDelta,
    AutoLowRankMultivariateNormal,
    AutoMatrixNormal,
    AutoMultivariateNormal,
    AutoNormal,
    Guide,
)
from pyro_bnn.posterior import DrawsPosterior, Posterior
from pyro_bnn.program import Program
from tests.guides.exact import assert_stationary, at, expected_elbo
from tests.guides.layered import BLOCKS, best_covariance, layered
from tests.laws import MixedModel
from tests.oracle import LinearGaussian, linear_gaussian

A, B = BLOCKS
X = torch.linspace(-1, 1, 24).view(8, 3)


def gaussians(oracle: LinearGaussian, covariance: Tensor) -> AutoComposite:
    """Full covariance over the layer "a", independent Gaussians over "b"."""
    guide = AutoComposite(oracle.model, {"a": AutoMultivariateNormal}, default=AutoNormal)
    at(guide, oracle)
    full, normal = guide.parts
    assert isinstance(full, AutoMultivariateNormal)
    assert isinstance(normal, AutoNormal)
    full.set_moments(oracle.mean[A], covariance[A][:, A])
    with torch.no_grad():
        normal.loc.copy_(oracle.mean[B])
    normal.scale = covariance.diagonal()[B].sqrt()
    return guide


# Sums over the parts


def test_density_entropy_and_elbo_are_those_of_the_dense_gaussian() -> None:
    oracle = layered()
    guide = gaussians(oracle, 4 * oracle.covariance)
    covariance = 4 * oracle.covariance
    for i, j in ((0, 1), (0, 3), (2, 1), (2, 3), (1, 3)):
        covariance[i, j] = covariance[j, i] = 0.0
    dense = torch.distributions.MultivariateNormal(oracle.mean, covariance)
    z = guide.sample(20)
    with torch.no_grad():
        torch.testing.assert_close(guide.log_prob(z), dense.log_prob(z), rtol=1e-12, atol=1e-12)
        entropy = guide.entropy()
        torch.testing.assert_close(entropy, dense.entropy(), rtol=1e-12, atol=1e-12)
        mean, sd = guide.marginals() or (None, None)
        torch.testing.assert_close(mean, oracle.mean)
        torch.testing.assert_close(sd, covariance.diagonal().sqrt())
    elbo, _ = expected_elbo(guide, oracle)
    assert elbo == pytest.approx(oracle.elbo(oracle.mean, covariance), rel=1e-12)
    prior = torch.distributions.MultivariateNormal(
        torch.zeros(4).double(), oracle.prior_scale**2 * torch.eye(4).double()
    )
    kl = torch.distributions.kl_divergence(dense, prior)
    value, exact = guide.kl()
    assert exact
    assert value == pytest.approx(float(kl), rel=1e-12)


def test_the_optimum_of_each_part_is_that_of_its_family() -> None:
    """A block of the precision inverted, or its diagonal; the gap is the log determinants'."""
    oracle = layered()
    covariance = best_covariance(oracle)
    independent = 1 / oracle.precision.diagonal()
    covariance[B, B] = independent[B]
    guide = gaussians(oracle, covariance)
    assert_stationary(guide, oracle)
    log_dets = oracle.precision[A][:, A].logdet() - independent[B].log().sum()
    gap = 0.5 * float(log_dets - oracle.precision.logdet())
    elbo, _ = expected_elbo(guide, oracle)
    assert elbo == pytest.approx(oracle.log_evidence - gap, rel=1e-12)


def test_layers_that_are_independent_in_the_posterior_reach_the_evidence() -> None:
    oracle = layered(independent=True)
    full = AutoMultivariateNormal
    guide = AutoComposite(oracle.model, {"a": full, "b": full})
    at(guide, oracle)
    for part, block in zip(guide.parts, BLOCKS, strict=True):
        assert isinstance(part, AutoMultivariateNormal)
        part.set_moments(oracle.mean[block], oracle.covariance[block][:, block])
    elbo, _ = expected_elbo(guide, oracle)
    assert elbo == pytest.approx(oracle.log_evidence, rel=1e-12)


def test_one_part_is_that_guide() -> None:
    oracle = linear_gaussian()
    composite = AutoComposite(oracle.model, {}, default=AutoMultivariateNormal)
    alone = AutoMultivariateNormal(oracle.model)
    for guide in (composite, alone):
        with torch.random.fork_rng():
            torch.manual_seed(0)
            at(guide, oracle)
    z = alone.sample(5)
    torch.testing.assert_close(composite.sample(5), z, rtol=0, atol=0)
    torch.testing.assert_close(composite.log_prob(z), alone.log_prob(z), rtol=0, atol=0)


def test_quantiles_are_those_of_the_parts() -> None:
    guide = AutoComposite(MixedModel(), {"noise": AutoDelta, "w": AutoMultivariateNormal})
    guide.setup(torch.zeros(2, 3).double())
    low, high = 0.1, 0.9
    found = guide.quantiles([low, high])
    assert list(found) == ["w", "noise", "rate", "mixing", "offset", "gain"]
    assert found["noise"][0] == found["noise"][1] > 0
    standard = torch.distributions.Normal(0.0, 1.0).icdf(torch.tensor(high))
    span = (found["rate"][1] / found["rate"][0]).log()  # of a log-normal
    torch.testing.assert_close(span, 0.02 * standard.double().reshape(1), rtol=1e-6, atol=0)


# Point estimates of some sites


def test_with_estimates_of_some_sites_the_objective_is_the_bound_given_them() -> None:
    """E_q log p(y, a, b) + H(q(a)) at the estimate b, by hand; at its maximum stationary."""
    oracle = layered()
    guide = AutoComposite(oracle.model, {"a": AutoMultivariateNormal, "b": AutoDelta})
    at(guide, oracle)
    covariance = best_covariance(oracle)[A][:, A]
    full, points = guide.parts
    assert isinstance(full, AutoMultivariateNormal)
    assert isinstance(points, AutoDelta)
    full.set_moments(oracle.mean[A], covariance)
    points.move_to(oracle.mean[B])
    assert_stationary(guide, oracle)
    full.set_moments(oracle.mean[A] + 0.3, 2 * covariance)
    trace = 2 * (oracle.precision[A][:, A] @ covariance).trace()
    entropy = torch.distributions.MultivariateNormal(oracle.mean[A], 2 * covariance).entropy()
    bound = oracle.log_joint(guide.centre()) - 0.5 * trace + entropy
    value, _ = expected_elbo(guide, oracle)
    assert value == pytest.approx(float(bound), rel=1e-12)
    assert (guide.objective, guide.kl_kind) == ("ELBO at the point estimates", "none")
    assert guide.entropy() is None
    assert guide.marginals() is None
    with pytest.raises(SiteError, match="AutoComposite has no density: its KL is infinite"):
        guide.kl()
    with pytest.raises(TypeError, match=r"AutoComposite has no density at z \(4,\)"):
        guide.log_prob(guide.centre())


def test_beside_estimates_a_density_is_that_of_the_values() -> None:
    """Of the estimate there is no Jacobian in the objective; of the others it cancels."""
    oracle, model = linear_gaussian(), MixedModel()
    program = Program(model, oracle.x, oracle.y)
    guide = AutoComposite(model, {"noise": AutoDelta, "w": AutoMultivariateNormal})
    guide.setup(oracle.x[:1])
    noise = guide.draw_noise(4, torch.Generator().manual_seed(0))
    params = {f"guide.{name}": value for name, value in guide.named_parameters()}
    terms = program.elbo(guide, params, noise, program.batch(oracle.x, oracle.y))
    z = guide.transport(noise)
    log_prior = MixedModel.log_prior(z) - z[:, 3]  # log d noise / d z = z, as noise = exp(z)
    # the mean over draws, but of a Gaussian prior, whose expectation is in closed form
    offset, others = slice(7, 9), cast(Guide, guide.parts[2])
    density = torch.distributions.Normal(0.5, 2.0).log_prob(z[:, offset]).sum(-1)
    _, sds = others.marginals() or (None, torch.empty(0))
    means, spread = guide.centre()[offset], sds[-4:-2].square().sum() / (2 * 2.0**2)
    at_means = torch.distributions.Normal(0.5, 2.0).log_prob(means).sum()
    entropies: list[Any] = [cast(Guide, guide.parts[i]).entropy() for i in (1, 2)]
    expected = -entropies[0] - entropies[1] - (log_prior - density).mean() - at_means + spread
    torch.testing.assert_close(terms.kl, expected, rtol=1e-12, atol=1e-12)


def test_under_pyro_estimates_have_no_density_and_the_others_that_of_their_values() -> None:
    oracle, model = linear_gaussian(), MixedModel()
    program = Program(model, oracle.x, oracle.y)
    guide = AutoComposite(model, {"noise": AutoDelta, "w": AutoDelta})
    guide.setup(oracle.x[:1])
    with torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(0)
        trace = poutine.trace(guide).get_trace(oracle.x)
    values: dict[str, Any] = {s.name: trace.nodes[s.name]["value"] for s in program.sites}
    z = program.unconstrain(values)
    rate, sticks, gain = z[4], z[5:7], z[9:]  # beside "offset", which is real
    transform = torch.distributions.StickBreakingTransform()
    log_det = rate + transform.log_abs_det_jacobian(sticks, transform(sticks)) + gain.sum()
    rest = cast(AutoNormal, guide.parts[2])
    expected = torch.distributions.Normal(rest.loc, rest.scale).log_prob(z[4:]).sum() - log_det
    torch.testing.assert_close(trace.log_prob_sum(), expected.detach(), rtol=1e-9, atol=1e-9)


def test_estimates_of_all_sites_are_the_maximum_a_posteriori() -> None:
    oracle = layered()
    guide = AutoComposite(oracle.model, {"a": AutoDelta}, default=AutoDelta)
    at(guide, oracle).move_to(oracle.mean)
    assert_stationary(guide, oracle)
    assert guide.objective == "log joint"
    atoms = guide.atoms()
    torch.testing.assert_close(atoms, oracle.mean.unsqueeze(0))


def test_the_default_is_a_full_covariance_over_the_last_layer() -> None:
    model = models.MLP(3, hidden=(4, 4))
    guide = AutoComposite(model)
    guide.setup(X[:1])
    assert [type(part) for part in guide.parts] == [AutoMultivariateNormal, AutoNormal]
    assert guide._names[0] == ["layers.2.weight", "layers.2.bias"]
    assert [part.num_latents for part in guide.parts] == [5, 16 + 20 + 1]


def test_a_hierarchical_layer_is_one_part_with_its_scales() -> None:
    model = models.MLP(3, hidden=(4,), prior=priors.HalfCauchyScale())
    guide = AutoComposite(model)
    guide.setup(X[:1])
    assert {name.split(".")[1] for name in guide._names[0]} == {"1"}
    assert {name.rsplit(".")[-1] for name in guide._names[0]} > {"raw"}


# Keys and parts that are refused


def refused(error: type[Exception], text: str, **options: Any) -> None:
    with pytest.raises(error, match=text):
        AutoComposite(linear_gaussian().model, **options).setup(X[:1].double())


def test_keys_that_take_nothing_or_a_site_twice_are_refused() -> None:
    refused(SiteError, "the part 'c' takes no site: there are w, b", parts={"c": AutoNormal})
    twice = {"w": AutoNormal, "[a-w]": AutoDelta}
    refused(
        SiteError, r"the parts 'w' and '\[a-w\]' both take w: a site is in one part", parts=twice
    )


@pytest.mark.parametrize(
    ("spec", "error", "text"),
    [
        (AutoNormal(linear_gaussian().model), OptionError, "a part is a guide class or a partial"),
        (3, OptionError, "a part is a guide class or a partial of one"),
        (lambda _: "normal", OptionError, "a part is a guide of pyro_bnn.guides or one of"),
        (guides.AutoNormalMixture, OptionError, "AutoNormalMixture cannot be a part of another"),
        (guides.AutoDropout, OptionError, "AutoDropout cannot be a part of another guide"),
        ("AutoNorml", UnknownNameError, "did you mean 'AutoNormal'"),
        ({"guide": "Guide"}, UnknownNameError, "unknown guide 'Guide'"),
        ({"rank": 2}, UnknownNameError, "unknown guide 'None'"),
    ],
)
def test_what_cannot_be_a_part_is_refused(spec: Any, error: type[Exception], text: str) -> None:
    refused(error, text, parts={"w": spec})
    refused(error, text, default=spec)


def test_parts_are_a_dict() -> None:
    wrong: Any = [AutoNormal]
    refused(OptionError, "parts is a dict of guides by the names of modules or sites", parts=wrong)


def test_a_part_that_does_not_suit_its_sites_says_so() -> None:
    refused(
        SiteError, r"AutoMatrixNormal needs .* there are w \(3, 1\)", parts={"w": AutoMatrixNormal}
    )


# Set-up


def test_a_part_starts_where_its_own_strategy_says() -> None:
    w, b = torch.full((3, 1), 0.2).double(), torch.full((1,), 7.0).double()
    of_part = functools.partial(AutoNormal, init_loc_fn=init_to_value(values={"w": w}))
    model = linear_gaussian().model
    guide = AutoComposite(
        model, {"w": of_part}, init_loc_fn=init_to_value(values={"w": w + 1, "b": b})
    )
    guide.setup(X[:1].double())
    torch.testing.assert_close(guide.centre(), torch.cat([w[:, 0], b]))


def test_the_means_of_all_parts_are_trained_before_the_scales() -> None:
    oracle = layered()
    guide = AutoComposite(oracle.model, {"a": AutoLowRankMultivariateNormal})
    svi = SVI(guide, num_steps=2, loc_warmup=1, optimizer=torch.optim.SGD, learning_rate=1e-300)
    svi.run(oracle.model, (oracle.x, oracle.y), progress=False)
    assert guide.mean_params == ("parts.0.loc", "parts.1.loc")
    rest = {name for name, _ in guide.named_parameters()} - {*guide.mean_params}
    assert rest == {
        "parts.0.scale_unconstrained",
        "parts.0.cov_factor",
        "parts.1.scale_unconstrained",
    }
    before = {name: value.detach().clone() for name, value in guide.named_parameters()}
    again = SVI(guide, num_steps=2, loc_warmup=1, schedule="constant")
    moved: list[set[str]] = []

    class Recorder(torch.optim.SGD):
        def step(self, closure: Any = None) -> Any:
            super().step(closure)
            values = dict(guide.named_parameters())
            moved.append({k for k, v in values.items() if not torch.equal(v, before[k])})

    again = SVI(guide, num_steps=2, loc_warmup=1, optimizer=Recorder, learning_rate=1e-5)
    again.run(oracle.model, (oracle.x, oracle.y), progress=False)
    assert moved == [{*guide.mean_params}, {*before}]


# State


PARTS: dict[str, Any] = {
    "layers.0": AutoMatrixNormal,
    "layers.-1": functools.partial(AutoLowRankMultivariateNormal, rank=2, init_scale=0.1),
}


def fit(default: Any = "AutoNormal", parts: Any = None) -> Posterior:
    guide = functools.partial(AutoComposite, parts=parts or PARTS, default=default)
    svi = SVI(guide, num_steps=2, compile=False)
    return svi.run(models.MLP(3, hidden=(4,)), (X, X[:, 0]), progress=False)


def test_options_are_names_and_numbers() -> None:
    posterior: Any = fit(default=AutoDelta)
    low_rank = {"guide": "AutoLowRankMultivariateNormal", "init_scale": 0.1, "rank": 2}
    assert posterior.guide.options() == {
        "parts": {
            "layers.0": {"guide": "AutoMatrixNormal", "init_scale": 0.01},
            "layers.-1": low_rank,
        },
        "default": {"guide": "AutoDelta"},
    }


@pytest.mark.parametrize("default", [AutoNormal, AutoDelta])
def test_a_fit_goes_through_a_file(default: Any, tmp_path: Path) -> None:
    posterior = fit(default)
    posterior.save(tmp_path / "fit.pt")
    loaded: Any = Posterior.load(tmp_path / "fit.pt", models.MLP(3, hidden=(4,)))
    assert [type(part).__name__ for part in loaded.guide.parts] == [
        *("AutoMatrixNormal", "AutoLowRankMultivariateNormal", default.__name__)
    ]
    torch.testing.assert_close(loaded.unconstrained(7), posterior.unconstrained(7), rtol=0, atol=0)
    assert loaded.has_log_prob == (default is AutoNormal)


class OwnNormal(AutoNormal):
    """A guide of a user's own."""


def test_with_a_part_of_ones_own_draws_are_saved(tmp_path: Path) -> None:
    posterior = fit(parts={"layers.0": OwnNormal})
    posterior.save(tmp_path / "fit.pt")
    loaded = Posterior.load(tmp_path / "fit.pt", models.MLP(3, hidden=(4,)))
    assert isinstance(loaded, DrawsPosterior)


def test_a_state_of_other_parts_is_refused() -> None:
    model = models.MLP(3, hidden=(3,))
    made = AutoComposite(model, {"layers.0.weight": AutoNormal})
    other = AutoComposite(model, {"layers.*": AutoNormal})
    for guide in (made, other):
        guide.setup(X[:1])
    with pytest.raises(SiteError, match=r"the state dict has parts over \[\['layers.0.weight'\]"):
        other.load_state_dict(made.state_dict(), strict=False)
    fresh = AutoComposite(model, {"layers.*": AutoNormal})
    fresh.load_state_dict(made.state_dict())
    with pytest.raises(SiteError, match="the guide's state has parts over"):
        fresh.setup(X[:1])


def test_classes_and_minibatches_and_a_schedule() -> None:
    y = torch.arange(8) % 3
    model = models.MLP(3, hidden=(4,), likelihood=likelihoods.Categorical(3))
    svi = SVI(AutoComposite, num_steps=200, batch_size=3, learning_rate=0.05, compile=False)
    posterior = svi.run(model, (X, y), progress=False)
    assert posterior.losses[-50:].mean() < posterior.losses[:20].mean()
    value, error = posterior.elbo((X, y), 500)
    assert math.isfinite(value + error)
