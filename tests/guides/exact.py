"""Exact expectations of the linear-Gaussian ELBO, and guides set to given Gaussians."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from pyro_bnn import SVI
from pyro_bnn.guides import AutoMultivariateNormal, Guide
from pyro_bnn.posterior import DrawsPosterior, GuidePosterior, Provenance
from pyro_bnn.program import Program
from tests.laws import objective
from tests.oracle import LinearGaussian


def multivariate_normal(
    oracle: LinearGaussian, mean: Tensor, covariance: Tensor
) -> AutoMultivariateNormal:
    """The guide with a given mean and covariance."""
    guide = AutoMultivariateNormal(oracle.model)
    at(guide, oracle)
    guide.set_moments(mean, covariance)
    return guide


def exact_posterior(oracle: LinearGaussian, **provenance: Any) -> GuidePosterior:
    """The oracle's posterior as what a fit returns."""
    guide = multivariate_normal(oracle, oracle.mean, oracle.covariance)
    program = Program(oracle.model, oracle.x, oracle.y)
    return GuidePosterior(program, guide, Provenance("AutoMultivariateNormal", "SVI", **provenance))


def stored_posterior(
    oracle: LinearGaussian, num_chains: int = 2, num_draws: int = 50, **options: Any
) -> DrawsPosterior:
    """Exact draws of the oracle's posterior as what a sampler returns."""
    exact = torch.distributions.MultivariateNormal(oracle.mean, oracle.covariance)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        z = exact.sample(torch.Size([num_chains, num_draws]))
    program = Program(oracle.model, oracle.x, oracle.y)
    return DrawsPosterior(program, z, Provenance("NUTS", "NUTS"), **options)


def sigma_points(size: int) -> Tensor:
    r"""Noise ``[2 M, M]`` of mean 0 and covariance I: :math:`\pm\sqrt M e_i`.

    The mean of a quadratic function over them is its exact expectation under N(0, I), and so is
    the mean of its gradient. A point estimate (M = 0) has one empty row.
    """
    if size == 0:
        return torch.zeros(1, 0, dtype=torch.float64)
    eye = math.sqrt(size) * torch.eye(size, dtype=torch.float64)
    return torch.cat([eye, -eye])


def expected_elbo(guide: Guide, oracle: LinearGaussian) -> tuple[float, list[Tensor]]:
    """Exact ELBO of a Gaussian guide on the oracle, and its gradient by every parameter."""
    program = Program(oracle.model, oracle.x, oracle.y)
    _, evaluate = objective(guide, program, captured=False)
    rows = program.batch(oracle.x, oracle.y)
    loss, *gradients = evaluate(sigma_points(guide.noise_dim), rows)
    return -float(loss), [-gradient for gradient in gradients]


def at(guide: Guide, oracle: LinearGaussian, **values: Tensor) -> Guide:
    """A guide on the oracle with parameters set to given values."""
    guide.setup(oracle.x[:1])
    guide.to(torch.float64)
    for name, value in values.items():
        if name in dict(guide.named_parameters()):
            with torch.no_grad():
                getattr(guide, name).copy_(value)
        else:
            setattr(guide, name, value)  # a constrained parameter
    return guide


def assert_svi_reaches(
    guide: Guide,
    oracle: LinearGaussian,
    mean: Tensor,
    covariance: Tensor,
    *,
    in_c: bool = True,
) -> None:
    """A fit from scratch ends at a known Gaussian optimum.

    The error of the last steps is what is left of the gradient noise under a decaying step size:
    some hundredths of the optimum's standard deviations, and a thousandth of a nat.

    Args:
        guide: The guide.
        oracle: The model and its data.
        mean: That of the optimum.
        covariance: That of the optimum.
        in_c: Whether the step can be written in C; Inductor would compile for longer than it runs.
    """
    engine = SVI(
        guide,
        num_steps=1_000,
        learning_rate=0.03,
        num_particles=16,
        schedule="cosine",
        compile=in_c,
    )
    posterior = engine.run(oracle.model, (oracle.x, oracle.y), progress=False)
    assert isinstance(posterior, GuidePosterior)
    torch.testing.assert_close(posterior.guide.sample(3), guide.sample(3), rtol=0, atol=0)
    m, s = (value.detach() for value in moments(guide))
    sd = covariance.diagonal().sqrt()
    zero = torch.zeros_like(covariance)
    torch.testing.assert_close((m - mean) / sd, zero[0], rtol=0, atol=0.05)
    torch.testing.assert_close((s - covariance) / sd.outer(sd), zero, rtol=0, atol=0.06)
    best = oracle.elbo(mean, covariance)
    elbo, _ = expected_elbo(guide, oracle)
    assert best - 0.005 < elbo < best + 1e-9


def moments(guide: Guide) -> tuple[Tensor, Tensor]:
    """Mean ``[P]`` and covariance ``[P, P]`` of a guide whose transport is affine, exactly."""
    z = guide.transport(sigma_points(guide.noise_dim))
    centred = z - z.mean(0)
    return z.mean(0), centred.mT @ centred / len(z)


def assert_stationary(guide: Guide, oracle: LinearGaussian) -> None:
    """The exact gradient of the ELBO is zero, up to rounding."""
    _, gradients = expected_elbo(guide, oracle)
    names = [name for name, _ in guide.named_parameters()]
    for name, gradient in zip(names, gradients, strict=True):
        zero = torch.zeros_like(gradient)
        torch.testing.assert_close(gradient, zero, rtol=0, atol=1e-9, msg=name)
