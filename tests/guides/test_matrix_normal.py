r"""AutoMatrixNormal against the exact posterior of linear regression with several outputs.

.. math:: y_n \sim \mathcal N(W x_n + b, \sigma^2 I), \qquad W_{ij}, b_i \sim \mathcal N(0, \tau^2)

Without the bias b, the posterior of W ``[O, I]`` is matrix normal with row covariance I and column
covariance :math:`(X^\top X / \sigma^2 + I / \tau^2)^{-1}`, so that the best ELBO is the log
evidence. With it, W and b are correlated, and the best q(W) q(b) has the inverses of the diagonal
blocks of the precision as covariances. Entries of z are those of W row by row, then b:
:math:`\mathrm{Cov}(z_W) = U \otimes V` is :math:`V \otimes U` of the columns stacked.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any, cast

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer import SVI, Trace_ELBO
from pyro.optim import ClippedAdam
from torch import Tensor
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from pyro_bnn import models
from pyro_bnn.errors import OptionError, SiteError
from pyro_bnn.guides import AutoMatrixNormal
from pyro_bnn.guides.parts.matrices import Layout
from tests.guides.exact import (
    assert_stationary,
    assert_svi_reaches,
    at,
    expected_elbo,
    moments,
    sigma_points,
)
from tests.laws import MatrixModel, MixedModel, assert_mean, made, one, problem
from tests.oracle import LinearGaussian, LinearModel, design, linear_gaussian

NUM_DRAWS = 20_000


class SeveralOutputs(LinearModel):
    """Linear regression with sites ``w`` [O, I] and, if asked for, ``b`` [O]."""

    def __init__(self, num_outputs: int, *, bias: bool, noise: float, prior_scale: float) -> None:
        super().__init__(3, noise, prior_scale)
        self.num_outputs, self.has_bias = num_outputs, bias

    def forward(self, x: Tensor, y: Tensor | None = None) -> Tensor:
        prior = dist.Normal(torch.zeros_like(self.prior_scale), self.prior_scale)
        w = pyro.sample("w", prior.expand([self.num_outputs, self.num_inputs]).to_event(2))
        f = x @ w.T  # [N, O]
        if self.has_bias:
            f = f + pyro.sample("b", prior.expand([self.num_outputs]).to_event(1))
        f = pyro.deterministic("f", f)
        with pyro.plate("data", x.shape[0]):
            sampled: Tensor = pyro.sample("y", dist.Normal(f, self.noise).to_event(1), obs=y)
        return sampled


def several_outputs(num_outputs: int = 2, *, bias: bool = False) -> LinearGaussian:
    """Data, model and exact answers; y ``[N, O]``, inputs I = 3."""
    one_output = linear_gaussian()
    x, noise, prior_scale = one_output.x, one_output.noise, one_output.prior_scale
    a = design(x) if bias else x  # [N, D]
    generator = torch.Generator().manual_seed(1)
    weights = torch.randn(num_outputs, a.shape[1], generator=generator, dtype=torch.float64)
    errors = torch.randn(len(x), num_outputs, generator=generator, dtype=torch.float64)
    y = a @ (prior_scale * weights).T + noise * errors
    eye = torch.eye(num_outputs, dtype=torch.float64)
    order = torch.arange(num_outputs * a.shape[1]).reshape(num_outputs, -1)
    order = torch.cat([order[:, :3].flatten(), order[:, 3:].flatten()])  # W row by row, then b
    precision_of_row = a.T @ a / noise**2 + torch.eye(a.shape[1]).double() / prior_scale**2
    precision = torch.kron(eye, precision_of_row)[order][:, order]
    covariance = torch.linalg.inv(precision)
    marginal = noise**2 * torch.eye(len(x)).double() + prior_scale**2 * a @ a.T
    zero = torch.zeros(len(x)).double()
    evidence = torch.distributions.MultivariateNormal(zero, marginal).log_prob(y.T).sum()
    return dataclasses.replace(
        one_output,
        y=y,
        model=SeveralOutputs(num_outputs, bias=bias, noise=noise, prior_scale=prior_scale),
        precision=precision,
        covariance=(covariance + covariance.T) / 2,
        mean=torch.linalg.solve(precision, (a.T @ y / noise**2).T.flatten()[order]),
        log_evidence=float(evidence),
    )


def blocks_of(oracle: LinearGaussian) -> Tensor:
    """Covariance of the best q(W) q(b): the inverses of the blocks of the precision."""
    num_w = 3 * oracle.y.shape[1]
    blocks = torch.zeros_like(oracle.precision)
    for block in (slice(num_w), slice(num_w, None)):
        blocks[block, block] = oracle.precision[block, block]
    inverse: Tensor = torch.linalg.inv(blocks)
    return inverse


def parameters_of(row: Tensor, column: Tensor) -> dict[str, Tensor]:
    """The guide's parameters of one matrix with covariances U ``[O, O]`` and V ``[I, I]``."""

    def below(tril: Tensor) -> Tensor:
        n = len(tril)
        unit = tril / tril.diagonal().unsqueeze(-1)
        return unit[tuple(torch.tril_indices(n, n, -1))] * 4 * math.sqrt(n)

    A, B = torch.linalg.cholesky(row), torch.linalg.cholesky(column)
    share = B.diagonal().log().mean()  # of B's scale, which A carries
    return {
        "row_scale": A.diagonal() * share.exp(),
        "row_entries": below(A),
        "log_column_scale": B.diagonal().log(),
        "column_entries": below(B),
    }


def some_covariance(size: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    factor = torch.randn(size, size, generator=generator, dtype=torch.float64)
    return factor @ factor.T + 0.3 * torch.eye(size, dtype=torch.float64)


def some_guide(oracle: LinearGaussian) -> tuple[AutoMatrixNormal, Tensor, Tensor]:
    """A guide with given U, V over W and independent b; its mean and dense covariance."""
    num_outputs = oracle.y.shape[1]
    U, V = some_covariance(num_outputs, 2), some_covariance(3, 3)
    mean = torch.linspace(-1, 1, len(oracle.mean), dtype=torch.float64)
    scale = torch.linspace(0.2, 0.7, len(mean) - 3 * num_outputs, dtype=torch.float64)
    guide = AutoMatrixNormal(oracle.model)
    at(guide, oracle, loc=mean, scale=scale, **parameters_of(U, V))
    return guide, mean, torch.block_diag(torch.kron(U, V), scale.square().diag())


# Against dense Gaussians


def test_the_covariance_of_draws_is_the_kronecker_product() -> None:
    guide, mean, covariance = some_guide(several_outputs(bias=True))
    z = guide.sample(NUM_DRAWS)
    assert_mean(z, mean)
    centred = z - mean
    assert_mean((centred.unsqueeze(-1) * centred.unsqueeze(-2)).flatten(1), covariance.flatten())


def test_stacking_columns_gives_v_kron_u() -> None:
    guide, _, _ = some_guide(several_outputs())
    A, B = guide.scale_trils()["w"]
    z = guide.transport(sigma_points(6)).detach() - guide.loc.detach()
    stacked = z.unflatten(-1, (2, 3)).mT.flatten(-2)  # vec W, [2 P, P]
    torch.testing.assert_close(stacked.T @ stacked / len(z), torch.kron(B @ B.T, A @ A.T))


def test_v_has_determinant_one_and_the_diagonals_are_positive() -> None:
    guide = cast(AutoMatrixNormal, made(AutoMatrixNormal, problem("matrix")))
    trils = guide.scale_trils()
    assert [(name, A.shape, B.shape) for name, (A, B) in trils.items()] == [
        ("encode", (2, 2), (3, 3)),
        ("skip", (2, 2), (3, 3)),
        ("decode", (3, 3), (2, 2)),
    ]
    for A, B in trils.values():
        assert bool((A.diagonal() > 0).all())
        assert bool((B.diagonal() > 0).all())
        torch.testing.assert_close(torch.linalg.det(B @ B.T), one(1.0))
        torch.testing.assert_close(A, A.tril(), rtol=0, atol=0)
        torch.testing.assert_close(B, B.tril(), rtol=0, atol=0)


def test_every_matrix_has_factors_of_its_own() -> None:
    """The dense covariance of z, put together site by site from what each one says of itself."""
    guide = cast(AutoMatrixNormal, made(AutoMatrixNormal, problem("matrix")))
    kron = {k: torch.kron(A @ A.T, B @ B.T) for k, (A, B) in guide.scale_trils().items()}
    noise, *offset = guide.scale.detach().square()
    others = noise.reshape(1, 1), torch.stack(offset).diag()
    expected = torch.block_diag(kron["encode"], others[0], kron["skip"], others[1], kron["decode"])
    with torch.no_grad():
        mean, covariance = moments(guide)
    torch.testing.assert_close(mean, guide.loc.detach(), rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(covariance, expected, rtol=1e-10, atol=1e-10)


def test_density_entropy_and_marginals_are_the_dense_ones() -> None:
    guide, mean, covariance = some_guide(several_outputs(bias=True))
    dense = torch.distributions.MultivariateNormal(mean, covariance)
    z = 2 * torch.randn(4, 5, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    q: Any = guide.get_posterior()
    with torch.no_grad():
        expected = dense.log_prob(z)
        torch.testing.assert_close(guide.log_prob(z), expected, rtol=1e-10, atol=1e-10)
        torch.testing.assert_close(q.log_prob(z), expected, rtol=1e-10, atol=1e-10)
        torch.testing.assert_close(guide.entropy(), dense.entropy(), rtol=1e-10, atol=1e-10)
        m, sd = guide.marginals()
    torch.testing.assert_close(m, mean)
    torch.testing.assert_close(sd, covariance.diagonal().sqrt())


def test_its_distribution_draws_and_expands() -> None:
    guide, mean, covariance = some_guide(several_outputs())
    with torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(0)
        q: Any = guide.get_posterior().expand(torch.Size([2]))
        z = q.rsample(torch.Size([NUM_DRAWS]))
        assert z.shape == (NUM_DRAWS, 2, 6)
        torch.testing.assert_close(q.log_prob(z), guide.log_prob(z))  # out of the kept noise
        torch.testing.assert_close(q.log_prob(z.clone()), guide.log_prob(z))
    assert_mean(z, mean)
    assert_mean((z - mean).square(), covariance.diagonal())


def test_density_of_draws_under_vmap() -> None:
    guide = made(AutoMatrixNormal, problem("matrix"))
    noise = guide.draw_noise(6, torch.Generator().manual_seed(0))
    with torch.no_grad():
        z = torch.func.vmap(guide.transport)(noise)
        torch.testing.assert_close(z, guide.transport(noise), rtol=1e-12, atol=1e-12)
        each = torch.func.vmap(guide.log_prob)(z)
        torch.testing.assert_close(each, guide.log_prob(z), rtol=1e-12, atol=1e-12)


def test_everything_is_made_on_the_device_of_the_parameters() -> None:
    guide = made(AutoMatrixNormal, problem("matrix")).to(device="meta")
    z = guide.transport(torch.zeros(5, 21, dtype=torch.float64, device="meta"))
    marginals = guide.marginals()
    assert marginals is not None
    for value in (z, guide.log_prob(z), guide.entropy(), *marginals):
        assert isinstance(value, Tensor)
        assert value.device.type == "meta"


# Divergence from the prior


@pytest.mark.parametrize("bias", [False, True])
def test_kl_is_the_closed_form_of_torch(bias: bool) -> None:
    oracle = several_outputs(bias=bias)
    guide, mean, covariance = some_guide(oracle)
    normal = torch.distributions.MultivariateNormal
    tau2 = oracle.prior_scale**2
    prior = normal(torch.zeros_like(mean), tau2 * torch.eye(len(mean)).double())
    value, exact = guide.kl()
    assert exact
    expected = float(torch.distributions.kl_divergence(normal(mean, covariance), prior))
    assert value == pytest.approx(expected, rel=1e-10)


def test_kl_is_the_closed_form_of_the_paper() -> None:
    """1/2 [ trU trV / s^2 + |M|^2 / s^2 - mn - n log|U| - m log|V| + mn log s^2 ]."""
    oracle = several_outputs()
    guide, mean, _ = some_guide(oracle)
    U, V, s2 = some_covariance(2, 2), some_covariance(3, 3), oracle.prior_scale**2
    spread = (U.trace() * V.trace() + mean.square().sum()) / s2
    expected = 0.5 * (spread - 6 - 3 * U.logdet() - 2 * V.logdet() + 6 * math.log(s2))
    assert guide.kl()[0] == pytest.approx(float(expected), rel=1e-10)


def laplace_model(x: Tensor) -> None:
    pyro.sample("w", dist.Laplace(one(0.2), one(0.7)).expand([2, 3]).to_event(2))


def test_kl_from_a_laplace_prior_is_exact() -> None:
    guide, mean, covariance = some_guide(several_outputs())
    other = AutoMatrixNormal(laplace_model)
    other.setup(torch.zeros(1, 3))
    other.load_state_dict(guide.state_dict())
    value, exact = other.kl()
    assert exact
    # E|w - 0.2| of each entry by the trapezoidal rule, on the two smooth halves
    sd = covariance.diagonal().sqrt()
    grid = torch.linspace(0, 1, 200_001, dtype=torch.float64)
    total = 0.0
    for m, s in zip(mean.tolist(), sd.tolist(), strict=True):
        normal = torch.distributions.Normal(one(m), one(s))
        for low, high in ((m - 12 * s, 0.2), (0.2, m + 12 * s)):
            points = low + (high - low) * grid
            density = normal.log_prob(points).exp()
            total += float(torch.trapezoid((points - 0.2).abs() * density, points))
    log_prior = -total / 0.7 - 6 * math.log(1.4)
    entropy = float(torch.distributions.MultivariateNormal(mean, covariance).entropy())
    assert value == pytest.approx(-entropy - log_prior, rel=1e-8)


# The optimum


@pytest.mark.parametrize("bias", [False, True])
def test_elbo_of_any_parameters_is_the_closed_form(bias: bool) -> None:
    oracle = several_outputs(bias=bias)
    guide, mean, covariance = some_guide(oracle)
    elbo, _ = expected_elbo(guide, oracle)
    assert elbo == pytest.approx(oracle.elbo(mean, covariance), rel=1e-12)


def test_the_exact_posterior_is_the_optimum_and_its_elbo_the_log_evidence() -> None:
    oracle = several_outputs()
    column = oracle.covariance[:3, :3]  # (X^T X / s^2 + I / eta)^-1
    guide = AutoMatrixNormal(oracle.model)
    row = torch.eye(2, dtype=torch.float64)
    at(guide, oracle, loc=oracle.mean, **parameters_of(row, column))
    assert_stationary(guide, oracle)
    elbo, _ = expected_elbo(guide, oracle)
    assert elbo == pytest.approx(oracle.log_evidence, rel=1e-12)
    assert oracle.mean_field_gap > 0.3  # which independent weights cannot reach


def test_with_a_bias_the_optimum_inverts_the_blocks_of_the_precision() -> None:
    oracle = several_outputs(bias=True)
    best = blocks_of(oracle)
    guide = AutoMatrixNormal(oracle.model)
    row = torch.eye(2, dtype=torch.float64)
    factors = parameters_of(row, best[:3, :3])
    at(guide, oracle, loc=oracle.mean, scale=best.diagonal()[6:].sqrt(), **factors)
    assert_stationary(guide, oracle)
    elbo, _ = expected_elbo(guide, oracle)
    assert elbo == pytest.approx(oracle.elbo(oracle.mean, best), rel=1e-12)
    assert oracle.log_evidence - oracle.mean_field_gap < elbo - 0.1
    assert elbo < oracle.log_evidence - 0.01


@pytest.mark.slow("hundreds of exact gradients")
@pytest.mark.parametrize("bias", [False, True])
def test_the_exact_gradient_leads_there_from_afar(bias: bool) -> None:
    """LBFGS on the exact ELBO, from a random start: no other optimum is in the way."""
    oracle = several_outputs(2, bias=bias)
    guide = AutoMatrixNormal(oracle.model)
    at(guide, oracle)
    generator = torch.Generator().manual_seed(4)
    parameters = list(guide.parameters())
    with torch.no_grad():
        for parameter in parameters:
            parameter.copy_(torch.randn(parameter.shape, generator=generator))
    optimizer = torch.optim.LBFGS(
        parameters,
        max_iter=150,
        tolerance_grad=1e-10,
        tolerance_change=0,
        line_search_fn="strong_wolfe",
    )

    def closure() -> float:
        elbo, gradients = expected_elbo(guide, oracle)
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = -gradient
        return -elbo

    optimizer.step(closure)
    best = blocks_of(oracle) if bias else oracle.covariance
    mean, covariance = (value.detach() for value in moments(guide))
    torch.testing.assert_close(mean, oracle.mean, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(covariance, best, rtol=1e-6, atol=1e-6)
    elbo, _ = expected_elbo(guide, oracle)
    assert elbo == pytest.approx(oracle.elbo(oracle.mean, best), rel=1e-10)


@pytest.mark.slow("whole fits")
@pytest.mark.parametrize("bias", [False, True])
def test_svi_reaches_the_optimum(bias: bool) -> None:
    oracle = several_outputs(bias=bias)
    best = blocks_of(oracle) if bias else oracle.covariance
    assert_svi_reaches(AutoMatrixNormal(oracle.model), oracle, oracle.mean, best, in_c=False)


@pytest.mark.slow("a whole fit")
def test_stock_pyro_reaches_the_log_evidence() -> None:
    oracle = several_outputs()
    guide = AutoMatrixNormal(oracle.model, init_scale=0.1)
    num_steps, ends = 600, []
    with torch.random.fork_rng(), pyro.get_param_store().scope():
        torch.manual_seed(0)
        optimizer = ClippedAdam({"lr": 0.1, "lrd": 0.05 ** (1 / num_steps)})
        svi = SVI(oracle.model, guide, optimizer, Trace_ELBO())
        for _ in range(num_steps):
            svi.step(oracle.x, oracle.y)
            ends.append(parameters_to_vector(guide.parameters()).detach())
    mean = torch.stack(ends[num_steps // 2 :]).mean(0)  # much of the noise of steps averages out
    vector_to_parameters(mean, guide.parameters())
    elbo, _ = expected_elbo(guide, oracle)
    # what is left of the noise are some hundredths; independent weights miss 0.35
    assert oracle.log_evidence - 0.1 < elbo < oracle.log_evidence


# Parameters and sites


def test_init_scale_is_the_first_sd() -> None:
    guide = AutoMatrixNormal(MatrixModel(), init_scale=0.25)
    guide.setup(torch.zeros(1, 3, dtype=torch.float64))
    with torch.no_grad():
        _, sd = guide.marginals()
        _, covariance = moments(guide)
    torch.testing.assert_close(sd, torch.full_like(sd, 0.25))
    torch.testing.assert_close(covariance, sd.square().diag())
    assert guide.options() == {"init_scale": 0.25}


def test_the_number_of_parameters_is_that_of_the_family() -> None:
    """Triangles of A and B, of which one number a matrix is redundant; no [P, P] matrix."""
    guide = AutoMatrixNormal(models.MLP(10, hidden=(50, 50, 50)))
    guide.setup(torch.zeros(1, 10))
    triangles = 50 * 51 // 2 + 10 * 11 // 2 + 2 * (50 * 51 // 2) * 2
    num_latents = 50 * 11 + 2 * 50 * 51 + 51 + 1  # the last is the noise
    others = 3 * 50 + 51 + 1
    assert guide.num_latents == num_latents
    assert sum(p.numel() for p in guide.parameters()) == num_latents + others + triangles


def test_matrices_of_one_shape_are_one_group() -> None:
    sites = [("a", [2, 3], 6), ("b", [2], 2), ("c", [1], 1), ("d", [3, 2], 6), ("e", [2, 3], 6)]
    layout = Layout.of(sites, ["a", "d", "e"])
    assert layout.groups == {(2, 3): 2, (3, 2): 1}
    z = torch.arange(42.0).reshape(2, 21)
    others, (wide, tall) = layout.split(z)
    torch.testing.assert_close(others, z[:, 6:9])
    torch.testing.assert_close(wide, torch.stack([z[:, :6], z[:, 15:]], 1).reshape(2, 2, 2, 3))
    torch.testing.assert_close(tall, z[:, 9:15].reshape(2, 1, 3, 2))
    torch.testing.assert_close(layout.join(others, [wide, tall]), z, rtol=0, atol=0)


def positive_model(x: Tensor, y: Tensor | None = None) -> None:
    pyro.sample("v", dist.LogNormal(one(0.0), one(1.0)).expand([2, 3]).to_event(2))
    pyro.sample("w", dist.Normal(one(0.0), one(1.0)).expand([2, 3]).to_event(2))


def test_a_positive_matrix_is_independent_and_so_is_it_in_a_loaded_guide() -> None:
    guide = AutoMatrixNormal(positive_model)
    guide.setup(torch.zeros(1, 3))
    assert list(guide.scale_trils()) == ["w"]
    assert guide.scale.shape == (6,)
    with torch.no_grad():
        guide.row_entries.fill_(3.0)
    fresh = AutoMatrixNormal(positive_model)
    fresh.load_state_dict(guide.state_dict())
    assert list(fresh.scale_trils()) == ["w"]
    torch.testing.assert_close(fresh.sample(5), guide.sample(5), rtol=0, atol=0)
    fresh.setup(torch.zeros(1, 3))
    torch.testing.assert_close(fresh.sample(5), guide.sample(5), rtol=0, atol=0)


def test_a_model_without_a_matrix_is_refused() -> None:
    x = torch.zeros(2, 3, dtype=torch.float64)
    text = r"value is a matrix \[O, I\] with O and I above 1; there are w \(3, 1\), b \(1,\): use"
    with pytest.raises(SiteError, match=text):
        AutoMatrixNormal(linear_gaussian().model).setup(x)
    with pytest.raises(SiteError, match=r"w \(3, 1\), noise \(\) \(not real\), rate \(1,\) \(not"):
        AutoMatrixNormal(MixedModel()).setup(x)


def test_before_setup_it_says_what_to_do() -> None:
    guide = AutoMatrixNormal(several_outputs().model)
    text = r"AutoMatrixNormal has no parameters yet: call guide.setup\(x\)"
    calls: list[Any] = [lambda: guide.sample(2), guide.get_posterior, guide.scale_trils]
    for call in (*calls, lambda: guide.log_prob(torch.zeros(6))):
        with pytest.raises(SiteError, match=text):
            call()


@pytest.mark.parametrize("init_scale", [0, -0.1, math.inf, math.nan, "wide"])
def test_init_scale_has_to_be_positive(init_scale: float) -> None:
    with pytest.raises(OptionError, match="init_scale is a positive standard deviation, not"):
        AutoMatrixNormal(several_outputs().model, init_scale=init_scale)


def test_quantiles_are_those_of_the_marginals() -> None:
    guide, mean, covariance = some_guide(several_outputs(bias=True))
    levels = [0.025, 0.5, 0.9]
    normal = torch.distributions.Normal(mean, covariance.diagonal().sqrt())
    expected = torch.stack([normal.icdf(one(q)) for q in levels])  # [Q, P]
    quantiles = guide.quantiles(levels)
    torch.testing.assert_close(quantiles["w"], expected[:, :6].reshape(3, 2, 3))
    torch.testing.assert_close(quantiles["b"], expected[:, 6:])
    torch.testing.assert_close(guide.median()["w"], mean[:6].reshape(2, 3))
