"""What every benchmark has: its options, the facts of the machine, and the JSON that it writes."""

from __future__ import annotations

import argparse
import datetime as dt
import importlib.metadata
import json
import os
import platform
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"
SCHEMA = 1
LIBRARIES = ("torch", "pyro-ppl", "numpyro", "jax", "blackjax", "bayesian-torch", "tyxe", "nutpie")
NOT_INSTALLED = "not installed"


@dataclass(frozen=True)
class Settings:
    """Options of one run.

    Attributes:
        threads: CPU threads of every contender.
        rounds: Turns of every contender; for growth, the most of them.
        device: ``"cpu"`` or ``"cuda"``.
        quick: Few and small: a smoke test, whose figures mean nothing and are not kept.
        out: Folder of the JSON and the pictures; None prints only.
        command: What was typed.
        parts: Which parts to run, of a benchmark that has some.
        only: Which cases to run, of a benchmark that lets one choose; empty for all.
    """

    threads: int
    rounds: int
    device: str
    quick: bool
    out: Path | None
    command: str
    parts: tuple[str, ...] = ()
    only: tuple[str, ...] = ()


def parse(
    module: str,
    description: str | None,
    argv: Sequence[str] | None,
    *,
    rounds: int,
    devices: bool = False,
    parts: tuple[str, ...] = (),
    only: tuple[str, ...] = (),
) -> Settings:
    """Read the command line and set the threads.

    Args:
        module: Name of the benchmark, as in ``python -m benchmarks.<module>``.
        description: For ``--help``.
        argv: Arguments; None for those of the process.
        rounds: Their default number, 0 where each part has one; in quick mode it is 2.
        devices: Whether the benchmark can run on a GPU.
        parts: What ``--part`` chooses from.
        only: What ``--only`` chooses from.
    """
    parser = argparse.ArgumentParser(prog=f"python -m benchmarks.{module}", description=description)
    cores = os.cpu_count() or 1
    parser.add_argument("--threads", type=int, default=cores, help="CPU threads of every contender")
    usual = rounds or "by part"
    parser.add_argument("--rounds", type=int, help=f"turns of every contender ({usual})")
    parser.add_argument(
        "--quick", action="store_true", help="a smoke test; nothing is written without --out"
    )
    parser.add_argument("--out", type=Path, help="folder of the results (benchmarks/results)")
    if devices:
        parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    if parts:
        parser.add_argument("--part", nargs="+", choices=parts, help="which parts to run (all)")
    if only:
        parser.add_argument("--only", nargs="+", choices=only, help="which cases to run (all)")
    given = parser.parse_args(argv)
    if not 1 <= given.threads <= cores:
        parser.error(f"--threads is between 1 and the {cores} cores here, not {given.threads}")
    if given.rounds is not None and given.rounds < 1:
        parser.error(f"--rounds is at least 1, not {given.rounds}")
    device = given.device if devices else "cpu"
    if device == "cuda":
        import torch

        if not torch.cuda.is_available():
            parser.error("--device cuda needs a GPU that torch can use, and torch finds none")
    set_threads(given.threads)
    changed = [
        f"--{name} {value}"
        for name, value in (
            ("threads", given.threads),
            ("rounds", given.rounds),
            ("device", device),
        )
        if value != parser.get_default(name) and hasattr(given, name)
    ]
    if parts and given.part:
        changed.append(f"--part {' '.join(given.part)}")
    if only and given.only:
        changed.append(f"--only {' '.join(given.only)}")
    return Settings(
        threads=given.threads,
        rounds=given.rounds or (2 if given.quick else rounds),
        device=device,
        quick=given.quick,
        out=given.out or (None if given.quick else RESULTS),
        command=" ".join(["python -m", f"benchmarks.{module}", *changed]),
        parts=tuple((parts and given.part) or parts),
        only=tuple((only and given.only) or ()),
    )


def set_threads(threads: int) -> None:
    """Hold torch, and by the affinity of the process every other library, to some threads."""
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(threads)
    hold_to(sorted(allowed_cores())[:threads])


def allowed_cores() -> set[int]:
    """Cores on which this process may run; empty where the system does not say."""
    return os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set()


def hold_to(cores: Collection[int]) -> None:
    """Run this process, and those that it starts, on these cores; no cores change nothing."""
    if cores:
        os.sched_setaffinity(0, cores)


def machine() -> dict[str, Any]:
    """Processor, memory, system, Python, and the GPU where there is one."""
    facts: dict[str, Any] = {
        "cpu": _cpu_model(),
        "cores": os.cpu_count(),
        "system": platform.platform(terse=True),
        "python": platform.python_version(),
    }
    import torch

    if hasattr(os, "sysconf"):
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        facts["memory_gib"] = round(memory / 2**30)
    if torch.cuda.is_available():
        facts["gpu"] = torch.cuda.get_device_name()
    return facts


def versions() -> dict[str, str]:
    """Version of every library compared, or ``"not installed"``."""
    found = {}
    for name in LIBRARIES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = NOT_INSTALLED
    return found


def result(
    benchmark: str, settings: Settings, rows: Sequence[Mapping[str, Any]], **more: Any
) -> dict[str, Any]:
    """One run as JSON-able values: machine, versions, date, command, options and rows."""
    return {
        "schema": SCHEMA,
        "benchmark": benchmark,
        "date": dt.datetime.now(dt.UTC).date().isoformat(),
        "command": settings.command,
        "threads": settings.threads,
        "rounds": settings.rounds,
        "device": settings.device,
        "machine": machine(),
        "versions": versions(),
        "rows": [dict(row) for row in rows],
        **more,
    }


def stem(found: Mapping[str, Any]) -> str:
    """Name of a result's files, without suffix: ``"svi"``, ``"svi-cuda"``."""
    return str(found["benchmark"]) + ("-cuda" if found["device"] == "cuda" else "")


def write(found: Mapping[str, Any], folder: Path) -> Path:
    """Write one result as JSON and return the path."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{stem(found)}.json"
    path.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n")
    print(f"wrote {path}", flush=True)
    return path


def _cpu_model() -> str:
    lines = Path("/proc/cpuinfo")
    if lines.exists():
        for line in lines.read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()
