"""Masks of inputs in each row: the rows that masked weights give, and which models have them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812  # as all of torch calls it
from torch.testing import assert_close

from pyro_bnn import SVI, bayesian, likelihoods
from pyro_bnn import priors as bnn_priors
from pyro_bnn.guides import AutoDropout
from pyro_bnn.infer.svi.estimators.by_name import make_estimator
from pyro_bnn.infer.svi.estimators.input_masks import InputMasks
from pyro_bnn.program.program import Program

NUM_ROWS, CHANNELS, SIDE = 5, 2, 4


class Own(nn.Module):
    """A weight ``[4, 4]`` in an operation, whose outputs are summed."""

    def __init__(self, use: Any) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 4))
        self.use = use

    def forward(self, x: Tensor) -> Tensor:
        value: Tensor = self.use(x, self.weight)
        return value.sum(-1)


def own(use: Any) -> nn.Module:
    first = nn.Linear(CHANNELS * SIDE**2, 4)  # whose inputs are the model's
    return nn.Sequential(nn.Flatten(), first, nn.Tanh(), Own(use))


class Adapter(nn.Module):
    """A shift of a weight that begins at 0 and has no prior."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(CHANNELS * SIDE**2, 4), nn.Linear(4, 1)
        self.delta = nn.Parameter(torch.zeros(1, 4))

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.first(x.flatten(1)).tanh()
        value: Tensor = F.linear(hidden, self.second.weight + self.delta, self.second.bias)
        return value


class Views(nn.Module):
    """Two views of each row, whose first dimension is as long as the two rows of a look."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(SIDE**2, 4), nn.Linear(4, 1)

    def forward(self, x: Tensor) -> Tensor:
        views = x.flatten(2).transpose(0, 1)  # [2, N, side^2]
        value: Tensor = self.second(self.first(views).tanh()).mean(0)
        return value


def convolutions(*layers: nn.Module) -> nn.Module:
    first = nn.Conv2d(CHANNELS, 4, 3, padding=1)
    return nn.Sequential(first, nn.Tanh(), *layers, nn.Flatten(), nn.LazyLinear(1))


PLAIN: dict[str, Callable[[], nn.Module]] = {
    "linear": lambda: nn.Sequential(
        nn.Flatten(), nn.Linear(CHANNELS * SIDE**2, 4), nn.ReLU(), nn.Linear(4, 3), nn.Linear(3, 1)
    ),
    "convolution": lambda: convolutions(nn.Conv2d(4, 3, 3, stride=2), nn.Tanh()),
    "scaled": lambda: own(lambda x, w: F.linear(x, 0.5 * w)),
    "used twice": lambda: own(lambda x, w: F.linear(F.linear(x, w).tanh(), w)),
}
OTHERS: dict[str, Callable[[], nn.Module]] = {
    "turned": lambda: own(lambda x, w: x @ w),
    "shifted": lambda: own(lambda x, w: F.linear(x, w + 1.0)),
    "bent": lambda: own(lambda x, w: F.linear(x, w.exp())),
    "shifted by what is 0 at first": Adapter,
    "rows second": Views,
    "transposed": lambda: convolutions(nn.ConvTranspose2d(4, 4, 3)),
    "grouped": lambda: convolutions(nn.Conv2d(4, 4, 3, groups=2)),
}


def made(net: nn.Module, **options: Any) -> tuple[Program, AutoDropout, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(NUM_ROWS, CHANNELS, SIDE, SIDE, generator=generator, dtype=torch.float64)
    y = x.sum((1, 2, 3)).sin()
    net.double()(x)  # sets up lazy layers
    priors = {"*.weight": bnn_priors.Normal(), "*.bias": bnn_priors.Normal()}
    model = bayesian(net, priors, likelihood=likelihoods.Normal(0.3)).double()
    guide = AutoDropout(model, **options)
    guide.setup(x[:1])
    program = Program(model, x, y)
    program.prepare(guide)
    return program, guide, x, y


@pytest.mark.parametrize("name", PLAIN)
@pytest.mark.parametrize("drop_inputs", [False, True])
def test_rows_and_gradients_are_those_of_masked_weights(name: str, drop_inputs: bool) -> None:
    """The general way draws every row's weights; of two particles, in float64."""
    torch.manual_seed(0)
    program, guide, x, y = made(PLAIN[name](), rate=0.4, drop_inputs=drop_inputs)
    estimator = make_estimator("weight_sampling", program, guide, per_example_draws=True)
    assert isinstance(estimator, InputMasks)
    rows = program.batch(x, y)
    noise = guide.draw_noise(2 * NUM_ROWS, torch.Generator().manual_seed(2))
    noise = noise.reshape(2, NUM_ROWS, -1)

    def by_weights(params: dict[str, Tensor]) -> Tensor:
        return program.elbo(guide, params, noise, rows).expected_log_likelihood

    def by_inputs(params: dict[str, Tensor]) -> Tensor:
        drawn = noise[:, 0]
        terms = program.elbo(guide, params, drawn, rows, estimator, [noise])
        return terms.expected_log_likelihood

    params = {f"guide.{name}": value.detach() for name, value in guide.named_parameters()}
    assert_close(by_inputs(params), by_weights(params), rtol=1e-12, atol=0)
    found, expected = (torch.func.grad(fn)(params) for fn in (by_inputs, by_weights))
    assert_close(found, expected, rtol=1e-10, atol=1e-10)
    assert estimator.row_numbers == noise.shape[-1]
    assert all(value.abs().sum() > 0 for value in found.values())


@pytest.mark.parametrize("rate", [0.1, 0.01])  # at which most draws keep every input
@pytest.mark.parametrize("name", OTHERS)
def test_other_uses_of_a_weight_take_the_general_way(name: str, rate: float) -> None:
    torch.manual_seed(0)
    program, guide, x, y = made(OTHERS[name](), rate=rate)
    assert make_estimator("weight_sampling", program, guide, per_example_draws=True) is None
    svi = SVI(AutoDropout, num_steps=2, per_example_draws=True, compile=False)
    losses = svi.run(program.model, (x, y), progress=False).losses
    assert losses is not None
    assert bool(torch.as_tensor(losses).isfinite().all())


class Halves(AutoDropout):
    """Masks that halve in place of dropping."""

    def _mask(self, part: Any, noise: Tensor) -> Tensor:
        return 0.5 * super()._mask(part, noise)


def test_a_guide_with_masks_of_its_own_takes_the_general_way() -> None:
    program, *_ = made(PLAIN["linear"]())
    guide = Halves(program.model)
    guide.setup(program.example.x[:1])
    program.prepare(guide)
    assert make_estimator("weight_sampling", program, guide, per_example_draws=True) is None


def test_masks_of_learned_rates_take_the_general_way() -> None:
    program, guide, *_ = made(PLAIN["linear"](), kind="concrete")
    assert make_estimator("weight_sampling", program, guide, per_example_draws=True) is None


def test_a_compiled_run_and_one_in_pieces_agree() -> None:
    """Rows of a minibatch with masks of their own, in a graph of C."""
    torch.manual_seed(0)
    program, _, x, y = made(PLAIN["linear"]())
    losses = []
    for compiled in (False, True):
        guide = functools.partial(AutoDropout, rate=0.3)
        svi = SVI(guide, num_steps=7, batch_size=3, per_example_draws=True, compile=compiled)
        posterior = svi.run(program.model, (x.float(), y.float()), progress=False)
        losses.append(torch.as_tensor(posterior.losses))
    assert_close(losses[1], losses[0], rtol=1e-4, atol=1e-4)
