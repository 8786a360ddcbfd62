"""Quantiles of mixtures of Gaussians, against SciPy's root finder, and in tables of predictions."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from scipy.stats import norm

from pyro_bnn import SVI, guides, likelihoods, models
from pyro_bnn.predictive.moments import normal_mixture_quantile
from tests.oracle import mixture_quantile

DOUBLE = torch.float64
LEVELS = (1e-6, 0.025, 0.3, 0.5, 0.975, 1 - 1e-6)


@pytest.mark.parametrize("level", LEVELS)
def test_the_quantile_of_one_gaussian(level: float) -> None:
    found = normal_mixture_quantile(level, torch.tensor([[[3.0]]]), torch.tensor([[[0.2]]]))
    assert found.item() == pytest.approx(norm.ppf(level, 3, 0.2), rel=1e-6)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("separation", [0.0, 1.0, 30.0])
def test_quantiles_of_mixtures_are_roots_of_their_distribution(
    level: float, separation: float
) -> None:
    generator = torch.Generator().manual_seed(0)
    loc = torch.randn(7, 5, 2, generator=generator, dtype=DOUBLE)
    loc[:3] += separation  # two modes of unequal size: no level falls between them
    scale = torch.rand(7, 5, 2, generator=generator, dtype=DOUBLE) + 0.05
    found = normal_mixture_quantile(level, loc, scale)
    exact = mixture_quantile(loc.flatten(1), scale.flatten(1), level)
    np.testing.assert_allclose(found.flatten().numpy(), exact, rtol=1e-9, atol=1e-9)


def test_steps_are_few_in_single_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    """A last step of 0 stays: halves of the bracket took 20 steps, or all 60."""
    steps = []
    ndtr: Callable[[torch.Tensor], torch.Tensor] = torch.special.ndtr

    def counted(u: torch.Tensor) -> torch.Tensor:
        steps.append(u)
        return ndtr(u)

    monkeypatch.setattr("torch.special.ndtr", counted)
    generator = torch.Generator().manual_seed(0)
    loc = torch.randn(1, 1_000, 1, generator=generator)
    loc = loc + 0.02 * torch.randn(100, 1_000, 1, generator=generator)
    for level in (0.025, 0.5, 0.975):
        steps.clear()
        normal_mixture_quantile(level, loc, torch.full_like(loc, 0.3))
        assert len(steps) <= 4


def test_intervals_of_a_prediction_are_those_of_its_mixture() -> None:
    """Few draws of the posterior are enough: their ends have no noise of draws of y."""
    x = torch.linspace(-1, 1, 12).unsqueeze(-1)
    y = 100 + 20 * x[:, 0]
    model = models.MLP(1, hidden=(4,), likelihood=likelihoods.Normal(0.3))
    engine = SVI(guides.AutoNormal, num_steps=20, compile=False)
    posterior = engine.run(model, (x, (y - 100) / 20), progress=False)
    whole = posterior.predict(x, num_samples=20)
    assert whole.means is not None
    assert whole.variances is not None
    frame = whole.to_frame(0.9)
    for name, level in (("low", 0.05), ("median", 0.5), ("high", 0.95)):
        ends = frame[f"predicted_{name}"]
        loc, sd = whole.means[..., 0].numpy(), whole.variances[..., 0].sqrt().numpy()
        below = norm.cdf(ends.to_numpy(), loc, sd).mean(0)
        assert below == pytest.approx(np.full(12, level), abs=1e-5)
    draws = posterior.predict(x, num_samples=1_000).to_frame(0.9)
    close = np.abs(draws["predicted_low"] - frame["predicted_low"]).max()
    assert close < 4 / math.sqrt(20)
