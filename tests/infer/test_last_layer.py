"""Variational Bayesian last layers: against draws of the layer, and against exact posteriors."""

from __future__ import annotations

import functools
from collections import OrderedDict
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from pyro_bnn import SVI, Program, bayesian, guides, likelihoods, models, priors
from pyro_bnn.errors import OptionError, SiteError
from pyro_bnn.guides import AutoComposite, AutoDelta, AutoNormal
from pyro_bnn.infer.batches import Minibatches
from pyro_bnn.infer.inputs import set_up
from pyro_bnn.infer.svi.estimators.last_layer import LastLayer
from pyro_bnn.infer.svi.training import Training

GENERATOR = torch.Generator().manual_seed(0)
X = torch.randn(30, 3, generator=GENERATOR, dtype=torch.float64)
Y = X[:, 0].sin() + 0.3 * X[:, 1] + 0.2 * torch.randn(30, generator=GENERATOR).double()
BOTH = torch.stack([Y, X[:, 2].square()], 1)
CLASSES = (Y > 0).double()
COUNTS = Y.exp().round()
THREE = COUNTS.clamp(max=2).long()
NUM_DRAWS = 20_000


class Tempered(likelihoods.Categorical):
    """Classes whose logits are not f itself."""

    def __init__(self) -> None:
        super().__init__(3)

    def distribution(self, f: Tensor) -> Any:
        return super().distribution(f / 2)


def mlp(likelihood: Any = None, **options: Any) -> models.MLP:
    likelihood = likelihoods.Normal(0.25) if likelihood is None else likelihood
    return models.MLP(3, hidden=(5,), likelihood=likelihood, **options).double()


def at_random(model: Any, y: Tensor, **options: Any) -> tuple[Program, Any]:
    """A program and a guide whose parameters are all moved."""
    program = Program(model, X, y)
    guide = AutoComposite(model, **options)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        set_up(guide, program)
    with torch.no_grad():
        for value in guide.parameters():
            value.add_(0.5 * torch.randn(value.shape, generator=GENERATOR, dtype=torch.float64))
    return program, guide


def expected(program: Program, guide: Any, y: Tensor, noise: Tensor) -> Tensor:
    """Expected log densities ``[S, B]`` of the rows by the estimator."""
    estimator = LastLayer(program, guide)
    own = dict(guide.named_parameters())
    terms = guide.terms(own, noise)
    batch = program.batch(X, y)
    rows, scale = estimator.rows(terms, (noise,), batch, program.params, own)
    assert scale == 1
    return rows.detach()


@pytest.mark.parametrize(
    ("likelihood", "y"),
    [
        (likelihoods.Normal(0.25), Y),
        (likelihoods.Normal(), Y),  # its scale is drawn with the other sites
        (likelihoods.Normal([0.25, 0.5]), BOTH),
        (likelihoods.Bernoulli(), CLASSES),
        (likelihoods.Poisson(), COUNTS),
        (likelihoods.StudentT(df=4.0, scale=0.5), Y),
        (likelihoods.StudentT(), BOTH),  # a scale for each, drawn with the other sites
        (likelihoods.HeteroscedasticNormal(), Y),
        (likelihoods.HeteroscedasticNormal(), BOTH),
        (likelihoods.Categorical(2), CLASSES.long()),
    ],
    ids=[
        *("Gaussian", "noise learned", "two outputs", "classes", "counts", "t", "two of t"),
        *("noise of an output", "two noises of outputs", "two logits"),
    ],
)
@pytest.mark.parametrize(
    "part", ["AutoMultivariateNormal", "AutoNormal", "AutoLowRankMultivariateNormal"]
)
def test_the_expectation_is_that_of_many_draws_of_the_layer(
    likelihood: Any, y: Tensor, part: str
) -> None:
    outputs = 1 if y.ndim == 1 else 2
    program, guide = at_random(
        mlp(likelihood, num_outputs=outputs), y, parts={"last layer": {"guide": part}}
    )
    noise = guide.draw_noise(2, torch.Generator().manual_seed(1))
    found = expected(program, guide, y, noise)
    of_layer = guide.parts[0].noise_dim
    batch = program.batch(X, y)
    for own, rows in zip(noise, found, strict=True):
        many = own.repeat(NUM_DRAWS, 1)  # of all else the same draw
        many[:, :of_layer].normal_(generator=GENERATOR)
        with torch.no_grad():
            draws = program.log_likelihood(guide.transport(many), batch)  # [S, N]
        error = draws.std(0) / NUM_DRAWS**0.5
        assert float(((draws.mean(0) - rows) / error).abs().max()) < 5
        total = draws.sum(-1)
        assert abs(float(total.mean() - rows.sum())) < 5 * float(total.std()) / NUM_DRAWS**0.5


def test_gaussian_noise_costs_the_variance_of_f_over_twice_that_of_the_noise() -> None:
    program, guide = at_random(mlp(), Y, default=AutoDelta)
    found = expected(program, guide, Y, torch.zeros(1, guide.noise_dim).double())[0]
    z = guide.centre()
    first = program.constrain(z)
    h = torch.relu(X @ first["layers.0.weight"].T + first["layers.0.bias"])
    phi = torch.cat([h, torch.ones(30, 1)], -1)
    S = guide.parts[0].get_posterior().covariance_matrix.detach()
    variance = ((phi @ S) * phi).sum(-1)
    f = program.function(z, X)[:, 0]
    density = torch.distributions.Normal(f, 0.25).log_prob(Y)
    assert_close(found, density - variance / (2 * 0.25**2), rtol=1e-9, atol=1e-9)


def test_beside_a_point_estimate_nothing_is_random() -> None:
    svi = SVI(
        functools.partial(AutoComposite, default=AutoDelta), estimator="last_layer", compile=False
    )
    program, guide = at_random(mlp(likelihoods.Normal()), Y, default=AutoDelta)
    run = Training(svi, program, guide, 0, batches=Minibatches(program.batch(X, Y), None, 0))
    run.go()
    losses = []
    for seed in range(2):
        noise = guide.draw_noise(1, torch.Generator().manual_seed(seed))
        rest = (noise, X, Y.unsqueeze(-1), torch.ones(()).double())
        losses.append(float(run.loss(run.parameters, rest)[0].detach()))
    assert losses[0] == losses[1]


def head(**options: Any) -> tuple[Any, nn.Module]:
    """A Bayesian head on a body that is held fixed."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        body = nn.Sequential(nn.Linear(3, 4), nn.Tanh())
        net = nn.Sequential(OrderedDict(body=body, head=nn.Linear(4, 1))).double()
    body.requires_grad_(requires_grad=False)
    prior = {"head.*": priors.Normal(1.5)}
    return bayesian(net, prior=prior, likelihood=likelihoods.Normal(0.25), **options), body


def exact() -> tuple[Any, Tensor, Tensor, float]:
    """A model with a fixed body, the mean and covariance of its head, and the log evidence."""
    model, body = head()
    phi = torch.cat([body(X).detach(), torch.ones(30, 1)], -1)
    precision = phi.T @ phi / 0.25**2 + torch.eye(5) / 1.5**2
    mean = torch.linalg.solve(precision, phi.T @ Y / 0.25**2)
    marginal = 0.25**2 * torch.eye(30) + 1.5**2 * phi @ phi.T
    zero = torch.zeros(30).double()
    evidence = torch.distributions.MultivariateNormal(zero, marginal).log_prob(Y)
    return model, mean, torch.linalg.inv(precision), float(evidence)


def test_on_a_fixed_body_the_exact_posterior_is_its_optimum() -> None:
    """The bound is the evidence there, without a draw, and no gradient is left."""
    model, mean, covariance, evidence = exact()
    program, guide = at_random(model, Y)
    guide.parts[0].set_moments(mean, covariance)
    program.prepare(guide)
    params = {f"guide.{name}": value for name, value in guide.named_parameters()}
    noise = guide.draw_noise(1, torch.Generator().manual_seed(0))
    estimator = LastLayer(program, guide)
    terms = program.elbo(guide, params, noise, program.batch(X, Y), estimator)
    elbo = terms.expected_log_likelihood - terms.kl
    assert float(elbo.detach()) == pytest.approx(evidence, rel=1e-10)
    for slope in torch.autograd.grad(elbo, list(params.values())):
        assert float(slope.abs().max()) < 1e-8


@pytest.mark.slow("a second or more")
def test_on_a_fixed_body_a_run_arrives_there() -> None:
    model, mean, covariance, evidence = exact()
    svi = SVI(
        AutoComposite, estimator="last_layer", num_steps=2_000, learning_rate=0.1, compile=True
    )
    posterior: Any = svi.run(model, (X, Y), progress=False)
    assert posterior.options["compiled"] is True
    assert evidence - 0.1 < -posterior.losses[-1] < evidence + 1e-9
    white = torch.linalg.cholesky(covariance)
    error = torch.linalg.solve_triangular(
        white, (posterior.guide.centre() - mean).unsqueeze(-1), upper=False
    )
    assert float(error.square().sum()) < 0.2  # twice the KL of the means


@pytest.mark.slow("compiles")
def test_a_compiled_step_is_the_plain_one() -> None:
    losses = []
    for compiled in (True, False):
        svi = SVI(
            functools.partial(AutoComposite, default=AutoNormal),
            estimator="last_layer",
            num_steps=30,
            num_particles=2,
            batch_size=10,
            compile=compiled,
        )
        posterior: Any = svi.run(mlp(likelihoods.Normal()), (X, Y), progress=False)
        assert posterior.options["compiled"] is compiled
        losses.append(torch.tensor(posterior.losses))
    assert_close(losses[0], losses[1], rtol=1e-6, atol=1e-6)


# --- what is refused


@pytest.mark.parametrize(
    ("likelihood", "y", "options", "error", "message"),
    [
        (None, Y, {"parts": {"layers.*": AutoNormal}}, SiteError, r"not in layers\.0\.weight, "),
        (None, Y, {"parts": {"layers.1": AutoDelta}}, OptionError, "AutoDelta is none"),
        (None, Y, {"parts": {"layers.1": guides.AutoFlow}}, OptionError, "AutoFlow is none"),
        (likelihoods.Normal(), Y, {"parts": {"*[!0].[wbs]*": AutoNormal}}, SiteError, r"d\.scale"),
        (Tempered(), THREE, {}, OptionError, "this Categorical several outputs .*last_layer_draws"),
        (
            likelihoods.HeteroscedasticNormal(),
            Y,
            {"parts": {"layers.1": AutoDelta}},
            OptionError,
            "AutoDelta",
        ),
    ],
)
def test_what_has_no_closed_form_is_refused(
    likelihood: Any, y: Tensor, options: dict[str, Any], error: Any, message: str
) -> None:
    svi = SVI(
        functools.partial(AutoComposite, **options),
        estimator="last_layer",
        num_steps=1,
        compile=False,
    )
    with pytest.raises(error, match=message):
        svi.run(mlp(likelihood), (X, y), progress=False)


def test_other_guides_are_refused() -> None:
    svi = SVI(AutoNormal, estimator="last_layer", num_steps=1)
    with pytest.raises(OptionError, match=r"as guides\.AutoComposite has it, not AutoNormal"):
        svi.run(mlp(), (X, Y), progress=False)
