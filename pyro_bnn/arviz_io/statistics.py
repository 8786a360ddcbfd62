"""Posteriors as ArviZ trees, and ArviZ's diagnostics of arrays, alike under ArviZ 0.23 and 1.x.

Everything takes NumPy arrays and imports neither torch nor Pyro. Draws are ``[C, S, ...]`` (chain
and draw first). ArviZ is imported inside the functions, because it takes a second or more; this is
the only module that asks which version it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import logsumexp

from pyro_bnn.arviz_io.tree import (
    SAMPLE_GROUPS,
)
from pyro_bnn.errors import DataError, OptionError, ShapeError, SiteError

if TYPE_CHECKING:
    import pandas as pd
    from jaxtyping import Float
    from xarray import DataArray, DataTree

KHAT_LIMIT = 0.7  # above it importance weights need too many draws: Vehtari et al. 2024
MIN_PSIS_DRAWS = 30  # fewer leave a tail of five, too short to fit
EQUAL_RATIOS = 1e-6  # log ratios this close are equal: the weights differ by one part in a million


def arviz() -> Any:
    """The module with ArviZ's 1.x interface: ``arviz.preview`` on 0.23, ``arviz`` itself from 1.0.

    Example:
        >>> hasattr(arviz(), "plot_rank_dist")
        True
    """
    import arviz as az

    if int(az.__version__.split(".")[0]) >= 1:
        return az
    from arviz import preview

    return preview


def rhat(draws: Float[NDArray[Any], "C S *event"]) -> Float[NDArray[np.float64], "*event"]:
    r"""Rank-normalised split R-hat: the larger of that of the ranks and that of the folded ranks.

    .. math:: \hat R = \sqrt{\frac{n - 1}{n} + \frac{B}{n W}}

    for halves of chains of length n, with B and W the variances between and within them of the
    normal scores of the ranks. Near 1 for chains that agree; above 1.01 (1.05 for a rough look)
    they have not mixed. It misses what no chain has found.

    Args:
        draws: At least two chains of at least four draws, in any unit; infinities are ranked.

    Returns:
        R-hat of every quantity. NaN where a draw is NaN, where all draws are equal, and with fewer
        chains or draws, as for a point estimate; chains stuck at different values give a huge
        number or infinity.

    Raises:
        ShapeError: If ``draws`` has fewer than two axes.

    References:
        Vehtari, Gelman, Simpson, Carpenter & Buerkner, "Rank-normalization, folding, and
        localization: an improved R-hat for assessing convergence of MCMC", Bayesian Analysis 2021,
        arXiv:1903.08008.

    Example:
        >>> draws = np.random.default_rng(0).normal(size=(4, 300, 2))
        >>> draws[0, :, 1] += 3
        >>> rhat(draws).round(2).tolist()
        [1.0, 1.48]
    """
    return _by_quantity("rhat", draws, method="rank")


def ess(
    draws: Float[NDArray[Any], "C S *event"], kind: Literal["bulk", "tail", "mean"] = "bulk"
) -> Float[NDArray[np.float64], "*event"]:
    r"""Effective sample size: the number of independent draws that would say as much.

    .. math:: \mathrm{ESS} = \frac{C S}{1 + 2 \sum_{t \ge 1} \rho_t}

    with the autocorrelations of halves of chains, cut off by Geyer's initial monotone sequence.

    Args:
        draws: At least four draws a chain.
        kind: ``"bulk"``, of the normal scores of the ranks; ``"tail"``, the smaller of those of
            the 5 % and 95 % quantiles; ``"mean"``, of the draws as they are.

    Returns:
        Effective draws out of all C S; more than C S for draws that alternate. NaN where a draw is
        NaN and for fewer draws; C S where all draws are equal.

    Raises:
        OptionError: If ``kind`` is another word.
        ShapeError: If ``draws`` has fewer than two axes.

    References:
        Vehtari et al., Bayesian Analysis 2021, arXiv:1903.08008, sections 3 and 4.

    Example:
        >>> draws = np.random.default_rng(0).normal(size=(4, 300))
        >>> bool(1000 < ess(np.repeat(draws, 3, axis=1)) < 1400)
        True
    """
    if kind not in ("bulk", "tail", "mean"):
        raise OptionError(f"kind must be 'bulk', 'tail' or 'mean', got {kind!r}")
    if kind == "tail":
        return _by_quantity("ess", draws, method="tail", prob=(0.05, 0.95))
    return _by_quantity("ess", draws, method=kind)


def mcse_mean(draws: Float[NDArray[Any], "C S *event"]) -> Float[NDArray[np.float64], "*event"]:
    r"""Monte Carlo standard error of the mean: ``sd / sqrt(ess(draws, "mean"))``.

    Args:
        draws: At least four draws a chain.

    Returns:
        The error in the unit of the draws; NaN where the effective sample size is.

    Raises:
        ShapeError: If ``draws`` has fewer than two axes.

    References:
        Vehtari et al., Bayesian Analysis 2021, arXiv:1903.08008, section 4.4.
    """
    return _by_quantity("mcse", draws, method="mean")


def psis(
    log_ratios: Float[NDArray[Any], " S"], *, relative_efficiency: float = 1.0
) -> tuple[Float[NDArray[np.float64], " S"], float]:
    r"""Pareto-smoothed importance weights, and the tail index that says whether to use them.

    .. math:: w_s \propto p(z_s) / q(z_s), \qquad \hat k = \text{shape of the Pareto tail of } w

    The largest :math:`3 \sqrt{S}` weights (a fifth for S of 225 or less) are replaced by quantiles
    of a generalised Pareto fit. For an approximation, k-hat below :func:`khat_limit` says that its
    draws can be reweighted to the posterior around them; a larger one that it is of another shape
    in some direction, which in many dimensions is common while predictions may be good. It is
    blind to modes of the posterior where the approximation has no draws.

    Args:
        log_ratios: ``log p - log q`` of each draw from q, up to a constant; -inf is weight 0.
        relative_efficiency: Effective draws over draws, > 0, for draws that are correlated.

    Returns:
        The normalised log weights ``[S]``, ``logsumexp`` 0, and k-hat. With fewer than 30 draws,
        or a tail that cannot be fitted (equal values, or ratios so far apart that all but a few
        weights underflow), the weights are not smoothed and k-hat is infinite. Ratios that are all
        equal (1e-6) give equal weights and k-hat 0.

    Raises:
        ShapeError: If ``log_ratios`` is not one row with at least one draw.
        DataError: If a ratio is NaN or +inf, or all are -inf.

    References:
        Vehtari, Simpson, Gelman, Yao & Gabry, "Pareto Smoothed Importance Sampling", JMLR 25(72),
        2024, arXiv:1507.02646; Yao, Vehtari, Simpson & Gelman, "Yes, but Did It Work?: Evaluating
        Variational Inference", ICML 2018, arXiv:1802.02538.

    Example:
        >>> z = np.random.default_rng(0).normal(scale=0.5, size=2000)  # q is half as wide as p
        >>> log_weights, khat = psis(-(z**2) / 2 + (z / 0.5) ** 2 / 2)
        >>> round(float(np.exp(log_weights).sum()), 6), khat > 0.5
        (1.0, True)
    """
    from arviz_stats.base.array import array_stats

    log_ratios = np.asarray(log_ratios, dtype=np.float64)
    if log_ratios.ndim != 1 or log_ratios.size == 0:
        raise ShapeError(f"log_ratios must be [S] with S >= 1, got shape {log_ratios.shape}")
    unusable = int((np.isnan(log_ratios) | np.isposinf(log_ratios)).sum())
    if unusable or not np.isfinite(log_ratios).any():
        raise DataError(
            "log_ratios must be finite or -inf, and not all -inf: "
            f"{unusable} of {log_ratios.size} are NaN or +inf"
        )
    log_ratios = log_ratios - log_ratios.max()
    khat = float("inf")
    if log_ratios.size >= MIN_PSIS_DRAWS and log_ratios.min() >= -EQUAL_RATIOS:
        khat = 0.0
    elif log_ratios.size >= MIN_PSIS_DRAWS:
        smooth: Any = array_stats.psislw
        # ArviZ refuses a tail of equal values; on one that underflows 0.23 returns NaN weights with
        # a small k-hat, 1.x NaN
        with np.errstate(all="ignore"), suppress(ValueError):
            log_weights, found = smooth(-log_ratios, r_eff=relative_efficiency)
            if not (np.isnan(log_weights).any() or np.isnan(found)):
                return log_weights, float(found)
    return log_ratios - logsumexp(log_ratios), khat


def khat_limit(num_draws: int) -> float:
    r"""Largest k-hat at which S draws suffice, :math:`\min(1 - 1 / \log_{10} S,\; 0.7)`.

    References:
        Vehtari et al., "Pareto Smoothed Importance Sampling", JMLR 2024, arXiv:1507.02646.

    Example:
        >>> round(khat_limit(1_000), 2), khat_limit(100_000)
        (0.67, 0.7)
    """
    return float(min(1 - 1 / np.log10(num_draws), KHAT_LIMIT))


def summary(
    tree: DataTree, *, group: str = "posterior", var_names: Sequence[str] | None = None
) -> pd.DataFrame:
    """ArviZ's table of one row a quantity, unrounded in every version.

    Args:
        tree: A tree of :func:`datatree`.
        group: One of ``SAMPLE_GROUPS``.
        var_names: The variables to keep, all by default.

    Returns:
        Columns ``mean, sd, eti89_lb, eti89_ub`` (central 89 % interval), ``ess_bulk, ess_tail,
        r_hat, mcse_mean, mcse_sd``; the divisor of sd is one less than the draws. With one draw all
        but the mean and the interval are NaN; with one chain R-hat is NaN. ArviZ's ``ess_tail`` is
        that of the 11 % and 89 % quantiles, where :func:`ess` has those of the paper. Only
        ``mcse_sd`` differs between versions: ArviZ 0.23 takes it from the effective sample size of
        the draws, 1.x from that of their squares.

    Raises:
        SiteError: If the group, or a variable of it, is not there, or it holds no draws.

    Example:
        >>> draws = np.random.default_rng(0).normal(size=(4, 300))
        >>> from pyro_bnn.arviz_io import datatree
        >>> summary(datatree({"posterior": {"scale": draws}})).loc["scale", "r_hat"].round(2)
        np.float64(1.0)
    """
    samples = [name for name in tree.children if name in SAMPLE_GROUPS]
    if group not in samples:
        raise SiteError(f"there is no group {group!r} of draws; those of the tree are {samples}")
    found = _variables(tree, group)
    missing = sorted(set(var_names or ()) - set(found))
    if missing:
        raise SiteError(f"{group} has no {', '.join(missing)}; it has {', '.join(sorted(found))}")
    dataset = tree.children[group].to_dataset()
    dataset = dataset.map(lambda array: array.astype(float) if array.dtype == bool else array)
    az = arviz()
    with np.errstate(all="ignore"):
        table: pd.DataFrame = az.summary(
            dataset, var_names=var_names, kind="all", ci_prob=0.89, ci_kind="eti", round_to="none"
        )
        if az.__name__ == "arviz.preview":  # its sd has the divisor S
            num_draws = np.float64(dataset.sizes["chain"] * dataset.sizes["draw"])
            table["sd"] *= np.sqrt(num_draws / (num_draws - 1))
    return table


def _by_quantity(function: str, draws: ArrayLike, **settings: Any) -> NDArray[np.float64]:
    """Call a function of ``array_stats`` for every quantity of draws [C, S, ...]."""
    from arviz_stats.base.array import array_stats

    array = np.asarray(draws, dtype=np.float64)
    if array.ndim < 2:
        raise ShapeError(
            f"draws must be [C, S, ...], got shape {array.shape}; for one chain give draws[None]"
        )
    with np.errstate(all="ignore"):  # 0 / 0 of equal draws is the NaN that is documented
        values = getattr(array_stats, function)(array, chain_axis=0, draw_axis=1, **settings)
    return np.asarray(values, dtype=np.float64)


def _variables(tree: DataTree, group: str) -> dict[str, DataArray]:
    """The variables of a group by name; none where the group is missing."""
    if group not in tree.children:
        return {}
    return {str(name): array for name, array in tree.children[group].data_vars.items()}
