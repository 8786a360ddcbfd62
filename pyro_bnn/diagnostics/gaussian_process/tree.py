"""A Gaussian process posterior as an ArviZ tree, from which a comparison can be made again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from pyro_bnn.arviz_io.tree import datatree
from pyro_bnn.data import Dataset
from pyro_bnn.posterior.arviz_groups import (
    FORMAT_VERSION,
    NAMED_POINTS,
    _labels,
    _rows,
    dims_of,
    of_targets,
    with_units,
)

if TYPE_CHECKING:
    from xarray import DataTree

    from pyro_bnn.diagnostics.gaussian_process.regression import GaussianProcess


def tree(
    posterior: GaussianProcess, train: Dataset, test: Dataset | None, num_samples: int, seed: int
) -> DataTree:
    """The groups of ``Posterior.to_arviz`` that a process without weights has."""

    def chain(draws: Tensor) -> NDArray[Any]:
        return draws.unsqueeze(0).numpy()  # [1, S, ...]

    def log_likelihood(data: Dataset) -> NDArray[Any]:
        return chain(posterior.log_likelihood(data, num_samples, seed))

    points = train if test is None else test
    at_points = posterior.predict(points.x, num_samples, seed)
    groups = {
        "posterior": {"f": chain(at_points.function_draws[:, :NAMED_POINTS])},
        "posterior_predictive": {
            "y": of_targets(chain(posterior.predict(train.x, num_samples, seed).draws))
        },
        "log_likelihood": {"y": log_likelihood(train)},
        "observed_data": {"y": of_targets(train.y.cpu().numpy())},
        "constant_data": {"x": train.x.cpu().numpy()},
    }
    if test is not None:
        groups["predictions"] = {
            "y": of_targets(chain(at_points.draws)),
            "f": chain(at_points.function_draws),
            "y_mean": of_targets(chain(at_points.function_draws)),  # given a draw
            "y_variance": of_targets(chain(posterior.noise.square().expand_as(at_points.draws))),
        }
        if test.y.ndim == 2 and test.y.shape[1] > 1:
            densities = chain(at_points.target_log_likelihood(test.y))
            groups["predictions"]["y_log_density"] = densities
        groups["predictions_constant_data"] = {"x": test.x.cpu().numpy()}
        groups["test_data"] = {"y": of_targets(test.y.cpu().numpy())}
        groups["log_likelihood_predictions"] = {"y": log_likelihood(test)}
    rows = "train" if test is None else "test"
    names = [f"{rows} {i}" for i in range(min(NAMED_POINTS, len(points)))]
    attrs = _attrs(posterior, train, points) | {"draws_seed": seed}
    coords = {"point": names, **_labels(train)}
    return with_units(datatree(groups, dims=dims_of(train), coords=coords, attrs=attrs), train)


def _attrs(posterior: GaussianProcess, train: Dataset, points: Dataset) -> dict[str, Any]:
    process = posterior.process
    kept = ("method", "engine", "options", "seed", "wall_time", "threads", "processes")
    more = ("num_parameters", "num_stored_draws", "num_atoms", "objective")
    fingerprint = torch.cat([process.covariance(train.x[:2]).flatten(), posterior.noise])
    return {name: getattr(posterior, name) for name in (*kept, *more)} | {
        "format_version": FORMAT_VERSION,
        "elbo_kind": "none",  # a file has an ELBO of densities of draws only, which are none here
        "likelihood": "Normal",
        "num_data": posterior.num_data,
        "task": "regression",
        "rows": _rows(points),
        "model": {
            "description": process.describe(),
            "sites": [],
            "fingerprint": fingerprint.tolist(),
        },
        "params": {},
    }
