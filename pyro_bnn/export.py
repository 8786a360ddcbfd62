"""A posterior as NumPy arrays in the groups of ArviZ."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pyro_bnn.data import Dataset, Standardiser
from pyro_bnn.draws import Draws
from pyro_bnn.effects import derived_seed
from pyro_bnn.memory import GIB
from pyro_bnn.models.description import describe

if TYPE_CHECKING:
    from pyro_bnn.posterior import Posterior
    from pyro_bnn.prediction import Prediction
    from pyro_bnn.program import Program

FORMAT_VERSION = 1
"""Of the groups and attributes below; a reader refuses files of a newer one."""
NAMED_POINTS = 8
PRIOR_DRAWS = 200
TRACE_NAMES = {"ELBO": "elbo", "log joint": "log_joint"}  # of the objective of each step
Groups = dict[str, dict[str, NDArray[Any]]]


def arviz_groups(
    posterior: Posterior,
    train: Dataset,
    test: Dataset | None,
    *,
    num_samples: int,
    include_weights: bool,
    seed: int,
    memory: int = GIB,
) -> tuple[Groups, dict[str, Any], dict[str, Any], dict[str, Any]]:
    """Groups, dims, coords and attributes of the tree that :meth:`Posterior.to_arviz` describes."""
    stored = posterior.num_stored_draws
    if stored is not None:
        num_samples = min(num_samples, stored)
    chains = posterior.num_chains
    draws = posterior.in_blocks(num_samples, seed)
    points = train if test is None else test
    num_points = min(NAMED_POINTS, len(points.x))

    def by_chain(value: Tensor) -> NDArray[Any]:
        whole: Tensor = value.unflatten(0, (chains, -1))
        return whole.cpu().numpy()  # of a file a view, which maps it

    def predict(data: Dataset) -> Prediction:
        return posterior.predict(data.x, num_samples, seed, memory=memory, disk=True)

    def log_likelihood(data: Dataset) -> NDArray[Any]:
        return by_chain(posterior.log_likelihood(data, num_samples, seed, memory=memory))

    train_prediction = predict(train)
    groups: Groups = {
        "posterior": site_summaries(posterior, draws, include_weights=include_weights),
        "posterior_predictive": {"y": by_chain(train_prediction.draws)},
        "log_likelihood": {"y": log_likelihood(train)},
        "observed_data": {"y": _columns(train.y)},
        "constant_data": {"x": train.x.cpu().numpy()},
    }
    groups["posterior"]["f"] = by_chain(
        posterior.function_draws(points.x[:num_points], num_samples, seed)
    )
    if test is not None:
        prediction = predict(test)
        groups["predictions"] = {
            "y": by_chain(prediction.draws),
            "f": by_chain(prediction.function_draws),
        }
        if test.y.ndim == 2 and test.y.shape[1] > 1 and prediction.has_target_densities:
            densities = prediction.target_log_likelihood(test.y)
            groups["predictions"]["y_log_density"] = by_chain(densities)
        given_draw = {
            "y_mean": prediction.means,
            "y_variance": prediction.variances,
            "probs": prediction.class_probs,
        }
        groups["predictions"] |= {k: by_chain(v) for k, v in given_draw.items() if v is not None}
        groups["predictions_constant_data"] = {"x": test.x.cpu().numpy()}
        groups["test_data"] = {"y": _columns(test.y)}
        groups["log_likelihood_predictions"] = {"y": log_likelihood(test)}
    if stats := _sample_stats(posterior, train, num_samples, seed):
        groups["sample_stats"] = stats
    if len(posterior.losses):
        name = TRACE_NAMES.get(posterior.objective, "objective")
        groups["optimization"] = {name: -np.asarray(posterior.losses)}
    groups |= _prior_groups(posterior, train, points, num_points, seed)
    inputs = [f"x_dim_{i}" for i in range(train.x.ndim - 1)]
    dims = {
        "f": ["point", "f_output"],
        "predictions": {
            "f": ["test_row", "f_output"],
            "y": ["test_row", "output"],
            "y_mean": ["test_row", "output"],
            "y_variance": ["test_row", "output"],
            "y_log_density": ["test_row", "output"],
            "probs": ["test_row", "class"],
        },
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
        "format_version": FORMAT_VERSION,
        "method": posterior.method,
        "engine": posterior.engine,
        "options": posterior.options,
        "seed": posterior.seed,
        "draws_seed": seed,
        "wall_time": posterior.wall_time,
        "threads": posterior.threads,
        "processes": posterior.processes,
        "num_parameters": posterior.num_parameters,
        "num_stored_draws": stored,
        "num_atoms": posterior.num_atoms,
        "elbo_kind": posterior.elbo_kind,
        "objective": posterior.objective,
        "likelihood": posterior.program.likelihood_family.__name__,
        "num_data": posterior.program.num_data,
        "task": "classification" if train_prediction.means is None else "regression",
        "rows": _rows(points),
        "model": _model(posterior.program, train),
        "params": {name: _digest(value) for name, value in posterior.params.items()},
    }
    return groups, dims, coords, attrs


def site_summaries(
    posterior: Posterior, draws: Draws, *, include_weights: bool
) -> dict[str, NDArray[Any]]:
    """Scalars and constrained sites as they are, the Euclidean norm of every other site."""
    values: defaultdict[str, list[NDArray[Any]]] = defaultdict(list)
    for z in draws.blocks():  # [s, Q]
        for site in posterior.program.sites:
            value = site.value(z)  # [s, *shape]
            is_norm = bool(site.shape) and site.is_real
            if is_norm:
                norm = value.flatten(1).norm(dim=-1)
                values[f"norm {site.name}"].append(norm.cpu().numpy())
            if include_weights or not is_norm:
                # a copy: a view would keep all of z
                values[site.name].append(value.cpu().numpy().copy())
    return {name: _by_chain(np.concatenate(parts), draws) for name, parts in values.items()}


def _by_chain(value: NDArray[Any], draws: Draws) -> NDArray[Any]:
    return value.reshape(draws.num_chains, -1, *value.shape[1:])  # [C, S, ...]


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
    x = program.inputs(points.x[:num_points])
    z = program.prior_draws(PRIOR_DRAWS, train.x[:1].to(x), derived_seed(seed, 2), params)
    with torch.no_grad(), torch.random.fork_rng():
        torch.manual_seed(derived_seed(seed, 3))  # apart from the draws of z
        f, y = program.predictive(_with_members(posterior, z, seed), x, params)
        draws = y.sample()
    if draws.ndim == 2:
        draws = draws.unsqueeze(-1)
    of_sites = site_summaries(posterior, Draws.of(z), include_weights=False)
    return {
        "prior": {**of_sites, "f": f.unsqueeze(0).cpu().numpy()},
        "prior_predictive": {"y_at_points": draws.unsqueeze(0).cpu().numpy()},
    }


def _with_members(posterior: Posterior, z: Tensor, seed: int) -> Tensor:
    """Prior draws ``[S, P + Q]``, each with the parameters of its own that a posterior draw has."""
    draws = posterior.draws(min(len(z), posterior.num_stored_draws or len(z)), seed)
    own = draws[:, z.shape[-1] :]  # [S, Q]
    return torch.cat([z, own], -1) if own.shape[-1] else z


def _rows(data: Dataset) -> dict[str, Any]:
    """What a data set knows beside its arrays: units, names, and whether y is ``[N]``."""

    def units(map_: Standardiser | None) -> dict[str, Any] | None:
        return None if map_ is None else {k: getattr(map_, k).tolist() for k in ("loc", "scale")}

    return {
        "inputs": units(data.inputs),
        "target": units(data.target),
        "input_names": data.input_names,
        "target_name": data.target_name,
        "target_names": data.target_names,
        "class_names": data.class_names,
        "y_ndim": data.y.ndim,
    }


def _model(program: Program, train: Dataset) -> dict[str, Any]:
    """What tells one model from another: words, sites, and its densities at one fixed point.

    The point is one of the weights and of all trainable parameters, so it does not depend on the
    fit: log prior, log likelihood and f of the first two training rows.
    """
    z = _steps(program.num_latents).sin().to(program.initial)
    params = {
        name: _steps(value.numel()).cos().to(value).reshape(value.shape)
        if value.requires_grad
        else value
        for name, value in program.params.items()
    }
    rows = program.batch(train.x[:2], train.y[:2])
    with torch.no_grad():
        values = (
            program.log_prior(z, rows.x, params).reshape(1),
            program.log_likelihood(z, rows, params),
            program.function(z, rows.x, params).flatten(),
        )
    return {
        "description": describe(program.model),
        "sites": [[site.name, list(site.shape)] for site in program.sites],
        "fingerprint": torch.cat(values).double().cpu().tolist(),
    }


def _steps(count: int) -> Tensor:
    return torch.arange(1, count + 1, dtype=torch.float64)


def _digest(values: Tensor) -> str:
    """SHA-256 of point estimates: whether two posteriors hold the same, without storing them."""
    array = np.ascontiguousarray(values.detach().double().cpu().numpy())
    return hashlib.sha256(f"{array.shape}".encode() + array.tobytes()).hexdigest()


def _columns(y: Tensor) -> NDArray[Any]:
    values = y.cpu().numpy()
    return values[:, None] if values.ndim == 1 else values
