"""The log score as a scorer of scikit-learn."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.compose import TransformedTargetRegressor
from sklearn.pipeline import Pipeline

from pyro_bnn.data.arrays import ArrayLike
from pyro_bnn.errors import OptionError


def log_score(estimator: Any, X: ArrayLike, y: ArrayLike) -> float:
    r"""Mean log predictive density of targets, :math:`\frac1N \sum_n \log p(y_n \mid x_n)`.

    In nats a row, and of numbers in the units of y; larger is better. Unlike :math:`R^2` and
    accuracy it is proper: it judges the predicted uncertainty too. Pass it as ``scoring`` to
    ``cross_val_score`` or ``GridSearchCV``.

    Args:
        estimator: A fitted ``BNNRegressor`` or ``BNNClassifier``, or a ``Pipeline`` that ends in
            one, or a search over one, nested in any way.
        X: Inputs, as the estimator takes them.
        y: Targets.

    Raises:
        OptionError: If the estimator is another one, or a search that was not refitted.

    References:
        Gneiting & Raftery, "Strictly Proper Scoring Rules, Prediction, and Estimation", JASA 2007.

    Example:
        >>> import numpy as np
        >>> from sklearn.model_selection import cross_val_score
        >>> from pyro_bnn.sklearn import BNNRegressor
        >>> X = np.linspace(-2, 2, 30)[:, None]
        >>> net = BNNRegressor(hidden=5, num_steps=20, random_state=0)
        >>> cross_val_score(net, X, X[:, 0], scoring=log_score, cv=3).shape
        (3,)
    """
    while not hasattr(estimator, "log_prob"):
        if isinstance(estimator, Pipeline):
            X = estimator[:-1].transform(X) if len(estimator) > 1 else X
            estimator = estimator[-1]
        elif hasattr(estimator, "best_estimator_"):  # a search
            estimator = estimator.best_estimator_
        else:
            raise OptionError(_refusal(estimator))
    return float(np.mean(estimator.log_prob(X, y)))


def _refusal(estimator: Any) -> str:
    name = type(estimator).__name__
    if getattr(estimator, "refit", True) is False:
        return f"this {name} keeps no fitted estimator: pass refit=True to it"
    if isinstance(estimator, TransformedTargetRegressor):
        return (
            "TransformedTargetRegressor has no density in the units of y: use BNNRegressor without "
            "it, which standardises y itself"
        )
    return (
        f"log_score is of a fitted BNNRegressor or BNNClassifier, a Pipeline that ends in one or a "
        f"search over one, not of {name}, which has no log_prob"
    )
