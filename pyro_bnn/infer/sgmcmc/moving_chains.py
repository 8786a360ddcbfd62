"""Chains side by side: where they are, the captured step that moves them, their gradients."""

from __future__ import annotations

import functools
from typing import NamedTuple

import torch
from torch import Tensor

from pyro_bnn.capture import Captured
from pyro_bnn.capture.compilers import compiler_of
from pyro_bnn.infer.compiling import C_TIME, is_compiled
from pyro_bnn.infer.sgmcmc.batches import BatchesOfChains
from pyro_bnn.infer.sgmcmc.dynamics import Dynamics, Given, State
from pyro_bnn.infer.sgmcmc.gradient import difference, slope_of_all
from pyro_bnn.infer.steps.potentials import Potential
from pyro_bnn.program.terms import Batch


class Tuned(NamedTuple):
    """What the warm-up sets, and a step uses.

    Attributes:
        scale: Of each coordinate ``[P]``: z is the state's z times it.
        centre: Where the configurational temperature is taken from ``[C, P]``.
        variance: Variance of the gradient's entries over batches ``[C, P]``.
        anchor: Where control variates are taken ``[C, P]``, in z itself.
        anchor_slope: The gradient of all rows there ``[C, P]``.
    """

    scale: Tensor
    centre: Tensor
    variance: Tensor
    anchor: Tensor
    anchor_slope: Tensor


class MovingChains:
    """Chains of one method.

    Args:
        method: The options and the step.
        potential: U and its gradient.
        batches: Rows of the steps.
        whole: All rows.
        z: Where the chains start ``[C, P]``.
        seed: Of the noise.
        name: Of the step, for log lines.
        path: How the run that is resumed computes; None of a new one.
        num_steps: Steps of the whole run.

    Attributes:
        now: Tensors of the method, z ``[C, P]`` over the scale of each coordinate the first.
        tuned: What the warm-up has set.
        generator: Of the noise.
    """

    def __init__(
        self,
        method: Dynamics,
        potential: Potential,
        batches: BatchesOfChains,
        whole: Batch,
        z: Tensor,
        *,
        seed: int,
        name: str,
        path: str | None,
        num_steps: int,
    ) -> None:
        self.method, self.potential, self.batches, self._whole = method, potential, batches, whole
        self.generator = torch.Generator(z.device).manual_seed(seed)
        z, zero, one = z.detach(), torch.zeros_like(z), torch.ones_like(z[0])
        self.now: State = method.begin(z.clone(), zero, one)
        self.tuned = Tuned(one, z.clone(), zero, z.clone(), zero)
        self._noise, self._controls = torch.zeros_like(z), z.new_zeros(3)
        self._make_graphs(path, name, num_steps)

    def _make_graphs(self, path: str | None, name: str, num_steps: int) -> None:
        method = self.method
        of_sizes = functools.partial(is_compiled, method.compile, num_steps, self._noise.numel())
        # Inductor's graph alone serves several numbers of rows
        automatic = of_sizes() if self.batches.rows_vary else of_sizes(C_TIME)
        self._slope = Captured(
            lambda *args: (self.potential(*args)[1],), name, enabled=path != "eager"
        )
        x = len(self._tensors(self._whole)) - 2
        self._step = Captured(
            self._iterate,
            name,
            enabled=path != "eager",
            compiled=automatic if path is None else path == "compiled",
            rows={x: 1, x + 1: 1} if self.batches.rows_vary else {},
            num_state=len(self.now),
            strict=method.compile is True,
            compiler=None if self.batches.rows_vary else compiler_of(is_long=of_sizes()),
        )

    @property
    def z(self) -> Tensor:
        """Where the chains are ``[C, P]``."""
        return self.tuned.scale * self.now["z"]

    @property
    def path(self) -> str:
        """How a step computes."""
        return self._step.path

    def slope(self, z: Tensor, x: Tensor, y: Tensor) -> Tensor:
        """The gradient of U ``[C, P]`` at z, of rows."""
        (slope,) = self._slope(z, x, y)
        return slope

    def slope_of_all(self, z: Tensor) -> Tensor:
        """The gradient of U ``[C, P]`` at z, of all rows."""
        return slope_of_all(self.slope, z, self._whole)

    def set_anchor(self) -> None:
        """Take the control variates from where the chains are."""
        anchor = self.z
        self.tuned = self.tuned._replace(anchor=anchor, anchor_slope=self.slope_of_all(anchor))

    def normal(self) -> Tensor:
        """Normal numbers ``[C, P]``."""
        return torch.empty_like(self._noise).normal_(generator=self.generator)

    def advance(
        self, batch: Batch, step_size: float, temperature: float, *, adapts: bool = False
    ) -> tuple[Tensor, Tensor]:
        """Move all chains; the gradient ``[C, P]`` where they were, and temperatures ``[C, 2]``."""
        if temperature:
            self._noise.normal_(generator=self.generator)
        self._controls = self._controls.new_tensor([step_size, temperature, float(adapts)])
        slope, stats = self._step(*self._tensors(batch))
        return slope, stats

    def _tensors(self, batch: Batch) -> list[Tensor]:
        """What a step takes, in the order of :meth:`_iterate`."""
        scale, centre, variance, *anchors = self.tuned
        always = [*self.now.values(), self._noise, self._controls, scale, centre, variance]
        return [*always, *(anchors if self.method.control else ()), *batch]

    def _iterate(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """The gradient and temperatures where the chains are, then their new state."""
        left = iter(tensors)
        state = {name: next(left) for name in self.now}
        noise, controls, scale, centre, variance, *rest = left
        z = scale * state["z"]
        if self.method.control is None:
            _, slope = self.potential(z, *rest)
        else:
            anchor, anchor_slope, x, y = rest
            slope = anchor_slope + difference(self.potential, z, anchor, x, y)
        with torch.no_grad():
            slope = scale * slope
            configurational = ((state["z"] - centre) * slope).mean(-1)
            h, temperature, adapts = controls.unbind()
            step = Given(h, temperature, adapts, variance)
            new = self.method.step(state, slope, noise, step)
            kinetic = new.get("p", noise).square().mean(-1)
            stats = torch.stack([configurational, kinetic], -1)
        return (slope, stats, *(new[name] for name in self.now))
