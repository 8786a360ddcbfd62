r"""Density of features as a mixture of one Gaussian a class.

.. math:: p(h) = \sum_c \pi_c\, \mathcal N(h \mid m_c, \Sigma_c), \qquad
          \Sigma_c = (1 - a) S_c + a\, \frac{\mathrm{tr}\, S_c}{D}\, I

with :math:`S_c` the covariance of the features of class c, or one for all classes (shared), as in
linear discriminant analysis. The shrinkage a keeps it invertible where rows are few.

References:
    Mukhoti et al., "Deep Deterministic Uncertainty: A New Simple Baseline", CVPR 2023,
    arXiv:2102.11582. Lee et al., "A Simple Unified Framework for Detecting Out-of-Distribution
    Samples and Adversarial Attacks", NeurIPS 2018, arXiv:1807.03888 (shared). Ledoit & Wolf, "A
    well-conditioned estimator for large-dimensional covariance matrices", JMVA 2004.
"""

from __future__ import annotations

import math
from typing import Literal, TypeAlias

import numpy as np
from jaxtyping import Float, Int

from pyro_bnn.diagnostics.shapes import check_axes
from pyro_bnn.errors import DataError, OptionError, ShapeError

CovarianceKind: TypeAlias = Literal["own", "shared"]
Shrinkage: TypeAlias = float | Literal["auto"]
AUTO: Literal["auto"] = "auto"


class FeatureDensity:
    """A Gaussian for each class over features, with shrunk covariances.

    Args:
        features: Features ``[N, D]`` of training rows.
        labels: Their classes ``[N]``, numbers from 0; classes without a row have no Gaussian.
        covariance: ``"own"`` of each class, or ``"shared"`` by all.
        shrinkage: Weight a of a multiple of the identity, 0 to 1; ``"auto"`` estimates it by Ledoit
            and Wolf's formula.

    Attributes:
        classes: The classes that have rows ``[C]``.
        means: Means ``[C, D]``.
        covariances: Shrunk covariances ``[C, D, D]``, ``[1, D, D]`` where shared.
        shrinkages: What a was of each.

    Raises:
        DataError: If a covariance of its own has a single row, or a covariance is not invertible.
        OptionError: If an option is not allowed.
        ShapeError: If the shapes do not fit.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> labels = np.repeat([0, 1], 50)
        >>> density = FeatureDensity(rng.normal(size=(100, 3)) + 5 * labels[:, None], labels)
        >>> far, near = density.log_density(np.array([[99.0, 0, 0], [5, 5, 5]]))
        >>> bool(far < near)
        True
    """

    def __init__(
        self,
        features: Float[np.ndarray, "N D"],
        labels: Int[np.ndarray, " N"],
        *,
        covariance: CovarianceKind = "own",
        shrinkage: Shrinkage = AUTO,
    ) -> None:
        h = check_axes("features", features, "N D")
        labels = np.asarray(labels)
        if labels.shape != h.shape[:1]:
            raise ShapeError(
                f"labels has shape {list(labels.shape)}, expected one a row of features, [{len(h)}]"
            )
        if covariance not in ("own", "shared"):
            raise OptionError(f'covariance is "own" or "shared", not {covariance!r}')
        if shrinkage != AUTO and not (isinstance(shrinkage, int | float) and 0 <= shrinkage <= 1):
            raise OptionError(f'shrinkage is "auto" or a number from 0 to 1, not {shrinkage!r}')
        self.classes, places = np.unique(labels, return_inverse=True)
        counts = np.bincount(places)
        if covariance == "own" and counts.min() < 2:
            few = self.classes[counts.argmin()]
            raise DataError(
                f"class {few} has one row, which has no covariance of its own: give more rows, or "
                'take covariance="shared"'
            )
        self.log_priors = np.log(counts / len(h))
        self.means = np.stack([h[places == c].mean(0) for c in range(len(counts))])
        centred = h - self.means[places]
        groups = [centred]
        if covariance == "own":
            groups = [centred[places == c] for c in range(len(counts))]
        shrunk = [_shrunk(group, shrinkage) for group in groups]
        self.covariances = np.stack([S for S, _ in shrunk])
        self.shrinkages = tuple(a for _, a in shrunk)
        self._roots = np.stack([_root(S) for S in self.covariances])

    def squared_distances(self, features: Float[np.ndarray, "M D"]) -> Float[np.ndarray, "M C"]:
        """Squared Mahalanobis distances of features ``[M, D]`` from the mean of each class."""
        from scipy.linalg import solve_triangular

        h = check_axes("features", features, "M D")
        if h.shape[1] != self.means.shape[1]:
            raise ShapeError(
                f"features has {h.shape[1]} columns, those of the fit {self.means.shape[1]}"
            )
        found = np.empty((len(h), len(self.means)))
        for c, mean in enumerate(self.means):
            root = self._roots[c if len(self._roots) > 1 else 0]
            white = solve_triangular(root, (h - mean).T, lower=True, check_finite=False)
            found[:, c] = np.square(white).sum(0)
        return found

    def log_density(self, features: Float[np.ndarray, "M D"]) -> Float[np.ndarray, " M"]:
        """Log density ``[M]`` of the mixture, nats."""
        from scipy.special import logsumexp

        num_features = self.means.shape[1]
        half_log_det = np.log(np.diagonal(self._roots, axis1=1, axis2=2)).sum(-1)  # [C] or [1]
        constant = self.log_priors - half_log_det - 0.5 * num_features * math.log(2 * math.pi)
        of_classes = constant - 0.5 * self.squared_distances(features)
        return np.asarray(logsumexp(of_classes, axis=-1))


def _shrunk(
    centred: Float[np.ndarray, "N D"], shrinkage: Shrinkage
) -> tuple[Float[np.ndarray, "D D"], float]:
    """The covariance of centred rows, shrunk, and by how much."""
    from sklearn.covariance import ledoit_wolf_shrinkage

    S = centred.T @ centred / len(centred)
    num_features = S.shape[0]
    a = (
        float(ledoit_wolf_shrinkage(centred, assume_centered=True))
        if shrinkage == AUTO
        else float(shrinkage)
    )
    return (1 - a) * S + a * np.trace(S) / num_features * np.eye(num_features), a


def _root(S: Float[np.ndarray, "D D"]) -> Float[np.ndarray, "D D"]:
    try:
        root: Float[np.ndarray, "D D"] = np.linalg.cholesky(S)
    except np.linalg.LinAlgError:
        raise DataError(
            "a covariance of the features is not invertible: some of them are combinations of "
            'others, or rows are few. Take shrinkage="auto" or a number above 0'
        ) from None
    return root
