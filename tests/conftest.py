"""What all tests share: each starts from the same random state and an empty parameter store.

Three sizes: ``make quick`` takes the first case of each test that is not marked slow, ``make
test`` leaves out what is marked soak, and ``make soak`` runs that. ``--figures PATH`` writes the
figures of soak tests as JSON.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import signal
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import pytest
from _pytest.doctest import DoctestModule
from hypothesis import HealthCheck, settings

# torch, Pyro and the package are imported where they are used: of the processes of ``pytest -n``
# the one that starts the others has no use for them
if TYPE_CHECKING:
    from xarray import DataTree

    from pyro_bnn.capture import Captured

os.environ["TORCHINDUCTOR_CPP_CACHE_PRECOMPILE_HEADERS"] = "1"  # tests compile many graphs

Record: TypeAlias = Callable[..., None]

FIGURES = pytest.StashKey[dict[str, dict[str, Any]]]()
LONG = 10.0  # s, from which a test is to be marked slow, with the reason

# Hypothesis reads all modules for constants: how long that takes is the machine's, and how many of
# them a strategy leaves out, as those that no half-precision number equals, is theirs
settings.register_profile(
    "tests", suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much]
)
settings.load_profile("tests")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--figures", type=Path, help="where the figures of soak tests are written")
    parser.addoption("--quick", action="store_true", help="one case of each test, none marked slow")


@pytest.hookimpl(wrapper=True)
def pytest_collect_file() -> Generator[None, list[pytest.Collector], list[pytest.Collector]]:
    """Examples stand in the package: in 300 files of tests nobody looks for them."""
    return [found for found in (yield) if not isinstance(found, DoctestModule)]


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Look for no garbage in what is imported and collected, now or later: it stays to the end."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.set_threshold(2_000, 10, 100)  # to look at all objects takes 0.2 s
        gc.enable()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[FIGURES] = {}


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Check names and marks, and leave soak tests out, whatever else ``-m`` asks for."""
    for item in items:
        if " at 0x" in item.nodeid:  # the processes of ``pytest -n`` must collect the same names
            raise pytest.UsageError(f"{item.nodeid}: give this parameter an id")
        for mark in item.iter_markers("slow"):
            if not (mark.args and isinstance(mark.args[0], str)):
                raise pytest.UsageError(f"{item.nodeid}: say why, pytest.mark.slow('...')")
    if "soak" in config.option.markexpr:  # -m replaces the -m of the settings: so here
        return
    kept = [item for item in items if not item.get_closest_marker("soak")]
    if config.option.quick:
        by_test: dict[str, pytest.Item] = {}
        for item in kept:
            if not item.get_closest_marker("slow"):
                by_test.setdefault(item.nodeid.partition("[")[0], item)
        kept = list(by_test.values())
    if len(kept) < len(items):
        left = set(kept)
        config.hook.pytest_deselected(items=[item for item in items if item not in left])
        items[:] = kept


@pytest.fixture(scope="module")
def short_trajectories() -> Iterator[None]:
    """NUTS ends a trajectory before 8 steps, for commands whose draws nobody looks at.

    After a short warm-up its steps are small: it would take hundreds for a draw.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("pyro_bnn.infer.mcmc.nuts.NUTS._limit", 8)
        yield


@contextlib.contextmanager
def capturing_nothing() -> Iterator[None]:
    """What is not compiled runs as it is: of a fit of few steps, capturing takes the most time."""
    from pyro_bnn.capture import Captured

    make = Captured.__init__

    def init(self: Captured, *args: Any, compiled: bool = False, **options: Any) -> None:
        make(self, *args, compiled=compiled, **{**options, "enabled": compiled})

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Captured, "__init__", init)
        yield


@pytest.fixture(scope="module")
def uncaptured() -> Iterator[None]:
    """Of a whole module nothing is captured, its fixtures included."""
    with capturing_nothing():
        yield


@pytest.fixture
def no_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages without figures, which take most of the time and which a test may not look at."""
    monkeypatch.setattr("pyro_bnn.report.plots.figures.Figures.pictures", lambda _: [])


@contextlib.contextmanager
def trees_in_memory() -> Iterator[dict[Path, DataTree]]:
    """NetCDF trees by path: a file is opened once, and a tree that is put here is read as one.

    So is one that ``arviz_io.save_netcdf`` saves: bytes take longer than all else where files are
    not what is tested.
    """
    from pyro_bnn import arviz_io

    found: dict[Path, DataTree] = {}
    load = arviz_io.load_netcdf

    def load_once(path: Path) -> DataTree:
        if path not in found:
            found[path] = load(path).load()
        return found[path].copy(deep=True)

    def keep(tree: DataTree, path: Path, **_: bool) -> None:
        path.touch()
        found[path] = tree.copy(deep=True)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(arviz_io, "load_netcdf", load_once)
        patch.setattr(arviz_io, "save_netcdf", keep)
        yield found


@pytest.fixture
def files_in_memory() -> Iterator[None]:
    """NetCDF files are kept as the trees that they hold, for tests of what is made of them."""
    with trees_in_memory():
        yield


@pytest.fixture
def few_stock_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a guide of stock Pyro few draws are kept, where a test does not look at them."""
    monkeypatch.setattr("pyro_bnn.infer.svi.stock.NUM_DRAWS", 20)


@pytest.fixture
def nothing_in_c(monkeypatch: pytest.MonkeyPatch) -> None:
    """What would be compiled is left to Inductor, however few its numbers."""
    from pyro_bnn.errors import CaptureError

    def refuse(*_: object, **__: object) -> None:
        raise CaptureError("nothing is written in C")

    monkeypatch.setattr("pyro_bnn.capture.compilers.compile_c", refuse)
    monkeypatch.setattr("pyro_bnn.infer.mcmc.chains.MOST_APART", 0)


@pytest.fixture
def all_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many chains there are, compiled ones are moved apart, by a step in C."""
    monkeypatch.setattr("pyro_bnn.infer.mcmc.chains.MOST_APART", 1_000)


@pytest.fixture
def interpreted(nothing_in_c: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """What would be compiled runs as it was recorded for the compiler, operation by operation."""
    monkeypatch.setattr(
        "pyro_bnn.capture.inductor.compiling._compiled", lambda graph, *_, **__: graph.forward
    )


@pytest.fixture
def record(request: pytest.FixtureRequest) -> Record:
    """``record(name=value, ...)``: figures of a test, JSON-able, shown at the end of the run."""
    figures = request.config.stash[FIGURES].setdefault(request.node.name, {})

    def add(**values: Any) -> None:
        figures.update(values)

    return add


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    tell_long_tests(terminalreporter)
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


def tell_long_tests(terminalreporter: Any) -> None:
    """Name the tests that took long and are not marked so."""
    reports = [r for r in terminalreporter.stats.get("passed", []) if r.when == "call"]
    for report in reports:
        if report.duration > LONG and not {"slow", "soak"} & set(report.keywords):
            terminalreporter.write_line(
                f"{report.nodeid} took {report.duration:.0f} s and is not marked slow"
            )


@pytest.fixture(autouse=True, scope="session")
def _seeds_of_the_cpu() -> Iterator[None]:
    """``torch.manual_seed`` takes a trace of the stack three times, for GPUs that are not there."""
    import torch

    with pytest.MonkeyPatch.context() as patch:
        if not torch.accelerator.is_available():
            seed = torch.default_generator.manual_seed
            patch.setattr(torch, "manual_seed", lambda value: seed(int(value)))
        yield


@pytest.fixture(autouse=True)
def _same_start() -> Iterator[None]:
    import pyro
    import torch

    with torch.random.fork_rng(devices=[]), pyro.get_param_store().scope():
        torch.manual_seed(0)
        yield


@pytest.fixture(autouse=True)
def _answers_ctrl_c() -> Iterator[None]:
    """Python's own handler, also where the tests run in the background of a shell."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, signal.SIG_DFL if before is None else before)
