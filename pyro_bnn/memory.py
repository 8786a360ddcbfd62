"""Work over draws in chunks that keep the memory of the intermediate results under a bound."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from pyro_bnn.errors import OptionError

GIB = 1 << 30
WORKING_SET = 16 << 20  # chunks larger than the caches only wait for memory
_PROBE_ROWS = (16, 64)


class _CountBytes(TorchDispatchMode):
    """Adds up the sizes of all storages that operations make, a bound on what they hold at once."""

    def __init__(self, *inputs: Tensor) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        self._storages = [value.untyped_storage() for value in inputs]  # kept, so no address recurs
        self._known = {storage.data_ptr() for storage in self._storages}
        self.total: int = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        for value in out if isinstance(out, tuple | list) else (out,):
            if not isinstance(value, Tensor):
                continue
            storage = value.untyped_storage()
            if storage.data_ptr() not in self._known:
                self._known.add(storage.data_ptr())
                self._storages.append(storage)
                self.total += storage.nbytes()
        return out


def bytes_per_draw(fn: Callable[[Tensor, Tensor], object], z: Tensor, x: Tensor) -> int:
    """Bytes that ``fn(z [1, P], x [N, ...])`` allocates, extrapolated from two looks at it."""
    looks: list[tuple[int, int]] = []
    for rows in _PROBE_ROWS:
        few = x[: min(rows, len(x))]
        with torch.no_grad(), _CountBytes(z, x) as counter:
            fn(z[:1], few)
        looks.append((len(few), counter.total))
    (rows, total), (more_rows, more_total) = looks
    if more_rows == rows:
        return max(1, more_total)
    per_row = (more_total - total) / (more_rows - rows)
    return max(1, int(more_total + per_row * (len(x) - more_rows)))


def draw_chunks(
    fn: Callable[[Tensor, Tensor], object],
    z: Tensor,
    x: Tensor,
    *,
    memory: int,
    result_bytes: int = 0,
) -> Iterator[Tensor]:
    """Split draws z ``[S, P]`` so that ``fn`` on each chunk stays under a memory bound.

    Args:
        fn: Function of draws ``[s, P]`` and rows.
        z: Draws ``[S, P]``.
        x: Rows ``[N, ...]``.
        memory: Bound in bytes.
        result_bytes: Size of the collected result of all draws.

    Yields:
        Chunks ``[s, P]`` in order.

    Raises:
        OptionError: If the result itself or a single draw exceeds the bound; names the number of
            samples that fits.
    """
    per_draw = bytes_per_draw(fn, z, x)
    left = memory - result_bytes
    if left < per_draw:
        needed = per_draw + result_bytes
        fits = max(0, int((memory - per_draw) * len(z) // max(result_bytes, 1)))
        hint = f"num_samples={fits} fits" if 0 < fits < len(z) else "pass fewer rows at a time"
        raise OptionError(
            f"{len(z)} draws at {len(x)} rows need about {needed / GIB:.2f} GiB, more than the "
            f"bound of {memory / GIB:.2f} GiB: {hint}, or raise memory="
        )
    yield from z.split(max(1, min(left, WORKING_SET) // per_draw))
