"""Work shared by two processes: 20 fits by Dask beside one worker, one SVI run beside one process.

    python -m benchmarks._processes dask
    python -m benchmarks._processes kill
    OMP_NUM_THREADS=1 python -m benchmarks._processes svi

Prints JSON: seconds of each way in turns, and the ratio of their medians. Processes, imports, a
worker's first fit and the first round, which compiles, are not counted. ``kill`` is no timing: a
worker is killed in the middle of 8 fits with checkpoints, and the results are compared with those
of one process.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing as mp
import os
import signal
import statistics
import tempfile
import threading
import time
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import pyro_bnn as bnn
from benchmarks import _settings
from pyro_bnn.infer.parallel import DataParallel
from pyro_bnn.infer.parallel.tasks import in_order

FITS = 20
KILLED_AMONG = 8
KILLED_AFTER = 12.0  # s


def fits(steps: int) -> list[Any]:
    """Tasks: seeds of one fit, 10-50-1 on 400 rows."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(400, 10, generator=generator)
    y = x[:, 0].sin() + 0.1 * torch.randn(400, generator=generator)
    engine = bnn.SVI(bnn.guides.AutoNormal, num_steps=steps, compile=False)
    run = partial(engine.run, bnn.models.MLP(10, hidden=(50,)), (x, y), progress=False)
    return [partial(run, seed=seed) for seed in range(FITS)]


def first() -> None:
    """A fit that is not counted: a worker that was just started imports and sets up for it."""
    fits(1)[0]()


def by_dask(steps: int, rounds: int) -> dict[str, Any]:
    """Seconds of all fits here, as joblib does them where there is one worker, and by two, warm."""
    import joblib
    from distributed import Client, LocalCluster

    tasks, found, seconds = fits(steps), {}, {1: [], 2: []}
    with LocalCluster(2, threads_per_worker=1, dashboard_address=None) as cluster:
        for turn in range(rounds + 1):
            for workers in (1, 2):
                cluster.scale(workers)
                with Client(cluster) as client:
                    client.wait_for_workers(workers)
                    while len(client.scheduler_info()["workers"]) != workers:
                        time.sleep(0.1)
                    with joblib.parallel_config("dask"):
                        client.run(first)
                        start = time.perf_counter()
                        every = joblib.Parallel()(joblib.delayed(task)() for task in tasks)
                        took = time.perf_counter() - start
                found[workers] = [p.unconstrained(5, 0) for p in every]
                if turn:
                    seconds[workers].append(took)
    here = [p.unconstrained(5, 0) for p in in_order(tasks[:3])]
    equal = all(map(torch.equal, found[1], found[2])) and all(map(torch.equal, here, found[2]))
    return {"seconds": seconds, "equal_bits": equal}


def with_a_kill(steps: int, seconds: float) -> dict[str, Any]:
    """Fits by two workers, one of which is killed after some seconds; then each fit here."""
    import joblib
    from distributed import Client, LocalCluster

    with (
        tempfile.TemporaryDirectory() as folder,
        LocalCluster(2, threads_per_worker=1, dashboard_address=None) as cluster,
        Client(cluster) as client,
    ):
        client.wait_for_workers(2)
        before = set(client.run(os.getpid).values())
        killer = threading.Timer(seconds, os.kill, (min(before), signal.SIGKILL))
        tasks = fits(steps)[:KILLED_AMONG]
        saved = [
            partial(task, checkpoint=f"{folder}/{i}", resume=True) for i, task in enumerate(tasks)
        ]
        with joblib.parallel_config("dask"):
            killer.start()
            every = joblib.Parallel()(joblib.delayed(task)() for task in saved)
        is_late = killer.is_alive()
        killer.cancel()
        client.wait_for_workers(2)
        after = set(client.run(os.getpid).values())
    pairs = [
        (a.unconstrained(5, 0), task().unconstrained(5, 0))
        for a, task in zip(every, tasks, strict=True)
    ]
    return {
        "fits": len(every),
        "killed_in_time": not is_late and len(before & after) == 1,
        "equal_bits": all(torch.equal(*pair) for pair in pairs),
    }


def _process(rank: int, count: int, batch: int, steps: int, folder: Path) -> None:
    torch.set_num_threads(1)
    if count > 1:
        init = f"file://{folder / 'group'}"
        wait = timedelta(seconds=60)
        dist.init_process_group("gloo", init_method=init, rank=rank, world_size=count, timeout=wait)
    generator = torch.Generator().manual_seed(0)
    rows = 4 * batch  # no smaller batch at an epoch's end
    x, y = torch.randn(rows, 784, generator=generator), torch.randn(rows, generator=generator)
    at: list[tuple[int, float]] = []
    options = {"batch_size": batch, "estimator": "weight_sampling", "compile": True}
    svi = bnn.SVI(bnn.guides.AutoNormal, num_steps=steps, **options)
    engine: Any = DataParallel(svi) if count > 1 else svi
    model = bnn.models.MLP(784, hidden=(400, 400))

    def note(reached: Any) -> None:
        at.append((reached.step, time.perf_counter()))

    engine.run(model, (x, y), progress=False, on_step=note)
    (first, start), (last, end) = at[0], at[-1]
    (folder / f"{rank}").write_text(json.dumps((end - start) / (last - first)))


def by_ranks(count: int, batch: int, steps: int) -> float:
    """Seconds of a step, after the first hundred."""
    context = mp.get_context("spawn")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        own = [
            context.Process(target=_process, args=(r, count, batch, steps, folder))
            for r in range(count)
        ]
        for process in own:
            process.start()
        for process in own:
            process.join()
        return float(json.loads((folder / "0").read_text()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["dask", "kill", "svi"])
    parser.add_argument("--steps", type=int)
    parser.add_argument("--batch", type=int, default=8_192)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    if given.what == "kill":
        found = with_a_kill(given.steps or 4_000, KILLED_AFTER)
        print(json.dumps(found, indent=1))
        raise SystemExit(not (found["killed_in_time"] and found["equal_bits"]))
    if given.what == "dask":
        found = by_dask(given.steps or 2_000, given.rounds)
        seconds = found["seconds"]
    else:
        seconds = {1: [], 2: []}
        for _ in range(given.rounds):
            for count in (1, 2):
                seconds[count].append(by_ranks(count, given.batch, given.steps or 200))
        found = {"seconds_a_step": seconds, "batch": given.batch}
    ratio = statistics.median(seconds[1]) / statistics.median(seconds[2])
    about = {"machine": _settings.machine(), "versions": _settings.versions()}
    print(json.dumps({**found, "ratio": ratio, **about}, indent=1))


if __name__ == "__main__":
    main()
