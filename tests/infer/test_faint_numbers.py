"""Weights that the data do not need shrink, but not to numbers that a processor is slow with."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from pyro_bnn import SVI, guides, likelihoods, models
from pyro_bnn.infer.steps import adam, descent
from pyro_bnn.infer.steps.adam import without_traces
from pyro_bnn.infer.svi.training import Training

TINY = torch.finfo(torch.float32).tiny  # smallest normal number


def num_denormal(values: Tensor) -> int:
    return int(((values != 0) & (values.abs() < TINY)).sum())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_what_is_left_has_a_normal_square(dtype: torch.dtype) -> None:
    tiny = torch.finfo(dtype).tiny
    values = torch.logspace(-2, 4, 201, dtype=torch.float64).to(dtype) * tiny**0.5
    left = without_traces(torch.cat([values, -values]))
    assert (0.001 * left.square()[left != 0] >= tiny).all()  # Adam's share of a new one
    assert torch.equal(left[:201] > 0, values > 1e3 * tiny**0.5)
    assert torch.equal(left[left != 0].abs().unique(), values[values > 1e3 * tiny**0.5])
    squares = without_traces(values.square(), power=2)
    assert (squares[squares != 0] * 0.99**10 >= tiny).all()  # RMSprop's share of 10 steps
    assert 0 < int((squares == 0).sum()) < 80


def test_what_is_not_finite_and_other_dtypes_stay() -> None:
    odd = torch.tensor([torch.nan, torch.inf, -torch.inf, 0.0])
    assert torch.equal(without_traces(odd).nan_to_num(nan=7.0), odd.nan_to_num(nan=7.0))
    half = torch.tensor([1e-7, -1e-3, 1.0], dtype=torch.float16)
    assert torch.equal(without_traces(half), half)


MAKERS = {
    "Adam": None,
    "unfused Adam": torch.optim.Adam,
    "SGD with momentum": functools.partial(torch.optim.SGD, lr=0.2, momentum=0.9),
    "RMSprop": torch.optim.RMSprop,
}


@pytest.mark.parametrize("optimizer", MAKERS.values(), ids=MAKERS)
def test_averages_of_gradients_that_ceased_fade_to_zero(optimizer: Any) -> None:
    weight = torch.ones(5, requires_grad=True)
    down = descent.Descent(
        [weight],
        optimizer=optimizer,
        learning_rate=0.01,
        schedule="constant",
        num_steps=3_000,
        clip_norm=None,
    )
    seen, gradient = 0, torch.tensor([1e-3, 1e-10, 2e-16, 1e-18, 1e-25])
    for step in range(3_000):
        weight.grad = gradient if step < 10 else torch.zeros(5)
        down.step(step)
        state = down._optimizer.state[weight]
        for name in {"exp_avg", "exp_avg_sq", "momentum_buffer", "square_avg"} & state.keys():
            seen += num_denormal(state[name])
    assert seen == 0
    assert float(weight.detach()[0]) < 1  # it has moved


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> list[Training]:
    """The training of each fit."""
    made: list[Training] = []
    right = Training.__init__

    def init(self: Training, *args: Any, **options: Any) -> None:
        right(self, *args, **options)
        made.append(self)

    monkeypatch.setattr(Training, "__init__", init)
    return made


@pytest.mark.parametrize("compiled", [False, True], ids=["captured", "as for the compiler"])
@pytest.mark.slow("a second or more")
def test_units_that_the_prior_switches_off_cost_no_more_than_others(
    compiled: bool, trained: Sequence[Training], interpreted: None
) -> None:
    """Pure noise around 0: the weights between units of no use shrink by a share a step."""
    torch.manual_seed(0)
    x, y = torch.randn(8, 2), torch.zeros(8)
    model = models.MLP(2, hidden=(10,), likelihood=likelihoods.Normal(1.0))
    svi = SVI(guides.AutoDelta, num_steps=2_500, learning_rate=0.05, compile=compiled)
    posterior = svi.run(model, (x, y), progress=False)
    (training,) = trained
    state = training.descent._optimizer.state
    values = [p.detach() for p in training.parameters]
    values += [state[p][name] for p in training.parameters for name in ("exp_avg", "exp_avg_sq")]
    assert [num_denormal(value) for value in values] == [0] * len(values)
    weights = posterior.unconstrained(1)
    assert float(weights.abs().max()) < 1e-10
    assert float(weights.abs().median()) > TINY
    assert adam.SMALLEST.keys() == {torch.float32, torch.float64}
