"""Output files: checked before the work, written whole or not at all."""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Collection, Iterable
from pathlib import Path

from pyro_bnn.errors import BNNWarning

TUTORIAL = "tutorials/01_compare_guides.ipynb"
OF_A_RUN = ("*.nc", "split-*-seed-*/")
FITS = "fits"
"""Folder of the output with the fits that have ended; gone once all is written."""


def warn_of_others(folder: Path, own: Collection[str]) -> None:
    """Warns of posteriors and reports in a folder that are not of the run that wrote to it.

    Args:
        folder: Folder of the output.
        own: Names of the NetCDF files and of the folders of single runs that the run has written.
    """
    found = {
        path.name
        for pattern in OF_A_RUN
        for path in folder.glob(pattern)
        if [inner.name for inner in path.glob("*")] != [FITS]  # of a run whose report failed
    }
    if others := sorted(found.difference(own)):
        warnings.warn(
            f"the folder {str(folder)!r} also holds {', '.join(others)}, which this run did not "
            "write: left from an earlier one, and mixed into what reads the whole folder, as "
            "'pyro-bnn report FOLDER/*.nc' does; delete them, or choose another output folder",
            BNNWarning,
            stacklevel=3,
        )


def tutorial_from(folder: Path) -> str:
    """Address of the notebook that explains the verdicts; empty where the package has none.

    Args:
        folder: Folder of the page.
    """
    notebook = Path(__file__).parents[3] / TUTORIAL
    if not notebook.exists():
        return ""
    try:
        return Path(os.path.relpath(notebook, folder.resolve())).as_posix()
    except ValueError:  # on another drive
        return ""


def file_names(names: Iterable[str]) -> dict[str, str]:
    """File names (without suffix) of methods: kebab-case, letters and digits, all different.

    Example:
        >>> file_names(["AutoLowRankMultivariateNormal", "NUTS", "mean field", "mean/field"])
        {'AutoLowRankMultivariateNormal': 'auto-low-rank-multivariate-normal', 'NUTS': 'nuts', \
'mean field': 'mean-field', 'mean/field': 'mean-field-2'}
    """
    stems: dict[str, str] = {}
    for name in names:
        words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "-", name)
        stem = re.sub(r"[^a-z0-9]+", "-", words.lower()).strip("-") or "method"
        unique, count = stem, 1
        while unique in stems.values():
            count += 1
            unique = f"{stem}-{count}"
        stems[name] = unique
    return stems
