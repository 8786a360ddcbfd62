r"""How chains in lockstep compute their steps: apart, each in C, or in a batch.

Up to ``MOST_APART`` chains on a processor are moved apart, where their step can be written in C
(:mod:`~pyro_bnn.capture.c.library`): each by steps of its own, a block of them in one call, on as
many threads as torch has. They meet after every block, in the warm-up too. What they draw is the
same for every number of threads. All other chains are a batch, moved by one graph.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pyro_bnn.capture.c.library import compile_c
from pyro_bnn.capture.captured import Captured
from pyro_bnn.errors import CaptureError
from pyro_bnn.infer.mcmc.kernel import Kernel
from pyro_bnn.infer.mcmc.lockstep import Energy, Graphs, Lockstep
from pyro_bnn.infer.mcmc.mass import Mass
from pyro_bnn.infer.steps.threads import one_thread

logger = logging.getLogger("pyro_bnn")

BLOCK = 16  # steps between two looks at chains that no longer adapt
BLOCK_APART, MOST_STEPS = 64, 256  # least and most steps in a block of chains moved apart
BLOCK_APART_BYTES = 1 << 23  # of its draws, where there are more than the least
MOST_APART = 64  # chains that are moved apart; in a batch of more each costs less
FEW_CHAINS = 8  # up to which those that are done go along in a batch to the end


def in_lockstep(
    kernel: Kernel, energy: Energy, starts: Tensor, mass: Mass, *, graphs: Graphs, **options: Any
) -> Lockstep:
    """Chains that are moved apart where their step can be written in C, else as a batch.

    Args:
        kernel: The state machine.
        energy: What the chains move by.
        starts: Where the chains start ``[C, P]``.
        mass: First mass matrix.
        graphs: How a step is to compute.
        options: ``limit``, ``target_accept`` and ``seed`` of :class:`Lockstep`.

    Raises:
        CaptureError: If ``graphs.strict`` and the step of a batch cannot be compiled.
    """
    may_part = graphs.compiled and graphs.apart and len(starts) <= MOST_APART and starts.is_cpu
    if may_part:
        try:
            return ChainsApart(kernel, energy, starts, mass, graphs=graphs, **options)
        except CaptureError:
            logger.debug("%s is not written in C", graphs.name, exc_info=True)
    return BatchOfChains(kernel, energy, starts, mass, graphs=graphs, **options)


class ChainsApart(Lockstep):
    """Chains of which each has its step in C, on the threads that torch has.

    Of a run that is over nothing is recorded: it is restored with blocks of the same shape.

    Raises:
        CaptureError: If the step cannot be written in C, or draws of a block are too large.
    """

    is_apart: ClassVar[bool] = True

    def _longest_block(self) -> int:
        return max(BLOCK_APART, min(MOST_STEPS, BLOCK_APART_BYTES // self._like.nbytes))

    def _record(self, graphs: Graphs) -> Captured:
        if self.block == 1:
            raise CaptureError("the draws of a block take too much memory")
        self._num_threads = torch.get_num_threads()
        return Captured(
            self._iterate,
            graphs.name,
            enabled=graphs.captured,
            compiled=True,
            compiler=compile_c,
            num_state=self._num_state(),
            strict=True,
        )

    def _bind_to(self, tensors: Sequence[Tensor]) -> None:
        by_chain = set(self._by_chain())
        with one_thread():
            self._calls = [
                self._captured.bind(
                    *(t.narrow(0, c, 1) if i in by_chain else t for i, t in enumerate(tensors))
                )
                for c in range(len(self.chains))
            ]
        num_threads = min(self._num_threads, len(self._calls))
        self._threads = ThreadPoolExecutor(num_threads) if num_threads > 1 else None

    def _advance(self, num_steps: int) -> None:
        if self._threads is None:
            for call in self._calls:
                call(num_steps)
        else:
            for done in [self._threads.submit(call, num_steps) for call in self._calls]:
                done.result()

    def fix(self, places: NDArray[np.int64]) -> None:
        """End adaptation; chains in a trajectory, whose step size changes, begin another one."""
        super().fix(places)
        at = self._at(places)
        start = self._kernel.position(self._state, at)
        self._begin(at, start, self._normal(len(at)), self.step_size[at])

    def serves(self, num_chains: int) -> bool:  # noqa: ARG002
        """Whether the step is there for so many chains: always."""
        return True


class BatchOfChains(Lockstep):
    """Chains that one graph moves, all of them by each call."""

    is_apart: ClassVar[bool] = False

    def _longest_block(self) -> int:
        return BLOCK

    def _record(self, graphs: Graphs) -> Captured:
        return Captured(
            self._iterate,
            graphs.name,
            enabled=graphs.captured,
            compiled=graphs.compiled,
            # tensors with a row a chain; of few chains a graph of their own number compiles sooner
            rows=dict.fromkeys(self._by_chain(), 0) if len(self._like) > FEW_CHAINS else {},
            num_state=self._num_state(),
            strict=graphs.strict,
            in_order=True,
        )

    def _bind_to(self, tensors: Sequence[Tensor]) -> None:
        self._call = self._captured.bind(*tensors)
        self._captured.is_strict = False  # a run that has begun ends, if slower

    def _advance(self, num_steps: int) -> None:
        self._call(num_steps)

    def serves(self, num_chains: int) -> bool:
        """Whether the step is there for so many chains, without another graph."""
        return self._captured.serves(num_chains)
