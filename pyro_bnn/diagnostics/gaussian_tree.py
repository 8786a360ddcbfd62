"""A Gaussian process posterior as an ArviZ tree, from which a comparison can be made again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from pyro_bnn.arviz_io import datatree
from pyro_bnn.data import Dataset
from pyro_bnn.export import FORMAT_VERSION, NAMED_POINTS, _columns, _rows

if TYPE_CHECKING:
    from xarray import DataTree

    from pyro_bnn.diagnostics.gaussian_process import GaussianProcess

DIMS: dict[str, Any] = {
    "f": ["point", "f_output"],
    "predictions": {
        "f": ["test_row", "f_output"],
        "y": ["test_row", "output"],
        "y_mean": ["test_row", "output"],
        "y_variance": ["test_row", "output"],
        "y_log_density": ["test_row", "output"],
    },
    "y": ["row", "output"],
    "x": ["row", "x_dim_0"],
    "predictions_constant_data": {"x": ["test_row", "x_dim_0"]},
    "test_data": {"y": ["test_row", "output"]},
    "log_likelihood": {"y": ["row"]},
    "log_likelihood_predictions": {"y": ["test_row"]},
}


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
        "posterior_predictive": {"y": chain(posterior.predict(train.x, num_samples, seed).draws)},
        "log_likelihood": {"y": log_likelihood(train)},
        "observed_data": {"y": _columns(train.y)},
        "constant_data": {"x": train.x.cpu().numpy()},
    }
    if test is not None:
        groups["predictions"] = {
            "y": chain(at_points.draws),
            "f": chain(at_points.function_draws),
            "y_mean": chain(at_points.function_draws),  # given a draw
            "y_variance": chain(posterior.noise.square().expand_as(at_points.draws)),
        }
        if test.y.ndim == 2 and test.y.shape[1] > 1:
            densities = chain(at_points.target_log_likelihood(test.y))
            groups["predictions"]["y_log_density"] = densities
        groups["predictions_constant_data"] = {"x": test.x.cpu().numpy()}
        groups["test_data"] = {"y": _columns(test.y)}
        groups["log_likelihood_predictions"] = {"y": log_likelihood(test)}
    rows = "train" if test is None else "test"
    names = [f"{rows} {i}" for i in range(min(NAMED_POINTS, len(points)))]
    attrs = _attrs(posterior, train, points) | {"draws_seed": seed}
    return datatree(groups, dims=DIMS, coords={"point": names}, attrs=attrs)


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
