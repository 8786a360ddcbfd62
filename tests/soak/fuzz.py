"""Reads damaged and forged files for a while, in a process with a bound on its memory.

Run as ``python -m tests.soak.fuzz FOLDER SECONDS SEED``. The last line that it writes holds the
number of inputs and of refusals by file, and the most seconds of computing that one took; what was
read last lies in ``FOLDER/last``.
"""

from __future__ import annotations

import collections
import json
import logging
import random
import resource
import signal
import sys
import time
import traceback
import warnings
from pathlib import Path

from tests.hostile import Target, damaged, make_targets
from tests.rows import regression
from tests.soak.forged import Change, make_forged

SECONDS_OF_ONE = 10  # of computing
PATIENCE = 300  # s, of waiting too
ROOM = 3 << 30  # bytes of address space beyond what reading the true files took
GROWTH = 1 << 30  # bytes of memory


def main(folder: Path, seconds: float, seed: int) -> None:
    warnings.simplefilter("ignore")
    logging.disable()
    rng = random.Random(seed)
    targets: list[tuple[Target, Change]]
    targets = [(target, damaged) for target in make_targets(folder)]
    targets += make_forged(regression(24), folder)
    for target, _ in targets:
        assert not target.is_refused(target.content, folder), target.name
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
    status = Path("/proc/self/status").read_text()
    limit = (int(status.split("VmSize:")[1].split()[0]) << 10) + ROOM
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    tried: collections.Counter[str] = collections.Counter()
    refused: collections.Counter[str] = collections.Counter()
    slowest, end = 0.0, time.monotonic() + seconds
    while time.monotonic() < end:
        target, change = rng.choice(targets)
        content = change(target.content, rng)
        (folder / "last").write_bytes(content)
        (folder / "last.name").write_text(target.name)
        start = time.process_time()
        signal.setitimer(signal.ITIMER_PROF, SECONDS_OF_ONE)
        signal.alarm(PATIENCE)
        try:
            refused[target.name] += target.is_refused(content, folder)
        except Exception:
            sys.stderr.write(f"{target.name}:\n{traceback.format_exc()}")
            sys.exit(3)
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.alarm(0)
        slowest = max(slowest, time.process_time() - start)
        tried[target.name] += 1
    growth = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10) - before
    found = {
        "tried": tried.total(),
        "refused": refused.total(),
        "by_file": {name: [tried[name], refused[name]] for name in sorted(tried)},
        "slowest_s": round(slowest, 2),
        "growth_mib": growth >> 20,
    }
    sys.stdout.write(json.dumps(found) + "\n")
    assert growth < GROWTH, found


if __name__ == "__main__":
    main(Path(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3]))
