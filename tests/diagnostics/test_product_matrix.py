"""Products of mean-field layers against enumeration, closed forms and draws."""

from __future__ import annotations

import copy
import itertools
from typing import cast

import pytest
import torch
from scipy import stats
from torch import Tensor
from torch.testing import assert_close

from pyro_bnn import SVI, guides, likelihoods, models, priors
from pyro_bnn.diagnostics import (
    MatrixMoments,
    matrix_moments,
    product_draws,
    product_moments,
)
from pyro_bnn.diagnostics.mean_field.product_matrix import WeightMoments
from pyro_bnn.errors import OptionError, ShapeError, SiteError
from pyro_bnn.guides import Guide
from pyro_bnn.models import DeepLinear
from pyro_bnn.posterior import GuidePosterior, Posterior


def mean_field(sizes: tuple[int, ...], seed: int = 0, loc: float = 1.0) -> list[WeightMoments]:
    """Layers with means from N(0, loc^2) and sds in [0.2, 1.2]."""
    generator = torch.Generator().manual_seed(seed)
    return [
        (
            loc * torch.randn(rows, columns, generator=generator, dtype=torch.float64),
            0.2 + torch.rand(rows, columns, generator=generator, dtype=torch.float64),
        )
        for columns, rows in itertools.pairwise(sizes)
    ]


def product(weights: list[Tensor]) -> Tensor:
    """W_L ... W_1 of weights ``[..., O, I]``."""
    value = weights[0]
    for weight in weights[1:]:
        value = weight @ value
    return value


def z_scores(found: MatrixMoments, exact: MatrixMoments) -> Tensor:
    assert (exact.error == 0).all()
    return (found.covariance - exact.covariance) / found.error


def fit(
    model: models.MLP | DeepLinear, guide: type[Guide] = guides.AutoNormal, spread: float = 0.3
) -> GuidePosterior:
    """A fit of no steps to speak of, whose means are of order one and whose sds differ."""
    generator = torch.Generator().manual_seed(5)
    x = torch.randn(8, model.num_inputs, generator=generator, dtype=torch.float64)
    y = torch.zeros(8, 2, dtype=torch.float64)
    engine = SVI(guide, num_steps=1, compile=False)
    posterior = cast(GuidePosterior, engine.run(model.double(), (x, y), progress=False))
    if type(posterior.guide) is guides.AutoNormal:
        normal = posterior.guide
        with torch.no_grad():
            normal.loc.copy_(torch.randn(normal.loc.shape, generator=generator))
            normal.scale = spread * (0.5 + torch.rand(normal.loc.shape, generator=generator))
    return posterior


def deep_linear(hidden: tuple[int, ...]) -> DeepLinear:
    return DeepLinear(3, 2, hidden=hidden, likelihood=likelihoods.Normal(scale=0.1))


@pytest.fixture(scope="module")
def posterior() -> GuidePosterior:
    return fit(deep_linear((4, 3)))


# --- exact moments -------------------------------------------------------------------------------


def test_one_layer_is_its_own_and_exactly_diagonal() -> None:
    ((mean, sd),) = layers = mean_field((3, 2))
    found = product_moments(layers)
    assert_close(found.mean, mean, rtol=0, atol=0)
    assert_close(found.matrix, sd.square().flatten().diag(), rtol=0, atol=0)
    assert_close(found.correlation, torch.eye(6, dtype=torch.float64), rtol=1e-15, atol=0)


def test_two_layers_have_their_closed_form_and_its_zeros() -> None:
    (mean1, sd1), (mean2, sd2) = layers = mean_field((3, 4, 2))
    found = product_moments(layers)
    assert_close(found.mean, mean2 @ mean1, rtol=1e-14, atol=0)
    for a, b, c, d in itertools.product(range(2), range(3), range(2), range(3)):
        expected = torch.zeros((), dtype=torch.float64)
        if b == d:
            expected = expected + (mean2[a] * mean2[c] * sd1[:, b] ** 2).sum()
        if a == c:
            expected = expected + (sd2[a] ** 2 * mean1[:, b] * mean1[:, d]).sum()
        if a == c and b == d:
            expected = expected + (sd2[a] ** 2 * sd1[:, b] ** 2).sum()
        assert_close(found.covariance[a, b, c, d], expected, rtol=1e-13, atol=1e-14)
        assert (found.covariance[a, b, c, d] == 0) == (a != c and b != d)


def test_three_layers_are_those_of_two_point_weights_enumerated() -> None:
    """The recursion takes no more of a weight than mean and sd: so let it be mean + sd or - sd."""
    layers = mean_field((2, 2, 2, 2))
    signs = torch.tensor(list(itertools.product([-1.0, 1.0], repeat=12)), dtype=torch.float64)
    weights = [
        mean + sd * sign.unflatten(-1, (2, 2))
        for (mean, sd), sign in zip(layers, signs.split(4, -1), strict=True)
    ]
    entries = product(weights).flatten(1)  # [4096, 4]
    found = product_moments(layers)
    assert_close(found.mean.flatten(), entries.mean(0), rtol=1e-12, atol=0)
    covariance = entries.mT.cov(correction=0)
    assert_close(found.matrix, covariance, rtol=1e-12, atol=1e-13)
    blocks = covariance.unflatten(0, (2, 2)).unflatten(2, (2, 2))  # [a, b, c, d]
    assert_close(blocks, blocks.permute(0, 3, 2, 1), rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("depth", [3, 5, 10])
def test_from_three_layers_on_no_entries_are_uncorrelated(depth: int) -> None:
    found = product_moments(mean_field((3, *[4] * (depth - 1), 2), seed=depth))
    assert (found.covariance.abs() > 1e-6).all()
    positive = product_moments(
        [(mean.abs(), sd) for mean, sd in mean_field((3, *[4] * (depth - 1), 2))]
    )
    assert (positive.covariance > 0).all()  # every term of the recursion is


@pytest.mark.parametrize("depth", [1, 2, 3, 10])
def test_of_zero_means_the_covariance_is_diagonal_at_every_depth(depth: int) -> None:
    layers = mean_field((3, *[4] * (depth - 1), 2), loc=0.0)
    variance = product([sd.square() for _, sd in layers])  # summed over all paths
    found = product_moments(layers)
    assert_close(found.matrix.diagonal(), variance.flatten(), rtol=1e-12, atol=0)
    assert (found.matrix - found.matrix.diag().diag()).count_nonzero() == 0


def test_entries_of_zero_means_are_dependent_though_uncorrelated() -> None:
    """m_1 = u v_1 and m_2 = u v_2 of standard Gaussians: Cov(m_1^2, m_2^2) = 3 - 1."""
    one, two = torch.ones(1, 1, dtype=torch.float64), torch.ones(1, 2, dtype=torch.float64)
    layers = [(0 * two, two), (0 * one, one)]
    draws = product_draws(layers, 200_000, seed=3)
    exact = product_moments(layers)
    assert_close(exact.matrix, torch.eye(2, dtype=torch.float64), rtol=0, atol=0)
    assert z_scores(matrix_moments(draws), exact).abs().max() < 4
    squares = matrix_moments(draws.square())
    z = (squares.covariance[0, 0, 0, 1] - 2) / squares.error[0, 0, 0, 1]
    assert abs(z) < 4


def test_three_mean_field_layers_are_a_matrix_variate_normal() -> None:
    """A B C with A, C constant, B_ij ~ N(b_ij, 1): Cov(vec M) = C^T C kron A A^T."""
    (A, _), (b, _), (C, _) = mean_field((3, 3, 2, 2))[::-1]
    layers = [(C, 0 * C), (b, torch.ones_like(b)), (A, 0 * A)]
    found = product_moments(layers)
    by_columns = found.covariance.permute(1, 0, 3, 2).reshape(6, 6)  # vec stacks columns
    assert_close(by_columns, torch.kron(C.T @ C, A @ A.T), rtol=1e-12, atol=1e-13)
    law = stats.matrix_normal((A @ b @ C).numpy(), (A @ A.T).numpy(), (C.T @ C).numpy())
    # -2 log density, less its least value, is chi-squared with as many degrees as entries
    draws = product_draws(layers, 5_000, seed=1).numpy()
    distance = 2 * (law.logpdf((A @ b @ C).numpy()) - law.logpdf(draws))
    assert stats.kstest(distance, stats.chi2(6).cdf).pvalue > 1e-3


def test_rows_and_columns_are_those_of_the_whole() -> None:
    for sizes in ((5, 4), (5, 3, 4), (5, 3, 2, 4)):
        layers = mean_field(sizes)
        whole, part = product_moments(layers), product_moments(layers, rows=[3, 0], columns=[4, 1])
        kept, chosen = torch.tensor([3, 0]), torch.tensor([4, 1])
        expected = whole.covariance[kept][:, chosen][:, :, kept][:, :, :, chosen]
        assert_close(part.mean, whole.mean[kept][:, chosen], rtol=1e-12, atol=1e-14)
        assert_close(part.covariance, expected, rtol=1e-12, atol=1e-13)
        all_draws = product_draws(layers, 10)
        some_draws = product_draws(layers, 10, rows=[3, 0], columns=[4, 1])
        assert_close(some_draws, all_draws[:, kept][:, :, chosen], rtol=1e-12, atol=1e-14)


# --- draws ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("depth", [1, 2, 3, 5])
def test_draws_have_the_exact_moments(depth: int) -> None:
    layers = mean_field((2, *[3] * (depth - 1), 2), seed=depth)
    exact = product_moments(layers)
    draws = product_draws(layers, 200_000, seed=depth)
    found = matrix_moments(draws)
    assert found.num_draws == 200_000
    assert z_scores(found, exact).abs().max() < 4
    z = (found.mean - exact.mean) / (draws.std(0) / 200_000**0.5)
    assert z.abs().max() < 4


def test_the_error_of_a_covariance_is_its_scatter() -> None:
    """Of Gaussians it is sqrt((var_1 var_2 + cov^2) / S)."""
    sd = torch.tensor([[1.0, 3.0]], dtype=torch.float64)
    found = matrix_moments(product_draws([(0 * sd, sd)], 100_000))
    expected = torch.tensor([[2.0, 9.0], [9.0, 162.0]], dtype=torch.float64).div(100_000).sqrt()
    assert_close(found.error[0, :, 0], expected, rtol=0.02, atol=0)


def test_the_error_of_a_covariance_by_hand() -> None:
    """Away from the mean, 100, by -1, -1, -1, 3: fourth moment 84 / 4, variance 12 / 3."""
    draws = torch.tensor([99.0, 99.0, 99.0, 103.0]).reshape(4, 1, 1)
    found = matrix_moments(draws)
    assert found.matrix.item() == 4
    assert found.error.item() == pytest.approx(((21 - 4**2) / 4) ** 0.5, rel=1e-15)


def test_draws_made_in_several_blocks_are_as_many_as_asked_for() -> None:
    layers = mean_field((2_000, 100, 2))
    assert product_draws(layers, 21, columns=[0]).unique().numel() == 42


# --- of a fit ------------------------------------------------------------------------------------


def test_a_fit_has_the_moments_of_its_means_and_sds(posterior: GuidePosterior) -> None:
    sites = {site.name: site for site in posterior.program.sites}
    loc, scale = (value.detach() for value in cast(guides.AutoNormal, posterior.guide).marginals())
    layers = [
        (sites[name].value(loc), sites[name].value(scale))
        for name in ("layers.0.weight", "layers.1.weight", "layers.2.weight")
    ]
    found, expected = product_moments(posterior), product_moments(layers)
    assert_close(found.mean, expected.mean, rtol=1e-14, atol=0)
    assert_close(found.covariance, expected.covariance, rtol=1e-14, atol=0)


def test_a_copy_has_the_moments_of_the_posterior(posterior: GuidePosterior) -> None:
    """Its supports are copies too, and still those of real numbers."""
    found, expected = product_moments(copy.deepcopy(posterior)), product_moments(posterior)
    assert torch.equal(found.covariance, expected.covariance)


def test_draws_of_a_fit_are_the_products_of_its_samples(posterior: GuidePosterior) -> None:
    model = cast(DeepLinear, posterior.model)
    draws = product_draws(posterior, 50_000, seed=2)
    expected = model.product_matrix(posterior.sample(50_000, seed=2))
    assert_close(draws, expected, rtol=1e-12, atol=1e-12)
    assert z_scores(matrix_moments(draws), product_moments(posterior)).abs().max() < 4


def test_a_k_tied_fit_is_mean_field_too() -> None:
    tied = fit(deep_linear((4,)), guides.AutoKTiedNormal)
    found = matrix_moments(product_draws(tied, 50_000))
    assert z_scores(found, product_moments(tied)).abs().nan_to_num(0.0).max() < 4


def test_an_mlp_is_taken_without_its_activations() -> None:
    fitted = fit(models.MLP(3, 2, hidden=(4,), likelihood=likelihoods.Normal(scale=0.1)))
    sample = fitted.sample(7)
    expected = sample["layers.1.weight"] @ sample["layers.0.weight"]
    assert_close(product_draws(fitted, 7), expected, rtol=1e-12, atol=1e-12)


# --- refusals ------------------------------------------------------------------------------------


def test_correlated_weights_have_draws_and_no_exact_moments() -> None:
    full = fit(deep_linear((2,)), guides.AutoMultivariateNormal)
    with pytest.raises(SiteError, match="weights of AutoMultivariateNormal are not independent"):
        product_moments(full)
    assert product_draws(full, 5).shape == (5, 2, 3)


def test_a_weight_of_several_sites_has_no_product() -> None:
    hierarchical = fit(DeepLinear(3, 2, hidden=(2,), prior=priors.HalfCauchyScale()))
    message = r"needs an MLP or a DeepLinear whose weights are one site each; the model has"
    for function in (product_moments, product_draws):
        with pytest.raises(SiteError, match=message):
            cast(object, function)(hierarchical)  # type: ignore[operator]


def test_what_does_not_fit_is_refused(posterior: Posterior) -> None:
    one, two = mean_field((3, 2)), mean_field((3, 2), seed=1)
    with pytest.raises(ShapeError, match=r"as many columns as the layer before has rows; got \[\("):
        product_moments([*one, *two])
    with pytest.raises(ShapeError, match=r"pairs of mean and sd \[O, I\], the first layer first"):
        product_draws([(one[0][0], one[0][1].T)])
    with pytest.raises(ShapeError, match=r"got \[\]"):
        product_moments([])
    with pytest.raises(OptionError, match=r"columns are indices from 0 to 2, not \[3\]"):
        product_moments(posterior, columns=[3])
    with pytest.raises(OptionError, match=r"rows are indices from 0 to 1, not \[\]"):
        product_draws(posterior, 3, rows=[])
    with pytest.raises(OptionError, match=r"more than the bound of .*: choose some rows"):
        product_moments(posterior, memory=1_000)
    with pytest.raises(OptionError, match="more than the bound"):
        product_draws(posterior, 1_000, memory=1_000)
    with pytest.raises(OptionError, match="more than the bound"):
        matrix_moments(torch.zeros(2, 10, 10), memory=1_000)
    with pytest.raises(ShapeError, match=r"are \[S, O, I\] with S > 1, not \[1, 2, 2\]"):
        matrix_moments(torch.zeros(1, 2, 2))
