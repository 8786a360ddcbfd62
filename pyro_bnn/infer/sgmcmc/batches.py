"""Rows of its own for every chain, step by step.

Chains that share their batches share the noise of these, so that they look alike, and R-hat and
ESS better than they are.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader

from pyro_bnn.errors import DataError
from pyro_bnn.infer.batches import Batches, IndependentMinibatches
from pyro_bnn.infer.inputs import pair_of
from pyro_bnn.infer.problem import Problem
from pyro_bnn.program.program import Program
from pyro_bnn.program.terms import Batch


class OwnMinibatches(Batches):
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
        are_all: Whether every batch is all rows.
    """

    def __init__(self, whole: Batch, batch_size: int | None, num_chains: int, seed: int) -> None:
        super().__init__(whole)
        num_rows = len(whole.x)
        self._size = min(batch_size or num_rows, num_rows)
        self.per_epoch, self.are_all = num_rows // self._size, self._size == num_rows
        self._num_chains = num_chains
        self._generator = torch.Generator().manual_seed(seed)
        self._before = self._generator.get_state()  # the permutations were drawn
        self._order, self._place = torch.empty(0), 0  # [C, N]

    def __next__(self) -> Batch:
        if self.are_all:
            return self.whole
        if not len(self._order) or self._place == self.per_epoch:
            self._shuffle()
        start = self._place * self._size
        rows = self._order[:, start : start + self._size]
        self._place += 1
        return self.whole.take(rows)

    def _shuffle(self) -> None:
        num_rows = len(self.whole.x)
        self._before = self._generator.get_state()
        orders = [
            torch.randperm(num_rows, generator=self._generator) for _ in range(self._num_chains)
        ]
        self._order, self._place = torch.stack(orders).to(self.whole.x.device), 0

    def state(self) -> dict[str, Any]:
        """The generator before the permutations that are walked, and the place in them."""
        return {"generator": self._before, "place": self._place}

    def restore(self, state: dict[str, Any]) -> None:
        """Go to a state.

        Raises:
            ValueError: If it is of other data.
        """
        self._generator.set_state(state["generator"])
        if not 0 <= state["place"] <= self.per_epoch:
            raise ValueError(f"batch {state['place']} of an epoch of {self.per_epoch}")
        self._shuffle()
        self._place = state["place"]


class OwnPasses(Batches):
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

    rows_vary = True
    are_all = False

    def __init__(
        self, loader: DataLoader[Any], program: Program, whole: Batch, num_chains: int
    ) -> None:
        super().__init__(whole)
        self._loader, self._program, self._num_chains = loader, program, num_chains
        self.per_epoch = len(loader)
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

    def state(self) -> dict[str, Any]:
        """Torch's own generator, of which most DataLoaders draw their order."""
        return {"generator": torch.get_rng_state()}

    def restore(self, state: dict[str, Any]) -> None:
        """Begin passes unlike those before."""
        torch.set_rng_state(state["generator"])


def own_batches(
    problem: Problem, batch_size: int | None, num_chains: int, *, independent: bool = False
) -> OwnMinibatches | IndependentMinibatches | OwnPasses:
    """Batches of each chain: a DataLoader's, else random minibatches, or all rows.

    Args:
        problem: What is sampled.
        batch_size: Rows B of a batch.
        num_chains: Number of chains C.
        independent: Whether minibatches are drawn anew at each step, not from permutations.
    """
    if isinstance(problem.data, DataLoader):
        return OwnPasses(problem.data, problem.program, problem.rows, num_chains)
    if independent:
        return IndependentMinibatches(problem.rows, batch_size, problem.seed, chains=(num_chains,))
    return OwnMinibatches(problem.rows, batch_size, num_chains, problem.seed)
