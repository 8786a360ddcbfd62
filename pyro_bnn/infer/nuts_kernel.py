r"""Pyro's NUTS kernel on one flat vector, with what ArviZ wants to know of every draw.

The tree of Hoffman & Gelman with multinomial choice of the proposal (Betancourt) is Pyro's, step
for step and random number for random number; what differs is bookkeeping. It works with momenta
:math:`p = M^{-1/2} r \sim \mathcal N(0, I)`, so that a leapfrog step of size :math:`\epsilon` is

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

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from pyro.infer.mcmc import NUTS
from pyro.infer.mcmc.adaptation import BlockMassMatrix, adapt_window
from pyro.ops.welford import WelfordCovariance
from torch import Tensor

ValueAndGrad = Callable[[Tensor], tuple[Tensor, ...]]

SITE = "z"
MAX_ENERGY_ERROR = 1_000.0  # nats above the start at which a trajectory counts as diverging
FIRST_STEPS = 10  # before the first mass matrix is estimated
FIRST_WINDOWS = (10, 20)  # draws; each further window is twice as long
LAST_STEPS = 50  # for the final step size
SHORT_STEPS = FIRST_STEPS + FIRST_WINDOWS[0]  # warm-up steps with shallow trees
SHORT_DEPTH = 6
SMALLEST, LARGEST = 1e-10, 1e10  # bounds of the inverse mass matrix


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
        short = self._num_draws < min(SHORT_STEPS, self._warmup_steps)
        max_depth = min(SHORT_DEPTH, self._max_tree_depth) if short else self._max_tree_depth
        depth = 0
        while depth < max_depth:
            forward = float(torch.bernoulli(tree.left.z.new_tensor(0.5))) == 1
            end = tree.right if forward else tree.left
            new = self._build(end, step_size if forward else -step_size, depth)
            if forward:
                tree.right = new.right
            else:
                tree.left = new.left
            if new.turning or new.diverging:
                tree.diverging = new.diverging
                break
            depth += 1
            if _uniform(start.z) < math.exp(min(0.0, new.log_weight - tree.log_weight)):
                tree.chosen = new.chosen
            tree.p_sum = tree.p_sum + new.p_sum
            if _is_turning(tree):
                break
            tree.log_weight = _log_add_exp(tree.log_weight, new.log_weight)
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
        left, right = (near.left, far.right) if forward else (far.left, near.right)
        tree = _Tree(left, right, chosen, near.p_sum + far.p_sum, log_weight)
        tree.turning = far.turning or _is_turning(tree)
        tree.diverging = far.diverging
        return tree

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
        if math.isnan(error):
            error = math.inf
        self._num_steps += 1
        self._sum_accept += math.exp(min(0.0, -error))
        state = _State(z, p, grad, potential, energy)
        return _Tree(state, state, state, p, -error, diverging=error > MAX_ENERGY_ERROR)


class GradientMassMatrix(BlockMassMatrix):
    r"""Diagonal mass matrix from the draws and their gradients, a window at a time.

    .. math:: M^{-1}_j = \sqrt{ \mathrm{Var}(z_j) / \mathrm{Var}(\partial_j U) }

    Exact for independent Gaussians like the plain variance, but steadier from few draws, because
    noise common to both variances cancels; the rule of nutpie.

    References:
        Seyboldt, Carlson & Carpenter, "Preconditioning Hamiltonian Monte Carlo by Minimizing
        Fisher Divergence", 2026, arXiv:2603.18845.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._draws: Any = WelfordCovariance()
        self._gradients: Any = WelfordCovariance()

    def update(self, z: dict[str, Tensor], z_grad: dict[str, Tensor]) -> None:
        """Take in one draw and its gradient."""
        self._draws.update(z[SITE])
        self._gradients.update(z_grad[SITE])

    def end_adaptation(self) -> None:
        """Set the mass matrix by the window's draws, and forget them."""
        variance = self._draws.get_covariance(regularize=False)
        gradient_variance = self._gradients.get_covariance(regularize=False)
        ratio = (variance / gradient_variance).sqrt()
        known = ratio.isfinite() & (ratio > 0)  # an entry that never moved keeps its old mass
        old = self.inverse_mass_matrix[(SITE,)]
        self.inverse_mass_matrix = {
            (SITE,): torch.where(known, ratio, old).clamp(SMALLEST, LARGEST)
        }
        self._draws.reset()
        self._gradients.reset()


def adaptation_windows(warmup_steps: int) -> list[Any]:
    """Pyro's list of warm-up windows: step size only, mass matrix windows, step size only.

    Windows of 10, 20, 40, ... draws replace the identity matrix early, where the first trees are
    long; a rest too short for the next window goes to the last one. The last 50 steps, a sixth of
    a shorter warm-up, tune the step size alone.

    Args:
        warmup_steps: Number of warm-up steps.

    Example:
        >>> [(window.start, window.end) for window in adaptation_windows(300)]
        [(0, 9), (10, 19), (20, 39), (40, 79), (80, 249), (250, 299)]
    """
    if warmup_steps < SHORT_STEPS:
        return [adapt_window(0, warmup_steps - 1)]
    last = warmup_steps - min(LAST_STEPS, max(1, warmup_steps // 6))
    edges, length = [0, FIRST_STEPS], FIRST_WINDOWS[0]
    while edges[-1] + 3 * length <= last:
        edges.append(edges[-1] + length)
        length *= 2
    edges += [last, warmup_steps]
    return [adapt_window(a, b - 1) for a, b in itertools.pairwise(edges)]


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


def _is_turning(tree: _Tree) -> bool:
    """Whether either end moves back towards the rest (Betancourt, section A.4.2)."""
    left, right = tree.left.p, tree.right.p
    rho = torch.sub(tree.p_sum, left + right, alpha=0.5)
    return float(left.dot(rho)) <= 0 or float(right.dot(rho)) <= 0


def _uniform(like: Tensor) -> float:
    return float(torch.rand((), dtype=like.dtype, device=like.device))


def _log_add_exp(a: float, b: float) -> float:
    high, low = max(a, b), min(a, b)
    return high + math.log1p(math.exp(low - high))
