r"""Plates that take some of their rows at random, ``pyro.plate(name, size, subsample_size=B)``.

A run of a model by this package takes all of their rows, or those that it is given: then

.. math:: \log p(\mathcal D, z) = \log p(z) + \tfrac NB \sum_{b} \log p(y_b \mid z)

is without bias for rows that are drawn at random, and exact for all of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from pyro.poutine.messenger import Messenger
from pyro.poutine.runtime import _PYRO_STACK
from pyro.poutine.subsample_messenger import SubsampleMessenger
from torch import Tensor


class Plate(NamedTuple):
    """A plate that takes some of its rows.

    Attributes:
        name: Of the plate.
        size: Number of its rows N.
        taken: How many it takes, B; more than it has are refused where a model is traced.
    """

    name: str
    size: int
    taken: int


class SomeRows(list[Any]):
    """A model's arguments, and the rows ``[B]`` that a plate takes in a run of it.

    Attributes:
        rows: Numbers of the rows by the name of the plate; of other plates all.
    """

    rows: Mapping[str, Tensor]


def with_rows(args: Sequence[Any], plate: Plate | None, rows: Tensor) -> Sequence[Any]:
    """A model's arguments with the rows ``[B]`` that a plate takes, if these are not all."""
    if plate is None or len(rows) == plate.size:
        return args
    arguments = SomeRows(args)
    arguments.rows = {plate.name: rows}
    return arguments


class WholePlates(Messenger):
    """Let plates that would take some of their rows take as many as the run gives them, or all.

    Attributes:
        plates: Those that would, by name.
    """

    def __init__(self) -> None:
        super().__init__()
        self.plates: dict[str, Plate] = {}


def _subsample(
    name: str,
    size: int | None = None,
    subsample_size: int | None = None,
    subsample: Tensor | None = None,
    use_cuda: bool | None = None,
    device: str | None = None,
) -> tuple[int, int, Tensor | None]:
    """As Pyro's own, which refuses another number of rows than ``subsample_size``."""
    handlers = (h for h in reversed(_PYRO_STACK) if isinstance(h, WholePlates))
    takes_some = size is not None and subsample_size not in (None, size) and subsample is None
    if takes_some and (whole := next(handlers, None)) is not None:
        assert size is not None
        assert subsample_size is not None
        whole.plates[name] = Plate(name, size, subsample_size)
        subsample_size = None
    return _pyros_own(name, size, subsample_size, subsample, use_cuda, device)


# A plate fixes its number of rows when it is made, of which no handler hears
_pyros_own = SubsampleMessenger._subsample
SubsampleMessenger._subsample = staticmethod(_subsample)  # type: ignore[method-assign]


def is_rows_of_plate(msg: Mapping[str, Any]) -> bool:
    """Whether a message is of the rows that a plate takes."""
    return type(msg["fn"]).__name__ == "_Subsample"


def of_rows(value: Tensor, msg: Mapping[str, Any], rows: Mapping[str, Tensor]) -> Tensor:
    """The entries of a site that lie in the rows which its plates take.

    Args:
        value: Of the whole site, or of these rows already.
        msg: Its message.
        rows: Numbers of the rows ``[B]`` by the name of the plate.
    """
    for frame in msg["cond_indep_stack"]:
        if frame.name in rows and frame.vectorized:
            dim = frame.dim - len(msg["fn"].event_shape)
            if value.ndim >= -dim and value.shape[dim] == frame.full_size:
                value = torch.index_select(value, dim, rows[frame.name])
    return value
