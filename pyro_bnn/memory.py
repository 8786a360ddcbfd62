"""Bounds on memory: what a draw costs, how many are computed at once, what fits."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from pyro_bnn.errors import OptionError

GIB = 1 << 30
STORED_DRAWS = GIB  # bytes of stored draws beyond which they are on disk
WORKING_SET = 16 << 20  # chunks larger than the caches only wait for memory
_PROBE_ROWS = 64
_NO_MEMORY = (
    *("t allocate memory", "not allocate memory", "not enough memory", "bad_alloc"),
    "failed to map segment",  # of a library that is imported
)


def is_exceeded(error: BaseException) -> bool:
    """Whether an error says that the system, or a GPU, has no memory left: torch has several."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError | OSError | ImportError) and any(
        words in str(error).lower() for words in _NO_MEMORY
    )


class Mode(TorchDispatchMode):
    """What sees every operation on tensors."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """False: where it is True, torch imports Dynamo, for a second, at the first operation."""
        return False


class CountBytes(Mode):
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
        for value in tensors_in(values):
            if value._is_zerotensor():  # a tangent of no bytes
                continue
            storage = value.untyped_storage()
            if storage.data_ptr() not in self._known:
                self._known.add(storage.data_ptr())
                self._storages.append(storage)
                new += storage.nbytes()
        return new


class AtMost(Mode):
    """Refuses tensors of more numbers than a bound before they are made.

    Args:
        bound: How many numbers a tensor may have.
        message: What a ValueError says of one that has more: ``{}`` is their number.
    """

    def __init__(self, bound: int, message: str) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        self._bound, self._message = bound, message

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        for value in args:
            count = value.numel() if isinstance(value, Tensor) else 0
            if isinstance(value, list | tuple) and all(type(size) is int for size in value):
                count = math.prod(value)  # a shape
            if abs(count) > self._bound:
                raise ValueError(self._message.format(abs(count)))
        return func(*args, **(kwargs or {}))


def tensors_in(values: Any) -> Iterator[Tensor]:
    """Those of an operation's arguments or results, which nest in lists and tuples alone."""
    if isinstance(values, Tensor):
        yield values
    elif isinstance(values, (list, tuple)):
        for value in values:
            yield from tensors_in(value)


def bytes_per_draw(fn: Callable[..., object], z: Tensor, rows: Sequence[Tensor]) -> tuple[int, int]:
    """Bytes that ``fn(z, *rows)`` allocates for one draw, extrapolated from two looks at few rows.

    Args:
        fn: Function of draws ``[s, Q]`` and rows.
        z: Draws, at least one.
        rows: Tensors ``[N, ...]``.

    Returns:
        Bytes at all N rows, and at a single row.
    """
    num_rows = len(rows[0])
    more = min(num_rows, _PROBE_ROWS)
    count = max(1, more // 4)
    totals: list[int] = []
    for most in (count, more):
        with torch.no_grad(), CountBytes() as counter:
            fn(z[:1], *(value[:most] for value in rows))
        totals.append(counter.total)
    total, more_total = totals
    per_row = (more_total - total) / max(1, more - count)
    at_all, at_one = (int(more_total + per_row * (at - more)) for at in (num_rows, 1))
    return max(1, at_all), max(1, at_one)


def require_bytes(memory: object) -> None:
    """Check a bound on memory.

    Raises:
        OptionError: If it is no positive integer.
    """
    if not isinstance(memory, int) or isinstance(memory, bool) or memory < 1:
        raise OptionError(f"memory is a positive integer, a number of bytes, not {memory!r}")


def beyond(
    num_draws: int,
    num_rows: int,
    working: int,
    memory: int,
    result_bytes: int,
    *,
    least: int = 0,
    num_chains: int = 1,
) -> str | None:
    """What to say of a result that exceeds the bound; None where it does not.

    Args:
        num_draws: Number of draws S.
        num_rows: Number of rows N.
        working: Bytes to compute one draw.
        memory: Bound in bytes.
        result_bytes: Size of the collected result of all draws.
        least: Bytes to compute one draw at a single row.
        num_chains: Number of chains, of which each gives as many draws.

    Raises:
        OptionError: If the bound is no positive integer.
    """
    require_bytes(memory)
    needed = working + result_bytes
    if needed <= memory:
        return None
    fits = max(0, (memory - working) * num_draws // max(result_bytes, 1))
    fits -= fits % num_chains
    if 0 < fits < num_draws:
        hint = f"num_samples={fits} fits, or raise memory="
    elif num_rows > 1 and least <= memory:
        hint = "pass fewer rows at a time, or raise memory="
    else:
        hint = f"pass memory={needed} or more"
    return (
        f"{num_draws} draws at {num_rows} rows need about {readable(needed)}, more than the bound "
        f"of {readable(memory)}: {hint}"
    )


def readable(count: int) -> str:
    """Bytes in a unit that leaves digits to compare.

    Example:
        >>> readable(3 << 29)
        '1.50 GiB'
    """
    unit, name = (GIB, "GiB") if count >= GIB else (1 << 20, "MiB")
    return f"{count / unit:.2f} {name}" if count >= unit else f"{count / 1024:.1f} KiB"
