"""The infinite-width kernel against integrals and wide networks, its posterior by other means."""

from __future__ import annotations

import math
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyro.distributions as dist
import pytest
import torch
from pyro.infer import Predictive
from scipy import integrate, stats
from torch import Tensor, nn

from pyro_bnn import NUTS, compare, data, likelihoods, models, priors
from pyro_bnn.data import Dataset
from pyro_bnn.diagnostics import NNGP, GaussianProcess
from pyro_bnn.errors import ModelError, OptionError, ShapeError, SiteError
from pyro_bnn.posterior.protocol import PosteriorLike
from pyro_bnn.report import compare_files

FIXED = likelihoods.Normal(scale=0.25)


def rows(num_rows: int, num_inputs: int = 2, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(num_rows, num_inputs, generator=generator, dtype=torch.float64)


def mlp(*hidden: int, num_inputs: int = 2, num_outputs: int = 1, **options: Any) -> models.MLP:
    options = {"likelihood": FIXED, "prior": priors.Normal(0.5), **options}
    return models.MLP(num_inputs, num_outputs, hidden=hidden, **options).double()


# The kernel


@pytest.mark.parametrize(
    "activation", ["relu", "leaky_relu", nn.LeakyReLU(0.3), nn.ReLU(), "erf", "identity"]
)
def test_one_layer_is_the_integral_over_both_units(activation: Any) -> None:
    x = torch.tensor([[0.3, -1.0], [1.5, 0.4]], dtype=torch.float64)
    model = mlp(8, activation=activation)
    first = 0.25 + 0.25 * (x @ x.T).numpy()
    points, weights = np.polynomial.legendre.leggauss(100)
    # piecewise smooth in polar coordinates: u = L (r cos t, r sin t), kinks at angles
    tril = np.linalg.cholesky(first)
    kinks = [math.pi / 2, 3 * math.pi / 2]
    kinks += [math.atan2(-tril[1, 0], tril[1, 1]) % (2 * math.pi)]
    kinks += [(kinks[-1] + math.pi) % (2 * math.pi)]
    edges = np.sort([0.0, *kinks, 2 * math.pi])

    def over_radius(angle: float) -> float:
        r = 4.5 * (points + 1)  # to 9 standard deviations
        u = tril @ np.stack([r * math.cos(angle), r * math.sin(angle)])
        phi = model.activation(torch.as_tensor(u)).numpy()
        return float((4.5 * weights * phi[0] * phi[1] * r * np.exp(-(r**2) / 2)).sum())

    pieces = [
        integrate.quad(over_radius, a, b, epsabs=1e-13, epsrel=1e-13)[0] for a, b in pairwise(edges)
    ]
    expected = 0.25 + 8 * 0.25 * sum(pieces) / (2 * math.pi)
    assert float(NNGP(model).covariance(x)[0, 1]) == pytest.approx(expected, rel=1e-10)


def test_no_hidden_layer_is_the_linear_kernel() -> None:
    x, other = rows(4), rows(3, seed=1)
    torch.testing.assert_close(NNGP(mlp()).covariance(x, other), 0.25 + 0.25 * x @ other.T)


@pytest.mark.parametrize("depth", [1, 2, 5])
def test_the_diagonal_halves_in_every_layer(depth: int) -> None:
    x = rows(6)
    process = NNGP(mlp(*[16] * depth))
    k = 0.25 + 0.25 * x.square().sum(1)
    for _ in range(depth):
        k = 0.25 + 16 * 0.25 * k / 2  # sb^2 + sw^2 k / 2
    torch.testing.assert_close(process.variance(x), k, rtol=1e-12, atol=0)
    torch.testing.assert_close(process.covariance(x).diagonal(), k, rtol=1e-12, atol=0)
    assert bool((torch.linalg.eigvalsh(process.covariance(x)) > -1e-12).all())


def test_depth_takes_correlations_to_one_as_without_biases() -> None:
    # He scaling: cos th -> (sin th + (pi - th) cos th) / pi, which grows to 1 (Cho & Saul)
    x = torch.tensor([[1.0, 0.0], [0.0, 1.0]], dtype=torch.float64)
    cosine = 0.0
    for depth in range(1, 6):
        angle = math.acos(cosine)
        cosine = (math.sin(angle) + (math.pi - angle) * cosine) / math.pi
        prior = {"*.weight": priors.Normal(0.5), "*.bias": priors.Normal(1e-9)}
        k = NNGP(mlp(*[8] * depth, prior=prior)).covariance(x)  # 8 * 0.5^2 = 2
        assert float(k[0, 1] / k[0, 0]) == pytest.approx(cosine, rel=1e-9)


def test_the_fan_in_prior_has_unit_scales_at_every_width() -> None:
    x = rows(4)
    narrow, wide = (NNGP(mlp(h, h, prior=priors.Normal())).covariance(x) for h in (4, 256))
    torch.testing.assert_close(narrow, wide, rtol=1e-12, atol=0)
    k = 1 + x.square().sum(1) / 2
    torch.testing.assert_close(
        narrow.diagonal(), 1 + (1 + k / 2) / 2, rtol=1e-6, atol=0
    )  # the scale 1 / sqrt(2) was made in float32


def prior_draws(model: models.MLP, x: Tensor, num_samples: int) -> Tensor:
    """Draws of f ``[S, N, F]`` from the model itself, by Pyro."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        f: Tensor = Predictive(model, num_samples=num_samples, return_sites=["f"])(x)["f"]
    return f.reshape(num_samples, len(x), -1)


@pytest.mark.slow("a second or more")
@pytest.mark.parametrize(("hidden", "num_samples"), [((7,), 1_500), ((256, 256), 500)])
def test_prior_draws_of_the_model_have_this_covariance(
    hidden: tuple[int, ...], num_samples: int
) -> None:
    # one hidden layer: exactly, at any width; two: up to O(1 / 256)
    x = rows(4)
    model = mlp(*hidden, num_outputs=50, prior=priors.Normal())
    f = prior_draws(model, x, num_samples)
    products = f @ f.mT / 50  # [S, N, N]: outputs share a draw's hidden units, draws nothing
    error = products.std(0) / num_samples**0.5
    z = (products.mean(0) - NNGP(model).covariance(x)) / error
    assert float(z.abs().max()) < 4
    assert float((error / NNGP(model).variance(x)).max()) < 0.03


# The posterior


@pytest.fixture(scope="module")
def training() -> Dataset:
    x = rows(25)
    return Dataset(x, x[:, 0].sin() + 0.3 * x[:, 1])


@pytest.fixture(scope="module")
def process() -> NNGP:
    return NNGP(mlp(50, 50, prior=priors.Normal()))


@pytest.fixture(scope="module")
def posterior(process: NNGP, training: Dataset) -> GaussianProcess:
    return process.posterior(training)


def test_moments_and_evidence_are_those_of_the_dense_joint_gaussian(
    posterior: GaussianProcess, process: NNGP, training: Dataset
) -> None:
    x = rows(6, seed=2)
    joint = process.covariance(torch.cat([training.x, x])).numpy()
    noisy = joint[:25, :25] + 0.25**2 * np.eye(25)
    inverse = np.linalg.inv(noisy)
    y = training.y.numpy()
    mean, variance = posterior.moments(x)
    np.testing.assert_allclose(mean[:, 0], joint[25:, :25] @ inverse @ y, rtol=1e-9)
    covariance = joint[25:, 25:] - joint[25:, :25] @ inverse @ joint[:25, 25:]
    np.testing.assert_allclose(posterior.covariance(x)[0], covariance, rtol=1e-8, atol=1e-12)
    np.testing.assert_allclose(variance[:, 0], covariance.diagonal(), rtol=1e-9)
    evidence = stats.multivariate_normal(np.zeros(25), noisy).logpdf(y)
    assert posterior.log_evidence == pytest.approx(evidence, rel=1e-10)


def test_scikit_learn_finds_the_same_with_this_kernel(
    posterior: GaussianProcess, process: NNGP, training: Dataset
) -> None:
    from sklearn.gaussian_process import GaussianProcessRegressor
    from sklearn.gaussian_process.kernels import PairwiseKernel

    def kernel(a: np.ndarray, b: np.ndarray, **_: Any) -> float:
        pair = (torch.as_tensor(v).unsqueeze(0) for v in (a, b))
        return float(process.covariance(*pair))

    x = rows(6, seed=2)
    peer = GaussianProcessRegressor(
        PairwiseKernel(metric=kernel, gamma_bounds="fixed"), alpha=0.25**2, optimizer=None
    ).fit(training.x.numpy(), training.y.numpy())
    peer_mean, peer_sd = peer.predict(x.numpy(), return_std=True)
    prediction = posterior.predict(x, num_samples=2)
    np.testing.assert_allclose(prediction.mean[:, 0], peer_mean, rtol=1e-9)
    np.testing.assert_allclose(prediction.sd_epistemic[:, 0], peer_sd, rtol=1e-7)
    assert posterior.log_evidence == pytest.approx(peer.log_marginal_likelihood_value_, rel=1e-9)


def test_without_hidden_layers_it_is_the_exact_linear_regression() -> None:
    # the same posterior by way of weights, with a noise of its own for each of two targets
    likelihood = likelihoods.Normal(scale=[0.25, 0.5])
    options: dict[str, Any] = {"prior": priors.Normal(0.5), "likelihood": likelihood}
    linear = models.LinearRegression(2, 2, **options).double()
    train = Dataset(rows(9), rows(9, seed=1))
    weights = linear.exact_posterior(train)
    posterior = NNGP(mlp(num_outputs=2, **options)).posterior(train)
    x = rows(5, seed=2)
    W, b = weights.mean[:4].reshape(2, 2), weights.mean[4:]
    mean, variance = posterior.moments(x)
    torch.testing.assert_close(mean, x @ W.T + b, rtol=1e-9, atol=1e-12)
    for target in range(2):
        own = torch.tensor([2 * target, 2 * target + 1, 4 + target])
        a = torch.cat([x, torch.ones(5, 1).double()], 1)
        expected = (a @ weights.covariance[own[:, None], own] * a).sum(1)
        torch.testing.assert_close(variance[:, target], expected, rtol=1e-9, atol=1e-12)
    assert posterior.log_evidence == pytest.approx(weights.log_evidence, rel=1e-10)
    elbo, error = posterior.elbo(train)
    assert elbo == pytest.approx(weights.log_evidence, rel=1e-10)
    assert error == 0


def test_the_elbo_of_other_rows_has_the_divergence_of_the_training_rows(
    posterior: GaussianProcess, process: NNGP, training: Dataset
) -> None:
    other = Dataset(rows(4, seed=5), torch.zeros(4).double())
    m, v = posterior.moments(other.x)
    fit = stats.norm(m[:, 0], 0.25).logpdf(0).sum() - float(v.sum()) / (2 * 0.25**2)
    # KL of f at the training rows, whose values are all that the data speak of
    q = torch.distributions.MultivariateNormal(
        posterior.moments(training.x)[0][:, 0],
        posterior.covariance(training.x)[0] + 1e-10 * torch.eye(25),
    )
    prior = torch.distributions.MultivariateNormal(
        torch.zeros(25).double(), process.covariance(training.x) + 1e-10 * torch.eye(25)
    )
    divergence = float(torch.distributions.kl_divergence(q, prior))
    assert posterior.elbo(other)[0] == pytest.approx(fit - divergence, rel=1e-5)


@pytest.mark.slow("about a second")
def test_it_is_the_posterior_of_a_wide_network_by_its_weighted_prior_draws() -> None:
    x, y = rows(4), torch.tensor([0.8, -0.6, 0.5]).double()  # three rows and a fourth without y
    options: dict[str, Any] = {"prior": priors.Normal(), "likelihood": likelihoods.Normal(0.5)}
    f = prior_draws(mlp(512, num_outputs=100, **options), x, 400)  # [S, N, F]
    weights = torch.distributions.Normal(f[:, :3], 0.5).log_prob(y.unsqueeze(-1)).sum(1).exp()
    posterior = NNGP(mlp(512, **options)).posterior(Dataset(x[:3], y))
    mean, variance = (float(v) for v in posterior.moments(x[3:]))
    prior_mean, prior_sd = 0.0, float(NNGP(mlp(512, **options)).variance(x[3:])) ** 0.5
    for value, expected, unconditioned in (
        (f[:, 3], mean, prior_mean),
        ((f[:, 3] - mean).square(), variance, prior_sd**2 + mean**2),
    ):
        residual = (weights * (value - expected)).sum(1) / weights.sum()  # [S]
        error = float(residual.std()) * 400**0.5  # outputs share the hidden units of a draw
        assert abs(float(residual.sum())) < 4 * error
        assert abs(expected - unconditioned) > 8 * error  # it is not the prior's


@pytest.mark.soak  # by weighted prior draws, as above, in `make test`
def test_nuts_of_a_wide_network_has_the_moments_of_the_process() -> None:
    train = Dataset(rows(6), torch.tensor([0.9, -0.7, 1.2, 0.1, -1.0, 0.6]).double())
    model = mlp(100, prior=priors.Normal(), likelihood=likelihoods.Normal(0.5))
    nuts = NUTS(
        num_chains=24, warmup_steps=40, num_samples=40, max_tree_depth=4, compile=False
    ).run(model, train, progress=False)
    x = torch.cat([train.x[:2], rows(3, seed=2)])
    f = nuts.function_draws(x, group_by_chain=True)[..., 0]  # [C, S, N]
    process = NNGP(model)
    mean, variance = (moment[:, 0] for moment in process.posterior(train).moments(x))
    for values, expected, of_prior in (
        (f, mean, torch.zeros(5).double()),
        ((f - mean).square(), variance, process.variance(x) + mean.square()),
    ):
        by_chain = values.mean(1)
        error = by_chain.std(0) / len(by_chain) ** 0.5
        # 100 units are O(1 / 100) from the process, the errors some per cent
        assert float(((by_chain.mean(0) - expected) / error).abs().max()) < 4
        assert float(((of_prior - expected) / error).abs().max()) > 20


def test_draws_have_the_moments_also_at_rows_that_repeat(posterior: GaussianProcess) -> None:
    x = rows(3, seed=2)[[0, 1, 1, 2]]
    S = 20_000
    f = posterior.function_draws(x, S)[..., 0]
    torch.testing.assert_close(f[:, 1], f[:, 2], rtol=0, atol=1e-6)
    centred = f - posterior.moments(x)[0][:, 0]
    assert float((centred.mean(0) / (centred.std(0) / S**0.5)).abs().max()) < 4
    products = centred.unsqueeze(2) * centred.unsqueeze(1)
    z = (products.mean(0) - posterior.covariance(x)[0]) / (products.std(0) / S**0.5)
    assert float(z.abs().max()) < 4
    grouped = posterior.function_draws(x, S, group_by_chain=True)
    torch.testing.assert_close(grouped[0, ..., 0], f, rtol=0, atol=0)


def test_predictions_are_exact_and_their_draws_agree(posterior: GaussianProcess) -> None:
    x, S = rows(5, seed=3), 20_000
    y = posterior.moments(x)[0][:, 0] + 0.3  # in the tails the mean density is of few draws
    prediction = posterior.predict(x, S)
    mean, variance = (v[:, 0].numpy() for v in posterior.moments(x))
    exact = stats.norm(mean, np.sqrt(variance + 0.25**2))
    np.testing.assert_allclose(prediction.log_prob(y), exact.logpdf(y), rtol=1e-10)
    np.testing.assert_allclose(prediction.quantile(0.9)[:, 0], exact.ppf(0.9), rtol=1e-10)
    assert prediction.quantile([0.1, 0.5]).shape == (2, 5, 1)
    np.testing.assert_allclose(prediction.sd[:, 0], exact.std(), rtol=1e-10)
    np.testing.assert_allclose(prediction.sd_aleatoric, 0.25, rtol=1e-12)
    draws = prediction.draws[..., 0].numpy()
    z = (draws.mean(0) - mean) / (exact.std() / S**0.5)
    assert np.abs(z).max() < 4
    z = (draws.var(0) / exact.var() - 1) / (2 / S) ** 0.5
    assert np.abs(z).max() < 4
    density = posterior.log_likelihood(Dataset(x, y), S).exp()  # [S, N]
    z = (density.mean(0) - prediction.log_prob(y).exp()) / (density.std(0) / S**0.5)
    assert float(z.abs().max()) < 4


def test_raw_predictions_are_in_the_users_units() -> None:
    generator = np.random.default_rng(0)
    x = generator.normal(5, 2, (40, 2))
    split = data.from_arrays(x, 100 + 30 * x[:, 0])
    posterior = NNGP(mlp(20)).posterior(split.train)
    prediction = posterior.predict(split.test.x, 3)
    inputs, target = split.test.inputs, split.test.target
    assert inputs is not None
    assert target is not None
    loc, scale = target.loc.double(), target.scale.double()
    raw = posterior.predict(inputs.inverse(split.test.x), 3, raw=True)
    near: dict[str, Any] = {"rtol": 1e-5, "atol": 1e-5}  # the split is in float32
    torch.testing.assert_close(raw.mean, loc + scale * prediction.mean, **near)
    torch.testing.assert_close(raw.sd, scale * prediction.sd, **near)
    torch.testing.assert_close(raw.draws, loc + scale * prediction.draws, **near)
    found, expected = raw.log_prob(target.inverse(split.test.y)), prediction.log_prob(split.test.y)
    torch.testing.assert_close(found, expected - scale.log(), **near)


@pytest.mark.slow("a report")
@pytest.mark.usefixtures("no_pictures")
def test_it_is_a_reference_of_compare_and_of_its_files(tmp_path: Path) -> None:
    from tests.report.conjugate import LinearPosterior, regression_split

    split = regression_split(num_rows=60, num_inputs=2)
    nngp = NNGP(mlp(10, prior=priors.Normal()), noise=0.5).posterior(split.train)
    methods: dict[str, PosteriorLike] = {
        "NNGP": nngp,
        "linear": LinearPosterior(split),
    }
    comparison = compare(methods, split, reference="NNGP", num_samples=200)
    assert comparison.evaluations["NNGP"].checks.elbo == nngp.log_evidence
    assert comparison.evaluations["linear"].at_rows is not None
    kinds = {finding.kind for finding in comparison.findings}
    assert "models" in kinds  # what it is the posterior of is another model
    assert "reference" not in kinds  # exact, so not in want of chains
    exact = nngp.predict(split.test.x).log_prob(split.test.y).mean()
    assert split.test.target is not None
    expected = float(exact) - math.log(float(split.test.target.scale))
    assert comparison.evaluations["NNGP"].held_out.log_score.mean() == pytest.approx(expected)
    label = "infinite width of MLP 2-10-1 relu, Normal(fan_in) prior, Normal(0.25) likelihood"
    assert comparison.models[0].label == f"{label}, noise sd 0.5"
    page = comparison.save(tmp_path / "report", command="") / "index.html"
    assert "infinite width" in page.read_text("utf-8")
    again = compare_files([tmp_path / "report" / "nngp.nc"])
    assert again.models[0].label == comparison.models[0].label


def test_the_tree_of_two_targets_holds_the_density_of_each() -> None:
    train, test = Dataset(rows(9), rows(9, seed=1)), Dataset(rows(5, seed=2), rows(5, seed=3))
    posterior = NNGP(mlp(4, num_outputs=2)).posterior(train)
    tree = posterior.to_arviz(train, test, 7, seed=1)
    f, density = (tree[f"predictions/{name}"].to_numpy() for name in ("f", "y_log_density"))
    np.testing.assert_array_equal(f[0], posterior.function_draws(test.x, 7, 1))
    np.testing.assert_allclose(density, stats.norm(f, 0.25).logpdf(test.y), rtol=1e-10)
    np.testing.assert_allclose(density.sum(-1), tree["log_likelihood_predictions/y"], rtol=1e-10)
    prediction = posterior.predict(test.x, 7)
    total = prediction.target_log_prob(test.y).sum(1)
    torch.testing.assert_close(prediction.log_prob(test.y), total, rtol=1e-12, atol=0)
    alone = posterior.to_arviz(train, None, 7)
    assert alone["posterior/f"].shape == (1, 7, 8, 2)
    assert "predictions" not in alone.children


# What is refused


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (models.LinearRegression(2), "known of pyro_bnn.models.MLP, not of LinearRegression"),
        (mlp(4, activation="tanh"), "the activation tanh is not known in closed form"),
        (mlp(4, prior=priors.Laplace(1.0)), r"prior of layers\.0\.weight is not an independent G"),
        (mlp(4, prior=priors.Normal(1.0, loc=0.5)), "is not an independent Gaussian around 0"),
        (mlp(4, prior=dist.LogNormal(0.0, 1.0)), "is not an independent Gaussian around 0 of one"),
        (mlp(4, prior=priors.HalfCauchyScale()), "is not an independent Gaussian around 0 of one"),
    ],
)
def test_models_without_a_known_kernel_are_refused(model: Any, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        NNGP(model)


def test_likelihoods_without_a_closed_form_are_refused(training: Dataset) -> None:
    student = NNGP(mlp(4, likelihood=likelihoods.StudentT()))
    with pytest.raises(ModelError, match="closed form with Gaussian noise, not with the StudentT"):
        student.posterior(training)
    learned = mlp(4, likelihood=likelihoods.Normal())
    with pytest.raises(ModelError, match=r"pass NNGP\(model, noise=0.1\)"):
        NNGP(learned).posterior(training)
    assert NNGP(learned, noise=0.1).posterior(training).noise.tolist() == [0.1]


def test_what_does_not_fit_is_refused(process: NNGP, posterior: GaussianProcess) -> None:
    with pytest.raises(OptionError, match="noise is a positive sd of y given f, not -1"):
        NNGP(mlp(4), noise=-1.0)
    with pytest.raises(OptionError, match=r"noise is a positive sd of y given f, not \[0.0\]"):
        GaussianProcess(process, Dataset(rows(3), rows(3, 1)), torch.zeros(1))
    with pytest.raises(OptionError, match="a noise of 1e-12 is lost in rounding beside variances"):
        NNGP(mlp(4), noise=1e-12).posterior((rows(2)[[0, 0, 0, 1]], rows(4, 1)))
    with pytest.raises(ShapeError, match=r"y has shape \(3, 2\), but the process has 1 targets"):
        process.posterior((rows(3), rows(3)))
    with pytest.raises(ShapeError, match=r"x has shape \(3, 4\), but the model takes \[N, 2\]"):
        process.covariance(rows(3, 4))
    with pytest.raises(ShapeError, match=r"y has shape \(4,\), but the likelihood"):
        posterior.predict(rows(3), 2).log_prob(torch.zeros(4))
    with pytest.raises(OptionError, match="probs describe classes; for numbers read mean"):
        _ = posterior.predict(rows(3), 2).probs
    with pytest.raises(SiteError, match="a Gaussian process has no density over functions"):
        posterior.densities(Dataset(rows(3), rows(3, 1)))
