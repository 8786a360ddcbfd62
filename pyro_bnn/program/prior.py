"""Draws from the prior of a model's sites."""

from __future__ import annotations

import pickle
import random
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from pyro_bnn.program.handlers import Evaluate, draw_or_start
from pyro_bnn.sites import Site


def prior_draws(
    run: Callable[[], Evaluate], sites: Sequence[Site], num_draws: int, *, apart: bool
) -> list[Tensor]:
    """Draws z ``[P]`` of the sites from their prior.

    The model computes f at every draw, which nobody asked for and which takes most of the time.
    Where priors do not depend on other sites, all but two draws are made by the sites'
    distributions alone: the same numbers, if the second draw by both is the same and leaves the
    generators at one state. It does not where the model draws other random numbers.

    A prior that cannot be drawn from, as ``dist.ImproperUniform``, gives points to start from:
    uniform(-2, 2) in each unconstrained entry.

    Args:
        run: Runs the model at a draw from its prior, by torch's generator of the CPU.
        sites: The latent sites.
        num_draws: How many.
        apart: Whether no site's prior depends on another site.
    """
    first = run()
    draws = [_flat(first, sites)]
    if apart and num_draws > 2:
        start, others = torch.get_rng_state(), _other_generators()
        second, end = _flat(run(), sites), torch.get_rng_state()
        is_quiet = others == _other_generators()
        torch.set_rng_state(start)
        alone = _alone(first, sites)
        same = torch.equal(next(alone), second) and torch.equal(torch.get_rng_state(), end)
        torch.set_rng_state(end)
        draws.append(second)
        if same and is_quiet:
            draws += [next(alone) for _ in range(num_draws - 2)]
    draws += [_flat(run(), sites) for _ in range(num_draws - len(draws))]
    return draws


def _other_generators() -> bytes:
    return pickle.dumps((np.random.get_state(), random.getstate()))  # noqa: NPY002  # the user's


def _flat(run: Evaluate, sites: Sequence[Site]) -> Tensor:
    return flat({name: msg["value"] for name, msg in run.latent.items()}, run, sites)


def flat(values: Mapping[str, Tensor], run: Evaluate, sites: Sequence[Site]) -> Tensor:
    """Z ``[P]`` of values of the sites, by their supports in a run of the model."""
    parts = []
    for site in sites:
        support = None
        if site.is_dependent:
            fn = run.latent[site.name]["fn"]
            support = fn.support
            site.require_shape(fn.shape(), support)
        parts.append(site.flatten(values[site.name], support))
    return torch.cat(parts)


def _alone(run: Evaluate, sites: Sequence[Site]) -> Iterator[Tensor]:
    while True:  # in the order of the run, as the model draws
        values = {name: draw_or_start(msg)[0] for name, msg in run.latent.items()}
        yield flat(values, run, sites)
