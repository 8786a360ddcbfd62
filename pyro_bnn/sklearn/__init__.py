"""Estimators of scikit-learn: networks that fit, predict and score in pipelines and searches."""

from pyro_bnn.sklearn.classifier import BNNClassifier
from pyro_bnn.sklearn.regressor import BNNRegressor
from pyro_bnn.sklearn.scorer import log_score

__all__ = ["BNNClassifier", "BNNRegressor", "log_score"]
