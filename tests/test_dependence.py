"""Priors that depend on other sites or on parameters in ways that no gradient shows."""

from __future__ import annotations

import unittest.mock
from collections.abc import Callable
from typing import Any, cast

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from pyro.nn import PyroModule, PyroParam, PyroSample
from torch import Tensor

from pyro_bnn import guides, models, priors
from pyro_bnn.errors import BNNError
from pyro_bnn.program.handlers import evaluate, marked_run
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


def by_entry(tau: Tensor) -> Tensor:
    scale = torch.ones(1)
    scale[(tau > 0.5).reshape(1)] = 10.0
    return scale


def by_part(tau: Tensor) -> Tensor:
    scale = torch.ones(3)
    scale[1:].select(0, 0).copy_(torch.where(tau > 0.5, 10.0, 1.0))  # through two views
    return scale[1]


def by_out(tau: Tensor) -> Tensor:
    scale = torch.ones(())
    torch.where(tau > 0.5, torch.tensor(10.0), torch.tensor(1.0), out=scale)
    return scale


def by_full(tau: Tensor) -> Tensor:
    return torch.full((1, 1), float(torch.where(tau.detach() > 0.5, 10.0, 1.0)))


def of_list(tau: Tensor) -> Tensor:
    return torch.tensor([torch.where(tau.detach() > 0.5, 10.0, 1.0)])


def of_name(tau: Tensor) -> Tensor:
    return torch.tensor(data=[torch.where(tau.detach() > 0.5, 10.0, 1.0)])


def of_array(tau: Tensor) -> Tensor:
    return torch.asarray([torch.where(tau.detach() > 0.5, 10.0, 1.0)])


def of_constructor(tau: Tensor) -> Tensor:
    return torch.DoubleTensor([torch.where(tau.detach() > 0.5, 10.0, 1.0)])


def of_integer(tau: Tensor) -> Tensor:
    return torch.LongTensor([torch.where(tau.detach() > 0.5, 10, 1)]).double()


def of_new(tau: Tensor) -> Tensor:
    new: Any = torch.ones(1).new
    return cast(Tensor, new([torch.where(tau.detach() > 0.5, 10.0, 1.0)]))


def by_equality(tau: Tensor) -> float:
    return 1.0 if torch.equal(tau.clamp(max=0.5), tau) else 10.0


def by_count(tau: Tensor) -> float:
    values = tau.reshape(1)
    return 1.0 + 9 * len(values[values > 0.5])


def by_places(tau: Tensor) -> float:
    return 1.0 + 9 * (tau.reshape(1) > 0.5).nonzero().shape[0]


def by_numpy(tau: Tensor) -> Tensor:
    return torch.from_numpy(np.where(np.asarray(tau.detach()) > 0.5, 10.0, 1.0))


def by_text(tau: Tensor) -> float:
    return 10.0 if "True" in f"{tau > 0.5}" else 1.0


def by_data(tau: Tensor) -> Tensor:
    scale = torch.ones(())
    scale.data = torch.where(tau.detach() > 0.5, 10.0, 1.0)
    return scale


def by_vmap(tau: Tensor) -> Tensor:
    return cast(Tensor, torch.vmap(lambda t: 1.0 + 9 * (t > 0.5))(tau.reshape(1)))


class _Step(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tau: Tensor) -> Tensor:
        return 1.0 + 9 * (tau > 0.5).to(tau)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        return gradients[0]


def by_step(tau: Tensor) -> Tensor:
    step: Any = _Step.apply
    return cast(Tensor, step(tau.detach()))


WAYS = [
    by_where, by_sign, by_branch, by_number, by_item, by_list, by_entry, by_part, by_out, by_full,
    of_list, of_name, of_array, of_constructor, of_integer, of_new, by_equality, by_count,
    by_places, by_numpy, by_text, by_data, by_vmap, by_step,
]  # fmt: skip


def model_of(scale: Callable[[Tensor], Any]) -> Callable[..., Tensor]:
    def model(x: Tensor, y: Tensor | None = None) -> Tensor:
        tau = pyro.sample("tau", dist.Normal(0.0, 1.0))
        w = pyro.sample("w", dist.Normal(torch.zeros(1, 1), scale(tau)).to_event(2))
        pyro.sample("bias", dist.Normal(0.0, 3.0))
        f = pyro.deterministic("f", x @ w)
        with pyro.plate("data", len(x)):
            return pyro.sample("y", dist.Normal(f, 1.0).to_event(1), obs=y)

    return model


@pytest.mark.parametrize("scale", WAYS, ids=lambda f: f.__name__)
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


class Counting(PyroModule):
    """Keeps what it saw, in an attribute, a list and a buffer, and draws numbers in its output."""

    def __init__(self) -> None:
        super().__init__()
        self.w = PyroSample(dist.Normal(torch.zeros(1, 1), 2.0).to_event(2))
        self.mean: Any
        self.register_buffer("mean", torch.zeros(1, 1))
        self.seen: list[Tensor] = []
        self.last: Any = None

    def forward(self, x: Tensor, y: Tensor | None = None) -> Tensor:
        w: Any = self.w
        self.last = w.detach()
        self.seen.append(w.detach())
        self.mean = 0.9 * self.mean + 0.1 * w.detach()
        shift = torch.zeros_like(input=w).sum() + 0 * torch.rand(())
        f = pyro.deterministic("f", x @ w + shift)
        with pyro.plate("data", len(x)):
            return pyro.sample("y", dist.Normal(f, 1.0).to_event(1), obs=y)


def test_a_prior_is_constant_whatever_the_network_does_with_its_weights() -> None:
    model, x = Counting(), X.float()
    torch.manual_seed(0)
    program = Program(model, x, Y.float())
    first = torch.rand(())
    assert program.latents.is_closed_form()
    assert torch.equal(first, torch.rand((), generator=torch.Generator().manual_seed(0)))
    assert all(type(value) is Tensor for value in (model.last, model.mean, *model.seen))


@pytest.mark.parametrize("scale", [by_where, by_branch, by_full], ids=lambda f: f.__name__)
@pytest.mark.parametrize("kind", ["support", "factor", "held"])
def test_supports_factors_and_held_sites_are_asked_too(
    kind: str, scale: Callable[[Tensor], Any]
) -> None:
    def model(x: Tensor, y: Tensor | None = None) -> Tensor:
        tau = pyro.sample("tau", dist.Normal(0.0, 1.0))
        w = pyro.sample("w", dist.Normal(torch.zeros(1, 1), scale(tau)).to_event(2))
        if kind == "support":
            pyro.sample("u", dist.Uniform(-torch.as_tensor(scale(tau)).sum(), 3.0))
        if kind == "factor":
            pyro.factor("penalty", -torch.as_tensor(scale(tau)).sum())
        f = pyro.deterministic("f", x @ w)
        with pyro.plate("data", len(x)):
            return pyro.sample("y", dist.Normal(f, 1.0).to_event(1), obs=y)

    x, y = X.float(), Y.float()
    if kind == "held":
        held = Program(pyro.condition(model, {"w": torch.ones(1, 1)}), x, y).held_given_latents
        assert held == {"w"}
        return
    with pytest.raises(BNNError, match=f"the (support of the latent site|{kind} 'penalty')"):
        Program(model, x, y)


class Branching(PyroModule):
    """Reads a parameter before a factor, and a site before a site on a fixed support."""

    def __init__(self) -> None:
        super().__init__()
        self.level = PyroParam(torch.tensor(1.0))

    def forward(self, x: Tensor, y: Tensor | None = None) -> Tensor:
        tau = pyro.sample("tau", dist.Normal(0.0, 1.0))
        level: Any = self.level
        pyro.factor("penalty", torch.tensor(-2.0 if level > 0.5 else -1.0))
        w = pyro.sample("w", dist.HalfNormal(torch.full((1, 1), by_branch(tau))).to_event(2))
        f = pyro.deterministic("f", x @ w)
        with pyro.plate("data", len(x)):
            return pyro.sample("y", dist.Normal(f, 1.0).to_event(1), obs=y)


def test_a_branch_leaves_factors_of_parameters_and_fixed_supports() -> None:
    with default_dtype(torch.float64):
        program = Program(Branching(), X, Y)
        for tau, sd in ((0.0, 1.0), (1.0, 10.0)):
            w = torch.tensor(0.7)
            z, value = torch.tensor([tau, 0.7]), w.exp()
            expected = dist.Normal(0.0, 1.0).log_prob(z[0]) + dist.HalfNormal(sd).log_prob(value)
            assert float(program.log_prior(z, X)) == pytest.approx(float(expected + w), rel=1e-12)


def test_each_site_is_known_by_its_name() -> None:
    def model(x: Tensor) -> None:
        a = pyro.sample("a", dist.Normal(0.0, 1.0))
        b = pyro.sample("b", dist.Normal(0.0, 1.0))
        pyro.sample("of_b", dist.Normal(b, 1.0))
        pyro.sample("after_a", dist.Normal(0.0, by_branch(a)))
        pyro.sample("of_both", dist.Normal(x * b, 1.0))

    names = ("a", "b", "of_b", "after_a", "of_both")
    values = dict(zip(names, torch.ones(5), strict=True))  # parts of one z, as in a program
    run = marked_run(lambda given: evaluate(model, given, 2 * torch.ones(())), values, ())
    found = [run.sources(name) for name in names]
    assert found == [set(), set(), {"b"}, {"a"}, {"a", "b"}]


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


def rare(x: Tensor, y: Tensor | None = None) -> Tensor:
    """One draw in 40 has another scale."""

    def scale(tau: Tensor) -> Tensor:
        found = torch.ones(1)
        found[(tau > 1.96).reshape(1)] = 10.0
        return found

    return model_of(scale)(x, y)


def of_numpy(x: Tensor, y: Tensor | None = None) -> Tensor:
    """No model of a density, and drawn as it is."""
    return model_of(lambda tau: 1.0 if np.random.rand() < 0.7 else 10.0)(x, y)  # noqa: NPY002


def drawing(x: Tensor, y: Tensor | None = None) -> Tensor:
    """Random numbers of its own, between its sites and after them."""
    first = pyro.sample("first", dist.Normal(0.0, torch.ones(1, 1)).to_event(2))
    torch.rand(3)
    second = pyro.sample("second", dist.StudentT(3.0, 0.0, torch.ones(1, 1)).to_event(2))
    f = pyro.deterministic("f", x @ (first + second) + 0 * torch.randn(1))
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
        rare,
        of_numpy,
        OfParameter(),
        models.MLP(1, hidden=(3,), prior=priors.HalfCauchyScale(centred=True)),
        models.MLP(1, hidden=(3,), prior=priors.StudentT(3.0)),
    ],
    ids=[
        "constant",
        "where",
        "branch",
        "centred",
        "drawing",
        "rare",
        "numpy",
        "parameter",
        "MLP",
        "Student",
    ],
)
@pytest.mark.parametrize("num_draws", [1, 2, 3, 120])
def test_prior_draws_are_those_of_one_run_after_another(model: Any, num_draws: int) -> None:
    x, y = X.float(), Y.float()
    program = Program(model, x, y)
    np.random.seed(0)  # noqa: NPY002
    z = program.prior_draws(num_draws, x[:1], seed=5)
    np.random.seed(0)  # noqa: NPY002
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
        with unittest.mock.patch.object(program, "run", wraps=program.run) as run:
            program.prior_draws(40, X[:1].float())
        counts.append(run.call_count)
    assert counts == [2, 40]
