"""What the priors of a model's sites are made of, in whatever way: values of sites, parameters.

A gradient does not show a scale that is one number above a threshold and another below it. Marks
do (Wingate et al., "Nonstandard Interpretations of Probabilistic Programs for Efficient
Inference", NeurIPS 2011): memory that an operation fills from marked memory is marked as well.
Values that pass through another thread, pickle, ``torch.utils.dlpack`` or a NumPy array that shares
the memory of an unmarked tensor are not followed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from pyro_bnn.memory import Mode, tensors_in

aten = torch.ops.aten

PARAMETER = "a parameter"
"""The mark of all parameters; the mark of a site is its name."""
WAYS_OUT = frozenset({Tensor.numpy, Tensor.tolist, Tensor.__array__, Tensor.__dlpack__})
"""By which numbers leave a tensor without an operation."""
_NUMBERS = frozenset({Tensor.__float__, Tensor.__index__, Tensor.__bool__, Tensor.__complex__})
"""By which ``torch.Tensor([value])``, of any dtype, reads the tensors that stand in a list."""
_OF_LISTS = frozenset({torch.tensor, torch.as_tensor, torch.asarray, Tensor.new, Tensor.new_tensor})
"""Which read the tensors that stand in a list by themselves."""
_LIKE = frozenset(  # that take a shape and a dtype
    {
        aten.empty_like,
        aten.full_like,
        aten.new_empty,
        aten.new_empty_strided,
        aten.new_full,
        aten.new_ones,
        aten.new_zeros,
        aten.ones_like,
        aten.rand_like,
        aten.randint_like,
        aten.randn_like,
        aten.zeros_like,
    }
)


class WatchedValues(dict[str, Any]):
    """Values of sites that remember which sites the run has met: it asks for each.

    Attributes:
        met: Names of these sites.
        marks: The marks that follow the values.
    """

    marks: Marks

    def __init__(self, values: Mapping[str, Any]) -> None:
        super().__init__(values)
        self.met: list[object] = []

    def __contains__(self, name: object) -> bool:
        self.met.append(name)
        return super().__contains__(name)


class Marks(Mode):
    """Marks on the memory of tensors, which go through the operations of a run of the model.

    Args:
        values: Of the sites, by name, which is their mark.

    Attributes:
        values: Copies of them, for the run: as parts of one z they would share its memory.
        before: For each mark, the sites that the run had met when a tensor with it first became a
            number, or decided a shape, as in ``if scale > 1``.
    """

    def __init__(self, values: Mapping[str, Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        self._on: dict[int, frozenset[str]] = {}
        self._kept: list[torch.UntypedStorage] = []  # so that no address recurs
        self.values = WatchedValues({name: value.clone() for name, value in values.items()})
        self.values.marks = self
        self.before: dict[str, frozenset[object]] = {}
        for name, value in self.values.items():
            self.put([value], name)

    @contextmanager
    def seen(self) -> Iterator[None]:
        """Operations inside are followed, and the ways out that are none."""
        with self, _Outside(self):
            yield

    def put(self, values: Iterable[Tensor], mark: str) -> None:
        """Mark what a run is given."""
        for value in values:
            self._add(value, frozenset({mark}))

    def of(self, values: Any) -> frozenset[str]:
        """The marks on a tensor, or on those in lists and tuples."""
        marks: frozenset[str] = frozenset()
        for value in tensors_in(values):
            if value.layout is torch.strided:
                marks |= self._on.get(value.untyped_storage()._cdata, frozenset())
        return marks

    def note_read(self, marks: frozenset[str]) -> None:
        """A tensor with these marks became a number."""
        for mark in marks:
            self.before.setdefault(mark, frozenset(self.values.met))

    def sources(self, name: str, parts: Any) -> frozenset[str]:
        """The marks on tensors that a site is made of, and those read before the run met it."""
        return self.of(parts) | {mark for mark, met in self.before.items() if name not in met}

    def _add(self, value: Tensor, marks: frozenset[str]) -> None:
        if value.layout is not torch.strided:
            self.note_read(marks)
            return
        storage = value.untyped_storage()
        self._kept.append(storage)
        self._on[storage._cdata] = self._on.get(storage._cdata, frozenset()) | marks

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        named = kwargs or {}
        marks = self.of((args, tuple(named.values())))
        if marks and (
            torch.Tag.data_dependent_output in func.tags or self._decides_shape(func, args)
        ):
            self.note_read(marks)
        out = func(*args, **named)
        if marks and func.overloadpacket not in _LIKE:
            names = (a.name for a in func._schema.arguments)
            by_name = dict(zip(names, args, strict=False)) | named
            written = (
                by_name.get(a.name)
                for a in func._schema.arguments
                if a.alias_info is not None and a.alias_info.is_write
            )
            for value in tensors_in((out, *written)):
                self._add(value, marks)
        return out

    def _decides_shape(self, func: Any, args: tuple[Any, ...]) -> bool:
        if func is aten.index.Tensor:  # a mask decides the shape, places do not
            masks = [i for i in args[1] if i is not None and i.dtype in (torch.bool, torch.uint8)]
            return bool(self.of(masks))
        return torch.Tag.dynamic_output_shape in func.tags


class _Outside(TorchFunctionMode):
    """Sees marked tensors go out by the ways that are no operations."""

    def __init__(self, marks: Marks) -> None:
        super().__init__()
        self._marks = marks

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        named = kwargs or {}
        if func in WAYS_OUT or func in _NUMBERS:
            self._marks.note_read(self._marks.of(args))
        elif func in _OF_LISTS:
            lists = [a for a in (*args, *named.values()) if isinstance(a, list | tuple)]
            self._marks.note_read(self._marks.of(lists))
        return func(*args, **named)
