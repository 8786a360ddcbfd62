"""Draws from the prior, against the Gaussian process of a linear model and exact tails."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from torch.testing import assert_close

from pyro_bnn import likelihoods, models, priors
from pyro_bnn.arviz_io.tree import options
from pyro_bnn.diagnostics.simulation.prior_predictive import (
    PriorPredictive,
    prior_predictive,
    tail_index,
)
from pyro_bnn.errors import DataError, ModelError, OptionError, ShapeError, SiteError
from tests.priors.laws import assert_law

NUM_DRAWS = 2_000
X = torch.tensor([[-1.0, 2.0], [0.0, 0.0], [1.0, 1.0]], dtype=torch.float64)


@pytest.fixture(scope="module")
def linear() -> PriorPredictive:
    """Linear regression with weights of sd 0.5, a bias of sd 2 and noise of sd 1.5."""
    prior = {"*.weight": priors.Normal(0.5), "*.bias": priors.Normal(2.0)}
    model = models.MLP(2, hidden=(), prior=prior, likelihood=likelihoods.Normal(1.5)).double()
    return prior_predictive(model, X, NUM_DRAWS, seed=1)


def test_functions_and_observations_of_a_linear_model(linear: PriorPredictive) -> None:
    """f is Gaussian with covariance x x'/4 + 4, and y has the noise besides."""
    covariance = 0.25 * X @ X.T + 4.0
    f, y = linear.function_draws, linear.draws
    assert f.shape == y.shape == (NUM_DRAWS, 3, 1)
    found = f[..., 0].T @ f[..., 0] / NUM_DRAWS
    variances = covariance.diagonal()
    error = ((covariance.square() + variances.outer(variances)) / NUM_DRAWS).sqrt()
    assert float(((found - covariance) / error).abs().max()) < 4
    for row, variance in enumerate(variances.tolist()):
        assert_law(f[:, row], stats.norm(0, math.sqrt(variance)).cdf)
        assert_law(y[:, row], stats.norm(0, math.sqrt(variance + 1.5**2)).cdf)
    residual = (y - f).flatten() / 1.5  # of noise alone, independent over rows
    assert_law(residual, stats.norm.cdf)


def test_the_draws_are_a_posterior_without_data(linear: PriorPredictive) -> None:
    w, b = (linear.prior.sample(NUM_DRAWS)[f"layers.0.{k}"] for k in ("weight", "bias"))
    assert_close(linear.function_draws, X @ w.mT + b.unsqueeze(1))
    other = 3 * X[:2]
    assert_close(linear.prior.function_draws(other, NUM_DRAWS), other @ w.mT + b.unsqueeze(1))
    again = prior_predictive(linear.prior.model, X, 50, seed=1)
    assert_close(again.function_draws, linear.function_draws[:50], rtol=0, atol=0)


def test_the_tree_has_the_groups_of_arviz(linear: PriorPredictive) -> None:
    tree: Any = linear.to_arviz()
    assert set(tree.children) == {"prior", "prior_predictive", "constant_data"}
    assert tree["prior/f"].dims == ("chain", "draw", "row", "f_output")
    np.testing.assert_allclose(tree["prior/f"][0].values, linear.function_draws.numpy())
    np.testing.assert_allclose(tree["prior_predictive/y"][0].values, linear.draws[..., 0].numpy())
    np.testing.assert_allclose(tree["constant_data/x"].values, X.numpy())
    norm = linear.prior.sample(NUM_DRAWS)["layers.0.weight"].flatten(1).norm(dim=1)
    np.testing.assert_allclose(tree["prior/norm layers.0.weight"][0].values, norm.numpy())
    assert options(tree)["seed"] == 1
    assert options(tree)["model"].startswith("MLP 2-1 ")


def test_classes_are_drawn_too() -> None:
    model = models.MLP(2, hidden=(2,), likelihood=likelihoods.Categorical(3))
    found = prior_predictive(model, X.float(), 40)
    assert found.function_draws.shape == (40, 3, 3)
    assert found.draws.shape == (40, 3, 1)
    assert set(found.draws.unique().tolist()) <= {0, 1, 2}
    assert found.to_arviz()["prior_predictive/y"].shape == (1, 40, 3)


@pytest.mark.parametrize(
    ("model", "error", "message"),
    [
        (models.MLP(2, prior=priors.Flat()), SiteError, "nothing can be drawn from the flat prior"),
        (models.Rank1MLP(2), ModelError, "no prior to draw layers.0.weight.*point estimates"),
    ],
)
def test_models_without_a_prior_are_refused(model: Any, error: Any, message: str) -> None:
    with pytest.raises(error, match=message):
        prior_predictive(model, X.float())


@pytest.mark.parametrize("num_samples", [0, True, 2.5])
def test_numbers_of_draws_are_positive_integers(num_samples: Any) -> None:
    with pytest.raises(OptionError, match="num_samples is a positive integer, not"):
        prior_predictive(models.MLP(2), X, num_samples)


def test_inputs_are_rows_of_numbers() -> None:
    model, seed = models.MLP(2, hidden=(2,)), 3
    of_list, of_tensor = (
        prior_predictive(model, x, 5, seed).function_draws for x in (X.tolist(), X.float())
    )
    assert_close(of_list, of_tensor)
    with pytest.raises(DataError, match=r"x holds NaN or infinity in column 1 \(1 row\) of 1"):
        prior_predictive(model, [[1.0, math.nan]])
    for x in (X[:0], 1.0):
        with pytest.raises(ShapeError, match="with at least one row, not"):
            prior_predictive(model, x)


# --- tails ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("index", [0.5, 1.0, 3.0])
def test_the_tail_index_of_a_power_law(index: float) -> None:
    """Of quantiles of a law with both tails t^-index beyond 1, centred elsewhere."""
    u = (torch.arange(40_000, dtype=torch.float64) + 0.5) / 40_000
    values = (1 - u) ** (-1 / index) * (-1) ** torch.arange(40_000) + 7.0
    found = tail_index(values)
    assert found.value == pytest.approx(index, rel=0.01)
    assert found.error == pytest.approx(found.value / math.sqrt(2_000), rel=1e-12)


def test_the_tail_index_is_taken_over_the_next_largest() -> None:
    """Twenty distances of e^2 over one of e: the mean log ratio is one."""
    values = torch.zeros(400, dtype=torch.float64)
    values[:20], values[20] = math.e**2, -math.e
    assert tail_index(values).value == pytest.approx(1.0, rel=1e-12)


@pytest.mark.slow("draws from priors")
def test_the_tail_index_tells_cauchy_networks_from_gaussian_ones() -> None:
    found = {}
    for prior in (priors.Normal(), priors.Cauchy()):
        model = models.MLP(2, hidden=(20,), prior=prior, activation="tanh")
        f = prior_predictive(model, X.float(), 1_000).function_draws[:, 2, 0]
        found[type(prior)] = tail_index(f)
    value, error = found[priors.Cauchy]
    assert abs(value - 1) < 4 * error  # bounded units, Cauchy output weights
    assert found[priors.Normal].value > 4


def test_a_tail_takes_draws() -> None:
    with pytest.raises(ShapeError, match=r"at least 400 draws \[S\], not \[399\]"):
        tail_index(torch.zeros(399))
    with pytest.raises(ShapeError, match=r"not \[400, 2\]"):
        tail_index(torch.zeros(400, 2))


def test_a_constant_has_no_tail() -> None:
    values = torch.zeros(400)
    assert all(map(math.isnan, tail_index(values)))
    values[:5] = 1.0  # fewer than the tail has
    assert all(map(math.isnan, tail_index(values)))
    values[:200], values[200:] = -1.0, 2.0  # all equally far from the median
    assert tail_index(values) == (math.inf, math.inf)
