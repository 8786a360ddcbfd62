"""What ``liberty_or_depth.py`` measures of the chains of one network."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from alignment import prior_sds
from scipy import special
from torch import Tensor

import pyro_bnn as bnn
from pyro_bnn.diagnostics.mean_field import distance as mean_field_distance
from pyro_bnn.diagnostics import (mean_field_kl, w1)
from pyro_bnn.diagnostics.mean_field.distance import MIN_RATIO
from pyro_bnn.diagnostics.mean_field.error import thinned
from pyro_bnn.errors import DataError
from pyro_bnn.posterior import DrawsPosterior

FLOOR_CHAINS = 2  # of the prior


def measured(
    posterior: DrawsPosterior,
    draws: np.ndarray,
    sizes: list[int],
    test: bnn.Dataset,
    num_draws: int,
) -> dict[str, Any]:
    """All measures of draws ``[C, S, P]``."""
    every = max(1, draws.shape[1] // 500)
    weights = [bnn.diagnostics.function_convergence(chain[None, ..., None]) for chain in draws]
    return {
        "kl": kl_of(draws),
        **distances_of(draws, num_draws),
        "function": function_error(posterior, draws[:, ::every], test),
        "learned": learned(draws, sizes),
        "worst_rhat_of_weights_within": [each.worst_rhat for each in weights],
    }


def floors(
    align: Callable[[np.ndarray, list[int]], np.ndarray],
    aligned: np.ndarray,
    sizes: list[int],
    num_draws: int,
) -> dict[str, Any]:
    """KL and distance of aligned draws of Gaussians without correlations: alignment makes them.

    ``prior`` has units that are all alike; ``diagonal`` is, for each chain, the Gaussian with the
    moments of its aligned draws: what would be measured if this were the mode.
    """
    rng = np.random.default_rng(1)
    shape = aligned.shape
    prior = prior_sds(sizes) * rng.standard_normal((FLOOR_CHAINS, *shape[1:]))
    spread = aligned.std(1, keepdims=True) * rng.standard_normal(shape)
    found = {}
    for name, clouds in (("prior", prior), ("diagonal", aligned.mean(1, keepdims=True) + spread)):
        draws = np.stack([align(cloud, sizes) for cloud in clouds])
        found[name] = {"kl": kl_of(draws), **distances_of(draws, num_draws)}
    return found


def kl_of(draws: np.ndarray) -> dict[str, Any]:
    """KL(full || diagonal) of each chain ``[C]``, in nats; why not, where it is refused."""
    try:
        kl = mean_field_kl(draws)
    except DataError as error:
        return {"refused": str(error)}
    names = ("value", "plug_in", "bias", "standard_error", "halves", "effective_draws", "every")
    return {name: getattr(kl, name).tolist() for name in names} | {"doubtful": kl.doubtful}


def distances_of(draws: np.ndarray, num_draws: int) -> dict[str, Any]:
    """Wasserstein distances of each chain, from as many draws of it at every depth and from half.

    With them the squared distance between the two Gaussians, of all draws that are left; None where
    they are fewer than 8 a weight.
    """
    chains = [thinned(chain)[0] for chain in draws]
    gaussians = [
        mean_field_distance(chain[None]) if len(kept) >= MIN_RATIO * draws.shape[2] else None
        for chain, kept in zip(draws, chains, strict=True)
    ]
    of_all = {
        name: [None if each is None else float(getattr(each, name)[0]) for each in gaussians]
        for name in ("gaussian", "gaussian_bias", "gaussian_error")
    }
    found = {"distance": num_draws, "distance_of_half": num_draws // 2}
    return {name: distance_of(chains, num, of_all) for name, num in found.items()}


def distance_of(chains: list[np.ndarray], num_draws: int, of_all: dict[str, Any]) -> dict[str, Any]:
    """Wasserstein distances of each chain ``[C]``, from so many of the draws that are left."""
    shortest = min(len(chain) for chain in chains)
    if shortest < num_draws:
        return {"refused": f"{shortest} draws are left of a chain, {num_draws} are needed"}
    rows = [np.linspace(0, len(chain) - 1, num_draws).round() for chain in chains]
    kept = np.stack([chain[row.astype(int)] for chain, row in zip(chains, rows, strict=True)])
    found = mean_field_distance(kept)
    if found.num_points != num_draws // 8:
        return {"refused": f"clouds of {found.num_points} points are left"}  # thinned once more
    names = ("value", "to_diagonal", "to_full", "floor", "null", "spread")
    measures = {name: getattr(found, name).tolist() for name in names}
    return {
        "num_points": found.num_points,
        **measures,
        **of_all,
        "error_within": found.standard_error.tolist(),  # jackknife over blocks of the chain
        "largest_variance": kept.var(1).max(-1).tolist(),
    }


def function_error(posterior: DrawsPosterior, draws: np.ndarray, test: bnn.Dataset) -> Any:
    """What each Gaussian does to the logits and the held-out score of one chain, ``[C]`` each.

    The distance is W1 between marginal draws of a logit in sds of the chain's, averaged over
    points; the floor is that between its first and second half.
    """
    rows = []
    for chain, z in enumerate(draws):
        rng = np.random.default_rng(chain)
        centred = z - z.mean(0)
        noise = rng.standard_normal((len(z), len(z)))
        clouds = {
            "chain": z,
            "diagonal": z.mean(0) + z.std(0) * rng.standard_normal(z.shape),
            "full": z.mean(0) + noise @ centred / math.sqrt(len(z)),  # also where P > S
        }
        f = {name: logits(posterior, cloud, test.x) for name, cloud in clouds.items()}
        sd, half = f["chain"].std(0), len(z) // 2
        row = {"floor": w1(f["chain"][:half], f["chain"][half:]) / sd}
        row |= {name: w1(f[name], f["chain"]) / sd for name in ("diagonal", "full")}
        scores = {f"score_{name}": log_score(each, test.y) for name, each in f.items()}
        rows.append({name: float(each.mean()) for name, each in row.items()} | scores)
    return {name: [row[name] for row in rows] for name in rows[0]}


def logits(posterior: DrawsPosterior, z: np.ndarray, x: Tensor) -> np.ndarray:
    """Draws of f ``[S, N]`` at weights z ``[S, P]``."""
    with torch.no_grad():
        f = posterior.program.function(torch.as_tensor(z).to(x.dtype), x)
    return np.asarray(f[..., 0].double())


def log_score(f: np.ndarray, y: Tensor) -> float:
    """Mean over points of the log of the mean probability of y, in nats."""
    sign = 2 * y.double().numpy() - 1
    return float((special.logsumexp(-np.logaddexp(0, -sign * f), axis=0) - np.log(len(f))).mean())


def learned(draws: np.ndarray, sizes: list[int]) -> list[float]:
    """KL of the diagonal Gaussian of each chain from the prior ``[C]``, in nats.

    A mode that the data moved little is nearly the prior, whose weights are independent.
    """
    scaled = draws / prior_sds(sizes)  # [C, S, P]
    variance = scaled.var(1)
    nats = 0.5 * (variance + scaled.mean(1) ** 2 - 1 - np.log(variance)).sum(-1)
    return [float(each) for each in nats]


def convergence(posterior: DrawsPosterior, draws: np.ndarray, test: bnn.Dataset) -> dict[str, Any]:
    """What the sampler says of itself, of the logits at 100 points and of the weights.

    An R-hat of single weights over chains near 1 tells that chains are not of one mode each: all of
    them went through the copies that a permutation of hidden units makes.
    """
    f = np.stack([logits(posterior, chain, test.x[:100])[..., None] for chain in draws])
    over = bnn.diagnostics.function_convergence(f)
    within = [bnn.diagnostics.function_convergence(chain[None]) for chain in f]
    weights = bnn.diagnostics.function_convergence(draws[..., None])
    stats = posterior.sample_stats
    longest = stats["tree_depth"].max()
    return {
        "rhat_over_chains": over.worst_rhat,
        "ess_over_chains": over.smallest_ess,
        "rhat_within": [each.worst_rhat for each in within],
        "smallest_ess_within": [each.smallest_ess for each in within],
        "median_rhat_of_weights": weights.median_rhat,
        "divergent_share": float(stats["diverging"].mean()),
        "longest_trees_share": float((stats["tree_depth"] == longest).mean()),
        "tree_depth_max": int(longest),
        "steps": float(stats["n_steps"].mean()),
    }
