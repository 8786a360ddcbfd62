"""The rooms of the package, counted: ``python -m tests.house`` prints the picture.

A room is a folder, or a module, of the package's root. Rooms stand on floors, in the order of
`ROOMS`; a room imports itself and rooms below it, wherever the statement stands: at the top of a
module, in a function, or for type checkers.
"""

from __future__ import annotations

import ast
import functools
import io
import re
import sys
import textwrap
import tokenize
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parent.parent
ROOMS = (
    *("errors", "checks", "memory", "files", "arviz_io", "data", "handled", "sites", "priors"),
    *("likelihoods", "layers", "models", "program", "capture", "guides", "predictive"),
    *("posterior", "infer", "plotting", "diagnostics", "report", "registry", "sklearn", "cli"),
    "__main__",
)
FLOOR = {room: floor for floor, room in enumerate(ROOMS)}
IN_REPORT = (
    *("evaluation", "verdicts", "tables", "comparison", "plots", "output", "calls", "compare"),
    *("saved", "ladder", "splits", "beyond"),
)
"""Parts of the report, as rooms: numbers, what they say, how they are shown, what uses them."""
MOST_IN_ROOT = 8  # modules
MOST_IN_FILE, MOST_IN_CLASS, MOST_IN_FUNCTION = 400, 300, 60  # lines of code
FAMILIES = ("priors", "likelihoods", "infer")
"""Rooms of which each may have one class of a name: that of a family, such as Laplace."""
VAGUE = ("found", "told", "given", "own", "past")
"""Names of attributes that do not say what the attribute is."""
MOST_BIG_CLASSES, MOST_HOMONYMS, MOST_VAGUE = 0, 6, 0
"""Today's numbers, which may only fall: lower them with what you mend."""


class Arrow(NamedTuple):
    """One import: of ``name`` from ``target``, in ``source``."""

    source: str
    target: str
    name: str
    line: int


class Walk(NamedTuple):
    """Calls between rooms while something runs.

    Attributes:
        rooms: Rooms that were entered.
        moves: Different calls from a function of one room to one of another.
        climbs: Those of them that go to a higher floor.
    """

    rooms: int
    moves: int
    climbs: int


def python_files(folder: Path) -> dict[str, Path]:
    """Dotted names and files of a package; links to folders (``pyro_bnn/guides``) are followed."""
    found: dict[str, Path] = {}
    for path in sorted(folder.iterdir()):
        if path.is_dir() and path.name != "__pycache__":
            found |= {f"{folder.name}.{k}": v for k, v in python_files(path).items()}
        elif path.suffix == ".py":
            found[f"{folder.name}.{path.stem}".removesuffix(".__init__")] = path
    return found


def room_of(module: str) -> str:
    """The room of a dotted name, ``""`` of the package itself."""
    return [*module.split("."), ""][1]


def imports(tree: ast.AST, package: str) -> Iterator[tuple[str, str, int]]:
    """Module, name and line of every import of a file; ``package`` resolves relative ones."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, "", node.lineno
        elif isinstance(node, ast.ImportFrom):
            module = node.module or ""
            if node.level:
                parts = package.split(".")
                kept = parts[: len(parts) - node.level + 1]
                module = ".".join([*kept, *([module] if module else [])])
            for alias in node.names:
                yield module, alias.name, node.lineno


@functools.cache
def arrows(folder: Path) -> list[Arrow]:
    """The imports of a package from itself; a name goes to the module that defines it."""
    files = python_files(folder)
    trees = {module: ast.parse(path.read_text("utf-8")) for module, path in files.items()}
    packages = {
        module: module if path.name == "__init__.py" else module.rpartition(".")[0]
        for module, path in files.items()
    }
    given = {
        module: {
            name: source for source, name, _ in imports(trees[module], module) if source in files
        }
        for module, path in files.items()
        if path.name == "__init__.py" and module != folder.name
    }

    def defined_in(module: str, name: str) -> str:
        if f"{module}.{name}" in files:
            return f"{module}.{name}"
        source = given.get(module, {}).get(name)
        return module if source is None or source == module else defined_in(source, name)

    return [
        Arrow(source, defined_in(target, name), name, line)
        for source in files
        for target, name, line in imports(trees[source], packages[source])
        if target.partition(".")[0] == folder.name
    ]


def upward(found: list[Arrow]) -> list[Arrow]:
    """The arrows to a higher floor; the package's own lazy ``__init__`` is above all."""
    return [
        arrow
        for arrow in found
        if room_of(arrow.source)
        and FLOOR.get(room_of(arrow.target), -1) > FLOOR.get(room_of(arrow.source), len(ROOMS))
    ]


def against_the_flow(found: list[Arrow]) -> list[Arrow]:
    """The arrows within the report to a later part."""

    def place(module: str) -> int | None:
        part = [*module.split("."), "", ""][2]
        return IN_REPORT.index(part) if room_of(module) == "report" and part else None

    pairs = [(arrow, place(arrow.source), place(arrow.target)) for arrow in found]
    return [
        arrow
        for arrow, source, target in pairs
        if source is not None and target is not None and target > source
    ]


def circles(found: list[Arrow]) -> list[list[str]]:
    """Groups of modules that import each other, directly or through others (Tarjan 1972)."""
    below: dict[str, set[str]] = defaultdict(set)
    for arrow in found:
        if arrow.source != arrow.target and room_of(arrow.target) and room_of(arrow.source):
            below[arrow.source].add(arrow.target)
    place: dict[str, int] = {}
    low: dict[str, int] = {}
    path: list[str] = []
    groups = []

    def visit(module: str) -> None:
        place[module] = low[module] = len(place)
        path.append(module)
        for other in sorted(below[module]):
            if other not in place:
                visit(other)
                low[module] = min(low[module], low[other])
            elif other in path:
                low[module] = min(low[module], place[other])
        if low[module] == place[module]:
            group = path[path.index(module) :]
            del path[path.index(module) :]
            if len(group) > 1:
                groups.append(sorted(group))

    for module in sorted(below):
        if module not in place:
            visit(module)
    return groups


def in_root(folder: Path) -> list[str]:
    """Modules that stand in the root of a package."""
    return [path.stem for path in sorted(folder.glob("*.py")) if path.stem != "__init__"]


def code_lines(text: str) -> int:
    """Lines that are neither empty nor a comment nor of a docstring."""
    lines = text.splitlines()
    left_out = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(
            node
        ):
            left_out |= set(range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1))
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT and lines[token.start[0] - 1].lstrip().startswith("#"):
            left_out.add(token.start[0])
    return sum(bool(line.strip()) and i not in left_out for i, line in enumerate(lines, 1))


def lines_by_room(folder: Path) -> dict[str, int]:
    """Lines of code of each room."""
    found: dict[str, int] = defaultdict(int)
    for module, path in python_files(folder).items():
        found[room_of(module)] += code_lines(path.read_text("utf-8"))
    return found


def too_long(folder: Path) -> list[str]:
    """Files and functions with more lines of code than they may have, and how many."""
    found = []
    for path in python_files(folder).values():
        text = path.read_text("utf-8")
        if (count := code_lines(text)) > MOST_IN_FILE:
            found.append(f"{path.name}: {count}")
        lines = text.splitlines()
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef) and len(node.body) > 1:
                own = "\n".join(lines[node.lineno - 1 : node.end_lineno])
                if (count := code_lines(textwrap.dedent(own))) > MOST_IN_FUNCTION:
                    found.append(f"{path.name} {node.name}: {count}")
    return found


def big_classes(folder: Path) -> dict[str, int]:
    """Classes with more lines of code than they should have, and how many."""
    counts = {
        f"{module}.{node.name}": code_lines(ast.get_source_segment(text, node) or "")
        for module, path in python_files(folder).items()
        for text in [path.read_text("utf-8")]
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.ClassDef)
    }
    return {name: count for name, count in counts.items() if count > MOST_IN_CLASS}


def homonyms(folder: Path) -> dict[str, list[str]]:
    """Public capitalised names that several modules define, and these; families are left out."""
    modules: dict[str, list[str]] = defaultdict(list)
    for module, path in python_files(folder).items():
        for name in set(_capitalised(ast.parse(path.read_text("utf-8")))):
            modules[name].append(module)
    return {name: where for name, where in sorted(modules.items()) if not _is_one(where)}


def _capitalised(tree: ast.Module) -> Iterator[str]:
    """Classes, and aliases of types, that a module defines."""
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            names = [node.name]
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names = [target.id for target in targets if isinstance(target, ast.Name)]
        else:
            continue
        yield from (name for name in names if re.fullmatch(r"[A-Z]\w*[a-z]\w*", name))


def _is_one(modules: list[str]) -> bool:
    """Whether a name that these modules define means one thing, or one family."""
    rooms = [room_of(module) for module in modules]
    return len(rooms) == 1 or (len(set(rooms)) == len(rooms) and set(rooms) <= set(FAMILIES))


def vague_names(folder: Path) -> list[str]:
    """Where attributes and fields have a name of `VAGUE`: ``module:line name``."""
    found = []
    for module, path in python_files(folder).items():
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if not isinstance(node, ast.Attribute | ast.ClassDef):
                continue
            names = [node.attr] if isinstance(node, ast.Attribute) else []
            if isinstance(node, ast.ClassDef):
                fields = [part.target for part in node.body if isinstance(part, ast.AnnAssign)]
                names = [field.id for field in fields if isinstance(field, ast.Name)]
            found += [f"{module}:{node.lineno} {name}" for name in names if name in VAGUE]
    return found


def walk(work: Callable[[], object], folder: Path) -> Walk:
    """Follow the calls of a piece of work between the rooms of a package."""
    rooms_of_files = {
        str(path.resolve()): room_of(module) for module, path in python_files(folder).items()
    }
    rooms: dict[str, str | None] = {}
    calls: set[tuple[str, str, str]] = set()

    def room(frame: FrameType | None) -> str | None:
        if frame is None:
            return None
        name = frame.f_code.co_filename
        if name not in rooms:
            rooms[name] = rooms_of_files.get(str(Path(name).resolve()))
        return rooms[name]

    def follow(frame: FrameType, event: str, _: Any) -> None:
        if event != "call" or not (own := room(frame)):
            return
        caller = frame.f_back
        while caller is not None and not room(caller):  # through torch and back
            caller = caller.f_back
        if (before := room(caller)) and before != own:
            calls.add((before, own, frame.f_code.co_qualname))

    sys.setprofile(follow)
    try:
        work()
    finally:
        sys.setprofile(None)
    climbs = [call for call in calls if FLOOR.get(call[1], 0) > FLOOR.get(call[0], 0)]
    return Walk(len({room for call in calls for room in call[:2]}), len(calls), len(climbs))


def walks() -> Mapping[str, Walk]:
    """Those of x through ``predict`` and of rows through ``compare``."""
    import torch

    import pyro_bnn as bnn

    x = torch.linspace(-1, 1, 30).unsqueeze(-1)
    train = bnn.Dataset(x[::2], x[::2, 0].sin())
    split = bnn.Split(train, bnn.Dataset(x[1::2], x[1::2, 0].sin()), name="sine", task="regression")
    model = bnn.models.MLP(1, hidden=(5,))
    fit = bnn.SVI(bnn.guides.AutoNormal, num_steps=20, compile=False)
    posterior = fit.run(model, train, progress=False)
    folder = Path(bnn.__file__).parent
    return {
        "predict": walk(lambda: posterior.predict(x).mean, folder),
        "compare": walk(lambda: bnn.compare({"mean-field": posterior}, split).summary(), folder),
    }


def say(line: str) -> None:
    """Write a line to standard output."""
    sys.stdout.write(line + "\n")


def main() -> None:
    """Write the picture to standard output."""
    folder = ROOT / "pyro_bnn"
    found = arrows(folder)
    between = {
        (room_of(a.source), room_of(a.target))
        for a in found
        if room_of(a.source) and room_of(a.target) and room_of(a.source) != room_of(a.target)
    }
    by_room = lines_by_room(folder)
    say(f"{len(python_files(folder))} files, {sum(by_room.values()):,} lines of code")
    say(f"{len(in_root(folder))} modules in the root, {len(by_room)} rooms")
    say(f"{len(between)} pairs of rooms with an import, {len(upward(found))} imports upward")
    say(f"circles of {sorted(map(len, circles(found)), reverse=True)} files")
    say(f"longer than {MOST_IN_FILE} or {MOST_IN_FUNCTION} lines: {too_long(folder)}")
    say(f"classes of more than {MOST_IN_CLASS} lines: {big_classes(folder)}")
    same = homonyms(folder)
    say(f"{len(same)} names that mean several things")
    for name, modules in same.items():
        say(f"    {name}: {', '.join(modules)}")
    say(f"{len(vague_names(folder))} attributes named {', '.join(VAGUE)}")
    for name, found_walk in walks().items():
        say(f"{name}: {found_walk}")
    for room in sorted(by_room, key=lambda room: FLOOR.get(room, -1)):
        say(f"{by_room[room]:7,}  {room or '(the package itself)'}")


if __name__ == "__main__":
    main()
