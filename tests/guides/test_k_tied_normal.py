r"""AutoKTiedNormal: a mean-field Gaussian whose matrices of standard deviations are of rank k.

Linear regression with several outputs has an optimum of this family: without a bias, the best
independent variances :math:`1 / (X^\top X / \sigma^2 + I / \tau^2)_{jj}` are the same in each row
of W, and so the best standard deviations are a matrix of rank 1.
"""

from __future__ import annotations

from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer import TraceMeanField_ELBO
from torch import Tensor, nn

from pyro_bnn import SVI, likelihoods, models, priors
from pyro_bnn.errors import OptionError, SiteError
from pyro_bnn.guides import AutoKTiedNormal, AutoNormal
from tests.guides.exact import assert_stationary, assert_svi_reaches, at, expected_elbo
from tests.guides.test_matrix_normal import positive_model, several_outputs
from tests.laws import MatrixModel, MixedModel, made, objective, one, problem
from tests.oracle import linear_gaussian


def network(**options: Any) -> AutoKTiedNormal:
    """A guide over a network 5-4-3-2, with random factors; z is in float64."""
    likelihood = likelihoods.Normal(0.5)
    model = models.MLP(5, 2, hidden=(4, 3), prior=priors.Normal(0.75), likelihood=likelihood)
    model.double()
    guide = AutoKTiedNormal(model, **options)
    guide.setup(torch.zeros(1, 5).double())
    with torch.no_grad():
        for parameter in guide.parameters():
            parameter.add_(torch.randn_like(parameter))
    return guide


def convolutions() -> AutoKTiedNormal:
    """A guide over a net with filters [4, 3, 2, 2] and a matrix [2, 16]."""
    net = nn.Sequential(nn.Conv2d(3, 4, 2), nn.Tanh(), nn.Flatten(), nn.Linear(16, 2))
    model = models.bayesian(net, priors.Normal(0.75), likelihoods.Normal(0.5)).double()
    guide = AutoKTiedNormal(model)
    guide.setup(torch.zeros(1, 3, 3, 3).double())
    with torch.no_grad():
        for parameter in guide.parameters():
            parameter.add_(torch.randn_like(parameter))
    return guide


def scales_by_site(guide: AutoKTiedNormal) -> dict[str, Tensor]:
    """Standard deviations of each site, in its shape, as the marginals say."""
    assert guide.latents is not None
    return {s.name: s.unconstrained(guide.marginals()[1].detach()) for s in guide.latents.sites}


# The family


@pytest.mark.parametrize("rank", [1, 2, 3])
def test_the_matrix_of_standard_deviations_is_of_rank_k(rank: int) -> None:
    guide = network(rank=rank)
    sds = scales_by_site(guide)["layers.0.weight"]
    assert sds.shape == (4, 5)
    singular = torch.linalg.svdvals(sds)
    assert float(singular[rank - 1] / singular[0]) > 1e-3
    assert float(singular[rank] / singular[0]) < 1e-14


@pytest.mark.parametrize("make", [network, convolutions])
def test_the_scales_of_each_site_are_the_product_of_its_own_factors(make: Any) -> None:
    guide = make()
    factors, sds = guide.scale_factors(), scales_by_site(guide)
    for name, (A, B) in factors.items():
        assert bool((A > 0).all())
        assert bool((B > 0).all())
        expected = torch.einsum("ok,ik->oi", A, B)
        torch.testing.assert_close(sds.pop(name).flatten(1), expected, rtol=1e-12, atol=0)
    others = torch.cat([sd.flatten() for sd in sds.values()])
    torch.testing.assert_close(others, guide.other_scale.detach(), rtol=0, atol=0)


def test_matrices_of_one_shape_have_factors_of_their_own() -> None:
    guide = made(AutoKTiedNormal, problem("matrix"))
    assert isinstance(guide, AutoKTiedNormal)
    factors = guide.scale_factors()
    assert [(name, *A.shape, *B.shape) for name, (A, B) in factors.items()] == [
        ("encode", 2, 2, 3, 2),
        ("skip", 2, 2, 3, 2),
        ("decode", 3, 2, 2, 2),
    ]
    expected = {name: A @ B.mT for name, (A, B) in factors.items()}
    noise, *offset = guide.other_scale.detach().unbind()
    expected |= {"noise": noise, "offset": torch.stack(offset).reshape(1, 2)}
    for name, sds in scales_by_site(guide).items():
        torch.testing.assert_close(sds, expected[name], rtol=1e-12, atol=0, msg=name)


def test_filters_are_a_matrix_of_a_row_for_each_output_channel() -> None:
    shapes = {name: (*A.shape, *B.shape) for name, (A, B) in convolutions().scale_factors().items()}
    assert shapes == {"0.weight": (4, 2, 12, 2), "3.weight": (2, 2, 16, 2)}


@pytest.mark.parametrize("make", [network, convolutions])
def test_kl_is_that_of_independent_gaussians_of_these_scales(make: Any) -> None:
    guide = make()
    value, exact = guide.kl()
    assert exact
    factors = guide.scale_factors()
    assert guide.latents is not None
    sites = guide.latents.sites
    others = guide.other_scale.split(
        [s.shape.numel() for s in sites if s.name not in factors]
    )  # in the order of z
    parts = iter(others)
    sd = torch.cat(
        [
            torch.mm(factors[s.name][0], factors[s.name][1].T).flatten()
            if s.name in factors
            else next(parts)
            for s in sites
        ]
    )
    normal = torch.distributions.Normal
    with torch.no_grad():
        q, prior = normal(guide.loc, sd), normal(torch.zeros_like(guide.loc), 0.75)
        expected = torch.distributions.kl_divergence(q, prior).sum()
    assert value == pytest.approx(float(expected), rel=1e-12)


def test_the_number_of_parameters_is_that_of_the_family() -> None:
    """A matrix [m, n] has m n means and k (m + n) numbers for its scales."""
    guide = AutoKTiedNormal(models.MLP(10, hidden=(50, 40)), rank=3)
    guide.setup(torch.zeros(1, 10))
    matrices = 10 * 50 + 3 * (10 + 50) + 50 * 40 + 3 * (50 + 40)
    others = 2 * (50 + 40 + 40 + 1 + 1)  # biases, the single output's row and bias, the noise
    assert sum(p.numel() for p in guide.parameters()) == matrices + others


def test_stock_mean_field_elbo_finds_the_closed_form_kl() -> None:
    def prior_only(x: Tensor) -> None:
        prior = dist.Normal(one(0.0), one(1.3))
        pyro.sample("w", prior.expand([2, 3]).to_event(2))
        pyro.sample("b", prior.expand([2]).to_event(1))

    x = torch.zeros(1, 3).double()
    guide = AutoKTiedNormal(prior_only, init_scale=0.4)
    guide.setup(x)
    losses = [TraceMeanField_ELBO().loss(prior_only, guide, x) for _ in range(5)]
    normal = torch.distributions.Normal
    q = normal(guide.loc.detach(), torch.full_like(guide.loc, 0.4))
    expected = float(torch.distributions.kl_divergence(q, normal(one(0.0), one(1.3))).sum())
    assert losses == pytest.approx([expected] * 5, rel=1e-6)


# The optimum


@pytest.mark.parametrize("rank", [1, 2])
def test_the_best_independent_variances_are_the_optimum_where_they_are_of_rank_one(
    rank: int,
) -> None:
    oracle = several_outputs()
    sds = oracle.mean_field_variance.sqrt().reshape(2, 3)
    torch.testing.assert_close(sds[0], sds[1], rtol=1e-12, atol=0)
    shares = torch.tensor([[0.25, 0.75], [0.5, 0.5]]).double() if rank == 2 else sds.new_ones(2, 1)
    columns = sds[0].unsqueeze(-1).expand(3, rank)
    guide = AutoKTiedNormal(oracle.model, rank=rank)
    at(guide, oracle, loc=oracle.mean, row_scale=shares.flatten(), column_scale=columns.flatten())
    assert_stationary(guide, oracle)
    elbo, _ = expected_elbo(guide, oracle)
    assert elbo == pytest.approx(oracle.log_evidence - oracle.mean_field_gap, rel=1e-12)


def test_elbo_of_any_parameters_is_the_closed_form() -> None:
    oracle = several_outputs(bias=True)
    rows = torch.tensor([[0.3, 0.7], [1.6, 0.4]]).double()
    columns = torch.tensor([[0.5, 0.1], [0.2, 0.9], [1.2, 0.3]]).double()
    loc = torch.linspace(-1, 1, 8).double()
    scale = torch.tensor([0.2, 0.7]).double()
    guide = AutoKTiedNormal(oracle.model)
    factors = {"row_scale": rows.flatten(), "column_scale": columns.flatten()}
    at(guide, oracle, loc=loc, other_scale=scale, **factors)
    sd = torch.cat([(rows @ columns.T).flatten(), scale])
    elbo, _ = expected_elbo(guide, oracle)
    assert elbo == pytest.approx(oracle.elbo(loc, sd.square().diag()), rel=1e-12)


@pytest.mark.slow("about a second")
@pytest.mark.parametrize("bias", [False, True])
def test_svi_reaches_the_optimum(bias: bool) -> None:
    oracle = several_outputs(bias=bias)
    best = oracle.mean_field_variance.diag()
    assert_svi_reaches(AutoKTiedNormal(oracle.model), oracle, oracle.mean, best)


def test_estimators_for_independent_gaussians_take_it() -> None:
    """The analytic ELBO of a network is that of AutoNormal at the same scales."""
    x = torch.randn(12, 3).double()
    y = x.sum(1)
    model = models.MLP(3, hidden=(4,), likelihood=likelihoods.Normal(0.5)).double()
    engine: Any = {"estimator": "analytic", "num_steps": 1, "loc_warmup": 0, "compile": False}
    losses = [
        SVI(make(model, init_scale=0.3), **engine).run(model, (x, y), progress=False).losses[0]
        for make in (AutoKTiedNormal, AutoNormal)
    ]
    assert losses[0] == pytest.approx(losses[1], rel=1e-6)


# Parameters and sites


def test_init_scale_is_the_first_sd_and_the_columns_differ() -> None:
    given = problem("matrix")
    guide = AutoKTiedNormal(given.model, init_scale=0.25, rank=3)
    guide.setup(given.x[:1])
    guide.to(torch.float64)
    sd = guide.marginals()[1].detach()
    torch.testing.assert_close(sd, torch.full_like(sd, 0.25), rtol=1e-6, atol=0)
    assert guide.options() == {"init_scale": 0.25, "rank": 3}
    parameters, evaluate = objective(guide, given.program, captured=False)
    rows = given.program.batch(given.x, given.y)
    _, *gradients = evaluate(guide.draw_noise(4), rows)
    for name, gradient in zip(dict(guide.named_parameters()), gradients, strict=True):
        if name == "column_scale_unconstrained":
            by_column = gradient.reshape(-1, 3)
            spread = (by_column.amax(-1) - by_column.amin(-1)) / by_column.abs().amax(-1)
            assert 0.01 < float(spread.min()) < float(spread.max()) < 1
    assert len(parameters) == 4


def test_given_sds_of_rank_k_are_found_and_those_of_other_sites_kept() -> None:
    target, guide = network(), network()
    sds = target.marginals()[1].detach()
    guide.set_sds(sds)
    torch.testing.assert_close(guide.marginals()[1].detach(), sds, rtol=0.02, atol=0)
    names = {s.name: s for s in guide.latents.sites} if guide.latents else {}
    bias = names["layers.0.bias"]
    kept = bias.unconstrained(guide.marginals()[1].detach())
    torch.testing.assert_close(kept, bias.unconstrained(sds), rtol=1e-12, atol=0)


def test_a_positive_matrix_is_no_matrix_and_so_is_it_in_a_loaded_guide() -> None:
    guide = AutoKTiedNormal(positive_model)
    guide.setup(torch.zeros(1, 3))
    assert list(guide.scale_factors()) == ["w"]
    assert guide.other_scale.shape == (6,)
    guide.row_scale = guide.row_scale.detach() * torch.linspace(1, 2, 4)
    fresh = AutoKTiedNormal(positive_model)
    fresh.load_state_dict(guide.state_dict())
    assert list(fresh.scale_factors()) == ["w"]
    torch.testing.assert_close(fresh.sample(5), guide.sample(5), rtol=0, atol=0)


def test_a_model_without_a_matrix_is_refused() -> None:
    x = torch.zeros(2, 3, dtype=torch.float64)
    text = (
        r"AutoKTiedNormal needs a real latent site whose value is a matrix \[O, I\] or filters "
        r"\[O, I, ...\] with O and I above 1; there are w \(3, 1\), b \(1,\): use AutoNormal$"
    )
    with pytest.raises(SiteError, match=text):
        AutoKTiedNormal(linear_gaussian().model).setup(x)
    with pytest.raises(SiteError, match=r"w \(3, 1\), noise \(\) \(not real\)"):
        AutoKTiedNormal(MixedModel()).setup(x)


def test_before_setup_it_says_what_to_do() -> None:
    guide = AutoKTiedNormal(MatrixModel())
    text = r"AutoKTiedNormal has no parameters yet: call guide.setup\(x\)"
    calls: list[Any] = [guide.scale_factors, guide.get_posterior, lambda: guide.sample(2)]
    for call in (*calls, lambda: guide.log_prob(torch.zeros(21))):
        with pytest.raises(SiteError, match=text):
            call()


@pytest.mark.parametrize("rank", [0, -1, 1.5, True, "2"])
def test_rank_has_to_be_a_positive_integer(rank: Any) -> None:
    with pytest.raises(OptionError, match="rank is an integer of at least 1, not"):
        AutoKTiedNormal(MatrixModel(), rank=rank)
