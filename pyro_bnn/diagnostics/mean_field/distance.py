r"""How far a mean-field Gaussian is from one mode of a posterior, beside the best Gaussian.

.. math:: W(p, q_{\text{diag}}) - W(p, q_{\text{full}})

in the units of the weights, where W is the second Wasserstein distance and both Gaussians have the
moments of the draws.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike

from pyro_bnn.diagnostics.mean_field.error import check_draws, thinned
from pyro_bnn.diagnostics.shapes import check_axes, evenly_spread
from pyro_bnn.errors import DataError, ShapeError

NUM_BLOCKS = 8
MIN_POINTS = 10
MIN_RATIO = 8  # draws a weight, below which the jackknife leaves bias beyond its error
MAX_POINTS = 500  # an assignment takes the cube of it


@dataclass(frozen=True, kw_only=True)
class MeanFieldDistance:
    """Distances of draws to the diagonal and the full Gaussian, of every chain by itself.

    Clouds of points are far from each other even where they are of one law, the more so the more
    weights and the fewer points: the distances are to be read beside ``floor``, and differences
    beside each other only at one number of points. Printing it gives lines for each chain.

    Attributes:
        to_diagonal: W between draws and as many points of the diagonal Gaussian ``[C]``.
        to_full: The same of the full-covariance Gaussian ``[C]``.
        floor: The same between two clouds of the full-covariance Gaussian ``[C]``.
        null: ``to_diagonal - to_full`` of as many draws with no correlation ``[C]``: what the
            difference is too large by, because the fitted correlations are those of the draws.
        standard_error: Of ``to_diagonal - to_full - null`` ``[C]``, by the jackknife over blocks.
        gaussian: Squared W between the two Gaussians ``[C]``, without its bias; below 0 at times,
            and NaN where fewer than 8 draws a weight are left.
        gaussian_bias: What was subtracted from it, by the jackknife ``[C]``; a few hundredths of
            it are left at 8 draws a weight, less where there are more.
        gaussian_error: Standard error of ``gaussian`` by the jackknife ``[C]``.
        spread: Root of the sum of all variances ``[C]``, the scale of every W.
        every: The chain was thinned to every so many draws ``[C]``.
        num_points: Points of each cloud.
        num_weights: P.
    """

    to_diagonal: Float[np.ndarray, " C"]
    to_full: Float[np.ndarray, " C"]
    floor: Float[np.ndarray, " C"]
    null: Float[np.ndarray, " C"]
    standard_error: Float[np.ndarray, " C"]
    gaussian: Float[np.ndarray, " C"]
    gaussian_bias: Float[np.ndarray, " C"]
    gaussian_error: Float[np.ndarray, " C"]
    spread: Float[np.ndarray, " C"]
    every: Float[np.ndarray, " C"]
    num_points: int
    num_weights: int

    @property
    def value(self) -> Float[np.ndarray, " C"]:
        """``to_diagonal - to_full - null`` ``[C]``."""
        return np.asarray(self.to_diagonal - self.to_full - self.null)

    def summary(self) -> str:
        """Two lines for each chain, with the floor and the biases that were subtracted."""
        lines = [
            f"W(draws, diagonal) - W(draws, full) of {self.num_weights} weights, from clouds of "
            f"{self.num_points:,} points"
        ]
        for c, value in enumerate(self.value):
            squared = (
                f"{self.gaussian[c]:.4g} ± {self.gaussian_error[c]:.2g} after a bias of "
                f"{self.gaussian_bias[c]:.2g}"
            )
            if np.isnan(self.gaussian[c]):
                squared = f"needs {MIN_RATIO * self.num_weights:,} draws"
            lines += [
                f"chain {c}: {value:.4g} ± {self.standard_error[c]:.2g} = "
                f"{self.to_diagonal[c]:.4g} - {self.to_full[c]:.4g} - {self.null[c]:.2g} of "
                f"uncorrelated draws (floor {self.floor[c]:.4g}, one of {self.every[c]:.0f} kept)",
                f"  squared W between the Gaussians {squared}; spread {self.spread[c]:.4g}",
            ]
        return "\n".join(lines)

    def __str__(self) -> str:
        return self.summary()


def mean_field_distance(draws: ArrayLike, seed: int = 0) -> MeanFieldDistance:
    r"""W(draws, diagonal) - W(draws, full) of each chain, beside what finite samples alone give.

    Each chain is thinned by the median effective sample size of its weights and cut into 8 blocks.
    Each block is transported to as many points of both Gaussians, made from the same noise; the
    mean over blocks is reported. The null is the same for independent draws of the fitted diagonal
    Gaussian, fitted again: exact where there are no correlations, an approximation elsewhere.

    Args:
        draws: ``[C, S, P]``, unconstrained, each chain of one mode, such as ``posterior.stored``
            of NUTS. P may be larger than S, where most of the difference is ``null``.
        seed: Of the points of the Gaussians.

    Raises:
        ShapeError: If ``draws`` is not ``[C, S, P]``.
        DataError: If a draw is not finite or a weight does not move, or fewer than 80 draws of a
            chain are left.

    References:
        Farquhar, Smith & Gal, "Liberty or Depth: Deep Bayesian Neural Nets Do Not Need Complex
        Weight Posterior Approximations", NeurIPS 2020, arXiv:2002.03704, for the measure; order
        of W, clouds and null are ours.

    Example:
        >>> noise = np.random.default_rng(0).standard_normal((1, 400, 2))
        >>> distance = mean_field_distance(noise @ np.array([[1.0, 0.9], [0.0, 0.4]]))
        >>> bool(distance.value[0] > 5 * distance.standard_error[0]), distance.num_points
        (True, 50)
    """
    chains = check_draws(draws)
    kept = [thinned(chain)[:2] for chain in chains]
    num_points = min(min(len(chain) for chain, _ in kept) // NUM_BLOCKS, MAX_POINTS)
    if num_points < MIN_POINTS:
        fewest = min(len(chain) for chain, _ in kept)
        raise DataError(
            f"{fewest} draws of a chain are left after thinning by the effective sample size: "
            f"clouds need {NUM_BLOCKS * MIN_POINTS}. Draw longer chains"
        )
    generators = np.random.default_rng(seed).spawn(len(kept))
    rows = [
        {**_of_chain(chain, num_points, rng), "every": every}
        for (chain, every), rng in zip(kept, generators, strict=True)
    ]
    columns = {name: np.array([row[name] for row in rows]) for name in rows[0]}
    return MeanFieldDistance(num_points=num_points, num_weights=chains.shape[2], **columns)


def gaussian_w2(
    loc: Float[np.ndarray, " P"],
    covariance: Float[np.ndarray, "P P"],
    other_loc: Float[np.ndarray, " P"],
    other_covariance: Float[np.ndarray, "P P"],
) -> float:
    r"""Second Wasserstein distance between two Gaussians.

    .. math:: W_2^2 = \|m_1 - m_2\|^2 + \operatorname{tr} \left[
        \Sigma_1 + \Sigma_2 - 2 (\Sigma_1^{1/2} \Sigma_2 \Sigma_1^{1/2})^{1/2} \right]

    Distances below 1e-7 of the spread are rounding.

    Args:
        loc: Mean ``[P]``.
        covariance: ``[P, P]``, positive semi-definite.
        other_loc: Mean ``[P]``.
        other_covariance: ``[P, P]``, positive semi-definite.

    Raises:
        ShapeError: If the shapes do not fit.

    References:
        Givens & Shortt, "A Class of Wasserstein Metrics for Probability Distributions", Michigan
        Mathematical Journal 1984.

    Example:
        >>> gaussian_w2([0.0], [[1.0]], [3.0], [[25.0]])
        5.0
    """
    loc, other_loc = (check_axes("loc", each, "P") for each in (loc, other_loc))
    covariance, other_covariance = (
        check_axes("covariance", each, "P P") for each in (covariance, other_covariance)
    )
    P = len(loc)
    if other_loc.shape != (P,) or {covariance.shape, other_covariance.shape} != {(P, P)}:
        raise ShapeError(
            f"means [P] and covariances [P, P] of one P, got {list(loc.shape)}, "
            f"{list(covariance.shape)}, {list(other_loc.shape)}, {list(other_covariance.shape)}"
        )
    root = _root(covariance)
    cross = np.sqrt(np.linalg.eigvalsh(root @ other_covariance @ root).clip(min=0)).sum()
    traces = np.trace(covariance) + np.trace(other_covariance)
    squared = ((loc - other_loc) ** 2).sum() + traces - 2 * cross
    return float(np.sqrt(max(squared, 0.0)))


class _Fit:
    """The diagonal and the full Gaussian with the moments of draws."""

    def __init__(self, draws: Float[np.ndarray, "n P"]) -> None:
        self.covariance = np.cov(draws, rowvar=False).reshape(draws.shape[1], -1)
        self.loc, self.scale = draws.mean(0), np.sqrt(np.diag(self.covariance))
        self._root = _root(self.covariance)

    def full(self, noise: Float[np.ndarray, "M P"]) -> Float[np.ndarray, "M P"]:
        return np.asarray(self.loc + noise @ self._root)

    def diagonal(self, noise: Float[np.ndarray, "M P"]) -> Float[np.ndarray, "M P"]:
        return np.asarray(self.loc + self.scale * noise)

    def distances(
        self, points: Float[np.ndarray, "M P"], noise: Float[np.ndarray, "M P"]
    ) -> tuple[float, float]:
        """W of the points to the diagonal and to the full Gaussian."""
        return transport(points, self.diagonal(noise)), transport(points, self.full(noise))

    def squared(self) -> float:
        r"""2 tr(Sigma) - 2 tr( (D^1/2 Sigma D^1/2)^1/2 ), D the diagonal of the covariance."""
        within = self.scale[:, None] * self.covariance * self.scale
        roots = np.sqrt(np.linalg.eigvalsh(within).clip(min=0))
        return float(2 * (self.scale**2).sum() - 2 * roots.sum())


def _of_chain(
    draws: Float[np.ndarray, "n P"], num_points: int, rng: np.random.Generator
) -> dict[str, float]:
    blocks = np.array_split(np.arange(len(draws)), NUM_BLOCKS)
    points = [draws[block[evenly_spread(len(block), num_points)]] for block in blocks]
    noise, more = rng.standard_normal((2, NUM_BLOCKS, num_points, draws.shape[1]))
    fit = _Fit(draws)
    distances = np.array(
        [fit.distances(*pair) for pair in zip(points, noise, strict=True)]
    )  # [B, 2]
    null = np.array([_null_gap(fit, draws.shape, num_points, rng) for _ in blocks])  # [B]
    floor = [transport(fit.full(a), fit.full(b)) for a, b in zip(noise, more, strict=True)]
    gaps, squared = [], []
    for b, block in enumerate(blocks):
        without = _Fit(np.delete(draws, block, axis=0))
        pairs = [without.distances(points[k], noise[k]) for k in range(NUM_BLOCKS) if k != b]
        gaps.append(float(np.mean([diagonal - full for diagonal, full in pairs])))
        squared.append(without.squared())
    enough = len(draws) >= MIN_RATIO * draws.shape[1]
    bias = (NUM_BLOCKS - 1) * float(np.mean(squared) - fit.squared()) if enough else np.nan
    return {
        "to_diagonal": distances[:, 0].mean(),
        "to_full": distances[:, 1].mean(),
        "floor": float(np.mean(floor)),
        "null": null.mean(),
        "standard_error": float(np.hypot(_jackknife(gaps), null.std(ddof=1) / NUM_BLOCKS**0.5)),
        "gaussian": fit.squared() - bias,
        "gaussian_bias": bias,
        "gaussian_error": _jackknife(squared) if enough else np.nan,
        "spread": float(np.sqrt((fit.scale**2).sum())),
    }


def _null_gap(
    fit: _Fit, shape: tuple[int, ...], num_points: int, rng: np.random.Generator
) -> float:
    draws = fit.diagonal(rng.standard_normal(shape))
    noise = rng.standard_normal((num_points, shape[1]))
    to_diagonal, to_full = _Fit(draws).distances(draws[:num_points], noise)
    return to_diagonal - to_full


def transport(a: Float[np.ndarray, "M P"], b: Float[np.ndarray, "M P"]) -> float:
    """Second Wasserstein distance between two clouds of M points each."""
    from scipy import optimize
    from scipy.spatial import distance

    cost = distance.cdist(a, b, "sqeuclidean")
    return float(np.sqrt(cost[optimize.linear_sum_assignment(cost)].mean()))


def _jackknife(without: list[float]) -> float:
    """Standard error from values with one block of neighbours each left out."""
    return float(np.sqrt((NUM_BLOCKS - 1) * np.var(without)))


def _root(covariance: Float[np.ndarray, "P P"]) -> Float[np.ndarray, "P P"]:
    """The symmetric root, also of a covariance without an inverse."""
    eigenvalues, vectors = np.linalg.eigh(covariance)
    return np.asarray((vectors * np.sqrt(eigenvalues.clip(min=0))) @ vectors.T)
