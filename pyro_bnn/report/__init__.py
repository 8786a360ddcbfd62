"""Comparison, verdicts, figures, HTML."""

from pyro_bnn.files.atomic import check_writable
from pyro_bnn.report.compare import Comparison, compare
from pyro_bnn.report.saved.compare_files import compare_files
from pyro_bnn.report.splits.compare_runs import RepeatedComparison, Run, compare_runs

__all__ = [
    "Comparison",
    "RepeatedComparison",
    "Run",
    "check_writable",
    "compare",
    "compare_files",
    "compare_runs",
]
