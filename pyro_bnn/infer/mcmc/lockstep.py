r"""Markov chains in lockstep: one batch, one captured step for all of them, no chain ever waits.

Every step moves each chain by one leapfrog step. A chain whose trajectory ends hands over its draw
and starts the next one in the same step. Step sizes are each chain's own, adapted in the same step:
updates pooled over chains whose trajectories end at different times would favour the short, bad
ones. The mass matrix is one for all chains, unless they sample densities of their own.

Chains that no longer adapt need no look after every step, which in a small network costs a quarter
of it: the graph itself then notes the draws of a block of steps, and takes the momenta of the
trajectories that follow from a supply.

How a step computes is of the two classes in :mod:`~pyro_bnn.infer.mcmc.chains`.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map, tree_structure, tree_unflatten

from pyro_bnn.capture.captured import Captured
from pyro_bnn.errors import FileFormatError
from pyro_bnn.infer.mcmc import step_size as averaging
from pyro_bnn.infer.mcmc.kernel import Kernel
from pyro_bnn.infer.mcmc.leapfrog import Start
from pyro_bnn.infer.mcmc.mass import Mass
from pyro_bnn.infer.mcmc.step_size import DualAveraging
from pyro_bnn.infer.steps.potentials import Potential

UNIFORM_STEPS = 256  # whose uniform numbers are drawn at once
# of the draws of a block; where they would take more, a look after every step
BLOCK_BYTES = 1 << 25


class Energy(NamedTuple):
    """What the chains move by.

    Attributes:
        potential: U and its gradient at z ``[C, P]`` and the inputs; a pure function of tensors.
        inputs: What it takes beside z, such as the data.
        by_chain: Numbers of the inputs that have a row a chain.
    """

    potential: Potential
    inputs: Sequence[Tensor] = ()
    by_chain: Sequence[int] = ()


class Graphs(NamedTuple):
    """How a step is to compute.

    Attributes:
        name: What is sampled, for log lines.
        captured: Whether the step is recorded as a graph.
        compiled: Whether that graph is compiled.
        strict: Whether a step that cannot be compiled is an error.
        apart: Whether chains may be moved apart.
    """

    name: str
    captured: bool = True
    compiled: bool = False
    strict: bool = False
    apart: bool = True


class Log(NamedTuple):
    """Draws of a block of B steps, noted in the graph.

    Attributes:
        num_drawn: How many there are of each chain ``[C]``.
        z: The draws ``[C, B + 1, P]``; the last one takes what is unused.
        stats: Their statistics ``[C, B + 1, len(STATISTICS)]``.
        grad: Gradients of U at them ``[C, B + 1, P]``.
    """

    num_drawn: Tensor
    z: Tensor
    stats: Tensor
    grad: Tensor


class BlockDraws(NamedTuple):
    """Draws of a block of steps, a chain's in their order.

    Attributes:
        places: Places of their chains in the batch ``[K]``, ascending.
        z: The draws ``[K, P]``.
        stats: Statistics and step sizes ``[K, len(STATISTICS) + 1]``.
        grad: Gradients of U at them ``[K, P]``.
    """

    places: NDArray[np.int64]
    z: Tensor
    stats: NDArray[np.float64]
    grad: Tensor


class Lockstep(ABC):
    """Chains of one kernel, moved by one captured step; a subclass says how.

    Args:
        kernel: The state machine.
        energy: What the chains move by.
        starts: Where the chains start ``[C, P]``.
        mass: First mass matrix; later ones have its shapes.
        limit: Length of trajectories, as the kernel counts: most points, or mean steps.
        target_accept: Acceptance rate, or other ``AIM`` of the kernel, that step sizes aim at.
        seed: Seed of momenta and choices.
        graphs: How a step is to compute.

    Attributes:
        chains: Numbers of the chains in the batch ``[C]``; all, until some are dropped.
        columns: Names of the statistics of a draw; the last is its step size.
        aim: That by which step sizes are tuned.
        mass: The mass matrix.
        step_size: Step size of each ``[C]``.
        compile_path: How a step computes: ``"apart"``, ``"compiled"``, ``"captured"`` or
            ``"eager"``.
        is_apart: Whether chains are moved apart; they then adapt in blocks as well.
        block: How many steps :meth:`steps` takes at most.
    """

    is_apart: ClassVar[bool]

    def __init__(
        self,
        kernel: Kernel,
        energy: Energy,
        starts: Tensor,
        mass: Mass,
        *,
        limit: int,
        target_accept: float,
        seed: int,
        graphs: Graphs,
    ) -> None:
        self._kernel, self._energy, self._inputs = kernel, energy, tuple(energy.inputs)
        self._like, self._limit, self._target = starts, limit, target_accept
        self.columns, self.aim = (*kernel.STATISTICS, "step_size"), kernel.AIM
        self._aim = self.columns.index(self.aim)
        self._generator = torch.Generator(starts.device).manual_seed(seed)
        value, grad = (v.detach() for v in energy.potential(starts, *self._inputs))
        self.chains: NDArray[np.int64] = np.arange(len(starts))
        self.mass = mass
        self._uniforms = self._uniform_block()
        self._turn = torch.zeros(len(starts), dtype=torch.int64, device=starts.device)
        self._points = torch.tensor(limit, device=starts.device)
        momentum = self._normal(len(starts))
        self._state = kernel.begin((starts, value, grad), momentum, self._uniforms[:, 0], limit)
        self.step_size = torch.ones_like(value)
        self._averages = averaging.start(self.step_size)
        self._adapting = torch.ones_like(value, dtype=torch.bool)
        self._make_block(self._longest_block())
        self._captured = self._record(graphs)
        self._bind()
        self.compile_path = "apart" if self.is_apart else self._captured.path

    # To be written by a subclass

    @abstractmethod
    def _longest_block(self) -> int:
        """How many steps a block may have, if their draws fit into memory."""

    @abstractmethod
    def _record(self, graphs: Graphs) -> Captured:
        """The step as a graph that writes over its state."""

    @abstractmethod
    def _bind_to(self, tensors: Sequence[Tensor]) -> None:
        """Bind the graph to the tensors of a step."""

    @abstractmethod
    def _advance(self, num_steps: int) -> None:
        """Move all chains by the uniform numbers that are left."""

    @abstractmethod
    def serves(self, num_chains: int) -> bool:
        """Whether the step is there for so many chains, without another graph."""

    # Moving

    def _make_block(self, block: int) -> None:
        """Momenta and a log for a block of steps, as far as memory goes."""
        starts = self._like
        self.block = block if block * starts.nbytes <= BLOCK_BYTES else 1
        self._momenta = self._supply()
        noted = starts.new_zeros(len(starts), self.block + 1, starts.shape[-1])
        self._log = Log(
            torch.zeros(len(starts), dtype=torch.int64, device=starts.device),
            noted,
            starts.new_zeros(len(starts), self.block + 1, len(self._kernel.STATISTICS)),
            torch.zeros_like(noted),
        )

    def _bind(self) -> None:
        turn = self._turn.clone()
        self._turn.zero_()  # a trial of a new graph finds uniform numbers, though all are used up
        self._bind_to(self._tensors())
        self._turn.copy_(turn)

    def _num_state(self) -> int:
        """How many tensors a step overwrites."""
        return len(tree_leaves(self._parts()[0]))

    def _by_chain(self) -> list[int]:
        """Which tensors of a step have a row a chain."""
        num_state = self._num_state()
        first_input = len(self._tensors()) - len(self._inputs)
        of_mass = [num_state + 3] if self.mass.scale.ndim == 2 else []
        of_inputs = [first_input + i for i in self._energy.by_chain]
        return [*range(num_state + 3), *of_inputs, *of_mass]

    def steps(self, num_steps: int) -> BlockDraws:
        """Move all chains by a block of steps, or fewer; what they drew meanwhile."""
        self._move(min(num_steps, self.block))
        log, count = self._log, _on_host(self._log.num_drawn)
        places = np.repeat(np.arange(len(count)), count)
        turns = np.arange(len(places)) - np.repeat(count.cumsum() - count, count)
        noted = self._at(places), self._at(turns)
        stats = _on_host(log.stats[noted]).astype(np.float64)
        drawn = BlockDraws(
            places,
            log.z[noted],
            np.column_stack([stats, _on_host(self.step_size)[places]]),
            log.grad[noted],
        )
        self._momenta[noted] = self._normal(len(places))
        log.num_drawn.zero_()
        return drawn

    def _move(self, num_steps: int) -> None:
        while num_steps:
            turn = int(self._turn[0])
            if turn == UNIFORM_STEPS:
                self._uniforms.copy_(self._uniform_block())
                self._turn.zero_()
                turn = 0
            count = min(num_steps, UNIFORM_STEPS - turn)
            self._advance(count)
            num_steps -= count

    def restart(self, mass: Mass, *, limit: int) -> None:
        """Start all trajectories over from the latest draws, with step sizes found anew.

        Args:
            mass: The new mass matrix.
            limit: Of the trajectories from now on, as the kernel counts.
        """
        for old, new in zip(_tensors_of(self.mass), _tensors_of(mass), strict=True):
            old.copy_(new)
        self._points.fill_(limit)
        everyone = torch.arange(len(self.chains), device=self._like.device)
        start = self._kernel.position(self._state, everyone)
        momentum, turn = self._normal(len(everyone)), self._turn.clone()
        self._adapting.zero_()

        def energy_error(step_size: Tensor) -> Tensor:
            self._begin(everyone, start, momentum, step_size)
            self._turn.copy_((turn - 1).clamp(min=0))  # what these steps choose is not used
            self._advance(1)
            self._turn.copy_(turn)
            of_draws = self._state.stats[:, self._aim]
            aim = torch.where(self._state.ended, of_draws, self._state.accept_sum)
            if self._kernel.ORDER is None:
                return -aim.log()
            return -math.log(averaging.CROSSING) * aim / self._target  # crosses at the target

        step_size = averaging.reasonable(energy_error, self.step_size.clone())
        if self._kernel.ORDER is not None and not self._energy.by_chain:
            # of one step's error, which may be small by chance; too long a step is not rejected
            step_size = torch.minimum(step_size, step_size.median())
        self._begin(everyone, start, self._normal(len(everyone)), step_size)
        self._momenta.copy_(self._supply())
        for old, new in zip(self._averages, averaging.start(step_size), strict=True):
            old.copy_(new)
        self._adapting.fill_(value=True)

    def lengthen(self, limit: int) -> None:
        """Set the length of trajectories, as the kernel counts, of those that begin from now on."""
        self._points.fill_(limit)

    def write(self, **values: float) -> None:
        """Write numbers into fields of the kernel's state, of all chains."""
        for name, value in values.items():
            getattr(self._state, name).fill_(value)

    def fix(self, places: NDArray[np.int64]) -> None:
        """End the adaptation of the step sizes of chains at places in the batch."""
        at = self._at(places)
        self.step_size[at] = self._final()[at]
        self._adapting[at] = False

    def keep(self, chosen: NDArray[np.int64]) -> None:
        """Go on with the chains at these places in the batch alone."""
        self.chains, places = self.chains[chosen], self._at(chosen)
        moving, per_chain, *_ = self._parts()
        self._state, self._averages, self.step_size, self._turn, self._log = tree_map(
            lambda value: value[places], moving
        )
        self._adapting, self._momenta, self._uniforms = (value[places] for value in per_chain)
        if self.mass.scale.ndim == 2:
            self.mass = Mass(self.mass.scale[places])
        self._inputs = tuple(
            value[places] if i in self._energy.by_chain else value
            for i, value in enumerate(self._inputs)
        )
        self._bind()

    # Between two steps

    def state(self) -> dict[str, Any]:
        """All that the next steps depend on beside what the chains were made of, in its tensors."""
        return {
            "chains": torch.from_numpy(self.chains),
            "changing": self._changing(),
            "uniforms": self._uniforms,
            "num_used": int(self._turn[0]),
            "generator": self._generator.get_state(),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from a state, in chains made like those it is of: the next steps have its bits.

        The graph stays that of all chains, whichever are left.

        Raises:
            FileFormatError: If the state is of other chains.
        """
        chosen = state["chains"].numpy()
        distinct = set(chosen.tolist())
        if not distinct <= set(range(len(self.chains))) or len(distinct) < len(chosen):
            raise FileFormatError(f"the state is of chains {chosen}, not of {len(self.chains)}")
        if len(chosen) < len(self.chains):
            self.keep(chosen)
        present, saved = self._changing(), state["changing"]
        theirs = {name: (value.shape, value.dtype) for name, value in saved.items()}
        if theirs != {name: (value.shape, value.dtype) for name, value in present.items()}:
            raise FileFormatError("the state is of other chains: its tensors have other shapes")
        uniforms, num_used = state["uniforms"], state["num_used"]
        fits = (uniforms.shape, uniforms.dtype) == (self._uniforms.shape, self._uniforms.dtype)
        if not fits or type(num_used) is not int or not 0 <= num_used <= UNIFORM_STEPS:
            raise FileFormatError("the state is of other chains: its uniform numbers do not fit")
        for name, value in present.items():
            value.copy_(saved[name])
        is_limit = 0 < int(self._points) <= self._limit
        if not is_limit or not self._kernel.is_possible(self._state, self._limit):
            raise FileFormatError("the state has trajectories that would never end")
        self._uniforms.copy_(uniforms)
        self._turn.fill_(num_used)
        self._generator.set_state(state["generator"])

    def _changing(self) -> dict[str, Tensor]:
        """Tensors that change from step to step or from window to window, by name."""
        parts = {"kernel": self._state, "averages": self._averages, "mass": self.mass}
        named = {
            f"{part}.{name}": value
            for part, values in parts.items()
            for name, value in values._asdict().items()
            if value is not None
        }
        own = {"step_size": self.step_size, "adapting": self._adapting, "points": self._points}
        return {**named, **own, "momenta": self._momenta}

    def _at(self, places: NDArray[np.int64]) -> Tensor:
        return torch.from_numpy(places).to(self._like.device)

    # The step as a pure function

    def _parts(self) -> tuple[Any, ...]:
        """What a step takes: what it overwrites; what else has a row a chain; what they share."""
        moving = self._state, self._averages, self.step_size, self._turn, self._log
        per_chain = self._adapting, self._momenta, self._uniforms
        return moving, per_chain, _tensors_of(self.mass), self._points, self._inputs

    def _tensors(self) -> list[Tensor]:
        return tree_leaves(self._parts())

    def _iterate(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """State, averages, step sizes and log after a step, from all that it takes."""
        parts = tree_unflatten(tensors, tree_structure(self._parts()))
        moving, per_chain, mass, points, inputs = parts
        state, averages, step_size, turn, log = moving
        adapting, momenta, uniforms = per_chain

        def potential(z: Tensor) -> tuple[Tensor, Tensor]:
            return self._energy.potential(z, *inputs)

        chains = torch.arange(step_size.shape[0], device=step_size.device)
        momentum = momenta[chains, log.num_drawn]
        uniform = uniforms[chains, turn]
        state = self._kernel.step(
            state, potential, Mass(*mass), step_size, momentum, uniform, points
        )
        moved = state.ended & adapting
        averages = self._adapted(averages, state.stats[:, self._aim], moved)
        step_size = torch.where(moved, averages.log_step.exp(), step_size)
        place = chains, torch.where(state.ended, log.num_drawn, self.block)
        z, _, grad = self._kernel.position(state, chains)
        log = Log(
            log.num_drawn + state.ended,
            log.z.index_put(place, z),
            log.stats.index_put(place, state.stats),
            log.grad.index_put(place, grad),
        )
        return tuple(tree_leaves((state, averages, step_size, turn + 1, log)))

    def _adapted(self, averages: DualAveraging, aim: Tensor, moved: Tensor) -> DualAveraging:
        """Averages after trajectories of the chains that moved, by their ``AIM`` ``[C]``."""
        order = self._kernel.ORDER
        if order is None:
            return averaging.update(averages, aim, moved, self._target)
        return averaging.update_by_power(averages, aim, moved, self._target, order)

    def _final(self) -> Tensor:
        """Step sizes as adapted so far ``[C]``; chains of one density share what they found."""
        if self._energy.by_chain:
            return averaging.final(self._averages)
        order = self._kernel.ORDER
        return averaging.shared(self._averages, 2 if order is None else -order)

    def _begin(
        self,
        at: Tensor,
        start: Start,
        momentum: Tensor,
        step_size: Tensor,
    ) -> None:
        """Write the start of trajectories of chains at places ``[K]`` into the state."""
        uniform = self._uniforms[at, max(int(self._turn[0]) - 1, 0)]  # of the last step
        state = self._kernel.begin(start, momentum, uniform, self._limit)
        for old, new in zip(self._state, state, strict=True):
            old[at] = new
        self.step_size[at] = step_size
        self._log.num_drawn[at] = 0

    def _supply(self) -> Tensor:
        """Momenta of the trajectories that chains start in a block ``[C, B, P]``."""
        return torch.stack([self._normal(len(self.chains)) for _ in range(self.block)], 1)

    def _normal(self, num_chains: int) -> Tensor:
        like = self._like
        return torch.randn(
            num_chains,
            like.shape[-1],
            dtype=like.dtype,
            device=like.device,
            generator=self._generator,
        )

    def _uniform_block(self) -> Tensor:
        """Uniform numbers of each chain ``[C, UNIFORM_STEPS, UNIFORMS]``."""
        like = self._like
        numbers = torch.rand(
            UNIFORM_STEPS,
            len(self.chains),
            self._kernel.UNIFORMS,
            dtype=like.dtype,
            device=like.device,
            generator=self._generator,
        )
        return numbers.transpose(0, 1).contiguous()


def _on_host(values: Tensor) -> NDArray[Any]:
    """An array with the values; of a tensor on the CPU a view."""
    array: NDArray[Any] = values.cpu().numpy()
    return array


def _tensors_of(mass: Mass) -> list[Tensor]:
    """The tensors that a mass matrix has."""
    return [value for value in mass if value is not None]
