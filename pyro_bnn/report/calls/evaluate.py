"""All numbers about one posterior of any Pyro model: its LOO score, its chains, its draws."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from numpy.typing import NDArray
from torch import Tensor

from pyro_bnn.arviz_io.loo import LooResult
from pyro_bnn.diagnostics.convergence import (
    MIN_DRAWS_A_CHAIN,
    ChainChecks,
    ebfmi,
    function_convergence,
)
from pyro_bnn.diagnostics.khat import MIN_DRAWS, khat
from pyro_bnn.errors import BNNError, DataError
from pyro_bnn.posterior.call_posterior import CallPosterior
from pyro_bnn.posterior.nature import Nature
from pyro_bnn.program.joint import Joint
from pyro_bnn.program.random_state import isolated
from pyro_bnn.report.evaluation.natures import is_exact_sampler, nature_of

NAN = float("nan")
ONE_DRAWN = ("approximation", "point")  # whose draws are no chain


@dataclass(frozen=True, kw_only=True, eq=False)
class KFoldResult:
    """A k-fold estimate of the expected log predictive density of the N values of a site.

    Attributes:
        elpd: Sum over the values of the log predictive density of each given the other folds, nats.
        se: Standard error of ``elpd``: over values, ``sqrt(N var(pointwise))``, and over draws.
        draws_error: The part of it of other draws of the refits.
        pointwise: The terms of ``elpd`` ``[N]``.
        folds: Fold of each value ``[N]``, from 0.
        num_folds: Number K of the folds.
        faults: Checks of the chains of each refit that has defects, by its fold.
    """

    elpd: float
    se: float
    draws_error: float
    pointwise: Float[NDArray[np.float64], " N"]
    folds: Int[NDArray[np.int64], " N"]
    num_folds: int
    faults: Mapping[int, ChainChecks]


@dataclass(frozen=True, kw_only=True, eq=False)
class CallEvaluation:
    """What one posterior of any model comes to.

    Attributes:
        name: Its name in the comparison.
        posterior: The posterior.
        nature: What it is.
        draws: Draws by chain ``[C, S, M]`` of the M numbers of each latent or deterministic site.
        checks: Checks of its chains, by latent site; None of an approximation.
        khat: k-hat of an approximation; NaN of chains, and without log q.
        loo: PSIS leave-one-out score of the exact posterior of its model; None where there is none.
        why: Why there is none.
        kfold: Score of the values that refits have not seen, where it was asked for.
        kfold_why: Why there is none.
    """

    name: str
    posterior: CallPosterior
    nature: Nature
    draws: dict[str, Float[np.ndarray, "C S M"]]
    checks: ChainChecks | None
    khat: float
    loo: LooResult | None
    why: str = ""
    kfold: KFoldResult | None = None
    kfold_why: str = ""

    @property
    def score(self) -> LooResult | KFoldResult | None:
        """The score that it is ranked by: of k folds where they were asked for, else LOO."""
        return self.kfold if self.kfold is not None or self.kfold_why else self.loo

    @property
    def num_draws(self) -> int:
        """Draws over all chains."""
        one = next(iter(self.draws.values()))
        return int(one.shape[0] * one.shape[1])


def evaluate_call(
    name: str, posterior: CallPosterior, site: str | None, num_samples: int | None, seed: int
) -> CallEvaluation:
    """All numbers of one posterior.

    Args:
        name: Its name in the comparison.
        posterior: The posterior.
        site: The observed site whose values are left out, or None for no LOO.
        num_samples: Draws, by default all that are stored.
        seed: Of the draws.
    """
    nature = nature_of(posterior)
    draws = site_draws(posterior, num_samples, seed)
    shape = NAN
    if posterior.has_log_prob and nature.kind in ONE_DRAWN:
        shape = _khat(posterior, num_samples, seed)
    loo, why = None, "no observed site was chosen"
    if site is not None:
        loo, why = _loo(posterior, site, nature, num_samples, seed)
    return CallEvaluation(
        name=name,
        posterior=posterior,
        nature=nature,
        draws=draws,
        checks=None if nature.kind in ONE_DRAWN else chain_checks(posterior, draws),
        khat=shape,
        loo=loo,
        why=why,
    )


def site_draws(
    posterior: CallPosterior, num_samples: int | None, seed: int
) -> dict[str, Float[np.ndarray, "C S M"]]:
    """Draws by chain of the M numbers of each latent or deterministic site, by its name."""
    values = posterior.sample(num_samples, seed, group_by_chain=True)
    return {
        key: _array(value).reshape(*value.shape[:2], -1)
        for key, value in values.items()
        if value.is_floating_point()
    }


@isolated()
def site_densities(
    program: Joint, posterior: CallPosterior, site: str, num_samples: int | None, seed: int
) -> Float[np.ndarray, "C S N"]:
    """Log densities of the N values that a program observes at a site, at draws of a posterior.

    The posterior is of this program, or of one with the same latent sites.
    """
    blocks = posterior.in_blocks(posterior.count(num_samples), seed)
    with torch.no_grad():
        rows = [
            program.log_likelihoods(z, params=posterior.params)[site].reshape(len(z), -1)
            for z in blocks.blocks()
        ]
    return _array(torch.cat(rows).unflatten(0, (blocks.num_chains, -1)))


def is_masked(densities: Float[np.ndarray, "C S N"]) -> Bool[np.ndarray, " N"]:
    """Whether ``poutine.mask`` hides each value, whose log density is then 0 at every draw."""
    masked: NDArray[np.bool_] = (densities == 0).all((0, 1))
    return masked


def require_same_number(sizes: Mapping[str, int], site: str | None) -> None:
    """Check that models leave out as many values of a site, by the name of each posterior.

    Raises:
        DataError: If they do not.
    """
    if len({*sizes.values()}) > 1:
        counts = ", ".join(f"{name} {size}" for name, size in sizes.items())
        raise DataError(f"the models leave out other numbers of values of {site!r}: {counts}")


def chain_checks(posterior: CallPosterior, draws: Mapping[str, np.ndarray]) -> ChainChecks:
    """R-hat and ESS of each latent site, and what the sampler recorded."""
    stats, quantities = posterior.sample_stats, {}
    for name in (site.name for site in posterior.program.sites):
        if draws[name].shape[1] >= MIN_DRAWS_A_CHAIN:
            quantities[f"site {name}"] = function_convergence(draws[name][..., None])
    depth, energy = stats.get("tree_depth"), stats.get("energy")
    limit = posterior.options.get("max_tree_depth")
    return ChainChecks(
        num_chains=posterior.num_chains,
        quantities=quantities,
        divergent=float(np.mean(stats["diverging"])) if "diverging" in stats else NAN,
        saturated=NAN if depth is None or limit is None else float(np.mean(depth >= limit)),
        ebfmi=NAN if energy is None or energy.shape[1] < 2 else float(np.min(ebfmi(energy))),
    )


def _khat(posterior: CallPosterior, num_samples: int | None, seed: int) -> float:
    log_p = _array(posterior.log_joint(num_samples, seed))
    log_q = _array(posterior.log_q(num_samples, seed))
    if len(log_p) < MIN_DRAWS or not np.isfinite(log_p - log_q).all():
        return NAN
    return khat(log_p, log_q)


def _loo(
    posterior: CallPosterior, site: str, nature: Nature, num_samples: int | None, seed: int
) -> tuple[LooResult | None, str]:
    """The LOO score of the exact posterior, or why there is none.

    Draws of an approximation are reweighted to it, as :func:`pyro_bnn.arviz_io.loo_approximate`.
    """
    from pyro_bnn import arviz_io

    if site in posterior.program.without_log_likelihood:
        return None, f"discrete sites tie {site!r} to other values, so that it has no density alone"
    held = ", ".join(sorted(posterior.params))
    groups: dict[str, dict[str, Any]] = {}
    is_exact = is_exact_sampler(posterior)
    if not is_exact:
        if held:
            return None, f"{held} were fitted to all data, so that none is left out of them"
        if nature.kind == "point":
            return None, "a point has no importance weights"
        if not posterior.has_log_prob:
            return None, "it has no log density, so that its draws cannot be reweighted"
        groups["sample_stats"] = {
            name: _array(density(num_samples, seed)).reshape(posterior.num_chains, -1)
            for name, density in (("log_p", posterior.log_joint), ("log_q", posterior.log_q))
        }
    densities = site_densities(posterior.program, posterior, site, num_samples, seed)
    groups["log_likelihood"] = {"y": densities[..., ~is_masked(densities)]}
    score = arviz_io.loo if is_exact else arviz_io.loo_approximate
    try:
        return score(arviz_io.datatree(groups)), ""
    except BNNError as error:
        return None, str(error)


def _array(value: Tensor) -> np.ndarray:
    return np.asarray(value.detach().cpu(), dtype=np.float64)
