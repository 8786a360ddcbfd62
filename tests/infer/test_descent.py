"""Step sizes, clipping and the optimisers that ``Descent`` takes."""

from __future__ import annotations

import copy
import itertools
import math
from typing import Any

import pytest
import torch
from pyro.optim import Adam  # type: ignore[attr-defined]  # made at import time

from pyro_bnn.errors import OptionError
from pyro_bnn.infer.steps.descent import Descent, MakeOptimizer, Schedule


def descent(parameters: list[torch.Tensor], **options: Any) -> Descent:
    settings: dict[str, Any] = {
        "optimizer": torch.optim.SGD,
        "learning_rate": 0.5,
        "schedule": "constant",
        "num_steps": 8,
        "clip_norm": None,
    }
    return Descent(parameters, **{**settings, **options})


def moves(schedule: Schedule, optimizer: MakeOptimizer | None = torch.optim.SGD) -> list[float]:
    """How far each of eight steps goes under a gradient of one."""
    leaf = torch.zeros((), dtype=torch.float64, requires_grad=True)
    steps = descent([leaf], schedule=schedule, optimizer=optimizer)
    values = [0.0]
    for step in range(8):
        leaf.grad = torch.ones((), dtype=torch.float64)
        steps.step(step)
        values.append(float(leaf.detach()))
    return [a - b for a, b in itertools.pairwise(values)]


def test_the_cosine_schedule_starts_at_the_learning_rate_and_ends_near_zero() -> None:
    root = math.sqrt(0.5)
    sixteenths = [math.cos(math.pi / 8), math.cos(3 * math.pi / 8)]
    cosines = [1, sixteenths[0], root, sixteenths[1], 0, -sixteenths[1], -root, -sixteenths[0]]
    assert moves("cosine") == pytest.approx([0.25 * (1 + c) for c in cosines], rel=1e-12)


def test_the_constant_schedule_is_constant() -> None:
    assert moves("constant") == pytest.approx([0.5] * 8, rel=1e-12)


def test_the_default_is_adam() -> None:
    # under a constant gradient every step of Adam is the learning rate, up to its epsilon of 1e-8
    assert moves("constant", None) == pytest.approx([0.5] * 8, rel=1e-7)


def test_a_callable_sets_its_own_learning_rate_and_the_schedule_scales_it() -> None:
    def optimizer(parameters: Any) -> torch.optim.Optimizer:
        return torch.optim.SGD(parameters, lr=3.0)

    assert moves("cosine", optimizer)[:1] == pytest.approx([3.0], rel=1e-12)
    assert moves("cosine", optimizer)[4] == pytest.approx(1.5, rel=1e-12)


@pytest.mark.parametrize("optimizer", [None, torch.optim.SGD])
def test_a_gradient_may_lie_in_memory_otherwise_than_its_parameter(
    optimizer: MakeOptimizer | None,
) -> None:
    leaf = torch.zeros(3, 2, dtype=torch.float64, requires_grad=True)
    leaf.grad = torch.tensor([[1.0, -1.0, 1.0], [1.0, 1.0, -1.0]], dtype=torch.float64).mT
    assert leaf.grad.stride() != leaf.stride()
    expected = -0.5 * leaf.grad
    descent([leaf], optimizer=optimizer).step(0)
    torch.testing.assert_close(leaf.detach(), expected, rtol=1e-7, atol=0)


def test_clip_norm_is_the_norm_over_all_parameters() -> None:
    leaves = [torch.zeros(1, dtype=torch.float64, requires_grad=True) for _ in range(2)]
    steps = descent(leaves, learning_rate=1.0, clip_norm=10.0)
    for leaf, gradient in zip(leaves, (30.0, -40.0), strict=True):
        leaf.grad = torch.tensor([gradient], dtype=torch.float64)
    steps.step(0)
    assert [float(leaf.detach()) for leaf in leaves] == pytest.approx([-6.0, 8.0], rel=1e-6)
    for leaf, gradient in zip(leaves, (0.3, -0.4), strict=True):
        leaf.grad = torch.tensor([gradient], dtype=torch.float64)
    steps.step(1)  # shorter than clip_norm: as it is
    assert [float(leaf.detach()) for leaf in leaves] == pytest.approx([-6.3, 8.4], rel=1e-6)


@pytest.mark.parametrize(("schedule", "middle"), [("cosine", 0.25), ("constant", 0.5)])
def test_parameters_can_be_added_later(schedule: Schedule, middle: float) -> None:
    first, second = (torch.zeros((), dtype=torch.float64, requires_grad=True) for _ in range(2))
    steps = descent([first], schedule=schedule, num_steps=4)
    first.grad = torch.ones((), dtype=torch.float64)
    steps.step(0)
    steps.add([second])
    second.grad = torch.ones((), dtype=torch.float64)
    steps.step(2)
    assert float(first.detach()) == pytest.approx(-0.5 - middle, rel=1e-12)
    assert float(second.detach()) == pytest.approx(-middle, rel=1e-12)


def test_what_makes_no_torch_optimizer_is_refused() -> None:
    leaf = torch.zeros((), requires_grad=True)
    with pytest.raises(OptionError, match=r"optimizer is a torch.optim class or makes a torch opt"):
        descent([leaf], optimizer=lambda parameters: None)
    with pytest.raises(OptionError, match=r"optimizer is a torch.optim class or makes a torch opt"):
        descent([], optimizer=Adam({"lr": 0.1}))
    with pytest.raises(OptionError, match="LBFGS evaluates the loss many times a step"):
        descent([leaf], optimizer=torch.optim.LBFGS)


@pytest.mark.parametrize("clip_norm", [None, 0.5])
@pytest.mark.parametrize("schedule", ["cosine", "constant"])
def test_pure_steps_are_those_of_the_optimiser(schedule: Schedule, clip_norm: float | None) -> None:
    """Schedule, clipping and held parameters; the two kinds of steps follow each other."""
    generator = torch.Generator().manual_seed(0)
    pure, plain = (
        [torch.ones(3, dtype=torch.float64).requires_grad_() for _ in range(2)] for _ in "ab"
    )
    options: dict[str, Any] = {
        "optimizer": None,
        "schedule": schedule,
        "clip_norm": clip_norm,
        "num_steps": 20,
    }
    by_function, by_optimiser = descent(pure, **options), descent(plain, **options)
    assert by_function.make_pure()
    assert by_function.make_pure()  # asked twice, it stays the same update
    assert by_function.adam is not None
    for step in range(20):
        gradients = [torch.randn(3, generator=generator, dtype=torch.float64) for _ in pure]
        held = [False, step < 5]
        for parameters, steps in ((pure, by_function), (plain, by_optimiser)):
            for parameter, gradient, is_held in zip(parameters, gradients, held, strict=True):
                parameter.grad = None if is_held else gradient.clone()
            if parameters is plain or step in (3, 4, 12):
                steps.step(step)
        if step not in (3, 4, 12):
            controls = torch.tensor(by_function.controls(step, held), dtype=torch.float64)
            state = [*pure, *by_function.adam.moments]
            with torch.no_grad():
                new = by_function.update(
                    pure, gradients, state[2:], controls.unbind(), torch.tensor(data=True)
                )
                for old, value in zip(state, new, strict=True):
                    old.copy_(value)
        torch.testing.assert_close(
            [p.detach() for p in pure], [p.detach() for p in plain], rtol=1e-12, atol=1e-14
        )


def test_pure_steps_go_on_from_a_state_as_those_of_the_optimiser() -> None:
    def made(value: float) -> tuple[torch.Tensor, Descent]:
        leaf = torch.tensor([value], dtype=torch.float64, requires_grad=True)
        return leaf, descent([leaf], optimizer=None)

    def pure_step(leaf: torch.Tensor, steps: Descent, step: int, gradient: torch.Tensor) -> None:
        assert steps.adam is not None
        controls = torch.tensor(steps.controls(step, [False]), dtype=torch.float64)
        state = [leaf, *steps.adam.moments]
        with torch.no_grad():
            new = steps.update(
                [leaf], [gradient], state[1:], controls.unbind(), torch.tensor(data=True)
            )
            for old, value in zip(state, new, strict=True):
                old.copy_(value)

    plain, by_optimiser = made(1.0)
    leaf, steps = made(1.0)
    assert steps.make_pure()
    for step, number in enumerate((1.0, -3.0, 0.5, 2.0)):
        if step == 2:
            state = copy.deepcopy(steps.state())
            leaf, steps = made(leaf.item())
            assert steps.make_pure()
            steps.restore(state)
        plain.grad = torch.tensor([number], dtype=torch.float64)
        pure_step(leaf, steps, step, plain.grad)
        by_optimiser.step(step)
        assert leaf.item() == pytest.approx(plain.item(), rel=1e-12)


@pytest.mark.parametrize("optimizer", [None, torch.optim.Adam])
def test_moments_come_back_in_the_layout_of_their_parameters(
    optimizer: MakeOptimizer | None,
) -> None:
    """A fused step goes through parameter and moments in the order of their memory."""
    gradients = torch.randn(4, 2, 3, generator=torch.Generator().manual_seed(0))

    def made() -> tuple[torch.Tensor, Descent]:
        leaf = torch.zeros(3, 2).T.requires_grad_()
        return leaf, descent([leaf], optimizer=optimizer)

    def walk(leaf: torch.Tensor, steps: Descent, numbers: range) -> None:
        for step in numbers:
            leaf.grad = torch.empty_like(leaf).copy_(gradients[step])
            steps.step(step)

    leaf, steps = made()
    walk(leaf, steps, range(2))
    state = steps.state()
    values = state["optimizer"]["state"][0]
    saved = {
        name: value.clone(memory_format=torch.contiguous_format) for name, value in values.items()
    }
    state["optimizer"] = {**state["optimizer"], "state": {0: saved}}
    other, resumed = made()
    with torch.no_grad():
        other.copy_(leaf)
    resumed.restore(state)
    walk(leaf, steps, range(2, 4))
    walk(other, resumed, range(2, 4))
    assert torch.equal(other, leaf)


@pytest.mark.parametrize(
    "optimizer", [torch.optim.SGD, torch.optim.AdamW, lambda p: torch.optim.Adam(p, amsgrad=True)]
)
def test_optimisers_without_a_pure_form_say_so(optimizer: MakeOptimizer) -> None:
    steps = descent([torch.zeros((), requires_grad=True)], optimizer=optimizer)
    assert not steps.make_pure()
    assert steps.adam is None
