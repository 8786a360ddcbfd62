"""Gradients and curvature of rows against loops of autograd."""

from __future__ import annotations

from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from pyro_bnn import likelihoods, models
from pyro_bnn.errors import ModelError, OptionError
from pyro_bnn.infer.curvature import rows
from pyro_bnn.infer.curvature.rows import RowTermsOf
from pyro_bnn.program import Batch, Program

N = 7
SCALE = 0.25  # exact in float32, in which likelihoods are made


def normal(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


X = normal(N, 2, seed=0)
TARGETS: dict[str, tuple[Any, Tensor]] = {
    "Normal": (likelihoods.Normal(SCALE), normal(N, seed=1)),
    "Bernoulli": (likelihoods.Bernoulli(), (normal(N, seed=2) > 0).double()),
    "Categorical": (likelihoods.Categorical(3), torch.arange(N) % 3),
    "Poisson": (likelihoods.Poisson(), torch.arange(N).double()),
}


def program_of(likelihood: str) -> tuple[Program, Batch]:
    family, y = TARGETS[likelihood]
    model = models.MLP(2, hidden=(3,), activation="tanh", likelihood=family).double()
    program = Program(model, X, y)
    return program, program.batch(X, y)


def row_nll(program: Program, z: Tensor, batch: Batch, i: int) -> Tensor:
    one = Batch(batch.x[i : i + 1], batch.y[i : i + 1])
    return -program.log_likelihood(z, one).squeeze(0)


def loop(program: Program, z: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
    """Gradients ``[B, P]`` and Hessians ``[B, P, P]`` of the rows at z ``[P]``."""
    gradients, hessians = [], []
    for i in range(len(batch.x)):
        leaf = z.clone().requires_grad_()
        (gradient,) = torch.autograd.grad(row_nll(program, leaf, batch, i), leaf)
        gradients.append(gradient)
        hessians.append(
            torch.autograd.functional.hessian(lambda v, i=i: row_nll(program, v, batch, i), z)
        )
    return torch.stack(gradients), torch.stack(hessians)


@pytest.mark.slow("about a second")
@pytest.mark.parametrize(("likelihood", "chunk"), [("Normal", 2), ("Categorical", N)])
def test_terms_against_a_loop_over_rows(likelihood: str, chunk: int) -> None:
    """For a batch of five rows of seven, at two draws."""
    program, whole = program_of(likelihood)
    batch, scale = Batch(whole.x[:5], whole.y[:5]), N / 5
    z = normal(2, program.num_latents, seed=4)
    gradients, hessians = (
        torch.stack(values)
        for values in zip(*(loop(program, row, batch) for row in z), strict=True)
    )
    expected = {
        "none": None,
        "squared_gradients": scale * gradients.square().sum(1).mean(0),
        "hessian": scale * hessians.sum(1).mean(0),
    }
    for curvature, value in expected.items():
        is_full = curvature == "hessian"
        terms_of = RowTermsOf(program, curvature, whole, 2, is_full=is_full)  # type: ignore[arg-type]
        terms_of.chunk = chunk
        found = terms_of(z, batch)
        nll = -scale * program.log_likelihood(z, batch).sum(-1)
        assert_close(found.nll, nll, rtol=1e-10, atol=0)
        assert_close(terms_of.nll(z, batch), nll, rtol=1e-10, atol=0)
        assert_close(found.gradient, scale * gradients.sum(1), rtol=1e-9, atol=1e-10)
        assert terms_of.compile_path == "captured"
        if value is not None:
            assert found.curvature is not None
            assert_close(found.curvature, value, rtol=1e-9, atol=1e-9)
    terms_of = RowTermsOf(program, "gradients", whole, 2)
    terms_of.chunk = chunk
    each = terms_of(z, batch)
    assert each.curvature is not None
    assert_close(each.curvature, (scale / 2) ** 0.5 * gradients.flatten(0, 1), rtol=1e-9, atol=1e-9)
    assert_close(each.gradient, scale * gradients.sum(1), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("likelihood", TARGETS)
@pytest.mark.parametrize("is_full", [True, False])
def test_gauss_newton_against_the_fisher_information(likelihood: str, is_full: bool) -> None:
    r"""J^T F J of the network output, F by summing or integrating over y.

    F is the Hessian of the nll in f of a row for the Gaussian, classes and logits, and for counts
    its expectation over y.
    """
    program, batch = program_of(likelihood)
    z = normal(program.num_latents, seed=5)
    total = torch.zeros(program.num_latents, program.num_latents, dtype=torch.float64)
    for i in range(N):
        x = batch.x[i : i + 1]
        J = torch.autograd.functional.jacobian(lambda v, x=x: program.function(v, x)[0], z)
        f = program.function(z, x)[0]
        if likelihood == "Normal":
            information = torch.eye(1, dtype=torch.float64) / SCALE**2
        elif likelihood == "Bernoulli":
            information = (f.sigmoid() * (1 - f.sigmoid())).reshape(1, 1)
        elif likelihood == "Poisson":  # of the rate it is 1 / rate
            rate = program.observed(z, x)[0]
            value = torch.autograd.functional.jacobian(
                lambda v, x=x: program.observed(v, x)[0].mean.reshape(-1), z
            )
            total += value.T @ value / rate.mean.reshape(-1)
            continue
        else:
            p = f.softmax(-1)
            information = p.diag() - torch.outer(p, p)
        total += J.T @ information @ J
    found = RowTermsOf(program, "ggn", batch, 1, is_full=is_full)(z.unsqueeze(0), batch).curvature
    assert found is not None
    assert_close(found, total if is_full else total.diagonal(), rtol=1e-8, atol=1e-9)


def test_the_information_of_a_rate() -> None:
    """Of a row x it is r x x^T for the rate r = e^(x w), as (r x)(r x)^T / r."""

    def counts(x: Tensor, y: Tensor | None = None) -> Tensor:
        w = pyro.sample("w", dist.Normal(torch.zeros(2, 1).double(), 1.0).to_event(2))
        rate = pyro.deterministic("f", x @ w).exp()
        with pyro.plate("data", x.shape[0]):
            sampled: Tensor = pyro.sample("y", dist.Poisson(rate).to_event(1), obs=y)
        return sampled

    y = torch.arange(N).double().unsqueeze(-1)
    program = Program(counts, X, y)
    batch = program.batch(X, y)
    z = normal(1, 2, seed=8)
    found = RowTermsOf(program, "ggn", batch, 1, is_full=True)(z, batch).curvature
    assert_close(found, X.T @ ((X @ z[0]).exp().unsqueeze(-1) * X), rtol=1e-10, atol=1e-12)


def test_the_information_of_a_learned_noise_scale() -> None:
    """Of the log of a Gaussian's scale it is 2 a row, whatever the scale."""
    model = models.LinearRegression(2, likelihood=likelihoods.Normal(dist.HalfNormal(1.0))).double()
    program = Program(model, X, X[:, 0])
    batch = program.batch(X, X[:, 0])
    z = normal(1, program.num_latents, seed=7)
    found = RowTermsOf(program, "ggn", batch, 1)(z, batch).curvature
    assert found is not None
    (noise,) = (site for site in program.sites if not site.is_real)
    assert float(found[noise.start]) == pytest.approx(2 * N, rel=1e-10)
    variance = float(z[0, noise.start].mul(2).exp())
    of_bias = next(site for site in program.sites if site.name == "bias")
    assert float(found[of_bias.start]) == pytest.approx(N / variance, rel=1e-10)


def test_squared_gradients_are_unbiased_for_every_batch_size() -> None:
    program, whole = program_of("Normal")
    z = normal(1, program.num_latents, seed=6)
    terms_of = RowTermsOf(program, "squared_gradients", whole, 1)
    at_all = terms_of(z, whole).curvature
    assert at_all is not None
    for i in range(1, 4):  # all subsets of so many rows
        subsets = torch.combinations(torch.arange(N), i)
        seen = [terms_of(z, Batch(whole.x[s], whole.y[s])).curvature for s in subsets]
        assert_close(torch.stack(seen).mean(0), at_all, rtol=1e-10, atol=0)  # type: ignore[arg-type]


def test_rows_at_once_are_within_the_bound_of_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    x = normal(400, 2, seed=0)
    program = Program(models.MLP(2, hidden=(20,)).double(), x, x[:, 0])
    batch = program.batch(x, x[:, 0])
    assert RowTermsOf(program, "squared_gradients", batch, 1).chunk == 400
    monkeypatch.setattr(rows, "MEMORY", 400_000)
    of_one, of_four = (RowTermsOf(program, "squared_gradients", batch, n).chunk for n in (1, 4))
    # gradients of a row alone take 8 P bytes
    assert 1 < of_four < of_one < 400_000 / (8 * program.num_latents)
    monkeypatch.setattr(rows, "MEMORY", 1)
    assert RowTermsOf(program, "squared_gradients", batch, 1).chunk == 1


def test_gauss_newton_refuses_other_likelihoods() -> None:
    model = models.MLP(2, hidden=(3,), likelihood=likelihoods.StudentT(4.0, 1.0)).double()
    program = Program(model, X, X[:, 0])
    with pytest.raises(
        OptionError, match="not built for the likelihood StudentT, but for Normal, "
    ):
        RowTermsOf(program, "ggn", program.batch(X, X[:, 0]), 1)


def test_models_that_cannot_be_batched_are_refused() -> None:
    def by_values(x: Tensor, y: Tensor | None = None) -> Tensor:
        w = pyro.sample("w", dist.Normal(torch.zeros(2, 1).double(), 1.0).to_event(2))
        w = w if bool(w.detach().sum() > 0) else -w
        f = pyro.deterministic("f", x @ w)
        with pyro.plate("data", x.shape[0]):
            sampled: Tensor = pyro.sample("y", dist.Normal(f, 1.0).to_event(1), obs=y)
        return sampled

    program = Program(by_values, X, X[:, 0])
    with pytest.raises(ModelError, match="gradients of single rows need a model that can be batch"):
        RowTermsOf(program, "squared_gradients", program.batch(X, X[:, 0]), 1)
