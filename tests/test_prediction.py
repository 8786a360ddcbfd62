"""Predictions as mixtures over draws: moments, densities, quantiles, classes, units."""

from __future__ import annotations

import math
import pickle
import re
import warnings
from typing import Any, cast

import numpy as np
import pandas as pd
import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.nn import PyroModule
from torch import Tensor, nn

from pyro_bnn import SVI, Prediction, Program, bayesian, guides, likelihoods, memory, models, priors
from pyro_bnn.data import Dataset, Standardiser
from pyro_bnn.errors import BNNWarning, DataError, OptionError, ShapeError
from pyro_bnn.posterior import DrawsPosterior, GuidePosterior, Posterior, Provenance
from pyro_bnn.posterior.arviz_groups import _prior_groups
from pyro_bnn.predictive import map_draws as chunks
from pyro_bnn.predictive.draws import Draws
from pyro_bnn.predictive.map_draws import Chunks
from pyro_bnn.predictive.predict import predict
from pyro_bnn.predictive.prediction import StreamedPrediction
from pyro_bnn.program.random_state import isolated
from tests.guides.exact import exact_posterior
from tests.oracle import design, linear_gaussian, log_normal, mixture_quantile

NUM_DRAWS = 4_000


def drawn(
    model: PyroModule, x: Tensor, y: Tensor, num_draws: int = 30, **provenance: Any
) -> DrawsPosterior:
    """A posterior of normal draws: what it predicts is exact, whatever the draws are."""
    program = Program(model, x, y)
    z = torch.randn(
        1, num_draws, program.num_latents, generator=torch.Generator().manual_seed(2)
    ).to(program.initial)
    return DrawsPosterior(program, z, Provenance("normal", "none", **provenance))


def inputs(num_rows: int = 7) -> Tensor:
    return torch.linspace(-2, 2, num_rows * 3, dtype=torch.float64).sin().reshape(num_rows, 3)


# Numbers


def test_the_variance_is_the_mean_variance_plus_the_variance_of_means() -> None:
    oracle = linear_gaussian()
    posterior = exact_posterior(oracle)
    prediction = posterior.predict(oracle.x, 200)
    f = posterior.unconstrained(200) @ design(oracle.x).T  # [S, N]
    torch.testing.assert_close(prediction.function_draws, f.unsqueeze(-1))
    torch.testing.assert_close(prediction.mean[:, 0], f.mean(0))
    epistemic = (f - f.mean(0)).square().mean(0)
    torch.testing.assert_close(prediction.sd_epistemic[:, 0], epistemic.sqrt())
    noise = torch.full((20,), oracle.noise, dtype=torch.float64)
    torch.testing.assert_close(prediction.sd_aleatoric[:, 0], noise)
    torch.testing.assert_close(prediction.sd[:, 0], (oracle.noise**2 + epistemic).sqrt())


def test_moments_of_the_exact_posterior_are_the_exact_predictive_ones() -> None:
    oracle = linear_gaussian()
    prediction = exact_posterior(oracle).predict(oracle.x, NUM_DRAWS)
    mean, sd = oracle.predictive(oracle.x)
    _, f_sd = oracle.function_moments(oracle.x)
    error = f_sd / math.sqrt(NUM_DRAWS)
    assert float(((prediction.mean[:, 0] - mean) / error).abs().max()) < 5
    variance_error = f_sd**2 * math.sqrt(2 / NUM_DRAWS)
    assert float(((prediction.sd[:, 0] ** 2 - sd**2) / variance_error).abs().max()) < 5


def test_log_prob_is_the_log_of_the_mean_density() -> None:
    oracle = linear_gaussian()
    posterior = exact_posterior(oracle)
    prediction = posterior.predict(oracle.x, 50)
    f = posterior.unconstrained(50) @ design(oracle.x).T
    log_density = log_normal(oracle.y - f, oracle.noise)  # [S, N]
    by_hand = log_density.exp().mean(0).log()
    for y in (oracle.y, oracle.y[:, None]):
        torch.testing.assert_close(prediction.log_prob(y), by_hand, rtol=1e-10, atol=1e-10)
    # the mixture's score is not below that of its mean component (Jensen)
    assert bool((prediction.log_prob(oracle.y) > log_density.mean(0)).all())


def test_log_prob_of_the_exact_posterior_is_the_exact_predictive_density() -> None:
    oracle = linear_gaussian()
    posterior = exact_posterior(oracle)
    log_density = posterior.predict(oracle.x, NUM_DRAWS).log_prob(oracle.y)
    mean, sd = oracle.predictive(oracle.x)
    expected = torch.distributions.Normal(mean, sd).log_prob(oracle.y)
    density = posterior.log_likelihood((oracle.x, oracle.y), NUM_DRAWS).exp()
    error = density.std(0) / density.mean(0) / math.sqrt(NUM_DRAWS)
    assert float(((log_density - expected) / error).abs().max()) < 5


def test_log_prob_refuses_other_rows() -> None:
    oracle = linear_gaussian()
    prediction = exact_posterior(oracle).predict(oracle.x, 10)
    with pytest.raises(ShapeError, match=r"y has shape \(3,\), but the likelihood of this network"):
        prediction.log_prob(oracle.y[:3])


def test_quantiles_are_those_of_the_predictive_distribution() -> None:
    oracle = linear_gaussian()
    prediction = exact_posterior(oracle).predict(oracle.x, NUM_DRAWS)
    mean, sd = oracle.predictive(oracle.x)
    normal = torch.distributions.Normal(mean, sd)
    for q in (0.05, 0.5, 0.9):
        exact = normal.icdf(torch.tensor(q).double())
        error = math.sqrt(q * (1 - q) / NUM_DRAWS) / normal.log_prob(exact).exp()
        z_scores = (prediction.quantile(q)[:, 0] - exact) / error
        assert float(z_scores.abs().max()) < 5


def test_quantiles_interpolate_the_draws() -> None:
    oracle = linear_gaussian()
    found = exact_posterior(oracle).predict(oracle.x, 11)
    of_y = found.draws, found.function_draws, found.means, found.variances
    prediction = Prediction(*of_y, None, lambda y: y)  # not known to be Gaussian given a draw
    levels = [0.0, 0.13, 0.5, 1.0]
    expected = prediction.draws.quantile(torch.tensor(levels).double(), dim=0)
    torch.testing.assert_close(prediction.quantile(levels), expected)
    torch.testing.assert_close(prediction.quantile(torch.tensor(levels)), expected)
    one = prediction.quantile(0.5)
    assert one.shape == (20, 1)
    torch.testing.assert_close(one, expected[2])
    for level in (-0.1, 1.1, math.nan):
        with pytest.raises(OptionError, match="quantile levels lie between 0 and 1, not"):
            prediction.quantile([0.5, level])


def test_levels_of_quantiles_lie_where_the_draws_do() -> None:
    draws = torch.arange(12.0).reshape(3, 4, 1)
    prediction = Prediction(draws, draws, draws, draws, None, lambda y: y)
    with torch.device("meta"):  # the default device need not be that of the model
        quantiles = prediction.quantile([0.25, 0.5])
    torch.testing.assert_close(quantiles, torch.stack([(draws[0] + draws[1]) / 2, draws[1]]))


def test_each_draw_of_y_is_the_noise_around_its_own_f() -> None:
    oracle = linear_gaussian()
    prediction = exact_posterior(oracle).predict(oracle.x, NUM_DRAWS)
    u = (prediction.draws - prediction.function_draws) / oracle.noise  # [S, N, 1]
    count = u.numel()
    assert abs(float(u.mean())) < 5 / math.sqrt(count)
    assert abs(float(u.var()) - 1) < 5 * math.sqrt(2 / count)
    centred = prediction.function_draws - prediction.function_draws.mean(0)
    correlation = float((u * centred / centred.std(0)).mean())
    assert abs(correlation) < 5 / math.sqrt(count)


def test_heteroscedastic_noise() -> None:
    likelihood = likelihoods.HeteroscedasticNormal(min_scale=0.1)
    model = models.MLP(3, 2, hidden=(4,), likelihood=likelihood).double()
    x = inputs()
    prediction = drawn(model, x, torch.zeros(7, 2).double()).predict(x, 30)
    f = prediction.function_draws
    assert f.shape == (30, 7, 4)
    loc, scale = f[..., :2], torch.log1p(f[..., 2:].exp()) + 0.1
    torch.testing.assert_close(prediction.mean, loc.mean(0))
    torch.testing.assert_close(prediction.sd_aleatoric, scale.square().mean(0).sqrt())
    variance = scale.square().mean(0) + loc.var(0, correction=0)
    torch.testing.assert_close(prediction.sd, variance.sqrt())
    y = x[:, :2]
    by_hand = torch.distributions.Normal(loc, scale).log_prob(y).sum(-1).exp().mean(0).log()
    torch.testing.assert_close(prediction.log_prob(y), by_hand)


# Units


def test_raw_carries_everything_to_the_users_units() -> None:
    oracle = linear_gaussian()
    x_units = Standardiser(
        torch.tensor([1.0, 2.0, -3.0]).double(), torch.tensor([2.0, 5, 9]).double()
    )
    y_units = Standardiser(torch.tensor(100.0).double(), torch.tensor(30.0).double())
    posterior = exact_posterior(oracle, inputs=x_units, target=y_units)
    model = posterior.predict(oracle.x, 100)
    raw = posterior.predict(x_units.inverse(oracle.x), 100, raw=True)
    torch.testing.assert_close(raw.function_draws, model.function_draws)  # f has no unit
    torch.testing.assert_close(raw.mean, 100 + 30 * model.mean)
    torch.testing.assert_close(raw.draws, 100 + 30 * model.draws)
    torch.testing.assert_close(raw.quantile(0.3), 100 + 30 * model.quantile(0.3))
    for name in ("sd", "sd_epistemic", "sd_aleatoric"):
        torch.testing.assert_close(getattr(raw, name), 30 * getattr(model, name))
    expected = model.log_prob(oracle.y) - math.log(30)
    torch.testing.assert_close(raw.log_prob(100 + 30 * oracle.y), expected)
    torch.testing.assert_close(raw.log_prob(100 + 30 * oracle.y[:, None]), expected)


def test_a_target_far_from_0_keeps_its_precision() -> None:
    model = models.MLP(3, hidden=(), likelihood=likelihoods.Normal(0.4))
    x = inputs().float()
    target = Standardiser(torch.tensor(1e9).double(), torch.tensor(10.0).double())
    program = Program(model, x, torch.zeros(7))
    z = program.prior_draws(9, x[:1], seed=0).unsqueeze(0)
    posterior = DrawsPosterior(program, z, Provenance("prior", "none", target=target))
    model_units, raw = posterior.predict(x, 9), posterior.predict(x, 9, raw=True)

    def standardised(value: torch.Tensor) -> torch.Tensor:
        return ((value - 1e9) / 10).float()

    torch.testing.assert_close(standardised(raw.mean), model_units.mean)
    torch.testing.assert_close(standardised(raw.quantile(0.3)), model_units.quantile(0.3))
    torch.testing.assert_close(raw.sd_epistemic.float(), 10 * model_units.sd_epistemic)
    expected = model_units.log_prob(x[:, 0]) - math.log(10)
    torch.testing.assert_close(raw.log_prob(1e9 + 10 * x[:, 0].double()), expected)


def test_raw_densities_of_two_targets_lose_both_log_scales() -> None:
    model = models.MLP(3, 2, hidden=(), likelihood=likelihoods.Normal(0.4)).double()
    x = inputs()
    target = Standardiser(torch.tensor([5.0, -2.0]).double(), torch.tensor([10.0, 0.1]).double())
    program = Program(model, x, torch.zeros(7, 2).double())
    z = program.prior_draws(9, x[:1], seed=0).unsqueeze(0)
    posterior = DrawsPosterior(program, z, Provenance("prior", "none", target=target))
    model_units, raw = posterior.predict(x, 9), posterior.predict(x, 9, raw=True)
    y = x[:, :2]
    torch.testing.assert_close(
        raw.log_prob(target.inverse(y)),
        model_units.log_prob(y) - math.log(10.0) - math.log(0.1),
    )
    torch.testing.assert_close(raw.sd, model_units.sd * target.scale)


@pytest.mark.slow("a second or more")
@pytest.mark.parametrize("raw", [False, True], ids=["standardised", "raw"])
def test_each_of_two_targets_has_a_density_of_its_own(raw: bool) -> None:
    """The mean over draws of its own normal density; the product of the two is not that of both."""
    units = Standardiser(torch.tensor([7.0, -1.0]).double(), torch.tensor([3.0, 0.25]).double())
    model = models.MLP(3, 2, hidden=(4,), likelihood=likelihoods.Normal(0.5)).double()
    x, y = inputs(40), inputs(40)[:, :2]
    posterior = drawn(model, x, y, 2_000, target=units)
    f = posterior.function_draws(x, 2_000)  # [S, N, 2]
    expected = log_normal(y - f, 0.5).exp().mean(0).log()
    given = units.inverse(y) if raw else y
    prediction = posterior.predict(x, 2_000, raw=raw)
    found = prediction.target_log_prob(given)
    expected = expected - units.scale.log() if raw else expected
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)
    both = prediction.log_prob(given)
    assert bool(((found.sum(-1) - both).abs() > 1e-3).any())
    draws = prediction.target_log_likelihood(given)
    torch.testing.assert_close(
        draws.sum(-1).logsumexp(0) - math.log(len(draws)), both, rtol=1e-10, atol=1e-10
    )
    streamed = posterior.predict(x, 2_000, raw=raw, memory=BOUND)
    assert isinstance(streamed, StreamedPrediction)
    torch.testing.assert_close(streamed.target_log_prob(given), found, rtol=1e-10, atol=1e-10)


def test_classes_have_no_density_of_each_target() -> None:
    model = models.MLP(3, likelihood=likelihoods.Categorical(3)).double()
    prediction = drawn(model, inputs(), torch.arange(7) % 3).predict(inputs())
    assert not prediction.has_target_densities
    with pytest.raises(OptionError, match="the likelihood has no density of each target alone"):
        prediction.target_log_prob(torch.arange(7) % 3)


def test_without_units_raw_changes_nothing() -> None:
    oracle = linear_gaussian()
    posterior = exact_posterior(oracle)
    plain, raw = posterior.predict(oracle.x, 20), posterior.predict(oracle.x, 20, raw=True)
    torch.testing.assert_close(raw.draws, plain.draws, rtol=0, atol=0)
    torch.testing.assert_close(raw.log_prob(oracle.y), plain.log_prob(oracle.y))


# Classes


def test_class_probabilities_are_means_and_entropy_splits_in_two() -> None:
    likelihood = likelihoods.Categorical(3)
    model = models.MLP(3, hidden=(4,), likelihood=likelihood).double()
    x, y = inputs(), torch.tensor([0, 1, 2, 0, 1, 2, 0])
    prediction = drawn(model, x, y).predict(x, 30)
    p = prediction.function_draws.exp()
    p = p / p.sum(-1, keepdim=True)  # [S, N, C]
    torch.testing.assert_close(prediction.probs, p.mean(0))
    total = -(p.mean(0) * p.mean(0).log()).sum(-1)
    expected_entropy = -(p * p.log()).sum(-1).mean(0)
    torch.testing.assert_close(prediction.entropy, total)
    torch.testing.assert_close(prediction.mutual_information, total - expected_entropy)
    assert bool((prediction.mutual_information > 0).all())
    assert prediction.draws.shape == (30, 7, 1)
    assert prediction.draws.dtype == torch.int64
    expected = p.mean(0).log()[torch.arange(7), y]
    torch.testing.assert_close(prediction.log_prob(y), expected)


# Tables


def test_the_table_of_numbers_has_the_moments_and_quantiles() -> None:
    oracle = linear_gaussian()
    prediction = exact_posterior(oracle).predict(oracle.x, 300)
    frame = prediction.to_frame(level=0.5)
    names = ("mean", "median", "sd", "low", "high", "sd_epistemic", "sd_aleatoric")
    assert list(frame.columns) == [f"predicted_{name}" for name in names]
    f = prediction.function_draws[..., 0]
    sd = torch.full_like(f, oracle.noise)
    expected = {
        "mean": f.numpy().mean(0),
        "median": mixture_quantile(f, sd, 0.5),
        "low": mixture_quantile(f, sd, 0.25),
        "high": mixture_quantile(f, sd, 0.75),
    }
    for name, values in expected.items():
        np.testing.assert_allclose(frame[f"predicted_{name}"], values, rtol=1e-10)
    noise, spread = frame["predicted_sd_aleatoric"], frame["predicted_sd_epistemic"]
    np.testing.assert_allclose(frame["predicted_sd"] ** 2, noise**2 + spread**2, rtol=1e-10)


def test_the_tables_of_several_targets_and_of_classes_are_named() -> None:
    x = inputs()
    several = models.MLP(3, 2, hidden=[4], likelihood=likelihoods.Normal(0.1)).double()
    posterior = drawn(several, x, x[:, :2])
    frame = posterior.predict(x, 5).to_frame()
    assert [str(name) for name in frame.columns][::7] == ["predicted_y0_mean", "predicted_y1_mean"]
    classes = models.MLP(3, hidden=[4], likelihood=likelihoods.Categorical(3)).double()
    prediction = drawn(classes, x, torch.tensor([0, 1, 2, 0, 1, 2, 0])).predict(x, 5)
    frame = prediction.to_frame()
    assert list(frame.columns) == [
        *("predicted_class", "predicted_p_0", "predicted_p_1", "predicted_p_2"),
        *("predicted_entropy", "predicted_mutual_information"),
    ]
    assert list(frame["predicted_class"]) == [str(c) for c in prediction.probs.argmax(1).tolist()]


def test_several_targets_are_found_by_name() -> None:
    x = inputs()
    model = models.MLP(3, 2, hidden=[4], likelihood=likelihoods.Normal(0.1)).double()
    y = pd.DataFrame({"a": [0.1, 0.2] * 3 + [0.3], "b": [1.1, 1.2] * 3 + [1.3]})
    program = Program(model, x, torch.tensor(y.to_numpy()))
    z = program.prior_draws(3, x[:1])
    posterior = DrawsPosterior(
        program, z.unsqueeze(0), Provenance("prior", "none", target_names=("a", "b"))
    )
    prediction = posterior.predict(x)
    assert str(prediction.to_frame().columns[7]) == "predicted_b_mean"
    expected = prediction.log_prob(torch.tensor(y.to_numpy()))
    torch.testing.assert_close(prediction.log_prob(y[["b", "a"]]), expected)
    likelihood = posterior.log_likelihood((x, torch.tensor(y.to_numpy())))
    torch.testing.assert_close(posterior.log_likelihood((x, y[["b", "a"]])), likelihood)
    with pytest.raises(DataError, match="y has the columns 'a', 'c', but the fit was to 'a', 'b'"):
        prediction.target_log_prob(y.rename(columns={"b": "c"}))


def test_classes_that_are_numbers_have_their_names_in_the_users_units() -> None:
    x, codes = inputs(), torch.tensor([0, 1, 2, 1, 0, 1, 2])
    model = models.MLP(3, hidden=[4], likelihood=likelihoods.Categorical(3)).double()
    for names, y in (("1", "2", "10"), [1, 2, 10]), (("-1.0", "0.0", "0.5"), [-1, 0, 0.5]):
        posterior = drawn(model, x, codes, class_names=names)
        given = np.array(y)[codes]
        raw, expected = posterior.predict(x, raw=True), posterior.predict(x).log_prob(codes)
        for own in (given, pd.Series(given), list(given), codes, np.array(names)[codes]):
            torch.testing.assert_close(raw.log_prob(own), expected)
        torch.testing.assert_close(posterior.predict(x).log_prob(codes.numpy()), expected)
        with pytest.raises(DataError, match=r"y holds '7.*', which is no class, in 7 of 7 rows"):
            raw.log_prob(np.full_like(given, 7))
    posterior = drawn(model, x, codes, class_names=("low", "mid", "top"))
    expected = posterior.predict(x).log_prob(codes)
    torch.testing.assert_close(posterior.predict(x, raw=True).log_prob(codes.numpy()), expected)


def test_the_table_of_a_prediction_beyond_the_bound() -> None:
    oracle = linear_gaussian()
    posterior = exact_posterior(oracle)
    streamed = posterior.predict(oracle.x, 1_000, memory=120_000)
    assert isinstance(streamed, StreamedPrediction)
    found, whole = streamed.to_frame(), posterior.predict(oracle.x, 1_000).to_frame()
    assert list(found.columns) == list(whole.columns)
    of_moments = [name for name in whole if name.split("_")[1] in ("mean", "sd")]
    assert len(of_moments) == 4
    pd.testing.assert_frame_equal(found[of_moments], whole[of_moments], rtol=1e-10)


@pytest.mark.parametrize("level", [0.0, 1.0, 95])
def test_levels_of_a_table_lie_between_0_and_1(level: float) -> None:
    oracle = linear_gaussian()
    with pytest.raises(OptionError, match=r"between 0 and 1, such as 0\.95"):
        exact_posterior(oracle).predict(oracle.x, 5).to_frame(level)


@pytest.mark.slow("a second or more")
def test_drawn_labels_have_the_predictive_probabilities() -> None:
    model = models.MLP(3, hidden=(4,), likelihood=likelihoods.Categorical(3)).double()
    x, y = inputs(), torch.tensor([0, 1, 2, 0, 1, 2, 0])
    prediction = drawn(model, x, y, NUM_DRAWS).predict(x, NUM_DRAWS)
    p = prediction.probs
    shares = torch.nn.functional.one_hot(prediction.draws[..., 0], 3).double().mean(0)
    assert float(((shares - p) / (p * (1 - p) / NUM_DRAWS).sqrt()).abs().max()) < 5


def test_two_classes_have_two_probabilities() -> None:
    model = models.MLP(3, hidden=(4,), likelihood=likelihoods.Bernoulli()).double()
    x, y = inputs(), torch.tensor([0, 1, 1, 0, 1, 1, 0])
    prediction = drawn(model, x, y).predict(x, 30)
    p = 1 / (1 + (-prediction.function_draws[..., 0]).exp())
    torch.testing.assert_close(prediction.probs, torch.stack([1 - p.mean(0), p.mean(0)], -1))
    assert prediction.draws.shape == (30, 7, 1)
    assert set(prediction.draws.unique().tolist()) == {0, 1}
    expected = torch.where(y == 1, p.mean(0), 1 - p.mean(0)).log()
    torch.testing.assert_close(prediction.log_prob(y), expected)


def test_a_certain_class_has_no_entropy() -> None:
    def log_likelihood(y: Tensor) -> Tensor:
        return y

    probs = torch.tensor([[[1.0, 0.0]], [[1.0, 0.0]]])
    draws = torch.zeros(2, 1, 1, dtype=torch.int64)
    prediction = Prediction(draws, torch.zeros(2, 1, 2), None, None, probs, log_likelihood)
    assert prediction.entropy.tolist() == [0.0]
    assert prediction.mutual_information.tolist() == [0.0]


def test_numbers_have_no_probabilities_and_classes_no_mean() -> None:
    oracle = linear_gaussian()
    numbers = exact_posterior(oracle).predict(oracle.x, 5)
    for name in ("probs", "entropy", "mutual_information"):
        with pytest.raises(OptionError, match="probs describe classes; for numbers read mean, sd"):
            getattr(numbers, name)
    model = models.MLP(3, hidden=(4,), likelihood=likelihoods.Categorical(2)).double()
    x = inputs()
    classes = drawn(model, x, torch.tensor([0, 1] * 3 + [0])).predict(x, 5)
    for name in ("mean", "sd", "sd_epistemic", "sd_aleatoric"):
        with pytest.raises(OptionError, match="mean and sd describe numbers; for classes read pr"):
            getattr(classes, name)


# Moments that do not exist


class HeavyTailed(PyroModule):
    """Observations with heavy tails around a linear function."""

    def __init__(self, df: float) -> None:
        super().__init__()
        self.register_buffer("df", torch.tensor(df, dtype=torch.float64))

    def forward(self, x: Tensor, y: Tensor | None = None) -> Tensor:
        zero = torch.zeros_like(self.df)
        w = pyro.sample("w", dist.Normal(zero, 1.0).expand([3, 1]).to_event(2))
        f = pyro.deterministic("f", x @ w)
        with pyro.plate("data", x.shape[0]):
            noise = dist.Cauchy(f, 1.0) if self.df == 1 else dist.StudentT(self.df, f, 1.0)
            sampled: Tensor = pyro.sample("y", noise.to_event(1), obs=y)
        return sampled


@pytest.mark.slow("many draws")
def test_a_variance_that_does_not_exist_is_nan_with_a_warning() -> None:
    x = inputs()
    posterior = drawn(HeavyTailed(1.5), x, x[:, 0], NUM_DRAWS)
    prediction = posterior.predict(x, NUM_DRAWS)
    f = prediction.function_draws
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        torch.testing.assert_close(prediction.mean, f.mean(0))  # StudentT has a mean for df > 1
    with pytest.warns(
        BNNWarning, match=r"sd does not exist or hangs on few draws at 7 rows and is N"
    ):
        sd = prediction.sd
    assert bool(sd.isnan().all())
    assert bool(prediction.quantile(0.9).isfinite().all())


@pytest.mark.slow("many draws")
def test_a_mean_that_does_not_exist_is_nan_with_a_warning() -> None:
    x = inputs()
    prediction = drawn(HeavyTailed(1.0), x, x[:, 0], NUM_DRAWS).predict(x, NUM_DRAWS)
    for name in ("mean", "sd"):
        with pytest.warns(BNNWarning, match=f"{name} does not exist or .* at 7 rows"):
            value = getattr(prediction, name)
        assert bool(value.isnan().all())
    # y = f + Cauchy with f symmetric about 0: P(y < 0) = 1/2 at every row
    below = (prediction.draws < 0).double().mean(0)
    assert float(((below - 0.5) / (0.5 / math.sqrt(NUM_DRAWS))).abs().max()) < 5


def test_a_student_t_with_a_variance_has_the_closed_form() -> None:
    x = inputs()
    prediction = drawn(HeavyTailed(5.0), x, x[:, 0]).predict(x, 30)
    expected = math.sqrt(5 / (5 - 2))
    torch.testing.assert_close(prediction.sd_aleatoric, torch.full((7, 1), expected).double())


# Reproducible, in chunks


def test_one_seed_gives_one_prediction_and_leaves_the_random_state_alone() -> None:
    oracle = linear_gaussian()
    posterior = exact_posterior(oracle)
    state = torch.get_rng_state()
    first, again = posterior.predict(oracle.x, 20, seed=1), posterior.predict(oracle.x, 20, seed=1)
    other = posterior.predict(oracle.x, 20, seed=2)
    torch.testing.assert_close(torch.get_rng_state(), state)
    torch.testing.assert_close(first.draws, again.draws, rtol=0, atol=0)
    assert bool((first.draws != other.draws).all())


def evaluations(posterior: Posterior, x: Tensor, y: Tensor, num_draws: int) -> list[Tensor]:
    """Everything that depends on draws, of weights or of y."""
    prediction = posterior.predict(x, num_draws)
    return [
        prediction.function_draws,
        prediction.draws,
        prediction.mean,
        prediction.sd,
        prediction.log_prob(y),
        posterior.log_likelihood((x, y), num_draws),
        posterior.function_draws(x, num_draws),
        posterior.log_joint((x, y), num_draws),
    ]


def of_a_guide(x: Tensor, y: Tensor, **provenance: Any) -> GuidePosterior:
    """A guide on a small network, around a draw from its prior."""
    model = models.MLP(3, hidden=(8,)).double()
    program = Program(model, x, y)
    guide = guides.AutoNormal(model, init_scale=0.3)
    with isolated(0):
        guide.setup(x[:1])
    guide.double()
    return GuidePosterior(program, guide, Provenance("AutoNormal", "SVI", **provenance))


@pytest.mark.parametrize("kind", ["guide", "stored"])
@pytest.mark.parametrize("capture_from", [0, 1 << 60])
def test_chunks_change_nothing(
    kind: str, capture_from: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, y = inputs(40), inputs(40)[:, 0]
    posterior: Posterior = of_a_guide(x, y)
    if kind == "stored":
        posterior = drawn(models.MLP(3, hidden=(8,)).double(), x, y, 100)
    monkeypatch.setattr(chunks, "CAPTURE_FROM", 1 << 60)
    whole = evaluations(posterior, x, y, 100)
    sizes: list[int] = []
    one = chunks.Pass._one

    def counted(self: Any, z: Tensor, *args: Any) -> tuple[Tensor, ...]:
        sizes.append(len(z))
        return one(self, z, *args)

    monkeypatch.setattr(chunks.Pass, "_one", counted)
    monkeypatch.setattr(memory, "WORKING_SET", 100_000)
    monkeypatch.setattr(chunks, "CAPTURE_FROM", capture_from)
    chunked = evaluations(posterior, x, y, 100)
    assert sizes
    assert max(sizes) < 30
    for a, b in zip(chunked, whole, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("num_draws", [1, 10, 257])
def test_the_first_draws_are_those_of_fewer(num_draws: int) -> None:
    x, y = inputs(9), inputs(9)[:, 0]
    posterior = of_a_guide(x, y)
    few, many = posterior.predict(x, num_draws), posterior.predict(x, 300)
    torch.testing.assert_close(few.draws, many.draws[:num_draws], rtol=1e-12, atol=1e-12)
    z, of_many = posterior.unconstrained(num_draws), posterior.unconstrained(300)
    torch.testing.assert_close(z, of_many[:num_draws], rtol=0, atol=0)
    torch.testing.assert_close(
        posterior.log_q(num_draws), posterior.log_q(300)[:num_draws], rtol=0, atol=0
    )


def test_draws_of_y_of_different_posterior_draws_are_independent() -> None:
    """A block of noise of y that recurred would correlate draws that lie a block apart."""
    oracle = linear_gaussian()
    prediction = exact_posterior(oracle).predict(oracle.x[:2], 2_048)
    noise = (prediction.draws - prediction.function_draws).flatten(1)  # [S, 2]
    for lag in (1, 128, 256, 512, 1_024):
        product = noise[lag:] * noise[:-lag] / oracle.noise**2
        assert abs(float(product.mean())) < 5 / math.sqrt(product.numel())


# Beyond the memory bound

BOUND = 700_000  # bytes: one block of draws and a third of what they predict


def categorical(x: Tensor) -> Posterior:
    model = models.MLP(3, hidden=(4,), likelihood=likelihoods.Categorical(3)).double()
    return drawn(model, x, torch.arange(len(x)) % 3, 2_000)


@pytest.mark.parametrize("raw", [False, True])
def test_beyond_the_bound_moments_and_densities_stream(raw: bool) -> None:
    units = Standardiser(torch.tensor(1e6).double(), torch.tensor(3.0).double())
    x, y = inputs(40), inputs(40)[:, 0]
    posterior = of_a_guide(x, y, target=units)
    whole = posterior.predict(x, 2_000, raw=raw)
    streamed = posterior.predict(x, 2_000, raw=raw, memory=BOUND)
    for name in ("mean", "sd", "sd_epistemic", "sd_aleatoric"):
        expected = getattr(whole, name)
        torch.testing.assert_close(getattr(streamed, name), expected, rtol=1e-9, atol=1e-12)
    of_y = units.inverse(y) if raw else y
    log_prob = whole.log_prob(of_y)
    torch.testing.assert_close(streamed.log_prob(of_y), log_prob, rtol=1e-9, atol=1e-12)
    with pytest.raises(OptionError, match="probs describe classes"):
        _ = streamed.probs
    with pytest.raises(OptionError, match="probs describe classes"):
        _ = streamed.mutual_information
    assert streamed.class_probs is None


@pytest.mark.slow("a second or more")
def test_beyond_the_bound_class_probabilities_stream() -> None:
    x = inputs(40)
    posterior = categorical(x)
    whole, streamed = posterior.predict(x, 2_000), posterior.predict(x, 2_000, memory=BOUND)
    for name in ("probs", "entropy", "mutual_information"):
        torch.testing.assert_close(getattr(streamed, name), getattr(whole, name))
    y = torch.arange(40) % 3
    torch.testing.assert_close(streamed.log_prob(y), whole.log_prob(y))
    for name in ("mean", "sd_epistemic", "sd"):
        with pytest.raises(OptionError, match="mean and sd describe numbers; for classes read"):
            getattr(streamed, name)
    assert streamed.means is None


def test_probabilities_of_classes_are_not_kept_beside_their_logits() -> None:
    """A draw of 10 classes keeps the output, the logits made of it, and a label: 88 bytes a row."""
    x = torch.linspace(-1, 1, 10_000).sin().reshape(2_000, 5)
    posterior = drawn(
        models.MLP(5, likelihood=likelihoods.Categorical(10)), x, torch.arange(2_000) % 10, 100
    )
    prediction = posterior.predict(x, 100, memory=memory.GIB // 50)
    assert prediction.function_draws.shape == (100, 2_000, 10)
    assert prediction.class_probs is not None
    torch.testing.assert_close(prediction.class_probs, prediction.function_draws.softmax(-1))
    assert prediction.class_probs is not prediction.class_probs


@pytest.mark.slow("a second or more")
def test_beyond_the_bound_draws_are_refused_with_what_fits() -> None:
    x, y = inputs(40), inputs(40)[:, 0]
    posterior = of_a_guide(x, y)
    streamed = posterior.predict(x, 2_000, memory=BOUND)
    message = (
        r"^2000 draws at 40 rows need about .* MiB, more than the bound of 683\.6 KiB: "
        r"num_samples=(\d+) fits, or raise memory=; moments, quantiles and log_prob\(y\) need no "
    )
    for name in ("draws", "function_draws", "means", "variances"):
        with pytest.raises(OptionError, match=message):
            getattr(streamed, name)
    with pytest.raises(OptionError, match=message) as refused:
        _ = streamed.draws
    fits = int(re.findall(r"num_samples=(\d+)", str(refused.value))[0])
    assert posterior.predict(x, fits, memory=BOUND).draws.shape == (fits, 40, 1)
    with pytest.raises(OptionError, match="fits, or raise memory="):
        _ = posterior.predict(x, fits + 1, memory=BOUND).draws
    with pytest.raises(OptionError, match="num_samples="):
        _ = categorical(x).predict(x, 2_000, memory=BOUND).class_probs


def test_draws_beyond_the_bound_are_refused_where_they_are_the_result() -> None:
    x, y = inputs(40), inputs(40)[:, 0]
    posterior = of_a_guide(x, y)
    with pytest.raises(OptionError, match=r"10000 draws at 40 rows need .*num_samples=\d+ fits"):
        posterior.function_draws(x, 10_000, memory=BOUND)
    with pytest.raises(OptionError, match=r"10000 draws at 40 rows need .*num_samples=\d+ fits"):
        posterior.log_likelihood((x, y), 10_000, memory=BOUND)
    for call in (posterior.predict, posterior.function_draws):
        with pytest.raises(OptionError, match=r"of 0\.1 KiB: pass memory=\d+ or more$"):
            call(x, 1_000, memory=100)
        with pytest.raises(OptionError, match="pass fewer rows at a time, or raise memory="):
            call(x.repeat(1_000, 1), 1_000, memory=BOUND)


def test_masked_rows_have_no_density_in_a_prediction() -> None:
    def model(x: Tensor, y: Tensor | None = None) -> None:
        w = pyro.sample("w", dist.Normal(x.new_zeros(3, 1), 1.0).to_event(2))
        f = pyro.deterministic("f", x @ w)
        mask: Any = x[:, 0] < 0.5
        with pyro.plate("data", x.shape[0]), pyro.poutine.mask(mask=mask):
            pyro.sample("y", dist.Normal(f, 0.7).to_event(1), obs=y)

    x = inputs(12)
    posterior = drawn(cast(PyroModule, model), x, x[:, 0])
    log_prob = posterior.predict(x, 30).log_prob(x[:, 0])
    f = posterior.function_draws(x, 30)[..., 0]
    expected = log_normal(x[:, 0] - f, 0.7).exp().mean(0).log()
    seen = x[:, 0] < 0.5
    assert 0 < int(seen.sum()) < 12
    torch.testing.assert_close(log_prob, torch.where(seen, expected, 0.0))


# Inputs and streams


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ({(1, 2): math.nan}, r"infinity in column 2 \(1 row\) of 7, first in row 1"),
        (
            {(0, 1): math.inf, (3, 0): math.nan, (3, 1): math.nan},
            r"in column 0 \(1 row\), column 1 \(2 rows\) of 7, first in row 0",
        ),
    ],
)
def test_inputs_that_are_not_finite_are_refused(
    entries: dict[tuple[int, int], float], message: str
) -> None:
    x = inputs()
    posterior = drawn(models.MLP(3).double(), x, x[:, 0])
    for place, value in entries.items():
        x[place] = value
    with pytest.raises(DataError, match=message):
        posterior.predict(x, 5)
    with pytest.raises(DataError, match=message):
        posterior.function_draws(x, 5)


@pytest.mark.parametrize("prior", [priors.Normal(1.0), {"3.*": priors.Normal(1.0)}])
def test_an_image_without_a_batch_is_refused_with_what_to_pass(prior: Any) -> None:
    net = nn.Sequential(
        nn.BatchNorm2d(2), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2, 3)
    ).eval()
    model = models.bayesian(net, prior, likelihoods.Categorical(3))
    x, y = torch.randn(9, 2, 4, 4), torch.arange(9) % 3
    svi = SVI(guides.AutoNormal, num_steps=2, compile=False)
    posterior = svi.run(model, (x, y), init="prior", progress=False)
    with pytest.raises(ShapeError, match=r"fitted to rows of shape \(2, 4, 4\): .*x\.unsqueeze\(0"):
        posterior.predict(x[0])
    assert posterior.predict(x[:1]).probs.shape == (1, 3)


def test_other_columns_than_those_of_the_fit_are_named() -> None:
    x = inputs()
    posterior = drawn(bayesian(torch.nn.Linear(3, 1).double()), x, x[:, 0])
    message = r"fails on x with rows of shape \(2,\); it was fitted to rows of shape \(3,\)"
    with pytest.raises(ShapeError, match=message):
        posterior.predict(x[:, :2], 5)
    with pytest.raises(ShapeError, match=message):
        posterior.function_draws(x[:, :2], 5)


def test_the_noise_of_y_has_a_stream_apart_from_that_of_the_weights() -> None:
    seeds: set[int] = set()

    def model(x: Tensor, y: Tensor | None = None) -> Any:
        seeds.add(torch.initial_seed())
        w = pyro.sample("w", dist.Normal(x.new_zeros(3, 1), 1.0).to_event(2))
        f = pyro.deterministic("f", x @ w)
        with pyro.plate("data", x.shape[0]):
            return pyro.sample("y", dist.Normal(f, 0.7).to_event(1), obs=y)

    x = inputs()
    program: Any = Program(model, x, x[:, 0])
    z = program.prior_draws(4, x[:1])
    params: dict[str, Tensor] = {}
    program.predictive(z, x, params)  # its checks
    seeds.clear()
    predict(Chunks(program), params, Draws.of(z), x, seed=12345, memory=memory.GIB)
    assert seeds
    assert 12345 not in seeds
    posterior = DrawsPosterior(program, z.unsqueeze(0), Provenance("prior", "none"))
    seeds.clear()
    train = Dataset(x, x[:, 0])
    _prior_groups(posterior, train, train.x[:3], 12345, memory.GIB)
    assert len(seeds - {torch.initial_seed()}) == 2  # f draws nothing
    assert 12345 not in seeds


def test_a_quantile_that_is_a_draw_is_finite_beside_an_infinite_one() -> None:
    draws = torch.tensor([float("inf"), 0.0, 1.0])[:, None, None]
    prediction = Prediction(draws, draws, draws, draws, None, lambda y: y)
    assert prediction.quantile([0.0, 0.5, 0.25, 1.0]).flatten().tolist() == [0, 1, 0.5, math.inf]


def test_a_quantile_of_counts_is_the_smallest_that_its_share_of_the_draws_does_not_exceed() -> None:
    draws = torch.tensor([7.0, 1.0, 4.0, 2.0])[:, None, None]
    prediction = Prediction(draws, draws, draws, draws, None, lambda y: y, is_discrete=True)
    levels = [0.0, 0.25, 0.26, 0.5, 0.75, 0.76, 1.0]
    assert prediction.quantile(levels).flatten().tolist() == [1, 1, 2, 2, 4, 7, 7]


def test_levels_that_are_rounded_have_the_quantiles_of_counts_of_exact_ones() -> None:
    """Of 0 .. 999 that at k / 1,000 is k - 1; float32 and 1 - 0.95 are off by a rounding."""
    draws = torch.randperm(1_000, generator=torch.Generator().manual_seed(0)).double()
    given = draws[:, None, None]
    prediction = Prediction(given, given, given, given, None, lambda y: y, is_discrete=True)
    k = torch.arange(1, 1_000, dtype=torch.float64)
    for shift, expected in ((0.0, k - 1), (1e-3, k), (-1e-3, k - 1)):
        levels = (k + shift) / 1_000
        for q in (levels, levels.float(), 1 - (1 - levels), 1 - (1 - levels.float())):
            found = prediction.quantile(q).flatten()
            torch.testing.assert_close(found, expected, rtol=0, atol=0)
    exact = np.quantile(draws.numpy(), [0.025, 0.975], method="inverted_cdf").tolist()
    assert prediction.quantile([(1 - 0.95) / 2, (1 + 0.95) / 2]).flatten().tolist() == exact


def test_draws_of_a_prediction_stay_for_the_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.linspace(-1, 1, 12).reshape(6, 2)
    engine = SVI(guides.AutoNormal, num_steps=3, compile=False)
    posterior = engine.run(models.MLP(2, hidden=(3,)), (x, x[:, 0]), progress=False)
    first = posterior.predict(x, 50, seed=4)
    other = posterior.predict(x, 50, seed=5)
    again = posterior.predict(x, 50, seed=5)
    torch.testing.assert_close(again.means, other.means, rtol=0, atol=0)
    copied = pickle.loads(pickle.dumps(posterior))
    made = [0]
    draws = GuidePosterior._draws

    def counted(self: GuidePosterior, noise: Tensor) -> Tensor:
        made[0] += 1
        return draws(self, noise)

    monkeypatch.setattr(GuidePosterior, "_draws", counted)
    posterior.predict(x[:1], 50, seed=5)
    assert made == [0]
    torch.testing.assert_close(posterior.predict(x, 50, seed=4).means, first.means)
    assert made[0] > 0
    made[0] = 0
    torch.testing.assert_close(copied.predict(x, 50, seed=5).means, other.means)
    assert made[0] > 0  # files hold no draws that can be made anew
