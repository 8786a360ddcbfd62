"""A block of a transformer as ``bayesian`` makes it one: fitted by SVI, captured, predicting."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from pyro_bnn import SVI, bayesian, guides, likelihoods

pytestmark = pytest.mark.slow("a whole fit")

NUM_TOKENS, WIDTH = 5, 8


class Reader(nn.Module):
    """Reads a row of five tokens, each a value and a flag, by one block of self-attention."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Unflatten(1, (NUM_TOKENS, 2))
        self.embed = nn.Linear(2, WIDTH)
        self.block = nn.TransformerEncoderLayer(WIDTH, 2, 16, dropout=0.0, batch_first=True)
        self.head = nn.Linear(WIDTH, 1)

    def forward(self, x: Tensor) -> Tensor:
        h: Tensor = self.block(self.embed(self.tokens(x)))  # [N, T, W]
        f: Tensor = self.head(h.mean(1))
        return f


def rows(num_rows: int, seed: int) -> tuple[Tensor, Tensor]:
    """Y is the value of the flagged token, with noise of sd 0.1.

    The best linear function of x is the mean of the values, which leaves 4/5 of the variance.
    """
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(num_rows, NUM_TOKENS, generator=generator)
    flagged = torch.randint(0, NUM_TOKENS, (num_rows,), generator=generator)
    flags = nn.functional.one_hot(flagged, NUM_TOKENS).to(values)
    y = (values * flags).sum(1) + 0.1 * torch.randn(num_rows, generator=generator)
    return torch.stack([values, flags], -1).flatten(1), y


@pytest.fixture(scope="module")
def posterior() -> Any:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = bayesian(Reader(), likelihood=likelihoods.Normal(0.2))
    svi = SVI(guides.AutoNormal, num_steps=250, learning_rate=0.05, compile=False)
    return svi.run(model, rows(400, seed=0), progress=False)


def test_it_learns_what_no_linear_function_can(posterior: Any) -> None:
    x, y = rows(300, seed=1)
    prediction = posterior.predict(x, 200)
    error = float((prediction.mean[:, 0] - y).square().mean().sqrt())
    assert error < 0.5 < 0.8**0.5
    inside = (prediction.quantile(0.025)[:, 0] < y) & (y < prediction.quantile(0.975)[:, 0])
    assert float(inside.float().mean()) > 0.8


def test_its_draws_are_functional_calls_of_the_network(posterior: Any) -> None:
    x, _ = rows(6, seed=2)
    draws = posterior.sample(3)
    net = Reader()
    for s, f in enumerate(posterior.function_draws(x, 3)):
        values = {name: draws[name][s] for name, _ in net.named_parameters()}
        assert_close(torch.func.functional_call(net, values, (x,)), f, rtol=1e-4, atol=1e-5)


def test_order_of_the_tokens_is_nothing_to_it(posterior: Any) -> None:
    """Self-attention and the mean over tokens without positions: permutations change nothing."""
    x, _ = rows(6, seed=2)
    turned = x.unflatten(1, (NUM_TOKENS, 2)).roll(2, dims=1).flatten(1)
    f, other = (posterior.function_draws(inputs, 3) for inputs in (x, turned))
    assert_close(f, other, rtol=1e-4, atol=1e-5)
