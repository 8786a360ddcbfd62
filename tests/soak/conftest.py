"""Long tests: run where ``-m`` asks for ``soak``, with figures at the end of the run.

``python -m pytest tests/soak -m soak --figures PATH`` also writes the figures as JSON.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import pytest

Record: TypeAlias = Callable[..., None]

FIGURES = pytest.StashKey[dict[str, dict[str, Any]]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--figures", type=Path, help="where the figures of soak tests are written")


def pytest_configure(config: pytest.Config) -> None:
    config.stash[FIGURES] = {}


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave soak tests out, whatever else ``-m`` asks for: a hook, as ``-m`` replaces ``-m``."""
    if "soak" in config.option.markexpr:
        return
    soak = [item for item in items if item.get_closest_marker("soak")]
    if soak:
        config.hook.pytest_deselected(items=soak)
        items[:] = [item for item in items if item not in soak]


@pytest.fixture
def record(request: pytest.FixtureRequest) -> Record:
    """``record(name=value, ...)``: figures of a test, JSON-able, shown at the end of the run."""
    figures = request.config.stash[FIGURES].setdefault(request.node.name, {})

    def add(**values: Any) -> None:
        figures.update(values)

    return add


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    figures = config.stash.get(FIGURES, {})
    if not figures:
        return
    terminalreporter.section("figures of the soak tests")
    for test, values in figures.items():
        terminalreporter.write_line(test)
        for name, value in values.items():
            terminalreporter.write_line(f"    {name}: {value}")
    if (path := config.getoption("figures", None)) is not None:
        path.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
        terminalreporter.write_line(f"written to {path}")
