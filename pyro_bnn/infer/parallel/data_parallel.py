r"""One run of SVI on several processes, each with its share of the rows of every step.

The batch of a step, of b rows, is the same in all R processes, and so is the noise; process r takes
:math:`b_r` of the rows. Its loss is :math:`\mathrm{KL} - \tfrac{N}{b_r} \sum_{i \in r} \ell_i`, and

.. math:: \sum_r \frac{b_r}{b} \nabla \Bigl(\mathrm{KL} - \frac{N}{b_r} \sum_{i \in r} \ell_i\Bigr)
          = \nabla \Bigl(\mathrm{KL} - \frac{N}{b} \sum_i \ell_i\Bigr)

is the gradient of one process on the whole batch, however unequal the shares are: one sum over
processes of the flat gradient, between its graph and the optimiser. Nothing depends on R but the
order of additions. Li et al., "PyTorch Distributed", VLDB 2020, arXiv:2006.15704, on the exchange.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.distributed as dist
from torch import Tensor

from pyro_bnn.errors import BNNError, OptionError
from pyro_bnn.guides import Guide
from pyro_bnn.infer.batches import Batches, Minibatches
from pyro_bnn.infer.checkpoints.checkpoint import Checkpoint
from pyro_bnn.infer.engine import Engine, Start
from pyro_bnn.infer.problem import Problem
from pyro_bnn.infer.svi.estimators.by_name import AUTO, WEIGHT_SAMPLING
from pyro_bnn.infer.svi.svi import SVI
from pyro_bnn.infer.svi.training import Training
from pyro_bnn.infer.svi.training_step import StepInParts
from pyro_bnn.posterior.doubling import Doubling
from pyro_bnn.posterior.posterior import Posterior
from pyro_bnn.program.terms import Batch


@dataclass(frozen=True)
class DataParallel(Engine[Posterior]):
    """SVI on the processes of ``torch.distributed``, each of which calls ``run`` alike.

    All have the same model, data, options and seed, and get the same posterior, that of ``svi`` in
    one process but for rounding. ``batch_size`` counts the rows of all processes together. The
    first process saves the checkpoint, from which any number of processes can go on. Every process
    holds all rows. Where one ends, the others end with an error. In a file ``fit.py``, run by
    ``torchrun --nproc-per-node 2 fit.py``::

        from datetime import timedelta
        import torch.distributed as dist

        dist.init_process_group("gloo", timeout=timedelta(seconds=60))
        engine = bnn.infer.parallel.DataParallel(bnn.SVI(bnn.guides.AutoNormal, batch_size=2_048))
        posterior = engine.run(model, data, checkpoint="run/", resume=True)
        if dist.get_rank() == 0:
            posterior.save("posterior.safetensors")

    Args:
        svi: The engine, with a guide of this package.

    Raises:
        OptionError: If it is another engine, or draws noise for each row.
    """

    trains_params: ClassVar[bool] = True

    svi: SVI

    def __post_init__(self) -> None:
        if not isinstance(self.svi, SVI):
            raise OptionError(f"rows are shared out for pyro_bnn.SVI alone, not {self.svi!r:.60}")
        if self.svi.per_example_draws:
            raise OptionError(
                "per_example_draws has noise of each row, which processes would share: leave it "
                "at False"
            )

    @property
    def saves(self) -> bool:
        """Whether this process saves the checkpoint: the first one does."""
        return _rank() == 0

    def start(self, problem: Problem) -> Start:
        """Start as SVI does; see the base class.

        Raises:
            OptionError: If the processes were not joined, the order of rows is a ``DataLoader``'s,
                the guide is of stock Pyro or needs all rows, or rows have noise of their own.
        """
        if int(os.environ.get("WORLD_SIZE", "1")) > 1 and not dist.is_initialized():
            raise OptionError(
                "these are several processes that do not know of each other: call "
                "torch.distributed.init_process_group('gloo') first"
            )
        if problem.has_own_order:
            raise OptionError("each process takes its rows of one order: pass the data set itself")
        start = self.svi.start(problem)

        def make(saves: Checkpoint) -> SharedTraining:
            made = start.make(saves)
            if not isinstance(made, Training):
                raise OptionError("rows are shared out for guides of pyro_bnn.guides alone")
            return SharedTraining.of(made, saves.compile_path)

        return Start(start.problem, start.options, make)


class Shares(Batches):
    """The rows of each batch that this process takes.

    Args:
        batches: The whole ones, alike in all processes.

    Attributes:
        weight: Share of the last batch's rows that are this process's; 0 where it has none, and
            computes on a row of another.
    """

    def __init__(self, batches: Minibatches) -> None:
        super().__init__(batches.whole)
        self._batches, self.weight = batches, 1.0
        self.rows_vary = True

    def __next__(self) -> Batch:
        rows = self._batches.next_rows()
        size = len(self.whole.x if rows is None else rows)
        rank, count = _rank(), _count()
        first, last = (size * r // count for r in (rank, rank + 1))
        self.weight = (last - first) / size
        own = slice(first, last) if last > first else slice(0, 1)
        if rows is None:
            return Batch(self.whole.x[own], self.whole.y[own])
        return self.whole.take(rows[own])

    def state(self) -> dict[str, Any]:
        """That of the whole batches."""
        return self._batches.state()

    def restore(self, state: dict[str, Any]) -> None:
        """Go to a state."""
        self._batches.restore(state)


class SharedStep(StepInParts):
    """A step whose gradient is of the rows of all processes.

    Args:
        shares: The batches, of which each process has a share.
        number: The number of the step, for an error.
        args: Arguments of ``StepInParts``.
        options: Options of it.
    """

    def __init__(
        self, shares: Shares, number: Callable[[], int], *args: Any, **options: Any
    ) -> None:
        super().__init__(*args, **options)
        self._shares, self._number = shares, number

    def gradient(self, *inputs: Tensor) -> Sequence[Tensor]:
        """Loss, minus the ELBO, sampled part and gradients, of the rows of all processes."""
        of_share = super().gradient(*inputs)
        flat = torch.cat([part.reshape(-1) for part in of_share]).mul_(self._shares.weight)
        if dist.is_initialized():
            try:
                dist.all_reduce(flat)
            except RuntimeError as error:  # gloo's and NCCL's, of a connection that is gone
                raise BNNError(
                    f"another process of this run has ended, at step {self._number()} of this "
                    "one: start all again, with resume=True to go on from the checkpoint"
                ) from error
        parts = flat.split([part.numel() for part in of_share])
        return [part.reshape(one.shape) for part, one in zip(parts, of_share, strict=True)]


class SharedTraining(Training):
    """A training run whose gradient is summed over processes."""

    updates_apart: ClassVar[bool] = True

    @classmethod
    def of(cls, run: Training, compile_path: str | None) -> SharedTraining:
        """The run that shares the steps of another, which has not begun.

        Raises:
            OptionError: If the guide needs all rows, or its estimator has noise of each row.
        """
        if isinstance(run.guide, Guide) and run.guide.needs_all_rows:
            raise OptionError(
                f"the {run.objective} of {type(run.guide).__name__} is no sum over rows, which "
                "could be shared out"
            )
        svi = run.svi
        if svi.estimator == AUTO:
            svi = dataclasses.replace(svi, estimator=WEIGHT_SAMPLING)
        elif run.loss.has_row_noise:
            raise OptionError(
                f'estimator="{run.svi.estimator}" has noise of each row, which processes would '
                "share: take weight_sampling"
            )
        assert isinstance(run.batches, Minibatches)  # a DataLoader was refused
        shared = cls(
            svi,
            run.program,
            run.guide,
            run.seed,
            batches=Shares(run.batches),
            loc_warmup=run.loc_warmup,
            compile_path=compile_path,
        )
        shared.title = f"{shared.title}, {_count()} processes"
        return shared

    def begin(self) -> None:
        """The first process goes on from its state or begins; the others get where it stands."""
        if _rank() == 0:
            super().begin()
        self._meet()

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go to a state, which the other processes wait for; see ``Resumable``."""
        super().restore(state)
        self._meet()

    def _meet(self) -> None:
        if not dist.is_initialized():
            return
        told = [self.state() if _rank() == 0 and self.step else None]
        dist.broadcast_object_list(told, src=0)
        if told[0] is None:  # at the start, which another machine may round otherwise
            for parameter in self.parameters:
                dist.broadcast(parameter.data, src=0)
        elif _rank() > 0:
            super().restore(told[0])

    def _make_parts(self, *args: Any, **options: Any) -> StepInParts:
        assert isinstance(self._batches, Shares)
        return SharedStep(self._batches, lambda: self.step, *args, **options)

    def _compared(self, before: Mapping[str, Tensor], after: Mapping[str, Tensor]) -> Doubling:
        """What the first process finds, so that all end at one step."""
        told: list[Doubling] = [super()._compared(before, after)]
        if dist.is_initialized():
            dist.broadcast_object_list(told, src=0)
        return told[0]

    def _look_back(self) -> None:
        super()._look_back()
        if dist.is_initialized():
            self._check_alike()

    def _check_alike(self) -> None:
        """Raises if processes have come to different parameters, of which only one is right."""
        sums = torch.stack([p.detach().double().sum() for p in self.parameters]).sum().reshape(1)
        least, most = sums.clone(), sums.clone()
        dist.all_reduce(least, dist.ReduceOp.MIN)
        dist.all_reduce(most, dist.ReduceOp.MAX)
        if not torch.equal(least, most):
            raise BNNError(
                f"processes have different parameters after step {self.step}: they need the same "
                "model, data, options and seed, and versions of torch"
            )


def _rank() -> int:
    return dist.get_rank() if dist.is_initialized() else 0


def _count() -> int:
    return dist.get_world_size() if dist.is_initialized() else 1
