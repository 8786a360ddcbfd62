"""What a run tells while it is on, and that telling changes nothing."""

from __future__ import annotations

import inspect
import re
import sys
import textwrap
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pyro
import pytest
import torch
from pyro.infer import autoguide

from pyro_bnn import NUTS, SVI, SWAG, Exact, guides, infer
from pyro_bnn.infer import run as runs
from pyro_bnn.infer.run import Reached
from tests.test_engines import ENGINES, X, Y, fit, model, numbers, plain_fit, small

WINDOW = 20
SHORT = 7  # of which the few steps of each engine have several


@pytest.fixture(autouse=True)
def short_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs, "WINDOW", WINDOW)


@pytest.mark.parametrize("cls", ENGINES)
def test_every_engine_tells_where_it_is_and_stays_the_same(
    cls: type[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runs, "WINDOW", SHORT)
    told: list[Reached] = []

    def listen(at: Reached) -> None:
        told.append(at)
        torch.randn(3)
        pyro.param("mine", torch.zeros(1))

    one, again = fit(small(cls), on_step=listen), plain_fit(cls.__name__)
    torch.testing.assert_close(numbers(one), numbers(again), rtol=0, atol=0)
    if cls is Exact:  # which has no step
        assert told == []
        return
    steps = [at.step for at in told]
    assert steps == sorted(steps)
    assert len({step // SHORT for step in steps[:-1]}) == len(steps) - 1  # once a window
    assert [at.seconds for at in told] == sorted(at.seconds for at in told)
    has_objective = len(one.losses) > 0 or cls is SWAG  # whose draws are of no loss
    assert all((at.objective is not None) == has_objective for at in told)


def test_the_objective_is_that_of_the_window() -> None:
    told: list[Reached] = []
    losses = fit(small(SVI, num_steps=50), on_step=told.append).losses
    assert [at.step for at in told] == [20, 40, 50]
    expected = [-losses[:20].mean(), -losses[20:40].mean(), -losses[30:].mean()]
    np.testing.assert_allclose([float(at.objective or 0) for at in told], expected, rtol=1e-12)


def test_chains_tell_the_draws_of_the_slowest() -> None:
    told: list[Reached] = []
    small(NUTS, num_samples=60).run(model(), (X, Y), progress=False, on_step=told.append)
    assert told[-1].step == 64  # 4 of the warm-up and 60
    assert all(at.step // WINDOW == i + 1 for i, at in enumerate(told[:-1]))


def test_a_guide_of_stock_pyro_draws_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pyro_bnn.infer.svi.stock.NUM_DRAWS", 20)  # losses alone are compared
    pyro.set_rng_seed(1)
    svi = SVI(autoguide.AutoNormal, num_steps=25)
    plain = fit(svi).losses
    np.testing.assert_array_equal(fit(svi, on_step=lambda at: torch.randn(at.step)).losses, plain)


@pytest.mark.parametrize("cls", [SVI, NUTS, infer.BAOAB, infer.VON])
def test_what_it_raises_ends_the_run_and_leaves_the_callers_state(
    cls: type[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runs, "WINDOW", SHORT)
    own, before = model(), torch.random.get_rng_state()
    parameters = {name: value.clone() for name, value in own.state_dict().items()}

    def stop(at: Reached) -> None:
        raise LookupError(f"enough at {at.step}")

    with pytest.raises(LookupError, match=r"enough at ([7-9]|1[0-3])$"):
        small(cls).run(own, (X, Y), progress=False, on_step=stop)
    assert torch.equal(torch.random.get_rng_state(), before)
    assert list(pyro.get_param_store().keys()) == []
    assert all(torch.equal(own.state_dict()[name], value) for name, value in parameters.items())
    fit(small(cls))  # and Ctrl-C is watched as before


def test_a_resumed_run_tells_the_rest(tmp_path: Path) -> None:
    told: list[Reached] = []

    def stop(at: Reached) -> None:
        if at.step == 40:
            raise KeyboardInterrupt

    svi = small(SVI, num_steps=60)
    with pytest.raises(KeyboardInterrupt):
        fit(svi, checkpoint=tmp_path, on_step=stop)
    fit(svi, checkpoint=tmp_path, resume=True, on_step=told.append)
    assert [at.step for at in told][-2:] == [40, 60]
    told.clear()
    fit(svi, checkpoint=tmp_path, resume=True, on_step=told.append)  # at its end
    assert told == []


# --- the recipes ---------------------------------------------------------------------------------

RECIPES = re.findall(r"::\n\n((?:    .*\n|\n)+)", inspect.cleandoc(Reached.__doc__ or "") + "\n")


class Tracker:
    """A writer that keeps what it is told, by the two calls of TensorBoard and of MLflow."""

    def __init__(self) -> None:
        self.points: list[tuple[str, float, int]] = []
        self.params: dict[str, Any] = {}

    def __call__(self, *_: Any) -> Tracker:
        return self

    def __enter__(self) -> Tracker:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    start_run = __call__

    def add_scalar(self, tag: str, scalar_value: float, global_step: int) -> None:
        self.points.append((tag, scalar_value, global_step))

    def log_metric(self, key: str, value: float, step: int) -> None:
        self.points.append((key, value, step))

    def log_params(self, params: dict[str, Any]) -> None:
        self.params = params


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_recipe_logs_the_elbo_of_each_window(
    recipe: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    tracker, board, flow = Tracker(), ModuleType("tensorboard"), ModuleType("mlflow")
    vars(board).update(SummaryWriter=tracker)
    vars(flow).update({n: getattr(tracker, n) for n in ("start_run", "log_metric", "log_params")})
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", board)
    monkeypatch.setitem(sys.modules, "mlflow", flow)
    svi = SVI(guides.AutoNormal, num_steps=40, compile=False)
    names: dict[str, Any] = {"svi": svi, "model": model(), "data": (X, Y)}
    exec(textwrap.dedent(recipe), names)
    losses = names["posterior"].losses
    expected = [("ELBO", -losses[:20].mean(), 20), ("ELBO", -losses[20:].mean(), 40)]
    for (name, value, step), (key, mean, at) in zip(tracker.points, expected, strict=True):
        assert (name, step) == (key, at)
        np.testing.assert_allclose(value, mean, rtol=1e-12)
    if "mlflow" in recipe:
        assert tracker.params["num_steps"] == 40


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of TensorBoard's own imports
def test_tensorboard_itself_has_the_elbo_of_each_window(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By its own writer, and read back by its own reader, where it is installed."""
    reader = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    monkeypatch.chdir(tmp_path)
    svi = SVI(guides.AutoNormal, num_steps=40, compile=False)
    names: dict[str, Any] = {"svi": svi, "model": model(), "data": (X, Y)}
    (recipe,) = (own for own in RECIPES if "tensorboard" in own)
    exec(textwrap.dedent(recipe), names)
    losses = names["posterior"].losses
    (folder,) = tmp_path.glob("runs/*")
    points = reader.EventAccumulator(str(folder)).Reload().Scalars("ELBO")
    assert [point.step for point in points] == [20, 40]
    expected = [-losses[:20].mean(), -losses[20:].mean()]
    np.testing.assert_allclose([point.value for point in points], expected, rtol=1e-6)  # float32


def test_there_are_two_recipes() -> None:
    assert len(RECIPES) == 2
    assert max(len(textwrap.dedent(recipe).strip().splitlines()) for recipe in RECIPES) <= 10
