"""The graph of a step of few numbers as one function in C: loops over its tensors, no library.

A step of one Markov chain through a small network is some hundred operations on some thousand
numbers. General compilers take seconds to import and more to lay out such a graph; written down as
it is, an operation a loop, with its sizes as constants and a row of states written where it lies,
a C compiler makes as fast a function of it within one second.

What is written: operations are taken in their order. One number is a local variable. An elementwise
operation with one reader is an expression in the loop of its reader; with several it is stored by a
loop of its own, which neighbours of the same shape share. Views are places in what they view.
Products of matrices are tiles of vectors in registers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from pyro_bnn.capture.c.graph import (
    FILLS,
    OWN_LOOPS,
    REDUCTIONS,
    SCANS,
    VIEWS,
    ZERO,
    Computed,
    Index,
    Memory,
    Place,
    args_of,
    common_dtype,
    dtype_of,
    index_shape,
    is_elementwise,
    is_range,
    is_view,
    kind_of,
    known,
    loops_over,
    numel,
    own_strides,
    packet_of,
    require,
    shape_of,
    stored_of,
    strides_of,
)
from pyro_bnn.capture.c.loops import Body, Loops, for_loops
from pyro_bnn.capture.c.operations import (
    C_TYPES,
    COMPARISONS,
    ELEMENTWISE,
    LOGICAL,
    SUFFIXES,
    aten,
    literal,
    power,
)
from pyro_bnn.capture.c.special import SPECIAL
from pyro_bnn.capture.c.sums import product, reduction, scan
from pyro_bnn.capture.c.views import view

FUNCTION = "step"


PRELUDE = """\
typedef long long i64;
typedef _Bool bool;
#define true 1
#define false 0
#ifndef VECTOR_MATH
#define VECTOR_MATH
#endif
"""


PLAIN_FUNCTIONS = (
    *("log2", "sqrt", "atan", "lgamma", "nearbyint", "floor", "fabs", "tan", "asin", "acos"),
    *("sinh", "cosh", "asinh", "acosh", "atanh", "erfc"),
)
# functions of the vector library, declared so that loops can call them
FUNCTIONS = "\n".join(
    f"{pragma}{kind} {name}{suffix}({', '.join([kind] * count)});"
    for count, names, pragma in (
        (1, ("exp", "log", "sin", "cos", "tanh", "log1p", "expm1", "erf"), "VECTOR_MATH "),
        (2, ("pow", "hypot"), "VECTOR_MATH "),
        (1, PLAIN_FUNCTIONS, ""),
        (2, ("atan2",), ""),
    )
    for name in names
    for kind, suffix in (("float", "f"), ("double", ""))
)


WHOLE = frozenset(
    {aten.mul, aten.neg, aten.abs, aten.clamp, aten.clamp_min, aten.clamp_max, aten.clone}
    | {aten._to_copy, aten.maximum, aten.minimum, aten.square}
)


# functions written out as they are; many others are made of them
WRITTEN = frozenset(
    {aten.add, aten.sub, aten.rsub, aten.pow, aten.where, aten.remainder, aten.floor_divide}
    | {
        aten.masked_fill,
        aten.bitwise_not,
        aten.arange,
        aten.mm,
        aten.bmm,
        aten.lift_fresh,
        aten.copy_,
    }
    | {*ELEMENTWISE, *LOGICAL, *COMPARISONS, *FILLS, *REDUCTIONS, *VIEWS, *OWN_LOOPS}
)


class Source(NamedTuple):
    """A function in C.

    Attributes:
        text: ``i64 step(void *const *given, char *work, i64 times)``, which takes a step so many
            times and returns 0. Where an index is out of range it returns 1 plus the size of the
            dimension, before anything is read or written at that index.
        constants: Tensors that it reads, given after the inputs.
        num_bytes: How much memory it works in.
    """

    text: str
    constants: list[Tensor]
    num_bytes: int


def c_source(graph: GraphModule, *, vector_bytes: int) -> Source:
    """A graph that ends with its state, which its inputs begin with, as a function in C.

    Args:
        graph: A recording with sizes that are numbers; its outputs are the new values of its first
            inputs.
        vector_bytes: Size of a vector register.

    Raises:
        CaptureError: If an operation has no counterpart here, or is too large to gain.
    """
    return _Writer(graph, vector_bytes).source()


class _Writer(Loops):
    """Writes the operations of a graph, in their order."""

    def __init__(self, graph: GraphModule, vector_bytes: int) -> None:
        super().__init__(vector_bytes)
        self.graph = graph
        self.nodes = list(graph.graph.nodes)
        self.order = {node: i for i, node in enumerate(self.nodes)}
        self.inputs = [node for node in self.nodes if node.op == "placeholder"]
        self.results: Sequence[Any] = self.nodes[-1].args[0]
        self.constants: list[Tensor] = []
        self.pointers: list[str] = []
        self.checked: set[tuple[Node, int]] = set()  # indices, by the size that they are below
        self.is_stored = stored_of(self.nodes)
        for node in reversed(self.nodes):
            self.last[node] = max((self._read_at(user) for user in node.users), default=0)

    def source(self) -> Source:
        """The whole function."""
        for now, node in enumerate(self.nodes[:-1]):
            self.now = now
            self._write(node)
        self.now = len(self.nodes) - 1  # position of the last node: all that remains is read here
        self._write_state()
        self.close()
        num_bytes, where = 0, []
        for name, (dtype, count) in self.slots.items():
            kind = C_TYPES[dtype]
            where.append(f"  {kind} *__restrict {name} = ({kind} *)(work + {num_bytes});")
            num_bytes += -(-count * dtype.itemsize // 64) * 64 + 64
        loop = "  for (i64 time = 0; time < times; time++) {"
        head = f"i64 {FUNCTION}(void *const *given, char *work, i64 times) {{"
        text = [head, *self.pointers, *where, loop, *self.lines, "  }", "  return 0;", "}", ""]
        special = [code for name, code in SPECIAL.items() if any(name in line for line in text)]
        return Source(PRELUDE + "\n".join([FUNCTIONS, *special, *text]), self.constants, num_bytes)

    def _read_at(self, user: Node) -> int:
        """Last position at which a node reads its arguments."""
        is_later = is_view(user) or (is_elementwise(user) and not self.is_stored[user])
        at_once = self.order[user]
        return max(at_once, self.last[user]) if is_later and numel(user) > 1 else at_once

    def _write(self, node: Node) -> None:
        """Write one operation, or note how it is computed."""
        if node.op == "placeholder":
            self._take_input(node)
        elif node.op == "get_attr":
            self._take_constant(node)
        elif known(node) is None or numel(node) == 0:
            pass  # a list of tensors, whose users take the pieces, or no numbers
        else:
            self._operation(node)
        if numel(node) == 1 and node in self.values and not self._is_state(node):
            self.close()
            self.body = Body()
            name = self.read(node, (ZERO,) * len(shape_of(node)))
            self.lines += self.body.lines
            self.values[node] = Computed(lambda _: name)
        elif self.is_stored[node] and isinstance(self.values.get(node), Computed):
            self.store(node)

    def _is_state(self, node: Node) -> bool:
        value = self.values[node]
        return isinstance(value, Memory) and node.op != "placeholder" and node.op != "get_attr"

    def _take_input(self, node: Node) -> None:
        name = f"p{len(self.pointers)}"
        self._point(name, node)
        self.values[node] = Memory(name, own_strides(node))

    def _take_constant(self, node: Node) -> None:
        value = getattr(self.graph, str(node.target))
        dtype = dtype_of(node)
        if value.numel() and bool((value == value.flatten()[0]).all()):
            number = literal(value.flatten()[0].item(), dtype)
            self.values[node] = Computed(lambda _: number)
        elif value.numel():
            name = f"p{len(self.inputs) + len(self.constants)}"
            self._point(name, node)
            self.constants.append(value.contiguous())
            self.values[node] = Memory(name, strides_of(shape_of(node)))

    def _point(self, name: str, node: Node) -> None:
        kind, number = kind_of(node), name[1:]
        self.pointers.append(f"  {kind} *__restrict {name} = ({kind} *)given[{number}];")

    def _operation(self, node: Node) -> None:
        packet = packet_of(node)
        if is_view(node):
            self.values[node] = view(self, node, packet)
        elif packet in (aten.mm, aten.bmm):
            product(self, node, node.args[0], node.args[1])
        elif packet in REDUCTIONS:
            reduction(self, node, packet)
        elif packet in SCANS:
            scan(self, node, packet)
        elif packet is aten.index:
            self._gather(node)
        elif packet is aten.index_put:
            self._scatter(node)
        elif packet in (aten.cat, aten.stack):
            self._side_by_side(node, packet)
        elif packet is aten.arange:
            self.values[node] = self._range(node)
        elif packet in FILLS:
            number = literal(FILLS[packet](node), dtype_of(node))
            self.values[node] = Computed(lambda _: number)
        else:
            self.values[node] = self._elementwise(node, packet)

    def _elementwise(self, node: Node, packet: Any) -> Computed:
        dtype, args, kwargs = dtype_of(node), args_of(node), dict(node.kwargs)
        alpha: Any = kwargs.pop("alpha", 1)
        mode = kwargs.pop("rounding_mode", None)
        for name in ("dtype", "memory_format", "layout", "device", "pin_memory", "non_blocking"):
            kwargs.pop(name, None)
        require(not kwargs, node)
        if packet in (aten.sub, aten.rsub, aten.add):
            return self._sum(node, packet, args, alpha)
        if packet is aten.pow:
            require(isinstance(args[0], Node), node)
            if isinstance(args[1], (int, float)):
                exponent = float(args[1])
                return self._expression(node, lambda x: power(x, exponent), dtype, args[:1])
            return self._expression(node, lambda a, b: f"pow@({a}, {b})", dtype, args)
        if packet in (aten.where, aten.masked_fill):
            require(len(args) == 3, node)
            mask, a, b = args if packet is aten.where else (args[1], args[2], args[0])
            return self._computed(
                node,
                lambda mask, a, b: f"{mask} ? {a} : {b}",
                [(mask, None), (a, dtype), (b, dtype)],
            )
        if packet in COMPARISONS:
            common = common_dtype(args)
            return self._expression(node, COMPARISONS[packet], common, args)
        if packet in (aten.remainder, aten.floor_divide) or mode == "floor":
            require(dtype is torch.int64, node)
            rest = "({0} % {1} + {1}) % {1}"
            text = rest if packet is aten.remainder else f"({{0}} - {rest}) / {{1}}"
            return self._expression(node, text.format, dtype, args)
        if packet is aten.bitwise_not:
            sign = "!" if dtype is torch.bool else "~"
            return self._expression(node, lambda x: f"{sign}{x}", dtype, args)
        require(mode is None and alpha == 1, node)
        if packet in LOGICAL:
            is_logical = packet in (aten.logical_and, aten.logical_or, aten.logical_not)
            return self._expression(
                node, LOGICAL[packet], torch.bool if is_logical else dtype, args
            )
        require(packet in ELEMENTWISE, node)
        require(dtype in SUFFIXES or packet in WHOLE, node)
        return self._expression(node, ELEMENTWISE[packet], dtype, args)

    def _sum(self, node: Node, packet: Any, args: Sequence[Any], alpha: Any) -> Computed:
        """A sum or a difference, whose second operand is multiplied by a number."""
        dtype = dtype_of(node)
        require(packet is not aten.rsub or alpha == 1, node)
        a, b = reversed(args[:2]) if packet is aten.rsub else args[:2]
        sign = "+" if packet is aten.add else "-"
        factor = "" if alpha == 1 else f"{literal(alpha, dtype)} * "
        return self._computed(
            node, lambda b, a: f"{a} {sign} {factor}{b}", [(b, dtype), (a, dtype)]
        )

    def _expression(
        self, node: Node, expression: Callable[..., str], dtype: torch.dtype, args: Sequence[Any]
    ) -> Computed:
        """An expression of at most three operands of one dtype."""
        require(len(args) <= 3, node)
        suffix = SUFFIXES.get(dtype, "")
        return self._computed(
            node,
            lambda *operands: expression(*operands).replace("@", suffix),
            [(a, dtype) for a in args],
        )

    def _computed(
        self,
        node: Node,
        expression: Callable[..., str],
        operands: Sequence[tuple[Any, torch.dtype | None]],
    ) -> Computed:
        """An expression of operands, each cast to a dtype unless that is None."""

        def at(place: Place) -> str:
            read = [None if a is None else self.operand(a, place, dtype) for a, dtype in operands]
            return self.let(dtype_of(node), expression(*read))

        return Computed(at)

    def _range(self, node: Node) -> Computed:
        dtype, numbers = dtype_of(node), [a for a in node.args if isinstance(a, (int, float))]
        is_known = dtype is torch.int64 or dtype.is_floating_point
        require(is_known and len(numbers) == len(node.args), node)
        require(all(float(number).is_integer() for number in numbers), node)
        start, step = (0 if len(numbers) == 1 else numbers[0]), (numbers[2:] or [1])[0]

        def at(place: Place) -> str:
            number = f"({place[0].times(int(step)).plus(Index(int(start)))})"
            return number if dtype is torch.int64 else self.let(dtype, number)

        return Computed(at)

    def _places(self, node: Node) -> tuple[Node, list[Any], int]:
        """Source, indices, and the first dimension that has one."""
        source, listed, *_ = args_of(node)
        at = [d for d, index in enumerate(listed) if index is not None]
        require(at == list(range(at[0], at[-1] + 1)), node)
        indices = listed[at[0] : at[-1] + 1]
        for index in indices:
            require(dtype_of(index) in (torch.int64, torch.int32), node)
        return source, indices, at[0]

    def _chosen(self, node: Node, place: Place) -> Place:
        """The place in what is indexed."""
        source, indices, first = self._places(node)
        ndim = max(len(shape_of(index)) for index in indices)
        own = place[first : first + ndim]
        chosen = []
        for d, index in enumerate(indices):
            if numel(index) == 1 and is_range(index):
                chosen.append(ZERO)
                continue
            size = shape_of(source)[first + d]
            name = self.operand(index, own, torch.int64)
            name = self.let(torch.int64, f"{name} < 0 ? {name} + {size} : {name}")
            chosen.append(Index(0, ((name, 1),)))
        return (*place[:first], *chosen, *place[first + ndim :])

    def _check_indices(self, node: Node) -> None:
        """Return from the step where an index is out of range; those from the end are in range."""
        source, indices, first = self._places(node)
        for size, index in zip(shape_of(source)[first:], indices, strict=False):
            is_inside = is_range(index) and numel(index) <= size
            if is_inside or (index, size) in self.checked:
                continue
            self.checked.add((index, size))
            loops, place = loops_over(shape_of(index))
            self.body = Body(loops)
            name = self.operand(index, place, torch.int64)
            if self.nest is not None and self.nest.written & self.body.touched:
                self.close()
            bad = self.name("v")
            test = f"{bad} |= ({name} < {-size}) | ({name} >= {size});"
            self.lines.append(f"int {bad} = 0;")
            self.lines += for_loops(self.body.loops, [*self.body.lines, test])
            self.lines.append(f"if ({bad}) return {1 + size};")

    def _gather(self, node: Node) -> None:
        self._check_indices(node)
        source = self._places(node)[0]
        if self.located(source, (ZERO,) * len(shape_of(source))) is None:
            self.realise(source)
        self.values[node] = Computed(lambda place: self.read(source, self._chosen(node, place)))
        if numel(node) > 1:  # now, as the source may be written afterwards
            self.store(node)

    def _scatter(self, node: Node) -> None:
        base, _, values, *accumulate = args_of(node)
        require(not node.kwargs, node)
        self.close()
        self._check_indices(node)
        memory = self.values[base]
        if not (isinstance(memory, Memory) and self._is_written_in_place(base, node)):
            memory = self.new(node)
            self.store(base, memory)
            self.close()
        loops, place = loops_over(index_shape(node))
        self.body = Body(loops)
        into = self._chosen(node, place)
        name = self.operand(values, place, dtype_of(node))
        adds = any(accumulate)  # in order, as places may be the same
        line = f"{memory.name}[{memory.at(into)}] {'+=' if adds else '='} {name};"
        lines, in_order = [*self.body.lines, line], "// in order" if adds else ""
        self.lines += for_loops(self.body.loops, lines, in_order)
        self.values[node] = memory

    def _is_written_in_place(self, base: Node, node: Node) -> bool:
        """Whether nothing reads what a write replaces, and it is replaced in the end."""
        others = [self._read_at(user) for user in base.users if user is not node]
        root: Any = base
        while root.op != "placeholder":
            if packet_of(root) is not aten.index_put:
                return False
            root = root.args[0]
        number = self.inputs.index(root)
        end: Any = self.results[number] if number < len(self.results) else None
        while isinstance(end, Node) and end is not node:
            end = end.args[0] if packet_of(end) is aten.index_put else None
        value = self.values[base]
        is_input = isinstance(value, Memory) and value.name == f"p{number}"
        return end is node and is_input and max(others, default=0) <= self.order[node]

    def _side_by_side(self, node: Node, packet: Any) -> None:
        listed, dim, *_ = [*args_of(node), 0]
        pieces = [p for p in listed if packet is aten.stack or numel(p)]
        dim %= len(shape_of(node))
        memory, start = self.new(node), 0
        for piece in pieces:
            stride = memory.strides[dim]
            shifted = Memory(memory.name, memory.strides, start * stride)
            if packet is aten.stack:
                strides = memory.strides[:dim] + memory.strides[dim + 1 :]
                shifted, start = Memory(memory.name, strides, start * stride), start + 1
            else:
                start += shape_of(piece)[dim]
            self.close()
            self.store(piece, shifted)
        self.close()
        self.values[node] = memory

    def _write_state(self) -> None:
        """Write new values over the old ones, after all of them are computed."""
        changed = []
        for number, result in enumerate(self.results):
            require(isinstance(result, Node), self.nodes[-1])
            if numel(result) == 0:
                continue
            own, value = f"p{number}", self.values[result]
            if result is self.inputs[number] or (isinstance(value, Memory) and value.name == own):
                continue
            changed.append((number, result))
            if numel(result) > 1 and not (isinstance(value, Memory) and value.name.startswith("w")):
                self.store_copy(result)
        self.close()
        for number, result in changed:
            target = self.inputs[number]
            require(
                shape_of(target) == shape_of(result) and dtype_of(target) == dtype_of(result),
                target,
            )
            self.store(result, Memory(f"p{number}", own_strides(target)))
