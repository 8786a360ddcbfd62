"""A comparison from saved ArviZ files alone: nothing is fitted, no model is needed."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeAlias

import numpy as np
from torch import Tensor

from pyro_bnn.data import Split, Standardiser
from pyro_bnn.errors import DataError, OptionError
from pyro_bnn.posterior.storage import TOLERANCE
from pyro_bnn.report.compare import Comparison, compare
from pyro_bnn.report.evaluation.natures import is_exact_sampler
from pyro_bnn.report.evaluation.shared_models import groups
from pyro_bnn.report.evaluation.units import to_numpy
from pyro_bnn.report.output.names import file_names
from pyro_bnn.report.saved.file_posterior import SAME_ROWS, FileModel, FilePosterior, read

NUM_SAMPLES = 1_000

PathLike: TypeAlias = "str | os.PathLike[str]"


def compare_files(
    files: Sequence[PathLike] | Mapping[str, PathLike],
    *,
    reference: str | None = None,
    num_samples: int | None = None,
    seed: int | None = None,
) -> Comparison:
    """Compares posteriors that were saved as ArviZ NetCDF files, without models or fits.

    Files of one comparison give its numbers again, but for a Gaussian process (``NNGP``): its files
    hold draws, whose mean density its log score is then, and no ELBO. Others, also of different
    runs, are compared where they are of the same training and held-out rows.

    Args:
        files: Files of ``Comparison.save`` or ``Posterior.to_arviz(train, test)``; by name where
            their own names would be equal.
        reference: Name of the posterior to measure distances to, or its kebab-case; by default that
            of the comparison which wrote the files, else NUTS where one of several files is.
        num_samples: Draws of every method; by default as in the comparison that wrote the files,
            else 1,000. Never more than a file has.
        seed: Seed of the choice of draws; by default that of the first file.

    Raises:
        FileFormatError: If a file is missing, no NetCDF file, or of another origin.
        DataError: If a file is of other rows than the others, or has no held-out rows.
        OptionError: If there is no file, or two would have one name.
        UnknownNameError: If ``reference`` is not one of the names.
    """
    posteriors = _in_order(read_all(files))
    split = _common_rows(posteriors)
    if split.train.x.ndim == 2 and split.train.x.shape[1] == 1:
        note = "No predictive band over the input: files hold predictions at held-out rows only."
        split = replace(split, note=f"{split.note} {note}".lstrip())
    for names in groups({name: one.model for name, one in posteriors.items()}, _same_model):
        for name in names:
            posteriors[name] = posteriors[name].on(split, posteriors[names[0]].model)
    ones = list(posteriors.values())
    scored = [one.saved["num_draws"] for one in ones if one.saved.get("num_draws")]
    return compare(
        posteriors,
        split,
        reference=_find_reference(reference, posteriors),
        num_samples=min(scored, default=NUM_SAMPLES) if num_samples is None else num_samples,
        seed=ones[0].saved["draws_seed"] if seed is None else seed,
    )


def read_all(files: Sequence[PathLike] | Mapping[str, PathLike]) -> dict[str, FilePosterior]:
    """Reads files; each has the name given, else that in its comparison, else its method.

    Raises:
        OptionError: If there is no file, or two would have one name; says how to name them.
    """
    if isinstance(files, str | os.PathLike):
        raise OptionError(f"files is a list of paths, or paths by name, not the one path {files}")
    if not files:
        raise OptionError(
            "nothing to compare: give NetCDF files of 'pyro-bnn compare', such as report/nuts.nc"
        )
    if isinstance(files, Mapping):
        return {name: read(path) for name, path in files.items()}
    found: dict[str, FilePosterior] = {}
    for path in files:
        posterior = read(path)
        name = posterior.name
        if name in found:
            raise _both_called(name, found[name].path, path, "give them names")
        found[name] = posterior
    return found


def named_files(arguments: Sequence[str]) -> list[PathLike] | dict[str, PathLike]:
    """Files of the arguments ``FILE`` or ``NAME=FILE`` of a command line.

    Returns:
        The paths; by name if one was given, and then the others by their file names.

    Raises:
        OptionError: If two have one name, or a name or file is empty.

    Example:
        >>> named_files(["a.nc", "b.nc"])
        ['a.nc', 'b.nc']
        >>> named_files(["first=run1/nuts.nc", "run2/nuts.nc"])
        {'first': 'run1/nuts.nc', 'nuts': 'run2/nuts.nc'}
    """
    parts = [
        ("", argument) if Path(argument).exists() or "=" not in argument else _named(argument)
        for argument in arguments
    ]
    if not any(name for name, _ in parts):
        return [path for _, path in parts]
    found: dict[str, PathLike] = {}
    for given, path in parts:
        name = given or Path(path).stem
        if name in found:
            raise _both_called(name, found[name], path, "give each a name of its own")
        found[name] = path
    return found


def _both_called(name: str, first: PathLike, second: PathLike, step: str) -> OptionError:
    return OptionError(
        f"{first} and {second} are both called {name!r}: {step}, as in first={first} "
        f"second={second}"
    )


def _in_order(posteriors: Mapping[str, FilePosterior]) -> dict[str, FilePosterior]:
    """In the order of the one comparison that wrote them, which numbers its models; else as given.

    Files of one comparison name the same methods, the same seed of the draws, and one method each.
    """
    saved = {name: one.saved for name, one in posteriors.items()}
    named = [one.get("name") for one in saved.values()]
    written = {(tuple(one.get("compared") or ()), one["draws_seed"]) for one in saved.values()}
    order = next(iter(written))[0]
    if len(written) > 1 or len(set(named)) < len(named) or not set(named) <= set(order):
        return dict(posteriors)
    return {
        name: posteriors[name]
        for name in sorted(saved, key=lambda n: order.index(saved[n]["name"]))
    }


def _find_reference(name: str | None, posteriors: Mapping[str, FilePosterior]) -> str | None:
    """The posterior of a name or kebab-case; else that of the comparison, NUTS, or exact chains."""
    if name is not None:
        kebab = {stem: full for full, stem in file_names(posteriors).items()}
        return name if name in posteriors else kebab.get(name, name)
    if len(posteriors) == 1:
        return None
    marked = [name for name, one in posteriors.items() if one.saved.get("is_reference")]
    chains = [name for name, one in posteriors.items() if is_exact_sampler(one)]
    of_nuts = [name for name in chains if posteriors[name].method == "NUTS"]
    return next((names[0] for names in (marked, of_nuts, chains) if len(names) == 1), None)


def _named(argument: str) -> tuple[str, str]:
    name, _, path = argument.partition("=")
    while not Path(path).exists() and "=" in path:  # as in nuts:num_samples=9=report/nuts.nc
        more, _, path = path.partition("=")
        name = f"{name}={more}"
    if not name or not path:
        raise OptionError(
            f"expected FILE or NAME=FILE, such as nuts=report/nuts.nc, not {argument!r}"
        )
    return name, path


def _common_rows(posteriors: Mapping[str, FilePosterior]) -> Split:
    """The rows of all files.

    Raises:
        DataError: If a file is of other rows than most; names it and one of those.
    """
    splits = {name: one.split for name, one in posteriors.items()}
    alike = groups(splits, lambda a, b: not _difference(a, b))
    most = max(alike, key=len)
    for names in alike:
        if names is not most:
            other, one = posteriors[names[0]], posteriors[most[0]]
            raise DataError(
                f"{other.path} ({_title(other.split)}) is of other data than {one.path} "
                f"({_title(one.split)}): {_difference(one.split, other.split)}; compare files of "
                "one data set and split"
            )
    named = [name for name in most if posteriors[name].saved.get("data")]
    return splits[(named or most)[0]]


def _title(split: Split) -> str:
    return f"{split.name}, split {split.index}"


def _difference(a: Split, b: Split) -> str:
    """Why the rows of two splits are not the same; empty where they are."""
    if a.task != b.task:
        return f"the tasks are {a.task} and {b.task}"
    for words, own, other in (("held-out", a.test, b.test), ("training", a.train, b.train)):
        for name in ("x", "y"):
            if text := _unequal(getattr(own, name), getattr(other, name)):
                return f"the {words} {name} {text}"
    for part in ("inputs", "target"):
        if not _same_units(getattr(a.test, part), getattr(b.test, part)):
            return f"the units of the {part} differ"
    return ""


def _unequal(a: Tensor, b: Tensor) -> str:
    own, other = to_numpy(a), to_numpy(b)
    if own.shape != other.shape:
        return f"have shapes {list(own.shape)} and {list(other.shape)}"
    far = ~np.isclose(own, other, rtol=SAME_ROWS, atol=SAME_ROWS)
    count = int(far.reshape(len(own), -1).any(1).sum())
    return f"differ in {count} of {len(own)} rows" if count else ""


def _same_units(a: Standardiser | None, b: Standardiser | None) -> bool:
    if a is None or b is None:
        return a is b
    own, other = (np.stack([to_numpy(units.loc), to_numpy(units.scale)]) for units in (a, b))
    room = SAME_ROWS * np.abs(own).sum(0)
    return own.shape == other.shape and bool((np.abs(own - other) <= room).all())


def _same_model(a: FileModel, b: FileModel) -> bool:
    """Whether descriptions and densities agree; a model that is not described is like no other."""
    own, other = a.record, b.record
    if own is None or other is None or own["description"] != other["description"]:
        return False
    first, second = (np.asarray(it["fingerprint"], dtype=float) for it in (own, other))
    return (
        own["sites"] == other["sites"]
        and first.shape == second.shape
        and np.allclose(first, second, rtol=TOLERANCE, atol=TOLERANCE, equal_nan=True)
    )
