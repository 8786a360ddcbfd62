"""Regression by a Bayesian neural network, as an estimator of scikit-learn."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import RegressorMixin

from pyro_bnn.data.arrays import ArrayLike, column_names
from pyro_bnn.data.labels import Task
from pyro_bnn.errors import OptionError
from pyro_bnn.program.distributions import kind_of_target
from pyro_bnn.sklearn.building import make_likelihood
from pyro_bnn.sklearn.estimator import BayesianEstimator, _array


class MeanAndSd(NamedTuple):
    """What ``predict(X, return_std=True)`` returns."""

    mean: NDArray[np.float64]
    sd: NDArray[np.float64]

    @property
    def ndim(self) -> int:
        """None: ``TransformedTargetRegressor`` looks for it, to change the units.

        Raises:
            AttributeError: Always; says what to do.
        """
        raise AttributeError(
            "a pair of mean and standard deviation has no ndim. A TransformedTargetRegressor "
            "cannot carry a standard deviation to the units of y: use BNNRegressor without it, "
            "which standardises y itself, or read predict(X, quantiles=0.95)"
        )


class BNNRegressor(RegressorMixin, BayesianEstimator):  # type: ignore[misc]
    """Bayesian neural network for regression, in the manner of scikit-learn.

    Inputs and targets are standardised by the rows of the fit, and predictions are in the units of
    the data. Computed in float64.

    Args:
        method: Name of a guide or an engine of the registry (``pyro-bnn list``), such as
            ``"auto-normal"`` or ``"nuts"``; a guide class; or an engine, such as
            ``pyro_bnn.NUTS(num_chains=2)``. A guide is fitted by ``SVI``.
        hidden: Units of each hidden layer; a number is one layer.
        activation: Name or function, as in :class:`pyro_bnn.models.MLP`.
        model: Name of a model of rows of numbers, such as ``"linear-regression"``. Default: the
            one that the guide needs, or a multilayer perceptron.
        prior: Name of a prior with its defaults, a prior, or a mapping from patterns of names to
            priors. Default: Gaussian with fan-in scale.
        likelihood: Name or object, as ``"student-t"``; with ``"poisson"`` y holds counts and stays
            as it is. Default: Gaussian noise with learned scale.
        num_steps: Gradient steps, where the engine has this option. This and the next two are the
            engine's own where they are None.
        learning_rate: Step size at the start.
        batch_size: Rows of a step.
        engine_options: Other options of the engine, by name, such as ``{"num_chains": 2}``.
        num_draws: Draws of the posterior that predictions are made from. Default: 1,000, or all
            stored ones where they are fewer.
        random_state: Seed of the fit and of predictions, or a ``RandomState`` that draws it.
            Default: NumPy's global one draws it.
        device: Where the network is fitted: ``"cpu"``, ``"cuda"``, or of several GPUs ``"cuda:1"``.
        verbose: Whether to show a progress bar.

    Attributes:
        posterior_: The fitted :class:`pyro_bnn.Posterior`, in standardised units;
            ``posterior_.predict(X, raw=True)`` is in those of the data.
        seed_: Seed of the fit.
        n_features_in_: Number of inputs I.
        feature_names_in_: Their names ``[I]``, where X was a data frame of text names.

    Example:
        >>> import numpy as np
        >>> X = np.linspace(-2, 2, 40)[:, None]
        >>> y = 5 + 3 * np.sin(X[:, 0])
        >>> net = BNNRegressor("auto-normal", hidden=8, num_steps=50, random_state=0).fit(X, y)
        >>> mean, std = net.predict(X[:3], return_std=True)
        >>> mean.shape, std.shape, net.predict_quantiles(X[:3], [0.05, 0.95]).shape
        ((3,), (3,), (3, 2))
    """

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags

    def fit(self, X: ArrayLike, y: ArrayLike) -> Self:
        """Find the posterior.

        Args:
            X: Inputs ``[N, I]``: array, data frame of numbers, or sparse matrix, which is made
                dense.
            y: Targets ``[N]``, or ``[N, O]`` for several.

        Returns:
            The estimator.

        Raises:
            DivergenceError: If the run diverges; see :meth:`pyro_bnn.infer.Engine.run`.
            OptionError: If a parameter is not allowed, or has no effect.
            UnknownNameError: If a name is not known; suggests the nearest.
            ValueError: If the rows cannot be used.
        """
        names = column_names(y)
        x, y = self._rows(X, y, multi_output=True, y_numeric=True)
        y = np.asarray(y, dtype=np.float64)
        likelihood, kind = None, "numbers"
        if self.likelihood is not None:
            likelihood = make_likelihood(self.likelihood)
            kind = kind_of_target(likelihood, 1 if y.ndim == 1 else y.shape[1])
        if kind not in ("numbers", "counts"):
            raise OptionError(
                f"the likelihood {self.likelihood!r} describes {kind}, but a regressor has numbers "
                "or counts: leave it at None for Gaussian noise, or take a BNNClassifier"
            )
        task: Task = "counts" if kind == "counts" else "regression"
        self._is_one_target = y.ndim == 1
        return self._fit(x, y, task, likelihood, target_names=names)

    def predict(
        self,
        X: ArrayLike,
        return_std: bool = False,
        quantiles: float | Sequence[float] | None = None,
    ) -> NDArray[np.float64] | tuple[NDArray[np.float64], NDArray[np.float64]]:
        """The mean of the predictive distribution, or its quantiles.

        A ``Pipeline`` passes both options on, as in ``pipeline.predict(X, quantiles=[0.05, 0.95])``
        and ``pipeline.predict(X, return_std=True)``. A ``TransformedTargetRegressor`` carries means
        and a quantile, ``predict(X, quantiles=0.95)``, to the units of y, and no standard
        deviation; the quantile is right where its transform increases.

        Args:
            X: Inputs ``[N, I]``.
            return_std: Whether to return its standard deviation too, noise included.
            quantiles: A level, or Q of them, between 0 and 1: quantiles are returned, as by
                :meth:`predict_quantiles`, and no mean.

        Returns:
            Means ``[N]``, or ``[N, O]`` of several targets, and with ``return_std`` a pair.
            Quantiles of one level have the shape of means, those of several ``[N, Q]`` or
            ``[N, O, Q]``.

        Raises:
            OptionError: If a level is not between 0 and 1, or there is ``return_std`` beside it.
        """
        if quantiles is not None:
            if return_std:
                raise OptionError("return_std is beside the mean: leave it out beside quantiles")
            quantile = self.predict_quantiles(X, [*np.atleast_1d(quantiles).tolist()])
            return quantile[..., 0] if np.ndim(quantiles) == 0 else quantile
        predicted = self.predictive(X)
        if not return_std:
            return self._columns(predicted.mean)
        return MeanAndSd(self._columns(predicted.mean), self._columns(predicted.sd))

    def predict_quantiles(
        self, X: ArrayLike, quantiles: Sequence[float] = (0.05, 0.5, 0.95)
    ) -> NDArray[np.float64]:
        """Quantiles of the predictive distribution, noise included.

        They are those of a draw of y from each draw of the posterior; which noise a row gets
        depends on its place among the rows, so that those of a row alone differ by Monte Carlo
        error. Means, sds and densities are the same but for rounding.

        Args:
            X: Inputs ``[N, I]``.
            quantiles: Q levels between 0 and 1.

        Returns:
            ``[N, Q]``, or ``[N, O, Q]`` of several targets.

        Raises:
            OptionError: If a level is not between 0 and 1.
        """
        quantile = self.predictive(X).quantile(list(quantiles))  # [Q, N, O]
        return self._columns(quantile.permute(1, 2, 0))

    def sample_y(
        self, X: ArrayLike, n_samples: int = 1, random_state: Any = 0
    ) -> NDArray[np.float64]:
        """Draws of y, each from a draw of its own of the posterior.

        Args:
            X: Inputs ``[N, I]``.
            n_samples: Number of draws S; of a sampler at most those that it stored.
            random_state: Seed, or a ``RandomState`` that draws it.

        Returns:
            ``[N, S]``, or ``[N, O, S]`` of several targets.

        Raises:
            OptionError: If ``n_samples`` is no positive integer, or more than there are.
        """
        samples = self._sample(X, n_samples, random_state)
        return samples[:, 0] if self._is_one_target else samples

    def _columns(self, values: torch.Tensor) -> NDArray[np.float64]:
        found = _array(values)  # [N, O, ...]
        return found[:, 0] if self._is_one_target else found
