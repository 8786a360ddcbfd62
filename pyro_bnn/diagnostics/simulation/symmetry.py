r"""Whether numbers in [0, 1] are as likely to be p as 1 - p.

.. math:: D = \sup_t \lvert F_n(t) - G_n(t) \rvert

with the empirical distribution functions F of p and G of 1 - p: the two-sample Kolmogorov-Smirnov
distance between them.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Float

from pyro_bnn.errors import ShapeError


def symmetry_test(p: Float[np.ndarray, " D"]) -> tuple[float, float]:
    r"""Kolmogorov-Smirnov distance between p and 1 - p, and its p-value.

    The two samples are one, so that the table of the two-sample test does not hold: it would call
    a symmetric sample asymmetric about 11 times in 100 at a level of 5 %. Taken from the outside
    in, each p lies above or below one half by the toss of a coin; n times the distance is the
    farthest that the walk of these steps goes from 0, whose law is known:

    .. math:: P\bigl(\max_k \lvert S_k \rvert \ge a\bigr)
        = 2 \sum_{i \ge 0} (-1)^i \bigl[ P(S_n \ge (2i + 1) a) + P(S_n > (2i + 1) a) \bigr]

    Args:
        p: Numbers in [0, 1]. Those at the same distance from one half are taken together, which
            makes the p-value too large if anything.

    Returns:
        The distance, and the chance of a larger or equal one if p and 1 - p have one distribution.

    Raises:
        ShapeError: If ``p`` is not ``[D]`` of numbers in [0, 1].

    References:
        Butler, "A Test for Symmetry Using the Sample Distribution Function", Annals of
        Mathematical Statistics 1969. Yao, Vehtari, Simpson & Gelman, ICML 2018, arXiv:1802.02538,
        on what it says of an approximation.

    Example:
        >>> symmetry_test(np.array([0.1, 0.2, 0.3, 0.4]))  # four coins of one side: 2 in 16
        (1.0, 0.125)
    """
    from scipy import stats

    p = np.asarray(p, dtype=float)
    if p.ndim != 1 or not p.size or not ((p >= 0) & (p <= 1)).all():
        raise ShapeError(f"probabilities are numbers in [0, 1], [D]; got shape {list(p.shape)}")
    order = np.argsort(-np.abs(p - 0.5), kind="stable")
    far = np.abs(p[order] - 0.5)
    walk = np.cumsum(np.sign(p[order] - 0.5))
    ends = np.append(np.abs(np.diff(far)) > 1e-12, True)  # of those at one distance
    steps, farthest = int((far > 0).sum()), int(np.abs(walk[ends]).max())
    if farthest == 0:
        return 0.0, 1.0
    barriers = np.arange(farthest, steps + 1, 2 * farthest)
    signs = np.where(np.arange(len(barriers)) % 2, -1.0, 1.0)
    heads = (steps + barriers) / 2  # of n coins, where the walk ends at the barrier
    reached = stats.binom.sf(np.ceil(heads) - 1, steps, 0.5)
    passed = stats.binom.sf(np.floor(heads), steps, 0.5)
    return farthest / len(p), float(min(2 * (signs * (reached + passed)).sum(), 1.0))
