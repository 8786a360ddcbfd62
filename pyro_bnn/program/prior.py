"""Draws from the prior of a model's sites."""

from __future__ import annotations

import pickle
import random
from collections.abc import Callable, Iterator

import numpy as np
import torch
from torch import Tensor

from pyro_bnn.program.handlers import Evaluate

SiteValues = dict[str, Tensor]


def prior_draws(run: Callable[[], Evaluate], num_draws: int, *, apart: bool) -> list[SiteValues]:
    """Values of the sites, by name, in draws from their prior.

    The model computes f at every draw, which nobody asked for and which takes most of the time.
    Where priors do not depend on other sites, all but two draws are made by the sites'
    distributions alone: the same numbers, if the second draw by both is the same and leaves the
    generators at one state. It does not where the model draws other random numbers.

    Args:
        run: Runs the model at a draw from its prior, by torch's generator of the CPU.
        num_draws: How many.
        apart: Whether no site's prior depends on another site.
    """
    first = run()
    draws = [_values(first)]
    if apart and num_draws > 2:
        start, others = torch.get_rng_state(), _other_generators()
        second, end = _values(run()), torch.get_rng_state()
        is_quiet = others == _other_generators()
        torch.set_rng_state(start)
        alone = _alone(first)
        same = _equal(next(alone), second) and torch.equal(torch.get_rng_state(), end)
        torch.set_rng_state(end)
        draws.append(second)
        if same and is_quiet:
            draws += [next(alone) for _ in range(num_draws - 2)]
    draws += [_values(run()) for _ in range(num_draws - len(draws))]
    return draws


def _other_generators() -> bytes:
    return pickle.dumps((np.random.get_state(), random.getstate()))  # noqa: NPY002  # the user's


def _values(run: Evaluate) -> SiteValues:
    return {name: msg["value"] for name, msg in run.latent.items()}


def _alone(run: Evaluate) -> Iterator[SiteValues]:
    while True:
        yield {name: msg["fn"]() for name, msg in run.latent.items()}


def _equal(one: SiteValues, other: SiteValues) -> bool:
    return all(torch.equal(value, other[name]) for name, value in one.items())
