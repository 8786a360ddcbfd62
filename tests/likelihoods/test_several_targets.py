"""Two targets at once against the closed form of each: fit, prediction, units, export."""

from __future__ import annotations

import math

import pytest
import torch
from scipy import stats
from torch import Tensor
from torch.testing import assert_close

import pyro_bnn as bnn
from pyro_bnn.posterior import DrawsPosterior, Provenance
from pyro_bnn.program import Program
from tests.oracle import design, linear_gaussian

NOISE, PRIOR_SCALE, NUM_DRAWS = (0.5, 1.25), 1.5, 8_000
X = linear_gaussian().x  # [20, 3]
Y = torch.stack([linear_gaussian().y, 2 * X[:, 0] - X[:, 1].square()], 1)  # [20, 2]


def exact(target: int) -> tuple[Tensor, Tensor, float]:
    """Posterior mean ``[4]`` and covariance of (w, b) given one target alone, and its evidence."""
    a, y, noise = design(X), Y[:, target], NOISE[target]
    eye = torch.eye(4, dtype=torch.float64)
    covariance = torch.linalg.inv(a.T @ a / noise**2 + eye / PRIOR_SCALE**2)
    marginal = noise**2 * torch.eye(20, dtype=torch.float64) + PRIOR_SCALE**2 * a @ a.T
    evidence = stats.multivariate_normal(cov=marginal.numpy()).logpdf(y.numpy())
    return covariance @ a.T @ y / noise**2, covariance, float(evidence)


def joint_model() -> bnn.models.MLP:
    """One linear network of two outputs; z is weight [2, 3], then bias [2]."""
    prior, likelihood = bnn.priors.Normal(PRIOR_SCALE), bnn.likelihoods.Normal(NOISE)
    return bnn.models.MLP(3, 2, hidden=(), prior=prior, likelihood=likelihood).double()


def flat(values: list[Tensor]) -> Tensor:
    """(w, b) of each target ``[..., 4]`` as z ``[..., 8]``."""
    return torch.cat([v[..., :3] for v in values] + [v[..., 3:] for v in values], -1)


@pytest.fixture(scope="module")
def posterior() -> DrawsPosterior:
    """Draws of the exact posteriors of two separate fits, as one of the joint model."""
    generator = torch.Generator().manual_seed(0)
    parts = []
    for target in (0, 1):
        mean, covariance, _ = exact(target)
        u = torch.randn(NUM_DRAWS, 4, generator=generator, dtype=torch.float64)
        parts.append(mean + u @ torch.linalg.cholesky(covariance).T)
    program = Program(joint_model(), X, Y)
    units = bnn.data.Standardiser(torch.tensor([5.0, -2.0]).double(), torch.tensor([10.0, 0.1]))
    return DrawsPosterior(program, flat(parts)[None], Provenance("exact", "none", target=units))


def test_the_joint_density_is_that_of_two_separate_fits() -> None:
    program = Program(joint_model(), X, Y)
    z = torch.linspace(-1, 2, 24, dtype=torch.float64).reshape(3, 8)
    expected = torch.zeros(3, dtype=torch.float64)
    for target in (0, 1):  # log p(y, z) = log evidence + log posterior
        mean, covariance, evidence = exact(target)
        own = torch.cat([z[:, 3 * target : 3 * target + 3], z[:, 6 + target : 7 + target]], 1)
        q = torch.distributions.MultivariateNormal(mean, covariance)
        expected += evidence + q.log_prob(own)
    assert_close(program.log_joint(z, program.batch(X, Y)), expected, rtol=1e-10, atol=0)


@pytest.mark.slow("about a second")
def test_map_of_both_is_the_mean_of_each() -> None:
    fit = bnn.SVI(bnn.guides.AutoDelta, num_steps=2_000, learning_rate=0.03)
    z = fit.run(joint_model(), (X, Y), progress=False).unconstrained(1)[0]
    assert_close(z, flat([exact(0)[0], exact(1)[0]]), rtol=1e-4, atol=1e-4)


def test_predictions_are_those_of_each_fit(posterior: DrawsPosterior) -> None:
    prediction = posterior.predict(X, NUM_DRAWS)
    assert prediction.draws.shape == (NUM_DRAWS, 20, 2)
    assert prediction.quantile([0.1, 0.9]).shape == (2, 20, 2)
    log_density = torch.zeros(20, dtype=torch.float64)
    for target in (0, 1):
        mean, covariance, _ = exact(target)
        a = design(X)
        sd_f = ((a @ covariance) * a).sum(1).sqrt()
        sd = (sd_f**2 + NOISE[target] ** 2).sqrt()
        z = (prediction.mean[:, target] - a @ mean) / (sd_f / math.sqrt(NUM_DRAWS))
        assert float(z.abs().max()) < 4
        assert_close(prediction.sd[:, target], sd, rtol=0.05, atol=0)
        log_density += torch.distributions.Normal(a @ mean, sd).log_prob(Y[:, target])
    densities = posterior.log_likelihood((X, Y), NUM_DRAWS).exp()  # [S, N]
    error = densities.std(0) / densities.mean(0) / math.sqrt(NUM_DRAWS)  # of the log of their mean
    z = (prediction.log_prob(Y) - log_density) / error
    assert float(z.abs().max()) < 4


def test_units_are_those_of_each_target(posterior: DrawsPosterior) -> None:
    model, raw = posterior.predict(X, 50), posterior.predict(X, 50, raw=True)
    scale, loc = torch.tensor([10.0, 0.1]).double(), torch.tensor([5.0, -2.0]).double()
    for name in ("mean", "draws"):
        assert_close(getattr(raw, name), loc + scale * getattr(model, name), check_dtype=False)
    assert_close(raw.sd_epistemic, scale * model.sd_epistemic, check_dtype=False)


def test_the_tree_names_rows_and_outputs(posterior: DrawsPosterior) -> None:
    train, test = bnn.Dataset(X[:12], Y[:12]), bnn.Dataset(X[12:], Y[12:])
    tree = posterior.to_arviz(train, test, 40)
    for group, rows in (("posterior_predictive", "row"), ("predictions", "test_row")):
        assert tree[group]["y"].dims == ("chain", "draw", rows, "output")
    assert dict(tree["predictions"]["y_variance"].sizes)["output"] == 2
    assert tree["log_likelihood"]["y"].dims == ("chain", "draw", "row")
    assert tree["posterior"]["f"].dims == ("chain", "draw", "point", "f_output")
    assert_close(torch.tensor(tree["observed_data"]["y"].to_numpy()), Y[:12])
