"""Posteriors: draws, densities, chains, refusals."""

from __future__ import annotations

import dataclasses
import functools
import math
from pathlib import Path
from typing import Any, cast

import numpy as np
import pandas as pd
import pyro
import pytest
import torch
from pyro import poutine
from pyro.distributions import Normal
from pyro.infer import Predictive, autoguide
from pyro.infer.autoguide import init_to_value
from torch.utils.data import DataLoader, TensorDataset

from pyro_bnn import CAVI, HMC, NUTS, SVI, VON, Exact, guides, likelihoods, memory, models, priors
from pyro_bnn.data import Dataset, Standardiser
from pyro_bnn.errors import BNNWarning, DataError, OptionError, ShapeError, SiteError
from pyro_bnn.posterior import DrawsPosterior, GuidePosterior, Posterior, Provenance
from pyro_bnn.posterior.arviz_groups import _prior_groups
from pyro_bnn.program import Program
from tests.guides.exact import at, exact_posterior, multivariate_normal, stored_posterior
from tests.laws import assert_mean
from tests.oracle import LinearModel, design, linear_gaussian, log_normal, with_answers


def both_kinds() -> list[Posterior]:
    oracle = linear_gaussian()
    return [exact_posterior(oracle), stored_posterior(oracle)]


# Draws


@pytest.mark.parametrize("posterior", both_kinds(), ids=["guide", "stored"])
def test_one_seed_gives_the_same_draws_in_every_method(posterior: Posterior) -> None:
    oracle = linear_gaussian()
    data = Dataset(oracle.x, oracle.y)
    z = posterior.unconstrained(24, seed=3)
    assert z.shape == (24, 4)
    sites = posterior.sample(24, seed=3)
    torch.testing.assert_close(sites["w"], z[:, :3, None])
    torch.testing.assert_close(sites["b"], z[:, 3:])
    f = z @ design(oracle.x).T
    torch.testing.assert_close(posterior.function_draws(oracle.x, 24, seed=3)[..., 0], f)
    prediction = posterior.predict(oracle.x, 24, seed=3)
    torch.testing.assert_close(prediction.function_draws[..., 0], f)
    log_likelihood = torch.distributions.Normal(f, oracle.noise).log_prob(oracle.y)
    torch.testing.assert_close(posterior.log_likelihood(data, 24, seed=3), log_likelihood)
    torch.testing.assert_close(posterior.log_joint(data, 24, seed=3), oracle.log_joint(z))
    assert bool((posterior.unconstrained(24, seed=4) != z).any())


def test_draws_group_by_chain() -> None:
    oracle = linear_gaussian()
    posterior = stored_posterior(oracle, num_chains=3, num_draws=10)
    assert posterior.num_chains == 3
    assert posterior.num_stored_draws == 30
    flat, grouped = posterior.sample(12), posterior.sample(12, group_by_chain=True)
    assert grouped["w"].shape == (3, 4, 3, 1)
    torch.testing.assert_close(grouped["w"].flatten(0, 1), flat["w"])
    f = posterior.function_draws(oracle.x, 12, group_by_chain=True)
    assert f.shape == (3, 4, 20, 1)
    torch.testing.assert_close(f.flatten(0, 1), posterior.function_draws(oracle.x, 12))
    values = posterior.log_likelihood((oracle.x, oracle.y), 12, group_by_chain=True)
    assert values.shape == (3, 4, 20)
    assert exact_posterior(oracle).sample(6, group_by_chain=True)["b"].shape == (1, 6, 1)


def test_each_stored_draw_is_used_at_most_once() -> None:
    posterior = stored_posterior(linear_gaussian(), num_chains=2, num_draws=50)
    everything = posterior.unconstrained(100)
    assert len(everything.unique(dim=0)) == 100
    some = posterior.unconstrained(60, seed=1)
    assert len(some.unique(dim=0)) == 60
    assert len(torch.cat([some, everything]).unique(dim=0)) == 100  # all of them stored ones
    assert posterior.unconstrained(61).shape == (60, 4)  # as many from each chain
    with pytest.warns(BNNWarning, match="101 draws were asked for and 100 are stored: all of"):
        torch.testing.assert_close(posterior.unconstrained(101), everything)


def test_pyros_predictive_takes_the_draws() -> None:
    oracle = linear_gaussian()
    posterior = exact_posterior(oracle)
    predictive = Predictive(oracle.model, posterior.sample(10), return_sites=["f"])
    with torch.random.fork_rng():
        f = predictive(oracle.x)["f"]
    torch.testing.assert_close(f.reshape(10, 20, 1), posterior.function_draws(oracle.x, 10))


@pytest.mark.parametrize("num_samples", [0, -3, 2.0, True])
def test_num_samples_is_checked(num_samples: int) -> None:
    with pytest.raises(OptionError, match="num_samples is a positive integer, not"):
        exact_posterior(linear_gaussian()).sample(num_samples)


def test_fewer_draws_than_chains_are_refused() -> None:
    posterior = stored_posterior(linear_gaussian(), num_chains=4)
    with pytest.raises(OptionError, match="the total over 4 chains: at least 4, not 3"):
        posterior.sample(3)


def test_by_default_a_draw_of_every_chain_is_used() -> None:
    oracle = linear_gaussian()
    posterior = stored_posterior(oracle, num_draws=2, num_chains=1_001)
    assert posterior.unconstrained(group_by_chain=True).shape == (1_001, 1, 4)
    assert posterior.predict(oracle.x).function_draws.shape == (1_001, 20, 1)
    data = Dataset(oracle.x, oracle.y)
    prior = _prior_groups(posterior, data, data.x[:8], 0, memory.GIB)["prior"]
    assert prior["f"].shape == (1, 200, 8, 1)


SEEDS: tuple[Any, Any] = 3, np.int64(3)


def test_a_seed_of_numpy_is_that_of_the_run() -> None:
    oracle = linear_gaussian()
    model, data = models.LinearRegression(3).double(), (oracle.x, oracle.y)
    svi = SVI(guides.AutoNormal, num_steps=2, compile=False)
    one, other = (svi.run(model, data, seed=s, progress=False) for s in SEEDS)
    assert other.losses.tolist() == one.losses.tolist()
    assert type(other.seed) is int  # a file of the posterior holds it


@pytest.mark.parametrize("posterior", both_kinds(), ids=["guide", "stored"])
def test_integers_of_numpy_are_integers(posterior: Posterior) -> None:
    oracle = linear_gaussian()
    expected = posterior.predict(oracle.x, 24, seed=3).draws
    dtypes: tuple[Any, ...] = np.int64, np.uint32
    for dtype in dtypes:
        found = posterior.predict(oracle.x, dtype(24), seed=dtype(3)).draws
        torch.testing.assert_close(found, expected, rtol=0, atol=0)
        z = posterior.unconstrained(dtype(24), seed=dtype(3))
        assert torch.equal(z, posterior.unconstrained(24, seed=3))
    with pytest.raises(OptionError, match=r"num_samples is a positive integer, not 2\.0"):
        posterior.predict(oracle.x, cast(Any, np.float64(2)))


def test_inputs_are_checked() -> None:
    posterior = exact_posterior(linear_gaussian())
    for x in (torch.zeros(0, 3), torch.tensor(1.0)):
        with pytest.raises(ShapeError, match=r"x has shape .*, but holds N rows, N at least 1"):
            posterior.function_draws(x)
        with pytest.raises(ShapeError, match=r"x has shape .*, but holds N rows, N at least 1"):
            posterior.predict(x)


def test_inputs_of_another_precision_are_cast() -> None:
    oracle = linear_gaussian()
    posterior = exact_posterior(oracle)
    x = oracle.x.float()
    expected = posterior.function_draws(x.double(), 3)
    torch.testing.assert_close(posterior.function_draws(x, 3), expected)
    torch.testing.assert_close(posterior.predict(x, 3).function_draws, expected)


def test_stored_draws_are_checked() -> None:
    oracle = linear_gaussian()
    program = Program(oracle.model, oracle.x, oracle.y)
    for shape in ((10, 4), (2, 10, 5)):
        with pytest.raises(ShapeError, match=r"stored draws have shape .*, expected \[C, S, 4\]"):
            DrawsPosterior(program, torch.zeros(shape), Provenance("NUTS", "NUTS"))


# Densities


def test_densities_are_in_the_same_coordinates() -> None:
    """For the exact posterior, log p - log q is the log evidence at every draw."""
    oracle = linear_gaussian()
    posterior = exact_posterior(oracle)
    log_p, log_q = posterior.densities((oracle.x, oracle.y), 50)
    evidence = torch.full((50,), oracle.log_evidence, dtype=torch.float64)
    torch.testing.assert_close(log_p - log_q, evidence, rtol=1e-9, atol=1e-9)
    elbo, error = posterior.elbo((oracle.x, oracle.y), 50)
    assert elbo == pytest.approx(oracle.log_evidence, rel=1e-10)
    assert error < 1e-9


@pytest.mark.parametrize("as_tensor", [False, True])
def test_the_log_joint_of_a_model_under_a_scale_has_that_scale(as_tensor: bool) -> None:
    """Rows that count 4 times each: noise of half the sd, and another constant of each row."""
    oracle, power = linear_gaussian(), 4.0
    tempered = with_answers(
        oracle.x, oracle.y, LinearModel(3, oracle.noise / math.sqrt(power), oracle.prior_scale)
    )
    scale = torch.tensor(power) if as_tensor else power
    prior = Normal(torch.zeros((), dtype=torch.float64), oracle.prior_scale)

    def model(x: torch.Tensor, y: torch.Tensor | None = None) -> Any:
        w = pyro.sample("w", prior.expand([3, 1]).to_event(2))
        b = pyro.sample("b", prior.expand([1]).to_event(1))
        f = pyro.deterministic("f", x @ w + b)
        with poutine.scale(scale=scale), pyro.plate("data", len(x)):
            return pyro.sample("y", Normal(f, oracle.noise).to_event(1), obs=y)

    guide = guides.AutoMultivariateNormal(model)
    guide.setup(oracle.x, oracle.y)
    guide.set_moments(tempered.mean, tempered.covariance)
    program = Program(model, oracle.x, oracle.y)
    posterior = GuidePosterior(program, guide, Provenance("AutoMultivariateNormal", "SVI"))
    of_a_row = math.log(2 * math.pi * oracle.noise**2) / 2  # by which c log N has less
    missing = (power - 1) * of_a_row + math.log(power) / 2
    expected = tempered.log_evidence - len(oracle.x) * missing
    elbo, error = posterior.elbo((oracle.x, oracle.y), 50)
    assert elbo == pytest.approx(expected, rel=1e-9)
    assert error < 1e-9
    some = (oracle.x[:5], oracle.y[:5])  # its rows alone, not in the place of all
    z = posterior.unconstrained(50)
    residual = oracle.y[:5] - z @ design(oracle.x[:5]).T
    log_joint = power * log_normal(residual, oracle.noise).sum(-1)
    log_joint += log_normal(z, oracle.prior_scale).sum(-1)
    torch.testing.assert_close(posterior.log_joint(some, 50), log_joint)


def test_the_log_joint_of_draws_in_several_blocks_is_that_of_each(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(memory, "WORKING_SET", 4_000)  # the 20 rows take 160 bytes a draw
    oracle = linear_gaussian()
    posterior = stored_posterior(oracle)
    found = posterior.log_joint((oracle.x, oracle.y), 100)
    torch.testing.assert_close(found, oracle.log_joint(posterior.unconstrained(100)))


def test_the_elbo_has_its_monte_carlo_error() -> None:
    oracle = linear_gaussian()
    mean, covariance = oracle.mean + 0.1, oracle.mean_field_variance.diag()
    posterior = exact_posterior(oracle)
    posterior.guide = multivariate_normal(oracle, mean, covariance)
    elbo, error = posterior.elbo((oracle.x, oracle.y), 2_000)
    assert abs(elbo - oracle.elbo(mean, covariance)) < 5 * error
    z = posterior.unconstrained(2_000)
    terms = oracle.log_joint(z) - torch.distributions.MultivariateNormal(mean, covariance).log_prob(
        z
    )
    assert error == pytest.approx(float(terms.std()) / math.sqrt(2_000), rel=1e-9)


def test_stored_log_q_follows_the_draws() -> None:
    oracle = linear_gaussian()
    log_q = torch.arange(100.0, dtype=torch.float64).reshape(2, 50)
    z = log_q.unsqueeze(-1).expand(2, 50, 4).contiguous()
    program = Program(oracle.model, oracle.x, oracle.y)
    posterior = DrawsPosterior(program, z, Provenance("AutoNormal", "SVI"), log_q=log_q)
    assert posterior.has_log_prob
    assert posterior.elbo_kind == "monte_carlo"
    torch.testing.assert_close(posterior.log_q(30, 7), posterior.unconstrained(30, 7)[:, 0])


def test_what_has_no_density_says_so() -> None:
    oracle = linear_gaussian()
    sampler = stored_posterior(oracle)
    assert not sampler.has_log_prob
    assert sampler.elbo_kind == "none"
    with pytest.raises(SiteError, match=r"NUTS has no density q\(z\): 10 draws of seed 2 have no"):
        sampler.log_q(10, seed=2)
    with pytest.raises(SiteError, match=r"NUTS has no density q\(z\)"):
        sampler.elbo((oracle.x, oracle.y), 10)
    point = SVI(guides.AutoDelta, num_steps=1).run(
        oracle.model, (oracle.x, oracle.y), progress=False
    )
    assert not point.has_log_prob
    assert point.elbo_kind == "none"
    with pytest.raises(SiteError, match=r"AutoDelta has no density q\(z\)"):
        point.log_q()


# What is known of a posterior


def test_provenance_is_readable_from_the_posterior() -> None:
    oracle = linear_gaussian()
    posterior = SVI(guides.AutoNormal, num_steps=7).run(
        oracle.model, (oracle.x, oracle.y), seed=11, progress=False
    )
    assert (posterior.method, posterior.engine, posterior.seed) == ("AutoNormal", "SVI", 11)
    assert posterior.options["num_steps"] == 7
    assert posterior.losses.shape == (7,)
    assert posterior.num_parameters == 8
    assert posterior.model is oracle.model
    assert posterior.elbo_kind == "exact"
    assert posterior.num_chains == 1
    assert posterior.num_stored_draws is None
    assert posterior.sample_stats == {}
    assert repr(posterior) == "GuidePosterior(AutoNormal by SVI, P=4)"
    assert repr(stored_posterior(oracle)) == "DrawsPosterior(NUTS by NUTS, P=4, 100 draws)"


def test_units_come_from_the_data() -> None:
    x, y = torch.arange(18.0).reshape(9, 2), torch.arange(9.0)
    units = (
        Standardiser(torch.zeros(2), torch.ones(2)),
        Standardiser(torch.tensor(1.0), torch.tensor(2.0)),
    )
    data = Dataset(x, y, inputs=units[0], target=units[1])
    posterior = SVI(guides.AutoDelta, num_steps=1).run(
        models.MLP(2, hidden=(2,)), data, progress=False
    )
    assert (posterior.provenance.inputs, posterior.provenance.target) == units


# Names of columns

NAMES = ("age", "income", "height")


def named() -> tuple[DrawsPosterior, pd.DataFrame, Dataset]:
    """A posterior of a fit to named columns in units of their own, new rows, and its data."""
    oracle = linear_gaussian()
    inputs = Standardiser(torch.tensor([40.0, 5e3, 1.7]), torch.tensor([10.0, 2e3, 0.1]))
    data = Dataset(oracle.x, oracle.y, inputs=inputs, input_names=NAMES)
    posterior = NUTS(num_chains=1, warmup_steps=3, num_samples=4).run(
        oracle.model, data, progress=False
    )
    rows = pd.DataFrame(data.raw()[0].numpy(), columns=list(NAMES), index=range(5, 25))
    return posterior, rows, data


@pytest.mark.usefixtures("uncaptured")
def test_the_columns_of_a_frame_are_found_by_name() -> None:
    posterior, rows, data = named()
    assert posterior.provenance.input_names == NAMES
    expected = posterior.predict(rows.to_numpy(), raw=True).mean
    swapped = rows[["height", "age", "income"]]
    torch.testing.assert_close(posterior.predict(rows, raw=True).mean, expected)
    torch.testing.assert_close(posterior.predict(swapped, raw=True).mean, expected)
    standard = pd.DataFrame(data.x.numpy(), columns=list(NAMES))[swapped.columns]
    f = posterior.function_draws(data.x)
    torch.testing.assert_close(posterior.function_draws(standard), f)
    likelihood = posterior.log_likelihood((data.x, data.y))
    torch.testing.assert_close(posterior.log_likelihood((standard, data.y)), likelihood)


@pytest.mark.usefixtures("uncaptured")
def test_other_columns_than_those_of_the_fit_are_refused() -> None:
    posterior, rows, data = named()
    renamed = rows.rename(columns={"age": "years"})
    reason = "'years', 'income', 'height', but the fit was to 'age', 'income', 'height': missing"
    for ask in (posterior.predict, posterior.function_draws):
        with pytest.raises(ValueError, match=reason):
            ask(renamed)
    with pytest.raises(DataError, match=reason):
        posterior.log_likelihood((renamed, data.y))
    other = dataclasses.replace(data, input_names=("years", *NAMES[1:]))
    swapped = dataclasses.replace(data, input_names=NAMES[::-1])
    for rows_, reason in (
        (other, "missing are 'age', unknown are 'years'"),
        (swapped, "in another order, 'height', 'income', 'age': make the Dataset"),
    ):
        with pytest.raises(DataError, match=reason):
            posterior.log_likelihood(rows_)
        with pytest.raises(DataError, match=reason):
            posterior.to_arviz(rows_)
        with pytest.raises(DataError, match=reason):
            posterior.to_arviz(data, rows_)
    others: list[Any] = [(rows, data.y), data.x]
    for no_dataset in others:
        with pytest.raises(DataError, match=r"rows are a pyro_bnn.data.Dataset, such as split"):
            posterior.to_arviz(data, no_dataset)


@pytest.mark.usefixtures("uncaptured")
def test_names_are_saved_and_checked_after_loading(tmp_path: Path) -> None:
    posterior, rows, _ = named()
    posterior.save(tmp_path / "fit.pt")
    loaded = Posterior.load(tmp_path / "fit.pt", linear_gaussian().model)
    expected = posterior.predict(rows, raw=True).mean
    torch.testing.assert_close(loaded.predict(rows[list(NAMES[::-1])], raw=True).mean, expected)
    with pytest.raises(DataError, match="missing are 'income'"):
        loaded.predict(rows.rename(columns={"income": "wage"}), raw=True)


@pytest.mark.usefixtures("uncaptured", "few_stock_draws")
@pytest.mark.parametrize(
    "engine",
    [
        SVI(guides.AutoNormal, num_steps=2),
        SVI(autoguide.AutoNormal, num_steps=2),
        VON(num_steps=2),
        Exact(),
        CAVI(),
        HMC(num_chains=1, warmup_steps=1, num_samples=2),
    ],
    ids=lambda engine: type(engine).__name__,
)
def test_every_engine_keeps_the_names_of_the_data(engine: Any) -> None:
    oracle = linear_gaussian()
    frame = pd.DataFrame(oracle.x.numpy(), columns=list(NAMES))
    model = models.LinearRegression(3, likelihood=likelihoods.Normal(0.3)).double()
    posterior = engine.run(model, (frame, oracle.y.numpy()), progress=False)
    assert posterior.provenance.input_names == NAMES


@pytest.mark.usefixtures("uncaptured")
def test_classes_as_text_are_those_of_the_fit(tmp_path: Path) -> None:
    x = torch.linspace(-1, 1, 18).reshape(9, 2)
    text, labels = ["odd", "ill", "well"] * 3, torch.tensor([1, 0, 2] * 3)

    def model() -> models.BayesianModule:
        return models.bayesian(torch.nn.Linear(2, 3), likelihood=likelihoods.Categorical(3))

    made = model()
    posterior = SVI(guides.AutoNormal, num_steps=2).run(made, (x, text), progress=False)
    assert posterior.provenance.class_names == ("ill", "odd", "well")
    posterior.save(tmp_path / "fit.pt")
    for one in (posterior, Posterior.load(tmp_path / "fit.pt", made)):
        expected = one.log_likelihood((x[:2], labels[:2]), 5)
        torch.testing.assert_close(one.log_likelihood((x[:2], ["odd", "ill"]), 5), expected)
        prediction = one.predict(x[:2], 5)
        found = prediction.log_prob(np.array(["odd", "ill"]))
        torch.testing.assert_close(found, prediction.log_prob(labels[:2]))
        assert list(prediction.to_frame().columns)[1:4] == [
            "predicted_p_ill", "predicted_p_odd", "predicted_p_well"
        ]  # fmt: skip
        with pytest.raises(DataError, match="y holds 'dead', which is no class, in 1 of 2 rows"):
            prediction.log_prob(np.array(["odd", "dead"]))
        with pytest.raises(DataError, match="these rows have the classes 'ill', 'odd', but those"):
            one.log_likelihood(Dataset(x[:2], ["odd", "ill"]), 5)  # coded 1, 0 by chance


# Whole numbers


def embedding(dtype: torch.dtype) -> models.BayesianModule:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net = torch.nn.Sequential(
            torch.nn.Embedding(7, 2), torch.nn.Flatten(), torch.nn.Linear(6, 1)
        )
    return models.bayesian(net.to(dtype), likelihood=likelihoods.Normal(0.3))


@pytest.mark.usefixtures("uncaptured")
@pytest.mark.parametrize("kind", ["pair", "dataset", "arrays", "loader"])
def test_whole_numbers_reach_an_embedding(kind: str, tmp_path: Path) -> None:
    ids = torch.arange(30).reshape(10, 3) * 5 % 7
    y = ids.sum(1).double() / 10
    data: Any = {
        "pair": (ids, y),
        "dataset": Dataset(ids, y),
        "arrays": (ids.numpy(), y.numpy()),
        "loader": DataLoader(TensorDataset(ids.int(), y), batch_size=4),
    }[kind]
    model = embedding(torch.float64)
    posterior = SVI(guides.AutoNormal, num_steps=3).run(model, data, progress=False)
    z = posterior.unconstrained(3)
    table, weight = z[:, :14].reshape(3, 7, 2), z[:, 14:20]
    f = torch.einsum("snf,sf->sn", table[:, ids].flatten(-2), weight) + z[:, 20:]
    torch.testing.assert_close(posterior.function_draws(ids, 3)[..., 0], f)
    posterior.save(tmp_path / "fit.pt")
    loaded = Posterior.load(tmp_path / "fit.pt", model)
    for x in (ids, ids.double(), pd.DataFrame(ids.numpy())):
        torch.testing.assert_close(loaded.predict(x, 3, raw=True).function_draws[..., 0], f)
    with pytest.raises(DataError, match="x holds fractions, but the model takes whole numbers"):
        posterior.predict(ids + 0.5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_whole_numbers_reach_other_models_as_floating_ones(dtype: torch.dtype) -> None:
    x = torch.arange(12).reshape(4, 3)
    model = models.LinearRegression(3, likelihood=likelihoods.Normal(0.3)).to(dtype)
    program = Program(model, x, x[:, 0].to(dtype))
    assert program.x_dtype == program.example.x.dtype == dtype
    z = torch.linspace(-1, 1, program.num_latents, dtype=dtype)
    batch = program.batch(x, x[:, 0].to(dtype))
    torch.testing.assert_close(program.function(z, batch.x), program.function(z, x.to(dtype)))


def test_draws_of_a_guide_have_its_moments() -> None:
    oracle = linear_gaussian()
    posterior = exact_posterior(oracle)
    assert_mean(posterior.unconstrained(20_000), oracle.mean)
    guide = guides.AutoNormal(oracle.model)
    at(guide, oracle, loc=oracle.mean, scale=torch.full((4,), 0.5).double())
    posterior.guide = guide
    assert_mean((posterior.unconstrained(20_000) - oracle.mean).square(), 0.25)


# Draws by default, and small requests


def test_by_default_all_stored_draws_are_used_where_they_are_few() -> None:
    oracle = linear_gaussian()
    posterior = stored_posterior(oracle)
    assert posterior.unconstrained().shape == (100, 4)
    assert posterior.predict(oracle.x).function_draws.shape == (100, 20, 1)
    assert posterior.log_likelihood((oracle.x, oracle.y)).shape == (100, 20)
    assert exact_posterior(oracle).unconstrained().shape == (1_000, 4)
    assert stored_posterior(oracle, num_draws=600).unconstrained().shape == (1_000, 4)


def test_numpy_arrays_are_data() -> None:
    oracle = linear_gaussian()
    posterior = exact_posterior(oracle)
    arrays = (oracle.x.numpy(), oracle.y.numpy())
    expected = posterior.log_likelihood((oracle.x, oracle.y), 5)
    torch.testing.assert_close(posterior.log_likelihood(arrays, 5), expected)
    assert posterior.elbo(arrays, 5) == posterior.elbo((oracle.x, oracle.y), 5)


def test_an_elbo_of_one_draw_is_refused() -> None:
    oracle = linear_gaussian()
    with pytest.raises(OptionError, match="the standard error of the ELBO needs num_samples of at"):
        exact_posterior(oracle).elbo((oracle.x, oracle.y), 1)


@pytest.mark.usefixtures("few_stock_draws")
@pytest.mark.parametrize("guide", [guides.AutoNormal, autoguide.AutoDiagonalNormal])
def test_there_is_no_elbo_under_a_flat_prior(guide: Any) -> None:
    oracle = linear_gaussian()
    model = models.MLP(3, hidden=(), prior=priors.Flat()).double()
    start = functools.partial(guide, init_loc_fn=init_to_value(values={}))
    data = (oracle.x, oracle.y)
    posterior = SVI(start, num_steps=1).run(model, data, progress=False)
    assert posterior.has_log_prob
    assert posterior.elbo_kind == "none"
    with pytest.raises(SiteError, match=r"no ELBO under the flat prior of layers\.0\.bias, layers"):
        posterior.elbo(data, 10)
