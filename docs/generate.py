"""Pages of the reference that are made from the package: API, command line, columns, verdicts.

``docs/conf.py`` writes them before each build, so that they say what the code says.
"""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import typer

ROOT = Path(__file__).parent.parent
ROOMS = [
    "data", "priors", "likelihoods", "layers", "models", "guides", "infer", "posterior", "report",
    "diagnostics", "sklearn", "program", "capture", "arviz_io",
]  # fmt: skip
"""Rooms with public names, as a user meets them."""


def write(folder: Path) -> None:
    """Write all pages that are made into this folder; a page that is as it was stays untouched."""
    pages = {f"api/{name}.rst": text for name, text in api().items()}
    pages |= {
        "command_line.md": command_line(),
        "columns.md": columns(),
        "verdicts.md": verdicts(),
        "bibliography.md": bibliography(),
        "readme/home.md": of_readme("\n", "<!-- home ends -->"),
        "readme/install.md": of_readme("## Install\n", "## Licence"),
    }
    for name, text in pages.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists() or path.read_text() != text:
            path.write_text(text)
    for path in folder.rglob("*.*"):
        if str(path.relative_to(folder)) not in pages:
            path.unlink()


def of_readme(start: str, end: str) -> str:
    """A part of the README whose links are told from the folder of sources."""
    text = (ROOT / "README.md").read_text().split(start, 1)[1].split(end, 1)[0]
    text = text.replace("](#tutorials)", "](/docs/tutorials.md)")
    return re.sub(r"\]\((?![a-z]+:|[#/])", "](/", text)


def api() -> dict[str, str]:
    """A page a room: each public name by its docstring; the package's own names first."""
    rooms = {name: importlib.import_module(f"pyro_bnn.{name}") for name in ROOMS}
    at_home = {id(value): name for name, room in rooms.items() for value in public(room).values()}
    top = importlib.import_module("pyro_bnn")
    pages = {name: "\n".join(room_page(f"pyro_bnn.{name}", room)) for name, room in rooms.items()}
    pages["pyro_bnn"] = "\n".join(top_page(top, at_home))
    return pages


def public(module: ModuleType) -> dict[str, Any]:
    """Public names of a module with what they are, modules left out."""
    found = {name: getattr(module, name) for name in sorted(module.__all__)}
    return {name: value for name, value in found.items() if not inspect.ismodule(value)}


def heading(text: str, line: str = "=") -> list[str]:
    """A heading of reStructuredText."""
    return [text, line * len(text), ""]


def entry(module: str, name: str, value: object) -> list[str]:
    """The directive that shows a name by its docstring."""
    if inspect.isclass(value):
        by_sklearn = "set_fit_request, set_score_request, set_predict_request"  # not our text
        options = [":members:", f":exclude-members: {by_sklearn}", ":show-inheritance:"]
        return [f".. autoclass:: {module}.{name}", *(f"   {option}" for option in options), ""]
    kind = "autofunction" if callable(value) and not is_alias(value) else "autodata"
    no_value = ["   :no-value:"] if kind == "autodata" else []
    return [f".. {kind}:: {module}.{name}", *no_value, ""]


def is_alias(value: object) -> bool:
    """Whether a name stands for a type."""
    return not inspect.isroutine(value)


def room_page(module: str, room: ModuleType) -> Iterator[str]:
    """The page of one room."""
    yield from heading(module)
    yield from [f".. automodule:: {module}", "   :no-members:", ""]
    for name, value in public(room).items():
        yield from entry(module, name, value)


def top_page(top: ModuleType, at_home: dict[int, str]) -> Iterator[str]:
    """Names of ``pyro_bnn`` itself: links to those of a room, and all others here."""
    yield from heading("pyro_bnn")
    yield "``import pyro_bnn as bnn`` gives these names; each is described in its room."
    yield ""
    here = []
    for name, value in public(top).items():
        if room := at_home.get(id(value)):
            yield f"- :py:obj:`bnn.{name} <pyro_bnn.{room}.{name}>`"
        else:
            here.append((name, value))
    yield ""
    for name, value in here:
        yield from entry("pyro_bnn", name, value)


def command_line() -> str:
    """Every command with its arguments and options."""
    from pyro_bnn.cli.main import app

    lines = ["# Command line", "", "Made from the help texts of `pyro-bnn`.", ""]
    group: Any = typer.main.get_command(app)
    for name, command in group.commands.items():
        lines += [f"## pyro-bnn {name}", "", dedented(command.help or ""), ""]
        for option in command.params:
            is_argument = option.param_type_name == "argument"
            names = [option.name.upper()] if is_argument else [*option.opts, *option.secondary_opts]
            shown = ", ".join(f"`{each}`" for each in names)
            default = (
                "" if option.default in (None, False, ()) else f" Default: `{option.default}`."
            )
            text = (getattr(option, "help", None) or "").strip().rstrip(".")
            lines += [shown, f": {escaped(text) or 'As named'}.{default}", ""]
    return "\n".join(lines)


def dedented(text: str) -> str:
    """Help as Markdown: examples, which are indented, stay code."""
    return escaped(inspect.cleandoc(text.replace("\b", "")))


def escaped(text: str) -> str:
    """Text in which Markdown and mathematics find nothing."""
    return re.sub(r"([$<>*_|\[\]])", r"\\\1", text)


def columns() -> str:
    """Every number of a report: its column, its name in ``table.csv``, its meaning."""
    from pyro_bnn.report.tables.metrics import METRICS

    lines = [
        "# Columns of the report", "",
        "Each number of a report, by the section of the page it stands in. The second column is "
        "its name in `table.csv`, the names of its errors and limits beside it.", "",
    ]  # fmt: skip
    for where in dict.fromkeys(metric.section for metric in METRICS):
        lines += [
            f"## {where}",
            "",
            "| column | in `table.csv` | unit | meaning |",
            "| --- " * 4 + "|",
        ]
        seen = set()
        for metric in METRICS:
            of_runs = metric.over_runs() if metric.runs else metric
            meaning = metric.meaning or of_runs.meaning
            if metric.section != where or not meaning or metric.key in seen:
                continue
            seen.add(metric.key)
            names = ", ".join(f"`{name}`" for name in (metric.key, *metric.more))
            cells = [escaped(metric.title), names, escaped(metric.unit), escaped(meaning)]
            lines.append(f"| {' | '.join(cells)} |")
        lines.append("")
    return "\n".join(lines)


def verdicts() -> str:
    """Every rule of the report: what it finds, what to do next, how often it errs."""
    from benchmarks import verdicts as rates
    from pyro_bnn.report.verdicts.verdicts import RULES

    lines = [
        "# Verdicts of the report", "",
        "Each verdict is given by one rule. The page says it with its number and its threshold; "
        "here is what each finds and what to do next. How often each is given where it is false, "
        "and where it is true, was counted by simulation: see "
        "[the rates](../../../benchmarks/verdict_rates/README.md).", "",
        "| verdict | finds | what to do next | speaks against |", "| --- " * 4 + "|",
    ]  # fmt: skip
    against = {
        "": "nothing: the method may be used", "refit": "the fit: run it again first",
        "unchecked": "nothing yet: it was not judged",
        "function": "the uncertainty of the function",
        "predictions": "the uncertainty of predictions",
    }  # fmt: skip
    lines += [
        f"| {r.kind} | {escaped(r.what)} | {escaped(r.step)} | {against[r.against]} |"
        for r in RULES
    ]
    lines += [
        "",
        "## Thresholds without a rate of their own",
        "",
        "| verdict | why |",
        "| --- | --- |",
    ]
    lines += [f"| {kind} | {escaped(why)} |" for kind, why in rates.WITHOUT_RATE.items()]
    return "\n".join(lines) + "\n"


def bibliography() -> str:
    """Every paper that a docstring refers to, and where."""
    found: dict[str, list[str]] = {}
    for path in sorted([*(ROOT / "pyro_bnn").rglob("*.py"), *(ROOT / "guides").rglob("*.py")]):
        name = str(path.relative_to(ROOT))
        if name.startswith("pyro_bnn/guides"):
            continue  # a link to the folder guides
        for block in re.findall(r"\n( *)References?:\n((?:\1    .*\n|\n)+)", path.read_text()):
            for paper in re.split(
                r"(?<=[\d)\"]\.)\s+(?=[A-Z])|;\s+(?=[A-Z])", " ".join(block[1].split())
            ):
                text = paper.strip('" ').rstrip(".")
                if re.search(r"\b(19|20)\d\d\b", text) and "," in text:
                    found.setdefault(text, []).append(name)
    lines = ["# Bibliography", "", "Papers that docstrings refer to, with the files that do.", ""]
    for paper, files in sorted(found.items()):
        text = re.sub(
            r"arXiv:(\d{4}\.\d{4,5})", r"[arXiv:\1](https://arxiv.org/abs/\1)", escaped(paper)
        )
        links = ", ".join(f"`{name}`" for name in dict.fromkeys(files))
        lines.append(f"- {text}\n  ({links})")
    return "\n".join(lines) + "\n"
