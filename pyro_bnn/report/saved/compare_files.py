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
from pyro_bnn.diagnostics.probes import Probes
from pyro_bnn.errors import DataError, OptionError, UnknownNameError
from pyro_bnn.posterior.storage import TOLERANCE
from pyro_bnn.report.compare import Comparison
from pyro_bnn.report.evaluation.distances import as_reference, kept_reference_draws, with_distances
from pyro_bnn.report.evaluation.evaluate import Evaluation
from pyro_bnn.report.evaluation.fit_record import ModelRecord
from pyro_bnn.report.evaluation.natures import is_exact_sampler
from pyro_bnn.report.evaluation.saved import SavedEvaluation, read
from pyro_bnn.report.evaluation.shared_models import groups
from pyro_bnn.report.evaluation.units import to_numpy
from pyro_bnn.report.output.names import file_names

SAME_ROWS = 1e-5  # of standardised values: float32 and float64 differ by less, other rows by more

PathLike: TypeAlias = "str | os.PathLike[str]"


def compare_files(
    files: Sequence[PathLike] | Mapping[str, PathLike], *, reference: str | None = None
) -> Comparison:
    """Compares posteriors by the evaluations in their files, without models, fits or draws anew.

    Files of one comparison give its numbers again. Others, also of different runs, are compared
    where they are of the same training and held-out rows.

    Args:
        files: Files of ``Comparison.save``; by name where their own names would be equal.
        reference: Name of the posterior to measure distances to, or its kebab-case; by default that
            of the comparison which wrote the files, else NUTS where one of several files is. With
            another than when they were written distances are of the draws that were scored.

    Raises:
        FileFormatError: If a file is missing, no NetCDF file, or holds no evaluation.
        DataError: If a file is of other rows than the others.
        OptionError: If there is no file, or two would have one name.
        UnknownNameError: If ``reference`` is not one of the names.
    """
    saved = _in_order(read_all(files))
    split = _common_rows(saved)
    entries = {name: one.entry for name, one in saved.items()}
    for names in groups({name: one.fit.model for name, one in entries.items()}, _is_same_model):
        model = entries[names[0]].fit.model
        for name in names:
            entries[name] = replace(entries[name].of_model(model), name=name)
    probes = _common_probes(saved)
    found = _find_reference(reference, saved)
    first = next(iter(saved.values()))
    return Comparison(
        _with_distances(entries, found, split, probes),
        replace(split, note=_note(split, saved)),
        reference=found,
        num_draws=min(one.num_draws for one in saved.values()),
        seed=first.seed,
        probes=None if found is None else probes,
    )


def _with_distances(
    entries: dict[str, Evaluation], reference: str | None, split: Split, probes: Probes | None
) -> dict[str, Evaluation]:
    """The numbers with distances to a reference: those that were saved, if they are to this one."""
    if reference is None:
        return {
            name: replace(entry, at_rows=None, off_data=None, distance_notes=())
            for name, entry in entries.items()
        }
    why = "" if probes is not None else "not all files hold predictions at the same probes"
    judge = as_reference(entries[reference], why)
    draws = kept_reference_draws(judge, split, probes)

    def of(entry: Evaluation) -> Evaluation:
        if entry.at_rows is not None and entry.at_rows.of == draws.of:
            return entry if probes is not None else replace(entry, off_data=None)
        entry = replace(entry, at_rows=None, off_data=None, distance_notes=())
        if not judge.held_out.has_mean:
            return entry
        return with_distances(entry, draws, split, len(entry.held_out.function_draws))

    return {name: judge if name == reference else of(entry) for name, entry in entries.items()}


def _common_probes(saved: Mapping[str, SavedEvaluation]) -> Probes | None:
    """The rows off the data at which all have draws; None if there are none."""
    first, *others = (one.probes for one in saved.values())
    if first is None or any(one.entry.at_probes is None for one in saved.values()):
        return None
    are_same = all(
        one is not None
        and one.x.shape == first.x.shape
        and np.allclose(one.x, first.x, rtol=SAME_ROWS, atol=SAME_ROWS)
        for one in others
    )
    return first if are_same else None


def _note(split: Split, saved: Mapping[str, SavedEvaluation]) -> str:
    """What limits a report without posteriors."""
    notes = [split.note] if split.note else []
    if split.train.x.ndim == 2 and split.train.x.shape[1] == 1:
        notes.append(
            "No predictive band over the input: files hold predictions at held-out rows only."
        )
    counts = sorted({one.num_draws for one in saved.values()})
    if len(counts) > 1:
        notes.append(
            f"The files were scored with {' and '.join(f'{n:,}' for n in counts)} draws: scores of "
            "fewer draws have larger errors, and are lower where the draws disagree."
        )
    return " ".join(notes)


def read_all(files: Sequence[PathLike] | Mapping[str, PathLike]) -> dict[str, SavedEvaluation]:
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
    by_name: dict[str, SavedEvaluation] = {}
    paths: dict[str, PathLike] = {}
    for path in files:
        saved = read(path)
        name = saved.entry.name
        if name in by_name:
            raise _both_called(name, paths[name], path, "give them names")
        by_name[name], paths[name] = saved, path
    return by_name


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


def _in_order(saved: Mapping[str, SavedEvaluation]) -> dict[str, SavedEvaluation]:
    """In the order of the one comparison that wrote them, which numbers its models; else as given.

    Files of one comparison name the same methods, the same seed of the draws, and one method each.
    """
    names = [one.entry.name for one in saved.values()]
    written = {(one.compared, one.seed) for one in saved.values()}
    order = next(iter(written))[0]
    if len(written) > 1 or len(set(names)) < len(names) or not set(names) <= set(order):
        return dict(saved)
    place = {name: order.index(one.entry.name) for name, one in saved.items()}
    return {name: saved[name] for name in sorted(saved, key=place.__getitem__)}


def _find_reference(name: str | None, saved: Mapping[str, SavedEvaluation]) -> str | None:
    """The posterior of a name or kebab-case; else that of the comparison, NUTS, or exact chains."""
    if name is not None:
        kebab = {stem: full for full, stem in file_names(saved).items()}
        name = name if name in saved else kebab.get(name, name)
        if name not in saved:
            raise UnknownNameError("reference", name, saved)
        return name
    if len(saved) == 1:
        return None
    marked = [name for name, one in saved.items() if one.entry.name == one.reference]
    chains = [name for name, one in saved.items() if is_exact_sampler(one.entry.fit)]
    of_nuts = [name for name in chains if saved[name].entry.fit.method == "NUTS"]
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


def _common_rows(saved: Mapping[str, SavedEvaluation]) -> Split:
    """The rows of all files.

    Raises:
        DataError: If a file is of other rows than most; names it and one of those.
    """
    alike = groups(saved, lambda a, b: not _difference(a, b))
    most = max(alike, key=len)
    for names in alike:
        if names is not most:
            other, one = saved[names[0]], saved[most[0]]
            raise DataError(
                f"{names[0]} ({other.title}) is of other data than {most[0]} ({one.title}): "
                f"{_difference(one, other)}; compare files of one data set and split"
            )
    return saved[most[0]].split


def _difference(one: SavedEvaluation, two: SavedEvaluation) -> str:
    """Why the rows of two evaluations are not the same; empty where they are."""
    a, b = one.split, two.split
    if a.task != b.task:
        return f"the tasks are {a.task} and {b.task}"
    for words, own, other in (("held-out", a.test, b.test), ("training", a.train, b.train)):
        for name in ("x", "y"):
            if text := _unequal(getattr(own, name), getattr(other, name)):
                return f"the {words} {name} {text}"
    for part in ("inputs", "target"):
        if not _same_units(getattr(a.test, part), getattr(b.test, part)):
            return f"the units of the {part} differ"
    counts = [len(each.entry.held_out.log_score) for each in (one, two)]
    return f"{counts[0]:,} and {counts[1]:,} rows were scored" if counts[0] != counts[1] else ""


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


def _is_same_model(a: ModelRecord, b: ModelRecord) -> bool:
    """Whether descriptions and densities agree; one without densities is like no other."""
    return (
        bool(a.fingerprint)
        and a.description == b.description
        and a.sites == b.sites
        and len(a.fingerprint) == len(b.fingerprint)
        and np.allclose(
            a.fingerprint, b.fingerprint, rtol=TOLERANCE, atol=TOLERANCE, equal_nan=True
        )
    )
