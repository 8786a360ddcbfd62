"""Random numbers of a piece of work: its own seed, and the caller's state as it was."""

from __future__ import annotations

import operator
import os
import threading
import weakref
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

import numpy as np
import pyro
import torch

from pyro_bnn.checks import check_seed

_one_at_a_time = [threading.RLock()]
"""Held by the thread that uses what is one for all: torch's generator, Pyro's store and stack."""

if hasattr(os, "register_at_fork"):  # a forked process lacks the thread that holds it
    os.register_at_fork(after_in_child=lambda: _one_at_a_time.__setitem__(0, threading.RLock()))


@contextmanager
def isolated(seed: int | None = None) -> Iterator[None]:
    """Leave the caller's random state, parameter store and Pyro settings as they were.

    Another thread waits until it ends, as these are of the process.

    Args:
        seed: Seed of torch's global generators inside, or None to leave them at their state.
    """
    with _one_at_a_time[0], own_generators(), empty_store():
        if seed is not None:
            check_seed(seed)
            seed = operator.index(seed)  # it may be an integer of NumPy
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
    check_seed(seed)
    return torch.Generator(device).manual_seed(operator.index(seed))


def derived_seed(seed: int, stream: int) -> int:
    """Seed of a random stream that is independent of that of ``seed`` itself."""
    state = np.random.SeedSequence([operator.index(seed) % 2**64, stream]).generate_state(
        1, np.uint64
    )
    return int(state[0]) % 2**32


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
