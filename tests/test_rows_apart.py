"""What a model says of a row is the row's own, its sites have a gradient, and it may write to x."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch
from torch import Tensor, nn

from pyro_bnn import likelihoods, models, priors
from pyro_bnn.errors import BNNWarning, ModelError
from pyro_bnn.program.program import Program

Function = Callable[[Tensor, Tensor], Tensor]


def linear(function: Function) -> Any:
    def model(x: Tensor, y: Tensor | None = None) -> Any:
        w = pyro.sample("w", dist.Normal(torch.zeros(2), 1.0).to_event(1))
        f = pyro.deterministic("f", function(x, w))
        with pyro.plate("data", x.shape[0]):
            return pyro.sample("y", dist.Normal(f, 0.1), obs=y)

    return model


def rows() -> tuple[Tensor, Tensor]:
    x = torch.randn(30, 2, generator=torch.Generator().manual_seed(0))
    return x, x[:, 0].clone()


def under_no_grad(x: Tensor, w: Tensor) -> Tensor:
    with torch.no_grad():
        return x @ w


@pytest.mark.parametrize(
    "function",
    [
        lambda x, w: (x @ w).detach(),
        lambda x, w: torch.from_numpy(x.numpy() @ w.detach().numpy()),
        under_no_grad,
    ],
    ids=["detach", "numpy", "no_grad"],
)
def test_a_likelihood_without_a_gradient_is_refused_by_the_site(function: Function) -> None:
    with pytest.raises(ModelError, match="depends on 'w' and has no gradient"):
        Program(linear(function), *rows())


@pytest.mark.parametrize(
    "function",
    [
        lambda x, w: (x - x.mean(0)) @ w,
        lambda x, w: x.sort(-2).values @ w,
        lambda x, w: x @ w + torch.arange(len(x)),
        lambda x, w: x @ w if len(x) > 5 else -x @ w,
        lambda x, w: x.softmax(0) @ w,
    ],
    ids=["mean", "sort", "number", "branch", "softmax"],
)
def test_a_row_that_depends_on_others_is_refused(function: Function) -> None:
    with pytest.raises(ModelError, match="depends on other rows"):
        Program(linear(function), *rows())


@pytest.mark.parametrize(
    "function",
    [lambda x, w: x.clamp_(-0.5, 0.5) @ w, lambda x, w: x.sub_(0.3) @ w],
    ids=["clamp", "minus"],
)
def test_a_network_that_works_in_place_leaves_the_rows_as_they_were(function: Function) -> None:
    x, y = rows()
    before = x.clone()
    program = Program(linear(function), x, y)
    z = torch.tensor([0.5, -1.0])
    expected = function(before.clone(), z)
    torch.testing.assert_close(program.function(z, x)[:, 0], expected)
    program.log_joint(z, program.batch(x, y))
    torch.testing.assert_close(x, before, rtol=0, atol=0)


def classifier(last: nn.Module, outputs: int, likelihood: Any) -> Any:
    net = nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, outputs), last)
    return models.bayesian(net, priors.Normal(), likelihood)


LABELS = torch.tensor([0, 1, 2, 0, 1, 2, 1, 0, 2])
POINTS = torch.linspace(-1, 1, 18).reshape(9, 2)


@pytest.mark.parametrize(
    ("model", "y", "layer"),
    [
        (classifier(nn.Softmax(-1), 3, likelihoods.Categorical(3)), LABELS, "Softmax"),
        (classifier(nn.Sigmoid(), 1, likelihoods.Bernoulli()), (LABELS > 0).long(), "Sigmoid"),
    ],
)
def test_probabilities_that_are_taken_for_logits_are_warned_of(
    model: Any, y: Tensor, layer: str
) -> None:
    with pytest.warns(BNNWarning, match=f"f are probabilities already, as behind a {layer}, and"):
        Program(model, POINTS, y)


def with_probs(x: Tensor, y: Tensor | None = None) -> Any:
    w = pyro.sample("w", dist.Normal(torch.zeros(2, 3), 1.0).to_event(2))
    f = pyro.deterministic("f", (x @ w).softmax(-1))
    with pyro.plate("data", len(x)):
        return pyro.sample("y", dist.Categorical(probs=f), obs=y)


@pytest.mark.parametrize(
    ("model", "y"),
    [
        (with_probs, LABELS),
        (classifier(nn.Identity(), 3, likelihoods.Categorical(3)), LABELS),
        (classifier(nn.LogSoftmax(-1), 3, likelihoods.Categorical(3)), LABELS),
        (classifier(nn.Identity(), 1, likelihoods.Bernoulli()), (LABELS > 0).long()),
        (classifier(nn.Sigmoid(), 1, likelihoods.Normal(0.1)), POINTS[:, 0]),
    ],
)
def test_what_is_no_probability_or_is_taken_for_one_is_not_warned_of(model: Any, y: Tensor) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", BNNWarning)
        Program(model, POINTS, y)
