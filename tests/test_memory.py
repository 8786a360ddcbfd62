"""Chunks of draws: all of them, in order, and under the bound as measured."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from pyro_bnn import likelihoods, memory, models
from pyro_bnn.errors import OptionError
from pyro_bnn.memory import GIB, bytes_per_draw, draw_chunks
from pyro_bnn.program import Program

MIB = 1 << 20


def product(z: Tensor, x: Tensor) -> Tensor:
    """f [S, N] by one multiplication: 4 S N bytes in float32."""
    return z @ x.T


def measured(fn: Callable[[Tensor, Tensor], object], z: Tensor, x: Tensor) -> int:
    """Bytes that one call allocates, by the counter."""
    with torch.no_grad(), memory._CountBytes(z, x) as counter:
        fn(z, x)
    return int(counter.total)


@pytest.mark.parametrize("num_rows", [1, 10, 16, 50, 64, 1000])
@pytest.mark.parametrize("num_stored", [1, 500])
def test_bytes_of_one_draw_are_those_of_its_results(num_rows: int, num_stored: int) -> None:
    z, x = torch.randn(num_stored, 3), torch.randn(num_rows, 3)
    assert bytes_per_draw(product, z, x) == 4 * num_rows


def test_views_of_the_inputs_cost_nothing() -> None:
    z, x = torch.randn(500, 4), torch.randn(80, 4)
    assert bytes_per_draw(lambda z, x: (z[:, :2].reshape(-1, 2, 1), x.T, x[3:]), z, x) == 1


def test_what_does_not_grow_with_the_rows_is_counted_once() -> None:
    z, x = torch.randn(2, 4), torch.randn(1000, 4)
    assert bytes_per_draw(lambda z, x: (z.repeat(1, 100), z @ x.T), z, x) == 4 * (400 + 1000)


@pytest.mark.parametrize("num_draws", [1, 7, 100])
@pytest.mark.parametrize("draws_that_fit", [1, 3, 10])
def test_chunks_cover_all_draws_in_order(num_draws: int, draws_that_fit: int) -> None:
    z, x = torch.randn(num_draws, 3), torch.randn(32, 3)
    bound = 4 * 32 * draws_that_fit
    chunks = list(draw_chunks(product, z, x, memory=bound))
    assert_close(torch.cat(chunks), z, rtol=0, atol=0)
    assert max(len(chunk) for chunk in chunks) == min(num_draws, draws_that_fit)
    assert all(measured(product, chunk, x) <= bound for chunk in chunks)


def test_the_result_counts_against_the_bound() -> None:
    z, x = torch.randn(10, 3), torch.randn(32, 3)
    result = 4 * 32 * 10
    chunks = list(draw_chunks(product, z, x, memory=result + 4 * 32 * 2, result_bytes=result))
    assert [len(chunk) for chunk in chunks] == [2] * 5


def test_chunks_are_no_larger_than_the_working_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "WORKING_SET", 4 * 32 * 4)
    z, x = torch.randn(10, 3), torch.randn(32, 3)
    assert [len(chunk) for chunk in draw_chunks(product, z, x, memory=GIB)] == [4, 4, 2]


@pytest.mark.parametrize("num_rows", [40, 500])
def test_predictions_of_a_network_stay_under_the_bound(num_rows: int) -> None:
    model = models.MLP(4, hidden=(20, 20), likelihood=likelihoods.Categorical(3))
    x = torch.randn(num_rows, 4)
    program = Program(model, x, torch.arange(num_rows) % 3)
    z = program.initial.expand(64, -1).contiguous()
    for fn in (program.function, program.predictive):
        bound = 10 * bytes_per_draw(fn, z, x)
        fn(z[:1], x)
        chunks = list(draw_chunks(fn, z, x, memory=bound))
        assert len(chunks) > 1
        assert torch.equal(torch.cat(chunks), z)
        for chunk in chunks:
            assert measured(fn, chunk, x) <= bound


def test_too_many_draws_are_refused_with_the_number_that_fits() -> None:
    z, x = torch.randn(100, 3), torch.randn(32, 3)
    per_draw = 4 * 32
    bound = per_draw + 60 * per_draw  # one draw at work beside the results of 60
    with pytest.raises(OptionError) as caught:
        list(draw_chunks(product, z, x, memory=bound, result_bytes=100 * per_draw))
    message = str(caught.value)
    assert message.startswith("100 draws at 32 rows need about 0.00 GiB, more than the bound of ")
    assert "num_samples=60 fits, or raise memory=" in message
    assert list(draw_chunks(product, z[:60], x, memory=bound, result_bytes=60 * per_draw))
    with pytest.raises(OptionError, match="num_samples=60 fits"):
        list(draw_chunks(product, z[:61], x, memory=bound, result_bytes=61 * per_draw))


def test_where_no_draw_fits_fewer_rows_are_proposed() -> None:
    z, x = torch.randn(5, 3), torch.randn(4 * MIB, 3)
    with pytest.raises(
        OptionError,
        match=r"5 draws at 4194304 rows need about 0\.02 GiB, more than the bound of 0\.01 GiB: "
        r"pass fewer rows at a time, or raise memory=",
    ):
        list(draw_chunks(product, z, x, memory=10 * MIB))
