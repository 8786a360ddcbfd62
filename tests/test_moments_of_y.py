"""Mean and sd of likelihoods for which torch has none, or other ones: against closed forms."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from scipy import integrate, stats
from torch import Tensor

from pyro_bnn import SVI, guides
from pyro_bnn.predictive.moments_of_y import moments_of_y

LOC = torch.tensor([[-0.7, 0.0, 1.3], [0.2, 2.0, -1.0]], dtype=torch.float64)  # [S, N]
SCALE = torch.tensor([[0.4, 0.8, 0.6], [1.0, 0.3, 0.5]], dtype=torch.float64)


def moments(make: Any) -> tuple[Tensor, Tensor]:
    return moments_of_y(make(LOC, SCALE), lambda s: make(LOC[s : s + 1], SCALE[s : s + 1]))


def exponential(loc: Tensor, scale: Tensor) -> Any:
    return dist.TransformedDistribution(dist.Normal(loc, scale), [dist.transforms.ExpTransform()])


def test_a_transformed_gaussian_is_integrated() -> None:
    mean, variance = moments(exponential)
    exact = dist.LogNormal(LOC, SCALE)
    torch.testing.assert_close(mean, exact.mean, rtol=1e-10, atol=0)
    torch.testing.assert_close(variance, exact.variance, rtol=1e-8, atol=0)


def test_a_folded_gaussian_has_the_moments_of_draws_without_noise_between_rows() -> None:
    mean, variance = moments(lambda loc, scale: dist.FoldedDistribution(dist.Normal(loc, scale)))
    c = (LOC / SCALE).abs().numpy()
    exact = stats.foldnorm(c, scale=SCALE.numpy())
    errors = exact.std() / 16  # of 256 draws
    assert (np.abs(mean.numpy() - exact.mean()) < 4 * errors).all()
    np.testing.assert_allclose(variance.numpy(), exact.var(), rtol=0.5)


def test_the_noise_of_draws_is_the_same_for_all_draws_of_the_posterior() -> None:
    """Else it would be epistemic uncertainty, where two draws of the posterior are equal."""
    same = LOC[:1].expand(2, -1)
    mean, _ = moments_of_y(
        dist.FoldedDistribution(dist.Normal(same, 1.0)),
        lambda s: dist.FoldedDistribution(dist.Normal(same[s : s + 1], 1.0)),
    )
    assert torch.equal(mean[0], mean[1])


@pytest.mark.parametrize("is_mixture", [False, True])
def test_circular_distributions_have_the_moments_of_their_numbers(is_mixture: bool) -> None:
    def make(loc: Tensor, scale: Tensor) -> Any:
        if not is_mixture:
            return dist.VonMises(loc + 2, 1 / scale)
        both = dist.VonMises(torch.stack([loc + 2, loc + 2], -1), (1 / scale).unsqueeze(-1))
        return dist.MixtureSameFamily(dist.Categorical(torch.ones_like(both.loc)), both)

    mean, variance = moments(make)
    for s, n in np.ndindex(2, 3):
        at, kappa = float(LOC[s, n]) + 2, 1 / float(SCALE[s, n])

        def moment(power: int, at: float = at, kappa: float = kappa) -> float:
            density = stats.vonmises(kappa, loc=at).pdf
            return float(integrate.quad(lambda y: y**power * density(y), -math.pi, math.pi)[0])

        sd = math.sqrt(moment(2) - moment(1) ** 2)
        assert abs(float(mean[s, n]) - moment(1)) < 4.5 * sd / 16
        assert float(variance[s, n].sqrt()) == pytest.approx(sd, rel=0.25)


def folded(x: Tensor, y: Tensor | None = None) -> Any:
    w = pyro.sample("w", dist.Normal(torch.zeros(2), 1.0).to_event(1))
    f = pyro.deterministic("f", x @ w)
    with pyro.plate("data", len(x)):
        return pyro.sample("y", dist.FoldedDistribution(dist.Normal(f, 0.5)), obs=y)


def test_a_prediction_of_a_likelihood_without_moments_has_mean_and_sd() -> None:
    x = torch.linspace(-1, 1, 24).reshape(12, 2)
    posterior = SVI(guides.AutoNormal, num_steps=200, compile=False).run(
        folded, (x, (x[:, 0] * 2).abs()), progress=False
    )
    found = posterior.predict(x, num_samples=300)
    draws = found.draws[..., 0]
    error = draws.std(0) / math.sqrt(300)
    assert bool(((found.mean[:, 0] - draws.mean(0)).abs() < 5 * error).all())
    torch.testing.assert_close(found.sd[:, 0], draws.std(0), rtol=0.2, atol=0)
    assert not found.to_frame().isna().any().any()
