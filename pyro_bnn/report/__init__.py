"""One comparison of posteriors on the same rows: evaluated, judged, drawn, written."""

from pyro_bnn.files.atomic import check_writable
from pyro_bnn.report.beyond.trust import Trust, trust
from pyro_bnn.report.calls.compare import CallComparison
from pyro_bnn.report.compare import Comparison, compare
from pyro_bnn.report.evaluation.account import Account, account
from pyro_bnn.report.ladder.reference import reference
from pyro_bnn.report.saved.compare_files import compare_files
from pyro_bnn.report.splits.compare_runs import RepeatedComparison, compare_runs
from pyro_bnn.report.splits.run import SplitRun

__all__ = [
    "Account",
    "CallComparison",
    "Comparison",
    "RepeatedComparison",
    "SplitRun",
    "Trust",
    "account",
    "check_writable",
    "compare",
    "compare_files",
    "compare_runs",
    "reference",
    "trust",
]


def __getattr__(name: str) -> object:
    if name == "Run":  # the name of `SplitRun` in version 0.1
        return SplitRun
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
