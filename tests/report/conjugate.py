"""Closed-form stand-ins for posteriors: Bayesian linear models whose draws are known exactly."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, cast

import numpy as np
import torch
from torch import Tensor
from torch.distributions import Categorical, MultivariateNormal, Normal

from pyro_bnn import arviz_io
from pyro_bnn.data import Dataset, Split, from_arrays
from pyro_bnn.errors import BNNWarning
from pyro_bnn.posterior import Nature

if TYPE_CHECKING:
    from xarray import DataTree

NOISE = 0.5


def regression_split(
    num_rows: int = 240, num_inputs: int = 3, num_targets: int = 1, seed: int = 0
) -> Split:
    """Linear data with noise, in units far from standardised ones."""
    rng = np.random.default_rng(seed)
    x = rng.normal(5.0, 2.0, size=(num_rows, num_inputs))
    weights = rng.normal(size=(num_inputs, num_targets))
    y = 100.0 + 30.0 * (x @ weights + 1.2 * rng.normal(size=(num_rows, num_targets)))
    return from_arrays(x, y[:, 0] if num_targets == 1 else y, test_fraction=0.25)


def class_split(num_rows: int = 300, num_classes: int = 3, seed: int = 0) -> Split:
    """Classes drawn from a softmax of linear logits."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(num_rows, 2))
    logits = x @ rng.normal(0, 2, size=(2, num_classes))
    y = (logits + rng.gumbel(size=logits.shape)).argmax(1)
    return from_arrays(x, y, test_fraction=0.3)


@dataclass
class LinearPrediction:
    """Prediction from draws of f."""

    function_draws: Tensor
    draws: Tensor
    is_class: bool
    moments: Literal["both", "mean", "none"] = "both"

    @property
    def mean(self) -> Tensor:
        return self._existing("mean", self.function_draws.mean(0), self.moments != "none")

    @property
    def sd(self) -> Tensor:
        sd = (self.function_draws.var(0, correction=0) + NOISE**2).sqrt()
        return self._existing("sd", sd, self.moments == "both")

    @property
    def probs(self) -> Tensor:
        return self.function_draws.softmax(-1).mean(0)

    @staticmethod
    def _existing(name: str, value: Tensor, exists: bool) -> Tensor:
        """The value, or NaN with a warning, as of a real prediction."""
        if exists:
            return value
        warnings.warn(f"the predictive {name} does not exist", BNNWarning, stacklevel=3)
        return torch.full_like(value, torch.nan)

    def log_prob(self, y: Tensor) -> Tensor:
        values = log_likelihood(self.function_draws, y, self.is_class)
        return values.logsumexp(0) - math.log(len(values))

    @property
    def has_exact_densities(self) -> bool:
        return False

    @property
    def has_target_densities(self) -> bool:
        return not self.is_class

    def target_log_prob(self, y: Tensor) -> Tensor:
        f = self.function_draws
        values: Tensor = Normal(f, NOISE).log_prob(y.double().reshape(f.shape[1:]))
        return values.logsumexp(0) - math.log(len(values))


@dataclass
class LinearPosterior:
    """Draws of linear weights around the exact conjugate posterior.

    ``spread`` scales its standard deviation (0 makes a point estimate), ``shift`` moves its mean
    by so many standard deviations; ``stored`` draws in ``num_chains`` chains make it a sampler,
    with ``chain_shift`` standard deviations between its first chain and the others, in the first
    output, and ``drift`` over the draws of each, and ``stats`` beside which draws diverged;
    ``scales`` are draws of further latents, by chain. ``moments`` says which predictive moments
    exist, as if the tails were Cauchy or Student;
    ``params`` are point estimates of its model; ``nature`` is what it declares, if it does.
    """

    split: Split
    method: str = "AutoMultivariateNormal"
    engine: str = "SVI"
    spread: float = 1.0
    shift: float = 0.0
    stored: int | None = None
    num_chains: int = 1
    chain_shift: float = 0.0
    drift: float = 0.0
    num_divergent: int = 0
    num_parameters: int = 12
    is_flat: bool = False  # its prior is improper
    wall_time: float = 1.5
    threads: int | None = 2
    processes: int = 1
    gpu: str | None = None
    seed: int = 0
    losses: np.ndarray = field(default_factory=lambda: np.zeros(0))
    options: dict[str, Any] = field(default_factory=dict)
    model: object = "linear"
    moments: Literal["both", "mean", "none"] = "both"
    params: dict[str, Tensor] = field(default_factory=dict)
    stats: dict[str, np.ndarray] = field(default_factory=dict)
    scales: dict[str, Tensor] = field(default_factory=dict)
    nature: Nature | None = None

    def __post_init__(self) -> None:
        x, y = self._design(self.split.train.x), self.split.train.y.double()
        self.is_class = self.split.task == "classification"
        num_outputs = int(y.max()) + 1 if self.is_class else 1 if y.ndim == 1 else y.shape[1]
        precision = x.T @ x / NOISE**2 + torch.eye(x.shape[1], dtype=torch.float64)
        covariance = torch.linalg.inv(precision)
        targets = (
            4 * torch.nn.functional.one_hot(y.long(), num_outputs).double() - 2
            if self.is_class
            else y.reshape(len(y), -1)
        )
        mean = covariance @ x.T @ targets / NOISE**2  # [D, F]
        sd = covariance.diagonal().sqrt()[:, None]
        self.exact = MultivariateNormal(mean.T, precision_matrix=precision)  # batch [F]
        scaled = covariance * max(self.spread, 1e-12) ** 2
        self.q = MultivariateNormal((mean + self.shift * sd).T, scaled)
        self.z: Tensor | None = None
        if self.stored is not None:
            z = self._fresh(self.stored, 99).reshape(self.num_chains, -1, num_outputs, x.shape[1])
            z[0, :, 0] += self.chain_shift * sd[:, 0]
            z += self.drift * sd.T * torch.linspace(-0.5, 0.5, z.shape[1])[:, None, None]
            self.z = z

    @property
    def objective(self) -> str:
        return "ELBO" if self.has_log_prob else "log joint"

    @property
    def num_stored_draws(self) -> int | None:
        return self.stored

    @property
    def num_atoms(self) -> None:
        return None

    @property
    def has_log_prob(self) -> bool:
        return self.stored is None and self.spread > 0

    @property
    def elbo_kind(self) -> str:
        return "exact" if self.has_log_prob and not self.is_flat else "none"

    @property
    def sample_stats(self) -> dict[str, np.ndarray]:
        if self.stored is None:
            return {}
        diverging = np.zeros((self.num_chains, self.stored // self.num_chains), dtype=bool)
        diverging[0, : self.num_divergent] = True
        return {"diverging": diverging, **self.stats}

    def weights(self, num_samples: int, seed: int) -> Tensor:
        """Weights ``[S, F, D]``, by chain where they are stored."""
        if self.z is None:
            return self._fresh(num_samples, seed)
        return self.z[:, : num_samples // self.num_chains].flatten(0, 1)

    def function_draws(
        self, x: Tensor, num_samples: int = 1000, seed: int = 0, group_by_chain: bool = False
    ) -> Tensor:
        f = torch.einsum("sfd,nd->snf", self.weights(num_samples, seed), self._design(x))
        return f.reshape(self.num_chains, -1, *f.shape[1:]) if group_by_chain else f

    def hyperparameters(
        self, num_samples: int = 1000, seed: int = 0, group_by_chain: bool = False
    ) -> dict[str, Tensor]:
        return self.scales  # all of them

    def predict(
        self, x: Tensor, num_samples: int = 1000, seed: int = 0, raw: bool = False
    ) -> Any:  # of what a comparison reads of a prediction
        f = self.function_draws(x, num_samples, seed)
        with torch.random.fork_rng():
            torch.manual_seed(seed + 1)
            draws = (
                Categorical(logits=f).sample()[..., None]
                if self.is_class
                else Normal(f, NOISE).sample()
            )
        return LinearPrediction(f, draws, self.is_class, self.moments)

    def log_likelihood(
        self, data: Dataset, num_samples: int = 1000, seed: int = 0, group_by_chain: bool = False
    ) -> Tensor:
        f = self.function_draws(data.x, num_samples, seed)
        values = log_likelihood(f, data.y, self.is_class)
        return values.reshape(self.num_chains, -1, len(data)) if group_by_chain else values

    def elbo(self, data: Dataset, num_samples: int = 1000, seed: int = 0) -> tuple[float, float]:
        log_p, log_q = self.densities(data, num_samples, seed)
        ratios = log_p - log_q
        return float(ratios.mean()), float(ratios.std() / len(ratios) ** 0.5)

    def densities(
        self, data: Dataset, num_samples: int = 1000, seed: int = 0
    ) -> tuple[Tensor, Tensor]:
        z = self.weights(num_samples, seed)
        log_prior = Normal(0.0, 1.0).log_prob(z).sum((-1, -2))
        log_p = self.log_likelihood(data, num_samples, seed).sum(-1) + log_prior
        return log_p, self.q.log_prob(z).sum(-1)

    def to_arviz(
        self,
        train: Dataset,
        test: Dataset | None = None,
        num_samples: int = 1000,
        *,
        seed: int = 0,
    ) -> DataTree:
        def by_chain(values: Tensor) -> np.ndarray:
            return values.reshape(self.num_chains, -1, *values.shape[1:]).numpy()

        groups = {
            "posterior": {"w": by_chain(self.weights(num_samples, seed))},
            "log_likelihood": {"y": by_chain(self.log_likelihood(train, num_samples, seed))},
        }
        if self.has_log_prob:
            log_p, log_q = self.densities(train, num_samples, seed)
            groups["sample_stats"] = {"log_p": by_chain(log_p), "log_q": by_chain(log_q)}
        return arviz_io.datatree(groups)

    def _fresh(self, num_samples: int, seed: int) -> Tensor:
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            z = self.q.sample((num_samples,))
        return self.q.mean.expand_as(z) if self.spread == 0 else z

    @staticmethod
    def _design(x: Tensor) -> Tensor:
        return torch.cat([x.double(), torch.ones(len(x), 1, dtype=torch.float64)], 1)


def log_likelihood(f: Tensor, y: Tensor, is_class: bool) -> Tensor:
    if is_class:
        return cast(Tensor, Categorical(logits=f).log_prob(y))
    return cast(Tensor, Normal(f, NOISE).log_prob(y.double().reshape(len(y), -1)).sum(-1))


def losses(num_steps: int = 4_000, slope: float = 0.0, seed: int = 0) -> np.ndarray:
    """Losses that fell fast, then by ``slope`` nats a step, with noise."""
    steps = np.arange(num_steps)
    noise = 3.0 * np.random.default_rng(seed).normal(size=num_steps)
    return np.asarray(300.0 + 2_000.0 * np.exp(-steps / 150) - slope * steps + noise)
