r"""Moves of all particles of an island that leave the tempered posterior as it is.

.. math:: p_b(z) \propto e^{-U_b(z)}, \qquad U_b(z) = -\log p(z) - b \log p(y \mid x, z)

A move is one trajectory of Hamiltonian Monte Carlo, of equally many leapfrog steps for every
particle. The inverse temperature, the scales and the step sizes are inputs of one captured step,
which serves all temperatures.

On a processor particles are moved a few at a time, where the step can be written in C
(:mod:`~pyro_bnn.capture.c.library`): a whole trajectory of them in one call, on as many threads as
torch has. On diabetes and 50 units that takes a tenth of the time of a batch of all of them, whose
activations do not fit the caches. What particles do is the same for every number of threads.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from torch import Tensor

from pyro_bnn.capture import Captured
from pyro_bnn.capture.c.library import compile_c
from pyro_bnn.errors import CaptureError
from pyro_bnn.infer.mcmc.leapfrog import energy_error, kinetic
from pyro_bnn.infer.steps.threads import one_thread

logger = logging.getLogger("pyro_bnn")

ROWS_APART = 1 << 9  # of particles times data, that a call in C moves
ROWS_AT_ONCE = 1 << 14  # that a batch does: more only waits for memory
ROWS_ON_GPU = 1 << 22
JITTER = 0.2  # step sizes of particles lie so far around the common one, in its log

Densities = Callable[..., tuple[Tensor, Tensor]]
"""Maps z ``[n, P]``, and maybe data, to log likelihoods and log priors ``[n]``."""


class Particles:
    """Particles of one island, and the captured step that moves them.

    Args:
        densities: Log likelihoods and log priors; a pure function of tensors.
        inputs: What it takes beside z, such as the data.
        count: Number of particles N.
        like: A point ``[P]``, for its dtype and device.
        name: What moves, for log lines.
        num_rows: Rows of data, by which blocks of particles are chosen.
        captured: Whether the step is recorded as a graph.
        apart: Whether it is written in C, where that can be.
        compiled: Whether the graph is compiled otherwise.
        strict: Whether a step that cannot be compiled is an error.

    Attributes:
        z: Positions ``[N, P]``.
        log_likelihood: At each ``[N]``.
        potential: U_b at each ``[N]``.
        grad: Its gradients ``[N, P]``.
        scale: Of each coordinate ``[P]``, by which momenta are whitened.
        compile_path: How a step computes: ``"apart"``, ``"compiled"``, ``"captured"`` or
            ``"eager"``.
        num_gradients: Gradients of one particle that were taken so far, over all of them.

    Raises:
        CaptureError: If ``strict`` and the step cannot be compiled.
    """

    def __init__(
        self,
        densities: Densities,
        inputs: tuple[Tensor, ...],
        count: int,
        like: Tensor,
        name: str,
        *,
        num_rows: int,
        captured: bool = True,
        apart: bool = False,
        compiled: bool = False,
        strict: bool = False,
    ) -> None:
        self._densities, self._inputs, self._num_rows = densities, inputs, num_rows
        self.z = like.detach().expand(count, -1).clone()
        self._momentum, self.grad = torch.zeros_like(self.z), torch.zeros_like(self.z)
        self.potential = self.z.new_zeros(count)
        self.log_likelihood, self._epsilon = (torch.zeros_like(self.potential) for _ in range(2))
        self._temperature, self.scale = like.new_full((), 0.5), torch.ones_like(like.detach())
        self.num_gradients = 0
        self._threads: ThreadPoolExecutor | None = None
        self._groups: list[list[Callable[[int], None]]] = []
        if apart and like.is_cpu and self._move_apart(name, captured=captured):
            self.compile_path = "apart"
            return
        step = self._captured(name, captured=captured, compiled=compiled, strict=strict)
        self._groups = [self._bind(step, ROWS_AT_ONCE if like.is_cpu else ROWS_ON_GPU)]
        step.is_strict = False  # a run that has begun ends, if slower
        self.compile_path = step.path

    def at(self, temperature: float) -> None:
        """Take U at this temperature, its gradients and the log likelihoods at the positions."""
        self._temperature.fill_(temperature)
        for zero in (self._momentum, self.grad, self._epsilon):
            zero.zero_()
        self._steps(1)

    def put(self, values: tuple[Tensor, ...], temperature: float) -> None:
        """Put what :meth:`values` gave back, of particles at this temperature."""
        for own, value in zip(self.values(), values, strict=True):
            own.copy_(value)
        self._temperature.fill_(temperature)

    def values(self) -> tuple[Tensor, ...]:
        """What a move depends on, in its tensors."""
        return self.z, self.grad, self.potential, self.log_likelihood, self.scale

    def move(self, step_size: float, num_steps: int, generator: torch.Generator) -> float:
        """One trajectory of each particle; the mean acceptance probability of all.

        Args:
            step_size: Of whitened momenta; particles differ by up to `JITTER`.
            num_steps: Leapfrog steps.
            generator: Of momenta, acceptance and jitter.
        """
        how: dict[str, Any] = {"dtype": self.z.dtype, "device": self.z.device}
        before = [tensor.clone() for tensor in self._moving()]
        self._momentum.copy_(torch.randn(self.z.shape, generator=generator, **how))
        uniform = torch.rand((2, len(self.z)), generator=generator, **how)
        start = self.potential + kinetic(self._momentum)
        self._epsilon.copy_(step_size * (JITTER * (2 * uniform[1] - 1)).exp())
        self._steps(num_steps)
        error = energy_error(self.potential + kinetic(self._momentum), start)
        accept = (-error).clamp(max=0).exp()  # [N]
        rejected = uniform[0] >= accept
        for now, old in zip(self._moving(), before, strict=True):
            now[rejected] = old[rejected]
        return float(accept.double().mean())

    def _steps(self, num_steps: int) -> None:
        """Move all particles by so many leapfrog steps."""

        def of(calls: list[Callable[[int], None]]) -> None:
            for call in calls:
                call(num_steps)

        if self._threads is None:
            for calls in self._groups:
                of(calls)
        else:
            with one_thread():
                for done in [self._threads.submit(of, calls) for calls in self._groups]:
                    done.result()
        self.num_gradients += num_steps * len(self.z)

    def _move_apart(self, name: str, *, captured: bool) -> bool:
        """Have the step in C, and threads for the particles; False where that cannot be."""
        step = self._captured(name, captured=captured, compiled=True, strict=True, in_c=True)
        num_threads = torch.get_num_threads()
        try:
            with one_thread():
                calls = self._bind(step, ROWS_APART)
        except CaptureError:
            logger.debug("%s is not written in C", name, exc_info=True)
            return False
        num_threads = min(num_threads, len(calls))
        self._groups = [calls[first::num_threads] for first in range(num_threads)]
        if num_threads > 1:
            self._threads = ThreadPoolExecutor(num_threads)
        return True

    def _captured(
        self, name: str, *, captured: bool, compiled: bool, strict: bool, in_c: bool = False
    ) -> Captured:
        return Captured(
            self._leapfrog,
            name,
            enabled=captured,
            compiled=compiled,
            num_state=len(self._moving()),
            strict=strict,
            compiler=compile_c if in_c else None,
        )

    def _bind(self, step: Captured, rows_at_once: int) -> list[Callable[[int], None]]:
        """Calls that move a block of particles each."""
        count = len(self.z)
        size = block_size(count, rows_at_once // self._num_rows)
        own = [*self._moving(), self._epsilon]
        shared = [self._temperature, self.scale, *self._inputs]
        return [
            step.bind(*(tensor.narrow(0, start, size) for tensor in own), *shared)
            for start in range(0, count, size)
        ]

    def _moving(self) -> list[Tensor]:
        return [self.z, self._momentum, self.grad, self.potential, self.log_likelihood]

    def _leapfrog(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """One step of each particle, as a pure function: what moves, from all that it takes."""
        z, p, grad, _, _, epsilon, temperature, scale, *inputs = tensors
        epsilon = epsilon.unsqueeze(-1)
        half = p - 0.5 * epsilon * scale * grad
        z = z + epsilon * scale * half
        with torch.enable_grad():
            z = z.detach().requires_grad_()
            likelihood, prior = self._densities(z, *inputs)
            potential = -(prior + temperature * likelihood)
            (grad,) = torch.autograd.grad(potential.sum(), z)
        p = half - 0.5 * epsilon * scale * grad
        return z.detach(), p, grad, potential.detach(), likelihood.detach()


def block_size(count: int, most: int) -> int:
    """The largest number up to ``most``, at least 1, by which a count can be divided.

    Example:
        >>> block_size(256, 100), block_size(7, 4), block_size(6, 0)
        (64, 1, 1)
    """
    return next(size for size in range(max(1, min(count, most)), 0, -1) if count % size == 0)
