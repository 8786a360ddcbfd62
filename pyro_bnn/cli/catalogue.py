"""What ``pyro-bnn list`` shows: everything with a name, a sentence each.

Names and docstrings are read from the source: the list needs neither torch nor Pyro, whose import
takes seconds.
"""

from __future__ import annotations

import ast
import importlib.util
import textwrap
from collections.abc import Iterator
from functools import cache
from pathlib import Path

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
    found = {f"{kind}s": dict(_classes(f"pyro_bnn.{KINDS[kind]}")) for kind in KINDS}
    return found | {"data sets": dict(_data_sets())}


def _classes(package: str) -> Iterator[tuple[str, str]]:
    """The classes that a package exports, as :func:`pyro_bnn.registry.entries` has them."""
    for name in sorted(ast.literal_eval(_value(package, "__all__"))):
        node = _definition(package, name)
        if isinstance(node, ast.ClassDef) and name not in NOT_ENTRIES:
            yield kebab_case(name), first_sentence(ast.get_docstring(node) or "")


def _data_sets() -> Iterator[tuple[str, str]]:
    yield from ast.literal_eval(_value("pyro_bnn.data.idx_files", "MNIST_SETS")).items()
    for name, make in _items("pyro_bnn.data.sklearn_sets", "SKLEARN_SETS"):
        function = _definition("pyro_bnn.data.sklearn_sets", ast.unparse(make))
        assert isinstance(function, ast.FunctionDef)
        yield name, first_sentence(ast.get_docstring(function) or "")
    for name, spec in _items("pyro_bnn.data.uci", "UCI_SETS"):
        assert isinstance(spec, ast.Call)
        of = {word.arg: ast.literal_eval(word.value) for word in spec.keywords}
        yield name, f"{of['target_name']} from {of['num_inputs']} inputs."


def _items(module: str, name: str) -> Iterator[tuple[str, ast.expr]]:
    """Keys and values of a dictionary at the top of a module."""
    value = _value(module, name)
    assert isinstance(value, ast.Dict)
    for key, item in zip(value.keys, value.values, strict=True):
        assert key is not None
        yield ast.literal_eval(key), item


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


@cache
def _body(module: str) -> list[ast.stmt]:
    """The statements of a module of this package, which is not imported."""
    room, *rest = module.removeprefix("pyro_bnn.").split(".")
    spec = importlib.util.find_spec(f"pyro_bnn.{room}")
    assert spec is not None
    assert spec.submodule_search_locations is not None
    path = Path(spec.submodule_search_locations[0], *rest)
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    return ast.parse(file.read_bytes()).body


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
