"""Draws of what a model samples and computes beside its latent sites, of many draws of these."""

from __future__ import annotations

import contextlib
import logging
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from pyro_bnn.data import Call
from pyro_bnn.program.batched import without_vmap_warnings
from pyro_bnn.program.filled import Filled
from pyro_bnn.program.handlers import predicted, without_validation
from pyro_bnn.program.joint import Joint
from pyro_bnn.program.random_state import isolated
from pyro_bnn.program.terms import Params

logger = logging.getLogger("pyro_bnn")

NUMBERS = 1 << 22  # of what is observed, at once


def prediction(
    joint: Joint,
    call: Call | None,
    latents: Mapping[str, Tensor],
    discrete: Mapping[str, Tensor],
    params: Params,
) -> dict[str, Tensor]:
    """Values of all sites but the given ones, drawn or computed in one run of the model.

    Args:
        joint: The model.
        call: The arguments; None for the model's own, of which what it observes is drawn anew.
        latents: Value of each latent site; one that is left out is drawn.
        discrete: Value of each discrete site that is summed out.
        params: Values of the model's point-estimated parameters.
    """
    with joint.snapshot.held():
        return predicted(
            joint.model,
            joint.call if call is None else call,
            latents,
            discrete,
            anew=call is None,
            params={**joint.snapshot.buffers, **params},
            store=joint.store,
        )


def predictions(
    joint: Joint,
    call: Call | None,
    draws: Tensor,
    discrete: Mapping[str, Tensor],
    params: Params | None,
    seed: int,
) -> dict[str, Tensor]:
    """Values ``[S, *shape]`` of all sites but the latent ones, drawn or computed.

    Draws run as batches; where the model refuses that, as one whose sampler rejects, one by one.

    Args:
        joint: The model.
        call: The arguments; None for the model's own, of which what it observes is drawn anew.
        draws: As the functions of the joint take them ``[S, Q]``.
        discrete: Values ``[S, *shape]`` of the discrete sites that are summed out.
        params: Values of the model's point-estimated parameters.
        seed: Of what is drawn.
    """
    latents = joint.constrain(draws[:, : joint.num_latents], params=params)

    def one(
        draw: Tensor, values: Mapping[str, Tensor], drawn: Mapping[str, Tensor]
    ) -> dict[str, Tensor]:
        of_draw = joint.split_draw(draw, params)[1] or {}
        with Filled(draw):  # torch's distributions fill new memory by random numbers, in place
            found = prediction(joint, call, values, drawn, of_draw)
        return {name: torch.as_tensor(value) for name, value in found.items()}

    given = draws, latents, dict(discrete)
    size = max(1, NUMBERS // joint.num_observed)
    with torch.no_grad():
        if joint.is_batched and len(draws) > 1:
            try:
                with isolated(seed), _without_warnings(), without_validation():
                    batched = torch.func.vmap(one, randomness="different")
                    places = range(0, len(draws), size)
                    parts = [batched(*_at(given, slice(i, i + size))) for i in places]
                return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
            except torch.OutOfMemoryError:
                raise
            except RuntimeError as error:
                logger.info("predictions are drawn one by one: %s", str(error).splitlines()[0])
        with isolated(seed):
            rows = [one(*_at(given, i)) for i in range(len(draws))]
    return {name: torch.stack([row[name] for row in rows]) for name in rows[0]}


def _at(given: Any, place: int | slice) -> Any:
    return tree_map(lambda value: value[place], given)


@contextlib.contextmanager
def _without_warnings() -> Iterator[None]:
    """Hide what torch says of kernels that it batches by loops, and of ``torch.binomial``."""
    with without_vmap_warnings():
        warnings.filterwarnings("ignore", message="An output with one or more elements was resized")
        yield
