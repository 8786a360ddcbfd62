"""The rows off the data at which a comparison holds its posteriors against the reference."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from pyro_bnn.diagnostics.probes import Probes, probe_rows
from pyro_bnn.report.evaluation.units import to_numpy
from pyro_bnn.report.saved.file_posterior import FilePosterior

if TYPE_CHECKING:
    from pyro_bnn.data.split import Split
    from pyro_bnn.posterior.protocol import PosteriorLike


def find_probes(posteriors: Mapping[str, PosteriorLike], split: Split) -> tuple[Probes | None, str]:
    """Rows off the data where all posteriors predict, or why there are none.

    Files hold predictions at the probes of the comparison that wrote them, and at no others.
    """
    files = [one for one in posteriors.values() if isinstance(one, FilePosterior)]
    if files:
        first = files[0].probes
        if first is None or not all(one.has_probes(first.x) for one in files):
            return None, "not all files hold predictions at the same probes"
        return first, ""
    x = split.train.x
    if x.ndim != 2 or not x.is_floating_point():
        return None, f"inputs of shape {list(x.shape)} and type {x.dtype} are no table of numbers"
    found = probe_rows(to_numpy(x))
    return (found, "") if len(found.x) else (None, "its training inputs leave no gap and no range")
