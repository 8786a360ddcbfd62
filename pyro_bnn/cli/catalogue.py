"""What ``pyro-bnn list`` shows: everything with a name, a sentence each.

Names and docstrings are read from the source: the list needs neither torch nor Pyro, whose import
takes seconds.
"""

from __future__ import annotations

import ast
import importlib.util
import json
import textwrap
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from pyro_bnn.registry import KINDS, NOT_ENTRIES, kebab_case


def listing(columns: int) -> Iterator[str]:
    """Lines of the catalogue for a terminal with so many columns."""
    for kind, group in catalogue().items():
        width = max(len(name) for name in group)
        yield kind.capitalize()
        for name, sentence in group.items():
            start = f"  {name:{width}}  "
            room = max(columns, len(start) + 30)
            yield textwrap.fill(start + sentence, room, subsequent_indent=" " * len(start))
        yield ""


def catalogue() -> dict[str, dict[str, str]]:
    """Everything with a name: kind, then name, then its first sentence."""
    classes = {f"{kind}s": dict(_classes(f"pyro_bnn.{KINDS[kind]}")) for kind in KINDS}
    return classes | {"data sets": dict(_data_sets())}


def _classes(package: str) -> Iterator[tuple[str, str]]:
    """The classes that a package exports, as :func:`pyro_bnn.registry.entries` has them."""
    for name in sorted(ast.literal_eval(_value(package, "__all__"))):
        node = _definition(package, name)
        if isinstance(node, ast.ClassDef) and name not in NOT_ENTRIES:
            yield kebab_case(name), _sentence(node)


def _data_sets() -> Iterator[tuple[str, str]]:
    yield from ast.literal_eval(_value("pyro_bnn.data.idx_files", "MNIST_SETS")).items()
    yield from ast.literal_eval(_value("pyro_bnn.data.fashion_mnist", "FASHION_SETS")).items()
    made = _value("pyro_bnn.data.sklearn_sets", "SKLEARN_SETS")
    assert isinstance(made, ast.Dict)
    for key, make in zip(made.keys, made.values, strict=True):
        function = _definition("pyro_bnn.data.sklearn_sets", ast.unparse(make))
        yield ast.literal_eval(key or ""), _sentence(function)
    sets = json.loads(_path("pyro_bnn.data.uci_sets").with_suffix(".json").read_text("utf-8"))
    for name, of in sets.items():
        yield name, f"{of['target_name']} from {of['num_inputs']} inputs."


def _value(module: str, name: str) -> ast.expr:
    """What is assigned to a name at the top of a module."""
    for node in _body(module):
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        if name in [target.id for target in targets if isinstance(target, ast.Name)]:
            value = getattr(node, "value", None)
            assert isinstance(value, ast.expr)
            return value
    raise KeyError(name)


def _definition(module: str, name: str) -> ast.stmt | None:
    """The class or function of a name, in the module or where that imports it from."""
    for node in _body(module):
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name == name:
            return node
        if isinstance(node, ast.ImportFrom) and name in [alias.name for alias in node.names]:
            return _definition(str(node.module), name)
    return None


def _sentence(node: Any) -> str:
    return first_sentence(ast.get_docstring(node) or "")


@cache
def _body(module: str) -> list[ast.stmt]:
    """The statements of a module of this package, which is not imported."""
    path = _path(module)
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    return ast.parse(file.read_bytes()).body


def _path(module: str) -> Path:
    """The folder of a room, or a module's file without its suffix."""
    room, *rest = module.removeprefix("pyro_bnn.").split(".")
    spec = importlib.util.find_spec(f"pyro_bnn.{room}")
    assert spec is not None
    assert spec.submodule_search_locations is not None
    return Path(spec.submodule_search_locations[0], *rest)


def first_sentence(docstring: str) -> str:
    r"""The first sentence of a docstring as plain text; formulas and what follows are left out.

    Example:
        >>> first_sentence("Two classes: :math:`y \\sim p`, labels 0 and 1.\n\nMore.")
        'Two classes.'
        >>> first_sentence("One ``rank``, e.g. 2.5. Two.")
        'One rank, e.g. 2.5.'
    """
    text = " ".join(docstring.strip().partition("\n\n")[0].split()).replace("``", "")
    text, formula, _ = text.partition(":math:")
    if formula:
        return f"{text.rstrip(' :,;')}."
    words = text.split(" ")
    for i, word in enumerate(words):
        starts_next = i + 1 < len(words) and words[i + 1][0].isupper()
        if word.endswith(".") and starts_next and word not in ("e.g.", "i.e.", "cf."):
            return " ".join(words[: i + 1])
    return text
