"""Adam as a pure function against ``torch.optim.Adam`` itself, step by step."""

from __future__ import annotations

import copy
import functools
import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from pyro_bnn.infer.steps.adam import Adam, PlainAdam, clip

SHAPES = [(3, 2), (4,), ()]
RATE = 0.03


def leaves(seed: int = 0) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [
        torch.randn(shape, generator=generator, dtype=torch.float64).requires_grad_()
        for shape in SHAPES
    ]


def random_gradients(num_steps: int) -> list[list[Tensor]]:
    """Gradients of many sizes, of which some entries are 0."""
    generator = torch.Generator().manual_seed(1)
    steps = []
    for _ in range(num_steps):
        draws = [torch.randn(s, generator=generator, dtype=torch.float64) for s in SHAPES]
        sizes = [10 ** float(2 * d.mean()) for d in draws]
        first, *others = (d * size for d, size in zip(draws, sizes, strict=True))
        steps.append([first.relu(), *others])
    return steps


class Stepper:
    """Steps of one Adam, by torch or by the pure function, on the same parameters."""

    def __init__(self, **options: Any) -> None:
        self.parameters = leaves()
        self.optimizer = torch.optim.Adam(self.parameters, lr=RATE, **options)
        self.adam = Adam(self.optimizer, self.parameters)

    def by_torch(self, gradients: Sequence[Tensor], rate: float, held: Sequence[bool]) -> None:
        self.adam.store_counts()
        self.optimizer.param_groups[0]["lr"] = rate
        for parameter, gradient, is_held in zip(self.parameters, gradients, held, strict=True):
            parameter.grad = None if is_held else gradient.clone()
        self.optimizer.step()
        self.adam.read_counts()

    def purely(
        self,
        gradients: Sequence[Tensor],
        rate: float,
        held: Sequence[bool],
        is_finite: bool = True,
    ) -> None:
        controls = torch.tensor(self.adam.controls(rate, held), dtype=torch.float64)
        state = [*self.parameters, *self.adam.moments]
        n = len(self.parameters)
        with torch.no_grad():
            new = self.adam.update(
                state[:n], gradients, state[n:], controls.unbind(), torch.tensor(is_finite)
            )
            for old, value in zip(state, new, strict=True):
                old.copy_(value)

    def values(self) -> list[Tensor]:
        return [value.detach().clone() for value in (*self.parameters, *self.adam.moments)]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"betas": (0.7, 0.99), "eps": 1e-3},
        {"betas": (0.5, 0.9), "eps": 1e-12, "fused": True},
        {"foreach": True},
    ],
    ids=["default", "betas and eps", "fused", "foreach"],
)
def test_fifty_steps_are_those_of_torch(options: dict[str, Any]) -> None:
    reference = leaves()
    optimizer = torch.optim.Adam(reference, lr=RATE, **options)
    pure = Stepper(**options)
    for t, gradients in enumerate(random_gradients(50)):
        rate = RATE * (1 + math.cos(t / 20))  # of a schedule
        optimizer.param_groups[0]["lr"] = rate
        for parameter, gradient in zip(reference, gradients, strict=True):
            parameter.grad = gradient.clone()
        optimizer.step()
        pure.purely(gradients, rate, [False] * 3)
        moments = [optimizer.state[p][k] for k in ("exp_avg", "exp_avg_sq") for p in reference]
        assert_close(
            pure.values(), [p.detach() for p in (*reference, *moments)], rtol=1e-12, atol=1e-14
        )


@pytest.mark.parametrize("options", [{}, {"fused": True}, {"amsgrad": True, "eps": 1e-3}])
def test_the_plain_one_is_torchs_to_the_last_bit(options: dict[str, Any]) -> None:
    """With parameters that have no gradient now and then, and from the state of the other kind."""
    both = [leaves(), leaves()]

    def make() -> tuple[torch.optim.Adam, PlainAdam]:
        return torch.optim.Adam(both[0], lr=RATE, **options), PlainAdam(both[1], lr=RATE, **options)

    torchs, plain = make()
    for t, gradients in enumerate(random_gradients(20)):
        for parameters in both:
            for i, (parameter, gradient) in enumerate(zip(parameters, gradients, strict=True)):
                parameter.grad = None if i == t % 4 else gradient.clone()
        torchs.step()
        plain.step()
        if t == 10:
            states = copy.deepcopy((torchs.state_dict(), plain.state_dict()))
            torchs, plain = make()
            torchs.load_state_dict(states[1])
            plain.load_state_dict(states[0])
    assert_close(both[1], both[0], rtol=0, atol=0)
    assert_close(plain.state_dict(), torchs.state_dict(), rtol=0, atol=0)


def test_the_first_step_is_that_of_the_formula() -> None:
    """At t = 1 both averages are the gradient's own: the step is rate g / (|g| + eps)."""
    stepper = Stepper(betas=(0.6, 0.8), eps=0.5)
    gradients = random_gradients(1)[0]
    before = stepper.values()
    stepper.purely(gradients, 0.25, [False] * 3)
    for i, g in enumerate(gradients):
        assert_close(
            stepper.values()[i], before[i] - 0.25 * g / (g.abs() + 0.5), rtol=1e-12, atol=0
        )


def test_held_parameters_neither_move_nor_count() -> None:
    pure, by_torch = Stepper(), Stepper()
    for t, gradients in enumerate(random_gradients(50)):
        held = [t < 20, False, 10 <= t < 30]
        before = pure.values()
        pure.purely(gradients, RATE, held)
        by_torch.by_torch(gradients, RATE, held)
        assert_close(pure.values(), by_torch.values(), rtol=1e-12, atol=1e-14)
        for i in (0, 2):
            same = [bool((pure.values()[j] == before[j]).all()) for j in (i, i + 3, i + 6)]
            assert all(same) if held[i] else not same[0]
    pure.adam.store_counts()
    counts = [int(pure.optimizer.state[p]["step"]) for p in pure.parameters]
    assert counts == [30, 50, 30]


@pytest.mark.parametrize("fused", [False, True])
def test_steps_of_the_function_and_of_the_optimiser_can_follow_each_other(fused: bool) -> None:
    mixed, by_torch = Stepper(fused=fused), Stepper(fused=fused)
    for t, gradients in enumerate(random_gradients(50)):
        held = [False, t % 7 == 0, False]
        (mixed.purely if t // 10 % 2 else mixed.by_torch)(gradients, RATE, held)
        by_torch.by_torch(gradients, RATE, held)
        assert_close(mixed.values(), by_torch.values(), rtol=1e-12, atol=1e-14)


def test_an_optimiser_that_has_stepped_before_goes_on() -> None:
    reference = leaves()
    optimizer = torch.optim.Adam(reference, lr=RATE)
    first, second = random_gradients(2)
    for parameter, gradient in zip(reference, first, strict=True):
        parameter.grad = gradient.clone()
    optimizer.step()
    pure = Stepper()
    pure.parameters = [p.detach().clone().requires_grad_() for p in reference]
    pure.optimizer = torch.optim.Adam(pure.parameters, lr=RATE)
    pure.optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    pure.adam = Adam(pure.optimizer, pure.parameters)
    for parameter, gradient in zip(reference, second, strict=True):
        parameter.grad = gradient.clone()
    optimizer.step()
    pure.purely(second, RATE, [False] * 3)
    assert_close(pure.values()[:3], [p.detach() for p in reference], rtol=1e-12, atol=1e-14)


def test_a_loss_that_is_not_finite_changes_nothing() -> None:
    stepper = Stepper()
    stepper.purely(random_gradients(1)[0], RATE, [False] * 3)
    before = stepper.values()
    broken = [torch.full(shape, math.nan, dtype=torch.float64) for shape in SHAPES]
    stepper.purely(broken, RATE, [False] * 3, is_finite=False)
    assert_close(stepper.values(), before, rtol=0, atol=0)


@pytest.mark.parametrize("max_norm", [0.1, 3.0, 1e6])
def test_clipping_is_that_of_torch(max_norm: float) -> None:
    """Over the gradients that count: torch leaves out those that are None."""
    for gradients in random_gradients(5):
        for weights in ([1.0, 1.0, 1.0], [1.0, 0.0, 1.0]):
            clipped = clip(gradients, max_norm, [torch.tensor(w).double() for w in weights])
            parameters = leaves()
            for parameter, gradient, weight in zip(parameters, gradients, weights, strict=True):
                parameter.grad = gradient.clone() if weight else None
            nn.utils.clip_grad_norm_(parameters, max_norm)
            for parameter, value in zip(parameters, clipped, strict=True):
                if parameter.grad is not None:
                    assert_close(value, parameter.grad, rtol=1e-12, atol=0)


def test_the_norm_is_clipped_by_hand() -> None:
    one = torch.ones((), dtype=torch.float64)
    gradients = [torch.tensor([30.0]).double(), torch.tensor([-40.0]).double()]
    clipped = clip(gradients, 10.0, [one, one])
    factor = 10.0 / (50.0 + 1e-6)
    assert_close(clipped, [g * factor for g in gradients], rtol=1e-14, atol=0)


def groups(parameters: Sequence[Tensor], **options: Any) -> torch.optim.Optimizer:
    return torch.optim.Adam([{"params": [p]} for p in parameters], **options)


@pytest.mark.parametrize(
    ("make", "suits"),
    [
        (torch.optim.Adam, True),
        (functools.partial(torch.optim.Adam, betas=(0.5, 0.6), eps=1e-4), True),
        (functools.partial(torch.optim.Adam, fused=True), True),
        (torch.optim.AdamW, False),
        (torch.optim.NAdam, False),
        (torch.optim.Adamax, False),
        (functools.partial(torch.optim.SGD, lr=0.1), False),
        (functools.partial(torch.optim.Adam, weight_decay=0.1), False),
        (functools.partial(torch.optim.Adam, weight_decay=0.1, decoupled_weight_decay=True), False),
        (functools.partial(torch.optim.Adam, amsgrad=True), False),
        (functools.partial(torch.optim.Adam, maximize=True), False),
        (functools.partial(torch.optim.Adam, lr=torch.tensor(0.1)), False),
        (functools.partial(torch.optim.Adam, betas=(torch.tensor(0.9), torch.tensor(0.99))), False),
        (groups, False),
    ],
)
def test_plain_adam_of_one_group_suits_and_nothing_else(make: Any, suits: bool) -> None:
    parameters = leaves()
    assert Adam.suits(make(parameters), parameters) == suits


def test_an_adam_of_other_parameters_or_with_hooks_does_not_suit() -> None:
    parameters = leaves()
    assert not Adam.suits(torch.optim.Adam(parameters[:1]), parameters)
    optimizer = torch.optim.Adam(parameters)
    optimizer.register_step_post_hook(lambda *_: None)
    assert not Adam.suits(optimizer, parameters)


def test_a_held_gradient_that_overflows_does_not_reach_the_others() -> None:
    one, zero = torch.ones(()), torch.zeros(())
    (clipped, _) = clip([torch.ones(2), torch.tensor([1e30])], 1.0, [one, zero])
    assert_close(clipped, torch.full((2,), 2**-0.5), rtol=1e-5, atol=0)
