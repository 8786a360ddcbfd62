"""Every chain has rows of its own, drawn anew at each step."""

from __future__ import annotations

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from pyro_bnn import models
from pyro_bnn.errors import DataError
from pyro_bnn.infer import BAOAB
from pyro_bnn.infer.batches import IndependentMinibatches
from pyro_bnn.infer.sgmcmc import gradient
from pyro_bnn.infer.sgmcmc.batches import OwnMinibatches, OwnPasses
from pyro_bnn.infer.sgmcmc.gradient import slope_of_all
from pyro_bnn.infer.steps.potentials import potential_of
from pyro_bnn.program.program import Program
from pyro_bnn.program.terms import Batch
from tests.oracle import linear_gaussian

N, C = 20, 3
WHOLE = Batch(torch.arange(N).unsqueeze(-1), torch.arange(N))


def minibatches(size: int | None, seed: int = 0, whole: Batch = WHOLE) -> IndependentMinibatches:
    return IndependentMinibatches(whole, size, seed, chains=(C,))


@pytest.mark.parametrize("size", [1, 4, 6])
def test_sums_over_an_epoch_have_the_variance_of_independent_rows(size: int) -> None:
    """Those of a permutation have none, whatever the rows."""
    batches, count = minibatches(size), 4_000
    assert batches.per_epoch == N // size
    means = torch.stack([next(batches).y.double().mean(1) for _ in range(count)])  # [T, C]
    of_one = (N**2 - 1) / 12  # variance of a row's number
    epochs = means.unfold(0, batches.per_epoch, batches.per_epoch).mean(-1)
    expected = of_one / (size * batches.per_epoch)
    assert float(epochs.var()) == pytest.approx(expected, rel=5 * (2 / epochs.numel()) ** 0.5)
    assert abs(float(torch.corrcoef(means.T)[0, 1])) < 5 / count**0.5  # chains have their own


def test_rows_of_x_and_y_belong_together() -> None:
    batch = next(minibatches(5, seed=1))
    assert batch.x.shape == (C, 5, 1)
    assert torch.equal(batch.x.squeeze(-1), batch.y)
    alone = next(IndependentMinibatches(WHOLE, 5, 1))
    assert alone.x.shape == (5, 1)


def epoch(batches: OwnMinibatches) -> torch.Tensor:
    """Numbers of the rows of the next epoch ``[C, batches, B]``."""
    return torch.stack([next(batches).y for _ in range(batches.per_epoch)], 1)


@pytest.mark.parametrize("size", [1, 4, 6])
def test_each_chain_walks_permutations_of_its_own(size: int) -> None:
    batches = OwnMinibatches(WHOLE, size, C, seed=0)
    first, second = epoch(batches), epoch(batches)
    assert first.shape == (C, N // size, size)
    for rows in (*first, *second):
        assert len(rows.unique()) == rows.numel()
    orders = torch.cat([first, second]).flatten(1)
    assert len(orders.unique(dim=0)) == 2 * C


@pytest.mark.parametrize("size", [None, N, N + 1])
def test_all_rows_are_shared(size: int | None) -> None:
    batches = minibatches(size)
    assert batches.are_all
    assert next(batches).x is WHOLE.x


@pytest.mark.parametrize("taken", [0, 3, 5, 8])
def test_a_state_goes_on_with_the_same_rows(taken: int) -> None:
    one: IndependentMinibatches | OwnMinibatches
    other: IndependentMinibatches | OwnMinibatches
    for one, other in (
        (minibatches(4, 2), minibatches(4, 3)),
        (OwnMinibatches(WHOLE, 4, C, seed=2), OwnMinibatches(WHOLE, 4, C, seed=3)),
    ):
        for _ in range(taken):
            next(one)
        other.restore(one.state())
        for _ in range(7):
            assert torch.equal(next(one).y, next(other).y)
    with pytest.raises(ValueError, match="batch 9 of an epoch of 5"):
        other.restore({**one.state(), "place": 9})


def test_the_gradient_of_all_rows_is_made_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gradient, "ROWS_AT_ONCE", 7)  # all rows in parts of 7, 7 and 6
    oracle = linear_gaussian(num_rows=N)
    program = Program(oracle.model, oracle.x, oracle.y)
    whole = program.batch(oracle.x, oracle.y)
    potential = potential_of(program)
    z = program.prior_draws(C, whole.x[:1])
    expected = (z - oracle.mean) @ oracle.precision  # of U, in closed form
    of_all = slope_of_all(lambda *args: potential(*args)[1], z, whole)
    torch.testing.assert_close(of_all, expected, rtol=1e-10, atol=1e-10)


def test_a_loader_that_shuffles_gives_each_chain_an_order_of_its_own() -> None:
    oracle = linear_gaussian(num_rows=N)
    program = Program(oracle.model, oracle.x, oracle.y)
    rows = TensorDataset(oracle.x, oracle.y)
    shuffled = DataLoader(rows, batch_size=8, shuffle=True)
    batches = OwnPasses(shuffled, program, program.batch(oracle.x, oracle.y), C)
    sizes = [next(batches).y.shape[:2] for _ in range(batches.per_epoch + 1)]
    assert sizes == [(C, 8), (C, 8), (C, 4), (C, 8)]
    chains = next(batches).y.flatten(1)
    assert len(chains.unique(dim=0)) == C


def test_batches_of_unequal_sizes_in_one_step_are_refused() -> None:
    x, y = torch.linspace(-1, 1, 6).unsqueeze(-1), torch.zeros(6)
    passes = iter([[[0, 1], [2, 3], [4, 5]], [[0, 1], [2, 3], [4, 5]], [[0, 1, 2], [3, 4, 5]]])

    class Changing:
        """Batches of another size in every pass."""

        def __iter__(self):  # type: ignore[no-untyped-def]
            return iter(next(passes))

        def __len__(self) -> int:
            return 3

    loader = DataLoader(TensorDataset(x, y), batch_sampler=Changing())
    baoab = BAOAB(num_chains=2, warmup_steps=0, num_samples=1, thin=1, step_size=0.1)
    with pytest.raises(DataError, match="batches of one step have 2, 3 rows: pass a DataLoader"):
        baoab.run(models.LinearRegression(1), loader, progress=False)
