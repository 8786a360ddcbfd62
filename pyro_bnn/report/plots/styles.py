"""Each method's style, the same in all figures of a report."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyro_bnn.plotting.theme import Style, Theme

if TYPE_CHECKING:
    from pyro_bnn.report.evaluation.comparison import Evaluations


def styles_of(comparison: Evaluations, theme: Theme) -> dict[str, Style]:
    """The style of every method, the same in all figures."""
    return theme.styles(list(comparison.posteriors), comparison.reference)
