"""The No-U-Turn sampler for one trajectory of one chain, as the papers write it, in NumPy.

Trees are lists of points and are built by recursion; momenta r are those of the mass matrix M,
K = r^T M^-1 r / 2, and sums of momenta are taken anew from the points. Random numbers are given:
the first row's direction, then one row a leapfrog step.

Hoffman & Gelman, "The No-U-Turn Sampler", JMLR 2014, arXiv:1111.4246, Algorithm 3 (doubling);
Betancourt, "A Conceptual Introduction to Hamiltonian Monte Carlo", 2017, arXiv:1701.02434, appendix
A (multinomial choice, biased joins, U-turns by sums of momenta). The checks of each half with the
next point of the other are Stan's, github.com/stan-dev/stan, base_nuts.hpp.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import NamedTuple, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pyro_bnn.infer.mcmc.mass import Mass

Array: TypeAlias = NDArray[np.float64]
Potential: TypeAlias = Callable[[Array], tuple[float, Array]]


class Point(NamedTuple):
    z: Array
    r: Array
    potential: float
    grad: Array
    energy: float


class Draw(NamedTuple):
    z: Array
    lp: float
    energy: float
    tree_depth: int
    n_steps: int
    acceptance_rate: float
    diverging: bool


class Dynamics:
    """Leapfrog steps with mass matrix M, M^-1 = L L^T.

    Args:
        potential: U and its gradient at z ``[P]``.
        factor: L ``[P, P]``.
    """

    def __init__(self, potential: Potential, factor: Array) -> None:
        self.potential, self.factor = potential, factor
        self.inverse_mass = factor @ factor.T

    def point(self, z: Array, r: Array) -> Point:
        value, grad = self.potential(z)
        return Point(z, r, value, grad, value + 0.5 * float(r @ self.inverse_mass @ r))

    def start(self, z: Array, p: Array) -> Point:
        """A point with momentum r = L^-T p for p from N(0, I)."""
        r: Array = np.linalg.solve(self.factor.T, p).astype(np.float64)
        return self.point(z, r)

    def leapfrog(self, point: Point, epsilon: float) -> Point:
        half = point.r - 0.5 * epsilon * point.grad
        z = point.z + epsilon * self.inverse_mass @ half
        return self.point(z, half - 0.5 * epsilon * self.potential(z)[1])


def dynamics(potential: Callable[[Tensor], tuple[Tensor, Tensor]], mass: Mass) -> Dynamics:
    """Of a batched potential and a mass matrix, whose factor is formed by its definition."""

    def of_one(z: Array) -> tuple[float, Array]:
        value, grad = potential(torch.from_numpy(z)[None])
        return float(value), grad[0].numpy()

    factor = mass.scale.diag()
    if mass.basis is not None and mass.stretch is not None:
        eye = torch.eye(len(mass.scale), dtype=mass.scale.dtype)
        factor = factor @ (eye + mass.basis @ (mass.stretch - 1).diag() @ mass.basis.mT)
    return Dynamics(of_one, factor.numpy())


class _EndedError(Exception):
    """A subtree diverged or turned."""

    def __init__(self, *, diverging: bool) -> None:
        self.diverging = diverging


class _Trajectory:
    def __init__(
        self, dynamics: Dynamics, start: Point, uniforms: Iterator[Array], step_size: float
    ) -> None:
        self.dynamics, self.start, self.uniforms = dynamics, start, uniforms
        self.step_size = step_size
        self.row = next(uniforms)
        self.points, self.chosen, self.log_weight = [start], start, 0.0
        self.accepted: list[float] = []

    def run(self, max_depth: int) -> Draw:
        depth, turned, diverging = 0, False, False
        try:
            while depth < max_depth and not turned:
                self.double(depth)
                depth += 1
                turned = self.has_turned(self.points)
        except _EndedError as ended:
            diverging = ended.diverging
        return Draw(
            self.chosen.z,
            -self.chosen.potential,
            self.chosen.energy,
            depth,
            len(self.accepted),
            float(np.mean(self.accepted)),
            diverging,
        )

    def double(self, depth: int) -> None:
        """Add as many points as there are, at one end."""
        forward = bool(self.row[2] < 0.5)
        self.log_subtree, self.candidate = -math.inf, self.start
        new = self.build(self.points[-1 if forward else 0], forward, depth)
        if math.log(self.row[1]) < self.log_subtree - self.log_weight:
            self.chosen = self.candidate
        self.log_weight = np.logaddexp(self.log_weight, self.log_subtree)
        self.points = self.points + new if forward else new[::-1] + self.points

    def build(self, edge: Point, forward: bool, depth: int) -> list[Point]:
        """The next 2^depth points beyond the edge, in the order in which they are made."""
        if depth == 0:
            return [self.add(edge, forward)]
        first = self.build(edge, forward, depth - 1)
        points = first + self.build(first[-1], forward, depth - 1)
        if self.has_turned(points):
            raise _EndedError(diverging=False)
        return points

    def add(self, edge: Point, forward: bool) -> Point:
        """A leapfrog step; the point is the candidate with its share of the subtree's weight."""
        point = self.dynamics.leapfrog(edge, self.step_size if forward else -self.step_size)
        self.row = next(self.uniforms)
        error = point.energy - self.start.energy
        if not math.isfinite(error):
            error = math.inf
        self.accepted.append(min(1.0, math.exp(min(0.0, -error))))
        if error > 1_000:
            raise _EndedError(diverging=True)
        self.log_subtree = np.logaddexp(self.log_subtree, -error)
        if math.log(self.row[0]) < -error - self.log_subtree:
            self.candidate = point
        return point

    def has_turned(self, points: list[Point]) -> bool:
        """Whether the stretch, or a half of it with the next point of the other, has turned."""
        half = len(points) // 2
        return any(map(self.turns, (points, points[: half + 1], points[half - 1 :])))

    def turns(self, points: list[Point]) -> bool:
        """Whether an end moves back along the displacement: the trapezoid sum of momenta."""
        r = np.array([point.r for point in points])
        ends = self.dynamics.inverse_mass @ (r.sum(0) - 0.5 * (r[0] + r[-1]))
        return bool(r[0] @ ends <= 0 or r[-1] @ ends <= 0)


def trajectory(
    of: Dynamics,
    z: Array,
    p: Array,
    uniforms: Array,
    *,
    step_size: float,
    max_depth: int,
) -> Draw:
    """One transition from z.

    Args:
        of: The density and the mass matrix.
        z: Start ``[P]``.
        p: Standard normal ``[P]``.
        uniforms: In [0, 1), ``[n, 3]``: of the first row only the direction, then for each
            leapfrog step the choice in the subtree, the choice at the join, the next direction.
        step_size: Of the leapfrog.
        max_depth: Largest number of doublings.

    Raises:
        StopIteration: If the trajectory has more steps than there are rows of uniforms.
        AssertionError: If it has fewer.
    """
    rows = iter(uniforms)
    draw = _Trajectory(of, of.start(z, p), rows, step_size).run(max_depth)
    assert next(rows, None) is None, "fewer steps than rows of uniforms"
    return draw
