"""Model and data as they are given to an engine, in every form that they may have."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sized
from contextlib import contextmanager
from typing import Any, Literal, TypeAlias, TypeVar

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from pyro_bnn.data import Dataset
from pyro_bnn.data.arrays import ArrayLike, listed, to_tensor
from pyro_bnn.errors import DataError, ShapeError
from pyro_bnn.guides import Guide
from pyro_bnn.handled import model_name, module_of
from pyro_bnn.infer.own_weights import OwnWeights
from pyro_bnn.posterior.site_posterior import SitePosterior
from pyro_bnn.program.distributions import base_distribution
from pyro_bnn.program.features import Memo
from pyro_bnn.program.handlers import Model, runs_without_f
from pyro_bnn.program.joint import Joint
from pyro_bnn.program.program import Program
from pyro_bnn.program.random_state import isolated

FitData: TypeAlias = "Dataset | tuple[ArrayLike, ArrayLike] | DataLoader[Any]"


Init: TypeAlias = (
    SitePosterior | nn.Module | Mapping[str, Tensor] | OwnWeights | Literal["prior"] | None
)


G = TypeVar("G", bound=Guide)


def as_dataset(data: FitData) -> Dataset:
    """The rows of a data set, a pair (x, y), or one pass over a DataLoader.

    Raises:
        DataError: If it is none of these, holds values that are not finite, or is a DataLoader
            that drops or repeats rows or yields something else than pairs.
    """
    if isinstance(data, Dataset):
        return data
    if isinstance(data, DataLoader):
        if data.drop_last:
            raise DataError(
                "the DataLoader drops rows of the data: pass drop_last=False, every batch is "
                "scaled by its own number of rows"
            )
        _check_sampler(data)
        batches = [pair_of(batch) for batch in data]
        if not batches:
            raise DataError("the DataLoader yields no batch")
        return Dataset(torch.cat([x for x, _ in batches]), torch.cat([y for _, y in batches]))
    if isinstance(data, tuple | list) and len(data) == 2:
        return Dataset(data[0], data[1])
    raise DataError(
        "data is a pyro_bnn.data.Dataset, a pair (x, y) or a torch DataLoader, not "
        f"{type(data).__name__}; of a Split pass split.train; for a model of any arguments pass "
        "these as one Call: run(model, bnn.data.Call(...))"
    )


def rows_for(model: Model, data: FitData) -> Dataset:
    """The rows of data as :func:`as_dataset` has them, for a model that takes rows.

    Raises:
        DataError: As :func:`as_dataset`.
        ShapeError: If x and y are no rows; first says of a model that runs on them as they are,
            and records no f, how it is run.
    """
    try:
        return as_dataset(data)
    except ShapeError as error:
        if not isinstance(data, tuple | list) or not runs_without_f(model, data):
            raise
        raise ShapeError(
            f"{model_name(model)} records no f, as a network does, and takes x and y as they are: "
            "pass them as one Call, run(model, bnn.data.Call(x, y)). As rows of a network, "
            f"{error}"
        ) from error


def program_of(model: Model, data: Dataset, memo: Memo | None = None) -> Program:
    """The program of a model on all rows of its data; see :class:`Program`.

    Raises:
        DataError: If y holds classes, with names or as text, and the likelihood is over numbers.
        ModelError, ShapeError, SiteError: As :class:`pyro_bnn.program.Program`.
    """
    program = Program(model, data.x, data.y, memo=memo)
    if data.class_names is not None:
        fn, _ = program.observed(program.initial, program.example.x)
        if not base_distribution(fn).support.is_discrete:
            raise DataError(
                f"y holds the classes {listed(data.class_names)}, but the model's likelihood is a "
                f"{program.likelihood_family.__name__}, over numbers: take likelihoods.Categorical("
                f"{len(data.class_names)}), or pass the numbers as such"
            )
    return program


def set_up(guide: Guide, program: Joint) -> None:
    """Make the parameters of a guide, where and as the program computes.

    Raises:
        SiteError: If the guide does not cover a site of the model.
    """
    guide.set_up_for(program)
    guide.check_covers(program.sites)


def new_guide(make: Callable[[Model], G], program: Joint) -> G:
    """A guide of a program's model, set up."""
    with isolated():
        guide = make(program.model)
        set_up(guide, program)
    return guide


def _check_sampler(loader: DataLoader[Any]) -> None:
    sampler = getattr(loader.batch_sampler, "sampler", loader.sampler)
    if getattr(sampler, "replacement", False):
        raise DataError(
            f"the DataLoader's {type(sampler).__name__} draws with replacement, so that some rows "
            "come twice and others not at all: pass a sampler that goes through all of them"
        )
    if not (isinstance(loader.dataset, Sized) and isinstance(sampler, Sized)):
        return
    num_drawn, num_rows = len(sampler), len(loader.dataset)
    if num_drawn != num_rows:
        raise DataError(
            f"the DataLoader's sampler draws {num_drawn} of the {num_rows} rows of its data set: "
            "pass a data set of the rows to fit, and a sampler that goes through all of them"
        )


def pair_of(batch: object) -> tuple[Tensor, Tensor]:
    """The pair (x, y) that a DataLoader yields, or the values of its dict with keys x and y.

    Raises:
        DataError: If it yields something else.
    """
    if isinstance(batch, Mapping) and set(batch) == {"x", "y"}:
        batch = (batch["x"], batch["y"])
    if not isinstance(batch, tuple | list) or len(batch) != 2:
        what = f"{len(batch)} items" if isinstance(batch, tuple | list) else type(batch).__name__
        if isinstance(batch, Mapping):
            what = f"a dict with {', '.join(map(repr, batch))}"
        raise DataError(
            f"the DataLoader yields pairs (x, y), or dicts with keys 'x' and 'y', but this one "
            f"yields {what}"
        )
    x, y = (to_tensor(part, name) for part, name in zip(batch, ("x", "y"), strict=True))
    return x, y


@contextmanager
def unchanged(model: Model) -> Iterator[None]:
    """Give a model its parameters, with value, gradient and flag, back."""
    module = module_of(model)
    modules = [] if module is None else list(module.modules())
    own = [(module._parameters, dict(module._parameters)) for module in modules]
    parameters = dict.fromkeys(p for _, before in own for p in before.values() if p is not None)
    values = [(p, p.detach().clone(), p.grad, p.requires_grad) for p in parameters]
    try:
        yield
    finally:
        for current, before in own:
            current.clear()
            current.update(before)
        with torch.no_grad():
            for parameter, value, grad, trainable in values:
                parameter.requires_grad_(trainable).copy_(value)
                parameter.grad = grad
