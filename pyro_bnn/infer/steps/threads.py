"""How many threads torch takes while chains or particles have threads of their own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def one_thread() -> Iterator[None]:
    """Operations of torch on one thread, while chains have the others.

    What else they do is small, and waiting for a second thread of torch's own would cost more.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
