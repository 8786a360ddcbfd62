r"""Pyro's NUTS kernel on one flat vector, with what ArviZ wants to know of every draw.

The tree of Hoffman & Gelman with multinomial choice of the proposal (Betancourt) is Pyro's, step
for step and random number for random number, and as in Stan a U-turn between two halves of a
trajectory ends it too: without that check one that went round is doubled again. It works with
momenta :math:`p = M^{-1/2} r \sim \mathcal N(0, I)`, so that a leapfrog step of size
:math:`\epsilon` is

.. math:: p \leftarrow p - \tfrac\epsilon2 s \odot \nabla U(z), \quad
          z \leftarrow z + \epsilon\, s \odot p, \quad
          p \leftarrow p - \tfrac\epsilon2 s \odot \nabla U(z), \qquad M^{-1} = \mathrm{diag}(s^2)

with one call of a captured gradient and no second pass through autograd.

References:
    Hoffman & Gelman, "The No-U-Turn Sampler: Adaptively Setting Path Lengths in Hamiltonian Monte
    Carlo", JMLR 2014, arXiv:1111.4246. Betancourt, "A Conceptual Introduction to Hamiltonian Monte
    Carlo", 2017, arXiv:1701.02434.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from pyro.infer.mcmc import NUTS
from torch import Tensor

from pyro_bnn.infer.adaptation import (
    FIRST_STEPS,
    FIRST_WINDOW,
    SITE,
    GradientMassMatrix,
    adaptation_windows,
)

ValueAndGrad = Callable[[Tensor], tuple[Tensor, ...]]

MAX_ENERGY_ERROR = 1_000.0  # nats above the start at which a trajectory counts as diverging
SHORT_DEPTH = 6  # of the trajectories before the first mass matrix


class Draw(NamedTuple):
    """One draw and its statistics.

    Attributes:
        z: The draw ``[P]``.
        lp: Log density of z up to the evidence.
        energy: Hamiltonian at the draw, with the momentum that led to it; at least -lp.
        tree_depth: How often the trajectory was doubled.
        n_steps: Leapfrog steps of the trajectory.
        acceptance_rate: Mean acceptance probability of its points.
        step_size: Step size of the integrator.
        diverging: Whether the trajectory ended in a divergence.
    """

    z: Tensor
    lp: float
    energy: float
    tree_depth: int
    n_steps: int
    acceptance_rate: float
    step_size: float
    diverging: bool


@dataclass(slots=True)
class _State:
    """A point of a trajectory: position, scaled momentum, gradient ``[P]``; potential, energy."""

    z: Tensor
    p: Tensor
    grad: Tensor
    potential: float
    energy: float


@dataclass(slots=True)
class _Tree:
    """A stretch of a trajectory: its ends, the point chosen in it, what joining it needs."""

    left: _State
    right: _State
    chosen: _State
    p_sum: Tensor
    log_weight: float
    turning: bool = False
    diverging: bool = False


class FlatNUTS:
    """The No-U-Turn sampler over a flat vector: Pyro's set-up and adaptation, lean trajectories.

    Args:
        value_and_grad: Maps z ``[P]`` to the potential, minus the log density, and its gradient.
        start: Where the chain starts, ``[P]``.
        warmup_steps: Draws during which step size and mass matrix adapt.
        target_accept: Acceptance rate that the step size is adapted to.
        max_tree_depth: Largest number of doublings of a trajectory.
        step_size: Step size to start from, or to keep where ``adapt`` is False.
        adapt: Whether step size and mass matrix adapt; else the matrix is the identity.
        check_halves: Whether each half with the first point of the other is checked for a U-turn.
    """

    def __init__(
        self,
        value_and_grad: ValueAndGrad,
        start: Tensor,
        *,
        warmup_steps: int,
        target_accept: float = 0.8,
        max_tree_depth: int = 10,
        step_size: float = 1.0,
        adapt: bool = True,
        check_halves: bool = True,
    ) -> None:
        differentiable: Any = _Potential

        def potential(values: dict[str, Tensor]) -> Any:
            return differentiable.apply(values[SITE], value_and_grad)

        kernel: Any = NUTS(
            potential_fn=potential,
            step_size=step_size,
            adapt_step_size=adapt,
            adapt_mass_matrix=adapt,
            target_accept_prob=target_accept,
            max_tree_depth=max_tree_depth,
        )
        if adapt:
            kernel.mass_matrix_adapter = GradientMassMatrix()
        kernel.initial_params = {SITE: start.detach().clone()}
        with torch.enable_grad():
            kernel.setup(warmup_steps)
        if adapt:
            kernel._adapter._adaptation_schedule = adaptation_windows(warmup_steps)
        self._kernel = kernel
        self._value_and_grad = value_and_grad
        self._max_tree_depth = max_tree_depth
        self._check_halves = check_halves
        self._warmup_steps = warmup_steps if adapt else 0
        self._num_draws = 0
        z, value, grads = kernel._fetch_from_cache()
        self._position = (z[SITE], float(value), grads[SITE])
        self._scale = torch.ones_like(start)
        self._num_steps, self._sum_accept, self._initial_energy = 0, 0.0, 0.0

    def draw(self) -> Draw:
        """The next draw of the chain."""
        kernel = self._kernel
        step_size = float(kernel.step_size)
        self._scale = kernel.inverse_mass_matrix[(SITE,)].sqrt()  # [P]
        z, potential, grad = self._position
        p = torch.normal(torch.zeros_like(z), torch.ones_like(z))
        energy = potential + 0.5 * float(p.dot(p))
        self._num_steps, self._sum_accept, self._initial_energy = 0, 0.0, energy
        with torch.no_grad():
            tree, depth = self._trajectory(_State(z, p, grad, potential, energy), step_size)
        end, accept = tree.chosen, self._sum_accept / self._num_steps
        self._position = (end.z, end.potential, end.grad)
        self._num_draws += 1
        if self._num_draws <= self._warmup_steps:
            with torch.enable_grad():
                kernel._adapter.step(
                    self._num_draws, {SITE: end.z}, torch.tensor(accept), {SITE: end.grad}
                )
        return Draw(
            z=end.z,
            lp=-end.potential,
            energy=end.energy,
            tree_depth=depth,
            n_steps=self._num_steps,
            acceptance_rate=accept,
            step_size=step_size,
            diverging=tree.diverging,
        )

    def _trajectory(self, start: _State, step_size: float) -> tuple[_Tree, int]:
        """Double the trajectory until it turns, diverges or is deep enough."""
        tree = _Tree(start, start, start, start.p, 0.0)
        # warm-up needs no exact trees: the first ones, with an untuned step, are kept short
        short = self._num_draws < min(FIRST_STEPS + FIRST_WINDOW, self._warmup_steps)
        max_depth = min(SHORT_DEPTH, self._max_tree_depth) if short else self._max_tree_depth
        depth = 0
        while depth < max_depth:
            forward = float(torch.bernoulli(start.z.new_tensor(0.5))) == 1
            end = tree.right if forward else tree.left
            new = self._build(end, step_size if forward else -step_size, depth)
            if new.turning or new.diverging:
                tree.diverging = new.diverging
                break
            depth += 1
            accept = math.exp(min(0.0, new.log_weight - tree.log_weight))
            chosen = new.chosen if _uniform(start.z) < accept else tree.chosen
            tree = self._join(tree, new, chosen) if forward else self._join(new, tree, chosen)
            if tree.turning:
                break
        return tree, depth

    def _build(self, end: _State, step_size: float, depth: int) -> _Tree:
        """A tree of 2^depth points that continues a trajectory from its end."""
        if depth == 0:
            return self._leaf(end, step_size)
        near = self._build(end, step_size, depth - 1)
        if near.turning or near.diverging:
            return near
        forward = step_size > 0
        far = self._build(near.right if forward else near.left, step_size, depth - 1)
        log_weight = _log_add_exp(near.log_weight, far.log_weight)
        probability = near.p_sum.new_tensor(math.exp(far.log_weight - log_weight))
        chosen = far.chosen if float(torch.bernoulli(probability)) == 1 else near.chosen
        if far.turning or far.diverging:
            return far  # ends the trajectory: nobody looks at its points
        return self._join(near, far, chosen) if forward else self._join(far, near, chosen)

    def _join(self, left: _Tree, right: _Tree, chosen: _State) -> _Tree:
        """Two neighbouring trees as one."""
        p_sum = left.p_sum + right.p_sum
        turning = _is_turning(left.left.p, right.right.p, p_sum)
        if self._check_halves and not turning and left.left is not left.right:
            turning = _is_turning(left.left.p, right.left.p, left.p_sum + right.left.p) or (
                _is_turning(left.right.p, right.right.p, right.p_sum + left.right.p)
            )
        log_weight = _log_add_exp(left.log_weight, right.log_weight)
        return _Tree(left.left, right.right, chosen, p_sum, log_weight, turning)

    def _leaf(self, end: _State, step_size: float) -> _Tree:
        """One leapfrog step."""
        scale = self._scale
        p = torch.addcmul(end.p, scale, end.grad, value=-0.5 * step_size)
        z = torch.addcmul(end.z, scale, p, value=step_size)
        value, grad = self._value_and_grad(z)
        p = torch.addcmul(p, scale, grad, value=-0.5 * step_size)
        potential = float(value)
        energy = potential + 0.5 * float(p.dot(p))
        error = energy - self._initial_energy
        if not math.isfinite(error):
            error = math.inf
        self._num_steps += 1
        self._sum_accept += math.exp(min(0.0, -error))
        state = _State(z, p, grad, potential, energy)
        return _Tree(state, state, state, p, -error, diverging=error > MAX_ENERGY_ERROR)


class _Potential(torch.autograd.Function):
    """A potential whose gradient is known, for the parts of Pyro that ask autograd for it."""

    @staticmethod
    def forward(ctx: Any, z: Tensor, value_and_grad: ValueAndGrad) -> Tensor:
        value, grad = value_and_grad(z.detach())
        ctx.save_for_backward(grad)
        return value

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> tuple[Tensor, None]:
        (grad,) = ctx.saved_tensors
        return cotangent * grad, None


def _is_turning(left: Tensor, right: Tensor, p_sum: Tensor) -> bool:
    """Whether either end moves back towards the rest (Betancourt, section A.4.2).

    Args:
        left: Momentum at the left end ``[P]``.
        right: Momentum at the right end ``[P]``.
        p_sum: Sum of the momenta from end to end ``[P]``.
    """
    rho = torch.sub(p_sum, left + right, alpha=0.5)
    return float(left.dot(rho)) <= 0 or float(right.dot(rho)) <= 0


def _uniform(like: Tensor) -> float:
    return float(torch.rand((), dtype=like.dtype, device=like.device))


def _log_add_exp(a: float, b: float) -> float:
    high, low = max(a, b), min(a, b)
    return high + math.log1p(math.exp(low - high))
