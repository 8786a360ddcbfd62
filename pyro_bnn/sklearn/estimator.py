"""What both estimators share: parameters, standardised data, a fit by an engine, predictions."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any, Self, cast

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import nn

from pyro_bnn.checks import LARGEST_SEED, check_seed
from pyro_bnn.data.arrays import ArrayLike, to_tensor
from pyro_bnn.data.dataset import Dataset
from pyro_bnn.data.labels import Task, is_categorical
from pyro_bnn.data.split import Table, make_split
from pyro_bnn.errors import DataError, OptionError
from pyro_bnn.infer.engine import Engine
from pyro_bnn.likelihoods import Likelihood
from pyro_bnn.posterior.posterior import Posterior
from pyro_bnn.predictive.prediction import Prediction
from pyro_bnn.program.device import on_device
from pyro_bnn.program.handlers import Model
from pyro_bnn.program.random_state import derived_seed, isolated, seeded
from pyro_bnn.registry import lookup, made
from pyro_bnn.sklearn.building import make_engine

POOLED = 2  # stream of the choice among draws of all chains


class BayesianEstimator(BaseEstimator):  # type: ignore[misc]
    """Base of the estimators: parameters are those of ``BNNRegressor``."""

    posterior_: Posterior
    n_features_in_: int

    def __init__(
        self,
        method: Any = "auto-normal",
        *,
        hidden: int | Sequence[int] = (50,),
        activation: Any = "relu",
        model: str | None = None,
        prior: Any = None,
        likelihood: Any = None,
        num_steps: int | None = None,
        learning_rate: float | None = None,
        batch_size: int | None = None,
        engine_options: Mapping[str, Any] | None = None,
        num_draws: int | None = None,
        random_state: Any = None,
        device: str = "cpu",
        verbose: bool = False,
    ) -> None:
        self.method = method
        self.hidden = hidden
        self.activation = activation
        self.model = model
        self.prior = prior
        self.likelihood = likelihood
        self.num_steps = num_steps
        self.learning_rate = learning_rate
        self.batch_size = batch_size
        self.engine_options = engine_options
        self.num_draws = num_draws
        self.random_state = random_state
        self.device = device
        self.verbose = verbose

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True  # made dense: standardised columns have no zeros
        return tags

    def predictive(self, X: ArrayLike) -> Prediction:
        """The predictive distribution of y at rows of X, in the units of the data.

        It has what the other methods leave out: the parts of the uncertainty (``sd_epistemic``,
        ``sd_aleatoric``, ``mutual_information``), draws, and ``to_frame()``.

        Args:
            X: Inputs ``[N, I]``.

        Raises:
            NotFittedError: If there was no fit.
            ValueError: If X has other columns than the fit, or values that are not finite.
        """
        check_is_fitted(self)
        return self._predicted(X, self.num_draws, self.seed_)

    def log_prob(self, X: ArrayLike, y: ArrayLike) -> NDArray[np.float64]:
        """Log of the predictive density ``[N]`` of targets, in nats and the units of y.

        Args:
            X: Inputs ``[N, I]``.
            y: Targets ``[N]``, or ``[N, O]`` as in the fit.
        """
        return _array(self.predictive(X).log_prob(self._targets(y)))

    def _targets(self, y: ArrayLike) -> ArrayLike:
        """Targets as the posterior takes them."""
        return y

    def _rows(self, X: ArrayLike, y: ArrayLike, **checks: Any) -> tuple[Any, Any]:
        """Rows of a fit, checked by scikit-learn; X as float64."""
        columns = X.items() if hasattr(X, "items") else ()
        if named := [name for name, values in columns if is_categorical(values)]:
            raise DataError(
                f"X: column {named[0]!r} is of dtype category, not of numbers; encode it by "
                "OneHotEncoder in a pipeline, or convert it to numbers"
            )
        x, y = validate_data(self, X, y, accept_sparse="csr", dtype=np.float64, **checks)
        return _dense(x), y

    def _fit(
        self,
        x: NDArray[np.float64],
        y: NDArray[Any],
        task: Task,
        likelihood: Likelihood | None,
        class_names: Sequence[str] | None = None,
        target_names: Sequence[str] | None = None,
    ) -> Self:
        """Standardise the rows, and run the engine."""
        options = {
            name: getattr(self, name) for name in ("num_steps", "learning_rate", "batch_size")
        }
        is_set = {name: value for name, value in options.items() if value is not None}
        engine = make_engine(self.method, {**(self.engine_options or {}), **is_set})
        rows = Dataset(
            to_tensor(x, "X"),
            to_tensor(y, "y"),
            input_names=getattr(self, "feature_names_in_", None),
            class_names=class_names,
            target_names=target_names,
        )
        every = torch.arange(len(rows))
        data = make_split(Table(rows, task, "the data"), every, every, dtype=torch.float64).train
        self.seed_ = _seed(self.random_state)
        network = self._network(engine, x.shape[1], 1 if y.ndim == 1 else y.shape[1], likelihood)
        network = on_device(network, self.device)
        self.posterior_ = engine.run(network, data, seed=self.seed_, progress=self.verbose)
        return self

    def _network(
        self, engine: Engine[Any], num_inputs: int, num_outputs: int, likelihood: Likelihood | None
    ) -> Model:
        """The network that the options name, in float64; the caller's random state stays.

        Raises:
            OptionError: If the model takes no rows of numbers, or a name does not say enough of a
                prior.
            UnknownNameError: If a name is not known; suggests the nearest.
        """
        needed = getattr(getattr(engine, "guide", None), "needs_model", None)
        cls = lookup("model", self.model or needed or "MLP")
        options = inspect.signature(cls).parameters
        if "image_shape" in options or "num_inputs" not in options:
            raise OptionError(
                f"{cls.__name__} takes no rows of numbers: an estimator has a model such as mlp or "
                "linear-regression; fit this one by an engine, as in SVI(guide).run(model, data)"
            )
        prior = self.prior
        if isinstance(prior, str):
            if cls.__name__.startswith("Rank1"):
                raise OptionError(
                    f"the factors of {cls.__name__} are around 1, which the name {prior!r} does "
                    "not say: pass the prior, as in pyro_bnn.priors.Normal(loc=1.0, scale=0.1)"
                )
            prior = made("prior", prior)
        hidden = tuple(np.atleast_1d(self.hidden).tolist())
        layers = {"hidden": hidden, "activation": self.activation}
        with isolated(self.seed_):
            network: nn.Module = cls(
                num_inputs,
                num_outputs,
                **{name: value for name, value in layers.items() if name in options},
                prior=prior,
                likelihood=likelihood,
            )
        return cast(Model, network.double())

    def _predicted(self, X: ArrayLike, num_draws: int | None, seed: int) -> Prediction:
        x: Any = validate_data(self, X, reset=False, accept_sparse="csr", dtype=np.float64)
        x = _dense(x)
        if hasattr(self, "feature_names_in_"):
            import pandas as pd

            index = getattr(X, "index", None) if hasattr(X, "columns") else None
            x = pd.DataFrame(x, columns=self.feature_names_in_, index=index)
        return self.posterior_.predict(x, num_draws, seed, raw=True)

    def _sample(self, X: ArrayLike, n_samples: int, random_state: Any) -> NDArray[Any]:
        """Draws of y ``[N, O, S]``, each of a draw of its own of the posterior.

        Raises:
            OptionError: If ``n_samples`` is no positive integer, or more than there are.
        """
        check_is_fitted(self)
        n_samples = self.posterior_.count(n_samples)
        stored, chains = self.posterior_.num_stored_draws, self.posterior_.num_chains
        if stored is not None and n_samples > stored:
            raise OptionError(f"n_samples is at most {stored}, the stored draws, not {n_samples}")
        seed = _seed(random_state)
        draws = self._predicted(X, -(-n_samples // chains) * chains, seed).draws  # [S, N, O]
        if len(draws) > n_samples:  # as many of each chain
            kept = torch.randperm(len(draws), generator=seeded(derived_seed(seed, POOLED)))
            draws = draws[kept[:n_samples].to(draws.device)]
        return _array(draws.permute(1, 2, 0))


def _dense(x: Any) -> Any:
    return x.toarray() if hasattr(x, "toarray") else x


def _seed(random_state: Any) -> int:
    """A seed: that which is given, or one drawn from a generator, by default NumPy's global one."""
    if isinstance(random_state, int | np.integer) and not isinstance(random_state, bool):
        check_seed(random_state, "random_state")
        return int(random_state)
    return int(check_random_state(random_state).randint(LARGEST_SEED, dtype=np.int64))


def _array(values: torch.Tensor) -> NDArray[Any]:
    return np.asarray(values.detach().cpu())
