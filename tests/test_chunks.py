"""Functions over chunks of draws: captured where it pays, put together without copies."""

from __future__ import annotations

import logging
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from pyro_bnn import memory, models
from pyro_bnn.memory import GIB
from pyro_bnn.predictive import map_draws as chunks
from pyro_bnn.predictive.draws import Draws, draws_of_atoms
from pyro_bnn.predictive.map_draws import Chunks
from pyro_bnn.program import Params, Program


@pytest.fixture
def program() -> Program:
    x = torch.linspace(-1, 1, 36).reshape(12, 3)
    return Program(models.MLP(3, hidden=(6,)), x, x[:, 0])


def test_parts_are_put_together_with_what_they_share(
    program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether they come in chunks of draws, of rows or of both."""
    z, x = torch.arange(12.0).reshape(6, 2), torch.arange(80.0)[:, None]

    def fn(z: Tensor, rows: tuple[Tensor, ...], params: Params) -> tuple[Tensor, ...]:
        f = z[:, :1] * rows[0][:, 0]
        return f, f, z[:, 1:].expand(-1, len(rows[0]))

    for working_set in (1 << 20, 1_000, 200):
        monkeypatch.setattr(memory, "WORKING_SET", working_set)
        run = Chunks(program).over("f", fn, Draws.of(z), (x,), {})
        whole, twin, expanded = run.together(GIB)
        assert torch.equal(whole, z[:, :1] * x[:, 0])
        assert twin is whole
        assert torch.equal(expanded, z[:, 1:].expand(6, 80))
        assert expanded.untyped_storage().nbytes() == 6 * 4
        assert (len(run.blocks(GIB)) > 1) == (working_set == 200)


def test_a_graph_replays_without_the_model(
    program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chunks, "CAPTURE_FROM", 0)
    monkeypatch.setattr(memory, "WORKING_SET", 8_000)
    calls: list[int] = []
    kept = Chunks(program)
    x = program.example.x

    def fn(z: Tensor, rows: tuple[Tensor, ...], params: Params) -> tuple[Tensor, ...]:
        calls.append(len(z))
        return (program.function(z, rows[0], params),)

    z = program.prior_draws(50, x[:1])
    expected = program.function(z, x)
    first = kept.over("f", fn, Draws.of(z), (x,), {}).together(GIB)[0]
    torch.testing.assert_close(first, expected)
    assert 0 < len(calls) < 10  # looks at its cost, and the capture
    calls.clear()
    second = kept.over("f", fn, Draws.of(z.flip(0)), (x,), {}).together(GIB)[0]
    torch.testing.assert_close(second, expected.flip(0))
    assert calls == []


@pytest.mark.parametrize("working_set", [1 << 24, 3_000], ids=["at once", "in parts"])
def test_atoms_are_computed_once_each_and_their_draws_share_what_they_share(
    program: Program, monkeypatch: pytest.MonkeyPatch, working_set: int
) -> None:
    monkeypatch.setattr(memory, "WORKING_SET", working_set)
    calls: list[tuple[int, int]] = []
    x = program.example.x

    def fn(z: Tensor, rows: tuple[Tensor, ...], params: Params) -> tuple[Tensor, ...]:
        calls.append((len(z), len(rows[0])))
        f = program.function(z, rows[0], params)
        return f, f, z[:, :1].expand(-1, len(rows[0]))

    points = program.prior_draws(3, x[:1])
    draws = draws_of_atoms(points, 600, seed=2)
    run = Chunks(program).over("f", fn, draws, (x,), {})
    calls.clear()  # looks at its cost
    f, twin, expanded = run.together(GIB)
    rows_computed = sum(draws * rows for draws, rows in calls)
    assert rows_computed < 10 * 3 * len(x)  # 600 draws of 12 rows would be 7,200
    assert not run.chunks._graphs  # which so few calls do not repay
    z = draws.together()[0]
    torch.testing.assert_close(f, program.function(z, x))
    assert twin is f
    assert torch.equal(expanded, z[:, :1].expand(-1, len(x)))
    assert expanded.untyped_storage().nbytes() == 600 * 4


def test_atoms_beyond_the_bound_are_computed_as_other_draws_are(program: Program) -> None:
    x = program.example.x
    draws = draws_of_atoms(program.prior_draws(300, x[:1]), 600, seed=2)

    def fn(z: Tensor, rows: tuple[Tensor, ...], params: Params) -> tuple[Tensor, ...]:
        return (program.function(z, rows[0], params),)

    run = Chunks(program).over("f", fn, draws, (x,), {})
    least = run.working + run.fixed + 1_000  # of which the functions of 300 points take 14,400
    parts = torch.cat([f for (f,) in run.parts(least)])
    torch.testing.assert_close(parts, program.function(draws.together()[0], x))


def test_parameters_in_another_order_have_a_graph_of_their_own(
    program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chunks, "CAPTURE_FROM", 0)
    kept = Chunks(program)
    a, b = torch.tensor(3.0), torch.tensor(1.0)

    def fn(z: Tensor, rows: tuple[Tensor, ...], params: Params) -> tuple[Tensor, ...]:
        return (z @ rows[0].T + params["a"] - params["b"],)

    draws = Draws.of(torch.zeros(4, 2))
    for params in ({"a": a, "b": b}, {"b": b, "a": a}):
        (values,) = kept.over("f", fn, draws, (torch.ones(5, 2),), params).together(GIB)
        assert values.tolist() == [[2.0] * 5] * 4


def test_graphs_that_are_kept_are_few(program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunks, "CAPTURE_FROM", 0)
    monkeypatch.setattr(chunks, "GRAPHS_KEPT", 2)
    kept = Chunks(program)
    z = program.prior_draws(3, program.example.x[:1])
    for count in (3, 4, 5, 3):
        x = torch.ones(count, 3)
        run = kept.over(
            "f", lambda z, rows, p: (program.function(z, rows[0], p),), Draws.of(z), (x,), {}
        )
        torch.testing.assert_close(run.together(GIB)[0], program.function(z, x))
        assert len(kept._graphs) <= 2


def test_what_cannot_be_captured_runs_as_it_is(
    program: Program, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(chunks, "CAPTURE_FROM", 0)

    def fn(z: Tensor, rows: tuple[Tensor, ...], params: Params) -> tuple[Tensor, ...]:
        sign = 1 if float(z.sum()) > 0 else -1  # depends on the numbers
        return (sign * z.sum(-1, keepdim=True) * rows[0][:, 0],)

    z = torch.ones(4, 2)
    run = Chunks(program).over("a function with a branch", fn, Draws.of(z), (torch.ones(5, 1),), {})
    with caplog.at_level(logging.WARNING):
        (values,) = run.together(GIB)
    assert values.tolist() == [[2.0] * 5] * 4
    assert "a function with a branch cannot be captured as a graph and runs through" in caplog.text


ALONG: dict[str, Callable[[Tensor], Tensor]] = {
    "sum before": lambda x: x.cumsum(0),
    "sum after": lambda x: x.flip(0).cumsum(0).flip(0),
    "lag": lambda x: x - torch.cat([0 * x[:1], x[:-1]]),
    "from the first": lambda x: x - x[:1],
    "from the last": lambda x: x - x[-1:],
    "from the mean": lambda x: x - x.mean(0),
}


@pytest.mark.parametrize("kind", ALONG)
def test_what_runs_along_the_rows_is_not_taken_apart(program: Program, kind: str) -> None:
    def fn(z: Tensor, rows: tuple[Tensor, ...], params: Params) -> tuple[Tensor, ...]:
        return (z[:, :1] * ALONG[kind](rows[0])[:, 0],)

    for count in (2, 3, 4, 5, 64, 300):
        x = torch.linspace(1, 2, count)[:, None]
        run = Chunks(program).over("f", fn, Draws.of(torch.ones(4, 2)), (x,), {})
        assert not run.chunks.are_rows_apart(run)


def test_whether_rows_are_apart_is_found_once(program: Program) -> None:
    calls: list[int] = []

    def fn(z: Tensor, rows: tuple[Tensor, ...], params: Params) -> tuple[Tensor, ...]:
        calls.append(len(rows[0]))
        return (z[:, :1] * rows[0][:, 0],)

    kept = Chunks(program)
    for count in (100, 70):
        run = kept.over("f", fn, Draws.of(torch.ones(4, 2)), (torch.ones(count, 1),), {})
        calls.clear()
        assert kept.are_rows_apart(run)
        assert calls == ([64, 32, 32] if count == 100 else [])
