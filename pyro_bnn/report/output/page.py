"""What all pages of a report share: the template around them, tables that sort, figures."""

from __future__ import annotations

import base64
import hashlib
import io
import math
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata, resources
from typing import TYPE_CHECKING, Any

from pyro_bnn.plotting.theme import name_parts, name_words
from pyro_bnn.report.tables.metrics import Column

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

PACKAGES = ("pyro-bnn", "torch", "pyro-ppl", "numpy", "arviz", "matplotlib")
DPI = 144


@dataclass(frozen=True)
class Cell:
    """A cell: what people read, and the number it is sorted by.

    Attributes:
        text: What is shown; a dash where it is empty.
        value: The number behind it; a cell without one (None, NaN) is sorted last.
    """

    text: str
    value: float | None = None

    @property
    def key(self) -> str:
        """The number as a script reads it; empty for none.

        Example:
            >>> Cell("−∞", float("-inf")).key, Cell("0.1 ± 0.2", 0.1).key, Cell("").key
            ('-Infinity', '0.1', '')
        """
        if not self.text or self.value is None or math.isnan(self.value):
            return ""
        return repr(float(self.value)).replace("inf", "Infinity")


@dataclass(frozen=True)
class Row:
    """A row: its name, what is to know of it in a word each, its cells."""

    name: str
    cells: Sequence[Cell]
    tags: Sequence[str] = ()


@dataclass(frozen=True)
class Table:
    """A table that readers can sort.

    Attributes:
        title: Heading of its section.
        columns: Headings of the cells; that of the names comes first by itself.
        rows: Rows in the order they are shown in.
        ordered_by: Title of the column by which the rows fall from the first to the last, if any.
        row_heading: Heading of the names.
    """

    title: str
    columns: Sequence[Column]
    rows: Sequence[Row]
    ordered_by: str = ""
    row_heading: str = "method"

    @classmethod
    def of(
        cls,
        title: str,
        columns: Sequence[Column],
        numbers: pd.DataFrame,
        ordered_by: str = "log score",
        tags: Mapping[str, Sequence[str]] | None = None,
    ) -> Table:
        """The table of numbers, a row a method, with tags by its name."""
        rows = [
            Row(
                str(name),
                [Cell(column.cell(record), float(record[column.key])) for column in columns],
                (tags or {}).get(str(name), ()),
            )
            for name, record in zip(numbers.index, numbers.to_dict("records"), strict=True)
        ]
        return cls(title, columns, rows, ordered_by)


@dataclass(frozen=True)
class Picture:
    """A figure of a page, light and dark.

    Attributes:
        name: Unique on the page.
        title: Heading.
        alternative: What it shows with its main number, for readers who cannot see it.
        caption: How to read it.
        light: Address of the picture on white.
        dark: Address of the picture on black.
        inches: Width.
    """

    name: str
    title: str
    alternative: str
    caption: str
    light: str
    dark: str
    inches: float

    @classmethod
    def of(
        cls, name: str, title: str, alternative: str, caption: str, light: Figure, dark: Figure
    ) -> Picture:
        """A picture of a figure drawn twice, at the same size."""
        width = light.get_figwidth()
        return cls(name, title, alternative, caption, png(light), png(dark), width)


def render_page(template: str, **values: Any) -> str:
    """Renders a template that extends ``page.html``; the page loads nothing from elsewhere.

    Its content security policy lets it run its own script and nothing else.

    Args:
        template: Name of a file beside this module.
        **values: What the template asks for.
    """
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(_resource),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    script = _resource("report.js")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode("ascii")
    environment.globals |= {
        "style": _resource("report.css"),
        "script": script,
        "script_hash": f"sha256-{digest}",
        "versions": versions(),
        "name_words": name_words,
        "name_parts": name_parts,
    }
    return environment.get_template(template).render(**values)


def png(figure: Figure) -> str:
    """A figure as a data address of a PNG picture."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=DPI)
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode("ascii")


def versions() -> list[tuple[str, str]]:
    """Versions of Python and of the packages that the numbers depend on."""
    found = [("Python", platform.python_version())]
    for package in PACKAGES:
        try:
            found.append((package, metadata.version(package)))
        except metadata.PackageNotFoundError:
            found.append((package, "not installed"))
    return found


def _resource(name: str) -> str:
    return resources.files("pyro_bnn.report.output").joinpath(name).read_text(encoding="utf-8")
