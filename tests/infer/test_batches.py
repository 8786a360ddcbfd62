"""Batches without end: every row once an epoch, in an order that can be gone on with."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from pyro_bnn.data import Dataset
from pyro_bnn.infer.batches import LoaderBatches, Minibatches
from pyro_bnn.infer.problem import Problem
from pyro_bnn.program import Batch, Program
from tests.oracle import linear_gaussian

X = torch.arange(10.0)[:, None]
Y = torch.arange(10.0) ** 2


def test_minibatches_go_through_all_rows_once_an_epoch_in_a_new_order() -> None:
    batches = Minibatches(Batch(X, Y), 4, seed=0)
    assert batches.rows_vary
    epochs = [list(itertools.islice(batches, 3)) for _ in range(2)]
    orders = []
    for epoch in epochs:
        assert [len(batch.x) for batch in epoch] == [4, 4, 2]
        rows = torch.cat([batch.x[:, 0] for batch in epoch])
        torch.testing.assert_close(rows.sort().values, X[:, 0])
        torch.testing.assert_close(torch.cat([batch.y for batch in epoch]), rows**2)
        orders.append(rows)
    assert bool((orders[0] != orders[1]).any())
    again = next(Minibatches(Batch(X, Y), 4, seed=0))
    torch.testing.assert_close(again.x, epochs[0][0].x)
    other = next(Minibatches(Batch(X, Y), 4, seed=1))
    assert bool((other.x != again.x).any())
    assert not Minibatches(Batch(X, Y), 5, seed=0).rows_vary


@pytest.mark.parametrize("batch_size", [None, 10, 11])
def test_all_rows_are_one_batch(batch_size: int | None) -> None:
    whole = Batch(X, Y)
    batches = Minibatches(whole, batch_size, 0)
    assert list(itertools.islice(batches, 2)) == [whole, whole]
    assert not batches.rows_vary


@pytest.mark.parametrize("done", [0, 2, 3, 7])
def test_a_state_goes_on_with_the_next_batch(done: int) -> None:
    first = Minibatches(Batch(X, Y), 4, seed=0)
    list(itertools.islice(first, done))
    second = Minibatches(Batch(X, Y), 4, seed=5)
    second.restore(first.state())
    for ours, theirs in zip(itertools.islice(first, 8), second, strict=False):
        assert torch.equal(ours.x, theirs.x)
        assert torch.equal(ours.y, theirs.y)


def test_a_state_of_other_data_is_refused() -> None:
    batches = Minibatches(Batch(X, Y), 4, seed=0)
    state = batches.state()
    for place in (-1, 4):
        with pytest.raises(ValueError, match=f"batch {place} of an epoch of 3"):
            batches.restore({**state, "place": place})


def test_the_first_rows_are_taken_of_all() -> None:
    batches = Minibatches(Batch(X, Y), 4, seed=0)
    assert torch.equal(batches.first(3).x, X[:3])
    for num_rows in (0, 11):
        with pytest.raises(ValueError, match=f"a batch of {num_rows} of 10 rows"):
            batches.first(num_rows)


def test_a_loader_keeps_its_own_batches() -> None:
    oracle = linear_gaussian()
    loader = DataLoader(TensorDataset(oracle.x.float(), oracle.y.float()), batch_size=15)
    dataset = Dataset(oracle.x, oracle.y)
    batches = Problem(oracle.model, loader, dataset, None, 0, "SVI").batches(3)
    assert isinstance(batches, LoaderBatches)
    assert batches.rows_vary
    taken = list(itertools.islice(batches, 3))
    assert [len(batch.x) for batch in taken] == [15, 5, 15]
    assert taken[0].x.dtype == torch.float64
    assert taken[0].y.shape == (15, 1)


def test_a_loader_that_is_gone_on_with_begins_a_new_pass_in_a_new_order() -> None:
    oracle = linear_gaussian()
    program = Program(oracle.model, oracle.x, oracle.y)
    whole = program.batch(oracle.x, oracle.y)
    loader = DataLoader(TensorDataset(oracle.x, oracle.y), batch_size=20, shuffle=True)
    torch.manual_seed(0)
    first = LoaderBatches(loader, program, whole)
    before = [next(first).x for _ in range(2)]
    state = first.state()
    torch.manual_seed(0)  # as a resumed run begins
    second = LoaderBatches(loader, program, whole)
    second.restore(state)
    after = next(second).x
    assert not any(torch.equal(after, x) for x in before)
    assert torch.equal(after.sort(0).values, oracle.x.sort(0).values)
