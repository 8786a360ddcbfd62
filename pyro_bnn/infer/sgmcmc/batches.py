"""Rows of its own for every chain, step by step.

Chains that share their batches share the noise of these, so that they look alike, and R-hat and
ESS better than they are.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from pyro_bnn.errors import DataError
from pyro_bnn.infer.batches import IndependentMinibatches, LoaderBatches, Minibatches
from pyro_bnn.infer.inputs import pair_of
from pyro_bnn.infer.problem import Facts, Problem
from pyro_bnn.program.program import Program
from pyro_bnn.program.terms import Batch


class OwnMinibatches(Minibatches):
    """Random minibatches ``[C, B, ...]``; all rows ``[N, ...]`` of all where B is None or N.

    Every chain walks permutations of its own. Their batches make up for each other within an epoch,
    so that they heat positions less than independent ones of the same variance. Rows that are left
    at the end of one, fewer than B, are left out of it, so that all batches are of one size.

    Args:
        whole: All rows.
        batch_size: Rows B of a batch.
        num_chains: Number of chains C.
        seed: Seed of the permutations.

    Attributes:
        per_epoch: Batches of a permutation.
    """

    def __init__(self, whole: Batch, batch_size: int | None, num_chains: int, seed: int) -> None:
        super().__init__(whole, batch_size, seed)
        self.per_epoch = len(whole.x) // self.size
        self.rows_vary, self._num_chains = False, num_chains

    def _permuted(self) -> Sequence[Tensor]:
        orders = torch.stack([self._permutation() for _ in range(self._num_chains)])  # [C, N]
        batches: Sequence[Tensor] = orders.split(self.size, dim=1)
        return batches[: self.per_epoch]


class OwnPasses(LoaderBatches):
    """A pass over a user's DataLoader for every chain, all side by side, batches ``[C, B, ...]``.

    Where it shuffles, every pass has an order of its own; where it does not, chains share their
    batches. Batches of one pass make up for each other, as those of
    :class:`.IndependentMinibatches` do not. Its order cannot be replayed: a run that is resumed
    begins new passes.

    Args:
        loader: The DataLoader.
        program: The model as tensor functions.
        whole: All rows.
        num_chains: Number of chains C.
    """

    are_all = False

    def __init__(
        self, loader: DataLoader[Any], program: Program, whole: Batch, num_chains: int
    ) -> None:
        super().__init__(loader, program, whole)
        self.per_epoch, self._num_chains = len(loader), num_chains
        self._passes: list[Iterator[Any]] = []

    def __next__(self) -> Batch:
        found = [next(one, None) for one in self._passes]
        if not found or any(rows is None for rows in found):
            self._passes = [iter(self._loader) for _ in range(self._num_chains)]
            found = [next(one) for one in self._passes]
        batches = [self._program.batch(*pair_of(rows)) for rows in found]
        if len({len(batch.x) for batch in batches}) > 1:
            counts = ", ".join(str(len(batch.x)) for batch in batches)
            raise DataError(
                f"every chain goes through the DataLoader on its own, and their batches of one "
                f"step have {counts} rows: pass a DataLoader with a fixed batch_size, or the data "
                "set and batch_size="
            )
        return Batch(
            torch.stack([batch.x for batch in batches]), torch.stack([b.y for b in batches])
        )


BatchesOfChains: TypeAlias = OwnMinibatches | IndependentMinibatches | OwnPasses


def own_batches(
    problem: Facts, batch_size: int | None, num_chains: int, *, independent: bool = False
) -> BatchesOfChains:
    """Batches of each chain: a DataLoader's, else random minibatches, or all rows.

    Args:
        problem: What is sampled.
        batch_size: Rows B of a batch.
        num_chains: Number of chains C.
        independent: Whether minibatches are drawn anew at each step, not from permutations.
    """
    if isinstance(problem, Problem) and isinstance(problem.data, DataLoader):
        return OwnPasses(problem.data, problem.program, problem.rows, num_chains)
    if independent:
        return IndependentMinibatches(problem.rows, batch_size, problem.seed, chains=(num_chains,))
    return OwnMinibatches(problem.rows, batch_size, num_chains, problem.seed)
