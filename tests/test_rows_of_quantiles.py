"""Quantiles of a row alone and among others, against mixtures of SciPy's distributions."""

from __future__ import annotations

from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch
from scipy import stats
from torch import Tensor

from pyro_bnn import SVI, guides, likelihoods, models
from pyro_bnn.predictive.common_noise import at_levels, levels_of_draws
from pyro_bnn.predictive.prediction import Prediction

NUM_ROWS, LEVELS = 100, (0.025, 0.3, 0.5, 0.9)
COUNTS = torch.arange(NUM_ROWS) % 4
BUILT_IN: dict[str, tuple[Any, Tensor]] = {
    "Normal": (likelihoods.Normal(0.3), torch.linspace(0, 1, NUM_ROWS)),
    "HeteroscedasticNormal": (
        likelihoods.HeteroscedasticNormal(), torch.linspace(0, 1, NUM_ROWS),
    ),
    "StudentT": (likelihoods.StudentT(), torch.linspace(0, 1, NUM_ROWS)),
    "Poisson": (likelihoods.Poisson(), COUNTS),
    "Bernoulli": (likelihoods.Bernoulli(), COUNTS % 2),
    "Bernoulli of two": (likelihoods.Bernoulli(), torch.stack([COUNTS % 2, COUNTS // 2], 1)),
    "Categorical": (likelihoods.Categorical(4), COUNTS),
}  # fmt: skip


def test_every_likelihood_is_among_these() -> None:
    bases = {"Likelihood", "as_columns", "match_observation"}
    assert {name.split()[0] for name in BUILT_IN} == set(likelihoods.__all__) - bases


@pytest.mark.parametrize(("likelihood", "y"), BUILT_IN.values(), ids=BUILT_IN)
def test_a_row_has_the_same_quantiles_alone_and_among_others(likelihood: Any, y: Tensor) -> None:
    x = torch.linspace(-1, 1, NUM_ROWS)[:, None]
    num_outputs = 2 if y.ndim == 2 else 1
    model = models.MLP(1, num_outputs, hidden=(3,), likelihood=likelihood)
    posterior = SVI(guides.AutoNormal, num_steps=5, compile=False).run(
        model, (x, y), progress=False
    )
    levels = list(LEVELS)
    whole = posterior.predict(x, num_samples=60).quantile(levels)
    for place in (0, 41, 99):
        alone = posterior.predict(x[place : place + 1], num_samples=60).quantile(levels)
        torch.testing.assert_close(alone[:, 0], whole[:, place], rtol=1e-5, atol=1e-5)
    turned = posterior.predict(x.flip(0), num_samples=60).quantile(levels)
    torch.testing.assert_close(turned.flip(1), whole, rtol=1e-5, atol=1e-5)


def of_user(f: Tensor, kind: str) -> Any:
    make: Any = {
        "Gamma": lambda: dist.Gamma(3.0 * torch.ones(()), 3 * (-f).exp()),
        "LogNormal": lambda: dist.LogNormal(f, 0.4),
        "NegativeBinomial": lambda: dist.NegativeBinomial(5.0 * torch.ones(()), logits=f),
        "Binomial": lambda: dist.Binomial(10, logits=f),
        "Beta": lambda: dist.Beta(1 + f.exp(), 2.0 * torch.ones(())),
        "Gumbel": lambda: dist.Gumbel(f, 0.5),
        "Laplace": lambda: dist.Laplace(f, 0.5),
        "Weibull": lambda: dist.Weibull(f.exp(), 1.5 * torch.ones(())),
        "StudentT, masked": lambda: dist.StudentT(5.0, f, 0.3).mask(f > -100),
    }[kind]
    return make()


@pytest.mark.parametrize(
    "kind",
    [
        "Gamma", "LogNormal", "NegativeBinomial", "Binomial", "Beta", "Gumbel", "Laplace",
        "Weibull", "StudentT, masked",
    ],
)  # fmt: skip
def test_so_has_one_of_a_likelihood_in_a_model_of_the_user(kind: str) -> None:
    def model(x: Tensor, y: Tensor | None = None) -> Any:
        w = pyro.sample("w", dist.Normal(torch.zeros(1), 1.0).to_event(1))
        f = pyro.deterministic("f", x @ w)
        with pyro.plate("data", len(x)):
            return pyro.sample("y", of_user(f, kind), obs=y)

    x = torch.linspace(-1, 1, NUM_ROWS)[:, None]
    y = torch.full((NUM_ROWS,), 0.5) if kind == "Beta" else 1.0 + COUNTS
    posterior = SVI(guides.AutoNormal, num_steps=5, compile=False).run(
        model, (x, y), progress=False
    )
    whole = posterior.predict(x, num_samples=60).quantile(list(LEVELS))
    for place in (0, 41, 99):
        alone = posterior.predict(x[place : place + 1], num_samples=60).quantile(list(LEVELS))
        torch.testing.assert_close(alone[:, 0], whole[:, place], rtol=1e-5, atol=1e-5)


S = 2_000
F = torch.randn(S, 3, generator=torch.Generator().manual_seed(1), dtype=torch.double) * 0.3
MIXTURES: dict[str, tuple[Any, Any]] = {
    "StudentT": (dist.StudentT(4.0, F, 0.5), stats.t(4, F.numpy(), 0.5)),
    "Gamma": (
        dist.Gamma(torch.tensor(3.0).double(), 3 * (-F).exp()),
        stats.gamma(3, scale=F.exp().numpy() / 3),
    ),
    "LogNormal": (dist.LogNormal(F, 0.4), stats.lognorm(0.4, scale=F.exp().numpy())),
    "Poisson": (dist.Poisson((3 + F).exp()), stats.poisson((3 + F).exp().numpy())),
    "NegativeBinomial": (
        dist.NegativeBinomial(torch.tensor(5.0).double(), logits=F),
        stats.nbinom(5, 1 - F.sigmoid().numpy()),
    ),
}


def quantiles(fn: Any, levels: tuple[float, ...]) -> Any:
    """Of the mixture over S draws of a distribution ``[S, N]``."""
    draws = at_levels(fn, levels_of_draws(len(F), seed=0))
    assert draws is not None
    draws = draws[..., None]
    of = Prediction(
        draws, draws, draws, draws, None, lambda y: y,
        is_discrete=fn.support.is_discrete, _by_common_noise=lambda: draws,
    )  # fmt: skip
    return of.quantile(list(levels))[..., 0].numpy()


@pytest.mark.parametrize("name", MIXTURES)
def test_quantiles_are_those_of_the_mixture(name: str) -> None:
    """The share below is the level, but for 5 sds of S independent draws, which are more."""
    fn, exact = MIXTURES[name]
    for level, found in zip(LEVELS, quantiles(fn, LEVELS), strict=True):
        error = 5 * (level * (1 - level) / len(F)) ** 0.5
        assert (exact.cdf(found).mean(0) > level - error).all()
        below = found - 1 if fn.support.is_discrete else found
        assert (exact.cdf(below).mean(0) < level + error).all()


@pytest.mark.parametrize("level", [1e-9, 0.001, 0.3, 0.999, 1 - 1e-9])
def test_counts_are_at_the_least_that_their_level_does_not_exceed(level: float) -> None:
    """By torch's incomplete gamma function Q(k + 1, rate), whose tails have digits to 1e6."""
    rates = torch.cat([torch.linspace(0, 30, 500), torch.logspace(1.5, 6, 500)]).double()
    found = at_levels(dist.Poisson(rates[None]), torch.tensor([level], dtype=torch.double))
    assert found is not None
    count, rounding = found[0], 1e-7 * min(level, 1 - level) + 1e-14
    assert (torch.special.gammaincc(count + 1, rates) >= level - rounding).all()
    below = torch.where(count > 0, torch.special.gammaincc(count, rates), 0.0)
    assert (below < level + rounding).all()
    assert found[0, 0] == 0


def test_a_distribution_without_an_inverse_has_no_common_noise() -> None:
    levels = torch.tensor([0.5])
    vectors = dist.MultivariateNormal(torch.zeros(1, 3, 2), torch.eye(2))
    mixed = dist.MixtureSameFamily(
        dist.Categorical(torch.ones(1, 3, 2)), dist.Normal(torch.zeros(1, 3, 2), 1.0)
    )
    for fn in (vectors, mixed, dist.VonMises(torch.zeros(1, 3), 1.0)):
        assert at_levels(fn, levels) is None


def test_levels_are_the_middles_of_equal_parts_in_an_order_by_the_seed() -> None:
    found = levels_of_draws(4, seed=0)
    assert found.sort().values.tolist() == [0.125, 0.375, 0.625, 0.875]
    assert torch.equal(found, levels_of_draws(4, seed=0))
    assert any(not torch.equal(found, levels_of_draws(4, seed=seed)) for seed in range(1, 5))


def test_quantiles_of_classes_are_those_of_their_probabilities() -> None:
    probs = torch.tensor([[[0.2, 0.3, 0.5]], [[0.4, 0.1, 0.5]]])  # of two draws: 0.3, 0.2, 0.5
    labels = torch.zeros(2, 1, 1, dtype=torch.long)
    prediction = Prediction(labels, probs, None, None, probs, lambda y: y, is_discrete=True)
    levels = [0.0, 0.3, 0.31, 0.5, 0.51, 1.0]
    assert prediction.quantile(levels).flatten().tolist() == [0, 0, 1, 1, 2, 2]
    assert prediction.quantile(0.4).tolist() == [[1]]
