"""Classification by a Bayesian neural network, as an estimator of scikit-learn."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import column_or_1d

from pyro_bnn.data.arrays import ArrayLike, listed
from pyro_bnn.data.labels import check_several
from pyro_bnn.errors import DataError, OptionError
from pyro_bnn.likelihoods import Bernoulli, Categorical, Likelihood
from pyro_bnn.program.distributions import kind_of_target
from pyro_bnn.sklearn.building import make_likelihood
from pyro_bnn.sklearn.estimator import BayesianEstimator, _array


class BNNClassifier(ClassifierMixin, BayesianEstimator):  # type: ignore[misc]
    """Bayesian neural network for classification, in the manner of scikit-learn.

    Inputs are standardised by the rows of the fit. Computed in float64.

    Args:
        method: As in :class:`BNNRegressor`, and so are those that follow.
        hidden: Units of each hidden layer; a number is one layer.
        activation: Name or function.
        model: Name of a model of rows of numbers.
        prior: Name, object, or mapping.
        likelihood: Name or object over as many classes as y has. Default: Bernoulli for two
            classes, Categorical for more.
        num_steps: Gradient steps, where the engine has this option.
        learning_rate: Step size at the start.
        batch_size: Rows of a step.
        engine_options: Other options of the engine, by name.
        num_draws: Draws of the posterior that predictions are made from.
        random_state: Seed of the fit and of predictions, or a ``RandomState`` that draws it.
        device: Where the network is fitted: ``"cpu"``, ``"cuda"``, or of several GPUs ``"cuda:1"``.
        verbose: Whether to show a progress bar.

    Attributes:
        classes_: The C classes, in order.
        posterior_: The fitted :class:`pyro_bnn.Posterior`, of labels 0 .. C-1.
        seed_: Seed of the fit.
        n_features_in_: Number of inputs I.
        feature_names_in_: Their names ``[I]``, where X was a data frame of text names.

    Example:
        >>> import numpy as np
        >>> X = np.linspace(-2, 2, 40)[:, None]
        >>> y = np.where(X[:, 0] > 0, "high", "low")
        >>> net = BNNClassifier("auto-normal", hidden=8, num_steps=200, random_state=0).fit(X, y)
        >>> net.predict([[-1.5], [1.5]]).tolist(), net.predict_proba([[1.5]]).shape
        (['low', 'high'], (1, 2))
    """

    classes_: NDArray[Any]

    def fit(self, X: ArrayLike, y: ArrayLike) -> Self:
        """Find the posterior.

        Args:
            X: Inputs ``[N, I]``: array, data frame of numbers, or sparse matrix, which is made
                dense.
            y: Classes ``[N]``: text, truth values or whole numbers, any.

        Returns:
            The estimator.

        Raises:
            DataError: If y holds one class only.
            DivergenceError: If the run diverges; see :meth:`pyro_bnn.infer.Engine.run`.
            OptionError: If a parameter is not allowed, or has no effect.
            UnknownNameError: If a name is not known; suggests the nearest.
            ValueError: If the rows cannot be used.
        """
        x, y = self._rows(X, y)
        y = column_or_1d(y, warn=True)
        check_classification_targets(y)
        self.classes_, labels = np.unique(y, return_inverse=True)
        num_classes = len(self.classes_)
        check_several(self.classes_, len(y))
        likelihood: Likelihood = Bernoulli() if num_classes == 2 else Categorical(num_classes)
        if self.likelihood is not None:
            likelihood = make_likelihood(self.likelihood, num_classes)
            kind = kind_of_target(likelihood, 1)
            if kind != f"{num_classes} classes":
                raise OptionError(
                    f"the likelihood {self.likelihood!r} describes {kind}, but y holds "
                    f"{num_classes} classes: leave it at None"
                )
        names = tuple(map(str, self.classes_))
        return self._fit(x, labels.astype(np.int64), "classification", likelihood, names)

    def predict(self, X: ArrayLike) -> NDArray[Any]:
        """The most probable class ``[N]`` of rows X ``[N, I]``."""
        places = self.predict_proba(X).argmax(1)
        return np.asarray(self.classes_[places])

    def predict_proba(self, X: ArrayLike) -> NDArray[np.float64]:
        """Probabilities ``[N, C]`` of the classes at rows X ``[N, I]``: their mean over draws."""
        return _array(self.predictive(X).probs)

    def sample_y(self, X: ArrayLike, n_samples: int = 1, random_state: Any = 0) -> NDArray[Any]:
        """Draws of the class ``[N, S]``, each from a draw of its own of the posterior.

        Args:
            X: Inputs ``[N, I]``.
            n_samples: Number of draws S; of a sampler at most those that it stored.
            random_state: Seed, or a ``RandomState`` that draws it.

        Raises:
            OptionError: If ``n_samples`` is no positive integer, or more than there are.
        """
        return np.asarray(self.classes_[self._sample(X, n_samples, random_state)[:, 0]])

    def _targets(self, y: ArrayLike) -> torch.Tensor:
        y = column_or_1d(np.asarray(y))
        labels = np.searchsorted(self.classes_, y).clip(max=len(self.classes_) - 1)
        if bool((unknown := self.classes_[labels] != y).any()):
            raise DataError(
                f"y holds {str(y[unknown][0])!r}, which is no class of the fit: known are "
                f"{listed(tuple(map(str, self.classes_)))}"
            )
        return torch.from_numpy(labels.astype(np.int64))  # as labels, not as names
