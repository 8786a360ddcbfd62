"""A posterior as NumPy arrays in the groups of ArviZ."""

from __future__ import annotations

import hashlib
import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pyro_bnn.arviz_io.tree import datatree
from pyro_bnn.data import Dataset, Standardiser
from pyro_bnn.memory import GIB
from pyro_bnn.models.description import describe
from pyro_bnn.posterior.rows import draws_with_densities, rows_with_draws
from pyro_bnn.predictive.draws import Draws
from pyro_bnn.predictive.map_draws import Chunks
from pyro_bnn.predictive.predict import predict
from pyro_bnn.program.fingerprint import fingerprint
from pyro_bnn.program.random_state import derived_seed

if TYPE_CHECKING:
    from xarray import DataTree

    from pyro_bnn.posterior.protocol import PosteriorLike, ProgramPosterior
    from pyro_bnn.predictive.prediction import Prediction
    from pyro_bnn.program.program import Program
    from pyro_bnn.program.terms import Params

FORMAT_VERSION = 2
"""Of the groups and attributes below; a reader refuses files of a newer one."""
NAMED_POINTS = 8
PRIOR_DRAWS = 200
TRACE_NAMES = {"ELBO": "elbo", "log joint": "log_joint"}  # by objective
KEPT = (
    "method", "engine", "options", "seed", "wall_time", "threads", "processes", "gpu",
    "num_parameters", "num_stored_draws", "num_atoms", "elbo_kind", "objective",
)  # fmt: skip
"""What a tree keeps of how a posterior came about."""
Groups = dict[str, dict[str, NDArray[Any]]]
TensorOrArray = TypeVar("TensorOrArray", Tensor, NDArray[Any])


def arviz_tree(
    posterior: ProgramPosterior,
    train: Dataset,
    test: Dataset | None,
    predicted: Callable[[Tensor], Prediction],
    log_likelihood: Callable[[Dataset], Tensor],
    *,
    num_samples: int,
    include_weights: bool,
    seed: int,
    memory: int,
) -> DataTree:
    """The tree that :meth:`Posterior.to_arviz` describes."""
    draws = posterior.in_blocks(num_samples, seed)
    whole, train = train, rows_with_draws(train, num_samples)
    test = None if test is None else rows_with_draws(test, num_samples)
    groups, task = row_groups(train, test, posterior.num_chains, predicted, log_likelihood)
    summaries = site_summaries(posterior, draws, include_weights=include_weights)
    groups["posterior"] = {**summaries, **groups["posterior"]}
    if stats := _sample_stats(posterior, whole, num_samples, seed):
        groups["sample_stats"] = stats
    if len(posterior.losses):
        name = TRACE_NAMES.get(posterior.objective, "objective")
        groups["optimization"] = {name: -np.asarray(posterior.losses)}
    if not posterior.program.latents.improper:
        groups["log_prior"] = _log_priors(posterior, draws, train)
        # draws of the prior would ignore the held sites
        if not posterior.program.held_given_latents:
            points = (train if test is None else test).x[:NAMED_POINTS]
            groups |= _prior_groups(posterior, train, points, seed, memory)
    facts = {
        "likelihood": posterior.program.likelihood_family.__name__,
        "num_data": posterior.program.num_data,
        "task": task,
        "model": _model(posterior.program, whole),
        "params": {name: digest(value) for name, value in posterior.params.items()},
    }
    return tree_of(posterior, groups, train, test, seed, facts)


def tree_of(
    posterior: PosteriorLike,
    groups: Groups,
    train: Dataset,
    test: Dataset | None,
    seed: int,
    facts: dict[str, Any],
) -> DataTree:
    """Groups as a tree, with the names and units of the rows and how the posterior came about.

    Args:
        posterior: Whose draws these are.
        groups: Those of `row_groups`, and others.
        train: The training rows.
        test: The held-out rows, or None.
        seed: Seed of the draws.
        facts: Attributes of this kind of posterior.
    """
    rows, points = ("train", train) if test is None else ("test", test)
    names = [f"{rows} {i}" for i in range(min(NAMED_POINTS, len(points)))]
    kept = {name: getattr(posterior, name) for name in KEPT}
    doubling = getattr(posterior, "doubling", None)
    kept["doubling"] = None if doubling is None else asdict(doubling)
    if (bound_gap := getattr(posterior, "bound_gap", None)) is not None:
        kept["bound_gap"] = asdict(bound_gap)
    if (nature := getattr(posterior, "nature", None)) is not None:  # not everybody's posterior has
        kept["nature"] = nature.to_json()
    of_draws = {"format_version": FORMAT_VERSION, "draws_seed": seed, "rows": _rows(points)}
    tree = datatree(
        groups,
        dims=_dims(train),
        coords={"point": names, **_labels(train)},
        attrs=kept | of_draws | facts,
    )
    return _with_units(tree, train)


def by_chain(value: Tensor, chains: int) -> NDArray[Any]:
    """Draws ``[C, S, ...]`` of ``[C S, ...]``; of a file a view, which maps it."""
    whole: Tensor = value.unflatten(0, (chains, -1))
    return whole.cpu().numpy()


def row_groups(
    train: Dataset,
    test: Dataset | None,
    chains: int,
    predicted: Callable[[Tensor], Prediction],
    log_likelihood: Callable[[Dataset], Tensor],
) -> tuple[Groups, str]:
    """The groups over rows: f, y and densities at each, with the rows themselves; and the task.

    The group of the posterior has f at the first held-out rows, or the first training rows.

    Args:
        train: The training rows.
        test: The held-out rows, or None.
        chains: Number of chains.
        predicted: Predictions at inputs.
        log_likelihood: Log densities of rows ``[S, N]``.
    """

    def of_y(value: Tensor) -> NDArray[Any]:
        return of_targets(by_chain(value, chains))

    def at_points(prediction: Prediction) -> dict[str, NDArray[Any]]:
        f = prediction.function_draws[:, :NAMED_POINTS].clone()  # a view would keep all of f
        return {"f": by_chain(f, chains)}

    prediction = predicted(train.x)
    task = "classification" if prediction.means is None else "regression"
    groups: Groups = {
        "posterior_predictive": {"y": of_y(prediction.draws)},
        "log_likelihood": {"y": by_chain(log_likelihood(train), chains)},
        "observed_data": {"y": of_targets(train.y.cpu().numpy())},
        "constant_data": {"x": train.x.cpu().numpy()},
    }
    if test is None:
        groups["posterior"] = at_points(prediction)
        return groups, task
    prediction = predicted(test.x)
    groups["posterior"] = at_points(prediction)
    groups["predictions"] = {
        "y": of_y(prediction.draws),
        "f": by_chain(prediction.function_draws, chains),
    }
    if test.y.ndim == 2 and test.y.shape[1] > 1 and prediction.has_target_densities:
        densities = prediction.target_log_likelihood(test.y)
        groups["predictions"]["y_log_density"] = by_chain(densities, chains)
    given_draw = {"y_mean": prediction.means, "y_variance": prediction.variances}
    groups["predictions"] |= {
        k: of_y(value) for k, value in given_draw.items() if value is not None
    }
    if prediction.class_probs is not None:
        groups["predictions"]["probs"] = by_chain(prediction.class_probs, chains)
    groups["predictions_constant_data"] = {"x": test.x.cpu().numpy()}
    groups["test_data"] = {"y": of_targets(test.y.cpu().numpy())}
    groups["log_likelihood_predictions"] = {"y": by_chain(log_likelihood(test), chains)}
    return groups, task


def _dims(train: Dataset) -> dict[str, Any]:
    """The dimensions of all groups over rows like these, as ``datatree`` takes them.

    Those of y have an axis of outputs where there are several targets only: most of ArviZ's
    functions of y know of none.
    """
    outputs = ["output"] if of_targets(train.y).ndim > 1 else []
    inputs = input_dims(train.x)
    return {
        "f": ["point", "f_output"],
        "predictions": {
            "f": ["test_row", "f_output"],
            **{name: ["test_row", *outputs] for name in ("y", "y_mean", "y_variance")},
            "y_log_density": ["test_row", *outputs],
            "probs": ["test_row", "class"],
        },
        "y": ["row", *outputs],
        "x": ["row", *inputs],
        "predictions_constant_data": {"x": ["test_row", *inputs]},
        "test_data": {"y": ["test_row", *outputs]},
        "log_likelihood": {"y": ["row"]},
        "log_likelihood_predictions": {"y": ["test_row"]},
    }


def input_dims(x: Tensor) -> list[str]:
    """Names of the dimensions of one row of inputs ``[N, I]``, or of images."""
    return ["input"] if x.ndim == 2 else [f"x_dim_{i}" for i in range(x.ndim - 1)]


def of_targets(values: TensorOrArray) -> TensorOrArray:
    """Values ``[..., N]`` of one target, or ``[..., N, O]`` of several, out of ``[..., N, O]``."""
    return values[..., 0] if values.ndim > 1 and values.shape[-1] == 1 else values


def _labels(data: Dataset) -> dict[str, Sequence[str]]:
    """Names of inputs, of several targets and of classes, where they are known."""
    names = {
        "input": data.input_names,
        "output": data.target_names,
        "class": data.class_names,
    }
    return {dim: labels for dim, labels in names.items() if labels is not None}


def _with_units(tree: DataTree, train: Dataset) -> DataTree:
    """The tree with the units of x and y in their attributes.

    Where they were standardised, ``units`` says so, and of one target ``loc`` and ``scale`` lead
    back to the user's: ``loc + scale * y``. Those of inputs and of several targets, which may be
    many, are in the options of the tree, as ``rows``. ``long_name`` is the target's name.
    """
    of_y: dict[str, Any] = {}
    if train.target is not None:
        of_y["units"] = "standardised"
        if train.target.loc.numel() == 1:
            of_y |= {name: float(getattr(train.target, name)) for name in ("loc", "scale")}
    if train.target_name is not None:
        of_y["long_name"] = train.target_name
    of_x = {} if train.inputs is None else {"units": "standardised"}
    for name, own in (("x", of_x), ("y", of_y), ("y_mean", of_y)):
        for group in tree.children.values():
            if name in group.data_vars and "log_likelihood" not in str(group.name):
                group[name].attrs.update(own)
    return tree


def site_summaries(
    posterior: ProgramPosterior, draws: Draws, *, include_weights: bool
) -> dict[str, NDArray[Any]]:
    """Scalars and constrained sites as they are, the Euclidean norm of every other site."""
    values: defaultdict[str, list[Tensor]] = defaultdict(list)
    for z in draws.blocks():  # [s, Q]
        for site in posterior.program.sites:
            value = site.value(z)  # [s, *shape]
            is_norm = bool(site.shape) and site.is_real
            if is_norm:
                values[f"norm {site.name}"].append(value.flatten(1).norm(dim=-1).cpu())
            if include_weights or not is_norm:
                # a copy: a view would keep all of z
                values[site.name].append(value.cpu().clone())
    return {name: by_chain(torch.cat(parts), draws.num_chains) for name, parts in values.items()}


def _sample_stats(
    posterior: ProgramPosterior, train: Dataset, num_samples: int, seed: int
) -> dict[str, NDArray[Any]]:
    if posterior.has_log_prob:
        chains, count = posterior.num_chains, num_samples
        if chains == 1:  # those of several are not the first ones
            count = draws_with_densities(len(train), num_samples)
        log_p, log_q = posterior.densities(train, count, seed)
        missing = log_p.new_full((num_samples - count,), math.nan)
        found = {"log_p": torch.cat([log_p, missing]), "log_q": torch.cat([log_q, missing])}
        return {name: by_chain(value, chains) for name, value in found.items()}
    if not posterior.sample_stats:
        return {}
    chosen = posterior.chosen(num_samples, seed).numpy()  # type: ignore[attr-defined]
    return {name: value[:, chosen] for name, value in posterior.sample_stats.items()}


def _log_priors(
    posterior: ProgramPosterior, draws: Draws, train: Dataset
) -> dict[str, NDArray[Any]]:
    """Log density ``[C, S]`` of each site under its prior, by name."""
    program = posterior.program

    def log_priors(z: Tensor, rows: tuple[Tensor, ...], params: Params) -> tuple[Tensor, ...]:
        return (program.log_priors(z, rows[0], params),)

    row = program.inputs(train.x[:1])  # its shape alone matters
    (values,) = posterior.chunks.over(
        "log priors", log_priors, draws, (row,), posterior.params
    ).together(GIB)
    by_site = by_chain(values, draws.num_chains)  # [C, S, sites]
    return {site.name: by_site[..., i] for i, site in enumerate(program.sites)}


def _prior_groups(
    posterior: ProgramPosterior,
    train: Dataset,
    points: Tensor,
    seed: int,
    memory: int,
) -> Groups:
    program, params = posterior.program, posterior.params
    x = program.inputs(points)
    z = program.prior_draws(PRIOR_DRAWS, train.x[:1].to(x), derived_seed(seed, 2), params)
    whole = z
    if program.member_params:  # each draw with those of a draw of the posterior
        own = posterior.draws(PRIOR_DRAWS, seed)[:, z.shape[-1] :]
        whole = torch.cat([z, own], -1)
    with torch.no_grad():
        f = program.function(whole, x, params)
    y = predict(
        posterior.chunks if posterior.chunks.program is program else Chunks(program),
        params,
        Draws.of(whole),
        train.x.to(x),
        seed=derived_seed(seed, 3),  # apart from the draws of z
        memory=memory,
    ).draws
    of_sites = site_summaries(posterior, Draws.of(z), include_weights=False)
    return {
        "prior": {**of_sites, "f": f.unsqueeze(0).cpu().numpy()},
        "prior_predictive": {"y": of_targets(y.unsqueeze(0).cpu().numpy())},
    }


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
    return {
        "description": describe(program.model),
        "sites": [[site.name, list(site.shape)] for site in program.sites],
        "fingerprint": fingerprint(program, z, params, rows).tolist(),
    }


def _steps(count: int) -> Tensor:
    return torch.arange(1, count + 1, dtype=torch.float64)


def digest(values: Tensor) -> str:
    """SHA-256 of point estimates: whether two posteriors hold the same, without storing them."""
    array = np.ascontiguousarray(values.detach().double().cpu().numpy())
    return hashlib.sha256(f"{array.shape}".encode() + array.tobytes()).hexdigest()
