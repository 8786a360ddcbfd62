"""The network output f of a model at one draw of its weights, or at many under an outer plate."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import pyro
import torch
from pyro import poutine
from pyro.nn import PyroModule
from pyro.poutine.runtime import apply_stack
from torch import Tensor

from pyro_bnn.errors import ModelError
from pyro_bnn.likelihoods.scale import in_plates
from pyro_bnn.priors.prior import tensors_of

Network: TypeAlias = Callable[[Tensor], Tensor]


def record_output(model: PyroModule, network: Network, x: Tensor) -> Tensor:
    """Run a network that samples its weights, and record its output as the site ``"f"``.

    Under an outer plate of draws, as of ``Trace_ELBO(vectorize_particles=True)`` and
    ``Predictive(parallel=True)``, the weights have dimensions before their own, ``[S, 1, O, I]``,
    and the network runs on all draws at once.

    Args:
        model: The model.
        network: Its network, from x to f ``[N, F]``.
        x: Inputs of N rows.

    Returns:
        f ``[N, F]``; under plates of draws ``[S, N, F]``, recorded as ``[S, 1, N, F]``, with a
        dimension for the plate ``"data"``.

    Raises:
        ModelError: If the plate of draws has the dimension of the plate ``"data"``, or the prior of
            a site depends on another, as that of a centred hierarchy.
    """
    plates = _plates()
    if not plates:
        return pyro.deterministic("f", network(x))
    if -1 in plates:
        raise ModelError(
            'an outer plate of draws has the dimension -1, which is that of the plate "data": give '
            "it dim=-2, or max_plate_nesting=1"
        )
    cache: dict[str, Any] = model._pyro_context.cache  # weights read in this call
    with poutine.block():
        found = poutine.trace(network).get_trace(x)
    cache.clear()
    nodes: Mapping[str, Any] = found.nodes
    shapes = {name: nodes[name]["value"].shape for name in found.stochastic_nodes}
    values = {name: pyro.sample(name, nodes[name]["fn"]) for name in shapes}
    values = {name: in_plates(value, len(shapes[name])) for name, value in values.items()}
    before = [value.shape[: value.ndim - len(shapes[name])] for name, value in values.items()]
    batch = torch.broadcast_shapes(*before)

    def one(draw: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor], list[list[Tensor]]]:
        hidden = poutine.block(hide_types=["sample", "observe"])
        with hidden, poutine.trace() as tracer, poutine.condition(data=draw):
            f = network(x)
        cache.clear()
        recorded: Mapping[str, Any] = tracer.trace.nodes
        names = [n for n in tracer.trace.observation_nodes if n not in shapes]
        priors = [tensors_of(recorded[name]["fn"]) for name in shapes]
        return f, {name: recorded[name]["value"] for name in names}, priors

    rows = {n: v.expand((*batch, *shapes[n])).reshape(-1, *shapes[n]) for n, v in values.items()}
    with warnings.catch_warnings():  # of kernels that torch batches by a loop of its own
        warnings.filterwarnings("ignore", message="There is a performance drop")
        f, weights, priors = torch.func.vmap(one)(rows)
    for name, at_draws in zip(shapes, priors, strict=True):
        at_one = tensors_of(nodes[name]["fn"])
        if any(bool((a != b).any()) for a, b in zip(at_draws, at_one, strict=True)):
            raise ModelError(
                f"the prior of {name} depends on another site, as in a centred hierarchy, and "
                "cannot be sampled under an outer plate of draws: leave vectorize_particles and "
                "parallel at False"
            )
    for name, value in weights.items():  # weights of hierarchical priors
        ndim = value.ndim - 1
        pyro.deterministic(name, value.reshape(*batch, *value.shape[1:]), event_dim=ndim)
    pyro.deterministic("f", f.reshape(*batch, *f.shape[1:]), event_dim=2)
    return f.reshape(*batch[:-1], *f.shape[1:])


def _plates() -> list[int]:
    """Dimensions of the plates that the statements of the caller are in."""
    msg: Any = {
        "type": "plates",  # handlers ignore this type, and plates add themselves to it
        "name": "",
        "fn": lambda: None,
        "args": (),
        "kwargs": {},
        "value": None,
        "is_observed": False,
        "infer": {},
        "scale": 1.0,
        "mask": None,
        "cond_indep_stack": (),
        "done": False,
        "stop": False,
        "continuation": None,
    }
    apply_stack(msg)
    return [frame.dim for frame in msg["cond_indep_stack"] if frame.vectorized]
