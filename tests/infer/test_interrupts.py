"""Ctrl-C: the first is a question, the second an interrupt, and the handler is put back."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import pyro_bnn
from pyro_bnn.infer.checkpoints import interrupts
from pyro_bnn.infer.checkpoints.interrupts import Interrupted, is_asked, watch


@pytest.fixture(autouse=True)
def _own_handler() -> Iterator[None]:
    """Ctrl-C as in a foreground process, whatever started the tests."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def press() -> None:
    signal.raise_signal(signal.SIGINT)


def handler() -> Any:
    return signal.getsignal(signal.SIGINT)


def during_watch(body: Callable[[], object]) -> None:
    with watch():
        body()


def test_the_first_asks_and_the_second_interrupts() -> None:
    reached: list[object] = []

    def body() -> None:
        reached.append(is_asked())
        press()
        reached.append(is_asked())
        press()
        reached.append("the step after the second")

    with pytest.raises(KeyboardInterrupt) as raised:
        during_watch(body)
    assert reached == [False, True]
    assert not isinstance(raised.value, Interrupted)
    assert handler() is signal.default_int_handler
    assert not is_asked()


def test_a_question_that_nobody_answered_interrupts_at_the_end() -> None:
    with pytest.raises(KeyboardInterrupt):
        during_watch(press)
    with watch():
        assert not is_asked()


def test_an_error_passes_and_is_the_cause_of_an_interrupt_that_was_asked_for() -> None:
    def failing() -> None:
        raise ValueError("of the run")

    def pressed() -> None:
        press()
        failing()

    with pytest.raises(ValueError, match="of the run"):
        during_watch(failing)
    with pytest.raises(KeyboardInterrupt, match="of the run") as raised:
        during_watch(pressed)
    assert isinstance(raised.value.__cause__, ValueError)
    assert handler() is signal.default_int_handler
    assert not is_asked()


def test_the_second_leaves_no_question_and_the_third_interrupts_again() -> None:
    def body() -> None:
        press()
        for _ in range(2):
            with pytest.raises(KeyboardInterrupt):
                press()
            assert not is_asked()
            assert handler() is signal.default_int_handler

    during_watch(body)


def test_an_inner_run_sees_the_question_to_the_outer_one() -> None:
    def outer() -> None:
        during_watch(press)
        assert is_asked()
        raise Interrupted("by the outer run")

    with pytest.raises(Interrupted, match="by the outer run"):
        during_watch(outer)


def test_a_handler_of_the_program_and_other_threads_are_left_alone() -> None:
    pressed: list[int] = []

    def own(signum: int, frame: object) -> None:
        pressed.append(signum)

    signal.signal(signal.SIGINT, own)
    with watch():
        assert handler() is own
        press()
        assert not is_asked()
    assert pressed == [signal.SIGINT]
    signal.signal(signal.SIGINT, signal.default_int_handler)
    handlers: list[Any] = []

    def elsewhere() -> None:
        with watch():
            handlers.append(handler())

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert handlers == [signal.default_int_handler]


def test_it_is_a_keyboard_interrupt_with_a_posterior() -> None:
    assert pyro_bnn.Interrupted is interrupts.Interrupted
    assert issubclass(Interrupted, KeyboardInterrupt)
    stopped = Interrupted("stopped")
    assert (stopped.posterior, str(stopped)) == (None, "stopped")
    stopped.posterior = "a posterior"
    assert str(stopped) == "stopped; what there is, is in the exception's .posterior"
