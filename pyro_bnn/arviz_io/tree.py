"""Trees of named groups, as ArviZ takes them, and their NetCDF files.

Everything takes NumPy arrays and imports neither torch nor Pyro; nothing here differs between
versions of ArviZ. Its public names are those of ``pyro_bnn.arviz_io`` too.
"""

from __future__ import annotations

import json
from collections.abc import Hashable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pyro_bnn.errors import (
    DataError,
    OptionError,
    ShapeError,
    UnknownNameError,
)

if TYPE_CHECKING:
    from xarray import Dataset, DataTree

SAMPLE_GROUPS = (
    "posterior",
    "posterior_predictive",
    "log_likelihood",
    "log_prior",
    "predictions",
    "log_likelihood_predictions",
    "sample_stats",
    "probes",
    "prior",
    "prior_predictive",
)
PLAIN_GROUPS = (
    "observed_data",
    "constant_data",
    "predictions_constant_data",
    "test_data",
    "probes_constant_data",
    "optimization",
)


def datatree(
    groups: Mapping[str, Mapping[str, ArrayLike]],
    *,
    dims: Mapping[str, Sequence[str] | Mapping[str, Sequence[str]]] | None = None,
    coords: Mapping[str, ArrayLike] | None = None,
    attrs: Mapping[str, Any] | None = None,
) -> DataTree:
    """Build the tree that ArviZ's functions and plots take.

    Dtypes are kept and arrays are not copied. A ``/`` in a variable's name, which NetCDF refuses,
    becomes a dot.

    Args:
        groups: Group name to variables. In the groups of ``SAMPLE_GROUPS`` every array is
            ``[C, S, ...]``, for one chain ``[1, S, ...]``; in those of ``PLAIN_GROUPS`` it has no
            such axes, and in ``optimization`` the first axis is the dimension ``step``.
        dims: Variable name to the names of its dimensions after chain and draw; a group name to
            such a mapping where the group differs, as for a ``y`` on training and on test rows.
            Dimensions that are left out get ArviZ's names (``f_dim_0``). In the log-likelihood
            groups, names of event dimensions, which a log density has not, are dropped.
        coords: Dimension name to its labels. Dimensions without labels count from 0.
        attrs: Options of the fit with string keys and whatever JSON holds: numbers, strings, bools,
            None, lists, dicts. They are stored as one JSON string, because NetCDF has no bool, None
            or dict; :func:`options` returns them. NumPy values and tuples come back as numbers and
            lists.

    Returns:
        A ``DataTree`` with one node a group.

    Raises:
        UnknownNameError: If a group is not one of those above.
        ShapeError: If an array lacks chain and draw, or sizes, dims and coords disagree.
        DataError: If an array holds something NetCDF cannot, or two names become one.
        OptionError: If ``attrs`` holds something JSON cannot.

    Example:
        >>> draws = np.zeros((4, 100, 3))
        >>> tree = datatree(
        ...     {"posterior": {"f": draws}, "observed_data": {"y": np.ones(3)}},
        ...     dims={"f": ["data"], "y": ["data"]},
        ...     attrs={"engine": "NUTS", "compile": None},
        ... )
        >>> tree["posterior/f"].dims
        ('chain', 'draw', 'data')
        >>> options(tree)
        {'engine': 'NUTS', 'compile': None}
    """
    from xarray import DataTree

    dims = dims or {}
    labels = {name: np.asarray(values) for name, values in (coords or {}).items()}
    nodes = {}
    for group, variables in groups.items():
        if group not in SAMPLE_GROUPS + PLAIN_GROUPS:
            raise UnknownNameError("ArviZ group", group, SAMPLE_GROUPS + PLAIN_GROUPS)
        nodes[group] = _dataset(group, variables, dims, labels)
    return with_options(DataTree.from_dict(nodes), attrs or {})


def options(tree: DataTree) -> dict[str, Any]:
    """The ``attrs`` that were given to :func:`datatree`; empty for a tree of another origin."""
    try:
        found = json.loads(tree.attrs.get("options", "{}"))
    except (TypeError, ValueError, RecursionError):  # another's attribute of this name
        return {}
    return found if isinstance(found, dict) else {}


def with_options(tree: DataTree, attrs: Mapping[str, Any]) -> DataTree:
    """A tree with the same groups and further options, which replace those of the same names.

    Args:
        tree: Any tree; it stays as it is.
        attrs: As for :func:`datatree`.

    Raises:
        OptionError: If ``attrs`` holds something JSON cannot.

    Example:
        >>> tree = datatree({"posterior": {"z": np.zeros((1, 5))}}, attrs={"seed": 0})
        >>> options(with_options(tree, {"name": "NUTS"}))
        {'seed': 0, 'name': 'NUTS'}
    """
    tree = tree.copy()
    try:
        tree.attrs["options"] = json.dumps({**options(tree), **attrs}, default=_plain)
    except (TypeError, ValueError) as error:
        raise OptionError(
            f"attrs must hold numbers, strings, bools, None, lists and dicts only: {error}"
        ) from error
    return tree


def _dataset(
    group: str,
    variables: Mapping[str, ArrayLike],
    dims: Mapping[str, Sequence[str] | Mapping[str, Sequence[str]]],
    coords: Mapping[str, NDArray[Any]],
) -> Dataset:
    """One group as ArviZ makes it, after its names have been checked; xarray checks its sizes."""
    from arviz_base import dict_to_dataset

    sample_dims = ["chain", "draw"] if group in SAMPLE_GROUPS else []
    own = dims.get(group, {})
    arrays: dict[str, NDArray[Any]] = {}
    names: dict[Hashable, Sequence[Hashable]] = {}
    sizes: dict[Hashable, int] = {}
    for original, value in variables.items():
        name, array = original.replace("/", "."), np.asarray(value)
        where, event_ndim = f"{group}/{name}", array.ndim - len(sample_dims)
        if name in arrays:
            raise DataError(f"{group} has two variables called {name!r} once / becomes a dot")
        if array.dtype.kind not in "biufU":
            raise DataError(f"{where} must hold numbers, bools or strings, got {array.dtype}")
        if event_ndim < 0:
            raise ShapeError(
                f"{where} must be [C, S, ...], got shape {array.shape}; "
                "for one chain give array[None]"
            )
        given = own.get(original) if isinstance(own, Mapping) else None
        if given is None:
            common = dims.get(original, ("step",) if group == "optimization" else ())
            given = () if isinstance(common, Mapping) else common
        if "log_likelihood" in group:
            given = given[:event_ndim]
        taken = {*sample_dims, *given} if not isinstance(given, str) else ()
        if len(given) > event_ndim or len(taken) < len(sample_dims) + len(given):
            raise ShapeError(
                f"{where} has {event_ndim} axes after chain and draw, so dims must list at most "
                f"{event_ndim} names that differ, from those two also, got {given!r}"
            )
        arrays[name] = array
        names[name] = [*given, *(f"{name}_dim_{i}" for i in range(len(given), event_ndim))]
        for dim, size in zip([*sample_dims, *names[name]], array.shape, strict=True):
            # xarray would fill up the shorter one, and take the variable for labels
            if dim in variables or sizes.setdefault(dim, size) != size:
                raise ShapeError(f"sizes or names of {group} disagree: {where} along {dim!r}")
    try:
        dataset: Dataset = dict_to_dataset(
            arrays,
            dims=names,
            coords=dict(coords),
            sample_dims=sample_dims,
            check_conventions=False,
        )
    except ValueError as error:
        raise ShapeError(f"sizes or names of {group} disagree: {error}") from error
    return dataset


def _plain(value: object) -> object:
    """NumPy values as Python's, for JSON."""
    if isinstance(value, np.generic | np.ndarray):
        return value.tolist()
    raise TypeError(f"got {value!r} of type {type(value).__name__}")
