"""scikit-learn's own checks of an estimator, all of them; none is expected to fail."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from sklearn.utils.estimator_checks import estimator_checks_generator

from pyro_bnn.sklearn import BNNClassifier, BNNRegressor

SHORT: dict[str, Any] = {"hidden": 8, "num_steps": 40, "learning_rate": 0.2, "num_draws": 20}


def cases() -> Iterator[Any]:
    """The checks that ``check_estimator`` runs, by name; those of many fits in the soak."""
    for estimator in (BNNRegressor(**SHORT), BNNClassifier(**SHORT)):
        for own, check in estimator_checks_generator(estimator):
            name = check.func.__name__
            marks = [pytest.mark.soak] if name.startswith("check_estimator_sparse_") else []
            yield pytest.param(own, check, marks=marks, id=f"{type(own).__name__}-{name}")


@pytest.mark.filterwarnings("ignore::pyro_bnn.errors.BNNWarning")
@pytest.mark.parametrize(("estimator", "check"), [*cases()])
def test_estimator(estimator: Any, check: Callable[[Any], None]) -> None:
    check(estimator)


def test_all_checks_of_scikit_learn_are_there() -> None:
    names = [case.values[1].func.__name__ for case in cases()]
    assert len(names) > 100
    expected = {"check_methods_sample_order_invariance", "check_estimators_pickle"}
    expected |= {"check_regressors_train", "check_classifiers_train", "check_n_features_in"}
    assert expected <= set(names)
