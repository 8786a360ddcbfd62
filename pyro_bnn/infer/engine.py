"""What all engines share: the forms data can take, starting points, checks of options."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sized
from contextlib import contextmanager
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from pyro_bnn.data import Dataset
from pyro_bnn.data.arrays import ArrayLike, listed, to_tensor
from pyro_bnn.effects import Model, base_distribution
from pyro_bnn.errors import DataError, OptionError, SiteError
from pyro_bnn.handled import module_of
from pyro_bnn.posterior import Posterior
from pyro_bnn.priors.hierarchy import Hierarchy, hierarchies
from pyro_bnn.program import Program

COMPILE_TIME = 7.0  # seconds, with an empty cache
GAIN_PER_CALL = 7.5e-4  # seconds that a compiled step of a small network saves
GAIN_PER_NUMBER = 1e-8  # and for each parameter of a large one
TOLERANCE = 1e-3  # of outputs at the same weights: dtypes and devices differ by less
WINDOW = 100  # steps over which an objective is smoothed, and after which a state is kept

Data: TypeAlias = "Dataset | tuple[ArrayLike, ArrayLike] | DataLoader[Any]"
Init: TypeAlias = "Posterior | nn.Module | Mapping[str, Tensor] | None"


def as_dataset(data: Data) -> Dataset:
    """The rows of a data set, a pair (x, y), or one pass over a DataLoader.

    Raises:
        DataError: If it is none of these, holds values that are not finite, or is a DataLoader
            that drops rows or yields something else than pairs.
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
        f"{type(data).__name__}; of a Split pass split.train"
    )


def program_of(model: Model, data: Dataset) -> Program:
    """The program of a model on all rows of its data.

    Raises:
        DataError: If y holds classes, with names or as text, and the likelihood is over numbers.
        ModelError, ShapeError, SiteError: As :class:`pyro_bnn.program.Program`.
    """
    program = Program(model, data.x, data.y)
    if data.class_names is not None:
        fn, _ = program.observed(program.initial, program.example.x)
        if not base_distribution(fn).support.is_discrete:
            raise DataError(
                f"y holds the classes {listed(data.class_names)}, but the model's likelihood is a "
                f"{program.likelihood_family.__name__}, over numbers: take likelihoods.Categorical("
                f"{len(data.class_names)}), or pass the numbers as such"
            )
    return program


def _check_sampler(loader: DataLoader[Any]) -> None:
    if not (isinstance(loader.dataset, Sized) and isinstance(loader.sampler, Sized)):
        return
    num_drawn, num_rows = len(loader.sampler), len(loader.dataset)
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


def check_compile(value: object) -> None:
    """Check the option ``compile``.

    Raises:
        OptionError: If it is not one of its three values.
    """
    if not isinstance(value, bool) and value != "auto":
        raise OptionError(f'compile is "auto", True or False, not {value!r}')


def is_compiled(option: Literal["auto"] | bool, num_calls: int, num_numbers: int) -> bool:
    """Whether a graph is compiled.

    A rule of sizes alone, not of measured times, so that a run with one seed stays the same.

    Args:
        option: The engine's option ``compile``.
        num_calls: How often the graph is replayed.
        num_numbers: Parameters that it moves.
    """
    if option != "auto":
        return option
    gain = num_calls * (GAIN_PER_CALL + GAIN_PER_NUMBER * num_numbers)
    return gain >= COMPILE_TIME


def check_positive_int(name: str, value: object, *, minimum: int = 1) -> None:
    """Check an integer option.

    Raises:
        OptionError: If it is not an integer of at least ``minimum``.
    """
    if not isinstance(value, int) or isinstance(value, bool) or value < minimum:
        raise OptionError(f"{name} is an integer of at least {minimum}, not {value!r}")


def check_positive(name: str, value: object) -> None:
    """Check a positive finite number.

    Raises:
        OptionError: If it is not.
    """
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not 0 < value < float("inf"):  # type: ignore[operator]
        raise OptionError(f"{name} is a positive number, not {value!r}")


def starting_points(
    program: Program, init: Init, num_points: int, seed: int, *, default: Tensor | None = None
) -> Tensor | None:
    """Starting points z ``[n, P]`` from ``init``, or None where it says nothing of the sites.

    Point-estimated parameters of the program are set from a module or a posterior on the way.

    Args:
        program: The model as tensor functions.
        init: A posterior (its draws), a trained network (its parameters, matched by name or, where
            names differ, by order and shape), or values of sites.
        num_points: How many points.
        seed: Seed of the posterior's draws.
        default: Start ``[P]`` of the sites that ``init`` lacks; by default a draw from the prior.

    Raises:
        SiteError: If names or shapes do not fit the model.
        OptionError: If ``init`` is of another kind.
    """
    if init is None:
        return None
    if isinstance(init, Posterior):
        check_posterior(program, init)
        stored = init.num_stored_draws
        wanted = num_points * init.num_chains
        z = init.unconstrained(wanted if stored is None else min(wanted, stored), seed)
        spread = torch.linspace(0, len(z) - 1, num_points).long()  # over all chains
        return z[spread].to(program.initial)
    if isinstance(init, nn.Module):
        values = _module_values(program, init)
    elif isinstance(init, Mapping):
        values = dict(init)
        names = [site.name for site in program.sites]
        if unknown := [name for name in values if name not in names]:
            raise SiteError(
                f"init holds {', '.join(map(repr, unknown))}, but the model's sites are "
                f"{', '.join(names)}"
            )
    else:
        raise OptionError(
            "init is a Posterior, a trained torch module or a dict of sites, not "
            f"{type(init).__name__}"
        )
    start = program.constrain(program.initial if default is None else default)
    z = program.unconstrain({**start, **values})
    return z.expand(num_points, -1).clone()


def check_posterior(program: Program, init: Posterior) -> None:
    """Check that a posterior is of this network, and take its point-estimated parameters.

    Its prior, its likelihood and its data may be others.

    Raises:
        OptionError: If its draws have values of their own of such parameters.
        SiteError: If it has other sites, or another function of them.
    """
    if init.program.member_params:
        raise OptionError(
            f"init is a {init.method} whose components have values of their own of "
            f"{', '.join(init.program.member_params)}, and a start has one: fit it with "
            "separate_biases=False"
        )
    theirs, ours = _listed(init.program), _listed(program)
    if theirs != ours:
        raise SiteError(f"init is a posterior over {theirs}, but the model has {ours}")
    _set_params(program, init.params)
    own, other = (_outputs(some, program.example.x[:2]) for some in (program, init.program))
    if own.shape != other.shape or not torch.allclose(
        own, other, rtol=TOLERANCE, atol=TOLERANCE, equal_nan=True
    ):
        raise SiteError(
            "init is a posterior over sites of these names and shapes, but its network has other "
            "outputs at the same weights: build the model with the same activations and layers, or "
            "pass values of the sites, such as init=posterior.guide.median()"
        )


def _outputs(program: Program, x: Tensor) -> Tensor:
    """F of some rows at one z, on the CPU, to tell networks apart."""
    z = torch.arange(1, program.num_latents + 1).sin().to(program.initial)
    with torch.no_grad():
        f = program.function(z, x.to(program.device), program.params)
    return f.double().cpu()


def _module_values(program: Program, module: nn.Module) -> dict[str, Tensor]:
    """Values of sites (and of point parameters, set at once) from a trained network."""
    trained = {name: value.detach() for name, value in module.named_parameters()}
    nested = hierarchies(program.model)  # weights made of several sites
    owners = {hierarchy.weight_site: name for name, hierarchy in nested.items()}
    shapes = {owners.get(site.name, site.name): site.shape for site in program.sites}
    by_name, params = {}, {}
    for name, value in trained.items():
        if shapes.get(name) == value.shape:
            by_name[name] = value
        for own in (name, f"net.{name}"):
            if own in program.params and program.params[own].shape == value.shape:
                params[own] = value
    if len(by_name) + len(params) == len(trained):
        _set_params(program, params)
        return _site_values(by_name, nested)
    weights = [site for site in program.sites if site.is_real and site.shape]
    if [site.shape for site in weights] != [value.shape for value in trained.values()]:
        raise SiteError(
            "the trained module's parameters fit the model neither by name nor by order: it has "
            f"{', '.join(f'{k} {tuple(v.shape)}' for k, v in trained.items())}; the model has "
            f"{_listed(program)}"
        )
    names = [owners.get(site.name, site.name) for site in weights]
    return _site_values(dict(zip(names, trained.values(), strict=True)), nested)


def _site_values(
    weights: Mapping[str, Tensor], nested: Mapping[str, Hierarchy]
) -> dict[str, Tensor]:
    """Values of sites at which the weights have given values."""
    values: dict[str, Tensor] = {}
    for name, value in weights.items():
        values |= nested[name].values_at(value) if name in nested else {name: value}
    return values


def _listed(program: Program) -> str:
    return ", ".join(f"{site.name} {tuple(site.shape)}" for site in program.sites)


def _set_params(program: Program, values: Mapping[str, Tensor]) -> None:
    with torch.no_grad():
        for name, value in values.items():
            if name in program.params and program.params[name].shape == value.shape:
                program.params[name].copy_(value)
