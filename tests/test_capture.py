"""Captured graphs: the same numbers, one graph a shape, one line where there can be none."""

from __future__ import annotations

import logging
import math
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyro.distributions as dist
import pytest
import torch
import torch._inductor
from torch import Tensor
from torch.testing import assert_close

from pyro_bnn.capture import Captured, value_and_grad
from pyro_bnn.capture import captured as capture_module
from pyro_bnn.capture.inductor.compiling import compile_graph
from pyro_bnn.capture.record import capture
from pyro_bnn.errors import CaptureError
from pyro_bnn.program import Batch, Program
from tests.plain_pyro import CASES, data, log_joint
from tests.test_program import branching


class Counting:
    """A function of tensors that counts how often Python ran it."""

    def __init__(self, fn: Callable[..., tuple[Tensor, ...]]) -> None:
        self.fn, self.calls = fn, 0

    def __call__(self, *args: Tensor) -> tuple[Tensor, ...]:
        self.calls += 1
        return self.fn(*args)


def lines(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    return [record for record in caplog.records if record.name == "pyro_bnn"]


CALLS = 3  # of the function for a new graph: one is recorded, two are compared with it


def test_a_graph_is_recorded_once_for_each_shape_and_dtype() -> None:
    fn = Counting(lambda a, b: (a * b.sum(),))
    captured = Captured(fn, "product")
    for size, dtype, graphs in [
        (3, torch.float32, 1),
        (3, torch.float32, 1),
        (4, torch.float32, 2),
        (3, torch.float64, 3),
        (4, torch.float32, 3),
    ]:
        a, b = torch.arange(float(size), dtype=dtype), torch.ones(2, dtype=dtype)
        (value,) = captured(a, b)
        assert_close(value, 2 * a)
        assert fn.calls == CALLS * graphs
    assert captured.is_captured


def test_one_tensor_passed_twice_stays_two_inputs() -> None:
    captured = Captured(lambda a, b: (a - 2 * b,), "difference")
    same = torch.tensor([1.0, 2.0])
    assert_close(captured(same, same)[0], -same)
    assert_close(captured(same, torch.tensor([10.0, 20.0]))[0], torch.tensor([-19.0, -38.0]))


def test_outputs_carry_no_gradient_history_with_or_without_a_graph() -> None:
    a = torch.tensor([1.0, 2.0], requires_grad=True)
    for enabled in (True, False):
        (value,) = Captured(lambda a: (a * 3,), "triple", enabled=enabled)(a)
        assert not value.requires_grad
        assert_close(value, torch.tensor([3.0, 6.0]))
    assert a.grad is None


def test_disabled_the_function_runs_every_time(caplog: pytest.LogCaptureFixture) -> None:
    fn = Counting(lambda a: (a,))
    captured = Captured(fn, "identity", enabled=False)
    for _ in range(3):
        captured(torch.ones(2))
    assert fn.calls == 3
    assert not captured.is_captured
    assert not lines(caplog)


def test_value_and_grad_returns_value_auxiliaries_and_gradients() -> None:
    def fn(variables: Any, rest: Any) -> tuple[Tensor, tuple[Tensor, ...]]:
        (a, b, _), (scale,) = variables, rest
        return scale * (a**2 * b).sum(), (a + b,)

    direct = value_and_grad(fn, 3)
    a, b, unused = torch.tensor([1.0, 2.0]), torch.tensor([3.0, 4.0]), torch.tensor([5.0])
    scale = torch.tensor(10.0)
    for function in (direct, Captured(direct, "cubic")):
        value, auxiliary, by_a, by_b, by_unused = function(a, b, unused, scale)
        assert_close(value.detach(), torch.tensor(10.0 * (3.0 + 16.0)))
        assert_close(auxiliary.detach(), torch.tensor([4.0, 6.0]))
        assert_close(by_a, torch.tensor([60.0, 160.0]))  # 2 a b scale
        assert_close(by_b, torch.tensor([10.0, 40.0]))  # a^2 scale
        assert_close(by_unused, torch.zeros(1))
    assert not a.requires_grad


def test_gradients_are_taken_although_the_caller_switched_them_off() -> None:
    direct = value_and_grad(lambda v, _: ((v[0] ** 2).sum(), ()), 1)
    with torch.no_grad():
        for function in (direct, Captured(direct, "square")):
            assert_close(function(torch.tensor([3.0]))[1], torch.tensor([6.0]))


def test_a_branch_on_a_tensor_falls_back_with_one_line_and_the_same_numbers(
    caplog: pytest.LogCaptureFixture,
) -> None:
    x, y = data()
    program = Program(branching, x, y)
    batch = program.batch(x, y)
    fn = value_and_grad(lambda v, rest: (program.log_joint(v[0], Batch(*rest)), ()), 1)
    captured = Captured(fn, "log joint of branching")
    # the branch on either side, and another shape: a baked-in branch would give wrong numbers
    for row, n in [([1.0, 2.0, 0.5], 12), ([-1.0, 0.3, 0.1], 12), ([-1.0, 0.3, 0.1], 6)]:
        z = torch.tensor(row, requires_grad=True)
        part = Batch(batch.x[:n], batch.y[:n])
        expected = log_joint(branching, z, *part, scale=12 / n)
        (gradient,) = torch.autograd.grad(expected, z)
        assert_close(captured(z, *part), (expected.detach(), gradient), rtol=1e-5, atol=1e-4)
    assert not captured.is_captured
    (record,) = lines(caplog)
    assert record.levelname == "WARNING"
    assert record.message.startswith(
        "log joint of branching cannot be captured as a graph and runs through plain Pyro, which "
        "is slower: "
    )
    assert "data-dependent control flow" in record.message
    assert "\n" not in record.message


def test_an_error_without_text_is_named_by_its_class(caplog: pytest.LogCaptureFixture) -> None:
    attempts = []

    def fails_at_first(a: Tensor) -> tuple[Tensor]:
        attempts.append(a)
        if len(attempts) == 1:
            raise NotImplementedError
        return (a + 1,)

    assert_close(Captured(fails_at_first, "it")(torch.zeros(1))[0], torch.ones(1))
    (record,) = lines(caplog)
    assert record.message.endswith("slower: NotImplementedError")


def test_an_error_of_the_function_itself_still_comes_through() -> None:
    def broken(a: Tensor) -> tuple[Tensor]:
        raise ValueError("broken on purpose")

    with pytest.raises(ValueError, match="broken on purpose"):
        Captured(broken, "broken")(torch.zeros(1))


@pytest.mark.parametrize("name", ["normal-learned", "prior-frozen", "plain-function"])
def test_a_graph_holds_no_random_operation_and_reads_its_inputs(name: str) -> None:
    case = CASES[name]
    x, y = data(case.target)
    program = Program(case.build(), x, y)
    batch = program.batch(x, y)
    z = program.initial
    graph = capture(lambda z, x, y: (program.log_joint(z, Batch(x, y)),), [z, *batch])
    before = torch.get_rng_state()
    for shift in (0.0, 1.0):
        inputs = (z + shift, batch.x + shift, batch.y - shift)
        assert_close(graph(*inputs)[0], program.log_joint(inputs[0], Batch(*inputs[1:])))
    assert torch.equal(torch.get_rng_state(), before)


def test_the_checks_of_distributions_do_not_get_in_the_way() -> None:
    captured = Captured(lambda loc, scale, y: (dist.Normal(loc, scale).log_prob(y),), "density")
    loc, scale, y = torch.zeros(3), torch.full((3,), 2.0), torch.arange(3.0)
    expected = -0.5 * (y / 2) ** 2 - math.log(2) - 0.5 * math.log(2 * math.pi)
    assert_close(captured(loc, scale, y)[0], expected)
    assert captured.is_captured


def test_validation_is_on_again_after_a_capture_and_after_one_that_failed() -> None:
    def fails(a: Tensor) -> tuple[Tensor]:
        raise ValueError("broken on purpose")

    capture(lambda a: (a,), [torch.zeros(1)])
    assert torch.distributions.Distribution._validate_args
    with pytest.raises(ValueError, match="broken on purpose"):
        capture(fails, [torch.zeros(1)])
    assert torch.distributions.Distribution._validate_args


def test_the_logger_is_the_packages_own() -> None:
    assert capture_module.logger.name == "pyro_bnn"


# Numbers of rows

ROWS = {1: 0, 2: 0}  # of the inputs w, x, y


def squared_error(w: Tensor, x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    """Mean over the rows and each row's, of a network of three units."""
    rows = (torch.tanh(x @ w).sum(-1) - y).square()
    return rows.sum() * (10 / x.shape[0]), rows


def rows_of(count: int, num_inputs: int = 4) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(count)
    x = torch.randn(count, num_inputs, generator=generator, dtype=torch.float64)
    return x, torch.randn(count, generator=generator, dtype=torch.float64)


def weights(num_inputs: int = 4, num_units: int = 3) -> Tensor:
    return torch.linspace(-1, 1, num_inputs * num_units).double().reshape(num_inputs, num_units)


# the first number is recorded: equal to the inputs, the units, to neither
@pytest.mark.usefixtures("interpreted")
@pytest.mark.parametrize("first", [4, 3, 2, 7])
def test_one_graph_serves_all_numbers_of_rows_but_one(first: int) -> None:
    """At 4 rows of 4 inputs, and 3 of 3 units, sizes of the model are not taken for rows."""
    fn = Counting(squared_error)
    captured = Captured(fn, "error", compiled=True, rows=ROWS, strict=True)
    for count in (first, 2, 3, 4, 5, 12, 100):
        inputs = weights(), *rows_of(count)
        assert_close(captured(*inputs), squared_error(*inputs), rtol=1e-12, atol=0)
    assert fn.calls == CALLS
    for _ in range(2):  # one row has a graph of its own
        inputs = weights(), *rows_of(1)
        assert_close(captured(*inputs), squared_error(*inputs), rtol=1e-12, atol=0)
    assert fn.calls == 2 * CALLS
    assert captured.is_captured


@pytest.mark.usefixtures("interpreted")
def test_one_row_first_leaves_the_other_numbers_to_a_graph_of_their_own() -> None:
    fn = Counting(squared_error)
    captured = Captured(fn, "error", compiled=True, rows=ROWS, strict=True)
    for count in (1, 5, 1, 6):
        inputs = weights(), *rows_of(count)
        assert_close(captured(*inputs), squared_error(*inputs), rtol=1e-12, atol=0)
    assert fn.calls == 2 * CALLS


@pytest.mark.parametrize(("rows", "is_compiled"), [(ROWS, False), (None, True), (None, False)])
@pytest.mark.usefixtures("interpreted")
def test_without_rows_or_a_compiler_a_graph_is_made_for_each_number_of_them(
    rows: dict[int, int] | None, is_compiled: bool
) -> None:
    fn = Counting(squared_error)
    captured = Captured(fn, "error", compiled=is_compiled, rows=rows, strict=True)
    for count in (5, 6, 5):
        captured(weights(), *rows_of(count))
    assert fn.calls == 2 * CALLS


def branching_on_rows(w: Tensor, x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    return tuple(value * (2.0 if x.shape[0] > 4 else 1.0) for value in squared_error(w, x, y))


def even_rows(w: Tensor, x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    total, rows = squared_error(w, x, y)
    return total, rows.reshape(-1, 2).sum(-1) if x.shape[0] % 2 == 0 else rows


@pytest.mark.usefixtures("interpreted")
@pytest.mark.parametrize("fn", [branching_on_rows, even_rows])
@pytest.mark.parametrize("counts", [(20, 3, 8, 4, 5), (3, 20, 4, 12, 7)])
def test_a_branch_on_the_number_of_rows_makes_two_graphs(
    fn: Callable[..., tuple[Tensor, ...]], counts: tuple[int, ...]
) -> None:
    counting = Counting(fn)
    captured = Captured(counting, "error", compiled=True, rows=ROWS, strict=True)
    for count in counts:
        inputs = weights(), *rows_of(count)
        assert_close(captured(*inputs), fn(*inputs), rtol=1e-12, atol=0)
    assert counting.calls == 2 * CALLS


def counting_by_len(w: Tensor, x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    total, rows = squared_error(w, x, y)
    return total / len(x), rows


def with_a_constant_of_rows(w: Tensor, x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    total, rows = squared_error(w, x, y)
    return total * torch.tensor(float(x.shape[0])), rows


def looping_over_rows(w: Tensor, x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    total, rows = squared_error(w, x, y)
    return total + sum(rows[i] for i in range(x.shape[0])), rows


@pytest.mark.usefixtures("interpreted")
@pytest.mark.parametrize("fn", [counting_by_len, with_a_constant_of_rows, looping_over_rows])
def test_operations_of_one_number_of_rows_have_a_graph_for_each(
    fn: Callable[..., tuple[Tensor, ...]], caplog: pytest.LogCaptureFixture
) -> None:
    """``len(x)`` is an integer of Python, in which no other number of rows can stand."""
    captured = Captured(fn, "error", compiled=True, rows=ROWS, strict=True)
    for count in (6, 4, 6, 9):
        inputs = weights(), *rows_of(count)
        assert_close(captured(*inputs), fn(*inputs), rtol=1e-12, atol=0)
    assert captured.is_captured
    assert not lines(caplog)


def test_the_function_that_records_says_of_which_rows_it_is() -> None:
    inputs = [weights(), *rows_of(6)]
    with pytest.raises(CaptureError, match="its operations are those of 6 rows only"):
        compile_graph(counting_by_len, inputs, rows=ROWS)


# The check of a new graph


class CountingInPython:
    """Its result depends on how often Python ran it, which no graph can know."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, a: Tensor) -> tuple[Tensor, ...]:
        self.calls += 1
        return (a * self.calls,)


def through_numbers(a: Tensor) -> tuple[Tensor, ...]:
    """Reads its own values, but those of the tensor it closes over where none are to be had."""
    try:
        size = float(a.detach().abs().max())
    except Exception:  # of a tensor without data
        size = 1.0
    return (a / size,)


OTHER_NUMBERS = (
    "a graph of its operations gives other numbers than the function itself; do they depend on "
    "values of its inputs, draw random numbers or change a buffer?"
)


@pytest.mark.parametrize("make", [CountingInPython, lambda: through_numbers])
def test_a_function_that_depends_on_more_than_its_inputs_is_found_out(
    make: Callable[[], Any], caplog: pytest.LogCaptureFixture
) -> None:
    fn = make()
    captured = Captured(fn, "it")
    a = torch.tensor([1.0, -3.0])
    for factor in (1.0, 2.0):
        actual = captured(factor * a)[0]
        expected = factor * a * fn.calls if isinstance(fn, CountingInPython) else a / 3
        assert_close(actual, expected)
    assert not captured.is_captured
    (record,) = lines(caplog)
    assert record.message.endswith(OTHER_NUMBERS)


DEPENDENT: dict[str, Callable[[Tensor], Any]] = {
    "number": lambda a: a * a[0].item(),
    "branch": lambda a: a if bool((a > 0).any()) else -a,
    "distinct": lambda a: a * len(torch.unique(a)),
    "array": lambda a: a * float(np.abs(a.detach().numpy()).max()),
    "another array": lambda a: a * float(np.asarray(a).max()),
    "list": lambda a: a * max(a.tolist()),
    "number of a draw": lambda a: a * torch.rand(()).item(),
}


@pytest.mark.parametrize("kind", DEPENDENT)
def test_no_graph_is_made_of_operations_that_values_choose(kind: str) -> None:
    with pytest.raises(CaptureError, match="data-dependent control flow"):
        Captured(lambda a: (DEPENDENT[kind](a),), kind, strict=True)(torch.tensor([1.0, -2.0]))


def test_rows_that_a_mask_chooses_are_those_of_each_call() -> None:
    def fn(a: Tensor) -> tuple[Tensor, ...]:
        out = torch.zeros_like(a)
        out[a > 0] = a[a > 0].square()
        return out, a[a < 0].mean()

    captured = Captured(fn, "chosen", strict=True)
    for values in ([1.0, -2.0, 1.0], [-1.0, -2.0, 3.0], [1.0, 2.0, -3.0]):
        a = torch.tensor(values)
        assert_close(captured(a), fn(a))


def test_constants_may_be_read_and_changed_while_recording() -> None:
    table = torch.tensor([4.0, 5.0])

    def fn(a: Tensor) -> tuple[Tensor, ...]:
        size = torch.tensor([2, 3]).prod().item() * table.numpy().min() / 4  # no input leads there
        made = torch.zeros(4)
        made[1:3] = a  # through a view
        made[0] += table[table > 4.5].sum()
        own = torch.tensor(1.0)
        own += a.sum()  # a number of the recording's own, anew in each call
        return made * size, own, *a.aminmax()

    graph = capture(fn, [torch.ones(2)])
    for _ in range(2):
        a = torch.tensor([0.5, -3.0])
        out = graph(a)
        assert_close(out[0], torch.tensor([30.0, 3.0, -18.0, 0.0]))
        assert_close(out[1:], (torch.tensor(-1.5), torch.tensor(-3.0), torch.tensor(0.5)))
    assert_close(table, torch.tensor([4.0, 5.0]))


def test_a_recording_holds_no_result_longer_than_the_function() -> None:
    """Ten results of 8 MB, one after the other."""
    alive = []

    def fn(a: Tensor) -> tuple[Tensor, ...]:
        total, seen = a.sum(), []
        for i in range(10):
            large = a.expand(2**21) + i
            seen.append(weakref.ref(large))
            total = total + large.sum()
            alive.append(sum(ref() is not None for ref in seen))
        return (total,)

    capture(fn, [torch.ones(1)])
    assert max(alive) <= 2


def test_strict_the_reason_is_an_error() -> None:
    with pytest.raises(CaptureError) as caught:
        Captured(CountingInPython(), "it", strict=True)(torch.ones(2))
    assert str(caught.value) == f"it cannot be captured as a graph: {OTHER_NUMBERS}"
    x, y = data()
    program = Program(branching, x, y)
    batch = program.batch(x, y)
    captured = Captured(
        lambda z, x, y: (program.log_joint(z, Batch(x, y)),), "log joint", strict=True
    )
    with pytest.raises(
        CaptureError, match=r"log joint cannot be captured .* data-dependent control"
    ):
        captured(program.initial, *batch)


def test_random_numbers_of_the_caller_are_left_alone_by_the_check() -> None:
    state = torch.get_rng_state()
    Captured(lambda a: (a + 1,), "it")(torch.zeros(2))
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.slow("compiles")
def test_a_gradient_that_is_rounding_alone_is_no_other_number() -> None:
    """A bias before a normalisation has none: what comes out differs with every order of sums."""

    def fn(variables: Any, rest: Any) -> tuple[Tensor, tuple[Tensor, ...]]:
        (weight, bias), (x,) = variables, rest
        h = x @ weight + bias  # [N, 5]
        return ((h - h.mean(0)) / h.std(0)).pow(3).sum(), ()

    generator = torch.Generator().manual_seed(0)
    x, weight = torch.randn(50, 3, generator=generator), torch.randn(3, 5, generator=generator)
    direct = value_and_grad(fn, 2)
    captured = Captured(direct, "skewness", compiled=True, rows={2: 0}, strict=True)
    bias = torch.linspace(-1, 1, 5)
    out = captured(weight, bias, x)
    assert float(out[2].abs().max()) < 1e-3 * float(out[1].abs().max())
    assert_close(out[1], direct(weight, bias, x)[1], rtol=1e-4, atol=1e-3)


# State


def with_state(a: Tensor, b: Tensor, x: Tensor) -> tuple[Tensor, ...]:
    """Outputs, then new values of a and b, which depend on the old ones of both."""
    return (a * x).sum(), x + b, a + b, b * x.sum()


@pytest.mark.parametrize("path", ["plain", "captured", "compiled"])
def test_trailing_outputs_are_written_into_leading_inputs(path: str) -> None:
    captured = Captured(
        with_state,
        "it",
        enabled=path != "plain",
        compiled=path == "compiled",
        num_state=2,
        strict=True,
    )
    a, b = torch.tensor([1.0, 2.0]), torch.tensor([3.0, 4.0])
    expected_a, expected_b = a.clone(), b.clone()
    owned = a, b
    for x in (torch.tensor([0.5, -1.5]), torch.tensor([2.0, 1.0])):
        *expected, new_a, new_b = with_state(expected_a, expected_b, x)
        before = x.clone()
        out = captured(a, b, x)
        assert_close(out, tuple(expected))  # without the state
        assert_close((a, b), (new_a, new_b))
        assert_close(x, before, rtol=0, atol=0)
        expected_a, expected_b = new_a, new_b
    assert all(now is before for now, before in zip((a, b), owned, strict=True))
    assert captured.is_captured == (path != "plain")


def handed_on(a: Tensor, b: Tensor, x: Tensor) -> tuple[Tensor, ...]:
    """Outputs are the old a and, as new value of b, a view of it."""
    return a, a + x.sum(), a.view(1, 2).view(2)


def exchanged(a: Tensor, b: Tensor, x: Tensor) -> tuple[Tensor, ...]:
    return a * x, b, a


@pytest.mark.parametrize("fn", [handed_on, exchanged])
@pytest.mark.parametrize("path", ["plain", "captured", "compiled"])
def test_state_is_read_before_it_is_written(fn: Callable[..., Any], path: str) -> None:
    a, b, x = torch.tensor([1.0, 2.0]), torch.tensor([3.0, 4.0]), torch.tensor([0.5, -1.5])
    expected = [value.clone() for value in fn(a, b, x)]
    captured = Captured(fn, "it", enabled=path != "plain", compiled=path == "compiled", num_state=2)
    out = captured(a, b, x)
    assert_close([*out, a, b], expected, rtol=0, atol=0)
    assert captured.is_captured == (path != "plain" and fn is handed_on)


def test_state_that_requires_gradients_is_written_too() -> None:
    p, x = torch.ones(2, requires_grad=True), torch.tensor([3.0, 5.0])
    for enabled in (True, False):
        Captured(lambda p, x: (p.sum(), p + x), "it", enabled=enabled, num_state=1)(p, x)
    assert_close(p.detach(), 1 + 2 * x)
    assert p.requires_grad
    assert p.is_leaf


@pytest.mark.parametrize("num_state", [0, 2])
def test_a_capture_leaves_its_inputs_as_they_are(num_state: int) -> None:
    inputs = [torch.tensor([1.0, 2.0]), torch.tensor([3.0, 4.0]), torch.tensor([0.5, -1.5])]
    before = [value.clone() for value in inputs]
    capture(with_state, inputs, num_state=num_state)
    assert_close(inputs, before, rtol=0, atol=0)


# The compiler


def fails(*_: object, **__: object) -> None:
    raise RuntimeError("no C++ compiler\nsecond line")


def test_without_a_compiler_an_uncompiled_graph_serves_with_one_line(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(torch._inductor, "compile", fails)
    monkeypatch.setattr("pyro_bnn.capture.inductor.compiling._lowered", fails)
    fn = Counting(squared_error)
    captured = Captured(fn, "error", compiled=True, rows=ROWS)
    for count in (6, 1, 6, 9):  # three graphs
        inputs = weights(), *rows_of(count)
        assert_close(captured(*inputs), squared_error(*inputs), rtol=1e-12, atol=0)
    assert captured.is_captured
    assert not captured.is_compiled
    assert fn.calls == 3 * CALLS + 1  # one was recorded for the compiler
    (record,) = lines(caplog)
    assert record.message == (
        "error cannot be compiled and runs as an uncompiled graph: no C++ compiler"
    )
    assert record.levelname == "WARNING"


def test_a_long_graph_is_not_compiled_unless_that_is_asked_for(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(capture_module, "MOST_OPERATIONS", 50)

    def long(x: Tensor) -> tuple[Tensor, ...]:
        for n in range(20):
            x = torch.where(x > n, x, x + 0.5 / (n + 1))
        return (x,)

    captured = Captured(long, "a loop", compiled=True)
    with caplog.at_level(logging.WARNING, logger="pyro_bnn"):
        (value,) = captured(torch.full((2,), 0.1))
    assert captured.path == "captured"
    torch.testing.assert_close(value, long(torch.full((2,), 0.1))[0])
    (line,) = caplog.messages
    assert line.startswith("a loop cannot be compiled and runs as an uncompiled graph: its ")
    assert line.endswith("seconds to compile; compile=True does it")


def test_strict_a_failing_compiler_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch._inductor, "compile", fails)
    monkeypatch.setattr("pyro_bnn.capture.inductor.compiling._lowered", fails)
    captured = Captured(squared_error, "error", compiled=True, strict=True)
    with pytest.raises(CaptureError, match=r"^error cannot be compiled: no C\+\+ compiler$"):
        captured(weights(), *rows_of(3))


def test_what_cannot_be_recorded_is_not_compiled_either_and_says_so_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    x, y = data()
    program = Program(branching, x, y)
    batch = program.batch(x, y)
    captured = Captured(
        lambda z, x, y: (program.log_joint(z, Batch(x, y)),), "log joint", compiled=True
    )
    expected = program.log_joint(program.initial, batch)
    assert_close(captured(program.initial, *batch)[0], expected)
    (record,) = lines(caplog)
    assert "cannot be captured as a graph and runs through plain Pyro" in record.message


@pytest.mark.slow("a second or more")
def test_compiled_as_it_is_or_through_inductors_own_entry_the_bits_are_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = []
    for unused in ("torch._inductor.compile", "pyro_bnn.capture.inductor.compiling._lowered"):
        with monkeypatch.context() as patched:
            patched.setattr(unused, fails)
            captured = Captured(with_state, "state", compiled=True, num_state=2, strict=True)
            inputs = [torch.tensor([1.0, 2.0]), torch.tensor([3.0, 4.0]), torch.tensor([0.5, -1.5])]
            found.append([*captured(*inputs), *inputs])
    assert_close(found[0], found[1], rtol=0, atol=0)
    assert not torch.equal(found[0][-3], torch.tensor([1.0, 2.0]))  # written


@pytest.mark.slow("compiles")
def test_compiled_one_graph_serves_all_numbers_of_rows_but_one(
    capfd: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    fn = Counting(squared_error)
    captured = Captured(fn, "error", compiled=True, rows=ROWS, strict=True)
    for count in (4, 2, 3, 5, 12, 100, 1, 7):
        inputs = weights(), *rows_of(count)
        assert_close(captured(*inputs), squared_error(*inputs), rtol=1e-12, atol=0)
    assert fn.calls == 2 * CALLS
    assert capfd.readouterr() == ("", "")  # a compiler is silent, and
    assert not list(tmp_path.iterdir())  # writes nothing where the user is


@pytest.mark.slow("compiles")
def test_compiled_a_branch_on_the_number_of_rows_makes_two_graphs() -> None:
    counting = Counting(branching_on_rows)
    captured = Captured(counting, "error", compiled=True, rows=ROWS, strict=True)
    for count in (20, 3, 8, 4):
        inputs = weights(), *rows_of(count)
        assert_close(captured(*inputs), branching_on_rows(*inputs), rtol=1e-12, atol=0)
    assert counting.calls == 2 * CALLS


def test_codes_in_columns_of_numbers_stay_whole_where_a_graph_is_compared(
    caplog: pytest.LogCaptureFixture,
) -> None:
    table = torch.arange(40.0) ** 2
    captured = Captured(lambda t, x: (t[x.long()],), "table", strict=True)
    x = torch.tensor([39.0, 0.0, 12.0])
    assert_close(captured(table, x)[0], torch.tensor([1521.0, 0.0, 144.0]))
    assert not lines(caplog)
