"""What a frozen body makes of rows, computed once: a chunk at a time, on disk where it is large."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pyro_bnn import memory
from pyro_bnn.errors import OutputError
from pyro_bnn.files.mapped import MappedFile
from pyro_bnn.handled import module_of
from pyro_bnn.memory import CountBytes
from pyro_bnn.models.from_network import BayesianModule
from pyro_bnn.program.handlers import Model, unseen

logger = logging.getLogger("pyro_bnn")

FIRST_ROWS = 16  # of the chunk that tells what a row costs
CHUNK_BYTES = 16 * memory.WORKING_SET  # that a chunk's intermediate results add up to


def features(
    body: Callable[[Tensor], Tensor], x: Tensor, *, most_bytes: int | None = None
) -> Tensor:
    """The output ``[N, ...]`` of a body at all rows, without gradients.

    The body is called on a first chunk of 16 rows, and on chunks of as many rows as 256 MiB of
    intermediate results allow from there on. It may write to its argument.

    Args:
        body: Function of rows ``[n, ...]`` that gives a row for each, whatever the other rows are.
        x: Rows ``[N, ...]``, at least one.
        most_bytes: Of the output; beyond them it is in a file that has no name and goes with it, in
            the folder for temporary files (``TMPDIR``). Default: ``memory.STORED_DRAWS``, 1 GiB.

    Raises:
        OutputError: If the disk has no room for the file.

    Example:
        >>> features(torch.nn.Linear(3, 2), torch.zeros(40, 3)).shape
        torch.Size([40, 2])
    """
    num_rows = len(x)
    with torch.no_grad():
        rows = x[:FIRST_ROWS].clone()
        with CountBytes() as counter:
            first = body(rows)
        size = rows_at_once(len(first), counter.total)
        out, starts = _empty(first, num_rows, most_bytes), range(len(first), num_rows, size)
        out[: len(first)] = first
        for start in starts:
            some = x[start : start + size]
            out[start : start + len(some)] = body(some.clone())
    return out


def rows_at_once(num_rows: int, num_bytes: int) -> int:
    """Rows of a chunk, where some rows make intermediate results of so many bytes."""
    return max(1, CHUNK_BYTES * num_rows // max(1, num_bytes))


def _empty(first: Tensor, num_rows: int, most_bytes: int | None) -> Tensor:
    """Room for all rows ``[N, ...]``, in memory or in a file."""
    shape = num_rows, *first.shape[1:]
    num_bytes = num_rows * first[0].nbytes
    bound = memory.STORED_DRAWS if most_bytes is None else most_bytes
    if num_bytes <= bound or first.device.type != "cpu":
        return first.new_empty(shape)
    return MappedFile(num_bytes, what="features").map(first.dtype).reshape(shape)


class Known(NamedTuple):
    """Features of some rows, and what they are of.

    Attributes:
        x: The rows.
        values: Of the body, by name.
        versions: Of x and of these values: how often torch has seen them change.
        features: The features.
    """

    x: Tensor
    values: Mapping[str, Tensor]
    versions: list[int]
    features: Tensor


class Memo:
    """The features of the rows of a run, for whoever asks for them again."""

    def __init__(self) -> None:
        self._known: Known | None = None

    def find(self, x: Tensor, values: Mapping[str, Tensor]) -> Tensor | None:
        """Features of these very rows, by a body of equal values; None where there are none."""
        known = self._known
        if known is None or known.x is not x or known.values.keys() != values.keys():
            return None
        if known.versions != _versions(known.x, known.values):
            return None
        same = all(torch.equal(value, values[name]) for name, value in known.values.items())
        return known.features if same else None

    def keep(self, x: Tensor, values: Mapping[str, Tensor], features: Tensor) -> None:
        """Keep features of the first rows that there are, in place of those by other values."""
        if self._known is None or self._known.x is x:
            self._known = Known(x, dict(values), _versions(x, values), features)

    def __getstate__(self) -> dict[str, Any]:
        known = self._known
        if known is not None:  # a copy would be in memory, and its versions start anew
            is_large = known.features.nbytes > memory.STORED_DRAWS
            known = None if is_large else known._replace(versions=[0] * len(known.versions))
        return {"_known": known}


def _versions(x: Tensor, values: Mapping[str, Tensor]) -> list[int]:
    tensors = (x, *values.values())
    return [-1 if value.is_inference() else value._version for value in tensors]


def _is_plain(kind: type[BayesianModule]) -> bool:
    """Whether only the network reads x: no method of a subclass's own, which needs the rows."""
    methods = ("forward", "network", "__call__")
    return all(getattr(kind, name) is getattr(BayesianModule, name) for name in methods)


class BodyOfModel:
    """The frozen body of a model, if it has one.

    Args:
        model: Pyro model.
        x: Rows, as the model takes them.
        memo: Where features of the rows of a run are found again, while the run keeps it.
    """

    def __init__(self, model: Model, x: Tensor, memo: Memo | None) -> None:
        inner = module_of(model)
        self._cut = None
        if isinstance(inner, BayesianModule) and _is_plain(type(inner)):
            with unseen(model):
                self._cut = inner.frozen_body(x)
        self._memo = None if memo is None else weakref.ref(memo)  # a posterior has no use for it

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_memo": None}

    def serves(self, x: Tensor) -> bool:
        """Whether features are to be made of rows: there is a body, and they are not features."""
        return self._cut is not None and not self._cut.are_features(x)

    def takes(self, x: Tensor) -> bool:
        """Whether rows are features of the body."""
        return self._cut is not None and self._cut.are_features(x)

    def of(self, x: Tensor, values: Mapping[str, Tensor], rows: Tensor) -> Tensor:
        """Features of rows, or the rows themselves where a disk has no room for these.

        Args:
            x: The rows, as the model takes them.
            values: Parameters and buffers of the model, by name.
            rows: The same as they were given, by which features are found again.
        """
        cut = self._cut
        assert cut is not None
        own = {
            name.removeprefix("net."): value.detach()
            for name, value in values.items()
            if name.startswith("net.") and name.removeprefix("net.") not in cut.moving
        }
        memo = None if self._memo is None else self._memo()
        if memo is not None and (known := memo.find(rows, own)) is not None:
            return known
        try:
            made = features(lambda some: cut.features(some, own), x)
        except OutputError as error:
            logger.warning("the body of the network runs at every step, not once: %s", error)
            return x
        if memo is not None:
            memo.keep(rows, own, made)
        return made
