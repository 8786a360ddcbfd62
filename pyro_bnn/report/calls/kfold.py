r"""K-fold cross-validation of posteriors of any Pyro models, by refits without some values.

The N values of an observed site fall into K folds :math:`F_k`. The engine runs K times, each time
with the terms of one fold left out of the likelihood, and its draws score the values of that fold:

.. math:: \mathrm{elpd} = \sum_k \sum_{n \in F_k}
    \log \frac1S \sum_s p(y_n \mid \theta_s^{(k)}), \qquad
    \theta_s^{(k)} \sim q(\theta \mid y_{-F_k})

It scores the posterior that the engine finds, an approximation as itself, where PSIS-LOO scores the
exact one. With K = N it is leave-one-out by brute force.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.typing import ArrayLike, NDArray
from tqdm.auto import tqdm

from pyro_bnn.checks import check_positive_int, plain
from pyro_bnn.diagnostics.convergence import MIN_CHAINS, ChainChecks
from pyro_bnn.diagnostics.scores import log_score, log_score_error
from pyro_bnn.errors import BNNError, DataError, OptionError, ShapeError
from pyro_bnn.infer.parallel.tasks import in_order
from pyro_bnn.posterior.call_posterior import Rerun
from pyro_bnn.program.joint import Joint
from pyro_bnn.program.left_out import LeaveOut
from pyro_bnn.program.random_state import derived_seed
from pyro_bnn.report.calls.evaluate import (
    ONE_DRAWN,
    CallEvaluation,
    KFoldResult,
    chain_checks,
    is_masked,
    require_same_number,
    site_densities,
    site_draws,
)
from pyro_bnn.report.verdicts.chain_verdicts import defects

ORDER, REFITS = 401, 402  # streams of seeds: of the order of values; of refits, and those after it
FEWEST_FOR_ESS = 4  # draws of a chain

Folds: TypeAlias = int | ArrayLike
"""Number of folds, or the fold of each value of the site."""


class _Refit(NamedTuple):
    """What one refit says of the values that it has not seen."""

    log_score: Float[NDArray[np.float64], " n"]
    draws_error: float  # of their mean
    faults: ChainChecks | None


def with_kfold(
    entries: Mapping[str, CallEvaluation],
    site: str,
    folds: Folds,
    num_samples: int | None,
    seed: int,
) -> dict[str, CallEvaluation]:
    """The posteriors with their k-fold scores, or with why one has none.

    The refits go side by side under ``joblib.parallel_config``, with the same results.

    Args:
        entries: The posteriors, by name.
        site: The observed site.
        folds: Number of folds, the same random ones for all posteriors, or the fold of each value.
        num_samples: Draws of each refit, by default all that are stored.
        seed: Of the folds, the refits and the draws.

    Raises:
        DataError: If the models observe other numbers of values, or fewer than two.
        OptionError: If ``folds`` is out of range, or a posterior has no engine to run again.
        ShapeError: If folds of the values have another shape than the site.
    """
    reruns = {name: _engine_of(own, site) for name, own in entries.items()}
    found, plans = dict(entries), dict[str, _Plan]()
    for name, own in entries.items():
        if site in own.posterior.program.without_log_likelihood:
            found[name] = replace(own, kfold_why=own.why)
        else:
            plans[name] = _plan(own, site, folds, num_samples, seed)
    require_same_number({name: len(plan.values) for name, plan in plans.items()}, site)
    tasks: list[Callable[[], _Refit | str]] = []
    for name, plan in plans.items():  # a process gets what it needs, and no draws
        own, rerun = entries[name], reruns[name]
        run = partial(_refit, rerun, own.posterior.program, own.nature.kind in ONE_DRAWN, site)
        tasks += [partial(run, plan, fold, num_samples, seed) for fold in range(plan.num_folds)]
    refits = iter(
        tqdm(in_order(tasks), total=len(tasks), disable=None, desc="k-fold", unit="refit")
    )
    for name, plan in plans.items():
        own_refits = [next(refits) for _ in range(plan.num_folds)]
        found[name] = _with_refits(entries[name], plan, own_refits)
    return found


# Folds


class _Plan(NamedTuple):
    """Which values of a site each refit leaves out.

    Attributes:
        shape: Of the log densities of the site.
        values: Places of its N values in them, without those that the model masks.
        folds: Fold of each of them, from 0.
        num_folds: Number of folds.
    """

    shape: torch.Size
    values: Int[NDArray[np.int64], " N"]
    folds: Int[NDArray[np.int64], " N"]
    num_folds: int

    def left_out(self, fold: int) -> torch.Tensor:
        """Whether each log density is of a value in a fold, in the shape of the site."""
        mask = torch.zeros(self.shape.numel(), dtype=torch.bool)
        mask[torch.as_tensor(self.values[self.folds == fold])] = True
        return mask.reshape(self.shape)


def _plan(
    own: CallEvaluation, site: str, folds: Folds, num_samples: int | None, seed: int
) -> _Plan:
    shape = own.posterior.program.log_likelihoods(own.posterior.program.initial)[site].shape
    densities = site_densities(own.posterior.program, own.posterior, site, num_samples, seed)
    values = np.flatnonzero(~is_masked(densities))
    if len(values) < 2:
        raise DataError(
            f"{own.name} observes {len(values)} value of {site!r}, and none is left if it is left "
            "out: entries that to_event joins are one value; put values in a pyro.plate"
        )
    labels = _labels(folds, shape, len(values), seed)
    if len(labels) != len(values):  # of all places, masked ones too
        labels = labels[values]
    names, places = np.unique(labels, return_inverse=True)
    if len(names) < 2:
        raise OptionError(f"folds puts all values of {site!r} into one fold: take at least two")
    return _Plan(shape, values, places.astype(np.int64), len(names))


def _labels(folds: Folds, shape: torch.Size, num_values: int, seed: int) -> NDArray[Any]:
    """The fold of each of the values, or of each place of a site of a shape."""
    number = plain(folds)
    if isinstance(number, int):
        check_positive_int("folds", number, minimum=2)
        if number > num_values:
            raise OptionError(
                f"folds={number} is more than the {num_values} values that can be left out"
            )
        order = np.random.default_rng(derived_seed(seed, ORDER)).permutation(num_values)
        return np.argsort(order, kind="stable") % number
    labels = np.asarray(folds)
    try:
        return np.broadcast_to(labels, tuple(shape)).reshape(-1)
    except ValueError as error:
        raise ShapeError(
            f"folds has shape {list(labels.shape)}, and the values that can be left out have "
            f"{list(shape)}: give the fold of each, or the number of folds"
        ) from error


# Refits


def _engine_of(own: CallEvaluation, site: str) -> Rerun:
    if own.posterior.rerun is None:
        raise OptionError(
            f"{own.name}: folds runs its engine again without a part of {site!r}, and this "
            "posterior has no engine to run: it is of stock Pyro, was read from a file or copied, "
            "or its SVI was given a guide instance. Pass what engine.run(model, data.Call(...)) "
            "returns, of SVI with a guide class or a function that makes a guide"
        )
    return own.posterior.rerun


def _refit(
    rerun: Rerun,
    program: Joint,
    is_independent: bool,
    site: str,
    plan: _Plan,
    fold: int,
    num_samples: int | None,
    seed: int,
) -> _Refit | str:
    """Scores of the values of a fold by a run without them; why there are none where it fails."""
    model = LeaveOut(site, plan.left_out(fold))(program.model)
    try:
        refit = rerun(model, program.call, seed=derived_seed(seed, REFITS + fold), progress=False)
    except BNNError as error:
        return f"the run without fold {fold} failed: {error}"
    densities = site_densities(program, refit, site, num_samples, seed)
    densities = densities[..., plan.values[plan.folds == fold]]
    num_chains, num_draws, _ = densities.shape
    faults = None
    if not is_independent:
        checks = chain_checks(refit, site_draws(refit, num_samples, seed))
        checks = replace(checks, num_chains=MIN_CHAINS)
        faults = checks if any(defects(checks)) else None
    return _Refit(
        log_score=log_score(densities.reshape(num_chains * num_draws, -1)),
        draws_error=log_score_error(
            densities, independent=is_independent or num_draws < FEWEST_FOR_ESS
        ),
        faults=faults,
    )


def _with_refits(
    own: CallEvaluation, plan: _Plan, refits: Sequence[_Refit | str]
) -> CallEvaluation:
    if failed := [refit for refit in refits if isinstance(refit, str)]:
        return replace(own, kfold_why=failed[0])
    pointwise = np.zeros(len(plan.values))
    variance, faults = 0.0, {}
    for fold, refit in enumerate(refits):
        assert not isinstance(refit, str)
        pointwise[plan.folds == fold] = refit.log_score
        variance += (refit.draws_error * len(refit.log_score)) ** 2
        if refit.faults is not None:
            faults[fold] = refit.faults
    result = KFoldResult(
        elpd=float(pointwise.sum()),
        se=float(np.sqrt(len(pointwise) * pointwise.var(ddof=1) + variance)),
        draws_error=float(np.sqrt(variance)),
        pointwise=pointwise,
        folds=plan.folds,
        num_folds=plan.num_folds,
        faults=faults,
    )
    return replace(own, kfold=result)
