"""Laplace's approximation: exact where the truth is Gaussian, and honest about the mode."""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from pyro_bnn import SVI, Laplace, bayesian, guides, likelihoods, models, priors
from pyro_bnn.capture import Captured, value_and_grad
from pyro_bnn.errors import DivergenceError, ModelError, OptionError, SiteError
from pyro_bnn.infer.curvature.gaussian_prior import GaussianPrior
from pyro_bnn.infer.curvature.precision import Dense
from pyro_bnn.infer.curvature.rows import RowTermsOf
from pyro_bnn.infer.inputs import as_dataset, program_of
from pyro_bnn.infer.laplace.curvature import CurvatureOf
from pyro_bnn.infer.laplace.mode import MinusLogJoint, PolishedMode, descend, polish, settle
from pyro_bnn.posterior import Posterior
from pyro_bnn.program.contract import FEW
from pyro_bnn.program.linearised import LinearisedProgram
from pyro_bnn.program.program import Program
from pyro_bnn.program.terms import Batch
from pyro_bnn.report.evaluation.fit_checks import is_at_mode
from tests.oracle import linear_gaussian

X = torch.linspace(-2, 2, 40, dtype=torch.float64).reshape(20, 2)
NOISE = torch.randn(20, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
Y = X[:, 0].sin() + 0.3 * X[:, 1].cos() + 0.3 * NOISE
CLASSES = (X[:, 0] > 0.2).double()
ORACLE = linear_gaussian()


def network(likelihood: Any = None, activation: str = "tanh", hidden: int = 4) -> models.MLP:
    likelihood = likelihoods.Normal(0.25) if likelihood is None else likelihood
    return models.MLP(2, hidden=(hidden,), activation=activation, likelihood=likelihood).double()


def fit(model: Any, data: Any = (X, Y), **options: Any) -> Any:
    given = {"num_steps": 200, "compile": False, **options}
    where = {name: given.pop(name) for name in ("init", "seed") if name in given}
    return Laplace(**given).run(model, data, progress=False, **where)


def hessian(program: Program, z: Tensor) -> Tensor:
    """Of minus the log joint density, by autograd."""
    rows = program.batch(X, Y)
    found: Tensor = torch.func.hessian(lambda z: -program.log_joint(z, rows))(z)
    return found


# --- exact where the truth is Gaussian


@pytest.mark.parametrize("predictive", ["linearised", "weights"])
def test_a_linear_model_has_its_exact_posterior(predictive: str) -> None:
    posterior = fit(ORACLE.model, (ORACLE.x, ORACLE.y), num_steps=3, predictive=predictive)
    q = posterior.guide.get_posterior()
    assert_close(q.loc.detach(), ORACLE.mean, rtol=1e-10, atol=1e-10)
    assert_close(q.covariance_matrix.detach(), ORACLE.covariance, rtol=1e-10, atol=1e-12)
    assert posterior.log_evidence == pytest.approx(ORACLE.log_evidence, rel=1e-10)
    assert posterior.newton_decrement < 1e-12
    f = posterior.function_draws(ORACLE.x, 20_000)[..., 0]
    mean, sd = ORACLE.function_moments(ORACLE.x)
    z = (f.mean(0) - mean) / (sd / len(f) ** 0.5)
    assert float(z.abs().max()) < 5
    assert float((f.std(0) / sd - 1).abs().max()) < 5 / (2 * len(f)) ** 0.5


def test_linearised_and_weights_are_the_same_functions_of_a_linear_model() -> None:
    first, second = (
        fit(ORACLE.model, (ORACLE.x, ORACLE.y), num_steps=3, predictive=predictive)
        for predictive in ("linearised", "weights")
    )
    of_both = [p.predict(ORACLE.x, 50, seed=1) for p in (first, second)]
    assert_close(of_both[0].function_draws, of_both[1].function_draws, rtol=1e-10, atol=1e-10)
    assert_close(of_both[0].draws, of_both[1].draws, rtol=1e-10, atol=1e-10)
    data = (ORACLE.x, ORACLE.y)
    assert_close(first.log_likelihood(data, 50), second.log_likelihood(data, 50))


def test_a_head_on_cached_features_has_the_posterior_of_the_head_on_its_body() -> None:
    body = nn.Sequential(nn.Linear(2, 5), nn.Tanh()).double()
    body.requires_grad_(requires_grad=False)
    head = nn.Linear(5, 1).double()
    prior, noise = priors.Normal(0.5), likelihoods.Normal(0.25)
    net = nn.Sequential(OrderedDict(body=body, head=head))
    whole = fit(bayesian(net, {"head.*": prior}, noise))
    cached = fit(bayesian(head, prior, noise), (body(X), Y))
    assert cached.log_evidence == pytest.approx(whole.log_evidence, rel=1e-9)
    draws = whole.predict(X, 50).draws
    assert_close(cached.predict(body(X), 50).draws, draws, rtol=1e-7, atol=1e-7)


@pytest.mark.parametrize("seed", [1, 2])
def test_log_evidence_is_the_elbo_of_a_linear_model(seed: int) -> None:
    posterior = fit(ORACLE.model, (ORACLE.x, ORACLE.y), num_steps=3, seed=seed)
    elbo, error = posterior.elbo((ORACLE.x, ORACLE.y), 100)
    assert elbo == pytest.approx(posterior.log_evidence, rel=1e-10)
    assert error < 1e-10


# --- curvature


def test_ggn_is_the_hessian_of_a_logistic_regression() -> None:
    model = models.LinearRegression(2, likelihood=likelihoods.Bernoulli()).double()
    ggn, exact = (
        fit(model, (X, CLASSES), curvature=curvature, num_steps=50)
        for curvature in ("ggn", "hessian")
    )
    a, b = (p.guide.get_posterior().precision_matrix.detach() for p in (ggn, exact))
    assert_close(a, b, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("activation", ["relu", "tanh"])
def test_ggn_and_what_the_residuals_bend_are_the_hessian(activation: str) -> None:
    program = Program(network(activation=activation), X, Y)
    z, rows = program.initial, program.batch(X, Y)
    terms = RowTermsOf(program, "ggn", rows, 1, is_full=True)
    ggn = terms(z.unsqueeze(0), rows).curvature
    residuals = program.function(z, X)[:, 0] - Y

    def bent(z: Tensor) -> Tensor:
        return (residuals * program.function(z, X)[:, 0]).sum() / 0.25**2

    prior = GaussianPrior.of(program, "the test").precision.diag()
    whole = ggn + torch.func.hessian(bent)(z) + prior
    assert_close(whole, hessian(program, z), rtol=1e-9, atol=1e-9)


@pytest.mark.slow("a second or more")
def test_the_full_precision_is_the_curvature_at_the_mode() -> None:
    posterior = fit(network(likelihoods.Normal()), num_steps=500)
    program, z = posterior.program, posterior.guide.centre()
    rows = program.batch(X, Y)
    gradient = torch.func.grad(lambda z: program.log_joint(z, rows))(z)  # of z, not of values
    assert float(gradient.abs().max()) < 1e-4
    J = torch.func.jacrev(lambda z: program.function(z, X)[:, 0])(z)
    s = program.constrain(z)["likelihood.scale"]
    expected = J.T @ J / s**2
    expected[-1, -1] += 2 * len(X)  # of log s, at sum r^2 / s^2 = N by expectation
    prior = torch.func.hessian(lambda z: -program.log_prior(z, X))(z)
    found = posterior.guide.get_posterior().precision_matrix.detach()
    assert_close(found, expected + prior, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("curvature", ["ggn", "hessian"])
def test_diagonal_is_the_diagonal_of_the_full_precision(curvature: str) -> None:
    model = models.LinearRegression(2, likelihood=likelihoods.Bernoulli()).double()
    whole, diagonal = (
        fit(model, (X, CLASSES), structure=structure, curvature=curvature)
        for structure in ("full", "diagonal")
    )
    precision = whole.guide.get_posterior().precision_matrix.diagonal()
    assert_close(diagonal.guide.scale**-2, precision, rtol=1e-6, atol=1e-8)


@pytest.mark.slow("a second or more")
def test_low_rank_of_all_directions_is_dense() -> None:
    start = SVI(guides.AutoDelta, num_steps=300).run(network(), (X, Y), progress=False)
    full, low = (
        fit(network(), structure=structure, init=start, num_steps=None)
        for structure in ("full", "low_rank")
    )
    a, b = (p.guide.get_posterior().precision_matrix.detach() for p in (full, low))
    assert_close(b, a, rtol=1e-5, atol=1e-5)
    assert low.log_evidence == pytest.approx(full.log_evidence, abs=1e-6)


def test_low_rank_keeps_the_largest_eigenvalues() -> None:
    posterior = fit(ORACLE.model, (ORACLE.x, ORACLE.y), structure="low_rank", rank=2, num_steps=3)
    found = posterior.guide.get_posterior().precision_matrix.detach()
    prior = torch.eye(4, dtype=torch.float64) / ORACLE.prior_scale**2
    values, vectors = torch.linalg.eigh(ORACLE.precision - prior)
    expected = (vectors[:, 2:] * values[2:]) @ vectors[:, 2:].T + prior
    assert_close(found, expected, rtol=1e-9, atol=1e-9)


# --- the linearised network


@pytest.mark.slow("a second or more")
def test_linearised_draws_are_the_tangent_of_the_network() -> None:
    posterior = fit(network(likelihoods.Normal()))
    program, m = posterior.program, posterior.guide.centre()
    z = posterior.unconstrained(30, seed=2)
    J = torch.func.jacrev(lambda z: program.function(z, X))(m)  # [N, 1, P]
    expected = program.function(m, X) + torch.einsum("nfp,sp->snf", J, z - m)
    assert_close(posterior.function_draws(X, 30, seed=2), expected, rtol=1e-9, atol=1e-9)
    scale = program.constrain(z)["likelihood.scale"]
    loc = expected[..., 0]
    density = torch.distributions.Normal(loc, scale.reshape(-1, 1)).log_prob(Y)
    assert_close(posterior.log_likelihood((X, Y), 30, seed=2), density, rtol=1e-9, atol=1e-9)
    weights = program.log_joint(z, program.batch(X, Y))  # of the model itself
    assert_close(posterior.log_joint((X, Y), 30, seed=2), weights, rtol=1e-9, atol=1e-9)


def test_linearised_classes_have_the_tangents_logits() -> None:
    model = network(likelihoods.Categorical(3))
    labels = torch.arange(20) % 3
    posterior = fit(model, (X, labels))
    f = posterior.function_draws(X, 40)
    assert_close(posterior.predict(X, 40).probs, f.softmax(-1).mean(0), rtol=1e-6, atol=1e-6)


def test_a_jacobian_for_all_draws_and_a_product_a_draw_are_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The noise scale, which y has beside f, is that of each draw."""
    posterior = fit(network(likelihoods.Normal()))
    of_all = posterior.predict(X, 40, seed=1)
    log_scale = posterior.unconstrained(40, seed=1)[:, -1]
    expected = (2 * log_scale).exp()[:, None, None].expand(40, 20, 1)
    assert_close(of_all.variances, expected, rtol=1e-10, atol=0)
    monkeypatch.setattr("pyro_bnn.program.linearised.JACOBIAN", 0)
    each = posterior.predict(X, 40, seed=1)
    assert_close(of_all.function_draws, each.function_draws, rtol=1e-10, atol=1e-10)
    assert_close(of_all.draws, each.draws, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(
    "scale",
    [lambda tau: torch.where(tau > 0, 2.0, 1.0), lambda tau: torch.tensor(2.0 if tau > 0 else 1.0)],
    ids=["where", "branch"],
)
def test_a_noise_scale_of_two_values_is_that_of_each_draw(
    scale: Callable[[Tensor], Tensor],
) -> None:
    def model(x: Tensor, y: Tensor | None = None) -> Tensor:
        tau = pyro.sample("tau", dist.Normal(0.0, 1.0))
        w = pyro.sample("w", dist.Normal(torch.zeros(2).double(), 1.0).to_event(1))
        f = pyro.deterministic("f", x @ w + tau)
        with pyro.plate("data", len(x)):
            return pyro.sample("y", dist.Normal(f, scale(tau)), obs=y)

    z = torch.tensor([[-1.0, 0.5, 0.5], [1.0, 0.5, 0.5]]).double()
    linearised = LinearisedProgram(Program(model, X, Y), z[0])
    with linearised.reusing(linearised.for_all_draws(X)):
        found = linearised.predictive(z, X).y
    assert_close(found.stddev, torch.tensor([[1.0], [2.0]]).expand(2, len(X)))


def test_rows_that_depend_on_each_other_are_refused() -> None:
    class Centred(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x - x.mean(0)

    net = nn.Sequential(nn.Linear(2, 3), Centred(), nn.Linear(3, 1)).double()
    model = bayesian(net, likelihood=likelihoods.Normal(0.25))
    with pytest.raises(ModelError, match="depends on other rows"):
        Program(model, X, Y)
    plain = LinearisedProgram(Program(network(), X, Y), torch.zeros(17).double())
    f, jacobian = plain.for_all_draws(X)
    assert f.shape == (20, 1)
    assert jacobian.shape == (20, 1, 17)


def test_rows_that_mix_only_where_they_are_many_have_the_tangent_of_all() -> None:
    """The contract is looked at on 100 rows; beyond them no row is taken for itself."""
    mixed = FEW + 1

    class Centred(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x - x.mean(0) if len(x) >= mixed else x

    net = nn.Sequential(nn.Linear(2, 3), nn.Tanh(), Centred(), nn.Linear(3, 1)).double()
    program = Program(bayesian(net, likelihood=likelihoods.Normal(0.25)), X, Y)
    linearised = LinearisedProgram(program, program.initial)
    x = torch.randn(mixed, 2, generator=torch.Generator().manual_seed(0)).double()
    assert len(linearised.for_all_draws(x[:FEW])) == 2
    assert linearised.for_all_draws(x) == ()
    z = program.initial + torch.tensor([[0.1], [-0.3]])
    J = torch.func.jacrev(lambda z: program.function(z, x))(program.initial)  # [N, 1, P]
    expected = program.function(program.initial, x)
    expected = expected + torch.einsum("nfp,sp->snf", J, z - program.initial)
    with linearised.reusing(linearised.for_all_draws(x)):
        assert_close(linearised.function(z, x), expected, rtol=1e-9, atol=1e-9)


def test_a_model_whose_y_is_not_given_f_is_not_linearised() -> None:
    def model(x: Tensor, y: Tensor | None = None) -> Tensor:
        w = pyro.sample("w", dist.Normal(torch.zeros(2).double(), 1.0).to_event(1))
        f = x @ w
        pyro.deterministic("f", f)
        with pyro.plate("data", len(x)):
            return pyro.sample("y", dist.Normal(f, 0.3), obs=y)

    with pytest.raises(ModelError, match="y does not depend on the recorded f"):
        fit(model, num_steps=3)
    assert fit(model, num_steps=3, predictive="weights").newton_decrement < 1e-10


@pytest.mark.slow("a second or more")
def test_saved_and_loaded_it_predicts_the_same(tmp_path: Path) -> None:
    for predictive in ("linearised", "weights"):
        posterior = fit(network(), predictive=predictive, num_steps=50)
        posterior.save(tmp_path / "fit")
        read = Posterior.load(tmp_path / "fit", network())
        assert type(read) is type(posterior)
        assert read.options == posterior.options
        assert_close(read.function_draws(X, 9), posterior.function_draws(X, 9), rtol=0, atol=0)


# --- the mode


def test_the_mode_is_that_of_z() -> None:
    """A point estimate maximises the density of values, which lacks the Jacobian."""
    data = as_dataset((ORACLE.x, ORACLE.y))
    model = models.LinearRegression(3, likelihood=likelihoods.Normal()).double()
    program = program_of(model, data)
    point: Any = SVI(guides.AutoDelta, num_steps=2_000).run(model, data, progress=False)
    posterior = Laplace().run(model, data, init=point, progress=False)
    rows = program.batch(data.x, data.y)
    slopes = [
        torch.func.grad(lambda z: program.log_joint(z, rows))(p.guide.centre())[-1]
        for p in (point, posterior)
    ]
    assert float(slopes[0]) == pytest.approx(1.0, abs=0.05)  # d log|ds/dlog s| / d log s
    assert float(slopes[1]) == pytest.approx(0.0, abs=1e-5)
    assert len(posterior.losses) == 0  # a point estimate needs no more steps


@pytest.mark.slow("a second or more")
def test_a_saddle_is_left() -> None:
    """At weights of zero the gradient of a network without bias vanishes: a saddle."""
    model = network(activation="tanh")
    y = X[:, 0] - X[:, 0].mean()
    program = Program(model, X, y)
    prior = GaussianPrior.of(program, "the test")
    objective = MinusLogJoint(program, program.batch(X, y), prior)
    saddle = torch.zeros_like(program.initial)
    assert float(objective(saddle)[1].abs().max()) < 1e-10
    eye = torch.eye(len(saddle), dtype=torch.float64)
    mode = polish(objective, lambda z: Dense(eye), saddle)
    assert mode.is_mode
    assert float(mode.minus_log_joint) < float(objective(saddle)[0]) - 1
    assert float(torch.linalg.eigvalsh(hessian_of(objective, mode.z)).min()) > -1e-6


def hessian_of(objective: MinusLogJoint[Any], z: Tensor) -> Tensor:
    hessian_times = objective.hessian_at(z)
    rows = [hessian_times(v) for v in torch.eye(len(z), dtype=z.dtype)]
    return torch.stack(rows)


def test_a_mode_stays_where_it_is() -> None:
    model, data = network().float(), (X.float(), Y.float())
    first = fit(model, data)
    again = fit(model, data, init=first, num_steps=None)
    assert_close(again.guide.centre(), first.guide.centre(), rtol=0, atol=0)
    assert again.log_evidence == first.log_evidence
    assert again.options["polish_gain"] == 0


def test_at_a_mode_the_curvature_is_taken_once() -> None:
    model = models.LinearRegression(X.shape[1], likelihood=likelihoods.Normal(0.3)).double()
    program = Program(model, X, Y)
    objective = MinusLogJoint(program, program.batch(X, Y), GaussianPrior.of(program, "the test"))
    z = program.initial
    precision, taken = Dense(hessian_of(objective, z)), list[Tensor]()
    z = z - precision.solve(objective(z)[1])  # of a quadratic function the mode

    def precision_at(z: Tensor) -> Dense:
        taken.append(z)
        return precision

    mode = polish(objective, precision_at, z)
    assert torch.equal(mode.z, z)
    assert mode.gain == 0
    assert len(taken) == 1


def test_products_with_the_hessian_are_those_of_the_matrix() -> None:
    program = Program(network(likelihoods.Normal()), X, Y)
    objective = MinusLogJoint(program, program.batch(X, Y), GaussianPrior.of(program, "the test"))
    objective.chunk = 7  # of 20 rows
    z = program.initial
    assert_close(hessian_of(objective, z), hessian(program, z), rtol=1e-8, atol=1e-8)
    value, gradient = objective(z)
    rows = program.batch(X, Y)
    assert_close(value, -program.log_joint(z, rows), rtol=1e-10, atol=0)
    assert_close(gradient, torch.func.grad(lambda z: -program.log_joint(z, rows))(z))


@pytest.mark.slow("a second or more")
def test_what_has_no_mode_is_refused_by_name() -> None:
    model = models.LinearRegression(2, likelihood=likelihoods.Normal(dist.HalfNormal(1.0))).double()
    with pytest.raises(DivergenceError, match="found no mode") as found:
        fit(model, (X[:2], torch.zeros(2, dtype=torch.float64)), num_steps=10)
    assert isinstance(found.value.posterior, Posterior)  # the point that was reached


def test_what_is_not_near_a_mode_is_refused_with_its_distance(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("pyro_bnn.infer.laplace.mode.ROUNDS", 1)
    monkeypatch.setattr("pyro_bnn.infer.laplace.mode.STEPS", 1)
    with pytest.raises(DivergenceError, match=r"would still gain .* nats.*most of layers\."):
        fit(network(), num_steps=1)


def test_a_pretrained_network_gets_a_head() -> None:
    """The frozen layers are no sites, so that the Gaussian is over the head alone."""
    torch.manual_seed(0)
    body, head = nn.Sequential(nn.Linear(2, 5), nn.Tanh()), nn.Linear(5, 1)
    net = nn.Sequential(OrderedDict(body=body, head=head)).double()
    body.requires_grad_(requires_grad=False)
    prior = {"head.*": priors.Normal(1.0)}
    model = bayesian(net, prior=prior, likelihood=likelihoods.Normal(0.25))
    posterior = fit(model, num_steps=20)
    assert [site.name for site in posterior.program.sites] == ["head.weight", "head.bias"]
    a = torch.cat([body(X), torch.ones(20, 1)], -1)
    precision = a.T @ a / 0.25**2 + torch.eye(6)
    found = posterior.guide.get_posterior()
    assert_close(found.precision_matrix.detach(), precision, rtol=1e-9, atol=1e-9)
    mean = torch.linalg.solve(precision, a.T @ Y / 0.25**2)
    assert_close(posterior.guide.centre(), mean, rtol=1e-9, atol=1e-9)


@pytest.mark.slow("a second or more")
def test_kinks_are_modes_though_their_gradient_does_not_vanish() -> None:
    posterior = fit(network(activation="relu", hidden=30), num_steps=2_000, compile=True)
    assert posterior.options["compiled"] is True
    assert posterior.newton_decrement > 0.05
    assert posterior.options["polish_gain"] < 0.01
    assert is_at_mode(posterior)
    program, rows = posterior.program, posterior.program.batch(X, Y)
    start = posterior.guide.centre().detach()
    z = start.clone().requires_grad_()
    gradient = Captured(
        value_and_grad(lambda at, _: (-program.log_joint(at[0], rows), ()), 1), "minus log p"
    )
    adam = torch.optim.Adam([z], lr=1e-4)
    rates = torch.optim.lr_scheduler.LinearLR(adam, 1.0, 0.0, total_iters=1_000)
    for _ in range(1_000):
        z.grad = gradient(z.detach())[1]
        adam.step()
        rates.step()
    assert float(program.log_joint(z.detach(), rows) - program.log_joint(start, rows)) < 0.01


@pytest.mark.slow("a second or more")
def test_a_point_that_is_no_mode_yet_is_told_with_its_gain(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pyro_bnn.infer.laplace.mode.RATES", (0.1,))
    for module in ("mode", "laplace"):
        monkeypatch.setattr(f"pyro_bnn.infer.laplace.{module}.ALONG_KINKS", 0.01)
    with caplog.at_level(logging.WARNING, "pyro_bnn"):
        posterior = fit(network(activation="relu", hidden=30), num_steps=2_000, compile=True)
    gain, decrement = posterior.options["polish_gain"], posterior.newton_decrement
    assert gain >= 0.01
    told = f"gained {gain:.2g} nats, where 0.01 are allowed (Newton's decrement {decrement:.3g})"
    assert told in caplog.text
    assert is_at_mode(posterior) is (gain < 0.5)


def test_along_a_kink_it_goes_to_the_least_value() -> None:
    """Of 3 |a - b| + (a - 3)^2 / 2 + (b + 1)^2 / 2: 4 at a = b = 1, where the gradient jumps."""

    class Kinked:
        rows, is_convex = Batch(torch.zeros(10, 1), torch.zeros(10)), False

        def __call__(self, z: Tensor) -> tuple[Tensor, Tensor]:
            kink, centre = torch.tensor([3.0, -3.0]).double(), torch.tensor([3.0, -1.0]).double()
            value = 3 * (z[0] - z[1]).abs() + (z - centre).square().sum() / 2
            return value, (z[0] - z[1]).sign() * kink + z - centre

    objective: Any = Kinked()
    precision = Dense(torch.eye(2).double())
    z = torch.tensor([2.0, 2.0 + 1e-9], dtype=torch.float64)  # where a line search stands still
    value, gradient = objective(z)
    stalled, gain = descend(objective, precision, z, 1e-3)
    assert_close(stalled, z, rtol=0, atol=1e-6)
    steps = 0.5 * gradient * precision.solve(gradient)
    mode = settle(objective, lambda _: precision, PolishedMode(z, value, steps, gain))
    assert mode.is_mode
    assert mode.decrement > 0.9  # 1, 4 or 25, by the side that it is on
    assert float(mode.minus_log_joint) == pytest.approx(4.0, abs=0.01)
    again = settle(objective, lambda _: precision, mode)
    assert_close(again.z, mode.z, rtol=0, atol=0)  # a mode stays where it is


@pytest.mark.slow("a second or more")
def test_an_indefinite_hessian_is_refused_with_its_eigenvalue() -> None:
    with pytest.raises(DivergenceError, match=r'eigenvalue -.*Take curvature="ggn"'):
        fit(network(activation="relu", hidden=30), curvature="hessian", num_steps=2_000)


def test_a_curvature_that_is_no_precision_is_refused_for_what_it_is() -> None:
    program = Program(network(), X, Y)
    objective = MinusLogJoint(program, program.batch(X, Y), GaussianPrior.of(program, "the test"))
    curvature, z = CurvatureOf(objective, "full", "ggn", 1), program.initial
    ones = torch.ones(len(z), len(z), dtype=torch.float64)
    with pytest.raises(DivergenceError, match=r"rounding errors.*fixed scale, or prior_scales="):
        curvature.with_prior(1e20 * ones, z)  # positive, but 1e20 + 1 is 1e20
    with pytest.raises(DivergenceError, match=r"eigenvalue -.* no Gaussian has it. Raise num_st"):
        curvature.with_prior(-1e3 * ones, z)  # with the advice to take what is there left out


# --- what it serves


@pytest.mark.slow("a second or more")
def test_centred_hierarchies_are_refused_and_others_warned_of(
    caplog: pytest.LogCaptureFixture,
) -> None:
    centred = models.MLP(2, hidden=(3,), prior=priors.HalfCauchyScale(centred=True))
    with pytest.raises(SiteError, match=r"no bound where the scale goes to 0.*centred=False"):
        fit(centred, (X, Y))
    prior = priors.HalfCauchyScale()
    model = models.MLP(2, hidden=(3,), activation="tanh", prior=prior).double()
    with caplog.at_level(logging.WARNING, "pyro_bnn"):
        assert fit(model).newton_decrement < 0.01
    assert "lies in a funnel" in caplog.text


def test_real_priors_that_are_no_gaussians_are_refused() -> None:
    model = models.MLP(2, hidden=(3,), prior=priors.Laplace())
    with pytest.raises(SiteError, match="Laplace adds the curvature of a Gaussian prior"):
        fit(model)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"structure": "dense"}, "structure is"),
        ({"predictive": "glm"}, "predictive is"),
        ({"curvature": "hessian", "structure": "low_rank"}, "has not"),
        ({"num_steps": -1}, "num_steps"),
        ({"rank": 0}, "rank"),
    ],
)
def test_options_are_checked(options: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        Laplace(**options)


def test_too_large_a_matrix_is_refused() -> None:
    model = models.MLP(2, hidden=(1_300,))
    with pytest.raises(OptionError, match=r"5,202 x 5,202.*last_layer"):
        fit(model, num_steps=1)
