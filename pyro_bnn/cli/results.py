"""The result of a command is printed as text, or with ``--json`` as one JSON document."""

from __future__ import annotations

import contextlib
import json
import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import typer


@dataclass(frozen=True, kw_only=True)
class Result:
    """The result of a command.

    Args:
        text: What is printed without ``--json``.
        document: What is printed with it: names, numbers, text, and tables of pandas.
        files: Those that were written.
        warnings: What ``--fail-on`` looks at: pairs of what a warning speaks against, such as
            ``"refit"``, and its text.
    """

    text: str
    document: Callable[[], Mapping[str, Any]]
    files: Sequence[Path] = field(default_factory=tuple)
    warnings: Callable[[], Sequence[tuple[str, str]]] = tuple


ANY = "warning"
"""What ``--fail-on`` calls any warning."""


class UnwantedError(Exception):
    """A verdict that ``--fail-on`` names."""


def show(
    command: Callable[..., Iterator[Result]],
    values: Mapping[str, Any],
    *,
    as_json: bool,
    fail_on: Sequence[str] = (),
) -> None:
    """Run a command, and print its result, also where the command raises an error after it.

    Args:
        command: Yields its result, or nothing.
        values: Its arguments.
        as_json: Whether the result is printed as JSON; progress then goes to standard error.
        fail_on: Warnings that are errors: what they speak against, or `ANY`.

    Raises:
        UnwantedError: If there is such a warning.
    """
    results = command(**values)
    with contextlib.redirect_stdout(sys.stderr) if as_json else contextlib.nullcontext():
        result = next(results, None)
    if result is None:
        return
    if as_json:
        document = {**result.document(), "files": result.files}
        typer.echo(json.dumps(plain(document), indent=1, allow_nan=False))
    else:
        typer.echo(result.text)
        for file in result.files:
            typer.echo(f"Wrote {file}")
    next(results, None)
    unwanted = [text for against, text in result.warnings() if {ANY, against} & set(fail_on)]
    if unwanted:
        more = f" (and {len(unwanted) - 1} more)" if len(unwanted) > 1 else ""
        raise UnwantedError(f"--fail-on {','.join(fail_on)}: {unwanted[0]}{more}")


def plain(value: Any) -> Any:
    """A value as JSON has it: a table is a list of rows, a number that is not finite null.

    Example:
        >>> plain({"a": (1, float("nan")), "b": Path("c")})
        {'a': [1, None], 'b': 'c'}
    """
    if hasattr(value, "to_dict") and hasattr(value, "columns"):
        is_named = value.index.name is not None or value.index.nlevels > 1
        value = (value.reset_index() if is_named else value).to_dict("records")
    if hasattr(value, "_asdict"):  # a named tuple
        value = value._asdict()
    if isinstance(value, Mapping):
        return {str(name): plain(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [plain(one) for one in value]
    if hasattr(value, "item"):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return str(value) if isinstance(value, Path) else value


def warnings_of(whole: Any) -> list[tuple[str, str]]:
    """The warnings of a comparison, or of several, each with what it speaks against."""
    from pyro_bnn.report.verdicts.verdicts import RULES

    against = {rule.kind: rule.against for rule in RULES}
    return [(against.get(v.kind, ""), v.text) for v in whole.findings if v.is_warning]


def document_of(whole: Any) -> dict[str, Any]:
    """The table of a comparison, or of several, with the verdicts."""
    from pyro_bnn.report import Comparison
    from pyro_bnn.report.output.verdict_file import verdict_document

    if isinstance(whole, Comparison):
        return {"table": whole.table, **verdict_document(whole)}
    return {"table": whole.table, "runs": whole.all_rows, "verdicts": whole.verdicts}
