r"""AutoRadial against integrals over the sphere, closed forms and the linear-Gaussian model.

.. math:: w = \mu + \sigma \circ \frac{\epsilon}{\|\epsilon\|} \, r, \quad
          \epsilon \sim \mathcal N(0, I_D), \; r \sim \mathcal N(0, 1)

Its covariance is :math:`\mathrm{diag}(\sigma^2 / D)`, so that the best expected log joint of linear
regression, which depends on moments alone, is that of the best independent Gaussians:
:math:`\sigma_i^2 = D / \Lambda_{ii}`. The ELBO is lower by the difference of the entropies.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from scipy import integrate, special, stats
from torch import Tensor

from pyro_bnn import SVI
from pyro_bnn.errors import OptionError, SiteError
from pyro_bnn.guides import AutoRadial
from pyro_bnn.guides.radial import Radial, standard_cdf, standard_quantiles
from pyro_bnn.program import Program
from tests.guides.exact import at
from tests.laws import MixedModel, assert_mean, made, objective, one, problem
from tests.oracle import LinearGaussian, linear_gaussian

NUM_DRAWS = 20_000
EULER_GAMMA = 0.5772156649015329


def radial(*sizes: int) -> Radial:
    """A distribution of these sizes, of means and scales that all differ, in float64."""
    total = sum(sizes)
    loc = torch.linspace(-1, 2, total).double()
    return Radial(loc, torch.linspace(0.3, 1.7, total).double(), sizes)


def draws(q: Radial, num_draws: int = NUM_DRAWS, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    size = num_draws, len(q.loc) + len(q.sizes)
    return q.draws(torch.randn(size, generator=generator, dtype=torch.float64))


def standard_entropy(size: int) -> float:
    """Entropy at scale 1, as derived for the paper's family."""
    surface = math.log(2) + size / 2 * math.log(math.pi) - math.lgamma(size / 2)
    radius = 0.5 - 0.5 * math.log(2 / math.pi)
    return radius + surface - (size - 1) * (EULER_GAMMA + math.log(2)) / 2


# The family


def test_in_one_dimension_it_is_the_standard_normal() -> None:
    q = Radial(torch.zeros(1).double(), torch.ones(1).double(), [1])
    normal = torch.distributions.Normal(one(0.0), one(1.0))
    torch.testing.assert_close(q.entropy(), normal.entropy(), rtol=1e-14, atol=0)
    z = torch.linspace(-4, 4, 9).double()  # 0 included
    torch.testing.assert_close(q.log_prob(z[:, None]), normal.log_prob(z), rtol=1e-14, atol=0)
    distance = stats.kstest(draws(q, 5_000)[:, 0].numpy(), stats.norm.cdf)
    assert distance.pvalue > 1e-4


@pytest.mark.parametrize("size", [1, 2, 3])
def test_the_density_integrates_to_one_and_its_mean_logarithm_is_the_entropy(size: int) -> None:
    """Over ellipsoids around the mean: dw = prod(sigma) rho^(D-1) d rho d direction."""
    q = radial(size)
    nodes, weights = np.polynomial.legendre.leggauss(100)
    t = torch.from_numpy(0.5 * (nodes + 1))
    rho = 10 * t**3  # 0 to 10, most nodes where the logarithm is steep
    rho_weight = 15 * t**2 * torch.from_numpy(weights)
    if size == 1:
        directions, area = torch.tensor([[1.0], [-1.0]]).double(), torch.ones(2).double()
    else:
        angle = torch.arange(40).double() * 2 * math.pi / 40
        circle = torch.stack([angle.cos(), angle.sin()], -1)
        directions, area = circle, torch.ones(40).double() * 2 * math.pi / 40
        if size == 3:
            height = torch.from_numpy(nodes)[:, None, None].expand(-1, 40, 1)
            ring = (1 - height.square()).sqrt() * circle
            directions = torch.cat([ring, height], -1).flatten(0, 1)
            area = torch.outer(torch.from_numpy(weights), area).flatten()
    w = q.loc + q.scale * rho[:, None, None] * directions  # [R, A, D]
    volume = q.scale.prod() * (rho_weight * rho ** (size - 1))[:, None] * area
    log_prob = q.log_prob(w)
    torch.testing.assert_close((log_prob.exp() * volume).sum(), one(1.0), rtol=1e-12, atol=0)
    negative_entropy = (log_prob.exp() * log_prob * volume).sum()
    torch.testing.assert_close(-negative_entropy, q.entropy(), rtol=1e-6, atol=0)


@pytest.mark.parametrize("size", [1, 2, 3, 10, 1_000])
def test_the_entropy_is_that_of_the_radius_and_of_the_sphere(size: int) -> None:
    q = radial(size)
    expected = float(q.scale.log().sum()) + standard_entropy(size)
    assert float(q.entropy()) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("sizes", [(1,), (2,), (7,), (100,), (3, 1, 5)])
def test_moments_of_draws(sizes: tuple[int, ...]) -> None:
    q = radial(*sizes)
    z = draws(q)
    assert_mean(z, q.loc)
    of_entry = torch.cat([torch.full((D,), D).double() for D in sizes])
    variance = q.scale.square() / of_entry
    torch.testing.assert_close(q.variance, variance, rtol=1e-12, atol=0)
    assert_mean((z - q.loc).square(), variance)
    u = ((z - q.loc) / q.scale).split(list(sizes), -1)
    assert_mean(torch.stack([part.square().sum(-1) for part in u], -1), 1.0)
    assert_mean(u[0][:, 0] * u[-1][:, -1], float(variance[0] / q.scale[0] ** 2) * (sizes == (1,)))
    if len(sizes) > 1:  # radii are independent
        assert_mean(u[0].square().sum(-1) * u[2].square().sum(-1), 1.0)


def test_a_draw_has_the_radius_of_its_noise_in_each_site() -> None:
    q = radial(3, 1, 5)
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn(50, 12, generator=generator, dtype=torch.float64)
    u = ((q.draws(noise) - q.loc) / q.scale).split([3, 1, 5], -1)
    radii = torch.stack([part.norm(dim=-1) for part in u], -1)
    torch.testing.assert_close(radii, noise[:, 9:].abs(), rtol=1e-12, atol=0)
    directions = noise[:, :9].split([3, 1, 5], -1)
    cosines = [torch.cosine_similarity(a, b) for a, b in zip(u, directions, strict=True)]
    torch.testing.assert_close(torch.stack(cosines, -1), noise[:, 9:].sign(), rtol=1e-12, atol=0)


def test_the_density_at_the_mean_is_infinite_but_of_one_entry() -> None:
    for sizes, expected in (((2,), math.inf), ((3, 1), math.inf), ((1, 1), None)):
        q = radial(*sizes)
        value = float(q.log_prob(q.loc))
        normal = torch.distributions.Normal(q.loc, q.scale).log_prob(q.loc).sum()
        assert value == (pytest.approx(float(normal)) if expected is None else expected)


def test_noise_without_a_direction_gives_the_mean() -> None:
    q = radial(3, 1)
    noise = torch.tensor([0.0, 0, 0, 0, 1.3, -0.4]).double()
    torch.testing.assert_close(q.draws(noise), q.loc, rtol=0, atol=0)


# Marginals


def test_marginals_and_quantiles_of_one_entry_are_normal() -> None:
    levels = torch.tensor([0.0, 1e-6, 0.3, 0.5, 0.975, 1.0]).double()
    expected = torch.from_numpy(stats.norm.ppf(levels.numpy()))
    torch.testing.assert_close(standard_quantiles(levels, 1), expected, rtol=1e-10, atol=1e-14)


def test_the_marginal_in_three_dimensions_has_an_exponential_integral_as_density() -> None:
    """A coordinate of a direction is uniform there (Archimedes)."""

    def density(x: float) -> float:
        return float(special.exp1(x * x / 2) / (2 * math.sqrt(2 * math.pi)))

    for x in (0.01, 0.3, 1.0, 2.5):
        below = 0.5 + integrate.quad(density, 0, x, epsabs=1e-12)[0]
        assert float(standard_cdf(one(x), 3)) == pytest.approx(below, abs=1e-7)
        assert float(standard_cdf(one(-x), 3)) == pytest.approx(1 - below, abs=1e-7)


@pytest.mark.parametrize("size", [2, 4, 5, 50, 100_000])
def test_the_marginal_is_a_mixture_of_normals_of_beta_variances(size: int) -> None:
    beta = stats.beta(0.5, (size - 1) / 2)
    levels = torch.tensor([1e-4, 0.1, 0.4, 0.5, 0.9]).double()
    for level, quantile in zip(levels.tolist(), standard_quantiles(levels, size), strict=True):

        def below(share: float, x: float = float(quantile)) -> float:
            return float(stats.norm.cdf(x / math.sqrt(beta.ppf(share))))

        found = integrate.quad(below, 0, 1, epsabs=1e-8, limit=500)[0]
        assert found == pytest.approx(level, abs=2e-6)


def test_quantiles_of_sites_are_in_their_own_shapes_and_units() -> None:
    guide = AutoRadial(MixedModel())
    guide.setup(torch.zeros(2, 3).double())
    guide.to(torch.float64)
    with torch.no_grad():
        guide.loc.copy_(torch.linspace(-1, 1, 11))
    guide.scale = torch.linspace(0.3, 1.3, 11).double()
    sigma = guide.scale.detach() * math.sqrt(3)
    quantiles = guide.quantiles([0.5, 0.9])
    assert quantiles["w"].shape == (2, 3, 1)
    of_three = float(standard_quantiles(torch.tensor([0.9]).double(), 3))
    torch.testing.assert_close(quantiles["w"][0, :, 0], guide.loc[:3].detach())
    upper = (guide.loc.detach() + of_three * sigma)[:3]
    torch.testing.assert_close(quantiles["w"][1, :, 0], upper)
    normal = torch.distributions.Normal(guide.loc[3], guide.scale[3])  # log of "noise", one entry
    torch.testing.assert_close(quantiles["noise"][1], normal.icdf(one(0.9)).exp().detach())
    torch.testing.assert_close(guide.median()["gain"], guide.loc[9:].detach().exp())
    z = guide.sample(NUM_DRAWS)[:, :3]
    below = (z < upper).double()
    assert_mean(below, 0.9)


# Divergences


def test_a_gaussian_of_the_same_moments_has_more_entropy_by_a_constant_an_entry() -> None:
    q = radial(100_000)
    normal = torch.distributions.Normal(q.mean, q.stddev).entropy().sum()
    gap = float(normal - q.entropy()) / 100_000
    assert gap == pytest.approx((EULER_GAMMA + math.log(2)) / 2, abs=1e-4)
    assert round(gap, 2) == 0.64  # as the docstring says


def kl_by_hand(loc: Tensor, scale: Tensor, sizes: Sequence[int], prior_scale: float) -> float:
    """Cross-entropy to N(0, s^2) less the entropy, site by site."""
    total = 0.0
    for m, s, D in zip(loc.split(list(sizes)), scale.split(list(sizes)), sizes, strict=True):
        squared = float(m.square().sum() + s.square().sum() / D)
        cross = D / 2 * math.log(2 * math.pi * prior_scale**2) + squared / (2 * prior_scale**2)
        total += cross - float(s.log().sum()) - standard_entropy(D)
    return total


def test_kl_from_gaussian_priors_is_closed() -> None:
    oracle = linear_gaussian()
    guide = AutoRadial(oracle.model)
    loc = torch.tensor([0.3, -1.2, 0.7, 0.1]).double()
    scale = torch.tensor([0.2, 1.5, 0.05, 0.6]).double()
    at(guide, oracle, loc=loc, scale=scale)
    sigma = scale * torch.tensor([3.0, 3, 3, 1]).double().sqrt()
    value, exact = guide.kl()
    assert exact
    assert value == pytest.approx(kl_by_hand(loc, sigma, [3, 1], oracle.prior_scale), rel=1e-12)


def laplace(x: Tensor) -> None:
    pyro.sample("w", dist.Laplace(one(0.0), one(0.7)).expand([3, 2]).to_event(2))


def test_kl_from_other_priors_is_an_average_over_draws() -> None:
    guide = AutoRadial(laplace, init_loc_fn=lambda site: torch.zeros_like(site["value"]))
    guide.setup(torch.zeros(1, 3))
    guide.to(torch.float64)
    guide.scale = torch.full((6,), 2.0).double() / math.sqrt(6)  # sigma is 2
    value, exact = guide.kl(num_draws=NUM_DRAWS)
    assert not exact
    # E|r| E|a direction's first coordinate|
    folded = math.sqrt(2 / math.pi) * math.gamma(3) / (math.sqrt(math.pi) * math.gamma(3.5))
    expected = 6 * (2 * folded / 0.7 + math.log(1.4)) - 6 * math.log(2.0) - standard_entropy(6)
    z = guide.sample(NUM_DRAWS)
    error = float(z.abs().sum(-1).std()) / 0.7 / math.sqrt(NUM_DRAWS)
    assert abs(value - expected) < 4 * error
    normal = 6 * 2 / math.sqrt(6) * math.sqrt(2 / math.pi) / 0.7  # of a Gaussian of these moments
    assert abs(normal - 6 * 2 * folded / 0.7) > 30 * error


# The optimum


def radial_points(sizes: Sequence[int]) -> Tensor:
    r"""Noise ``[n, P + K]`` over which the mean of quadratics is their expectation.

    Directions are unit vectors and radii -1 and 1: :math:`E\,w w^\top` is exact.
    """
    eyes = [torch.eye(D, dtype=torch.float64) for D in sizes]
    signs = itertools.product((-1.0, 1.0), repeat=len(sizes))
    rows = itertools.product(itertools.product(*eyes), signs)
    return torch.stack([torch.cat([*eps, torch.tensor(r).double()]) for eps, r in rows])


def expected_elbo(guide: AutoRadial, oracle: LinearGaussian) -> tuple[float, list[Tensor]]:
    """Exact ELBO of a guide on the oracle, and its gradient by every parameter."""
    program = Program(oracle.model, oracle.x, oracle.y)
    _, evaluate = objective(guide, program, captured=False)
    loss, *gradients = evaluate(radial_points([3, 1]), program.batch(oracle.x, oracle.y))
    return -float(loss), [-gradient for gradient in gradients]


def entropy_gap(sizes: Sequence[int]) -> float:
    """What the entropy of a Gaussian of the same moments is larger by."""
    return sum(
        D / 2 * math.log(2 * math.pi * math.e / D) - standard_entropy(D) for D in sizes
    )  # at scale 1, whose variances are 1/D


def test_elbo_of_any_parameters_is_the_closed_form() -> None:
    oracle = linear_gaussian()
    loc = torch.tensor([0.3, -1.2, 0.7, 0.1]).double()
    scale = torch.tensor([0.2, 1.5, 0.05, 0.6]).double()
    guide = AutoRadial(oracle.model)
    at(guide, oracle, loc=loc, scale=scale)
    elbo, _ = expected_elbo(guide, oracle)
    expected = oracle.elbo(loc, scale.square().diag()) - entropy_gap([3, 1])
    assert elbo == pytest.approx(expected, rel=1e-12)


def test_exact_means_and_mean_field_variances_are_the_optimum() -> None:
    oracle = linear_gaussian()
    guide = AutoRadial(oracle.model)
    at(guide, oracle, loc=oracle.mean, scale=oracle.mean_field_variance.sqrt())
    elbo, gradients = expected_elbo(guide, oracle)
    for gradient in gradients:
        torch.testing.assert_close(gradient, torch.zeros_like(gradient), rtol=0, atol=1e-9)
    gap = oracle.mean_field_gap + entropy_gap([3, 1])
    assert entropy_gap([3, 1]) > 0.3  # of all with these moments the Gaussian's is the largest
    assert elbo == pytest.approx(oracle.log_evidence - gap, rel=1e-12)


@pytest.mark.slow("a second or more")
def test_svi_reaches_the_optimum() -> None:
    oracle = linear_gaussian()
    guide = AutoRadial(oracle.model)
    engine = SVI(guide, num_steps=2_000, learning_rate=0.02, num_particles=16, schedule="cosine")
    engine.run(oracle.model, (oracle.x, oracle.y), progress=False)
    mean, sd = (value.detach() for value in guide.marginals())
    best = oracle.mean_field_variance.sqrt()
    zero = torch.zeros_like(best)
    # hundredths of a standard deviation are what gradient noise leaves at the last steps
    torch.testing.assert_close((mean - oracle.mean) / best, zero, rtol=0, atol=0.05)
    torch.testing.assert_close(sd / best - 1, zero, rtol=0, atol=0.05)
    elbo, _ = expected_elbo(guide, oracle)
    top = oracle.log_evidence - oracle.mean_field_gap - entropy_gap([3, 1])
    assert top - 0.005 < elbo < top + 1e-9


# Parameters


def test_init_scale_is_the_first_sd_and_that_of_the_papers_sigma_over_root_d() -> None:
    guide = AutoRadial(linear_gaussian().model, init_scale=0.25)
    guide.setup(torch.zeros(2, 3).double())
    torch.testing.assert_close(guide.scale.detach(), torch.full((4,), 0.25).double())
    sigma = torch.tensor([math.sqrt(3)] * 3 + [1.0]).double() * 0.25
    q = guide.get_posterior()
    torch.testing.assert_close(q.scale.detach(), sigma)
    torch.testing.assert_close(q.stddev.detach(), guide.marginals()[1].detach())
    assert guide.options() == {"init_scale": 0.25}


def test_given_sds_are_those_of_the_draws() -> None:
    guide = made(AutoRadial, problem("mixed"))
    sds = torch.linspace(0.2, 1.2, 11).double()
    guide.set_sds(sds)
    assert_mean((guide.sample(NUM_DRAWS) - guide.loc.detach()).square(), sds.square())


def test_its_distribution_draws_and_has_gradients() -> None:
    guide = made(AutoRadial, problem("mixed"))
    q = guide.get_posterior()
    z = q.rsample(torch.Size([2, 3]))
    assert z.shape == (2, 3, 11)
    torch.testing.assert_close(q.log_prob(z), guide.log_prob(z), rtol=0, atol=0)
    torch.testing.assert_close(q.mean, guide.loc)
    (gradient,) = torch.autograd.grad(z.sum(), [guide.loc])
    torch.testing.assert_close(gradient, torch.full((11,), 6.0).double())


def test_before_setup_it_says_what_to_do() -> None:
    guide = AutoRadial(linear_gaussian().model)
    text = r"AutoRadial has no parameters yet: call guide.setup\(x\)"
    for call in (guide.entropy, guide.get_posterior, lambda: guide.sample(2)):
        with pytest.raises(SiteError, match=text):
            call()


@pytest.mark.parametrize("init_scale", [0, -0.1, math.inf, math.nan, "wide"])
def test_init_scale_has_to_be_positive(init_scale: float) -> None:
    with pytest.raises(OptionError, match="init_scale is a positive standard deviation, not"):
        AutoRadial(linear_gaussian().model, init_scale=init_scale)
