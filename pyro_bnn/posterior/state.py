"""Weights of a posterior as the state of a network of torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from pyro_bnn.errors import OptionError

if TYPE_CHECKING:
    from pyro_bnn.posterior.posterior import Posterior

NET = "net."  # where models hold the network that they were made of


def state_dict(
    posterior: Posterior, draw: int | None, num_samples: int | None, seed: int
) -> dict[str, Tensor]:
    """Weights by the names of the network; see :meth:`Posterior.state_dict`."""
    draws = posterior.in_blocks(posterior.count(num_samples), seed)
    if draw is not None and not 0 <= draw < len(draws):
        raise OptionError(f"draw is one of 0 .. {len(draws) - 1}, not {draw!r}")
    start, total = 0, {}
    for z in draws.blocks():
        if draw is None:
            of_block = tree_map(lambda v: v.sum(0, dtype=torch.float64), _weights(posterior, z))
            total = {name: total.get(name, 0) + value for name, value in of_block.items()}
        elif start <= draw < start + len(z):
            total = {name: v[0] for name, v in _weights(posterior, z[[draw - start]]).items()}
            break
        start += len(z)
    dtype, count = posterior.program.dtype, 1 if draw is not None else len(draws)
    found = {name: (value / count).to(dtype) for name, value in total.items()}
    return _of_network(posterior, found)


def _weights(posterior: Posterior, z: Tensor) -> dict[str, Tensor]:
    """Sites, weights that are computed of them, and parameters at each draw ``[S, ...]``."""
    program, row = posterior.program, posterior.program.example.x[:1]

    def at(draw: Tensor) -> dict[str, Tensor]:
        z, params = program.split_draw(draw, posterior.params)
        run = program.run_at(z, (row,), params)
        sites = {name: message["value"] for name, message in run.latent.items()}
        computed = {name: value for name, value in run.recorded.items() if name != "f"}
        return sites | computed | dict(params or {})

    with torch.no_grad():
        return program.batched(at, z)


def _of_network(posterior: Posterior, found: dict[str, Tensor]) -> dict[str, Tensor]:
    """The same by the names of the user's network, with its buffers, where the model has one."""
    net, places = getattr(posterior.model, "net", None), getattr(posterior.model, "places", {})
    if not isinstance(net, nn.Module):
        return found
    names = {place: name for name, own in places.items() for place in own}
    held = {**posterior.program.snapshot.buffers, **found}
    state = {name: held[NET + name].clone() for name in net.state_dict()}
    return state | {place: found[name].clone() for place, name in names.items()}
