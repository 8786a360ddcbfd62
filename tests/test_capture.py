"""Captured graphs: the same numbers, one graph a shape, one line where there can be none."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from typing import Any

import pyro.distributions as dist
import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from pyro_bnn import capture as capture_module
from pyro_bnn.capture import Captured, capture, value_and_grad
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


def test_a_graph_is_recorded_once_for_each_shape_and_dtype() -> None:
    fn = Counting(lambda a, b: (a * b.sum(),))
    captured = Captured(fn, "product")
    for size, dtype, calls in [
        (3, torch.float32, 1),
        (3, torch.float32, 1),
        (4, torch.float32, 2),
        (3, torch.float64, 3),
        (4, torch.float32, 3),
    ]:
        a, b = torch.arange(float(size), dtype=dtype), torch.ones(2, dtype=dtype)
        (value,) = captured(a, b)
        assert_close(value, 2 * a)
        assert fn.calls == calls
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
