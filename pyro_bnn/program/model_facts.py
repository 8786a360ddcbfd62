"""What a program asks of a model before it runs it: dtypes, device and ``pyro.param``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

import pyro.distributions as dist
import torch
from torch import Tensor
from torch.distributions import constraints, transform_to

from pyro_bnn.errors import DataError, ModelError
from pyro_bnn.handled import module_of, parameters_of
from pyro_bnn.priors.prior import tensors_of
from pyro_bnn.program.handlers import Model, tried


def input_dtype(model: Model, x: Tensor, dtype: torch.dtype, device: torch.device) -> torch.dtype:
    """Floating, unless x are whole numbers and the model takes no others, as an embedding."""
    row = x[:1].to(device)
    if x.is_floating_point() or tried(model, row.to(dtype))[0] or not tried(model, row)[0]:
        return dtype
    return x.dtype


def dtype_and_device(model: Model, x: Tensor) -> tuple[torch.dtype, torch.device]:
    """Of the model's first floating tensor, parameter, buffer or prior; else of what it samples."""
    first = first_tensor(model)
    if first is None:
        first = tried(model, x[:1])[1]
    return (torch.get_default_dtype(), x.device) if first is None else (first.dtype, first.device)


def first_tensor(model: Model) -> Tensor | None:
    """The first floating parameter, buffer or number of a prior of a module; None of a function."""
    module = module_of(model)
    if module is None:
        return None
    tensors = [*module.parameters(), *module.buffers()]
    for part in module.modules():
        priors = part.__dict__.get("_pyro_samples", {}).values()  # as PyroSample states them
        tensors += tensors_of([getattr(part, "distribution", None), *priors])
    return next((t for t in tensors if t.is_floating_point()), None)


def copy_values(params: Mapping[str, Tensor], values: Mapping[str, Tensor]) -> None:
    """Give parameters the values of these names and shapes."""
    with torch.no_grad():
        for name, value in values.items():
            if name in params and params[name].shape == value.shape:
                params[name].copy_(value)


def store_params(
    model: Model, messages: Mapping[str, Mapping[str, object]]
) -> dict[str, tuple[Tensor, constraints.Constraint]]:
    """Explicit ``pyro.param`` statements: unconstrained start value and constraint, by name."""
    of_module = {id(p) for p in parameters_of(model).values()}
    params = {}
    for name, msg in messages.items():
        value = cast(Tensor, msg["value"])
        constraint = cast(dict[str, constraints.Constraint], msg["kwargs"]).get(
            "constraint", constraints.real
        )
        leaf = value.unconstrained() if hasattr(value, "unconstrained") else value
        if id(value) in of_module or id(leaf) in of_module:
            continue
        if "$$$" in name:
            raise ModelError(
                f"the parameter {name!r} belongs to a pyro.module(...) statement in a plain "
                "function; make the model a pyro.nn.PyroModule with that module as an attribute"
            )
        params[name] = (transform_to(constraint).inv(value.detach()), constraint)
    return params


def require_two_classes(y: Tensor, family: type) -> None:
    """Refuse class labels that are all the same."""
    if issubclass(family, dist.Bernoulli | dist.Categorical) and y.ndim == 1:
        classes = y.unique()
        if len(classes) == 1:
            raise DataError(
                f"all {len(y)} rows of y are of one class, {classes[0]:g}: from one class nothing "
                "is learned of the others; pass rows of at least two"
            )
