r"""Convergence of Markov chains: R-hat and ESS of ``f(x)`` and others, energies, divergences.

Weights are exchangeable up to symmetries (permuted units, flipped signs), so chains that agree on
the function disagree on single weights; R-hat and ESS are never taken on those.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from pyro_bnn.diagnostics.shapes import check_axes
from pyro_bnn.errors import ShapeError

RHAT_THRESHOLD = 1.01
MIN_ESS = 400  # in the bulk and in the tails: 50 in each half of four chains
MIN_CHAINS = 4
MIN_EBFMI = 0.3
MAX_DIVERGENT = 0.001  # share of draws
MAX_SATURATED = 0.01  # share of trees
MIN_DRAWS_A_CHAIN = 8  # four in each half


@dataclass(frozen=True, kw_only=True)
class FunctionConvergence:
    """R-hat, bulk and tail ESS of a network output at every point.

    Entries where every draw of every chain is the same number are NaN (nothing to converge).

    Attributes:
        rhat: Rank-normalised split R-hat ``[N, F]``; infinite where chains are stuck apart.
        ess: Bulk effective sample size over all chains ``[N, F]``.
        ess_tail: The smaller of those of the 5 % and the 95 % quantile ``[N, F]``.
        worst: Point and output ``(n, f)`` with the largest R-hat.
        worst_rhat: Largest R-hat; NaN if the function is constant everywhere.
        median_rhat: Median R-hat.
        smallest_ess: Smallest bulk effective sample size.
        smallest_ess_tail: Smallest tail effective sample size.
        median_ess: Median bulk effective sample size.
        num_draws: Draws over all chains.
    """

    rhat: Float[np.ndarray, "N F"]
    ess: Float[np.ndarray, "N F"]
    ess_tail: Float[np.ndarray, "N F"]
    worst: tuple[int, int]
    worst_rhat: float
    median_rhat: float
    smallest_ess: float
    smallest_ess_tail: float
    median_ess: float
    num_draws: int

    @property
    def converged(self) -> bool:
        """Whether R-hat is at most 1.01 and both ESS at least 400 everywhere; False for NaN."""
        smallest = min(self.smallest_ess, self.smallest_ess_tail)
        return bool(self.worst_rhat <= RHAT_THRESHOLD and smallest >= MIN_ESS)


def function_convergence(f: Float[np.ndarray, "C S N F"]) -> FunctionConvergence:
    r"""Split R-hat, bulk and tail ESS over test points, with the worst and the median of each.

    .. math:: \hat R = \sqrt{\widehat{\mathrm{var}}^+ / W}

    on rank-normalised halves of chains: the pooled variance over the variance within. A single
    chain is taken as two chains, its halves, so that a drift is still seen. Of chains that mix, the
    largest R-hat of many points passes 1.01 where ESS is not well above 400, so its remedy is more
    draws: of 44 points of a linear function in 10 weights it is above 1.01 in 3 of 10 runs with a
    smallest ESS of about 640 and in 3 of 100 with 1,100.

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
    constant = (f == f[:1, :1]).all((0, 1))  # [N, F]
    lost = np.isnan(f).any((0, 1))  # chains that agree on nothing
    stuck = (f == f[:, :1]).all((0, 1)) & ~constant  # every chain still, but apart
    moving = ~(constant | stuck | lost)
    rhat = np.where(stuck | lost, np.inf, np.nan)  # [N, F]
    ess = np.where(lost, 0.0, np.where(stuck, float(len(f)), np.nan))
    ess_tail = ess.copy()
    if moving.any():
        rhat[moving] = arviz_io.rhat(f[:, :, moving])
        ess[moving] = arviz_io.ess(f[:, :, moving], kind="bulk")
        ess_tail[moving] = arviz_io.ess(f[:, :, moving], kind="tail")
    known = not constant.all()
    worst = np.unravel_index(np.nanargmax(rhat), rhat.shape) if known else (0, 0)
    return FunctionConvergence(
        rhat=rhat,
        ess=ess,
        ess_tail=ess_tail,
        worst=(int(worst[0]), int(worst[1])),
        worst_rhat=float(rhat[worst]),
        median_rhat=float(np.nanmedian(rhat)) if known else np.nan,
        smallest_ess=float(np.nanmin(ess)) if known else np.nan,
        smallest_ess_tail=float(np.nanmin(ess_tail)) if known else np.nan,
        median_ess=float(np.nanmedian(ess)) if known else np.nan,
        num_draws=f.shape[0] * f.shape[1],
    )


def rhat_within(f: Float[np.ndarray, "C S N F"]) -> float:
    """Largest split R-hat of a chain by itself, over chains, points and outputs.

    What each chain of an ensemble of local samplers can be asked: whether it has settled where it
    is, whatever the others say.

    Args:
        f: Draws of the network output by chain, S at least 8.

    Raises:
        ShapeError: If there are too few draws.
    """
    f = check_axes("f", f, "C S N F")
    num_chains, num_draws, num_points, num_outputs = f.shape
    apart = f.transpose(1, 0, 2, 3).reshape(1, num_draws, num_chains * num_points, num_outputs)
    return function_convergence(apart).worst_rhat


def ebfmi(energy: Float[np.ndarray, "C S"]) -> Float[np.ndarray, " C"]:
    r"""Energy fraction of missing information of each chain of Hamiltonian Monte Carlo.

    .. math:: \frac{\sum_s (E_s - E_{s-1})^2}{\sum_s (E_s - \bar E)^2}

    How far a new momentum moves the energy, beside how far the energy ranges: 2 where energies are
    independent. Below 0.3 a chain walks slowly between energies, and may not have reached the
    tails. The draws are consecutive: of thinned ones it is too large.

    Args:
        energy: Energy of every draw ``[C, S]``, S at least 2.

    Returns:
        The fraction ``[C]``; 0 for a chain whose energy stands still.

    References:
        Betancourt, "Diagnosing Suboptimal Cotangent Disintegrations in Hamiltonian Monte Carlo",
        2016, arXiv:1604.00695. Betancourt, "A Conceptual Introduction to Hamiltonian Monte Carlo",
        2017, arXiv:1701.02434, for the threshold.

    Example:
        >>> ebfmi(np.random.default_rng(0).standard_normal((1, 4_000))).round(1)
        array([2.])
    """
    energy = check_axes("energy", energy, "C S")
    steps = np.square(np.diff(energy, axis=1)).sum(1)
    spread = np.square(energy - energy.mean(1, keepdims=True)).sum(1)
    return np.asarray(np.where(steps > 0, steps, 0.0) / np.where(spread > 0, spread, 1.0))


@dataclass(frozen=True, kw_only=True)
class ChainChecks:
    """What Markov chains say of themselves; NaN where a sampler records no such thing.

    Attributes:
        num_chains: Number of chains.
        quantities: Convergence by the name of a quantity; none where chains have fewer than 8
            draws.
        divergent: Share of draws at the end of divergent trajectories.
        saturated: Share of draws whose tree reached the largest size allowed.
        ebfmi: Smallest E-BFMI of a chain.
    """

    num_chains: int
    quantities: Mapping[str, FunctionConvergence]
    divergent: float
    saturated: float
    ebfmi: float

    @property
    def worst_rhat(self) -> float:
        """Largest R-hat of all quantities; NaN if that of one is undefined, or there is none."""
        return self._most("worst_rhat", np.max)

    @property
    def smallest_ess(self) -> float:
        """Smallest bulk ESS of all quantities."""
        return self._most("smallest_ess", np.min)

    @property
    def smallest_ess_tail(self) -> float:
        """Smallest tail ESS of all quantities."""
        return self._most("smallest_ess_tail", np.min)

    @property
    def can_judge(self) -> bool:
        """Whether other methods may be measured against these draws.

        At least 4 chains; R-hat at most 1.01, bulk and tail ESS at least 400, of every quantity; at
        most 0.1 % of draws divergent and 1 % of trees saturated, E-BFMI at least 0.3 in every
        chain, of what the sampler records of these.

        References:
            Vehtari et al., Bayesian Analysis 2021, arXiv:1903.08008, for R-hat and ESS;
            Betancourt, 2016, arXiv:1604.00695 and 2017, arXiv:1701.02434, for the others, of whose
            shares the limits are ours.
        """
        return (
            self.num_chains >= MIN_CHAINS
            and bool(self.quantities)
            and all(quantity.converged for quantity in self.quantities.values())
            and self.moves
        )

    @property
    def moves(self) -> bool:
        """Whether trajectories have none of the defects that more draws do not mend."""
        return (
            not self.divergent > MAX_DIVERGENT
            and not self.saturated > MAX_SATURATED
            and not self.ebfmi < MIN_EBFMI
        )

    def _most(self, name: str, of: Callable[[list[float]], float]) -> float:
        values = [getattr(quantity, name) for quantity in self.quantities.values()]
        return float(of(values)) if values else float("nan")
