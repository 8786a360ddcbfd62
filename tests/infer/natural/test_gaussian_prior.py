"""Priors that natural gradients take: Gaussians, and positive sites by Gaussians and gradients."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from pyro_bnn import IVON, SLANG, VOGN, VON, Vadam, likelihoods, models, priors
from pyro_bnn.errors import SiteError
from pyro_bnn.infer.curvature.gaussian_prior import GaussianPrior, correction_of
from pyro_bnn.program import Program
from tests.infer.natural.hand import advance, make_run
from tests.oracle import linear_gaussian

ORACLE = linear_gaussian()
DATA = (ORACLE.x, ORACLE.y)


@pytest.mark.slow("about a second")
def test_a_positive_site_has_the_gaussian_at_its_mode_and_the_rest_by_gradients() -> None:
    r"""HalfNormal(1) of a scale e^z: log p = z - e^{2z} / 2, mode 0, curvature 2 there."""
    model = models.MLP(3, hidden=(2,), likelihood=likelihoods.Normal()).double()
    program = Program(model, *DATA)
    prior = GaussianPrior.of(program, "VOGN")
    (noise,) = (site for site in program.sites if not site.is_real)
    at = slice(noise.start, noise.stop)
    assert not prior.is_exact
    torch.testing.assert_close(prior.loc[at], torch.zeros(1).double(), rtol=0, atol=1e-6)
    torch.testing.assert_close(prior.precision[at], torch.full((1,), 2.0).double())
    z = torch.randn(4, program.num_latents, dtype=torch.float64)
    correction = correction_of(program, prior, has_hessian=True, is_full=False, is_captured=True)
    more, gradient, bends = correction(z)
    expected = torch.zeros_like(z)
    expected[:, at] = -1 + (2 * z[:, at]).exp() - 2 * z[:, at]
    torch.testing.assert_close(gradient, expected, rtol=1e-6, atol=1e-6)
    hessian = torch.zeros(program.num_latents, dtype=torch.float64)
    hessian[at] = (2 * (2 * z[:, at]).exp() - 2).mean(0)
    torch.testing.assert_close(bends.mean(0), hessian, rtol=1e-6, atol=1e-6)
    gaussians = torch.distributions.Normal(prior.loc, prior.precision.rsqrt()).log_prob(z).sum(-1)
    torch.testing.assert_close(gaussians - more, program.log_prior(z, ORACLE.x))


@pytest.mark.slow("about a second")
def test_the_prior_of_a_learned_scale_counts_once_however_often_the_data_do() -> None:
    """A step of VON at the mean goes along w times the slope of the nll, plus the prior's."""
    model = models.LinearRegression(3, likelihood=likelihoods.Normal()).double()
    program = Program(model, *DATA)
    batch, start = program.batch(*DATA), torch.linspace(-1, 1, 5).double()
    engine = VON(
        num_steps=1,
        learning_rate=0.1,
        schedule="constant",
        expectation="mean",
        data_factor=2.0,
        temperature=0.5,
    )
    run: Any = advance(make_run(engine, model, DATA, start), 1)
    leaf = start.clone().requires_grad_()
    joint = 4.0 * program.log_likelihood(leaf, batch).sum() + program.log_prior(leaf, ORACLE.x)
    (slope,) = torch.autograd.grad(joint, leaf)
    torch.testing.assert_close((run.mean - start) * run.q.values / 0.1, slope)


@pytest.mark.slow("a second or more")
@pytest.mark.parametrize("cls", [VON, VOGN, Vadam, IVON, SLANG])
def test_learned_noise_is_learned(cls: Any) -> None:
    """The noise that data were made with is in the middle of its posterior; losses are the ELBO."""
    model = models.LinearRegression(
        3, prior=priors.Normal(ORACLE.prior_scale), likelihood=likelihoods.Normal()
    ).double()
    engine = cls(num_steps=600, num_particles=4)
    posterior = engine.run(model, DATA, progress=False)
    name = next(site.name for site in posterior.program.sites if not site.is_real)
    low, high = posterior.guide.quantiles([1e-4, 1 - 1e-4])[name]
    if cls is Vadam:  # its weights are too wide, and the noise is what they leave unexplained
        assert ORACLE.noise < high
    else:
        assert low < ORACLE.noise < high
    elbo, error = posterior.elbo(DATA, 2_000)
    found = posterior.losses[-100:]
    assert abs(float(-found.mean()) - elbo) < 5 * (error + float(found.std()) / 10)


@pytest.mark.parametrize("cls", [VON, VOGN, Vadam, IVON, SLANG])
def test_other_priors_are_refused_with_the_reason(cls: Any) -> None:
    prior: Any = {"layers.0.*": priors.Laplace(), "*": priors.Normal()}
    with pytest.raises(
        SiteError,
        match=rf"{cls.__name__} adds the curvature of a Gaussian prior in closed form, but that of "
        "'layers.0.weight', 'layers.0.bias' is no independent Gaussian",
    ):
        cls(num_steps=1).run(models.MLP(3, prior=prior).double(), DATA, progress=False)
