r"""Exact Gaussian process regression as a posterior that `compare` takes.

.. math:: f_* \mid D \sim \mathcal N\bigl(K_* A^{-1} y,\; K_{**} - K_* A^{-1} K_*^\top\bigr), \qquad
          A = K + s^2 I, \qquad p(y \mid x) = \mathcal N(y \mid 0, A)
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial
from time import perf_counter
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NoReturn, Protocol, cast

import numpy as np
import pyro.distributions as dist
import torch
from jaxtyping import Float
from torch import Tensor

from pyro_bnn.data import Dataset
from pyro_bnn.data.arrays import to_tensor
from pyro_bnn.diagnostics.gaussian_process.prediction import GaussianPrediction, standard_normal
from pyro_bnn.errors import OptionError, ShapeError, SiteError
from pyro_bnn.posterior.arviz_groups import row_groups, tree_of
from pyro_bnn.posterior.nature import Nature
from pyro_bnn.program.random_state import derived_seed

if TYPE_CHECKING:
    from xarray import DataTree

NUM_SAMPLES = 1_000
NUM_STREAM = 1  # of the noise of y; the draws of f have the stream of the seed itself


class Process(Protocol):
    """A zero-mean Gaussian process prior over f, the same and independent for every output."""

    def covariance(self, x: Tensor, other: Tensor | None = None) -> Float[Tensor, "N M"]:
        """Covariance of one output at inputs ``[N, I]`` and ``[M, I]``, in float64."""

    def variance(self, x: Tensor) -> Float[Tensor, " N"]:
        """Variance of one output at inputs ``[N, I]``."""

    def describe(self) -> str:
        """The process in words."""


class GaussianProcess:
    """The exact posterior of a Gaussian process given rows with Gaussian noise, in float64.

    Everything is in closed form but draws: it has no Monte Carlo error as a reference but theirs.
    Targets are independent. Time is cubic in the number of training rows, and for draws in that of
    the rows at which they are made; draws at two calls are of two functions, whatever their seeds.

    Args:
        process: The prior over f.
        data: Training rows, y floating.
        noise: Standard deviations of y given f ``[O]``, > 0, in the units of y.
        method: Name of the method.

    Attributes:
        process, model: The process.
        num_data: Number N of training rows.
        noise: As given.
        mean_weights: :math:`A^{-1} y` ``[N, O]``; their number is that of parameters.
        log_evidence: Log p(y | x) in nats.

    Raises:
        OptionError: If the noise is not positive, or too small for the rows.
        ShapeError: If y does not have one column for each noise.

    References:
        Rasmussen & Williams, "Gaussian Processes for Machine Learning", 2006, section 2.2.
    """

    num_chains = processes = 1
    gpu = None
    num_stored_draws: int | None = None
    num_atoms: int | None = None
    has_log_prob = False
    elbo_kind, objective = "exact", "ELBO"
    seed = 0
    losses: np.ndarray = np.zeros(0)
    sample_stats: Mapping[str, np.ndarray] = MappingProxyType({})

    def __init__(
        self,
        process: Process,
        data: Dataset,
        noise: Float[Tensor, " O"],
        *,
        method: str = "NNGP",
    ) -> None:
        start = perf_counter()
        self.model: object = process
        self.process = process
        self.noise = noise.detach().cpu().double()
        self._data, self.num_data = data, len(data)
        y = data.y.detach().cpu().double().reshape(len(data), -1)  # [N, O]
        if y.shape[1] != len(self.noise):
            raise ShapeError(
                f"y has shape {tuple(data.y.shape)}, but the process has {len(self.noise)} targets"
            )
        if not bool(((self.noise > 0) & self.noise.isfinite()).all()):
            raise OptionError(f"noise is a positive sd of y given f, not {self.noise.tolist()}")
        self._tril = self._factor()  # [O or 1, N, N]
        tril = self._tril.expand(y.shape[1], -1, -1)
        self.mean_weights = torch.cholesky_solve(y.T.unsqueeze(-1), tril).squeeze(-1).T
        log_roots = tril.diagonal(dim1=-2, dim2=-1).log().sum()  # half the log determinants
        fit = float((y * self.mean_weights).sum())
        self.log_evidence = -0.5 * (fit + y.numel() * math.log(2 * math.pi)) - float(log_roots)
        self.method, self.engine = method, "GaussianProcess"
        self.nature = Nature(kind="limit")  # of the network of infinite width, in closed form
        self.options: Mapping[str, Any] = {"noise": self.noise.tolist()}
        self.num_parameters = self.mean_weights.numel()
        self.wall_time = perf_counter() - start
        self.threads: int | None = torch.get_num_threads()

    # Moments and draws

    def moments(self, x: Tensor) -> tuple[Float[Tensor, "N O"], Float[Tensor, "N O"]]:
        """Posterior mean and variance of f at inputs ``[N, I]``."""
        cross = self.process.covariance(x, self._data.x)  # [M, N]
        explained = torch.linalg.solve_triangular(self._tril, cross.T, upper=False).square().sum(-2)
        variance = (self.process.variance(x) - explained).clamp(min=0)  # [O or 1, M]
        mean: Tensor = cross @ self.mean_weights
        return mean, variance.T.expand_as(mean)

    def covariance(self, x: Tensor) -> Float[Tensor, "O N N"]:
        """Posterior covariance of each output of f at inputs ``[N, I]``."""
        cross = self.process.covariance(x, self._data.x)
        half = torch.linalg.solve_triangular(self._tril, cross.T, upper=False)  # [O or 1, N, M]
        covariance: Tensor = self.process.covariance(x) - half.mT @ half
        return covariance.expand(len(self.noise), -1, -1)

    def function_draws(
        self,
        x: Tensor,
        num_samples: int = NUM_SAMPLES,
        seed: int = 0,
        group_by_chain: bool = False,
    ) -> Float[Tensor, "*C S N O"]:
        """Joint draws of f ``[S, N, O]``, or ``[1, S, N, O]``."""
        mean, _ = self.moments(x)
        # rows that repeat make the covariance singular: its root by eigenvalues needs no jitter
        values, vectors = torch.linalg.eigh(self.covariance(x)[: len(self._tril)])
        root = vectors * values.clamp(min=0).sqrt().unsqueeze(-2)  # [O or 1, N, N]
        root = root.expand(len(self.noise), -1, -1)
        noise = standard_normal((num_samples, len(self.noise), len(mean)), seed)
        f = mean + torch.einsum("onm,som->sno", root, noise)
        return f.unsqueeze(0) if group_by_chain else f

    def hyperparameters(
        self,
        num_samples: int = NUM_SAMPLES,  # noqa: ARG002  # there are none to draw
        seed: int = 0,  # noqa: ARG002
        group_by_chain: bool = False,  # noqa: ARG002
    ) -> dict[str, Tensor]:
        """None: its scales are given."""
        return {}

    def predict(
        self, x: Tensor, num_samples: int = NUM_SAMPLES, seed: int = 0, raw: bool = False
    ) -> GaussianPrediction:
        """The predictive distribution of y, in closed form, and draws of it.

        Args:
            x: Inputs ``[N, I]`` in the model's (standardised) units, or the user's if ``raw``.
            num_samples: Number of draws S.
            seed: Seed of the draws, of f and of y.
            raw: Whether x and the prediction are in the user's units, densities included.
        """
        rows = to_tensor(x, "x")
        if raw and self._data.inputs is not None:
            rows = self._data.inputs.transform(rows)
        return GaussianPrediction(
            self.function_draws(rows, num_samples, seed),
            *self.moments(rows),
            self.noise,
            seed=derived_seed(seed, NUM_STREAM),
            units=self._data.target if raw else None,
        )

    # Densities

    def log_likelihood(
        self,
        data: Dataset,
        num_samples: int = NUM_SAMPLES,
        seed: int = 0,
        group_by_chain: bool = False,
    ) -> Float[Tensor, "*C S N"]:
        """Log density of y given each draw of f ``[S, N]``, or ``[1, S, N]``."""
        f = self.function_draws(data.x, num_samples, seed, group_by_chain)
        return cast(Tensor, dist.Normal(f, self.noise).log_prob(self._targets(data)).sum(-1))

    def elbo(
        self,
        data: Dataset,
        num_samples: int = NUM_SAMPLES,  # noqa: ARG002  # nothing is drawn
        seed: int = 0,  # noqa: ARG002
    ) -> tuple[float, float]:
        """ELBO of rows in nats, and its error 0; of the training rows it is the log evidence."""
        # KL(posterior || prior) is what the training rows' expected likelihood exceeds evidence by
        divergence = self._expected_log_likelihood(self._data) - self.log_evidence
        return self._expected_log_likelihood(data) - divergence, 0.0

    def densities(
        self,
        data: Dataset,  # noqa: ARG002  # refused whatever it is
        num_samples: int = NUM_SAMPLES,  # noqa: ARG002
        seed: int = 0,  # noqa: ARG002
    ) -> NoReturn:
        """Refused: a function has no density.

        Raises:
            SiteError: Always.
        """
        raise SiteError("a Gaussian process has no density over functions; read log_evidence")

    def _expected_log_likelihood(self, data: Dataset) -> float:
        mean, variance = self.moments(data.x)
        at_mean = dist.Normal(mean, self.noise).log_prob(self._targets(data))
        return float((at_mean - variance / (2 * self.noise**2)).sum())

    def _targets(self, data: Dataset) -> Tensor:
        return data.y.detach().cpu().double().reshape(len(data), -1)

    def _factor(self) -> Tensor:
        """Cholesky factor of A, once where all targets have one noise."""
        noise = self.noise[:1] if bool((self.noise == self.noise[0]).all()) else self.noise
        covariance = self.process.covariance(self._data.x)
        noisy = covariance + noise[:, None, None] ** 2 * torch.eye(len(covariance)).double()
        tril, failed = torch.linalg.cholesky_ex(noisy)
        if bool(failed.any()):
            raise OptionError(
                f"a noise of {float(noise.min()):.3g} is lost in rounding beside variances of "
                f"{float(covariance.diagonal().max()):.3g}: pass a larger one"
            )
        return cast(Tensor, tril)

    def to_arviz(
        self,
        train: Dataset,
        test: Dataset | None = None,
        num_samples: int = NUM_SAMPLES,
        *,
        seed: int = 0,
    ) -> DataTree:
        """The posterior as an ArviZ ``DataTree``: f, y and log densities; there are no weights."""
        predicted = partial(self.predict, num_samples=num_samples, seed=seed)
        log_likelihood = partial(self.log_likelihood, num_samples=num_samples, seed=seed)
        groups, task = row_groups(train, test, 1, predicted, log_likelihood)
        fingerprint = torch.cat([self.process.covariance(train.x[:2]).flatten(), self.noise])
        own = {
            "elbo_kind": "none",  # a file's ELBO is of densities of draws, which are none here
            "likelihood": "Normal",
            "num_data": self.num_data,
            "task": task,
            "model": {
                "description": self.process.describe(),
                "sites": [],
                "fingerprint": fingerprint.tolist(),
            },
            "params": {},
        }
        return tree_of(self, groups, train, test, seed, own)
