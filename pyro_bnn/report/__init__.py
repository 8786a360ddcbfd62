"""Comparison, verdicts, figures, HTML."""

from pyro_bnn.report.compare import Comparison, compare
from pyro_bnn.report.files import check_writable

__all__ = ["Comparison", "check_writable", "compare"]
