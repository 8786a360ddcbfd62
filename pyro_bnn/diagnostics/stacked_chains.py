"""Chains that do not mix, weighted by how well each predicts rows that it has not seen."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal, TypeAlias

import numpy as np
import torch
from jaxtyping import Float, Int
from scipy.special import logsumexp
from torch import Tensor

from pyro_bnn import memory
from pyro_bnn.checks import check_choice, check_share
from pyro_bnn.diagnostics.chain_clusters import chain_clusters
from pyro_bnn.diagnostics.convergence import MIN_DRAWS_A_CHAIN
from pyro_bnn.diagnostics.shapes import evenly_spread
from pyro_bnn.diagnostics.stacking import stacked_score, stacking_weights
from pyro_bnn.errors import DataError, OptionError
from pyro_bnn.posterior.draws_posterior import DrawsPosterior
from pyro_bnn.posterior.nature import Nature
from pyro_bnn.posterior.posterior import Posterior
from pyro_bnn.posterior.rows import Data

By: TypeAlias = Literal["chain", "cluster"]
StackingRows: TypeAlias = Literal["fitted", "new"]
MAX_BAD = 0.1  # share of rows whose k-hat may be above its limit
POINTS = 200  # rows at which functions are compared


def stack_chains(
    posterior: Posterior,
    data: Data,
    *,
    rows: StackingRows = "fitted",
    by: By = "chain",
    max_bad: float = MAX_BAD,
    memory_bound: int = memory.GIB,
) -> DrawsPosterior:
    r"""Chains weighted so that together they predict best: stacking, and not the posterior.

    .. math:: \max_w \sum_n \log \sum_k w_k \, p_k(y_n \mid y_{-n})

    over weights that sum to 1, with :math:`p_k` the prediction of chain k for a row left out, by
    PSIS-LOO over its own draws. Where chains stay in modes of their own, equal weights say that all
    modes are as probable, which nothing shows. Stacking weights predict better than these, also
    better than the exact posterior where the model is wrong. They say which chains predict, and
    nothing of how probable modes are: the spread of the function is not the posterior's.

    The result has the draws of the chains in proportion to the weights, each stored draw at most
    once, evenly spread over its chain, as one chain: as many as the chain of the largest weight
    allows. Weights are then exact to one draw. It predicts, is saved and compared as any posterior.

    Args:
        posterior: Chains of a sampler, two or more.
        data: Rows by which the chains are weighted, in the model's units.
        rows: ``"fitted"`` if the chains have seen these rows, which are then left out by PSIS-LOO;
            ``"new"`` if they have not, which needs no such correction.
        by: Whether each chain has a weight of its own, or each ``"cluster"`` of chains that agree
            on the function, as :func:`~pyro_bnn.diagnostics.chain_clusters` finds them.
        max_bad: Largest share of rows of a chain whose k-hat may be above its limit.
        memory_bound: Bound in bytes on the log likelihoods.

    Returns:
        The weighted chains; ``options["weights"]`` has the weight of each chain,
        ``options["log_score"]`` and ``options["equal_log_score"]`` what is maximised and the same
        of equal weights, in nats a row.

    Raises:
        DataError: If PSIS-LOO fails at more rows than ``max_bad`` allows; names the chains.
        OptionError: If these are not two chains or more of at least eight draws each.

    References:
        Yao, Vehtari & Gelman, "Stacking for Non-mixing Bayesian Computations: The Curse and
        Blessing of Multimodal Posteriors", JMLR 23, 2022, arXiv:2006.12335.

    Example:
        >>> from pyro_bnn import NUTS, models
        >>> x = torch.linspace(-1, 1, 20).unsqueeze(-1)
        >>> nuts = NUTS(num_chains=2, warmup_steps=20, num_samples=20, compile=False)
        >>> chains = nuts.run(models.LinearRegression(1), (x, x[:, 0]), progress=False)
        >>> new = torch.linspace(-1, 1, 7).unsqueeze(-1)
        >>> stacked = stack_chains(chains, (new, new[:, 0]), rows="new")
        >>> round(sum(stacked.options["weights"]), 6), stacked.nature.kind
        (1.0, 'stacked')
    """
    began = time.perf_counter()
    check_choice("rows", rows, StackingRows)
    check_choice("by", by, By)
    check_share("max_bad", max_bad)
    chains = _chains(posterior)
    log_likelihood = _log_likelihood(chains, data, memory_bound)  # [C, S, N]
    labels = tuple(range(chains.num_chains))
    if by == "cluster":
        labels = chain_clusters(_functions(chains, data)).labels
    groups = [np.flatnonzero(np.equal(labels, group)) for group in range(max(labels) + 1)]
    densities, bad = _densities(log_likelihood, groups, rows=rows, max_bad=max_bad)  # [N, K]
    own = stacking_weights(densities)  # [K]
    sizes = np.array([len(group) for group in groups])
    weights = (own / sizes)[list(labels)]  # [C]
    z = _weighted(chains, weights)
    provenance = replace(
        chains.provenance,
        method="StackedChains",
        engine="stack_chains",
        options={
            "of": chains.method,
            "weights": weights.tolist(),
            "clusters": list(labels) if by == "cluster" else None,
            "rows": rows,
            "num_rows": log_likelihood.shape[2],
            "bad_rows": bad,
            "log_score": stacked_score(densities, own),
            "equal_log_score": stacked_score(densities, sizes / sizes.sum()),
            "chains": dict(chains.options),
        },
        wall_time=chains.wall_time + time.perf_counter() - began,
        losses=np.zeros(0),
        nature=Nature(kind="stacked"),
    )
    stacked = DrawsPosterior(chains.program, z, provenance)
    stacked.params = dict(chains.params)
    return stacked


def counts_of(weights: Float[np.ndarray, " C"], stored: int, most: int) -> Int[np.ndarray, " C"]:
    """How many draws of each chain stand for its weight: as many as can, each used once.

    Args:
        weights: Of the chains, summing to 1.
        stored: Draws of each.
        most: Of all together.

    Returns:
        Counts ``[C]``, off by less than one from the weights times their sum.

    Example:
        >>> counts_of(np.array([0.5, 0.3, 0.2]), 100, 1_000)
        array([100,  60,  40])
    """
    total = min(int(stored / weights.max() + 1e-9), most)
    counts = np.minimum(np.floor(weights * total + 1e-9).astype(int), stored)
    left = total - int(counts.sum())
    rest = np.where(counts < stored, weights * total - counts, -1.0)
    counts[np.argsort(-rest, kind="stable")[:left]] += 1
    return np.asarray(counts)


def _chains(posterior: Posterior) -> DrawsPosterior:
    """The chains, or the reason why these are none.

    Raises:
        OptionError: If there are not two, or they are too short.
    """
    name = getattr(posterior, "method", type(posterior).__name__)
    if not isinstance(posterior, DrawsPosterior) or not posterior.sample_stats:
        raise OptionError(
            f"stack_chains weights Markov chains, and {name} has none: pass what NUTS, HMC, MAMS "
            "or another sampler gave, not a guide's posterior and not a file of a report"
        )
    count, length = posterior.num_chains, posterior.num_stored_draws // posterior.num_chains
    if count < 2:
        raise OptionError(f"{name} has one chain, whose weight is 1: run it with num_chains=4")
    if length < MIN_DRAWS_A_CHAIN:
        raise OptionError(
            f"{name} has {length} draws a chain, and weights need {MIN_DRAWS_A_CHAIN} or more: "
            "raise num_samples"
        )
    return posterior


def _log_likelihood(chains: DrawsPosterior, data: Data, bound: int) -> Float[np.ndarray, "C S N"]:
    """Log likelihood of each row given each stored draw, by chain.

    Raises:
        DataError: If a value is not finite.
    """
    values = chains.log_likelihood(data, chains.num_stored_draws, group_by_chain=True, memory=bound)
    array = np.asarray(values.cpu(), dtype=np.float64)
    if not np.isfinite(array).all():
        raise DataError(
            f"{int((~np.isfinite(array)).sum())} of {array.size} log likelihoods are not finite: "
            "chains that give a row no density cannot be weighted by it"
        )
    return array


def _functions(chains: DrawsPosterior, data: Data) -> Float[np.ndarray, "C S N F"]:
    """Draws of f by chain at some of the rows; of several logits their mean is taken off."""
    x = chains.batch(data).x
    f = chains.function_draws(
        x[evenly_spread(len(x), POINTS)], chains.num_stored_draws, group_by_chain=True
    )
    if not chains.batch(data).y.is_floating_point() and f.shape[-1] > 1:
        f = f - f.mean(-1, keepdim=True)
    return np.asarray(f.cpu())


def _densities(
    log_likelihood: Float[np.ndarray, "C S N"],
    groups: Sequence[Int[np.ndarray, " c"]],
    *,
    rows: StackingRows,
    max_bad: float,
) -> tuple[Float[np.ndarray, "N K"], int]:
    """Log density of each row left out under each group of chains, and in how many PSIS fails.

    Raises:
        DataError: If it fails in too many rows of a group.
    """
    from pyro_bnn import arviz_io

    if rows == "new":
        parts = [log_likelihood[group].reshape(-1, log_likelihood.shape[2]) for group in groups]
        return np.stack([logsumexp(p, axis=0) - np.log(len(p)) for p in parts], 1), 0
    loos = [arviz_io.loo_of_draws(log_likelihood[group]) for group in groups]
    num_rows = log_likelihood.shape[2]
    failed: dict[str, Any] = {
        " and ".join(str(chain + 1) for chain in group): one.num_bad
        for group, one in zip(groups, loos, strict=True)
        if one.num_bad > max_bad * num_rows
    }
    if failed:
        parts_of = ", ".join(f"chain {name}: {count}" for name, count in failed.items())
        raise DataError(
            f"PSIS-LOO fails at more than {max_bad:.0%} of {num_rows} rows (k-hat above its limit: "
            f"{parts_of}), so these rows cannot be left out of chains that saw them: give rows "
            'that no chain has seen, with rows="new", or raise num_samples'
        )
    densities = np.stack([one.pointwise for one in loos], 1)
    return densities, max(one.num_bad for one in loos)


def _weighted(chains: DrawsPosterior, weights: Float[np.ndarray, " C"]) -> Float[Tensor, "1 S P"]:
    """Stored draws in proportion to the weights."""
    stored = chains.stored
    bound = max(memory.STORED_DRAWS // max(1, stored[0, 0].nbytes), len(weights))
    counts = counts_of(weights, stored.shape[1], bound)
    parts = [
        of_chain[torch.as_tensor(evenly_spread(stored.shape[1], int(count)))]
        for of_chain, count in zip(stored, counts, strict=True)
        if count
    ]
    return torch.cat(parts).to(chains.program.initial).unsqueeze(0)
