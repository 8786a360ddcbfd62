"""Endless batches of rows, whose place in the order of the data can be saved."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from pyro_bnn.infer.inputs import pair_of
from pyro_bnn.program.program import Program
from pyro_bnn.program.terms import Batch


class Batches(ABC):
    """Batches without end, and the state of a checkpoint to go on from.

    Args:
        whole: All rows.

    Attributes:
        rows_vary: Whether batches may differ in their number of rows.
    """

    rows_vary = False

    def __init__(self, whole: Batch) -> None:
        self.whole = whole

    def __iter__(self) -> Iterator[Batch]:
        return self

    @abstractmethod
    def __next__(self) -> Batch: ...

    @abstractmethod
    def state(self) -> dict[str, Any]:
        """Which batch is the next."""

    @abstractmethod
    def restore(self, state: dict[str, Any]) -> None:
        """Go to a state."""

    def first(self, num_rows: int) -> Batch:
        """The first rows of all, whatever the next batch is.

        Raises:
            ValueError: If there are not so many.
        """
        if not 0 < num_rows <= len(self.whole.x):
            raise ValueError(f"a batch of {num_rows} of {len(self.whole.x)} rows")
        return Batch(self.whole.x[:num_rows], self.whole.y[:num_rows])


class Minibatches(Batches):
    """Random minibatches, or all rows where ``batch_size`` is None or not less than N.

    Every epoch is a new permutation, and its last batch may be smaller: the likelihood of each
    batch is scaled by its own N/B.

    Args:
        whole: All rows.
        batch_size: Rows B of a batch.
        seed: Seed of the permutations.

    Attributes:
        size: Rows B of a batch but the last one of an epoch.
    """

    def __init__(self, whole: Batch, batch_size: int | None, seed: int) -> None:
        super().__init__(whole)
        num_rows = len(whole.x)
        self.size = min(batch_size or num_rows, num_rows)
        self.rows_vary = num_rows % self.size > 0
        self._generator = torch.Generator().manual_seed(seed)
        self._before = self._generator.get_state()  # the epoch's permutation was drawn
        self._epoch: Sequence[Tensor] = ()
        self._place = 0

    def __next__(self) -> Batch:
        rows = self.next_rows()
        return self.whole if rows is None else self.whole.take(rows)

    @property
    def are_all(self) -> bool:
        """Whether every batch is all rows."""
        return self.size == len(self.whole.x)

    def next_rows(self) -> Tensor | None:
        """Numbers ``[B]`` of the next batch's rows; None for all rows, in their order."""
        if self.are_all:
            return None
        if self._place == len(self._epoch):
            self._shuffle()
        self._place += 1
        return self._epoch[self._place - 1]

    def _shuffle(self) -> None:
        self._before = self._generator.get_state()
        self._epoch, self._place = self._permuted(), 0

    def _permuted(self) -> Sequence[Tensor]:
        """Numbers of the rows of each batch of a new epoch."""
        batches: Sequence[Tensor] = self._permutation().split(self.size)
        return batches

    def _permutation(self) -> Tensor:
        x, _ = self.whole
        return torch.randperm(len(x), generator=self._generator).to(x.device)

    def state(self) -> dict[str, Any]:
        """The generator before this epoch, and the place in the epoch."""
        return {"generator": self._before, "place": self._place}

    def restore(self, state: dict[str, Any]) -> None:
        """Go to a state.

        Raises:
            ValueError: If it is of other data.
        """
        self._generator.set_state(state["generator"])
        self._shuffle()
        if not 0 <= state["place"] <= len(self._epoch):
            raise ValueError(f"batch {state['place']} of an epoch of {len(self._epoch)}")
        self._place = state["place"]


class IndependentMinibatches(Batches):
    """Minibatches of rows drawn with replacement; all rows where ``batch_size`` is None or N.

    The gradients of steps have the variance of one batch and no correlation, as samplers that live
    on that noise or take it away assume. Batches that walk a permutation make up for each other
    within an epoch, and what moves by them spreads less than the variance of a batch says.

    Args:
        whole: All rows.
        batch_size: Rows B of a batch.
        seed: Seed of the rows.
        chains: Shape of the chains that have batches ``[*chains, B, ...]`` of their own, if any.

    Attributes:
        per_epoch: Batches that have about as many rows as there are.
        are_all: Whether every batch is all rows.
    """

    def __init__(
        self, whole: Batch, batch_size: int | None, seed: int, chains: tuple[int, ...] = ()
    ) -> None:
        super().__init__(whole)
        num_rows = len(whole.x)
        size = min(batch_size or num_rows, num_rows)
        self.per_epoch, self.are_all = num_rows // size, size == num_rows
        self._shape = *chains, size
        self._generator = torch.Generator().manual_seed(seed)

    def __next__(self) -> Batch:
        if self.are_all:
            return self.whole
        rows = torch.randint(len(self.whole.x), self._shape, generator=self._generator)
        return self.whole.take(rows.to(self.whole.x.device))

    def state(self) -> dict[str, Any]:
        """The generator before the next batch."""
        return {"generator": self._generator.get_state()}

    def restore(self, state: dict[str, Any]) -> None:
        """Go to a state."""
        self._generator.set_state(state["generator"])


class LoaderBatches(Batches):
    """Passes over a user's DataLoader, in the program's dtype and device.

    Its order cannot be replayed: a run that is resumed begins a new pass.

    Args:
        loader: The DataLoader.
        program: The model as tensor functions.
        whole: All rows.
    """

    rows_vary = True

    def __init__(self, loader: DataLoader[Any], program: Program, whole: Batch) -> None:
        super().__init__(whole)
        self._loader, self._program = loader, program
        self._pass: Iterator[Any] = iter(())

    def __next__(self) -> Batch:
        rows = next(self._pass, None)
        if rows is None:
            self._pass = iter(self._loader)
            rows = next(self._pass)
        return self._program.batch(*pair_of(rows))

    def state(self) -> dict[str, Any]:
        """Torch's own generator, of which most DataLoaders draw their order."""
        return {"generator": torch.get_rng_state()}

    def restore(self, state: dict[str, Any]) -> None:
        """Begin a pass unlike those before."""
        torch.set_rng_state(state["generator"])
