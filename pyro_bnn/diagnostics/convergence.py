r"""Convergence in function space: split R-hat and ESS of ``f(x)`` at every test point.

Weights are exchangeable up to symmetries (permuted units, flipped signs), so chains that agree on
the function disagree on single weights; R-hat and ESS are never taken on those.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from pyro_bnn.diagnostics.shapes import check_axes
from pyro_bnn.errors import ShapeError

RHAT_THRESHOLD = 1.05
MIN_DRAWS_A_CHAIN = 8  # four in each half


@dataclass(frozen=True, kw_only=True)
class FunctionConvergence:
    """R-hat and bulk ESS of a network output at every point.

    Entries where every draw of every chain is the same number are NaN (nothing to converge).

    Attributes:
        rhat: Rank-normalised split R-hat ``[N, F]``; infinite where chains are stuck apart.
        ess: Bulk effective sample size over all chains ``[N, F]``.
        worst: Point and output ``(n, f)`` with the largest R-hat.
        worst_rhat: Largest R-hat; NaN if the function is constant everywhere.
        median_rhat: Median R-hat.
        smallest_ess: Smallest effective sample size.
        median_ess: Median effective sample size.
        num_draws: Draws over all chains.
    """

    rhat: Float[np.ndarray, "N F"]
    ess: Float[np.ndarray, "N F"]
    worst: tuple[int, int]
    worst_rhat: float
    median_rhat: float
    smallest_ess: float
    median_ess: float
    num_draws: int

    @property
    def converged(self) -> bool:
        """Whether the largest R-hat is at most 1.05; False where it is undefined."""
        return bool(self.worst_rhat <= RHAT_THRESHOLD)


def function_convergence(f: Float[np.ndarray, "C S N F"]) -> FunctionConvergence:
    r"""Split R-hat and bulk ESS over test points, with the worst and the median of each.

    .. math:: \hat R = \sqrt{\widehat{\mathrm{var}}^+ / W}

    on rank-normalised halves of chains: the pooled variance over the variance within. A single
    chain is taken as two chains, its halves, so that a drift is still seen.

    Args:
        f: Function draws ``[C, S, N, F]``, S draws in each of C chains.

    Raises:
        ShapeError: If ``f`` is not ``[C, S, N, F]`` or a chain has fewer than 8 draws.

    References:
        Vehtari, Gelman, Simpson, Carpenter & Bürkner, "Rank-Normalization, Folding, and
        Localization: An Improved R-hat for Assessing Convergence of MCMC", Bayesian Analysis
        2021, arXiv:1903.08008.

    Example:
        >>> f = np.random.default_rng(0).standard_normal((4, 250, 2, 1))
        >>> function_convergence(f).converged
        True
    """
    from pyro_bnn import arviz_io

    f = check_axes("f", f, "C S N F")
    if f.shape[1] < MIN_DRAWS_A_CHAIN:
        raise ShapeError(
            f"R-hat needs at least {MIN_DRAWS_A_CHAIN} draws in each chain, got {f.shape[1]}"
        )
    if len(f) == 1:
        half = f.shape[1] // 2
        f = np.concatenate([f[:, :half], f[:, -half:]])
    num_draws = f.shape[0] * f.shape[1]
    constant = np.ptp(f, axis=(0, 1)) == 0  # [N, F]
    stuck = (np.ptp(f, axis=1) == 0).all(0) & ~constant  # every chain still, but apart
    moving = ~(constant | stuck)
    rhat = np.where(stuck, np.inf, np.nan)  # [N, F]
    ess = np.where(stuck, float(len(f)), np.nan)
    if moving.any():
        rhat[moving] = arviz_io.rhat(f[:, :, moving])
        ess[moving] = arviz_io.ess(f[:, :, moving], kind="bulk")
    known = not constant.all()
    worst = np.unravel_index(np.nanargmax(rhat), rhat.shape) if known else (0, 0)
    return FunctionConvergence(
        rhat=rhat,
        ess=ess,
        worst=(int(worst[0]), int(worst[1])),
        worst_rhat=float(rhat[worst]),
        median_rhat=float(np.nanmedian(rhat)) if known else np.nan,
        smallest_ess=float(np.nanmin(ess)) if known else np.nan,
        median_ess=float(np.nanmedian(ess)) if known else np.nan,
        num_draws=num_draws,
    )
