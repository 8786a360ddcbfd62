"""What all pages of a report share: the template around them, tables that sort, figures."""

from __future__ import annotations

import base64
import hashlib
import math
import platform
from collections.abc import Iterator, Mapping, Sequence
from importlib import metadata, resources
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from pyro_bnn.plotting.theme import name_parts, name_words
from pyro_bnn.report.tables.cells import BEYOND
from pyro_bnn.report.tables.metric import Metric
from pyro_bnn.report.verdicts.statement import (
    AGAIN,
    AGREES,
    CHEAPER,
    DIFFERS,
    NOT,
    PREDICT,
    UNJUDGED,
    USE,
)

if TYPE_CHECKING:
    import pandas as pd

KINDS = {
    USE: "good", PREDICT: "good", CHEAPER: "plain", NOT: "bad", AGAIN: "again", AGREES: "fine",
    DIFFERS: "differs", UNJUDGED: "plain",
}  # fmt: skip
"""Class of a label of the answer, or of a status, that says its colour."""
PACKAGES = ("pyro-bnn", "torch", "pyro-ppl", "numpy", "arviz", "matplotlib")


class PageTable(NamedTuple):
    """A table that readers can sort.

    Attributes:
        title: Heading of its section.
        columns: Headings of the cells; that of the names comes first by itself.
        numbers: A row a method, in the order they are shown in.
        ordered_by: Title of the column by which the rows fall from the first to the last, if any.
        tags: What is to know of a method, in a word each.
        caption: What is the same in all rows, or empty.
    """

    title: str
    columns: Sequence[Metric]
    numbers: pd.DataFrame
    ordered_by: str = "log score"
    tags: Mapping[str, Sequence[str]] = MappingProxyType({})
    caption: str = ""

    def cells(self) -> Iterator[tuple[str, list[tuple[str, str]]]]:
        """Each row: its name, and of each cell what people read and what it is sorted by."""
        for name, record in zip(self.numbers.index, self.numbers.to_dict("records"), strict=True):
            texts = [(column.cell(record), record[column.key]) for column in self.columns]
            yield str(name), [(text, sort_key(text, value)) for text, value in texts]


def sort_key(text: str, value: float) -> str:
    """The number behind a cell as a script reads it; empty for none, which is sorted last.

    Cells that say no more than that a number is beyond a limit are sorted as equals.

    Example:
        >>> sort_key("−∞", float("-inf")), sort_key("0.1 ± 0.2", 0.1), sort_key("", 0.1)
        ('-Infinity', '0.1', '')
        >>> sort_key("above 1", 4.8)
        'Infinity'
    """
    known = text and not math.isnan(value)
    value = math.inf if text == BEYOND else value
    return repr(float(value)).replace("inf", "Infinity") if known else ""


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
        "kinds": KINDS,
        "slug": slug,
        "name_words": name_words,
        "name_parts": name_parts,
    }
    return environment.get_template(template).render(**values)


def slug(title: str) -> str:
    """The id of a section.

    Example:
        >>> slug("All numbers")
        'all-numbers'
    """
    return title.lower().replace(" ", "-")


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
