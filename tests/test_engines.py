"""Laws of all engines: what ``run`` promises, whatever is inside."""

from __future__ import annotations

import dataclasses
import functools
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pyro
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from pyro_bnn import guides, infer, likelihoods, models
from pyro_bnn.errors import DivergenceError, OptionError
from pyro_bnn.infer.checkpoints.checkpoint import Checkpoint
from pyro_bnn.infer.checkpoints.interrupts import Interrupted
from pyro_bnn.infer.conjugate.ascent import ConjugateEngine
from pyro_bnn.infer.engine import Engine
from pyro_bnn.posterior import Posterior

X = torch.linspace(-1, 1, 24).reshape(12, 2)
Y = (X @ torch.tensor([1.0, -0.5])) + 0.1 * torch.linspace(-1, 1, 12).sin()


def model() -> models.LinearRegression:
    """A model that every engine serves."""
    return models.LinearRegression(2, likelihood=likelihoods.Normal(0.3))


def small(cls: type[Any], **options: Any) -> Any:
    """An engine with few steps."""
    names = {field.name for field in dataclasses.fields(cls)}
    chains = {
        "num_chains": 2,
        "num_members": 2,
        "num_islands": 2,
        "num_particles": 20,
        "warmup_steps": 4,
        "num_samples": 20,
        "max_tree_depth": 3,
        "num_steps": 3,
    }
    steps = (
        chains
        if names & {"num_chains", "num_members", "num_islands", "engine"}
        else {"num_steps": 20}
    )
    given: dict[str, Any] = {"compile": False, "thin": 2, "scale": 0.7, **steps, **options}
    start: tuple[Any, ...] = (guides.AutoNormal,) if "guide" in names else ()
    if "engine" in names:  # a method in cycles, which has the options
        own = {field.name for field in dataclasses.fields(infer.BAOAB)} & given.keys()
        start = (infer.BAOAB(**{name: given[name] for name in own}),)
        around = infer.SWAG(num_steps=20, num_iterates=4, rank=2, compile=False)
        # so that draws are kept from the start, and directions are as many as iterates have
        given = {"exploration": 0.0, "rank": 2, "around": around}
    return cls(*start, **{name: value for name, value in given.items() if name in names})


CLASSES = [getattr(infer, name) for name in infer.__all__]
ENGINES = [pytest.param(cls, id=cls.__name__) for cls in CLASSES]


def fit(engine: Any, data: Any = (X, Y), **options: Any) -> Posterior:
    found: Posterior = engine.run(model(), data, progress=False, **options)
    return found


@functools.cache
def plain_fit(name: str) -> Posterior:
    """The fit of seed 0, without a start, that several laws compare others with."""
    return fit(small(getattr(infer, name)))


@functools.cache
def other_fit(name: str) -> tuple[Posterior, dict[str, bool]]:
    """The fit of seed 4, and what of its caller's state is as it was before."""
    own, before = model(), torch.random.get_rng_state()
    of_numpy = np.random.get_state()[1].tolist()  # type: ignore[index]  # noqa: NPY002
    pyro.clear_param_store()
    parameters = {key: value.clone() for key, value in own.state_dict().items()}
    found: Posterior = small(getattr(infer, name)).run(own, (X, Y), seed=4, progress=False)
    return found, {
        "torch": torch.equal(torch.random.get_rng_state(), before),
        "NumPy": np.random.get_state()[1].tolist() == of_numpy,  # type: ignore[index]  # noqa: NPY002
        "store": list(pyro.get_param_store().keys()) == [],
        "model": all(torch.equal(own.state_dict()[k], value) for k, value in parameters.items()),
        "mode": own.training,
    }


def numbers(posterior: Posterior) -> torch.Tensor:
    """Draws of f at the rows, which all parameters of the posterior enter."""
    return posterior.function_draws(X, min(50, posterior.num_stored_draws or 50))


def has_batches(cls: type[Any]) -> bool:
    return hasattr(cls, "batch_size")


@pytest.mark.parametrize("cls", ENGINES)
def test_it_has_the_one_run_of_all(cls: type[Any]) -> None:
    assert issubclass(cls, Engine)
    assert "run" not in vars(cls)
    assert cls.run is Engine.run


@pytest.mark.parametrize("cls", ENGINES)
def test_another_seed_is_another_fit(cls: type[Any]) -> None:
    """And one seed is one fit: of the run that was stopped too, as is seen below."""
    if not issubclass(cls, ConjugateEngine):  # whose result depends on no start
        one, other = plain_fit(cls.__name__), other_fit(cls.__name__)[0]
        assert not torch.equal(numbers(other), numbers(one))


@pytest.mark.parametrize("cls", ENGINES)
def test_the_callers_state_is_as_it_was(cls: type[Any]) -> None:
    _, as_before = other_fit(cls.__name__)
    assert all(as_before.values()), as_before


@pytest.fixture
def default_handler() -> Any:
    """Python's own handler of Ctrl-C, which pytest may have replaced."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("default_handler")
@pytest.mark.parametrize("cls", ENGINES)
def test_a_run_that_was_stopped_twice_goes_on_bit_for_bit(
    cls: type[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    batches = {"batch_size": 5} if has_batches(cls) else {}
    engine = small(cls, num_samples=60, **batches)  # so that chains have draws at the second stop
    step, count, stop = Checkpoint.step, 0, -1

    def counted(self: Checkpoint, run: Any) -> None:
        nonlocal count
        count += 1
        if count == stop:
            signal.raise_signal(signal.SIGINT)
        step(self, run)

    monkeypatch.setattr(Checkpoint, "step", counted)
    whole = fit(engine, checkpoint=tmp_path / "whole")
    if not count:  # an engine without steps
        assert cls is infer.Exact
        assert torch.equal(numbers(fit(engine, seed=0)), numbers(whole))
        return
    first, second = (max(1, round(share * count)) for share in (1 / 3, 2 / 3))
    count, stop = 0, first
    with pytest.raises(Interrupted, match="goes on"):
        fit(engine, seed=0, checkpoint=tmp_path / "parts")
    count, stop = first, max(second, first + 1)
    with pytest.raises(Interrupted, match="goes on") as stopped:
        fit(engine, seed=0, checkpoint=tmp_path / "parts", resume=True)
    assert isinstance(stopped.value.posterior, Posterior)
    assert bool(numbers(stopped.value.posterior).isfinite().all())
    stop = -1
    parts = fit(engine, seed=0, checkpoint=tmp_path / "parts", resume=True)
    torch.testing.assert_close(numbers(parts), numbers(whole), rtol=0, atol=0)
    np.testing.assert_array_equal(parts.losses, whole.losses)


@pytest.mark.parametrize("cls", ENGINES)
def test_a_loader_of_all_rows_is_the_data_set(cls: type[Any]) -> None:
    loader = DataLoader(TensorDataset(X, Y), batch_size=len(X))
    torch.testing.assert_close(numbers(fit(small(cls), loader)), numbers(plain_fit(cls.__name__)))
    if has_batches(cls):
        with pytest.raises(OptionError, match="batch_size=3 would have no effect"):
            fit(small(cls, batch_size=3), loader)


@pytest.mark.parametrize("cls", ENGINES)
def test_a_divergence_keeps_what_is_finite(cls: type[Any]) -> None:
    names = {field.name for field in dataclasses.fields(cls)}
    if not names & {"learning_rate", "step_size", "engine"}:
        return  # chains reject what is not finite, and closed forms have no step
    rates = {"learning_rate": 1e30, "precision_learning_rate": 0.1, "step_size": 1e3}
    with pytest.raises(DivergenceError, match="step") as found:
        fit(small(cls, num_steps=400, warmup_steps=0, num_samples=400, thin=1, **rates))
    assert isinstance(found.value.posterior, Posterior)
    assert bool(numbers(found.value.posterior).isfinite().all())


@pytest.mark.parametrize("cls", ENGINES)
def test_it_starts_where_another_ended(cls: type[Any]) -> None:
    first = plain_fit("Exact")
    if cls in (infer.Exact, infer.SMC):
        with pytest.raises(OptionError, match="init would have no effect on"):
            fit(small(cls), init=first)
        return
    started = numbers(fit(small(cls), init=first))
    if not issubclass(cls, ConjugateEngine):  # whose end does not depend on the start
        assert not torch.equal(started, numbers(plain_fit(cls.__name__)))


@pytest.mark.parametrize("cls", ENGINES)
def test_negative_seeds_and_resumes_without_a_folder_are_refused(cls: type[Any]) -> None:
    with pytest.raises(OptionError, match="seed is an integer of at least 0"):
        fit(small(cls), seed=-1)
    with pytest.raises(OptionError, match="resume=True needs checkpoint='folder'"):
        fit(small(cls), resume=True)
