"""Runs of a command in any process, without what takes most of their time and no test looks at."""

from __future__ import annotations

from typing import Any
from unittest import mock

from pyro_bnn.cli.many_runs import _run_beside
from pyro_bnn.report import Comparison, SplitRun
from pyro_bnn.report.plots.figures import Figures


def run_plainly(*args: Any) -> tuple[SplitRun, str]:
    """One run of several: a page without figures, and no files of draws."""
    with (
        mock.patch.object(Figures, "pictures", return_value=[]),
        mock.patch.object(Comparison, "write_draws", return_value=None),
    ):
        return _run_beside(*args)
