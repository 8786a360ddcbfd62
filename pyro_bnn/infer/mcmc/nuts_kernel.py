r"""The No-U-Turn sampler as a state machine: one leapfrog step of every chain at a time.

The recursion of Hoffman & Gelman builds a trajectory by doubling: a subtree of :math:`2^d` new
points at one of its ends, then the choice of a point, then the question whether the whole has
turned. Here that is a loop without recursion. A call of :func:`step` moves every chain by one
leapfrog step, adds the new point to the subtree that the chain is building, and where the subtree
is complete joins it to the trajectory; where the trajectory ends its chosen point is a draw, and
the next trajectory starts at once, so that no chain waits for another:

    step:   new point at the end that grows                      grow
            weigh it, maybe choose it                            add
            has a finished subtree turned?                       subtree_turns
            if the subtree is complete: join, choose, turned?    join
            if the trajectory is over: a draw, and start anew    restart

A subtree of points 0, 1, 2, ... contains smaller ones that end at its odd points: at point n, those
of :math:`2^k` points for every k up to the number of trailing ones of n. Their first points are
held in slots: an even point n goes to slot popcount(n), and at an odd point the slots of all
subtrees that end there lie side by side. So a subtree of :math:`2^d` points needs d slots.

Momenta are whitened, :math:`p = L^\top r \sim \mathcal N(0, I)` with :math:`M^{-1} = L L^\top`, and
``sum`` is always a sum of momenta over points. Shapes: chains C, positions P, slots D.

References:
    Hoffman & Gelman, "The No-U-Turn Sampler", JMLR 2014, arXiv:1111.4246. Betancourt, "A Conceptual
    Introduction to Hamiltonian Monte Carlo", 2017, arXiv:1701.02434 (multinomial choice, U-turns by
    sums of momenta). Lao et al., "tfp.mcmc: Modern Markov Chain Monte Carlo Tools Built for Modern
    Hardware", 2020, arXiv:2002.01184 (slots instead of a recursion).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from pyro_bnn.infer.mcmc.leapfrog import (
    MAX_ENERGY_ERROR,
    Point,
    Start,
    energy_error,
    kinetic,
    leapfrog,
)
from pyro_bnn.infer.mcmc.mass import Mass
from pyro_bnn.infer.steps.potentials import Potential

MAX_DEPTH = 20  # of trees: a million steps


class Tree(NamedTuple):
    """Where every chain stands in its trajectory. Written in place by a captured :func:`step`.

    The two ends lie at index 0 and 1 of ``end_*``. Of ``point_*``, index ``chosen`` is the point
    chosen of the trajectory and ``1 - chosen`` that of the subtree; index 2 takes what is unused.

    Attributes:
        end_z: Positions of the ends ``[C, 2, P]``; likewise momenta ``end_p``, gradients of the
            potential ``end_grad``. While there is one point, it lies at the end that does not
            grow.
        point_z: Chosen positions ``[C, 3, P]``, their gradients ``point_grad``.
        point_potential: U at them ``[C, 3]``, ``point_energy`` with the kinetic energy.
        tree_sum: Sum of momenta of the trajectory ``[C, P]``; of the subtree ``subtree_sum``.
        slot_p: Momentum of the first point of unfinished subtrees ``[C, D + 1, P]``; of the point
            before it ``slot_before``; sum of the points before it, within the subtree,
            ``slot_sum``. The last slot takes what is unused.
        slot_turned: Whether the points from the slot before to this one have turned
            ``[C, D + 1]``.
        growing: Which end grows ``[C]``, 0 or 1.
        size: Points of the trajectory ``[C]``, a power of 2.
        leaf: Points of the subtree so far ``[C]``.
        chosen: Index of the trajectory's point ``[C]``.
        tree_weight: Log sum of weights of the trajectory ``[C]``; of the subtree
            ``subtree_weight``.
        start_energy: Energy at the start of the trajectory ``[C]``.
        accept_sum: Sum of acceptance probabilities ``[C]``.
        num_steps: Leapfrog steps of the trajectory ``[C]``.
        ended: Whether the last step ended a trajectory ``[C]``.
        stats: Of the last trajectory that ended ``[C, 6]``: see ``STATISTICS``.
    """

    end_z: Tensor
    end_p: Tensor
    end_grad: Tensor
    point_z: Tensor
    point_grad: Tensor
    point_potential: Tensor
    point_energy: Tensor
    tree_sum: Tensor
    subtree_sum: Tensor
    slot_p: Tensor
    slot_before: Tensor
    slot_sum: Tensor
    slot_turned: Tensor
    growing: Tensor
    size: Tensor
    leaf: Tensor
    chosen: Tensor
    tree_weight: Tensor
    subtree_weight: Tensor
    start_energy: Tensor
    accept_sum: Tensor
    num_steps: Tensor
    ended: Tensor
    stats: Tensor


STATISTICS = ("lp", "energy", "tree_depth", "n_steps", "acceptance_rate", "diverging")
AIM = "acceptance_rate"
ORDER = None
UNIFORMS = 3  # that a step uses of each chain: choice in the subtree, choice at a join, direction


def position(tree: Tree, chains: Tensor) -> Start:
    """Latest draws of some chains."""
    place = chains, tree.chosen[chains]
    return tree.point_z[place], tree.point_potential[place], tree.point_grad[place]


def is_possible(tree: Tree, limit: int) -> bool:
    """Whether trajectories of at most so many points can be there between two steps."""
    size = tree.size
    is_size = (size > 0) & (size <= max(1, limit // 2)) & ((size & (size - 1)) == 0)
    is_leaf = (tree.leaf >= 0) & (tree.leaf < size)
    are_places = [(place == 0) | (place == 1) for place in (tree.growing, tree.chosen)]
    return bool((is_size & is_leaf & are_places[0] & are_places[1]).all())


def begin(start: Start, momentum: Tensor, uniform: Tensor, limit: int) -> Tree:
    """Trajectories of one point.

    Args:
        start: The points.
        momentum: Standard normal ``[C, P]``.
        uniform: In [0, 1), ``[C, UNIFORMS]``; of it the direction.
        limit: Largest number of points of a trajectory, a power of 2.
    """
    z, potential, grad = start
    num_chains, num_latents = z.shape
    zero = torch.zeros(num_chains, dtype=torch.int64, device=z.device)
    num_slots = max(limit.bit_length() - 2, 1)
    slots = z.new_zeros(num_chains, num_slots + 1, num_latents)
    energy = potential + kinetic(momentum)
    return Tree(
        end_z=_repeated(z, 2),
        end_p=_repeated(momentum, 2),
        end_grad=_repeated(grad, 2),
        point_z=_repeated(z, 3),
        point_grad=_repeated(grad, 3),
        point_potential=_repeated(potential, 3),
        point_energy=_repeated(energy, 3),
        tree_sum=momentum.clone(),
        subtree_sum=torch.zeros_like(z),
        slot_p=slots,
        slot_before=slots.clone(),
        slot_sum=slots.clone(),
        slot_turned=slots[..., 0] > 0,
        growing=(uniform[:, 2] < 0.5).long(),
        size=torch.ones_like(zero),
        leaf=zero,
        chosen=zero.clone(),
        tree_weight=torch.zeros_like(energy),
        subtree_weight=torch.full_like(energy, -torch.inf),
        start_energy=energy.clone(),
        accept_sum=torch.zeros_like(energy),
        num_steps=zero.clone(),
        ended=zero > 0,
        stats=z.new_zeros(num_chains, len(STATISTICS)),
    )


def step(
    tree: Tree,
    potential: Potential,
    mass: Mass,
    step_size: Tensor,
    momentum: Tensor,
    uniform: Tensor,
    limit: Tensor,
) -> Tree:
    """One leapfrog step of every chain, and all that follows from it.

    Args:
        tree: Where the chains stand; not changed.
        potential: U and its gradient.
        mass: The mass matrix.
        step_size: Of each chain ``[C]``.
        momentum: Standard normal ``[C, P]``, used by chains that start a trajectory.
        uniform: In [0, 1), ``[C, UNIFORMS]``.
        limit: Largest number of points of a trajectory, ``[]``.
    """
    before, new = _grow(tree, potential, mass, step_size)
    tree, diverging = _add(tree, new, uniform[:, 0])
    tree, turned = _subtree_turns(tree, before, new.p)
    failed = diverging | turned
    tree = tree._replace(leaf=tree.leaf + 1)
    complete = ~failed & (tree.leaf == tree.size)
    tree, over = _join(tree, new.p, complete, uniform[:, 1], limit)
    return _restart(tree, new, complete, failed | over, diverging, momentum, uniform[:, 2])


def _grow(tree: Tree, potential: Potential, mass: Mass, step_size: Tensor) -> tuple[Tensor, Point]:
    """Momenta at the ends that grow, and the points one step beyond."""
    source = torch.where(tree.size == 1, 1 - tree.growing, tree.growing)
    z, p, grad = (_row(ends, source) for ends in (tree.end_z, tree.end_p, tree.end_grad))
    epsilon = step_size * (2 * tree.growing - 1)
    return p, leapfrog(z, p, grad, epsilon, potential, mass)


def _add(tree: Tree, new: Point, uniform: Tensor) -> tuple[Tree, Tensor]:
    """Weigh the new points and choose them, each with its share of its subtree's weight."""
    error = energy_error(new.energy, tree.start_energy)
    weight = torch.logaddexp(tree.subtree_weight, -error)
    take = uniform.log() < -error - weight
    place = torch.where(take, 1 - tree.chosen, 2)
    return tree._replace(
        point_z=_with_row(tree.point_z, place, new.z),
        point_grad=_with_row(tree.point_grad, place, new.grad),
        point_potential=_with_row(tree.point_potential, place, new.potential),
        point_energy=_with_row(tree.point_energy, place, new.energy),
        subtree_weight=weight,
        accept_sum=tree.accept_sum + (-error).clamp(max=0).exp(),
        num_steps=tree.num_steps + 1,
    ), error > MAX_ENERGY_ERROR


def _subtree_turns(tree: Tree, before: Tensor, p: Tensor) -> tuple[Tree, Tensor]:
    """Whether a subtree that ends at the new point has turned; a first point goes to its slot.

    As in Stan a subtree has also turned if one of its halves and the next point of the other have.
    """
    num_slots = tree.slot_p.shape[1] - 1
    slots = torch.arange(num_slots, device=p.device)
    is_first_point = tree.leaf % 2 == 0
    last = _popcount(tree.leaf) - tree.leaf % 2  # slot of the smallest subtree that ends here
    largest = last - _popcount(tree.leaf ^ (tree.leaf + 1)) + 2  # and of the largest one
    last_row, largest_row = last.unsqueeze(-1), largest.unsqueeze(-1)
    ends = (slots >= largest_row) & (slots <= last_row) & ~is_first_point.unsqueeze(-1)
    # one slot for all where no subtree ends: memory that is not read costs nothing
    read = torch.where(ends, slots, (last_row - is_first_point.unsqueeze(-1).long()).clamp(min=0))
    total = tree.subtree_sum + p
    slot_p, slot_before, slot_sum = (
        _rows(values, read) for values in (tree.slot_p, tree.slot_before, tree.slot_sum)
    )
    here, since = p.unsqueeze(1), total.unsqueeze(1) - slot_sum  # of the points from a slot on
    whole = turns(slot_p, here, since)
    second_half = turns(slot_before, here, since + slot_before)
    halves = (second_half | _rows(tree.slot_turned, read)) & (slots > largest_row)
    turned = (ends & (whole | halves)).any(-1)

    place = torch.where(is_first_point, last, num_slots)
    return tree._replace(
        subtree_sum=total,
        slot_p=_with_row(tree.slot_p, place, p),
        slot_before=_with_row(tree.slot_before, place, before),
        slot_sum=_with_row(tree.slot_sum, place, tree.subtree_sum),
        slot_turned=_with_row(tree.slot_turned, place, whole[:, -1]),
    ), turned


def _join(
    tree: Tree, p: Tensor, complete: Tensor, uniform: Tensor, limit: Tensor
) -> tuple[Tree, Tensor]:
    """Join complete subtrees to their trajectories; which of these are over."""
    other = _row(tree.end_p, 1 - tree.growing)
    first, inner = tree.slot_p[:, 0], tree.slot_before[:, 0]  # where subtree and rest meet
    total = tree.tree_sum + tree.subtree_sum
    turned = (
        turns(other, p, total)
        | turns(other, first, tree.tree_sum + first)
        | turns(inner, p, tree.subtree_sum + inner)
    )
    take = complete & (uniform.log() < tree.subtree_weight - tree.tree_weight)
    weight = torch.logaddexp(tree.tree_weight, tree.subtree_weight)
    size = torch.where(complete, 2 * tree.size, tree.size)
    return tree._replace(
        tree_sum=torch.where(complete.unsqueeze(-1), total, tree.tree_sum),
        tree_weight=torch.where(complete, weight, tree.tree_weight),
        chosen=torch.where(take, 1 - tree.chosen, tree.chosen),
        size=size,
    ), complete & (turned | (size >= limit))


def _restart(
    tree: Tree,
    new: Point,
    complete: Tensor,
    ended: Tensor,
    diverging: Tensor,
    momentum: Tensor,
    uniform: Tensor,
) -> Tree:
    """Start a subtree where one is complete, and a trajectory where one has ended."""
    z, grad = _row(tree.point_z, tree.chosen), _row(tree.point_grad, tree.chosen)
    potential, energy = (
        _row(tree.point_potential, tree.chosen),
        _row(tree.point_energy, tree.chosen),
    )
    stats = torch.stack(
        [
            -potential,
            energy,
            tree.size.to(energy.dtype).log2().round(),
            tree.num_steps.to(energy.dtype),
            tree.accept_sum / tree.num_steps,
            diverging.to(energy.dtype),
        ],
        -1,
    )
    fresh = ended | complete
    growing = torch.where(fresh, (uniform < 0.5).long(), tree.growing)
    place = torch.where(ended, 1 - growing, tree.growing)
    start_energy = potential + kinetic(momentum)
    ended_row = ended.unsqueeze(-1)
    return tree._replace(
        end_z=_with_row(tree.end_z, place, torch.where(ended_row, z, new.z)),
        end_p=_with_row(tree.end_p, place, torch.where(ended_row, momentum, new.p)),
        end_grad=_with_row(tree.end_grad, place, torch.where(ended_row, grad, new.grad)),
        point_energy=_with_row(
            tree.point_energy, tree.chosen, torch.where(ended, start_energy, energy)
        ),
        tree_sum=torch.where(ended_row, momentum, tree.tree_sum),
        subtree_sum=torch.where(fresh.unsqueeze(-1), 0, tree.subtree_sum),
        growing=growing,
        size=torch.where(ended, 1, tree.size),
        leaf=torch.where(fresh, 0, tree.leaf),
        tree_weight=torch.where(ended, 0, tree.tree_weight),
        subtree_weight=torch.where(fresh, -torch.inf, tree.subtree_weight),
        start_energy=torch.where(ended, start_energy, tree.start_energy),
        accept_sum=torch.where(ended, 0, tree.accept_sum),
        num_steps=torch.where(ended, 0, tree.num_steps),
        ended=ended,
        stats=torch.where(ended_row, stats, tree.stats),
    )


def turns(left: Tensor, right: Tensor, total: Tensor) -> Tensor:
    """Whether either end of a stretch moves back towards the rest (Betancourt, section A.4.2).

    Args:
        left: Momentum at one end ``[..., P]``.
        right: Momentum at the other end ``[..., P]``.
        total: Sum of the momenta from end to end ``[..., P]``.
    """
    rho = total - 0.5 * (left + right)
    return ((left * rho).sum(-1) <= 0) | ((right * rho).sum(-1) <= 0)


def _popcount(number: Tensor) -> Tensor:
    """How many bits are set ``[C]``."""
    bits = torch.tensor([1 << i for i in range(MAX_DEPTH + 1)], device=number.device)
    return ((number.unsqueeze(-1) & bits) != 0).sum(-1)


def _repeated(values: Tensor, times: int) -> Tensor:
    """Values ``[C, ...]`` as ``[C, times, ...]``."""
    return torch.stack([values] * times, 1)


def _row(values: Tensor, place: Tensor) -> Tensor:
    """Of each chain the row at its place."""
    return values[torch.arange(values.shape[0], device=values.device), place]


def _rows(values: Tensor, places: Tensor) -> Tensor:
    """Of each chain the rows at its places ``[C, D]``."""
    chains = torch.arange(values.shape[0], device=values.device)
    return values[chains.unsqueeze(-1), places]


def _with_row(values: Tensor, place: Tensor, row: Tensor) -> Tensor:
    """The values with a row of each chain replaced."""
    chains = torch.arange(values.shape[0], device=values.device)
    return values.index_put((chains, place), row)
