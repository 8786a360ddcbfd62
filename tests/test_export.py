"""The ArviZ tree of a posterior: groups, dimensions, densities, NetCDF."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import numpy as np
import pandas as pd
import pyro
import pyro.distributions as dist
import pytest
import scipy.special
import torch
from pyro.nn import PyroModule, PyroSample
from scipy.stats import halfnorm, lognorm, norm

from pyro_bnn import SVI, arviz_io, guides, likelihoods, models, priors
from pyro_bnn.data import Dataset, from_arrays
from pyro_bnn.errors import OptionError
from pyro_bnn.posterior import DrawsPosterior, Posterior, Provenance
from pyro_bnn.program import Program
from tests.guides.exact import exact_posterior, stored_posterior
from tests.laws import MixedModel
from tests.oracle import design, linear_gaussian, log_normal

ALWAYS = {
    "posterior",
    "posterior_predictive",
    "log_likelihood",
    "observed_data",
    "constant_data",
    "log_prior",
    "prior",
    "prior_predictive",
}
OF_TEST_ROWS = {
    "predictions",
    "predictions_constant_data",
    "test_data",
    "log_likelihood_predictions",
}


def train_and_test() -> tuple[Dataset, Dataset]:
    oracle, other = linear_gaussian(), linear_gaussian(num_rows=11, seed=1)
    return Dataset(oracle.x, oracle.y), Dataset(other.x, other.y)


def values(tree: Any, name: str) -> np.ndarray[Any, Any]:
    return cast("np.ndarray[Any, Any]", tree[name].values)


def test_groups_of_an_approximation() -> None:
    train, test = train_and_test()
    posterior = exact_posterior(linear_gaussian(), losses=np.array([3.0, 2.0, 1.5]))
    without = posterior.to_arviz(train, num_samples=10)
    assert set(without.children) == ALWAYS | {"sample_stats", "optimization"}
    tree = posterior.to_arviz(train, test, num_samples=10)
    assert set(tree.children) == ALWAYS | OF_TEST_ROWS | {"sample_stats", "optimization"}
    np.testing.assert_array_equal(values(tree, "optimization/elbo"), [-3.0, -2.0, -1.5])
    assert tree["optimization/elbo"].dims == ("step",)


def test_dimensions_have_names() -> None:
    train, test = train_and_test()
    tree = exact_posterior(linear_gaussian()).to_arviz(train, test, num_samples=10)
    draws = ("chain", "draw")
    dims = {
        "posterior/f": (*draws, "point", "f_output"),
        "posterior_predictive/y": (*draws, "row"),
        "log_likelihood/y": (*draws, "row"),
        "observed_data/y": ("row",),
        "constant_data/x": ("row", "input"),
        "predictions/y": (*draws, "test_row"),
        "predictions/f": (*draws, "test_row", "f_output"),
        "predictions/y_mean": (*draws, "test_row"),
        "predictions/y_variance": (*draws, "test_row"),
        "predictions_constant_data/x": ("test_row", "input"),
        "test_data/y": ("test_row",),
        "log_likelihood_predictions/y": (*draws, "test_row"),
        "sample_stats/log_p": draws,
        "sample_stats/log_q": draws,
        "prior/f": (*draws, "point", "f_output"),
        "prior_predictive/y": (*draws, "row"),
        "log_prior/w": draws,
    }
    assert {name: tree[name].dims for name in dims} == dims
    assert tree["posterior/f"].shape == (1, 10, 8, 1)
    assert list(tree["posterior/f"].coords["point"].values) == [f"test {i}" for i in range(8)]
    alone = exact_posterior(linear_gaussian()).to_arviz(train, num_samples=10)
    assert alone["posterior/f"].coords["point"].values[0] == "train 0"


def test_values_are_those_of_the_posterior() -> None:
    train, test = train_and_test()
    oracle = linear_gaussian()
    posterior = exact_posterior(oracle)
    tree = posterior.to_arviz(train, test, num_samples=10, seed=3)
    z = posterior.unconstrained(10, seed=3)
    f = z @ design(test.x).T
    np.testing.assert_allclose(values(tree, "predictions/f")[0, :, :, 0], f)
    np.testing.assert_allclose(values(tree, "posterior/f")[0, :, :, 0], f[:, :8])
    np.testing.assert_allclose(values(tree, "predictions/y_mean")[0], f)
    variances = np.full((1, 10, 11), oracle.noise**2)
    np.testing.assert_allclose(values(tree, "predictions/y_variance"), variances)
    log_likelihood = log_normal(test.y - f, oracle.noise)
    np.testing.assert_allclose(values(tree, "log_likelihood_predictions/y")[0], log_likelihood)
    log_likelihood = log_normal(train.y - z @ design(train.x).T, oracle.noise)
    np.testing.assert_allclose(values(tree, "log_likelihood/y")[0], log_likelihood)
    norm = z[:, :3].square().sum(-1).sqrt()
    np.testing.assert_allclose(values(tree, "posterior/norm w")[0], norm)
    np.testing.assert_array_equal(values(tree, "observed_data/y"), train.y)
    np.testing.assert_array_equal(values(tree, "test_data/y"), test.y)
    np.testing.assert_array_equal(values(tree, "constant_data/x"), train.x)
    np.testing.assert_array_equal(values(tree, "predictions_constant_data/x"), test.x)
    residual = values(tree, "posterior_predictive/y")[0] - (z @ design(train.x).T).numpy()
    assert abs(residual.std() / oracle.noise - 1) < 5 / np.sqrt(2 * residual.size)


def test_log_p_and_log_q_are_in_the_same_coordinates() -> None:
    train, _ = train_and_test()
    oracle = linear_gaussian()
    posterior = exact_posterior(oracle)
    tree = posterior.to_arviz(train, num_samples=25)
    z = posterior.unconstrained(25)
    log_p, log_q = values(tree, "sample_stats/log_p")[0], values(tree, "sample_stats/log_q")[0]
    np.testing.assert_allclose(log_p, oracle.log_joint(z), rtol=1e-10)
    np.testing.assert_allclose(log_q, oracle.log_posterior(z), rtol=1e-8)
    np.testing.assert_allclose(log_p - log_q, oracle.log_evidence, rtol=1e-9)


@pytest.mark.slow("about a second")
def test_the_log_prior_is_the_density_of_each_sites_value() -> None:
    """Without Jacobians: power-scaling of a prior is of the density that the user wrote."""
    train, _ = train_and_test()
    oracle = linear_gaussian()
    tree = exact_posterior(oracle).to_arviz(train, num_samples=6, include_weights=True)
    for name in ("w", "b"):
        weights = values(tree, f"posterior/{name}").reshape(1, 6, -1)
        expected = norm.logpdf(weights, scale=oracle.prior_scale).sum(-1)
        np.testing.assert_allclose(values(tree, f"log_prior/{name}"), expected, rtol=1e-10)
    posterior = SVI(guides.AutoNormal, num_steps=2).run(MixedModel(), train, progress=False)
    tree = posterior.to_arviz(train, num_samples=15)
    expected = halfnorm.logpdf(values(tree, "posterior/noise"))
    np.testing.assert_allclose(values(tree, "log_prior/noise"), expected, rtol=1e-10)
    gain = values(tree, "posterior/gain")  # of two groups
    expected = lognorm(0.3, scale=np.exp(-0.5)).logpdf(gain).sum(-1)
    np.testing.assert_allclose(values(tree, "log_prior/gain"), expected, rtol=1e-10)


def test_log_p_of_constrained_sites_has_its_jacobian() -> None:
    train, _ = train_and_test()
    posterior = SVI(guides.AutoNormal, num_steps=2).run(MixedModel(), train, progress=False)
    tree = posterior.to_arviz(train, num_samples=15)
    z = posterior.unconstrained(15)
    likelihood = posterior.log_likelihood(train, 15).sum(-1)
    expected = likelihood + MixedModel.log_prior(z)
    np.testing.assert_allclose(values(tree, "sample_stats/log_p")[0], expected, rtol=1e-10)


@pytest.mark.slow("about a second")
def test_hyper_parameters_as_they_are_and_weights_on_request() -> None:
    train, _ = train_and_test()
    posterior = SVI(guides.AutoNormal, num_steps=2).run(MixedModel(), train, progress=False)
    few = posterior.to_arviz(train, num_samples=6)["posterior"]
    scalars = {"noise", "rate", "mixing", "gain", "norm w", "norm offset", "f"}
    assert set(few.data_vars) == scalars
    sites = posterior.sample(6)
    np.testing.assert_array_equal(few["noise"].to_numpy()[0], sites["noise"])
    np.testing.assert_array_equal(few["mixing"].to_numpy()[0], sites["mixing"])
    everything = posterior.to_arviz(train, num_samples=6, include_weights=True)["posterior"]
    assert set(everything.data_vars) == scalars | {"w", "offset"}
    np.testing.assert_array_equal(everything["w"].to_numpy()[0], sites["w"])


def test_chains_and_statistics_of_a_sampler() -> None:
    train, test = train_and_test()
    numbers = np.arange(100).reshape(2, 50)
    posterior = stored_posterior(linear_gaussian(), sample_stats={"lp": numbers * 0.5})
    tree = posterior.to_arviz(train, test, num_samples=20, seed=5)
    assert dict(tree["posterior"].sizes)["chain"] == 2
    assert dict(tree["posterior"].sizes)["draw"] == 10
    assert set(tree.children) == ALWAYS | OF_TEST_ROWS | {"sample_stats"}
    chosen = posterior.chosen(20, 5).numpy()
    np.testing.assert_array_equal(values(tree, "sample_stats/lp"), 0.5 * numbers[:, chosen])
    z = posterior.unconstrained(20, 5, group_by_chain=True)
    f = z @ design(test.x).T  # [C, S, N]
    np.testing.assert_allclose(values(tree, "predictions/f")[..., 0], f)
    whole = posterior.to_arviz(train, num_samples=1_000)  # more than are stored, and no warning
    assert whole["posterior/f"].shape[:2] == (2, 50)
    np.testing.assert_array_equal(values(whole, "sample_stats/lp"), 0.5 * numbers)


def test_the_prior_is_that_of_the_model() -> None:
    train, _ = train_and_test()
    oracle = linear_gaussian()
    tree = exact_posterior(oracle).to_arviz(train, num_samples=5)
    f = values(tree, "prior/f")[0, :, :, 0]  # [S, points]
    variance = oracle.prior_scale**2 * design(train.x[:8]).square().sum(-1).numpy()
    z_scores = (f**2 / variance).mean(0) - 1
    assert np.abs(z_scores / np.sqrt(2 / len(f))).max() < 5
    y = values(tree, "prior_predictive/y")[0]  # [S, N]
    assert y.shape == (len(f), len(train))
    noise = (y[:, :8] - f) / oracle.noise  # the same draws of the weights
    assert abs((noise**2).mean() - 1) < 5 * np.sqrt(2 / noise.size)


def test_an_improper_prior_has_no_prior_groups() -> None:
    train, _ = train_and_test()
    model = models.MLP(3, hidden=(), prior=priors.Flat(), likelihood=likelihoods.Normal(0.5))
    posterior = SVI(guides.AutoDelta, num_steps=2).run(model.double(), train, progress=False)
    tree = posterior.to_arviz(train, num_samples=3)
    of_prior = {"prior", "prior_predictive", "log_prior"}
    assert set(tree.children) == (ALWAYS - of_prior) | {"optimization"}


def test_classes() -> None:
    train, _ = train_and_test()
    labels = (train.y > 0).long()
    model = models.MLP(3, hidden=(4,), likelihood=likelihoods.Categorical(2)).double()
    data = Dataset(train.x, labels)
    posterior = SVI(guides.AutoNormal, num_steps=2).run(model, data, progress=False)
    tree = posterior.to_arviz(data, data, num_samples=5)
    assert tree["predictions/f"].shape == (1, 5, 20, 2)
    assert tree["predictions/y"].shape == (1, 5, 20)
    np.testing.assert_array_equal(values(tree, "observed_data/y"), labels)
    probs, f = values(tree, "predictions/probs"), values(tree, "predictions/f")
    assert tuple(tree["predictions/probs"].dims)[2:] == ("test_row", "class")
    np.testing.assert_allclose(probs, scipy.special.softmax(f, -1), rtol=1e-12)
    assert not {"y_mean", "y_variance"} & set(tree["predictions"].data_vars)
    options = arviz_io.options(tree)
    assert (options["likelihood"], options["task"]) == ("Categorical", "classification")


def test_images_name_every_dimension_of_their_inputs() -> None:
    x = torch.linspace(-1, 1, 4 * 2 * 3 * 3).reshape(4, 2, 3, 3)
    net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(18, 1))
    data = Dataset(x, torch.arange(4.0))
    posterior = SVI(guides.AutoNormal, num_steps=1).run(models.bayesian(net), data, progress=False)
    tree = posterior.to_arviz(data, num_samples=3)
    assert tree["constant_data/x"].dims == ("row", "x_dim_0", "x_dim_1", "x_dim_2")


def test_attributes_say_how_it_came_about() -> None:
    train, _ = train_and_test()
    posterior = SVI(guides.AutoNormal, num_steps=2).run(
        linear_gaussian().model, train, seed=9, progress=False
    )
    options = arviz_io.options(posterior.to_arviz(train, num_samples=3, seed=4))
    assert options["method"] == "AutoNormal"
    assert options["engine"] == "SVI"
    assert options["options"] == posterior.options
    assert (options["seed"], options["draws_seed"]) == (9, 4)
    assert options["wall_time"] == posterior.wall_time
    assert options["num_parameters"] == 8
    assert options["num_data"] == 20
    assert options["num_stored_draws"] is None
    assert (options["elbo_kind"], options["objective"]) == ("exact", "ELBO")
    assert (options["task"], options["params"]) == ("regression", {})


def test_attributes_hold_units_and_names() -> None:
    x, y = pd.DataFrame({"a": [1.0, 2, 3, 6], "b": [0.0, 4, 1, 9]}), [5.0, 7, 9, 19]
    split = from_arrays(x, pd.Series(y, name="mass (kg)"), test_fraction=0.25)
    model = models.MLP(2, hidden=())
    posterior = SVI(guides.AutoNormal, num_steps=1).run(model, split.train, progress=False)
    rows = arviz_io.options(posterior.to_arviz(split.train, split.test, 3))["rows"]
    assert (rows["input_names"], rows["target_name"]) == (["a", "b"], "mass (kg)")
    assert (rows["class_names"], rows["y_ndim"]) == (None, 1)
    assert split.train.target is not None
    assert split.train.inputs is not None
    assert rows["target"] == {k: float(getattr(split.train.target, k)) for k in ("loc", "scale")}
    assert rows["inputs"]["loc"] == split.train.inputs.loc.tolist()
    tree = posterior.to_arviz(split.train, split.test, 3)
    assert list(tree["constant_data/x"].coords["input"].values) == ["a", "b"]
    assert list(tree["predictions_constant_data/x"].coords["input"].values) == ["a", "b"]
    assert tree["constant_data/x"].attrs == {"units": "standardised"}
    of_y = {"units": "standardised", **rows["target"], "long_name": "mass (kg)"}
    everywhere = ("observed_data/y", "test_data/y", "posterior_predictive/y", "predictions/y_mean")
    assert [tree[name].attrs for name in everywhere] == [of_y] * 4
    assert tree["log_likelihood/y"].attrs == {}
    back = rows["target"]["loc"] + rows["target"]["scale"] * values(tree, "observed_data/y")
    assert set(back.round(5)) <= set(y)
    pair = arviz_io.options(posterior.to_arviz(Dataset(split.train.x, split.train.y), None, 3))
    assert (pair["rows"]["inputs"], pair["rows"]["target"]) == (None, None)


class PointWeights(PyroModule):
    """Linear regression with its offset as a point estimate."""

    def __init__(self, prior_scale: float = 1.0, trainable: bool = True) -> None:
        super().__init__()
        offset = torch.tensor([0.3], dtype=torch.float64)
        self.offset = torch.nn.Parameter(offset, requires_grad=trainable)
        self.weight = PyroSample(dist.Normal(offset.new_zeros(3), prior_scale).to_event(1))

    def forward(self, x: torch.Tensor, y: torch.Tensor | None = None) -> torch.Tensor:
        f = pyro.deterministic("f", (x @ cast(torch.Tensor, self.weight))[:, None] + self.offset)
        with pyro.plate("data", len(x)):
            return pyro.sample("y", dist.Normal(f, 0.5).to_event(1), obs=y)


@pytest.mark.slow("about a second")
def test_the_fingerprint_of_a_model_is_its_densities_at_a_fixed_point() -> None:
    train, _ = train_and_test()

    def fitted(num_steps: int = 2, **options: Any) -> dict[str, Any]:
        engine = SVI(guides.AutoNormal, num_steps=num_steps)
        posterior = engine.run(PointWeights(**options), train, progress=False)
        return arviz_io.options(posterior.to_arviz(train, num_samples=3))

    first, longer = fitted(), fitted(num_steps=6)
    x, y = train.x[:2].numpy(), train.y[:2].numpy()
    w = np.sin([1.0, 2.0, 3.0])
    f = x @ w + np.cos(1.0)  # at the point, not at the trained offset
    expected = [norm.logpdf(w).sum(), *norm.logpdf(y, f, 0.5), *f]
    np.testing.assert_allclose(first["model"]["fingerprint"], expected, rtol=1e-10)
    assert first["model"]["sites"] == [["weight", [3]]]
    assert longer["model"] == first["model"]
    assert longer["params"] != first["params"]  # trained further
    assert set(first["params"]) == {"offset"}
    assert fitted()["params"] == first["params"]
    assert fitted(prior_scale=2.0)["model"]["fingerprint"][0] != expected[0]
    frozen = fitted(trainable=False)["model"]["fingerprint"]  # part of the model as it is
    np.testing.assert_allclose(frozen[3:], x @ w + 0.3, rtol=1e-10)


@pytest.mark.slow("about a second")
@pytest.mark.parametrize("kind", ["guide", "sampler"])
def test_netcdf_reads_back_identical(kind: str, tmp_path: Path) -> None:
    train, test = train_and_test()
    oracle = linear_gaussian()
    posterior: Posterior = exact_posterior(oracle, losses=np.array([2.0, 1.0]))
    if kind == "sampler":
        stats = {"diverging": np.zeros((2, 50), dtype=bool)}
        posterior = stored_posterior(oracle, sample_stats=stats)
    tree = posterior.to_arviz(train, test, num_samples=10, include_weights=True)
    arviz_io.save_netcdf(tree, tmp_path / "tree.nc")
    loaded = arviz_io.load_netcdf(tmp_path / "tree.nc")
    assert set(loaded.children) == set(tree.children)
    for group in tree.children:
        assert loaded[group].dataset.identical(tree[group].dataset)
    assert arviz_io.options(loaded) == arviz_io.options(tree)


def test_draws_without_statistics_have_no_sample_stats() -> None:
    train, _ = train_and_test()
    oracle = linear_gaussian()
    program = Program(oracle.model, oracle.x, oracle.y)
    z = torch.zeros(1, 4, 4, dtype=torch.float64)
    posterior = DrawsPosterior(program, z, Provenance("SWAG", "SWAG"))
    assert set(posterior.to_arviz(train, num_samples=4).children) == ALWAYS


def test_arrays_beyond_the_bound_are_refused_with_what_fits() -> None:
    train, test = train_and_test()
    posterior = stored_posterior(linear_gaussian())
    with pytest.raises(OptionError, match=r"20 draws at 20 rows need .*num_samples=\d+ fits"):
        posterior.to_arviz(train, test, num_samples=20, seed=1, memory=9_000)
