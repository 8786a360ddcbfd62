"""Checks of one fit: ELBO, its trend, checks of Markov chains, k-hat, PSIS-LOO."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float

from pyro_bnn.arviz_io.loo import LooResult
from pyro_bnn.diagnostics.chain_clusters import ChainClusters, chain_clusters
from pyro_bnn.diagnostics.convergence import (
    MIN_DRAWS_A_CHAIN,
    RHAT_THRESHOLD,
    ChainChecks,
    FunctionConvergence,
    ebfmi,
    function_convergence,
    rhat_within,
)
from pyro_bnn.diagnostics.energy_error import mean_energy_variance, variance_bias
from pyro_bnn.diagnostics.khat import MIN_DRAWS, khat, khat_error, khat_threshold
from pyro_bnn.diagnostics.shapes import evenly_spread
from pyro_bnn.diagnostics.trend import MIN_STEPS, Trend, objective_trend
from pyro_bnn.errors import BNNError
from pyro_bnn.infer.laplace.mode import ALONG_KINKS, FARTHEST
from pyro_bnn.infer.natural.options import POWER
from pyro_bnn.plotting.numbers import number, with_error
from pyro_bnn.posterior.doubling import LARGEST_ERROR, MIN_GAIN, Doubling
from pyro_bnn.posterior.rows import draws_with_densities, rows_with_draws
from pyro_bnn.predictive.moments import estimated_elbo
from pyro_bnn.report.evaluation.natures import (
    has_members,
    is_biased_sampler,
    is_exact_sampler,
    is_in_closed_form,
    is_linearised,
    nature_of,
)
from pyro_bnn.report.evaluation.units import to_numpy

if TYPE_CHECKING:
    from torch import Tensor

    from pyro_bnn.data.split import Split
    from pyro_bnn.posterior.protocol import PosteriorLike
    from pyro_bnn.report.evaluation.fit_record import FitRecord

MOST_LEFT, MOST_LEFT_A_ROW = 5.0, 0.01  # nats that a fit may still gain and be compared
MAX_POINTS = 200  # R-hat over thousands of points costs more than it tells
ELBO = "ELBO"  # an objective that is that bound
NO_BOUND = "objective (no ELBO, as its prior is improper)"
FUNCTION, LOG_LIKELIHOOD = "f", "log likelihood"
NAN = float("nan")


@dataclass(frozen=True, kw_only=True)
class FitChecks:
    """What a fit says about itself; NaN or None where a check does not apply.

    Attributes:
        elbo: Evidence lower bound in nats, in the standardised units of y.
        elbo_error: Its Monte Carlo error.
        doubling: What the second half of the run gained, by paired ELBOs; None where the run did
            not compare.
        trend: Trend of the objective over the last part of a run that did not.
        losses: Loss of every step ``[T]``; empty for samplers.
        num_rows: Training rows.
        convergence: R-hat and ESS of f over test points.
        chains: The draws of f behind them ``[C, S, N, F]``.
        sampling: All checks of Markov chains; None for what is not one.
        clusters: Which chains agree on the function; None where R-hat finds that all do.
        num_divergent: Divergent draws after warm-up.
        sampler_bias: Relative error of variances that the energy errors of an unadjusted sampler
            imply.
        rhat_within: Largest R-hat of f within a member of an ensemble that samples.
        khat: k-hat of the approximation.
        khat_error: Its standard error over draws.
        khat_limit: Below it the draws can be reweighted to the posterior around them.
        loo: PSIS leave-one-out score of the exact posterior, in standardised units.
        notes: Why a number is blank, and what limits the others.
        unchecked: Why it is not known whether the fit converged; empty where it was judged.
    """

    elbo: float = NAN
    elbo_error: float = NAN
    doubling: Doubling | None = None
    trend: Trend | None
    losses: Float[np.ndarray, " T"]
    num_rows: int = 0
    convergence: FunctionConvergence | None
    chains: Float[np.ndarray, "C S N F"] | None
    sampling: ChainChecks | None
    clusters: ChainClusters | None = None
    num_divergent: int | None
    sampler_bias: float
    rhat_within: float
    khat: float = NAN
    khat_error: float = NAN
    khat_limit: float = NAN
    loo: LooResult | None = None
    notes: tuple[str, ...]
    unchecked: str = ""

    @property
    def is_nearly_done(self) -> bool:
        """Whether the fit still gained, but at most 5 nats in all and 0.01 a row."""
        if self.doubling is None or not self.doubling.is_rising:
            return False
        return self.doubling.gain <= min(MOST_LEFT, MOST_LEFT_A_ROW * self.num_rows)


def fit_checks(
    posterior: PosteriorLike, split: Split, num_draws: int, seed: int, *, is_point: bool
) -> FitChecks:
    """Runs every check that applies to a posterior.

    Args:
        posterior: Any posterior.
        split: ELBO and k-hat use the training rows, LOO and R-hat of the log likelihood those of
            them at which all draws are kept, R-hat of f the test rows.
        num_draws: Draws for ELBO, k-hat and LOO; R-hat uses all stored draws.
        seed: Seed of the draws.
        is_point: Whether the posterior is a single point, which has no density.
    """
    run = run_checks(posterior, split, seed)
    notes: list[str] = []
    if is_point:
        notes.append("a point estimate: one draw of the function")
    elbo, elbo_error = NAN, NAN
    log_p = log_q = None
    if posterior.has_log_prob:
        count = draws_with_densities(len(split.train), num_draws)
        log_p, log_q = posterior.densities(split.train, num_samples=count, seed=seed)
        if len(log_p) < num_draws:
            num_draws = len(log_p)
            notes.append(
                f"ELBO and k-hat are of {num_draws} draws only: each draw reads all training rows"
            )
    if posterior.elbo_kind != "none" and num_draws < 2:
        notes.append("no ELBO: its standard error needs two draws")
    elif posterior.elbo_kind != "none" and log_p is not None and log_q is not None:
        elbo, elbo_error = estimated_elbo(log_p, log_q)
    elif posterior.elbo_kind != "none":
        elbo, elbo_error = posterior.elbo(split.train, num_samples=num_draws, seed=seed)
    shape = _khat(log_p, log_q, notes)
    notes += run.notes
    if is_linearised(posterior):
        notes.append(
            "predicts by the linearised network; ELBO and k-hat are of the network itself at draws "
            "of the weights"
        )
    loo = _loo(posterior, split, num_draws, seed, shape, is_point, notes)
    return replace(
        run,
        elbo=elbo,
        elbo_error=elbo_error,
        khat=shape,
        khat_error=NAN if np.isnan(shape) else khat_error(shape, num_draws),
        khat_limit=NAN if np.isnan(shape) else khat_threshold(num_draws),
        loo=loo,
        notes=tuple(notes),
    )


def run_checks(posterior: PosteriorLike, split: Split, seed: int) -> FitChecks:
    """What a run says of whether it has converged: the trend of its objective, its chains.

    Args:
        posterior: Any posterior.
        split: R-hat of f is at the test rows, of the log likelihood at the training rows.
        seed: Seed of the draws of f.

    Returns:
        The checks; what takes draws of a guide is blank.
    """
    notes: list[str] = []
    chains = function_chains(posterior, split, seed)
    sampling = chain_checks(posterior, split, chains, seed, notes)
    divergent = posterior.sample_stats.get("diverging")
    convergence = sampling.quantities.get(FUNCTION) if sampling else None
    clusters = None
    if chains is not None and not (convergence and convergence.worst_rhat <= RHAT_THRESHOLD):
        clusters = chain_clusters(chains)
    losses = to_numpy(posterior.losses).astype(float)
    trend, doubling = None, getattr(posterior, "doubling", None)  # which not all posteriors tell
    if losses.size and doubling is None and not is_at_mode(posterior):
        trend = objective_trend(losses, learning_rates(posterior, len(losses)))
    unchecked = _unchecked(posterior, trend, doubling, len(losses))
    if unchecked:
        notes.append(f"convergence not judged: {unchecked}")
    elif trend is not None and not trend.is_rising and trend.largest >= MIN_GAIN:
        notes.append(probably_converged(trend))
    return FitChecks(
        doubling=doubling,
        trend=trend,
        losses=losses,
        num_rows=len(split.train),
        convergence=convergence,
        chains=chains,
        sampling=sampling,
        clusters=clusters,
        num_divergent=None if divergent is None else int(np.sum(divergent)),
        sampler_bias=sampler_bias(posterior),
        rhat_within=rhat_within(chains) if chains is not None and has_members(posterior) else NAN,
        notes=tuple(notes),
        unchecked=unchecked,
    )


def probably_converged(trend: Trend) -> str:
    """What is known of a run whose trend shows no rise, in words."""
    return (
        f"probably converged; a gain above {number(trend.noticeable, 2)} nats over the last "
        f"{trend.num_steps:,} steps would have been noticed"
    )


def _unchecked(
    posterior: PosteriorLike, trend: Trend | None, doubling: Doubling | None, num_steps: int
) -> str:
    """Why it is not known whether a fit converged; empty for one that was judged, or needs not."""
    if doubling is not None:
        if doubling.is_judged:
            return ""
        return (
            f"its last {doubling.num_steps // 2:,} steps gained "
            f"{with_error(doubling.gain, doubling.error)} nats, an error above "
            f"{LARGEST_ERROR:g}: a fit that is 5 nats short could pass"
        )
    is_fit = not is_in_closed_form(posterior) and not posterior.sample_stats
    sweeps = posterior.options.get("max_sweeps")  # of coordinate ascent, which ends by itself
    is_fit = is_fit and nature_of(posterior).kind != "stacked"
    ends_itself = is_at_mode(posterior) or (sweeps is not None and num_steps < sweeps)
    if not is_fit or trend is not None or ends_itself:
        return ""
    if not num_steps:
        return "it has no trace of its objective"
    return (
        f"too short: fewer than {MIN_STEPS} of its {num_steps:,} steps lie in the last quarter of "
        "the accumulated learning rate"
    )


def is_at_mode(posterior: PosteriorLike | FitRecord) -> bool:
    """Whether its steps led to a mode that was found and checked afterwards, as Laplace's."""
    left = {"newton_decrement": FARTHEST, "polish_gain": ALONG_KINKS}
    return any(posterior.options.get(name, math.inf) < most for name, most in left.items())


def sampler_bias(posterior: PosteriorLike) -> float:
    """What the energy errors of a biased sampler imply; NaN of any other posterior."""
    stats = posterior.sample_stats
    if not is_biased_sampler(posterior) or "energy_variance" not in stats:
        return NAN
    return variance_bias(mean_energy_variance(stats["energy_variance"], stats["diverging"]))


def function_chains(
    posterior: PosteriorLike, split: Split, seed: int
) -> Float[np.ndarray, "C S N F"] | None:
    """Draws of f by chain at up to 200 test rows; None for what is not a Markov chain.

    Of several logits their mean is taken off, which the likelihood does not identify.
    """
    if not posterior.sample_stats or posterior.num_stored_draws is None:
        return None
    if posterior.num_stored_draws // posterior.num_chains < MIN_DRAWS_A_CHAIN:
        return None
    f = posterior.function_draws(
        split.test.x[evenly_spread(len(split.test.x), MAX_POINTS)],
        num_samples=posterior.num_stored_draws,
        seed=seed,
        group_by_chain=True,
    )
    draws = to_numpy(f)
    if split.task == "classification" and draws.shape[-1] > 1:
        draws = draws - draws.mean(-1, keepdims=True)
    return draws


def chain_checks(
    posterior: PosteriorLike,
    split: Split,
    chains: Float[np.ndarray, "C S N F"] | None,
    seed: int,
    notes: list[str],
) -> ChainChecks | None:
    """All checks of Markov chains; what could not be checked goes to notes.

    R-hat and ESS are of f, of the log likelihood of all training rows, and of scales, which have
    no copies by symmetry: one of several entries by the mean of their logs, as units may be
    swapped.

    Args:
        posterior: Any posterior.
        split: The data.
        chains: Draws of f of `function_chains`.
        seed: Seed of the draws.
        notes: Of the fit; added to.
    """
    stats = posterior.sample_stats
    if not stats or posterior.num_stored_draws is None:
        return None
    quantities = {}
    if chains is not None:
        values = {FUNCTION: chains}
        likelihood = posterior.log_likelihood(
            rows_with_draws(split.train, posterior.num_stored_draws),
            posterior.num_stored_draws,
            seed,
            group_by_chain=True,
        )
        values[LOG_LIKELIHOOD] = _at_one_point(likelihood.double().sum(-1))
        for name, value in posterior.hyperparameters(
            posterior.num_stored_draws, seed, group_by_chain=True
        ).items():
            entries = to_numpy(value).reshape(*value.shape[:2], -1).astype(float)  # [C, S, M]
            values[name] = _at_one_point(
                (np.log(entries) if (entries > 0).all() else entries).mean(-1)
            )
        quantities = {name: function_convergence(value) for name, value in values.items()}
    limit = posterior.options.get("max_tree_depth")
    depth, energy = stats.get("tree_depth"), stats.get("energy")
    if depth is not None and limit is None:
        notes.append("saturated trees not judged: the largest depth allowed is not known")
    if energy is None and not nature_of(posterior).has_islands:
        notes.append("E-BFMI not judged: consecutive energies are not stored")
    return ChainChecks(
        num_chains=posterior.num_chains,
        quantities=quantities,
        divergent=float(np.mean(stats["diverging"])) if "diverging" in stats else NAN,
        saturated=NAN if depth is None or limit is None else float(np.mean(depth >= limit)),
        ebfmi=NAN if energy is None or energy.shape[1] < 2 else float(np.min(ebfmi(energy))),
    )


def _at_one_point(values: Tensor | np.ndarray) -> Float[np.ndarray, "C S 1 1"]:
    return to_numpy(values)[..., None, None]


def learning_rates(posterior: PosteriorLike, num_steps: int) -> Float[np.ndarray, " T"] | None:
    r"""Relative learning rate of every step, from the options of the engine.

    A cosine schedule is :math:`(1 + \cos(\pi t / T)) / 2` over the planned number of steps, of
    which an early stop may have used only the first; that of powers is
    :math:`(t + 1)^{-0.55}`.
    """
    schedule = posterior.options.get("schedule")
    if schedule == "power":
        return np.asarray(np.arange(1, num_steps + 1.0) ** -POWER)
    if schedule != "cosine":
        return None
    planned = max(int(posterior.options.get("num_steps") or num_steps), num_steps)
    return np.asarray(0.5 * (1 + np.cos(np.pi * np.arange(num_steps) / planned)))


def objective_of(posterior: PosteriorLike | FitRecord) -> str:
    """What a fit maximised, in words; an ELBO only where the prior has a finite total mass."""
    if posterior.objective == ELBO and posterior.elbo_kind == "none":
        return NO_BOUND
    return posterior.objective


def _khat(log_p: Tensor | None, log_q: Tensor | None, notes: list[str]) -> float:
    """k-hat of densities ``[S]``; NaN without these, and from few draws."""
    if log_p is None or log_q is None:
        return NAN
    if len(log_p) < MIN_DRAWS:
        notes.append(f"no k-hat from {len(log_p)} draws (at least {MIN_DRAWS})")
        return NAN
    try:
        return khat(to_numpy(log_p).astype(float), to_numpy(log_q).astype(float))
    except BNNError as error:
        notes.append(f"no k-hat: {error}")
        return NAN


def _loo(
    posterior: PosteriorLike,
    split: Split,
    num_draws: int,
    seed: int,
    shape: float,
    is_point: bool,
    notes: list[str],
) -> LooResult | None:
    """PSIS-LOO where it estimates what it is said to; otherwise None and the reason in notes.

    It estimates the score of the EXACT posterior, whatever proposal is corrected, so it is shown
    for exact samplers, and for an approximation only if its draws can be corrected.
    """
    from pyro_bnn import arviz_io

    held = ", ".join(sorted(getattr(posterior, "params", {})))
    limit, reason = khat_threshold(max(num_draws, 2)), ""
    estimate = arviz_io.loo_approximate
    if is_exact_sampler(posterior):
        estimate = arviz_io.loo
        if held:
            notes.append(
                f"PSIS-LOO is given {held}: too high if their values were fitted to these rows"
            )
    elif held:
        reason = f"{held} were fitted to every row, so no row is left out of them"
    elif is_point:
        reason = "a point has no importance weights"
    elif is_linearised(posterior):
        reason = "rows have the likelihood of the linearised network"
    elif not shape < limit:
        reason = f"k-hat {shape:.2f}, not below {limit:.2f}"
        if np.isnan(shape):
            reason = "no k-hat" if posterior.has_log_prob else "no log density"
        reason = f"{reason}, so its draws cannot be reweighted to the posterior"
    if reason:
        notes.append(f"no PSIS-LOO: {reason}")
        return None
    try:
        result = estimate(posterior.to_arviz(split.train, num_samples=num_draws, seed=seed))
    except BNNError as error:
        notes.append(f"no PSIS-LOO: {error}")
        return None
    if result.num_bad:
        notes.append(
            f"PSIS-LOO is not to be trusted: {result.num_bad} of {len(result.khat)} training rows "
            "have a k-hat above its limit"
        )
    return result
