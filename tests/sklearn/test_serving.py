"""Estimators inside others of scikit-learn, and arrays of every layout."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.compose import TransformedTargetRegressor
from sklearn.linear_model import LinearRegression
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from pyro_bnn import data
from pyro_bnn.errors import DataError, OptionError
from pyro_bnn.guides import AutoNormal
from pyro_bnn.infer import SVI
from pyro_bnn.models import MLP
from pyro_bnn.predictive.prediction import StreamedPrediction
from pyro_bnn.sklearn import BNNClassifier, BNNRegressor, log_score

X = np.random.default_rng(0).normal(size=(30, 3)).astype(np.float16).astype(np.float64)
Y = np.round(np.sin(X[:, 0]) * 64) / 64


def regressor(**options: Any) -> BNNRegressor:
    return BNNRegressor(hidden=3, num_steps=20, num_draws=30, random_state=0, **options)


def test_pipelines_pass_quantiles_and_sds_on() -> None:
    net = make_pipeline(StandardScaler(), regressor()).fit(X, Y)
    inner = net[:-1].transform(X)
    expected = net[-1].predict_quantiles(inner, [0.1, 0.9])
    np.testing.assert_array_equal(net.predict(X, quantiles=[0.1, 0.9]), expected)
    np.testing.assert_array_equal(net.predict(X, quantiles=0.9), expected[:, 1])
    mean, sd = net.predict(X, return_std=True)
    np.testing.assert_array_equal(mean, net.predict(X))
    np.testing.assert_array_equal(sd, net[-1].predict(inner, return_std=True)[1])


def test_quantiles_of_a_transformed_target_are_in_the_units_of_y() -> None:
    net = TransformedTargetRegressor(regressor(), func=np.log, inverse_func=np.exp)
    net.fit(X, np.exp(Y))
    expected = np.exp(net.regressor_.predict_quantiles(X, [0.1, 0.9]))
    np.testing.assert_allclose(net.predict(X, quantiles=0.9), expected[:, 1], rtol=1e-12)
    np.testing.assert_allclose(net.predict(X, quantiles=[0.1, 0.9]), expected, rtol=1e-12)
    with pytest.raises(AttributeError, match="cannot carry a standard deviation"):
        net.predict(X, return_std=True)


def test_quantiles_of_several_targets() -> None:
    net = regressor().fit(X, np.stack([Y, -Y], 1))
    assert np.shape(net.predict(X, quantiles=0.5)) == (30, 2)
    assert np.shape(net.predict(X, quantiles=[0.1, 0.5, 0.9])) == (30, 2, 3)
    with pytest.raises(OptionError, match="return_std is beside the mean"):
        net.predict(X, return_std=True, quantiles=0.5)


def test_log_score_looks_into_searches_and_pipelines() -> None:
    expected = float(regressor().fit(X, Y).log_prob(X, Y).mean())
    grid = {"prior": [None]}
    search = GridSearchCV(regressor(), grid, scoring=log_score, cv=2)
    of_pipeline = GridSearchCV(
        make_pipeline("passthrough", regressor()), {"bnnregressor__hidden": [3]}, cv=2
    )
    for outer in (
        search,
        make_pipeline(search),
        of_pipeline,
        make_pipeline("passthrough", make_pipeline("passthrough", regressor())),
    ):
        assert log_score(outer.fit(X, Y), X, Y) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(
    ("outer", "match"),
    [
        (GridSearchCV(regressor(), {"hidden": [3]}, cv=2, refit=False), "pass refit=True to it"),
        (TransformedTargetRegressor(regressor()), "which standardises y itself"),
        (LinearRegression(), "not of LinearRegression, which has no log_prob"),
    ],
)
def test_log_score_says_what_it_is_of(outer: Any, match: str) -> None:
    with pytest.raises(OptionError, match=match):
        log_score(outer.fit(X, Y), X, Y)


def read_only(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    values = values.copy()
    values.flags.writeable = False
    return values


LAYOUTS: dict[str, Callable[[np.ndarray[Any, Any]], Any]] = {
    "rows backwards": lambda a: a[::-1].copy()[::-1],
    "columns backwards": lambda a: a[..., ::-1].copy()[..., ::-1],
    "Fortran": np.asfortranarray,
    "read-only": read_only,
    "float16": lambda a: a.astype(np.float16),
    "big-endian": lambda a: a.astype(">f8"),
    "every second": lambda a: np.repeat(a, 2, 0)[::2],
    "frame of mixed blocks": lambda a: (
        pd.DataFrame({str(i): v.astype(f"f{4 + 4 * (i % 2)}") for i, v in enumerate(a.T)})
        if a.ndim == 2
        else pd.Series(a)
    ),
    "frame backwards": lambda a: (pd.DataFrame if a.ndim == 2 else pd.Series)(a[::-1])[::-1],
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.filterwarnings("ignore:X has feature names:UserWarning")
def test_a_layout_changes_no_number(layout: str) -> None:
    as_laid_out = LAYOUTS[layout]
    x, y = as_laid_out(X), as_laid_out(Y)
    plain, laid_out = regressor().fit(X, Y), regressor().fit(x, y)
    np.testing.assert_array_equal(laid_out.predict(x), plain.predict(X))
    np.testing.assert_array_equal(laid_out.log_prob(x, y), plain.log_prob(X, Y))
    several = np.stack([Y, -Y], 1)
    two = regressor().fit(x, as_laid_out(several))
    np.testing.assert_array_equal(two.predict(x), regressor().fit(X, several).predict(X))
    labels = as_laid_out((Y > 0).astype(float))
    net = BNNClassifier(hidden=3, num_steps=20, num_draws=30, random_state=0)
    probs = net.fit(X, Y > 0).predict_proba(X)
    np.testing.assert_array_equal(net.fit(x, labels).predict_proba(x), probs)
    split, expected = data.from_arrays(x, y), data.from_arrays(X, Y)
    torch.testing.assert_close(split.train.x, expected.train.x, rtol=0, atol=0)
    torch.testing.assert_close(split.train.y, expected.train.y, rtol=0, atol=0)


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (lambda f: f.drop(columns="town"), "fit was to 'age', 'town': missing are 'town';"),
        (lambda f: f.drop(columns="age"), "fit was to 'age', 'town': missing are 'age';"),
        (lambda f: f.rename(columns={"age": "Age"}), "missing are 'age', unknown are 'Age';"),
        (lambda f: f.assign(town="Bonn"), "column 'town' holds values that the fit has not seen"),
        (lambda f: f.assign(more=1), "unknown are 'more';"),
        (
            lambda f: pd.get_dummies(f, prefix_sep="=").drop(columns="town=Rome"),
            "missing are 'town=Rome';",
        ),
    ],
)
def test_a_frame_is_refused_by_the_columns_of_the_user(change: Any, match: str) -> None:
    frame = pd.DataFrame({"age": X[:, 0], "town": ["Oslo", "Rome", "Bari"] * 10, "cost": Y})
    split = data.from_frame(frame, target="cost")
    engine = SVI(AutoNormal, num_steps=2, compile=False)
    posterior = engine.run(MLP(4, hidden=(3,)), split.train, progress=False)
    with pytest.raises(DataError, match=match):
        posterior.predict(change(frame.drop(columns="cost")), 5, raw=True)


@pytest.mark.parametrize("memory", [1 << 30, 300_000])
def test_a_row_has_no_neighbours(memory: int) -> None:
    """But for the noise of draws of y, as the docstrings say."""
    net = regressor().fit(X, Y)
    x, y = np.tile(X, (20, 1)), np.tile(Y, 20)
    found = net.posterior_.predict(x, 30, net.seed_, raw=True, memory=memory)
    assert isinstance(found, StreamedPrediction) == (memory < 1 << 20)
    log_prob = found.log_prob(y)
    for row in (0, 7, 299, 599):
        alone = net.predictive(x[row : row + 1])
        for name in ("mean", "sd", "sd_epistemic", "sd_aleatoric"):
            expected = getattr(alone, name)[0]
            torch.testing.assert_close(getattr(found, name)[row], expected, rtol=1e-12, atol=0)
        expected = alone.log_prob(y[row : row + 1])[0]
        torch.testing.assert_close(log_prob[row], expected, rtol=1e-12, atol=1e-12)
