"""Weights of a posterior as the state of a network of torch."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from pyro_bnn.errors import OptionError
from pyro_bnn.predictive.draws import Draws
from pyro_bnn.program.program import Program
from pyro_bnn.program.terms import Params

NET = "net."  # where models hold the network that they were made of


def state_dict(
    program: Program, params: Params, draws: Draws, draw: int | None
) -> dict[str, Tensor]:
    """Weights by the names of the network; see :meth:`Posterior.state_dict`."""
    if draw is not None and not 0 <= draw < len(draws):
        raise OptionError(f"draw is one of 0 .. {len(draws) - 1}, not {draw!r}")
    start, total = 0, dict[str, Tensor]()
    for z in draws.blocks():
        if draw is None:
            block = tree_map(lambda v: v.sum(0, dtype=torch.float64), _weights(program, params, z))
            total = {name: total.get(name, 0) + value for name, value in block.items()}
        elif start <= draw < start + len(z):
            at = z[draw - start : draw - start + 1]
            total = {name: value[0] for name, value in _weights(program, params, at).items()}
            break
        start += len(z)
    count = 1 if draw is not None else len(draws)
    found = {name: (value / count).to(program.dtype) for name, value in total.items()}
    shared = {name: value.detach() for name, value in params.items()}
    return _of_network(program, {**shared, **found})


def _weights(program: Program, params: Params, z: Tensor) -> dict[str, Tensor]:
    """Sites, weights computed of them, and the draws' own parameters, at each draw ``[S, ...]``.

    All other parameters are the same at each draw, and may be those of a large body, which need not
    run either.
    """
    row = program.inputs(program.example.x[:1])

    def at(draw: Tensor) -> dict[str, Tensor]:
        z, own = program.split_draw(draw, params)
        run = program.run_at(z, (row,), own)
        sites = {name: message["value"] for name, message in run.latent.items()}
        computed = {name: value for name, value in run.recorded.items() if name != "f"}
        members = {name: own[name] for name in program.member_params if own and len(draw) > len(z)}
        return sites | computed | members

    with torch.no_grad():
        return program.batched(at, z)


def _of_network(program: Program, found: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The same by the names of the user's network, with its buffers, where the model has one."""
    net, places = getattr(program.model, "net", None), getattr(program.model, "places", {})
    if not isinstance(net, nn.Module):
        return {name: value.clone() for name, value in found.items()}
    held = {**program.snapshot.buffers, **found}
    own = net.state_dict(keep_vars=True)  # a tied tensor stands here by each of its names
    values = {id(own[name]): held[NET + name] for name in own if NET + name in held}
    state = {name: values[id(tensor)].clone() for name, tensor in own.items()}
    return state | {place: found[name].clone() for name, own in places.items() for place in own}
