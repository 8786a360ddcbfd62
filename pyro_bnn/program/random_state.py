"""Random numbers of a piece of work: its own seed, and the caller's state as it was."""

from __future__ import annotations

import operator
import weakref
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

import numpy as np
import pyro
import torch


@contextmanager
def isolated(seed: int | None = None) -> Iterator[None]:
    """Leave the caller's random state, parameter store and Pyro settings as they were.

    Args:
        seed: Seed of torch's global generators inside, or None to leave them at their state.
    """
    with own_generators(), empty_store():
        if seed is not None:
            if torch.accelerator.is_available():
                torch.manual_seed(seed)
            else:  # torch's own function takes a trace of the stack, three times
                torch.default_generator.manual_seed(seed)
        yield


def own_generators() -> AbstractContextManager[None]:
    """Leave the generators as they were, of every GPU too once torch has begun to use any.

    Left to choose, torch begins with all GPUs of a machine, and warns where there are several.
    """
    gpus = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()
    made: AbstractContextManager[None] = torch.random.fork_rng(devices=gpus)
    return made


def seeded(seed: int, device: torch.device | str = "cpu") -> torch.Generator:
    """A generator of its own at a seed, which may be an integer of NumPy."""
    return torch.Generator(device).manual_seed(operator.index(seed))


def derived_seed(seed: int, stream: int) -> int:
    """Seed of a random stream that is independent of that of ``seed`` itself."""
    state = np.random.SeedSequence([operator.index(seed) % 2**64, stream]).generate_state(
        1, np.uint64
    )
    return int(state[0])


@contextmanager
def empty_store() -> Iterator[None]:
    """Put Pyro's parameters aside, and back, as the caller's trace of them has them."""
    store = pyro.get_param_store()
    shown = [value for _, value in store.named_parameters() if hasattr(value, "unconstrained")]
    try:
        with store.scope():
            yield
    finally:
        for value in shown:  # the store's scope drops this attribute
            value.unconstrained = weakref.ref(value)
