"""Rows that ``poutine.scale`` weights by a tensor: a row of weight w counts as w rows."""

from __future__ import annotations

from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from torch import Tensor
from torch.testing import assert_close

from pyro_bnn import SLANG, VOGN, VON, Laplace
from pyro_bnn.infer.curvature.rows import RowTermsOf
from pyro_bnn.program import Batch, Program
from tests.infer.natural.test_rows import N, normal

NOISE = 0.5
X = torch.cat([normal(N, 2, seed=0), torch.tensor([[5.0], [1.0]]).repeat(4, 1)[:N].double()], 1)
Y = normal(N, seed=1)
REPEATED = torch.arange(N).repeat_interleave(X[:, 2].long())


def regression(x: Tensor, y: Tensor | None = None, weights: Any = None) -> Any:
    """A tanh unit of two inputs; the third column of x may hold the weights of rows."""
    size = {"weight": (1, 2), "bias": (1,)}
    value = {
        name: pyro.sample(name, dist.Normal(x.new_zeros(shape), 1.0).to_event(len(shape)))
        for name, shape in size.items()
    }
    f = torch.nn.functional.linear(x[:, :2], value["weight"], value["bias"])
    f = pyro.deterministic("f", f)
    scale = 1.0 if weights is None else weights(x)
    with pyro.plate("data", len(x)), poutine.scale(scale=scale):
        return pyro.sample("y", dist.Normal(f, NOISE).to_event(1), obs=y)


def weighted(x: Tensor, y: Tensor | None = None) -> Any:
    return regression(x, y, lambda x: x[:, 2])


def fourfold(x: Tensor, y: Tensor | None = None) -> Any:
    return regression(x, y, lambda x: torch.tensor(4.0, dtype=x.dtype))


@pytest.mark.parametrize("curvature", ["squared_gradients", "gradients", "ggn", "hessian", "none"])
def test_terms_are_those_of_repeated_rows(curvature: Any) -> None:
    found = []
    for model, order in ((weighted, torch.arange(N)), (regression, REPEATED)):
        program = Program(model, X[order], Y[order])
        batch = program.batch(X[order], Y[order])
        z = normal(2, program.num_latents, seed=4)
        terms_of = RowTermsOf(program, curvature, batch, 2)
        terms_of.chunk = 3
        terms = terms_of(z, batch)
        if curvature == "gradients":
            assert terms.curvature is not None
            terms = terms._replace(curvature=terms.curvature.mT @ terms.curvature)
        found.append(terms)
    for ours, expected in zip(*found, strict=True):
        assert_close(ours, expected, rtol=1e-8, atol=1e-9)


def variance_of(w: Tensor) -> Tensor:
    """Of the weights and the bias in closed form ``[3]``."""
    A = torch.cat([X[:, :2], torch.ones(N, 1).double()], 1)
    return ((A.mT * w) @ A / NOISE**2 + torch.eye(3).double()).inverse()


@pytest.mark.parametrize("structure", ["full", "kron", "diagonal", "low_rank"])
@pytest.mark.parametrize(
    ("model", "w"), [(weighted, X[:, 2]), (fourfold, torch.tensor(4.0))], ids=["rows", "one"]
)
def test_laplace_against_the_closed_form(structure: Any, model: Any, w: Tensor) -> None:
    laplace = Laplace(
        structure=structure, rank=3, predictive="weights", num_steps=20, compile=False
    )
    guide: Any = laplace.run(model, (X, Y), progress=False).guide
    eye = torch.eye(guide.noise_dim, dtype=torch.float64)
    with torch.no_grad():
        root = guide.transport(eye) - guide.transport(torch.zeros_like(eye[0]))
    expected = variance_of(w)
    if structure == "diagonal":
        expected = expected.inverse().diagonal().reciprocal().diag()
    # one output and one noise scale: Kronecker's factors are exact
    assert_close(root.mT @ root, expected, rtol=1e-6, atol=1e-9)


def test_von_against_the_closed_form() -> None:
    von = VON(num_steps=300, covariance="full", expectation="mean")
    guide: Any = von.run(weighted, (X, Y), progress=False).guide
    draws = guide.sample(4_000)
    ratio = draws.var(0) / variance_of(X[:, 2]).diagonal()
    assert float((ratio - 1).abs().max()) < 5 * (2 / 4_000) ** 0.5


@pytest.mark.parametrize("engine", [VOGN, SLANG])
def test_one_weight_for_all_rows_is_a_number_or_a_tensor(engine: Any) -> None:
    def of_number(x: Tensor, y: Tensor | None = None) -> Any:
        return regression(x, y, lambda x: 4.0)

    sds = []
    for model in (of_number, fourfold):
        guide = engine(num_steps=50).run(model, (X, Y), progress=False).guide
        sds.append(guide.sample(500).std(0))
    assert_close(*sds, rtol=1e-6, atol=0)


def test_weights_in_a_plate_of_all_rows() -> None:
    """Such a plate scales its rows by N/B itself, beside their weights."""

    def of_all(x: Tensor, y: Tensor | None = None) -> Any:
        f = pyro.sample("w", dist.Normal(x.new_zeros(2), 1.0).to_event(1)) * x[:, :2]
        f = pyro.deterministic("f", f.sum(-1))
        with pyro.plate("data", N, subsample=x), poutine.scale(scale=x[:, 2]):
            return pyro.sample("y", dist.Normal(f, NOISE), obs=y)

    program = Program(of_all, X, Y)
    z = normal(2, seed=5)
    rows = torch.distributions.Normal(X[:, :2] @ z, NOISE).log_prob(Y) * X[:, 2]
    values = program.constrain(z)
    for count in (3, N):
        found, scale = program.row_log_likelihood(values, Batch(X[:count], Y[:count]), {})
        assert scale == pytest.approx(N / count)
        assert_close(found, rows[:count])
