"""Draws from the prior of a model's sites."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from pyro_bnn.program.handlers import Evaluate

Values = dict[str, Tensor]


def prior_draws(run: Callable[[], Evaluate], num_draws: int, *, apart: bool) -> list[Values]:
    """Values of the sites, by name, in draws from their prior.

    The model computes f at every draw, which nobody asked for and which takes most of the time.
    Where priors do not depend on other sites, all but two draws are made by the sites'
    distributions alone: the same numbers, if the second draw by both is the same and leaves the
    generator at one state. It does not where the model draws other random numbers.

    Args:
        run: Runs the model at a draw from its prior, by torch's generator of the CPU.
        num_draws: How many.
        apart: Whether no site's prior depends on another site.
    """
    first = run()
    draws = [_values(first)]
    if apart and num_draws > 2:
        start = torch.get_rng_state()
        second, end = _values(run()), torch.get_rng_state()
        torch.set_rng_state(start)
        alone = _alone(first)
        again = next(alone)
        if torch.equal(torch.get_rng_state(), end) and _equal(again, second):
            draws += [again, *(next(alone) for _ in range(num_draws - 2))]
        else:
            torch.set_rng_state(start)
    draws += [_values(run()) for _ in range(num_draws - len(draws))]
    return draws


def _values(run: Evaluate) -> Values:
    return {name: msg["value"] for name, msg in run.latent.items()}


def _alone(run: Evaluate) -> Iterator[Values]:
    while True:
        yield {name: msg["fn"]() for name, msg in run.latent.items()}


def _equal(one: Values, other: Values) -> bool:
    return all(torch.equal(value, other[name]) for name, value in one.items())
