"""A posterior as NumPy arrays in the groups of ArviZ."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pyro_bnn.data import Dataset
from pyro_bnn.effects import derived_seed

if TYPE_CHECKING:
    from pyro_bnn.posterior import Posterior

NAMED_POINTS = 8
PRIOR_DRAWS = 200
Groups = dict[str, dict[str, NDArray[Any]]]


def arviz_groups(
    posterior: Posterior,
    train: Dataset,
    test: Dataset | None,
    *,
    num_samples: int,
    include_weights: bool,
    seed: int,
) -> tuple[Groups, dict[str, Any], dict[str, Any], dict[str, Any]]:
    """Groups, dims, coords and attributes of the tree that :meth:`Posterior.to_arviz` describes."""
    stored = posterior.num_stored_draws
    if stored is not None:
        num_samples = min(num_samples, stored)
    chains = posterior.num_chains
    z = posterior.unconstrained(num_samples, seed, group_by_chain=True)  # [C, S, P]
    points = train if test is None else test
    num_points = min(NAMED_POINTS, len(points.x))

    def by_chain(value: Tensor) -> NDArray[Any]:
        return value.reshape((chains, -1, *value.shape[1:])).cpu().numpy()

    train_prediction = posterior.predict(train.x, num_samples, seed)
    groups: Groups = {
        "posterior": _site_summaries(posterior, z, include_weights=include_weights),
        "posterior_predictive": {"y": by_chain(train_prediction.draws)},
        "log_likelihood": {
            "y": by_chain(posterior.log_likelihood(train, num_samples, seed)),
        },
        "observed_data": {"y": _columns(train.y)},
        "constant_data": {"x": train.x.cpu().numpy()},
    }
    groups["posterior"]["f"] = by_chain(
        posterior.function_draws(points.x[:num_points], num_samples, seed)
    )
    if test is not None:
        prediction = posterior.predict(test.x, num_samples, seed)
        groups["predictions"] = {
            "y": by_chain(prediction.draws),
            "f": by_chain(prediction.function_draws),
        }
        groups["predictions_constant_data"] = {"x": test.x.cpu().numpy()}
        groups["test_data"] = {"y": _columns(test.y)}
        groups["log_likelihood_predictions"] = {
            "y": by_chain(posterior.log_likelihood(test, num_samples, seed)),
        }
    if stats := _sample_stats(posterior, train, num_samples, seed):
        groups["sample_stats"] = stats
    if len(posterior.losses):
        groups["optimization"] = {"elbo": -np.asarray(posterior.losses)}
    groups |= _prior_groups(posterior, train, points, num_points, seed)
    inputs = [f"x_dim_{i}" for i in range(train.x.ndim - 1)]
    dims = {
        "f": ["point", "f_output"],
        "predictions": {"f": ["test_row", "f_output"], "y": ["test_row", "output"]},
        "y": ["row", "output"],
        "x": ["row", *inputs],
        "predictions_constant_data": {"x": ["test_row", *inputs]},
        "test_data": {"y": ["test_row", "output"]},
        "log_likelihood": {"y": ["row"]},
        "log_likelihood_predictions": {"y": ["test_row"]},
    }
    rows = "train" if test is None else "test"
    coords = {"point": [f"{rows} {i}" for i in range(num_points)]}
    attrs = {
        "method": posterior.method,
        "engine": posterior.engine,
        "options": posterior.options,
        "seed": posterior.seed,
        "draws_seed": seed,
        "wall_time": posterior.wall_time,
        "num_parameters": posterior.num_parameters,
        "likelihood": posterior.program.likelihood_family.__name__,
        "num_data": posterior.program.num_data,
    }
    return groups, dims, coords, attrs


def _site_summaries(
    posterior: Posterior, z: Tensor, *, include_weights: bool
) -> dict[str, NDArray[Any]]:
    """Scalars and constrained sites as they are, the Euclidean norm of every other site."""
    values: dict[str, NDArray[Any]] = {}
    for site in posterior.program.sites:
        value = site.value(z)  # [C, S, *shape]
        if not site.shape or not site.is_real:
            values[site.name] = value.cpu().numpy()
            continue
        values[f"norm {site.name}"] = value.flatten(2).norm(dim=-1).cpu().numpy()
        if include_weights:
            values[site.name] = value.cpu().numpy()
    return values


def _sample_stats(
    posterior: Posterior, train: Dataset, num_samples: int, seed: int
) -> dict[str, NDArray[Any]]:
    if posterior.has_log_prob:
        log_p, log_q = posterior.densities(train, num_samples, seed)
        shape = (posterior.num_chains, -1)
        return {
            "log_p": log_p.reshape(shape).cpu().numpy(),
            "log_q": log_q.reshape(shape).cpu().numpy(),
        }
    if not posterior.sample_stats:
        return {}
    chosen = posterior.chosen(num_samples, seed).numpy()  # type: ignore[attr-defined]
    return {name: value[:, chosen] for name, value in posterior.sample_stats.items()}


def _prior_groups(
    posterior: Posterior, train: Dataset, points: Dataset, num_points: int, seed: int
) -> Groups:
    program, params = posterior.program, posterior.params
    if program.latents.improper:
        return {}
    x = points.x[:num_points].to(device=program.device, dtype=program.dtype)
    z = program.prior_draws(PRIOR_DRAWS, train.x[:1].to(x), derived_seed(seed, 2), params)
    with torch.no_grad(), torch.random.fork_rng():
        torch.manual_seed(derived_seed(seed, 3))  # apart from the draws of z
        f, y = program.predictive(z, x, params)
        draws = y.sample()
    if draws.ndim == 2:
        draws = draws.unsqueeze(-1)
    site_summaries = _site_summaries(posterior, z.unsqueeze(0), include_weights=False)
    return {
        "prior": {**site_summaries, "f": f.unsqueeze(0).cpu().numpy()},
        "prior_predictive": {"y_at_points": draws.unsqueeze(0).cpu().numpy()},
    }


def _columns(y: Tensor) -> NDArray[Any]:
    values = y.cpu().numpy()
    return values[:, None] if values.ndim == 1 else values
