"""Priors that depend on other sites or on parameters in ways that no gradient shows."""

from __future__ import annotations

import unittest.mock
from collections.abc import Callable
from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from pyro.nn import PyroModule, PyroParam, PyroSample
from torch import Tensor

from pyro_bnn import guides, models, priors
from pyro_bnn.program.handlers import evaluate
from pyro_bnn.program.program import Program
from pyro_bnn.program.random_state import isolated
from pyro_bnn.program.terms import Batch
from tests.plain_pyro import default_dtype

X = torch.linspace(-1, 1, 5).double().unsqueeze(-1)
Y = X.sin()


def by_where(tau: Tensor) -> Tensor:
    return torch.where(tau > 0.5, 10.0, 1.0)


def by_sign(tau: Tensor) -> Tensor:
    return 2.0 + (tau - 0.5).sign()


def by_branch(tau: Tensor) -> float:
    return 10.0 if tau > 0.5 else 1.0


def by_number(tau: Tensor) -> float:
    return 10.0 if float(tau.detach()) > 0.5 else 1.0


def by_item(tau: Tensor) -> Tensor:
    return torch.tensor(1.0 + abs(round(tau.item())))


def by_list(tau: Tensor) -> Tensor:
    return torch.tensor([1.0, 10.0])[int(tau > 0.5)]


def model_of(scale: Callable[[Tensor], Any]) -> Callable[..., Tensor]:
    def model(x: Tensor, y: Tensor | None = None) -> Tensor:
        tau = pyro.sample("tau", dist.Normal(0.0, 1.0))
        w = pyro.sample("w", dist.Normal(torch.zeros(1, 1), scale(tau)).to_event(2))
        pyro.sample("bias", dist.Normal(0.0, 3.0))
        f = pyro.deterministic("f", x @ w)
        with pyro.plate("data", len(x)):
            return pyro.sample("y", dist.Normal(f, 1.0).to_event(1), obs=y)

    return model


@pytest.mark.parametrize(
    "scale", [by_where, by_sign, by_branch, by_number, by_item, by_list], ids=lambda f: f.__name__
)
def test_the_density_is_pyros_on_both_sides_of_a_threshold(scale: Callable[[Tensor], Any]) -> None:
    with default_dtype(torch.float64):
        model = model_of(scale)
        program = Program(model, X, Y)
        for tau in (0.0, 1.0):
            z = torch.tensor([tau, 2.0, 0.3])
            values = {"tau": z[0], "w": z[1].reshape(1, 1), "bias": z[2]}
            trace = poutine.trace(pyro.condition(model, values)).get_trace(X, Y)
            assert float(program.log_joint(z, Batch(X, Y))) == pytest.approx(
                float(trace.log_prob_sum()), rel=1e-12
            )


def test_the_kl_of_a_guide_is_not_in_closed_form_where_a_scale_has_two_values() -> None:
    with default_dtype(torch.float64):
        guide = guides.AutoNormal(model_of(by_where))
        guide.setup(X)
        assert not guide.kl(100)[1]
        plain = guides.AutoNormal(model_of(lambda tau: 10.0))
        plain.setup(X)
        assert plain.kl(100)[1]


def test_a_prior_of_the_shape_of_another_value_does_not_depend_on_it() -> None:
    def shaped(tau: Tensor) -> Tensor:
        scale = torch.ones_like(tau) + tau.new_zeros(()) + torch.full_like(tau, 2.0)
        return scale.to(tau).expand_as(tau)

    program = Program(model_of(shaped), X.float(), Y.float())
    assert program.latents.is_closed_form()
    program = Program(
        model_of(lambda tau: torch.full_like(tau, 2.0) + 0 * tau), X.float(), Y.float()
    )
    assert not program.latents.is_closed_form()


def test_a_model_of_plain_tensors_alone_has_pyros_density() -> None:
    def plain(tau: Tensor) -> Tensor:
        if type(tau) is not Tensor:
            raise TypeError("a plain tensor is asked for")
        return by_where(tau)

    with default_dtype(torch.float64):
        program = Program(model_of(plain), X, Y)
        assert not program.latents.is_closed_form()
        z = torch.tensor([1.0, 2.0, 0.3])
        values = {"tau": z[0], "w": z[1].reshape(1, 1), "bias": z[2]}
        trace = poutine.trace(pyro.condition(model_of(by_where), values)).get_trace(X, Y)
        assert float(program.log_joint(z, Batch(X, Y))) == pytest.approx(
            float(trace.log_prob_sum()), rel=1e-12
        )


class OfParameter(PyroModule):
    """The prior's scale changes where a trained parameter passes a half."""

    def __init__(self) -> None:
        super().__init__()
        self.level = PyroParam(torch.tensor(0.0))
        self.w = PyroSample(
            lambda self: dist.Normal(torch.zeros(1, 1), by_where(self.level)).to_event(2)
        )

    def forward(self, x: Tensor, y: Tensor | None = None) -> Tensor:
        w: Any = self.w
        f = pyro.deterministic("f", x @ w)
        with pyro.plate("data", len(x)):
            return pyro.sample("y", dist.Normal(f, 1.0).to_event(1), obs=y)


def test_a_parameter_on_the_other_side_changes_the_density() -> None:
    with default_dtype(torch.float64):
        program, z = Program(OfParameter(), X, Y), torch.tensor([2.0])
        low, high = (
            program.log_joint(z, Batch(X, Y), {"level": torch.tensor(level)})
            for level in (0.0, 1.0)
        )
        of_prior = [dist.Normal(0.0, scale).log_prob(z)[0] for scale in (1.0, 10.0)]
        torch.testing.assert_close(high - low, of_prior[1] - of_prior[0], rtol=1e-12, atol=0)


def centred(x: Tensor, y: Tensor | None = None) -> Tensor:
    return model_of(lambda tau: tau.exp())(x, y)


def drawing(x: Tensor, y: Tensor | None = None) -> Tensor:
    """Random numbers of its own, between its sites and after them."""
    first = pyro.sample("first", dist.Normal(0.0, torch.ones(1, 1)).to_event(2))
    torch.rand(3)
    second = pyro.sample("second", dist.StudentT(3.0, 0.0, torch.ones(1, 1)).to_event(2))
    f = pyro.deterministic("f", x @ (first + second) + torch.randn(1))
    with pyro.plate("data", len(x)):
        return pyro.sample("y", dist.Normal(f, 1.0).to_event(1), obs=y)


@pytest.mark.parametrize(
    "model",
    [
        model_of(lambda tau: 2.0),
        model_of(by_where),
        model_of(by_branch),
        centred,
        drawing,
        OfParameter(),
        models.MLP(1, hidden=(3,), prior=priors.HalfCauchyScale(centred=True)),
        models.MLP(1, hidden=(3,), prior=priors.StudentT(3.0)),
    ],
    ids=["constant", "where", "branch", "centred", "drawing", "parameter", "MLP", "Student"],
)
@pytest.mark.parametrize("num_draws", [1, 2, 3, 40])
def test_prior_draws_are_those_of_one_run_after_another(model: Any, num_draws: int) -> None:
    x, y = X.float(), Y.float()
    program = Program(model, x, y)
    z = program.prior_draws(num_draws, x[:1], seed=5)
    with isolated(5), torch.no_grad():
        for row in z:
            run = evaluate(model, dict.fromkeys(site.name for site in program.sites), x[:1])
            values = program.constrain(row)
            for name, msg in run.latent.items():
                torch.testing.assert_close(values[name], msg["value"], rtol=1e-5, atol=1e-6)


def test_priors_alone_are_drawn_where_they_are_constant() -> None:
    counts = []
    for model in (models.MLP(1, hidden=(3,)), centred):
        program = Program(model, X.float(), Y.float())
        with unittest.mock.patch.object(program, "_run", wraps=program._run) as run:
            program.prior_draws(40, X[:1].float())
        counts.append(run.call_count)
    assert counts == [2, 40]
