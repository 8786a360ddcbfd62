"""The flat vector z and its prior: blocks of closed form beside the rest."""

from __future__ import annotations

import math
from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from pyro_bnn.errors import SiteError
from pyro_bnn.program.handlers import evaluate, marked_run, trace_model
from pyro_bnn.program.latents import Latents, Marginals
from tests.plain_pyro import default_dtype

LOC, SCALE = 0.3, 0.7


def mixed() -> dict[str, Any]:
    """Sites in an order that tears the Gaussian block apart."""
    fixed = dist.Normal(torch.tensor([0.0, LOC]), SCALE).to_event(1)
    values = {
        "a": pyro.sample("a", fixed),
        "b": pyro.sample("b", dist.Laplace(LOC, SCALE).expand([3]).to_event(1)),
        "tau": pyro.sample("tau", dist.LogNormal(LOC, SCALE)),
        "c": pyro.sample("c", dist.Normal(1.0, 2.0).expand([2, 2]).to_event(2)),
    }
    values["d"] = pyro.sample("d", dist.Normal(0.0, values["tau"]))
    return values


def latents_of(model: Any) -> Latents:
    trace = trace_model(model)
    latents = Latents(trace.sites)
    values = {name: msg["value"] for name, msg in trace.messages.items()}
    latents.find_closed_forms(marked_run(lambda given: evaluate(model, given), values, ()))
    return latents


def random_z(latents: Latents) -> Tensor:
    return torch.randn(latents.num_latents, generator=torch.Generator().manual_seed(1))


def closed_and_open(z: Tensor) -> tuple[Tensor, Tensor]:
    """Log density of the sites with a closed form, and of the rest, by hand."""
    closed = (
        dist.Normal(torch.tensor([0.0, LOC]), SCALE).log_prob(z[:2]).sum()
        + dist.Laplace(LOC, SCALE).log_prob(z[2:5]).sum()
        + dist.Normal(1.0, 2.0).log_prob(z[6:10]).sum()
    )
    tau = z[5].exp()
    rest = dist.LogNormal(LOC, SCALE).log_prob(tau) + dist.Normal(0.0, tau).log_prob(z[10])
    return closed, rest


def test_log_prior_is_the_sum_by_hand() -> None:
    with default_dtype(torch.float64):
        latents = latents_of(mixed)
        assert latents.num_latents == 11
        assert not latents.is_closed_form()
        z = random_z(latents)
        run = evaluate(mixed, latents.constrain(z))
        closed, rest = closed_and_open(z)
        assert_close(latents.log_prior(run, z, jacobian=False), closed + rest, rtol=1e-12, atol=0)
        assert_close(latents.log_prior(run, z), closed + rest + z[5], rtol=1e-12, atol=0)
        without = latents.log_prior(run, z, blocks=latents.closed_forms().sampled)
        assert_close(without, rest + z[5], rtol=1e-12, atol=0)
        tiny = torch.full_like(z, 1e-9)
        assert_close(latents.expected_log_prior(Marginals(z, tiny)), closed, rtol=1e-7, atol=0)


def test_expected_log_prior_against_the_gaussian_formula() -> None:
    with default_dtype(torch.float64):

        def model() -> None:
            pyro.sample("w", dist.Normal(LOC, SCALE).expand([4]).to_event(1))

        latents = latents_of(model)
        assert latents.is_closed_form()
        mean, sd = random_z(latents), torch.tensor([0.1, 0.5, 1.0, 2.0])
        expected = sum(
            -0.5 * math.log(2 * math.pi)
            - math.log(SCALE)
            - ((m - LOC) ** 2 + s**2) / (2 * SCALE**2)
            for m, s in zip(mean.tolist(), sd.tolist(), strict=True)
        )
        actual = latents.expected_log_prior(Marginals(mean, sd))
        assert_close(actual, torch.tensor(expected), rtol=1e-12, atol=0)
        twice = Marginals(torch.stack([mean, mean]), torch.stack([sd, sd]))  # two components
        assert_close(latents.expected_log_prior(twice), actual, rtol=1e-12, atol=0)


def test_which_expectations_are_closed_depends_on_the_marginals() -> None:
    def model() -> None:
        pyro.sample("a", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
        pyro.sample("b", dist.Cauchy(LOC, SCALE).expand([3]).to_event(1))
        pyro.sample("c", dist.Cauchy(LOC, SCALE))

    with default_dtype(torch.float64):
        latents = latents_of(model)
        z = random_z(latents)
        run = evaluate(model, latents.constrain(z))
        whole = latents.log_prior(run, z)
        assert not latents.is_closed_form()  # a Gaussian q has no closed form on a Cauchy prior
        assert not latents.is_closed_form(frozenset({"b"}))
        assert not latents.is_closed_form(frozenset({"a", "b", "c"}))  # infinite on "a"
        cauchy = frozenset({"b", "c"})
        assert latents.is_closed_form(cauchy)
        tiny = torch.full_like(z, 1e-9)
        for sites in (frozenset[str](), frozenset({"b"}), cauchy):
            covered = latents.expected_log_prior(Marginals(z, tiny, sites))
            rest = latents.log_prior(run, z, blocks=latents.closed_forms(sites).sampled)
            assert_close(covered + rest, whole, rtol=1e-7, atol=1e-7)


def test_of_marginals_with_known_moments_only_gaussian_priors_are_closed() -> None:
    def model() -> None:
        pyro.sample("a", dist.Normal(LOC, SCALE).expand([2]).to_event(1))
        pyro.sample("b", dist.Laplace(LOC, SCALE).expand([3]).to_event(1))

    with default_dtype(torch.float64):
        latents = latents_of(model)
        assert latents.is_closed_form()
        assert not latents.is_closed_form(others="moments")
        assert latents.is_closed_form()  # the answers are kept apart
        mean = random_z(latents)
        sd = torch.linspace(0.2, 1.0, 5)
        second_moment = (mean - LOC).square() + sd.square()
        gaussian = (
            dist.Normal(LOC, SCALE).log_prob(torch.tensor(LOC)) - second_moment / 2 / SCALE**2
        )
        actual = latents.expected_log_prior(Marginals(mean, sd, others="moments"))
        assert_close(actual, gaussian[:2].sum(), rtol=1e-12, atol=0)


def scaled() -> None:
    with pyro.poutine.scale(scale=3.0):
        pyro.sample("w", dist.Normal(0.0, 1.0))


def masked() -> None:
    with pyro.poutine.mask(mask=False):
        pyro.sample("w", dist.Normal(0.0, 1.0))


@pytest.mark.parametrize(("model", "factor"), [(scaled, 3.0), (masked, 0.0)])
def test_handlers_around_a_prior_are_kept(model: Any, factor: float) -> None:
    latents = latents_of(model)
    assert not latents.is_closed_form()
    z = torch.tensor([0.4])
    log_prior = latents.log_prior(evaluate(model, latents.constrain(z)), z)
    assert_close(log_prior, factor * dist.Normal(0.0, 1.0).log_prob(z).sum())


def test_a_family_inside_a_transform_is_no_closed_form() -> None:
    def model() -> None:
        pyro.sample("w", dist.HalfNormal(1.0))

    assert not latents_of(model).is_closed_form()


def test_flat_priors_are_listed() -> None:
    def model() -> None:
        pyro.sample("w", dist.Normal(0.0, 1.0))
        pyro.sample("flat", flat)

    from pyro_bnn.priors import Flat

    flat = Flat().distribution(torch.Size([2]))
    latents = latents_of(model)
    assert latents.improper == {"flat"}
    z = torch.tensor([0.4, 5.0, -7.0])
    log_prior = latents.log_prior(evaluate(model, latents.constrain(z)), z)
    assert_close(log_prior, dist.Normal(0.0, 1.0).log_prob(z[0]))


def test_unconstrain_inverts_constrain_for_batches() -> None:
    with default_dtype(torch.float64):
        latents = latents_of(mixed)
        z = torch.randn(2, 3, 11, generator=torch.Generator().manual_seed(1))
        values = latents.constrain(z)
        assert {name: tuple(v.shape) for name, v in values.items()} == {
            "a": (2, 3, 2),
            "b": (2, 3, 3),
            "tau": (2, 3),
            "c": (2, 3, 2, 2),
            "d": (2, 3),
        }
        assert_close(values["c"][1, 2], z[1, 2, 6:10].reshape(2, 2))
        assert_close(values["tau"], z[..., 5].exp())
        assert_close(latents.unconstrain(values), z)


def test_missing_and_misshapen_values_are_refused() -> None:
    latents = latents_of(mixed)
    values = latents.constrain(random_z(latents))
    with pytest.raises(SiteError, match="no value for the site 'c'; needed are a, b, tau, c, d"):
        latents.unconstrain({name: value for name, value in values.items() if name != "c"})
    with pytest.raises(
        SiteError,
        match=r"the value of site 'c' has shape \(4,\), but the site's shape is \(2, 2\)",
    ):
        latents.unconstrain({**values, "c": torch.zeros(4)})
