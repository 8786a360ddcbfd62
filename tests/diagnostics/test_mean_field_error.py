"""KL of the full from the diagonal Gaussian of draws whose correlations are known."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy import stats

from pyro_bnn import NUTS
from pyro_bnn.diagnostics import kl_bias, mean_field_kl
from pyro_bnn.errors import DataError, ShapeError
from tests.oracle import linear_gaussian

P = 12
REPEATS = 30


def correlated(num_weights: int, seed: int = 0) -> np.ndarray:
    """A covariance with variances over three orders of magnitude and correlations of all signs."""
    rng = np.random.default_rng(seed)
    rotation = np.linalg.qr(rng.standard_normal((num_weights, num_weights)))[0]
    covariance = rotation @ np.diag(np.geomspace(0.1, 10, num_weights)) @ rotation.T
    scale = np.geomspace(0.1, 3, num_weights)
    return np.asarray(scale[:, None] * covariance * scale)


def exact_kl(covariance: np.ndarray) -> float:
    """-1/2 log det R, as the log determinants of the covariance and of its diagonal."""
    return float(0.5 * (np.log(np.diag(covariance)).sum() - np.linalg.slogdet(covariance)[1]))


def autoregressive(shape: tuple[int, int, int], phi: np.ndarray, seed: int = 0) -> np.ndarray:
    """Standard normal draws [C, S, P], column p with autocorrelations phi_p^t."""
    u = np.random.default_rng(seed).standard_normal(shape)
    for t in range(1, shape[1]):
        u[:, t] = phi * u[:, t - 1] + np.sqrt(1 - phi**2) * u[:, t]
    return u


def mixed(u: np.ndarray, covariance: np.ndarray) -> np.ndarray:
    """Draws of this covariance, slow along its long axes where the last columns of u are slow."""
    variances, axes = np.linalg.eigh(covariance)
    return np.asarray((u * np.sqrt(variances)) @ axes.T)


def z_score(values: np.ndarray, expected: float) -> float:
    return float((values.mean() - expected) / (values.std(ddof=1) / np.sqrt(len(values))))


@pytest.mark.parametrize("num_draws", [8, 30, 300])
@pytest.mark.parametrize("is_correlated", [False, True])
def test_the_bias_of_the_log_determinant_is_exact(num_draws: int, is_correlated: bool) -> None:
    covariance = correlated(5) if is_correlated else np.diag([0.1, 1.0, 2.0, 3.0, 50.0])
    rng = np.random.default_rng(1)
    draws = rng.multivariate_normal(np.ones(5), covariance, size=(4_000, num_draws))
    centred = draws - draws.mean(1, keepdims=True)
    units = centred / np.linalg.norm(centred, axis=1, keepdims=True)
    correlations = units.swapaxes(1, 2) @ units  # [4_000, P, P]
    errors = -0.5 * np.linalg.slogdet(correlations)[1] - exact_kl(covariance)
    assert abs(z_score(errors, kl_bias(num_draws, 5))) < 4


def test_the_bias_is_the_mean_of_the_law_of_one_correlation() -> None:
    # r^2 of two independent normals is Beta(1/2, (n - 2)/2)
    law = stats.beta(0.5, 8)
    np.testing.assert_allclose(
        kl_bias(18, 2), law.expect(lambda r_squared: -0.5 * np.log1p(-r_squared)), rtol=1e-6
    )
    assert kl_bias(18, 1) == 0
    assert kl_bias(10**6, 100) == pytest.approx(100 * 99 / (4 * 10**6), rel=1e-3)


@pytest.mark.parametrize("num_draws", [3 * P, 10 * P, 100 * P])
@pytest.mark.parametrize("is_correlated", [False, True])
def test_independent_draws_give_the_exact_kl_within_its_error(
    num_draws: int, is_correlated: bool
) -> None:
    covariance = correlated(P) if is_correlated else np.eye(P)
    u = np.random.default_rng(2).standard_normal((REPEATS, num_draws, P))
    kl = mean_field_kl(mixed(u, covariance))
    z = (kl.value - exact_kl(covariance)) / kl.standard_error
    assert abs(z.mean()) * np.sqrt(REPEATS) < 4
    assert 1 / 1.7 < z.std() < 1.7  # 4 sds of the sd of 30
    assert (kl.plug_in > exact_kl(covariance)).mean() > (0.95 if not is_correlated else 0.5)
    assert sum(kl.doubtful) <= 1


@pytest.mark.slow("about a second")
@pytest.mark.parametrize("phi", [0.9, 0.5, -0.5])
def test_correlated_draws_count_for_fewer(phi: float) -> None:
    # the cross products of AR(1) columns have the autocorrelations phi^2t: at phi = -0.5 that is
    # fewer effective draws, where the mean has three times MORE
    num_draws = 4_000
    kl = mean_field_kl(autoregressive((REPEATS, num_draws, P), np.full(P, phi)))
    assert abs((kl.value / kl.standard_error).mean()) * np.sqrt(REPEATS) < 4
    assert z_score(kl.plug_in, kl_bias(num_draws, P)) > 5  # all draws counted: not enough
    if phi < 0:
        assert (kl.every == 1).all()
        exact = num_draws * (1 - phi**2) / (1 + phi**2)
        np.testing.assert_allclose(kl.effective_draws.mean(), exact, rtol=0.02)


def test_one_long_axis_that_alternates_hardly_counts() -> None:
    # every weight alternates with it, but it is one direction of twelve
    phi = np.append(np.zeros(P - 1), -0.7)
    covariance = np.full((P, P), 0.95) + 0.05 * np.eye(P)
    kl = mean_field_kl(mixed(autoregressive((REPEATS, 2_000, P), phi), covariance))
    rho = phi[:, None] ** np.arange(1, 50)  # [P, T]
    exact = 2_000 / (1 + 2 * (rho.mean(0) ** 2).sum())
    np.testing.assert_allclose(kl.effective_draws.mean(), exact, rtol=0.01)


@pytest.mark.slow("about a second")
def test_a_chain_that_is_slow_along_its_long_axes() -> None:
    covariance = correlated(P)
    u = autoregressive((REPEATS, 4_000, P), np.linspace(-0.3, 0.9, P))
    kl = mean_field_kl(mixed(u, covariance))
    z = (kl.value - exact_kl(covariance)) / kl.standard_error
    assert abs(z.mean()) * np.sqrt(REPEATS) < 4
    assert 1 / 1.7 < z.std() < 1.7


def test_the_units_of_the_weights_do_not_matter() -> None:
    draws = (
        np.random.default_rng(3).standard_normal((1, 300, 5)) @ np.linalg.cholesky(correlated(5)).T
    )
    other = mean_field_kl(100.0 + draws * np.array([1e-3, -1.0, 5.0, 1e4, 0.2]))
    np.testing.assert_allclose(other.value, mean_field_kl(draws).value, rtol=1e-8)


def test_modes_are_not_pooled() -> None:
    # two modes that differ by the sign of all weights, each without correlations
    u = np.random.default_rng(4).standard_normal((2, 2_000, P))
    u[0] += 3.0
    u[1] -= 3.0
    kl = mean_field_kl(u)
    assert (np.abs(kl.value) < 4 * kl.standard_error).all()
    pooled = mean_field_kl(u.swapaxes(0, 1).reshape(1, -1, P))  # a chain that jumps between them
    assert pooled.value[0] > 5


@pytest.mark.slow("about a second")
def test_halves_agree_with_the_whole_within_their_error() -> None:
    kl = mean_field_kl(np.random.default_rng(10).standard_normal((150, 150, P)))
    z = (kl.halves - kl.value) / kl.halves_error
    assert abs(z.mean()) * np.sqrt(150) < 4
    assert abs(z.std() - 1) < 4 / np.sqrt(2 * 150)


@pytest.mark.slow("about a second")
def test_halves_tell_that_the_bias_of_heavy_tails_is_larger() -> None:
    rng = np.random.default_rng(5)
    u = rng.standard_normal((20, 600, 40))
    assert sum(mean_field_kl(u).doubtful) == 0
    # multivariate t: weights without correlation share a scale; its bias is (df - 2) / (df - 4)
    # times that of Gaussian draws
    heavy = u / np.sqrt(rng.chisquare(5, size=(20, 600, 1)) / 5)
    kl = mean_field_kl(heavy)
    assert sum(kl.doubtful) > 15
    assert (kl.halves > kl.value).all()
    assert "its halves give" in kl.summary()


@pytest.mark.slow("samples chains")
def test_nuts_on_a_gaussian_posterior() -> None:
    oracle = linear_gaussian()
    nuts = NUTS(num_chains=4, warmup_steps=60, num_samples=150, compile=True)
    posterior = nuts.run(oracle.model, (oracle.x, oracle.y), progress=False)
    kl = mean_field_kl(posterior.stored)
    z = (kl.value - exact_kl(oracle.covariance.numpy())) / kl.standard_error
    assert (np.abs(z) < 4).all()
    assert kl.num_weights == len(oracle.mean)


def test_the_summary_has_the_bias_that_was_subtracted() -> None:
    kl = mean_field_kl(np.random.default_rng(6).standard_normal((2, 500, P)))
    first, chain, _, mean = str(kl).splitlines()
    assert first == "KL(full || diagonal) of 12 weights, in nats, from 500 draws a chain"
    assert chain.startswith(f"chain 0: {kl.value[0]:.3f} ± {kl.standard_error[0]:.3f} = ")
    assert f"- bias {kl_bias(kl.effective_draws[0], P):.3f} (" in chain
    assert mean.startswith(f"mean over chains: {kl.value.mean():.3f} ± ")


def test_one_weight_has_no_correlations() -> None:
    kl = mean_field_kl(np.random.default_rng(7).standard_normal((1, 100, 1)))
    np.testing.assert_allclose(kl.value, 0, atol=1e-12)
    assert kl.standard_error[0] == 0
    assert kl.doubtful == [False]


def test_too_few_draws_for_the_weights_are_refused() -> None:
    few = np.random.default_rng(8).standard_normal((2, 60, 40))
    with pytest.raises(DataError, match=r"chain 0 has 60 effective .* 40 weights.* at least 80"):
        mean_field_kl(few)
    slow = autoregressive((1, 500, 40), np.full(40, 0.95))
    with pytest.raises(DataError, match=r"effective draws for 40 weights"):
        mean_field_kl(slow)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_weights_that_are_functions_of_others_are_refused(dtype: type) -> None:
    """A copy, and a sum of two: the KL is infinite, and rounding decides what a computer finds."""
    z: Any = np.random.default_rng(0).standard_normal((2, 400, 3)).astype(dtype)
    for last in (z[..., :1], z[..., :1] - 2 * z[..., 1:2]):
        draws = np.concatenate([z, last], -1)
        with pytest.raises(DataError, match="draws of chain 0 fill fewer dimensions than its 4 we"):
            mean_field_kl(draws)
    near = np.concatenate([z, z[..., :1] + dtype(0.01) * z[..., 1:2] ** 2], -1)
    assert np.isfinite(mean_field_kl(near).value).all()


def test_draws_that_cannot_be_used_are_refused() -> None:
    draws = np.random.default_rng(9).standard_normal((2, 100, 3))
    with pytest.raises(ShapeError, match=r"draws must have shape \[C, S, P\]"):
        mean_field_kl(draws[0])
    still = draws.copy()
    still[1, :, 2] = 0.5
    with pytest.raises(DataError, match="1 weights are the same number in all draws of a chain"):
        mean_field_kl(still)
    draws[0, 0, 0] = np.nan
    with pytest.raises(DataError, match="1 of the draws are not finite"):
        mean_field_kl(draws)
