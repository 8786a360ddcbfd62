"""Guides that start where a posterior or a trained network is, stage after stage."""

from __future__ import annotations

import functools
import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from pyro_bnn import NUTS, SVI, guides, models, priors, registry
from pyro_bnn.errors import SiteError
from pyro_bnn.guides import AutoDelta, AutoMultivariateNormal, AutoNormal, Guide
from pyro_bnn.guides.parts.matrices import fit_scales
from pyro_bnn.infer.mcmc import hamiltonian
from pyro_bnn.infer.mcmc.mass import Mass
from pyro_bnn.infer.mcmc.sampling import first_mass
from pyro_bnn.infer.starting_points import starting_points
from pyro_bnn.infer.steps.potentials import of_one
from pyro_bnn.infer.steps.starts import known_before
from pyro_bnn.infer.warm_start import start_guide
from pyro_bnn.posterior import DrawsPosterior, GuidePosterior, Posterior, Provenance
from pyro_bnn.program import Program
from tests.guides.exact import at, expected_elbo, multivariate_normal, stored_posterior
from tests.guides.layered import layered
from tests.oracle import LinearGaussian, linear_gaussian

pytestmark = pytest.mark.usefixtures("uncaptured")

X = torch.linspace(-1, 1, 24, dtype=torch.float64).view(8, 3)
Y = X.sum(-1).sin()
STILL: dict[str, Any] = {"num_steps": 1, "learning_rate": 1e-13, "compile": False}
LOC = torch.tensor([0.3, -1.2, 0.7, 0.1], dtype=torch.float64)
SDS = torch.tensor([0.2, 0.5, 0.05, 0.6], dtype=torch.float64)


def as_posterior(guide: Guide, program: Program) -> GuidePosterior:
    return GuidePosterior(program, guide, Provenance(type(guide).__name__, "made"))


def program_of(oracle: LinearGaussian) -> Program:
    return Program(oracle.model, oracle.x, oracle.y)


def normal(oracle: LinearGaussian) -> GuidePosterior:
    guide = at(AutoNormal(oracle.model), oracle, loc=LOC, scale=SDS)
    return as_posterior(guide, program_of(oracle))


def started(make: Any, init: Posterior, oracle: LinearGaussian) -> Any:
    guide = at(make(oracle.model), oracle)
    start_guide(guide, program_of(oracle), init, 0)
    return guide


def mlp(**options: Any) -> models.MLP:
    return models.MLP(3, hidden=(4,), **options).double()


def made(make: Any, model: Any) -> tuple[Guide, Program]:
    program, guide = Program(model, X, Y), make(model)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        guide.setup(X[:1])
    return guide.double(), program


# From a mean-field fit to families that contain it


CONTAIN: dict[str, Any] = {
    "mean field": AutoNormal,
    "low rank": functools.partial(guides.AutoLowRankMultivariateNormal, rank=2),
    "low rank by layer": functools.partial(guides.AutoLowRankMultivariateNormal, block="layer"),
    "full": AutoMultivariateNormal,
    "a family a layer": functools.partial(
        guides.AutoComposite, parts={"a": AutoMultivariateNormal}
    ),
}


@pytest.mark.parametrize("name", CONTAIN)
def test_the_elbo_at_the_start_is_that_of_the_mean_field_fit(name: str) -> None:
    """Whatever the guide's own parameters were, correlations included."""
    oracle = layered()
    guide = at(CONTAIN[name](oracle.model), oracle)
    with torch.no_grad():
        for parameter in guide.parameters():
            parameter.add_(torch.linspace(0.5, 1, parameter.numel()).reshape(parameter.shape))
    start_guide(guide, program_of(oracle), normal(oracle), 0)
    elbo, _ = expected_elbo(guide, oracle)
    assert elbo == pytest.approx(oracle.elbo(LOC, SDS.square().diag()), rel=1e-12)


def test_a_run_starts_there() -> None:
    oracle = linear_gaussian()
    svi = SVI(guides.AutoLowRankMultivariateNormal, **STILL)
    posterior: Any = svi.run(
        oracle.model, (oracle.x, oracle.y), init=normal(oracle), progress=False
    )
    loc, sds = posterior.guide.marginals()
    torch.testing.assert_close(loc.detach(), LOC, rtol=0, atol=1e-11)
    torch.testing.assert_close(sds.detach(), SDS, rtol=0, atol=1e-11)
    assert posterior.options["loc_warmup"] == 0


def test_a_full_covariance_takes_that_of_any_gaussian() -> None:
    oracle = linear_gaussian()
    low_rank = functools.partial(guides.AutoLowRankMultivariateNormal, rank=2, init_scale=0.3)
    source = at(low_rank(oracle.model), oracle)
    guide = started(AutoMultivariateNormal, as_posterior(source, program_of(oracle)), oracle)
    own, theirs = guide.get_posterior(), source.get_posterior()
    torch.testing.assert_close(own.mean, theirs.mean)
    torch.testing.assert_close(own.covariance_matrix, theirs.covariance_matrix)


def test_a_full_covariance_takes_that_of_the_parts_of_a_composite() -> None:
    oracle = layered()
    source = at(CONTAIN["a family a layer"](oracle.model), oracle)
    source.parts[0].set_moments(LOC[:2], torch.tensor([[0.5, 0.2], [0.2, 0.3]]).double())
    source.parts[1].set_sds(SDS[2:])
    guide = started(AutoMultivariateNormal, as_posterior(source, program_of(oracle)), oracle)
    covariance = torch.diag(torch.stack([SDS[0], SDS[2], SDS[1], SDS[3]]).square())
    covariance[[0, 2, 0, 2], [0, 0, 2, 2]] = torch.tensor([0.5, 0.2, 0.2, 0.3]).double()
    torch.testing.assert_close(guide.get_posterior().covariance_matrix, covariance)
    torch.testing.assert_close(guide.loc.detach(), source.centre())


@pytest.mark.parametrize("name", ["full", "low rank", "a family a layer"])
def test_a_guide_of_the_same_form_takes_all_parameters(name: str) -> None:
    oracle = layered()
    source = at(CONTAIN[name](oracle.model), oracle)
    with torch.no_grad():
        for parameter in source.parameters():
            parameter.add_(torch.linspace(-1, 1, parameter.numel()).reshape(parameter.shape))
    guide = started(CONTAIN[name], as_posterior(source, program_of(oracle)), oracle)
    torch.testing.assert_close(guide.sample(5), source.sample(5), rtol=0, atol=0)
    before = guide.sample(5)
    with torch.no_grad():
        source.parts[0].loc.add_(1.0) if name == "a family a layer" else source.loc.add_(1.0)
    torch.testing.assert_close(guide.sample(5), before, rtol=0, atol=0)  # a copy


# To families that contain it in part


def test_scales_of_product_form_are_taken_exactly() -> None:
    source, program = made(AutoNormal, mlp())
    assert isinstance(source, AutoNormal)
    rows, columns = torch.tensor([0.1, 0.2, 0.4, 0.05]), torch.tensor([1.0, 3.0, 0.5])
    sds = torch.linspace(0.1, 0.9, source.num_latents).double()
    sds[:12] = (rows.unsqueeze(-1) * columns).flatten().double()
    source.scale = sds
    for make in (guides.AutoMatrixNormal, guides.AutoKTiedNormal):
        guide, _ = made(make, program.model)
        start_guide(guide, program, as_posterior(source, program), 0)
        loc, own = guide.marginals() or (None, None)
        torch.testing.assert_close(loc, source.loc)
        torch.testing.assert_close(own, sds, rtol=1e-5, atol=0)


def test_other_scales_are_taken_as_near_as_the_kl_has_them() -> None:
    r"""At the minimum of the KL, :math:`\sum_j \sigma_{ij}^2 / s_{ij}^2 = I`, so for columns."""
    generator = torch.Generator().manual_seed(0)
    s = torch.rand(2, 5, 7, generator=generator, dtype=torch.float64) + 0.1

    def kl(A: Tensor, B: Tensor) -> float:
        ratio = (A @ B.mT / s).square()
        return float((ratio - ratio.log() - 1).sum() / 2)

    A, B = fit_scales(s, torch.ones(2, 5, 1).double(), torch.ones(2, 7, 1).double())
    ratio = (A @ B.mT / s).square()
    torch.testing.assert_close(ratio.mean(-1), torch.ones(2, 5).double(), rtol=1e-9, atol=0)
    torch.testing.assert_close(ratio.mean(-2), torch.ones(2, 7).double(), rtol=1e-9, atol=0)
    C, D = (torch.rand(2, n, 2, generator=generator, dtype=torch.float64) for n in (5, 7))
    assert kl(*fit_scales(s, C, D)) < 0.8 * kl(A, B)


def test_the_elbo_of_a_matrix_normal_starts_near_that_of_the_mean_field_fit() -> None:
    """Not exactly, but nearer than at the scales that the guide would start with."""
    source, program = made(AutoNormal, mlp())
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn(source.num_latents, generator=generator, dtype=torch.float64)
    source.set_sds((0.3 * noise - 1.5).exp())
    init = as_posterior(source, program)
    elbo, _ = init.elbo((X, Y), 4_000)
    guide, _ = made(guides.AutoMatrixNormal, program.model)
    start_guide(guide, program, init, 0)
    near, _ = as_posterior(guide, program).elbo((X, Y), 4_000)
    guide.set_sds(torch.full_like(noise, 0.01))
    far, _ = as_posterior(guide, program).elbo((X, Y), 4_000)
    assert abs(near - elbo) < 0.1 * abs(far - elbo)


# From point estimates and draws


@pytest.mark.parametrize("name", CONTAIN)
def test_from_a_point_estimate_scales_are_the_initial_ones(name: str) -> None:
    oracle = layered()
    delta = at(AutoDelta(oracle.model), oracle, loc=LOC)
    make = (
        functools.partial(CONTAIN[name], init_scale=0.2) if "layer" not in name else CONTAIN[name]
    )
    fresh: Any = at(make(oracle.model), oracle)
    guide = started(make, as_posterior(delta, program_of(oracle)), oracle)
    torch.testing.assert_close(guide.centre(), LOC)
    torch.testing.assert_close(guide.marginals()[1], fresh.marginals()[1])


def test_from_draws_a_guide_has_their_mean_and_sds() -> None:
    oracle = linear_gaussian()
    init = stored_posterior(oracle)
    guide = started(AutoMultivariateNormal, init, oracle)
    z = init.stored.flatten(0, 1)
    loc, sds = guide.marginals()
    torch.testing.assert_close(loc, z.mean(0))
    torch.testing.assert_close(sds, ((z - z.mean(0)).square().sum(0) / (len(z) - 1)).sqrt())


def test_entries_without_spread_keep_their_scales() -> None:
    oracle = linear_gaussian()
    z = torch.randn(1, 6, 4, generator=torch.Generator().manual_seed(0)).double()
    z[..., 2] = 1.0
    init = DrawsPosterior(program_of(oracle), z, Provenance("Made", "none"))
    guide = started(functools.partial(AutoNormal, init_scale=0.2), init, oracle)
    expected = z[0].std(0)
    expected[2] = 0.2
    torch.testing.assert_close(guide.scale.detach(), expected)
    one = DrawsPosterior(program_of(oracle), z[:, :1], Provenance("Made", "none"))
    guide = started(functools.partial(AutoNormal, init_scale=0.2), one, oracle)
    torch.testing.assert_close(guide.loc.detach(), z[0, 0])
    torch.testing.assert_close(guide.scale.detach(), torch.full((4,), 0.2).double())


# Stage after stage


@pytest.mark.slow("a second or more")
def test_from_an_estimate_over_mean_field_and_low_rank_to_nuts() -> None:
    """Each stage starts at the one before and ends at its own optimum, whose ELBO is known."""
    oracle = linear_gaussian()
    data = (oracle.x, oracle.y)
    options: dict[str, Any] = {"num_steps": 600, "learning_rate": 0.02, "num_particles": 8}
    full = functools.partial(guides.AutoLowRankMultivariateNormal, rank=4)
    init: Any = None
    for guide in (AutoDelta, AutoNormal, full):
        svi = SVI(guide, compile=False, **options)
        init = svi.run(oracle.model, data, init=init, progress=False)
    elbo, _ = expected_elbo(init.guide, oracle)
    # though the factor started at 0, where the mean gradient by it is 0, too
    assert oracle.log_evidence - 0.02 < elbo < oracle.log_evidence + 1e-9
    nuts = NUTS(num_chains=2, warmup_steps=1, num_samples=1, compile=False)
    assert nuts.run(oracle.model, data, init=init, progress=False).num_stored_draws == 2


GENERAL = {k: v for k, v in registry.entries("guide").items() if v.needs_model is None}


@pytest.mark.parametrize("guide", GENERAL)
def test_chains_start_at_draws_of_every_guide(guide: str) -> None:
    source, program = made(GENERAL[guide], mlp())
    init = as_posterior(source, program)
    z = starting_points(program, init, 3, 0)
    torch.testing.assert_close(z, init.unconstrained(3, 0), rtol=0, atol=0)


@pytest.mark.parametrize("guide", GENERAL)
def test_every_guide_starts_at_the_mean_of_every_other_kind(guide: str) -> None:
    """A mean-field fit and a full covariance: the mean is theirs."""
    for make in (AutoNormal, AutoMultivariateNormal):
        source, program = made(make, mlp())
        target, _ = made(GENERAL[guide], program.model)
        source.move_to(torch.linspace(-1, 1, source.num_latents).double())
        start_guide(target, program, as_posterior(source, program), 0)
        torch.testing.assert_close(target.centre(), source.centre())


# From a trained network


def network() -> nn.Sequential:
    with torch.random.fork_rng():
        torch.manual_seed(1)
        return nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 1)).double()


@pytest.mark.parametrize(
    ("guide", "is_wrapped"),
    [*((name, False) for name in GENERAL), ("auto-normal", True), ("auto-composite", True)],
)
def test_every_guide_starts_at_a_trained_network(guide: str, is_wrapped: bool) -> None:
    net = network()
    model = models.bayesian(net).double() if is_wrapped else mlp()
    svi = SVI(GENERAL[guide], **STILL)
    posterior: Any = svi.run(model, (X, Y), init=net, progress=False)
    f = posterior.program.function(posterior.guide.centre(), X, posterior.params)
    torch.testing.assert_close(f, net(X).detach(), rtol=0, atol=1e-9)


@pytest.mark.parametrize("guide", [AutoNormal, guides.AutoComposite])
def test_so_it_does_under_a_hierarchical_prior(guide: Any) -> None:
    net, model = network(), mlp(prior=priors.HalfCauchyScale(per="unit"))
    posterior: Any = SVI(guide, **STILL).run(model, (X, Y), init=net, progress=False)
    f = posterior.program.function(posterior.guide.centre(), X, posterior.params)
    torch.testing.assert_close(f, net(X).detach(), rtol=1e-6, atol=1e-6)


# Other models


def test_a_posterior_of_another_network_is_refused() -> None:
    source, program = made(AutoNormal, mlp())
    init = as_posterior(source, program)
    other = Program(mlp(activation="tanh"), X, Y)
    guide, _ = made(AutoNormal, other.model)
    with pytest.raises(SiteError, match="its network has other outputs at the same weights"):
        start_guide(guide, other, init, 0)
    with pytest.raises(SiteError, match="its network has other outputs at the same weights"):
        starting_points(other, init, 2, 0)
    slightly = Program(mlp(activation=lambda h: 1.01 * h.relu()), X, Y)
    with pytest.raises(SiteError, match="its network has other outputs at the same weights"):
        starting_points(slightly, init, 2, 0)
    wider = models.MLP(3, hidden=(5,)).double()
    with pytest.raises(
        SiteError, match=r"init is a posterior over .* \(4, 3\).* model has .* \(5, 3"
    ):
        SVI(AutoNormal, **STILL).run(wider, (X, Y), init=init, progress=False)


def test_another_prior_likelihood_and_data_are_not() -> None:
    source, program = made(AutoNormal, mlp())
    init = as_posterior(source, program)
    model = mlp(prior=priors.Normal(3.0))
    guide, _ = made(AutoNormal, model)
    start_guide(guide, Program(model, 2 * X[:5], Y[:5]), init, 0)
    torch.testing.assert_close(guide.sample(3), source.sample(3), rtol=0, atol=0)


def test_the_exact_posterior_stays_where_it_is() -> None:
    oracle = linear_gaussian()
    source = multivariate_normal(oracle, oracle.mean, oracle.covariance)
    guide = started(AutoMultivariateNormal, as_posterior(source, program_of(oracle)), oracle)
    elbo, _ = expected_elbo(guide, oracle)
    assert math.isclose(elbo, oracle.log_evidence, rel_tol=1e-12)


def test_low_rank_takes_the_strongest_directions_of_any_gaussian() -> None:
    """The best independent Gaussians, and in R directions of these units the whole spread."""
    oracle = linear_gaussian()
    source = multivariate_normal(oracle, oracle.mean, oracle.covariance)
    d = oracle.precision.diagonal().rsqrt()
    values = torch.linalg.eigvalsh(oracle.precision * d * d.unsqueeze(-1))
    for rank in (0, 1, 2):
        low_rank = functools.partial(guides.AutoLowRankMultivariateNormal, rank=rank)
        guide = started(low_rank, as_posterior(source, program_of(oracle)), oracle)
        elbo, _ = expected_elbo(guide, oracle)
        gain = 0.5 * float((values[:rank] - 1 - values[:rank].log()).sum())
        best = oracle.log_evidence - oracle.mean_field_gap
        assert elbo == pytest.approx(best + gain, rel=1e-9)


def test_so_it_does_layer_by_layer() -> None:
    oracle = layered()
    source = multivariate_normal(oracle, oracle.mean, oracle.covariance)
    guide = started(CONTAIN["low rank by layer"], as_posterior(source, program_of(oracle)), oracle)
    P, own = oracle.precision, guide.get_posterior().covariance_matrix
    for entries in ([0, 2], [1, 3]):
        block = P[entries][:, entries]
        d = block.diagonal().rsqrt()
        values, vectors = torch.linalg.eigh(block * d * d.unsqueeze(-1))
        v = vectors[:, :1] * d.unsqueeze(-1)
        expected = d.square().diag() + (1 / values[0] - 1) * v @ v.T
        torch.testing.assert_close(own[entries][:, entries], expected)


@pytest.mark.parametrize("kind", ["diagonal", "low_rank"])
def test_the_first_mass_matrix_is_that_of_the_gaussian_that_chains_start_at(
    kind: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    r""":math:`s_j^2 = \sqrt{\Sigma_{jj} / P_{jj}}`, as draws and gradients have these variances."""
    oracle, found = linear_gaussian(), list[Mass]()

    def noted(*args: Any, **options: Any) -> Mass:
        found.append(first_mass(*args, **options))
        return found[-1]

    monkeypatch.setattr(hamiltonian, "first_mass", noted)
    source = multivariate_normal(oracle, oracle.mean, oracle.covariance)
    nuts = NUTS(num_chains=2, warmup_steps=1, num_samples=1, mass_matrix=kind, compile=False)
    init = as_posterior(source, program_of(oracle))
    nuts.run(oracle.model, (oracle.x, oracle.y), init=init, progress=False)
    (mass,) = found
    expected = (oracle.covariance.diagonal() / oracle.precision.diagonal()) ** 0.25
    ratio = (mass.scale / expected).log()
    # a quarter of the difference of two log variances of 200 draws
    assert float(ratio.abs().max()) < 5 * math.sqrt(2 * 2 / 200) / 4


def test_chains_that_start_at_a_mixture_do_not_take_its_spread() -> None:
    """It is the distance of the components."""
    oracle = linear_gaussian()
    program = program_of(oracle)
    target = of_one(program, program.batch(oracle.x, oracle.y))
    mixture = at(guides.AutoNormalMixture(oracle.model), oracle)
    assert known_before(target, as_posterior(mixture, program), 0) is None
    assert known_before(target, None, 0) is None
    delta = at(AutoDelta(oracle.model), oracle, loc=LOC)
    assert known_before(target, as_posterior(delta, program), 0) is None
