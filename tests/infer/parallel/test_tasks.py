"""Fits as tasks of joblib: the results are those of one process, whatever does the work."""

from __future__ import annotations

import os
import shutil
import sys
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import joblib
import numpy as np
import pytest
import torch
from numpy.testing import assert_array_equal

from pyro_bnn import SVI, SWAG, VOGN, Ensemble, guides, models
from pyro_bnn.diagnostics import simulation_based_calibration, variational_calibration
from pyro_bnn.errors import DivergenceError, OptionError
from pyro_bnn.infer.ensembles.members import ApartRun
from pyro_bnn.infer.parallel.tasks import backend, in_order, number_at_once
from pyro_bnn.posterior.provenance import Provenance

X = torch.linspace(-1, 1, 12).unsqueeze(-1)
Y = X[:, 0].sin()
NET = models.MLP(1, hidden=(3,))
FIT: dict[str, Any] = {"num_steps": 5, "compile": False}


def facts(number: int) -> tuple[int, int, int, int]:
    provenance = Provenance("SVI", "SVI")
    return number, os.getpid(), torch.get_num_threads(), provenance.processes


def diverge() -> None:
    raise DivergenceError("the loss is not finite at step 5")


@pytest.fixture(scope="module")
def two() -> Callable[[], Any]:
    """Two processes of joblib, which all tests here share."""
    return lambda: joblib.parallel_config("loky", n_jobs=2)


def test_without_a_choice_tasks_are_done_here_one_after_another() -> None:
    done: list[int] = []
    found = in_order([partial(done.append, number) for number in range(3)])
    assert (number_at_once(), done) == (1, [])
    next(found)
    assert done == [0]  # each when it is asked for
    assert [facts(0)] == [*in_order([partial(facts, 0)])]


@pytest.mark.slow("processes")
def test_tasks_are_done_elsewhere_in_their_order_with_the_threads_of_here(two: Any) -> None:
    with two():
        assert number_at_once() == 2
        found = [*in_order([partial(facts, number) for number in range(4)])]
    assert [number for number, *_ in found] == [0, 1, 2, 3]
    assert os.getpid() not in {pid for _, pid, *_ in found}
    assert {tuple(rest) for _, _, *rest in found} == {(torch.get_num_threads(), 2)}


def test_threads_are_refused() -> None:
    with (
        joblib.parallel_config("threading", n_jobs=2),
        pytest.raises(OptionError, match="are processes, as Pyro's state is one for all threads"),
    ):
        [*in_order([diverge])]


@pytest.mark.slow("processes")
@pytest.mark.parametrize(
    "member",
    [
        guides.AutoNormal,
        SWAG(num_steps=30, num_iterates=3, rank=2),
        VOGN(num_steps=3, descent_steps=0),  # starts at a draw that is made as the model is traced
    ],
)
def test_members_of_an_ensemble_are_those_of_one_process(
    two: Any, member: Any, tmp_path: Path
) -> None:
    own = FIT if member is guides.AutoNormal else {}
    engine = Ensemble(num_members=3, member=member, **own)
    run = partial(engine.run, NET, (X, Y), seed=4, progress=False)
    here = run()
    with two():
        apart = run(checkpoint=tmp_path / "saved")
    again = run(checkpoint=tmp_path / "saved", resume=True)  # all are done
    for other in (apart, again):
        z, expected = (fit.unconstrained(50, 1) for fit in (other, here))
        assert torch.equal(z, expected)
        assert_array_equal(other.losses, here.losses)
        assert other.options == here.options


@pytest.mark.slow("processes")
def test_simulations_are_those_of_one_process(two: Any) -> None:
    points = SVI(guides.AutoDelta, **FIT)
    rank = partial(
        simulation_based_calibration, NET, X[:6], points, num_draws=19, num_simulations=20,
        progress=False,
    )  # fmt: skip
    own = SVI(guides.AutoNormal, **FIT)
    ask = partial(variational_calibration, NET, X[:6], own, num_simulations=20, progress=False)
    ranks, probabilities = rank().ranks, ask().probabilities
    with two():
        assert_array_equal(rank().ranks, ranks)
        assert_array_equal(ask().probabilities, probabilities)
    assert np.unique(probabilities).size > 20


class Noted:
    """A task that notes the thread that pickles it."""

    def __init__(self, threads: list[str]) -> None:
        self.threads = threads

    def __call__(self) -> int:
        return -1

    def __reduce__(self) -> tuple[Any, ...]:
        self.threads.append(threading.current_thread().name)
        return partial, (int, "7")


@pytest.mark.slow("processes")
def test_tasks_are_pickled_by_the_thread_that_asks_before_any_is_done(two: Any) -> None:
    threads: list[str] = []
    with two():
        found = in_order(Noted(threads) for _ in range(8))
        assert next(found) == 7
        assert threads == [threading.current_thread().name] * 8
        assert [*found] == [7] * 7


def test_a_backend_by_its_name() -> None:
    with backend("loky", 2):
        assert number_at_once() == 2
    with pytest.raises(OptionError, match=r"'dask', 'loky', 'ray', .*, not 'lokey'"):
        backend("lokey").__enter__()
    assert number_at_once() == 1


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "distributed", None)
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(OptionError, match=r"needs the package .*pip install 'pyro-bnn\[dask\]'"):
        backend("dask").__enter__()
    with pytest.raises(OptionError, match="the backend 'ray' needs the package ray: install it"):
        backend("ray").__enter__()


# An error here or there ends the processes, and others take seconds to start: so these are last.


@pytest.mark.slow("processes")
def test_members_that_were_done_are_not_done_again(
    two: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = Ensemble(num_members=3, member=guides.AutoNormal, **FIT)
    run = partial(engine.run, NET, (X, Y), progress=False, checkpoint=tmp_path / "saved")
    whole = engine.run(NET, (X, Y), progress=False)
    go, waited = ApartRun.go, []

    def lost(self: ApartRun) -> None:
        if self.step == 2:
            raise OSError("a worker was lost")
        go(self)

    monkeypatch.setattr(ApartRun, "go", lost)
    monkeypatch.setattr("pyro_bnn.infer.checkpoints.checkpoint.SECONDS", 0.0)
    with two(), pytest.raises(OSError, match="a worker was lost"):
        run()

    def counted(self: ApartRun) -> None:
        waited.append(self.step)
        go(self)

    shutil.copytree(tmp_path / "saved", tmp_path / "copy")
    here = run(checkpoint=tmp_path / "copy", resume=True)
    assert torch.equal(here.unconstrained(50, 1), whole.unconstrained(50, 1))
    monkeypatch.setattr(ApartRun, "go", counted)
    with two():
        found = run(resume=True)
    assert waited == [2]
    assert torch.equal(found.unconstrained(50, 1), whole.unconstrained(50, 1))


@pytest.mark.slow("processes")
def test_an_error_of_a_task_comes_here(two: Any) -> None:
    with two(), pytest.raises(DivergenceError, match="not finite at step 5"):
        [*in_order([diverge])]
