r"""What a mean-field Gaussian loses on one mode: correlations, seen in draws of the posterior.

.. math:: \mathrm{KL}(q_{\text{full}} \,\|\, q_{\text{diag}}) = -\tfrac12 \log\det R

where both Gaussians have the moments of the draws and R is their correlation matrix. The optimum
of mean-field VI is another Gaussian, with smaller variances: this is the error of the family.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike

from pyro_bnn.diagnostics.shapes import check_axes
from pyro_bnn.errors import DataError

MIN_RATIO = 2  # effective draws a weight, below which the correction is most of the estimate
DISAGREEMENT = 4  # standard errors between the halves of a chain and the whole


@dataclass(frozen=True, kw_only=True)
class MeanFieldKL:
    """KL of the full-covariance Gaussian from the diagonal one, of every chain by itself, in nats.

    Printing it gives a line for each chain.

    Attributes:
        plug_in: -1/2 log det of the sample correlation matrix ``[C]``.
        bias: What ``plug_in`` is too large by for so few draws ``[C]``.
        standard_error: Of ``plug_in - bias`` ``[C]``: of this chain as a sample of its mode.
        halves: The same estimate from the two halves of the chain, averaged ``[C]``; NaN where
            they are too short, or P is 1.
        halves_error: Standard error of ``halves - value`` for Gaussian draws ``[C]``.
        effective_draws: Independent draws that would have the same bias ``[C]``.
        every: The chain was thinned to every so many draws ``[C]``.
        smallest_ess: Effective sample size of the mean of the worst weight ``[C]``.
        num_draws: Draws of each chain S, before thinning.
        num_weights: P.
    """

    plug_in: Float[np.ndarray, " C"]
    bias: Float[np.ndarray, " C"]
    standard_error: Float[np.ndarray, " C"]
    halves: Float[np.ndarray, " C"]
    halves_error: Float[np.ndarray, " C"]
    effective_draws: Float[np.ndarray, " C"]
    every: Float[np.ndarray, " C"]
    smallest_ess: Float[np.ndarray, " C"]
    num_draws: int
    num_weights: int

    @property
    def value(self) -> Float[np.ndarray, " C"]:
        """The estimates without their bias ``[C]``; a little below 0 at times where KL is 0."""
        return np.asarray(self.plug_in - self.bias)

    @property
    def doubtful(self) -> list[bool]:
        """Whether the halves of a chain contradict the whole: the bias is not what was subtracted.

        So it is where draws are far from Gaussian, drift, or come from more than one mode.
        """
        far = np.abs(self.halves - self.value) > DISAGREEMENT * self.halves_error
        return [bool(chain) for chain in far]

    def summary(self) -> str:
        """A line for each chain with the bias that was subtracted, and their mean."""
        lines = [
            f"KL(full || diagonal) of {self.num_weights} weights, in nats, from {self.num_draws:,} "
            "draws a chain"
        ]
        for c, value in enumerate(self.value):
            lines.append(
                f"chain {c}: {value:.3f} ± {self.standard_error[c]:.3f} = {self.plug_in[c]:.3f} - "
                f"bias {self.bias[c]:.3f} ({self.effective_draws[c]:,.0f} effective draws, one of "
                f"{self.every[c]:.0f} kept; worst weight {self.smallest_ess[c]:,.0f})"
            )
            if self.doubtful[c]:
                lines.append(
                    f"  its halves give {self.halves[c]:.3f}, more than {DISAGREEMENT} errors "
                    "away: the draws are far from Gaussian, drift, or are of several modes"
                )
        if len(self.value) > 1:
            error = self.value.std(ddof=1) / np.sqrt(len(self.value))
            lines.append(f"mean over chains: {self.value.mean():.3f} ± {error:.3f}")
        return "\n".join(lines)

    def __str__(self) -> str:
        return self.summary()


def mean_field_kl(draws: ArrayLike) -> MeanFieldKL:
    r"""KL(full || diagonal) of the Gaussians with the moments of each chain, bias subtracted.

    A chain is of one mode of a network at best, and another chain of another one, the same up to
    symmetries or not: pooled, they would show correlations that no mode has, so that each chain
    is worked on by itself. Where R-hat of the weights over chains is near 1 they are not of one
    mode: chains of small ReLU nets pass through the copies that differ by the order of hidden
    units, and the KL is then that of the mixture of copies. A chain is thinned by the median
    effective sample size of its weights.

    The bias of draws that are left correlated is that of n fewer independent ones,

    .. math:: n_{\text{eff}} = \frac{n}{1 + 2 \sum_{t \ge 1} \bar\rho_t^2}

    with the autocorrelation :math:`\bar\rho_t` averaged over the draws whitened by R. It is NOT the
    effective sample size of a mean: the squares make chains that alternate worse, not better. The
    standard error is that of the mean of each draw's influence on log det R, plus the spread
    that is left where R is the identity.

    Args:
        draws: ``[C, S, P]``, unconstrained, such as ``posterior.stored`` of NUTS.

    Raises:
        ShapeError: If ``draws`` is not ``[C, S, P]``.
        DataError: If a draw is not finite or a weight does not move, some weights are linear
            functions of others, or there are fewer than two effective draws a weight.

    References:
        Farquhar, Smith & Gal, "Liberty or Depth: Deep Bayesian Neural Nets Do Not Need Complex
        Weight Posterior Approximations", NeurIPS 2020, arXiv:2002.03704, for the measure; the
        correction is ours.

    Example:
        >>> draws = np.random.default_rng(0).standard_normal((1, 1_000, 50))
        >>> kl = mean_field_kl(draws)
        >>> bool(kl.plug_in > 0.5), bool(kl.bias > 0.5), bool(abs(kl.value) < 0.1)
        (True, True, True)
    """
    chains = check_draws(draws)
    rows = [_of_chain(chain, name=f"chain {c}") for c, chain in enumerate(chains)]
    columns = {name: np.array([row[name] for row in rows]) for name in rows[0]}
    return MeanFieldKL(num_draws=chains.shape[1], num_weights=chains.shape[2], **columns)


def kl_bias(num_draws: float, num_weights: int) -> float:
    r"""Mean error of -1/2 log det of the sample correlation matrix of n Gaussian draws, in nats.

    .. math:: -\frac12 \sum_{i=0}^{P-1} \left[ \psi\!\left(\frac{n - 1 - i}2\right)
        - \psi\!\left(\frac{n - 1}2\right) \right] \approx \frac{P^2}{4 n}

    Exact for every correlation matrix: the log determinant of a Wishart matrix and the logs of its
    diagonal have means that depend on the true covariance only by its log determinant and diagonal.

    Args:
        num_draws: n > P, independent.
        num_weights: P.

    References:
        Anderson, "An Introduction to Multivariate Statistical Analysis", 3rd edition, 2003,
        section 7.5, for the log determinant.

    Example:
        >>> round(kl_bias(2_000, 1_000)), round(kl_bias(100_000, 1_000), 1)
        (153, 2.5)
    """
    from scipy import special

    freedom = num_draws - 1
    terms = special.digamma((freedom - np.arange(num_weights)) / 2) - special.digamma(freedom / 2)
    return float(-0.5 * terms.sum())


def check_draws(draws: ArrayLike) -> Float[np.ndarray, "C S P"]:
    """Draws as a float array, after a check that every weight of every chain moves.

    Raises:
        ShapeError: If ``draws`` is not ``[C, S, P]``.
        DataError: If a draw is not finite or a weight does not move.
    """
    chains = check_axes("draws", np.asarray(draws), "C S P")
    if not np.isfinite(chains).all():
        raise DataError(f"{int((~np.isfinite(chains)).sum())} of the draws are not finite")
    if still := int((np.ptp(chains, axis=1) == 0).sum()):
        raise DataError(
            f"{still} weights are the same number in all draws of a chain and have no correlation: "
            "leave them out"
        )
    return chains


def thinned(chain: Float[np.ndarray, "S P"]) -> tuple[Float[np.ndarray, "n P"], int, float]:
    """Draws of a chain about as many as the median effective sample size of its weights.

    Returns:
        The draws that are kept, one of how many, and the smallest effective sample size.
    """
    from pyro_bnn import arviz_io

    ess = arviz_io.ess(chain[None])
    every = max(1, round(len(chain) / float(np.median(ess))))
    return chain[::every], every, float(ess.min())


def effective_draws(white: Float[np.ndarray, "n P"]) -> float:
    """Independent draws whose sample covariance would vary as much, from draws that are white.

    The sum over lags ends where two neighbours sum to less than zero (Geyer's rule).
    """
    n = len(white)
    power = (np.abs(np.fft.rfft(white, 2 * n, axis=0)) ** 2).sum(1)
    rho = np.fft.irfft(power)[: n // 2 * 2]
    rho /= rho[0]
    ended = rho.reshape(-1, 2).sum(1) <= 0
    stop = 2 * int(ended.argmax()) if ended.any() else len(rho)
    return float(n / (2 * (rho[:stop] ** 2).sum() - 1))


def _of_chain(chain: Float[np.ndarray, "S P"], name: str) -> dict[str, float]:
    P = chain.shape[1]
    draws, every, smallest_ess = thinned(chain)
    _enough(len(draws), P, name)
    log_det, standard, white = _whitened(draws, name)
    n = effective_draws(white)
    _enough(n, P, name)
    plug_in = -0.5 * log_det
    halves, halves_error = np.nan, np.nan
    if P > 1 and n / 2 > P + 1:
        parts = (draws[: len(draws) // 2], draws[len(draws) // 2 :])
        log_dets = [_whitened(part, name)[0] for part in parts]
        halves = -0.5 * float(np.mean(log_dets)) - kl_bias(n / 2, P)
        halves_error = np.sqrt(_null_variance(n / 2, P) / 2 - _null_variance(n, P))
    influence = 0.5 * ((standard**2).sum(1) - (white**2).sum(1))  # [n]
    return {
        "plug_in": plug_in,
        "bias": kl_bias(n, P),
        "standard_error": _standard_error(influence, n, P),
        "halves": halves,
        "halves_error": float(halves_error),
        "effective_draws": n,
        "every": every,
        "smallest_ess": smallest_ess,
    }


def _enough(n: float, P: int, name: str) -> None:
    if n < MIN_RATIO * P:
        raise DataError(
            f"{name} has {n:.0f} effective draws for {P} weights: a correlation matrix of them "
            f"needs at least {MIN_RATIO * P}, or its determinant is all bias. Draw longer chains, "
            "or take a smaller network"
        )


def _whitened(
    draws: Float[np.ndarray, "n P"], name: str
) -> tuple[float, Float[np.ndarray, "n P"], Float[np.ndarray, "n P"]]:
    """Log det of the correlation matrix R, the standardised draws, and those whitened by R."""
    from scipy import linalg

    # of the draws and of the sums below, as a part of a variance
    rounding = (10 * np.finfo(draws.dtype).eps) ** 2 + 10 * draws.shape[1] * np.finfo(float).eps
    draws = draws.astype(np.float64)
    standard = (draws - draws.mean(0)) / draws.std(0)
    try:
        L = np.linalg.cholesky(standard.T @ standard / len(draws))
        is_full = np.diag(L).min() ** 2 > rounding  # what a weight has beside those before it
    except np.linalg.LinAlgError:
        is_full = False
    if not is_full:
        raise DataError(
            f"the draws of {name} fill fewer dimensions than its {standard.shape[1]} weights: some "
            "are linear functions of others, and no diagonal Gaussian is at a finite KL"
        )
    white = linalg.solve_triangular(L, standard.T, lower=True).T  # [n, P]
    return 2 * float(np.log(np.diag(L)).sum()), standard, white


def _null_variance(n: float, P: int) -> float:
    """Variance of -1/2 log det of the sample correlations of n independent Gaussian draws."""
    from scipy import special

    freedom = n - 1
    terms = special.polygamma(1, (freedom - np.arange(P)) / 2) - special.polygamma(1, freedom / 2)
    return float(0.25 * terms.sum())


def _standard_error(influence: Float[np.ndarray, " n"], n: float, P: int) -> float:
    from pyro_bnn import arviz_io

    if P == 1:
        return 0.0
    linear = float(arviz_io.mcse_mean(influence[None])) ** 2
    # sample correlations of nothing have influence too, which the null variance has counted
    linear = max(linear - P * (P - 1) / (2 * (n - 1) ** 2), 0.0)
    return float(np.sqrt(_null_variance(n, P) + linear))
