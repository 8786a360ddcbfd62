"""Bounds on memory: what a draw costs, how many are computed at once, what fits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from pyro_bnn.errors import OptionError

GIB = 1 << 30
WORKING_SET = 16 << 20  # chunks larger than the caches only wait for memory
_PROBE_ROWS = (16, 64)


class CountBytes(TorchDispatchMode):
    """Adds up the sizes of all storages that operations make, a bound on what they hold at once.

    What they read was there before, and costs nothing, nor do views of it.

    Attributes:
        total: Bytes so far.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        self._storages: list[torch.UntypedStorage] = []  # kept, so that no address recurs
        self._known: set[int] = set()
        self.total: int = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        self._take(args)
        out = func(*args, **(kwargs or {}))
        self.total += self._take(out)
        return out

    def _take(self, values: Any) -> int:
        """Remember the storages of tensors; bytes of those that are new."""
        new = 0
        for value in tree_leaves(values):
            if not isinstance(value, Tensor):
                continue
            storage = value.untyped_storage()
            if storage.data_ptr() not in self._known:
                self._known.add(storage.data_ptr())
                self._storages.append(storage)
                new += storage.nbytes()
        return new


def bytes_per_draw(fn: Callable[..., object], z: Tensor, rows: Sequence[Tensor]) -> int:
    """Bytes that ``fn(z, *rows)`` allocates for one draw, extrapolated from two looks at few rows.

    Args:
        fn: Function of draws ``[s, Q]`` and rows.
        z: Draws, at least one.
        rows: Tensors ``[N, ...]``.
    """
    looks: list[tuple[int, int]] = []
    num_rows = len(rows[0])
    for most in _PROBE_ROWS:
        few = [value[:most] for value in rows]
        with torch.no_grad(), CountBytes() as counter:
            fn(z[:1], *few)
        looks.append((len(few[0]), counter.total))
    (count, total), (more, more_total) = looks
    if more == count:
        return max(1, more_total)
    per_row = (more_total - total) / (more - count)
    return max(1, int(more_total + per_row * (num_rows - more)))


def draws_at_once(
    num_draws: int,
    num_rows: int,
    per_draw: int,
    *,
    memory: int,
    result_bytes: int = 0,
    fixed_bytes: int = 0,
) -> int:
    """How many of S draws are computed at once under a memory bound.

    Args:
        num_draws: Number of draws S.
        num_rows: Number of rows N, for the message.
        per_draw: Bytes that one draw takes while it is computed.
        memory: Bound in bytes.
        result_bytes: Size of the collected result of all draws.
        fixed_bytes: What is taken however many are computed at once.

    Raises:
        OptionError: If the result itself or a single draw exceeds the bound; names the number of
            samples that fits.
    """
    left = memory - result_bytes - fixed_bytes
    if left < per_draw:
        raise OptionError(beyond(num_draws, num_rows, per_draw + fixed_bytes, memory, result_bytes))
    return max(1, min(num_draws, min(left, WORKING_SET) // per_draw))


def beyond(num_draws: int, num_rows: int, working: int, memory: int, result_bytes: int) -> str:
    """What to say of a result that exceeds the bound, beside ``working`` bytes to compute it."""
    fits = max(0, int((memory - working) * num_draws // max(result_bytes, 1)))
    hint = f"num_samples={fits} fits" if 0 < fits < num_draws else "pass fewer rows at a time"
    return (
        f"{num_draws} draws at {num_rows} rows need about {_size(working + result_bytes)}, more "
        f"than the bound of {_size(memory)}: {hint}, or raise memory="
    )


def _size(count: int) -> str:
    """Bytes in a unit that leaves digits to compare."""
    unit, name = (GIB, "GiB") if count >= GIB else (1 << 20, "MiB")
    return f"{count / unit:.2f} {name}" if count >= unit else f"{count / 1024:.1f} KiB"
