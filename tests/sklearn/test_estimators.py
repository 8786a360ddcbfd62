"""The estimators beside closed forms, in other units, with other names, and in scikit-learn."""

from __future__ import annotations

import json
import pickle
from typing import Any, cast

import numpy as np
import pandas as pd
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal
from scipy import sparse
from sklearn.base import clone
from sklearn.compose import ColumnTransformer
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

import pyro_bnn as bnn
from pyro_bnn.errors import DataError, OptionError, UnknownNameError
from pyro_bnn.posterior import DrawsPosterior
from pyro_bnn.sklearn import BNNClassifier, BNNRegressor, log_score

SHORT: dict[str, Any] = {"hidden": 4, "num_steps": 30, "num_draws": 40, "random_state": 3}
TINY: dict[str, Any] = {"warmup_steps": 2, "num_samples": 3, "max_tree_depth": 2}
RNG = np.random.default_rng(0)
X = RNG.normal(size=(30, 2))
Y = X[:, 0] - 2 * X[:, 1] + 0.1 * RNG.normal(size=30)
CLASSES = np.array(["low", "mid", "top"])[np.digitize(Y, [-0.5, 0.5])]


def test_a_conjugate_model_has_its_closed_form() -> None:
    # z = (v - mean) / sd; weights N(0, 4 I) and noise 0.5 in standardised units, bias too
    net = BNNRegressor(
        "exact",
        model="linear-regression",
        prior=bnn.priors.Normal(scale=2.0),
        likelihood=bnn.likelihoods.Normal(scale=0.5),
        num_draws=2_000,
        random_state=0,
    ).fit(5 + 10 * X, 100 * Y)
    design = np.c_[(X - X.mean(0)) / X.std(0), np.ones(len(X))]
    z = (Y - Y.mean()) / Y.std()
    covariance = np.linalg.inv(design.T @ design / 0.25 + np.eye(3) / 4)
    f = design @ covariance @ design.T @ z / 0.25
    variance_of_f = np.einsum("ni,ij,nj->n", design, covariance, design)
    mean, std = net.predict(5 + 10 * X, return_std=True)
    unit = 100 * Y.std()
    error = unit * np.sqrt(variance_of_f / 2_000)
    assert np.abs((mean - 100 * Y.mean() - unit * f) / error).max() < 5
    # the sd of 4,000 draws has a relative error of 1 / sqrt(8,000), less by the part of the noise
    expected = unit * np.sqrt(0.25 + variance_of_f)
    assert np.abs(std / expected - 1).max() < 5 / np.sqrt(4_000)


def test_other_units_of_the_data_change_units_of_the_predictions_alone() -> None:
    one = BNNRegressor(**SHORT).fit(X, Y)
    other = BNNRegressor(**SHORT).fit(4 * X, 8 * Y)  # powers of two round alike
    for values in (one.predict, one.predict_quantiles, lambda x: one.sample_y(x, 5)):
        name = getattr(values, "__name__", "sample_y")
        again = other.sample_y(4 * X, 5) if name == "<lambda>" else getattr(other, name)(4 * X)
        assert_allclose(again, 8 * values(X), rtol=1e-12)
    assert_allclose(
        other.predict(4 * X, return_std=True)[1], 8 * one.predict(X, return_std=True)[1], rtol=1e-12
    )
    assert_allclose(other.log_prob(4 * X, 8 * Y), one.log_prob(X, Y) - np.log(8), rtol=1e-12)
    assert_allclose(other.score(4 * X, 8 * Y), one.score(X, Y), rtol=1e-12)


def test_the_posterior_is_that_of_the_engine() -> None:
    net = BNNRegressor(**SHORT).fit(X, Y)
    x, y = (torch.tensor((v - v.mean(0)) / v.std(0)) for v in (X, Y))
    engine = bnn.SVI(bnn.guides.AutoNormal, num_steps=30)
    by_hand = engine.run(bnn.models.MLP(2, hidden=(4,)).double(), (x, y), seed=3)
    assert isinstance(net.posterior_, bnn.Posterior)
    assert net.seed_ == 3
    assert_allclose(net.posterior_.losses, by_hand.losses, rtol=1e-9)
    mean = by_hand.predict(x, 40, seed=3).mean[:, 0]
    assert_allclose(net.predict(X), Y.mean() + Y.std() * mean.numpy(), rtol=1e-9)


def test_draws_of_y_have_the_predicted_mean_and_quantiles() -> None:
    net = BNNRegressor(**SHORT | {"num_draws": 4_000}).fit(X, Y)
    mean, std = net.predict(X, return_std=True)
    draws = net.sample_y(X, 4_000, random_state=5)
    assert draws.shape == (30, 4_000)
    assert np.abs((draws.mean(1) - mean) / std).max() * np.sqrt(2_000) < 5  # both are means
    low, median, high = net.predict_quantiles(X, [0.05, 0.5, 0.95]).T
    assert (low < median).all()
    assert (median < high).all()
    inside = (low[:, None] < draws) & (draws < high[:, None])
    assert abs(inside.mean() - 0.9) < 5 * np.sqrt(0.9 * 0.1 / 2_000)  # of one row; less of 30
    assert_array_equal(draws, net.sample_y(X, 4_000, random_state=5))
    assert not (draws == net.sample_y(X, 4_000, random_state=6)).any()


def test_several_targets_have_their_columns() -> None:
    both = np.c_[Y, 100 - 3 * Y]
    net = BNNRegressor(**SHORT).fit(X, both)
    mean, std = net.predict(X, return_std=True)
    assert mean.shape == std.shape == (30, 2)
    assert net.predict_quantiles(X, [0.5]).shape == (30, 2, 1)
    assert net.sample_y(X, 7).shape == (30, 2, 7)
    assert abs(mean[:, 1].mean() - 100) < 20
    assert net.log_prob(X, both).shape == (30,)


def test_counts_stay_as_they_are() -> None:
    counts = RNG.poisson(np.exp(0.5 * X[:, 0]))
    net = BNNRegressor(**SHORT, likelihood="poisson").fit(X, counts)
    assert net.posterior_.provenance.target is None
    draws = net.sample_y(X, 20)
    assert_array_equal(draws, draws.round())
    assert (draws >= 0).all()


@pytest.mark.parametrize("dense_classes", [CLASSES, np.unique(CLASSES, return_inverse=True)[1] * 7])
def test_classes_keep_their_names(dense_classes: Any) -> None:
    net = BNNClassifier(**SHORT).fit(X, dense_classes)
    assert_array_equal(net.classes_, np.unique(dense_classes))
    probs = net.predict_proba(X)
    assert_allclose(probs.sum(1), 1, rtol=1e-12)
    assert_array_equal(net.predict(X), net.classes_[probs.argmax(1)])
    places = np.searchsorted(net.classes_, dense_classes)
    assert_allclose(net.log_prob(X, dense_classes), np.log(probs[range(30), places]), rtol=1e-9)
    assert net.score(X, dense_classes) == (net.predict(X) == dense_classes).mean()
    assert_allclose(probs, BNNClassifier(**SHORT).fit(X, places).predict_proba(X), rtol=0)
    assert set(net.sample_y(X, 30).flat) == set(net.classes_)


def test_two_classes_are_those_of_a_bernoulli() -> None:
    net = BNNClassifier(**SHORT).fit(X, Y > 0)
    assert net.classes_.tolist() == [False, True]
    model: Any = net.posterior_.model
    assert type(model.likelihood) is bnn.likelihoods.Bernoulli
    assert net.predict(X).dtype == bool


@pytest.mark.parametrize(
    ("method", "options"),
    [
        ("auto-low-rank", {"num_steps": 5}),
        ("AutoRank1Mixture", {"hidden": 3, "num_steps": 5}),
        (bnn.guides.AutoDelta, {"num_steps": 5}),
        ("nuts", {"engine_options": {"num_chains": 1, **TINY}}),
        (bnn.NUTS(num_chains=2, **TINY), {}),
        ("vadam", {"num_steps": 5, "batch_size": 10}),
        (bnn.SVI(bnn.guides.AutoNormal, num_steps=7), {}),
        ("cavi", {"model": "linear-regression"}),
    ],
)
@pytest.mark.filterwarnings("ignore::pyro_bnn.errors.BNNWarning")
def test_methods_by_name_and_as_objects(method: Any, options: dict[str, Any]) -> None:
    net = clone(BNNRegressor(method, random_state=0, **options)).fit(X, Y)
    assert np.isfinite(net.predict(X)).all()


def test_options_go_to_the_engine() -> None:
    engine = bnn.SVI(bnn.guides.AutoNormal, num_steps=9, num_particles=2)
    net = BNNRegressor(engine, num_steps=6, learning_rate=0.03, batch_size=10, hidden=(3, 2))
    found = net.fit(X, Y).posterior_
    assert len(found.losses) == 6
    taken = {name: found.options[name] for name in ("learning_rate", "batch_size", "num_particles")}
    assert taken == {"learning_rate": 0.03, "batch_size": 10, "num_particles": 2}
    model: Any = found.model
    assert model.sizes == (2, 3, 2, 1)


# --- in scikit-learn -----------------------------------------------------------------------------


FRAME = pd.DataFrame(X, columns=["a", "b"]).assign(town=np.where(Y > 0, "Oslo", "Rome"))


def pipeline(**options: Any) -> Pipeline:
    parts = [("number", StandardScaler(), ["a", "b"]), ("text", OneHotEncoder(), ["town"])]
    return make_pipeline(ColumnTransformer(parts), BNNRegressor(**SHORT | options))


def test_text_columns_go_through_a_pipeline() -> None:
    fitted = pipeline().fit(FRAME, Y)
    again = pickle.loads(pickle.dumps(fitted))
    assert_array_equal(fitted.predict(FRAME), again.predict(FRAME))
    assert fitted[-1].n_features_in_ == 4
    score = log_score(fitted, FRAME, Y)
    encoded = fitted[:-1].transform(FRAME)
    expected = fitted[-1].predictive(encoded).log_prob(Y).mean().item()
    assert_allclose(score, expected, rtol=1e-14)


def test_data_frames_keep_names_and_rows() -> None:
    frame = FRAME[["a", "b"]].set_axis(range(100, 130))
    net = BNNRegressor(**SHORT).fit(frame, pd.Series(Y))
    assert net.feature_names_in_.tolist() == ["a", "b"]
    assert net.posterior_.provenance.input_names == ("a", "b")
    table = net.predictive(frame).to_frame()
    assert table.index.tolist() == list(range(100, 130))
    assert_allclose(table["predicted_mean"], net.predict(frame))
    with pytest.raises(ValueError, match="Feature names must be in the same order"):
        net.predict(frame[["b", "a"]])
    with pytest.raises(ValueError, match="could not convert string to float"):
        BNNRegressor(**SHORT).fit(FRAME, Y)


def test_targets_of_a_frame_are_found_by_name() -> None:
    both = pd.DataFrame({"a": Y, "b": 100 - 3 * Y})
    net = BNNRegressor(**SHORT).fit(X, both)
    assert list(net.predictive(X).to_frame().columns)[7] == "predicted_b_mean"
    expected = net.log_prob(X, both.to_numpy())
    assert_array_equal(net.log_prob(X, both[["b", "a"]]), expected)
    with pytest.raises(DataError, match="y has the columns 'a', 'c', but the fit was to 'a', 'b'"):
        net.log_prob(X, both.rename(columns={"b": "c"}))


def test_integers_of_numpy_are_integers() -> None:
    options = SHORT | {"batch_size": 10, "engine_options": {"num_particles": 2}}
    whole: dict[str, Any] = {
        name: np.int64(options[name]) for name in ("num_steps", "num_draws", "batch_size")
    }
    whole["engine_options"] = {"num_particles": np.int64(2)}
    expected = BNNRegressor(**options).fit(X, Y)
    for hidden in (np.int64(4), np.array([4])):
        net = BNNRegressor(**options | whole | {"hidden": hidden}).fit(X, Y)
        assert_array_equal(net.predict(X), expected.predict(X))
    assert json.loads(json.dumps(net.posterior_.options))["num_steps"] == 30


def test_classes_that_are_numbers_are_their_names() -> None:
    y = np.digitize(Y, [-0.5, 0.5]) + 1
    net = BNNClassifier(**SHORT).fit(X, y)
    expected = np.log(net.predict_proba(X)[np.arange(30), y - 1])
    assert_allclose(net.log_prob(X, y), expected)
    assert_allclose(net.predictive(X).log_prob(y), expected)


def test_draws_of_several_chains_are_as_many_as_asked_for() -> None:
    engine = bnn.NUTS(num_chains=2, **TINY | {"num_samples": 2})
    net = BNNRegressor(engine, hidden=2, random_state=0).fit(X, Y)
    assert [net.sample_y(X, n).shape for n in (1, 3, 4)] == [(30, n) for n in (1, 3, 4)]
    with pytest.raises(OptionError, match="n_samples is at most 4, the stored draws, not 5"):
        net.sample_y(X, 5)
    stored, found = cast("DrawsPosterior", net.posterior_), set()
    for seed in range(20):  # each stored draw has its turn
        one, two = (net.sample_y(X[:2], n, seed) for n in (1, 2))
        (chain,) = np.flatnonzero((one == two).all(0))
        found.add((int(chain), int(stored.chosen(2, seed))))
    assert found == {(chain, place) for chain in range(2) for place in range(2)}


def test_a_search_goes_over_methods_priors_and_layers() -> None:
    grid = {
        "bnnregressor__method": ["auto-normal", "auto-delta"],
        "bnnregressor__prior": ["cauchy", bnn.priors.Normal(scale=0.5)],
        "bnnregressor__hidden": [2],
    }
    search = GridSearchCV(pipeline(num_steps=2, num_draws=2), grid, cv=2, scoring=log_score)
    assert len(search.fit(FRAME, Y).cv_results_["params"]) == 4
    assert np.isfinite(search.cv_results_["mean_test_score"]).all()
    assert search.predict(FRAME).shape == (30,)


@pytest.mark.soak
def test_folds_are_the_same_in_other_processes() -> None:
    net = BNNRegressor(**SHORT)
    one, two = (cross_val_score(net, X, Y, cv=2, n_jobs=jobs) for jobs in (1, 2))
    assert_allclose(two, one, rtol=1e-9)  # sums of rows by other numbers of threads


def test_sparse_inputs_are_those_of_the_dense() -> None:
    dense = np.where(np.abs(X) > 0.5, X, 0)
    net = BNNRegressor(**SHORT)
    expected = net.fit(dense, Y).predict(dense)
    again = net.fit(sparse.csr_array(dense), Y).predict(sparse.csc_array(dense))
    assert_array_equal(again, expected)


def test_random_states() -> None:
    net = BNNRegressor(**SHORT | {"random_state": None, "num_steps": 2})
    np.random.seed(7)  # noqa: NPY002 - scikit-learn's default is the global generator
    before = torch.random.get_rng_state()
    seeds = [net.fit(X, Y).seed_ for _ in range(2)]
    assert seeds[0] != seeds[1]
    np.random.seed(7)  # noqa: NPY002
    assert net.fit(X, Y).seed_ == seeds[0]
    net.set_params(random_state=np.random.RandomState(7))
    assert net.fit(X, Y).seed_ == seeds[0]
    torch.testing.assert_close(torch.random.get_rng_state(), before)


def test_a_fit_changes_no_parameter() -> None:
    prior, likelihood = bnn.priors.Normal(scale=1.0), bnn.likelihoods.Normal()
    net = BNNRegressor(**SHORT, prior=prior, likelihood=likelihood).fit(X, Y)
    assert net.prior is prior
    tensors = [*likelihood.parameters(), *likelihood.buffers()]
    assert all(tensor.dtype == torch.float32 for tensor in tensors)


# --- what is refused -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("parameters", "error", "message"),
    [
        ({"method": "auto-norml"}, UnknownNameError, "did you mean 'auto-normal'"),
        ({"method": 3}, OptionError, "method is a name such as 'auto-normal' or 'nuts'.*not 3"),
        ({"method": "nuts"}, OptionError, "num_steps would have no effect, as NUTS has the"),
        ({"engine_options": {"rank": 2}}, OptionError, "rank would have no effect, as SVI has"),
        (
            {"method": "cyclical", "num_steps": None},
            OptionError,
            r"Cyclical needs engine: pass the engine, as in Cyclical\(engine=...\)",
        ),
        ({"hidden": 0}, OptionError, "the size of a layer"),
        ({"prior": "norml"}, UnknownNameError, "did you mean 'normal'"),
        (
            {"prior": "pretrained"},
            OptionError,
            r"the prior Pretrained needs .*: take another, or in Python pass an object",
        ),
        ({"model": "le-net"}, OptionError, "LeNet takes no rows of numbers"),
        (
            {"model": "rank1-mlp", "prior": "laplace"},
            OptionError,
            "the factors of Rank1MLP are around 1, which the name 'laplace' does not say",
        ),
        ({"likelihood": 3}, OptionError, "likelihood is a name such as 'student-t'.*not 3"),
        ({"likelihood": "bernoulli"}, OptionError, "describes 2 classes, but a regressor has"),
        ({"random_state": -1}, OptionError, "random_state is an integer of at least 0, not -1"),
    ],
)
def test_parameters_that_are_refused(
    parameters: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        BNNRegressor(**SHORT | parameters).fit(X, Y)


def test_classes_that_are_refused() -> None:
    with pytest.raises(DataError, match="y holds one class only, 'a', in all 30 rows"):
        BNNClassifier(**SHORT).fit(X, ["a"] * 30)
    with pytest.raises(OptionError, match="describes counts, but y holds 3 classes"):
        BNNClassifier(**SHORT, likelihood="poisson").fit(X, CLASSES)
    fitted = BNNClassifier(**SHORT).fit(X, CLASSES)
    with pytest.raises(DataError, match="'wide', which is no class of the fit: known are 'low', "):
        fitted.log_prob(X[:1], ["wide"])


def test_draws_that_are_refused() -> None:
    fitted = BNNRegressor(**SHORT).fit(X, Y)
    with pytest.raises(OptionError, match="num_samples is a positive integer, not 0"):
        fitted.sample_y(X, 0)
    with pytest.raises(OptionError, match="quantile levels lie between 0 and 1"):
        fitted.predict_quantiles(X, [1.5])
    with pytest.raises(NotFittedError):
        BNNRegressor().sample_y(X)
