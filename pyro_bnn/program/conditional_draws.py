r"""Draws of a model's discrete sites given draws of the continuous ones, and the data.

The derivative of a sum over discrete values by the log of its factors is the probability of each
value. Where the backward pass of each sum takes one of its terms at random instead of all of them,
by their probabilities, the derivative is a draw: 1 at the value that was drawn, and 0 elsewhere.

References:
    Li & Eisner, "First- and Second-Order Expectation Semirings", EMNLP 2009, for the derivative.
    Rush, "Torch-Struct: Deep Structured Prediction Library", ACL 2020, arXiv:2002.00876, for draws.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from pyro.ops import packed
from torch import Tensor

from pyro_bnn.program.discrete_sums import TiedFactors
from pyro_bnn.program.enumerated import EnumeratedJoint
from pyro_bnn.program.handlers import Evaluate
from pyro_bnn.program.random_state import isolated
from pyro_bnn.program.terms import Params


def discrete_draws(
    joint: EnumeratedJoint, z: Tensor, seed: int = 0, params: Params | None = None
) -> dict[str, Tensor]:
    """Draws of the discrete sites given draws of the continuous ones, and the data.

    They are exact, of p(d | z_s, D), as those of ``pyro.infer.infer_discrete``: one for each draw
    of z, with which it is a draw of the joint posterior. A ``poutine.scale`` is not in it.

    Args:
        joint: The model.
        z: Draws ``[..., P]``.
        seed: Of the draws.
        params: Values of the model's point-estimated parameters; default their own.

    Returns:
        Site name to values ``[..., *shape]``.
    """

    def draw(row: Tensor) -> dict[str, Tensor]:
        at, of_draw = joint.split_draw(row, params)
        run = joint.run_at(at, params=of_draw)
        factors = joint.factors_of(run)
        drawn: dict[str, Tensor] = {}
        for part in factors.sums:
            drawn.update(_places(part, run, factors.symbol_to_dim))
        return {
            name: _value(msg, drawn.get(name), joint.discrete[name])
            for name, msg in run.summed.items()
        }

    with isolated(seed), torch.no_grad():
        values = joint.batched(draw, z.reshape(-1, z.shape[-1]), is_random=True)
    return {name: value.reshape(*z.shape[:-1], *value.shape[1:]) for name, value in values.items()}


def _places(
    part: TiedFactors, run: Evaluate, symbol_to_dim: Mapping[str, int]
) -> dict[str, Tensor]:
    """Places of the values that are drawn of each discrete site, by its plates."""
    priors = {f.name: f.log_prob for f in part.factors if f.kind == "discrete"}
    indicators: Any = torch.func.grad(part.draw)(priors)
    places = {}
    for name, prior in priors.items():
        dims: str = prior._pyro_dims  # type: ignore[attr-defined]
        infer = run.summed[name]["infer"]
        own = infer["_dim_to_symbol"][infer["_enumerate_dim"]]
        plates = next(factor.plates for factor in part.factors if factor.name == name)
        others = [i for i, dim in enumerate(dims) if dim != own and dim not in plates]
        found = indicators[name].sum(others, keepdim=True) if others else indicators[name]
        place = found.argmax(dims.index(own), keepdim=True)
        place._pyro_dims = dims
        places[name] = packed.unpack(place, symbol_to_dim)
    return places


def _value(msg: Mapping[str, Any], place: Tensor | None, shape: torch.Size) -> Tensor:
    """The value at a place ``[...]`` of all that a site can have, in the shape of the site."""
    event = msg["fn"].event_shape
    values: Tensor = msg["value"].reshape(-1, *event)
    if place is None:  # it has one value
        return values[0].expand(shape)
    batch = shape[: len(shape) - len(event)]
    place = place.reshape(place.shape[max(0, place.ndim - len(batch)) :])
    return values[place].expand(shape)
