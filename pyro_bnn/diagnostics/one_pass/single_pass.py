"""Classifiers of one pass beside a score of their features, as `trust` judges them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, Self

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from pyro_bnn.data.arrays import ArrayLike
from pyro_bnn.data.dataset import Dataset
from pyro_bnn.diagnostics.one_pass.feature_density import AUTO, FeatureDensity, Shrinkage
from pyro_bnn.diagnostics.one_pass.features import FeatureNet
from pyro_bnn.errors import DataError, OptionError
from pyro_bnn.predictive.prediction import Prediction
from pyro_bnn.program.random_state import seeded

FEATURE_DENSITY = "feature density"


class OnePassPrediction(Prediction):
    """Class probabilities of one function, and scores of the inputs beside them.

    Args:
        logits: Logits ``[N, C]``.
        novelty: Scores ``[N]`` by name, high where an input is unlike those of the training.
        seed: Of the draws of classes.
    """

    def __init__(
        self, logits: Tensor, novelty: Mapping[str, Float[np.ndarray, " N"]], seed: int
    ) -> None:
        probs = logits.softmax(-1).unsqueeze(0)  # [1, N, C]

        def draws() -> Tensor:
            return torch.multinomial(probs[0], 1, generator=seeded(seed, probs.device)).unsqueeze(0)

        def log_likelihood(y: Tensor) -> Tensor:
            columns = y.reshape(-1, 1).long()
            return logits.log_softmax(-1).gather(-1, columns).reshape(1, -1)

        super().__init__(
            draws, logits.unsqueeze(0), None, None, probs, log_likelihood, is_discrete=True
        )
        self.novelty = dict(novelty)


class OnePass(ABC):
    """Base of classifiers of one pass: what `trust` asks of a posterior, of one function.

    Args:
        net: A classifier from x ``[N, ...]`` to logits ``[N, C]``.
        layer: Path of the module whose output are the features, such as ``"body.avgpool"``; by
            default the input of the last ``torch.nn.Linear``.
    """

    num_chains: ClassVar[int] = 1
    num_stored_draws: ClassVar[int | None] = None
    num_atoms: ClassVar[int | None] = 1

    def __init__(self, net: nn.Module, layer: str | None = None) -> None:
        self.features = FeatureNet(net, layer)

    @property
    def method(self) -> str:
        """Its name."""
        return type(self).__name__

    @abstractmethod
    def fit(self, data: Dataset | tuple[ArrayLike, ArrayLike]) -> Self:
        """Take what is needed from training rows; returns itself."""

    @abstractmethod
    def _at(self, x: Tensor) -> tuple[Tensor, Mapping[str, Float[np.ndarray, " N"]]]:
        """Logits ``[N, C]`` and scores ``[N]`` of rows."""

    def predict(
        self,
        x: Tensor,
        num_samples: int = 1,  # noqa: ARG002  # one function, however many are asked for
        seed: int = 0,
    ) -> OnePassPrediction:
        """Class probabilities at x ``[N, ...]``, and scores of the inputs; one pass."""
        logits, novelty = self._at(x)
        return OnePassPrediction(logits.detach(), novelty, seed)

    def _require_fit(self, found: Any) -> None:
        if found is None:
            raise OptionError(
                f"this {self.method} has seen no rows: call fit(data) with the training rows first"
            )


class DDU(OnePass):
    r"""Deep deterministic uncertainty: the density of features under one Gaussian a class.

    .. math:: -\log \sum_c \pi_c\, \mathcal N\bigl(h(x) \mid m_c, \Sigma_c\bigr)

    is the score ``"feature density"`` of `trust`, high where an input is unlike those of the
    training. Class probabilities are the network's own. The network is trained already; features
    keep distances where its layers have a bounded spectral norm
    (`bound_spectral_norms`), without which two inputs may share theirs.

    Args:
        net: A trained classifier from x ``[N, ...]`` to logits ``[N, C]``.
        layer: Path of the module whose output are the features, such as ``"body.avgpool"``; by
            default the input of the last ``torch.nn.Linear``.
        shrinkage: Weight of a multiple of the identity in each covariance, 0 to 1; ``"auto"``
            estimates it by Ledoit and Wolf's formula.

    Raises:
        OptionError: If there is no such layer.

    References:
        Mukhoti et al., "Deep Deterministic Uncertainty: A New Simple Baseline", CVPR 2023,
        arXiv:2102.11582.

    Example:
        >>> import torch
        >>> x, y = torch.randn(60, 4), torch.arange(60) % 3
        >>> net = torch.nn.Sequential(torch.nn.Linear(4, 5), torch.nn.ReLU(), torch.nn.Linear(5, 3))
        >>> ddu = DDU(net).fit((x, y))
        >>> ddu.predict(x[:2]).novelty["feature density"].shape
        (2,)
    """

    covariance: ClassVar[Any] = "own"

    def __init__(
        self, net: nn.Module, layer: str | None = None, *, shrinkage: Shrinkage = AUTO
    ) -> None:
        super().__init__(net, layer)
        self.shrinkage = shrinkage
        self.density: FeatureDensity | None = None

    def fit(self, data: Dataset | tuple[ArrayLike, ArrayLike]) -> Self:
        """Fit the Gaussians to the features of training rows.

        Args:
            data: Rows in the units of the network, a ``Dataset`` or a pair (x, y).

        Raises:
            DataError: If a class has a single row, or a covariance is not invertible.
        """
        x, y = rows_of(data)
        features, _ = self.features.of_rows(x)
        self.density = FeatureDensity(
            features.double().cpu().numpy(),
            y.cpu().numpy(),
            covariance=self.covariance,
            shrinkage=self.shrinkage,
        )
        return self

    def _at(self, x: Tensor) -> tuple[Tensor, Mapping[str, Float[np.ndarray, " N"]]]:
        self._require_fit(self.density)
        assert self.density is not None
        features, logits = self.features.of_rows(x)
        return logits, {FEATURE_DENSITY: self._score(features.double().cpu().numpy())}

    def _score(self, features: Float[np.ndarray, "N D"]) -> Float[np.ndarray, " N"]:
        assert self.density is not None
        return -self.density.log_density(features)


class Mahalanobis(DDU):
    r"""Squared Mahalanobis distance from the nearest class, of one covariance for all.

    .. math:: \min_c\, (h(x) - m_c)^\top \Sigma^{-1} (h(x) - m_c)

    is its score ``"feature density"`` of `trust`: up to a constant and a factor of 2 minus the log
    density of the nearest class. Arguments as of `DDU`.

    References:
        Lee et al., "A Simple Unified Framework for Detecting Out-of-Distribution Samples and
        Adversarial Attacks", NeurIPS 2018, arXiv:1807.03888.
    """

    covariance: ClassVar[Any] = "shared"

    def _score(self, features: Float[np.ndarray, "N D"]) -> Float[np.ndarray, " N"]:
        assert self.density is not None
        return np.asarray(self.density.squared_distances(features).min(-1))


def rows_of(data: Dataset | tuple[ArrayLike, ArrayLike]) -> tuple[Tensor, Tensor]:
    """Inputs and classes ``[N]`` of training rows; text is coded as by `Dataset`.

    Raises:
        DataError: If they are no classes of whole numbers from 0, one a row.
    """
    if not isinstance(data, Dataset):
        data = Dataset(*data)
    x, y = data.x, data.y
    if y.ndim != 1 or len(y) != len(x) or bool((y != y.long()).any()) or bool((y < 0).any()):
        raise DataError(
            "y holds classes as whole numbers from 0, one for each row of x; it has shape "
            f"{list(y.shape)} and x {list(x.shape)}"
        )
    return x, y.long()
