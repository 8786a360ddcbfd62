"""The noise of batches has its closed form, and control variates take it away."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from pyro_bnn.errors import OptionError
from pyro_bnn.infer import BAOAB, PSGLD, SGHMC, SGLD, SGNHT
from pyro_bnn.infer.sgmcmc.gradient import difference, hessian_product
from pyro_bnn.infer.steps.potentials import potential_of
from pyro_bnn.program.program import Program
from pyro_bnn.program.terms import Batch
from tests.oracle import LinearGaussian, LinearModel, linear_gaussian, with_answers

N, B = 12, 4
MANY = 20_000


def equal_curvatures() -> LinearGaussian:
    """Rows x = +-1 in each column: the Hessian of a row is that of any other, up to signs.

    With one column, and a bias that is independent of it in every pair of rows.
    """
    x = torch.tensor([1.0, -1.0], dtype=torch.float64).repeat(N // 2).unsqueeze(-1)
    y = torch.linspace(-1, 2, N, dtype=torch.float64).sin() + 0.7 * x[:, 0]
    return with_answers(x, y, LinearModel(1, 0.5, 1.3))


def through_origin(oracle: LinearGaussian) -> Any:
    """The model without its bias, whose rows all have the curvature x^2 / sigma^2."""
    import pyro

    return pyro.poutine.condition(oracle.model, data={"b": torch.zeros(1, dtype=torch.float64)})


def independent_rows(whole: Batch, count: int) -> Batch:
    """Batches ``[count, B]`` without repetition inside, independent of each other."""
    generator = torch.Generator().manual_seed(0)
    rows = torch.rand(count, len(whole.x), generator=generator).argsort(1)[:, :B]
    return Batch(whole.x[rows], whole.y[rows])


def test_the_variance_over_independent_batches() -> None:
    oracle = equal_curvatures()
    program = Program(through_origin(oracle), oracle.x, oracle.y)
    whole = program.batch(oracle.x, oracle.y)
    z = torch.full((MANY, 1), 0.3, dtype=torch.float64)
    _, slopes = potential_of(program)(z, *independent_rows(whole, MANY))
    rows = (z[0] * oracle.x[:, 0] - oracle.y) * oracle.x[:, 0] / oracle.noise**2  # [N]
    variance = N**2 / B * float(rows.var(unbiased=False)) * (N - B) / (N - 1)
    mean = float(rows.sum() + z[0] / oracle.prior_scale**2)
    assert abs(float(slopes.mean()) - mean) / math.sqrt(variance / MANY) < 5
    fourth = float((slopes - mean).pow(4).mean())
    error = math.sqrt((fourth - variance**2) / MANY)
    assert abs(float(slopes.var()) - variance) / error < 5


def test_control_variates_keep_the_mean_and_have_no_noise_at_their_point() -> None:
    oracle = linear_gaussian(num_rows=N)
    program = Program(oracle.model, oracle.x, oracle.y)
    whole = program.batch(oracle.x, oracle.y)
    potential = potential_of(program)
    generator = torch.Generator().manual_seed(1)
    anchor = torch.randn(1, 4, generator=generator, dtype=torch.float64)
    z = (anchor + 0.1).expand(N // B, -1)
    rows = torch.randperm(N, generator=generator).reshape(N // B, B)  # an epoch
    x, y = whole.x[rows], whole.y[rows]
    at_anchor = (anchor - oracle.mean) @ oracle.precision
    estimates = at_anchor + difference(potential, z, anchor.expand_as(z), x, y)
    expected = (z - oracle.mean) @ oracle.precision
    torch.testing.assert_close(estimates.mean(0), expected[0], rtol=1e-10, atol=1e-10)
    there = anchor.expand_as(z)
    none = difference(potential, there, there, x, y)
    torch.testing.assert_close(none, torch.zeros_like(none), rtol=0, atol=1e-12)


@pytest.mark.parametrize("control", ["mode", "svrg"])
@pytest.mark.parametrize("cls", [SGLD, SGHMC, SGNHT, BAOAB, PSGLD], ids=lambda cls: cls.__name__)
def test_where_rows_curve_alike_the_chain_is_that_of_all_rows(cls: Any, control: str) -> None:
    oracle = equal_curvatures()
    model = through_origin(oracle)

    def draws(**options: Any) -> torch.Tensor:
        engine = cls(
            num_chains=3, warmup_steps=0, num_samples=40, thin=1, step_size=0.02, **options
        )
        stored: torch.Tensor = engine.run(
            model, (oracle.x, oracle.y), seed=4, progress=False
        ).stored
        return stored

    full = draws()
    torch.testing.assert_close(draws(batch_size=B, control=control), full, rtol=1e-9, atol=1e-9)
    assert float((draws(batch_size=B) - full).abs().max()) > 1e-3  # without them it is another


@pytest.mark.parametrize("batch_size", [None, N, 2 * N])
def test_control_variates_of_all_rows_are_refused(batch_size: int | None) -> None:
    oracle = linear_gaussian(num_rows=N)
    with pytest.raises(
        OptionError, match=r"control='mode' would have no effect, .* set batch_size"
    ):
        BAOAB(control="mode", batch_size=batch_size).run(
            oracle.model, (oracle.x, oracle.y), progress=False
        )


def test_products_with_the_hessian() -> None:
    oracle = linear_gaussian(num_rows=N)
    program = Program(oracle.model, oracle.x, oracle.y)
    whole, potential = program.batch(oracle.x, oracle.y), potential_of(program)
    v = torch.linspace(-1, 1, 8, dtype=torch.float64).reshape(2, 4)
    product = hessian_product(lambda z: potential(z, *whole)[1], torch.zeros_like(v), v)
    torch.testing.assert_close(product, v @ oracle.precision, rtol=1e-10, atol=1e-10)
