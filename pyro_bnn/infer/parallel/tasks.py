"""Independent fits side by side, on the backend that ``joblib.parallel_config`` names.

The seed of a task follows from its number, never from the process that runs it: results are those
of a single process, bit for bit, on equal machines with equal numbers of threads.
"""

from __future__ import annotations

import pickle
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias, TypeVar

import torch

from pyro_bnn.errors import OptionError
from pyro_bnn.posterior.provenance import one_of_processes

T = TypeVar("T")
ParallelTask: TypeAlias = Callable[[], T]

_one_at_a_time = threading.Lock()  # in a process: Pyro's and torch's random state are its own


def number_at_once() -> int:
    """How many tasks the ``joblib.parallel_config`` around the call does at a time; else 1."""
    import joblib

    return int(joblib.effective_n_jobs(joblib.Parallel().n_jobs))


def in_order(tasks: Iterable[ParallelTask[T]]) -> Iterator[T]:
    """Yield the result of each task, in the order of the tasks, as soon as it is there.

    Under ``joblib.parallel_config("loky", n_jobs=2)``, or with ``"dask"`` and a client, tasks are
    pickled and done elsewhere, with as many threads of torch as there are here. Without it, or with
    one job, they are done here, one after another.

    Args:
        tasks: Functions that can be pickled. An error of one ends all.

    Raises:
        OptionError: If the backend has threads in place of processes.
    """
    import cloudpickle
    import joblib

    count = number_at_once()
    if count == 1:
        yield from (task() for task in tasks)
        return
    parallel = joblib.Parallel()
    if getattr(parallel._backend, "uses_threads", False):
        raise OptionError(
            "fits side by side are processes, as Pyro's state is one for all threads: take "
            "joblib.parallel_config('loky'), not threads"
        )
    if getattr(parallel._backend, "supports_return_generator", False):
        parallel = joblib.Parallel(return_as="generator")
    threads = torch.get_num_threads()
    # Pickled here, before any starts: joblib pickles in threads of its own, while whoever takes the
    # results may run the very model, and Pyro changes a model's attributes as it runs.
    pickled = [cloudpickle.dumps(task) for task in tasks]
    results = iter(parallel(joblib.delayed(_call)(task, count, threads) for task in pickled))
    try:
        for value in results:  # noqa: UP028 (``yield from`` would close it before ``finally``)
            yield value
    finally:  # joblib warns when it gives up tasks that nobody waits for
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            getattr(results, "close", str)()


def _call(pickled: bytes, count: int, threads: int) -> Any:
    with _one_at_a_time, one_of_processes(count, threads):
        return pickle.loads(pickled)()  # noqa: S301 - bytes of the process that asks


@contextmanager
def backend(name: str, num_jobs: int | None = None) -> Iterator[None]:
    """A backend of joblib by its name, for the tasks inside.

    Args:
        name: ``"loky"``, ``"dask"`` or ``"ray"``, or another that is registered with joblib. Dask
            takes the scheduler that its configuration names, as ``DASK_SCHEDULER_ADDRESS`` does,
            and else starts processes here; so does Ray with ``RAY_ADDRESS``.
        num_jobs: Tasks at a time; None for as many as there are cores or workers.

    Raises:
        OptionError: If there is no such backend, or its package is not installed.
    """
    import joblib

    cluster, jobs = None, -1 if num_jobs is None else num_jobs
    try:
        if name == "dask":
            cluster, jobs = _dask_client(num_jobs), -1  # all its workers
        elif name == "ray":
            from ray.util.joblib import register_ray

            register_ray()
        config = joblib.parallel_config(name, n_jobs=jobs)
    except ImportError as error:
        package = f"{error.name}".partition(".")[0]
        how = "pip install 'pyro-bnn[dask]'" if name == "dask" else "install it"
        raise OptionError(f"the backend {name!r} needs the package {package}: {how}") from error
    except ValueError as error:
        raise OptionError(
            f"backend is one of 'dask', 'loky', 'ray', or another that is registered with joblib, "
            f"not {name!r}"
        ) from error
    try:
        with config:
            yield
    finally:
        if cluster is not None:
            cluster.close()


def _dask_client(num_jobs: int | None) -> Any:
    import dask
    import distributed

    client: Any = distributed.Client

    if dask.config.get("scheduler-address", None) is None:
        return client(n_workers=num_jobs, threads_per_worker=1, dashboard_address=None)
    if num_jobs is not None:
        raise OptionError(
            f"{num_jobs} jobs have no effect, as a scheduler is named, whose workers do the tasks: "
            "leave it out, or unset DASK_SCHEDULER_ADDRESS"
        )
    return client()
