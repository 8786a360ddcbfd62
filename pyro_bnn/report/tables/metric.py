"""One number of a method: where it comes from, and how a table shows it."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeAlias

from pyro_bnn.plotting.numbers import decimals_of, number

if TYPE_CHECKING:
    import pandas as pd

SCORES, CHAINS, FIT, REFERENCE, COST = (
    "Held-out scores", "Checks of chains", "Checks of fits", "Against the reference", "Cost",
)  # fmt: skip
REGRESSION, CLASSES = ("regression",), ("classification",)
OF_Y, OF_F = "of y", "of f"
"""Units that go by the data."""

Record: TypeAlias = Mapping[str, Any]
"""A row of a table."""
Value: TypeAlias = str | Callable[[Any], object]
"""Attributes that lead to a number, such as ``"checks.loo.se"``, or a function; the number is None
where there is none, or where an attribute on the way is None."""
Text: TypeAlias = Callable[..., str]
"""Writes a cell from the number and what belongs to it, in this order. A keyword-only argument gets
``decimals``, the places that all cells of the column share, or else the cell of its name in the
row: ``se`` of the metric ``ece`` is the cell ``ece_se``, ``tied`` is the cell ``tied``."""


@dataclass(frozen=True)
class OverRuns:
    """How the table of several runs shows a number.

    Attributes:
        meaning: One sentence for the legend.
        text: The cell.
        how: What the table holds: the ``"mean"`` over splits with its error, the ``"largest"`` of
            all runs, or what its ``"ranking"`` says.
        title: Heading, if not that of one comparison.
    """

    meaning: str
    text: Text
    how: str = "mean"
    title: str = ""


@dataclass(frozen=True)
class Metric:
    """One number of a method, which is a column of tables.

    Attributes:
        key: Its name in the tables that are written.
        value: Where it comes from; None for a number that another metric, or the table, writes.
        title: Heading; a metric without one has no column.
        meaning: One sentence for the legend; a metric without one is in no table of one comparison.
        error: Name of its standard error, by which decimal places go; empty where it has none.
        more: What belongs to it by name, such as its error.
        unit: Unit, ``OF_Y`` for that of the target, ``OF_F`` for that of the function.
        section: Section of the page.
        tasks: Tasks that it applies to.
        text: Writes the cell.
        is_setting: Whether it goes to the caption where it is the same in all rows.
        after: Name of the number that it stands behind on the page, if not where it stands here.
        runs: How the table of several runs shows it; None where that does not.
        decimals: Decimal places that all cells share; None where each has its own.
    """

    key: str
    value: Value | None = None
    title: str = ""
    meaning: str = ""
    _: KW_ONLY
    error: str = ""
    more: Mapping[str, Value] = field(default_factory=dict)
    unit: str = ""
    section: str = SCORES
    tasks: tuple[str, ...] = (*REGRESSION, *CLASSES)
    text: Text = number
    is_setting: bool = False
    after: str = ""
    runs: OverRuns | None = None
    decimals: int | None = None

    def numbers(self, source: object) -> dict[str, Any]:
        """The number and what belongs to it by name, NaN where one does not apply.

        Args:
            source: What the numbers are taken from, such as a `RankedMethod`.
        """
        if self.value is None:
            return {}
        values = {self.key: self.value, **self.more}
        numbers = {name: value_of(value, source) for name, value in values.items()}
        return {key: float("nan") if value is None else value for key, value in numbers.items()}

    def cell(self, row: Record) -> str:
        """The text of the cell in a row."""
        values = (row[name] for name in (self.key, *self.more))
        return self.text(*values, **{name: self._named(row, name) for name in _keywords(self.text)})

    def _named(self, row: Record, name: str) -> Any:
        if name == "decimals":
            return self.decimals
        own = f"{self.key}_{name}"
        return row[own] if own in row else row[name]

    def aligned(self, table: pd.DataFrame) -> Metric:
        """The same with the decimal places that all its numbers in a table share."""
        errors = list(table[self.error]) if self.error else None
        return replace(self, decimals=decimals_of(list(table[self.key]), errors))

    def in_units(self, units: Mapping[str, str]) -> Metric:
        """The same with its unit in words."""
        return replace(self, unit=units.get(self.unit, self.unit))

    def in_brief(self, text: Text) -> Metric:
        """The same without what belongs to it, but for its error."""
        more = {name: value for name, value in self.more.items() if name == self.error}
        return replace(self, text=text, more=more)

    def over_runs(self) -> Metric:
        """The column of the table of several runs."""
        assert self.runs is not None
        title = self.runs.title or self.title
        return replace(
            self, title=title, meaning=self.runs.meaning, text=self.runs.text, more={}, error=""
        )


def value_of(value: Value | None, source: Any) -> Any:
    """The number that attributes lead to, or that a function gives; None where there is none."""
    if value is None:
        return None
    if not isinstance(value, str):
        return value(source)
    for name in value.split("."):
        source = None if source is None else getattr(source, name)
    return source


@functools.cache
def _keywords(text: Text) -> list[str]:
    """Names of the keyword-only arguments of a function."""
    parameters = inspect.signature(text).parameters.values()
    return [one.name for one in parameters if one.kind is one.KEYWORD_ONLY]
