r"""Up to a mode of the log joint density in z, and how far from it one still is.

L-BFGS whose first direction is Newton's, by the precision P that Laplace's approximation has there.
How far it is, in nats, is Newton's decrement :math:`g^\top P^{-1} g / 2`, g the gradient. Where
units have kinks it need not vanish at a mode, and Adam between roots of P tells what is to gain.

References:
    Nocedal & Wright, "Numerical Optimization", 2nd edition, 2006, sections 7.2 and 9.5.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar, Generic, NamedTuple, Protocol, TypeVar

import torch
from torch import Tensor

from pyro_bnn.capture.captured import Captured
from pyro_bnn.handled import model_name
from pyro_bnn.infer.curvature.gaussian_prior import GaussianPrior, normal_entries
from pyro_bnn.infer.laplace.bar import Bar
from pyro_bnn.infer.steps.descent import Descent
from pyro_bnn.program.batched import plain_attention
from pyro_bnn.program.joint import Joint
from pyro_bnn.program.terms import Batch

FARTHEST = 0.01  # nats that a mode may be away
ALONG_KINKS = 0.5  # nats that small steps may gain yet: less changes no posterior worth telling
ROUNDS = 60  # of a new precision each
STEPS = 30  # of L-BFGS in each
PAIRS = 20  # steps that it remembers
TRIES = 12  # lengths of a step that does not go down
SETTLED = 5e-3  # nats that a round gains where it is as low as it comes
ROUNDING = 10  # of the log joint density, in the last digits of its dtype
IDLE = 5  # steps that gain a tenth of it, in a row
PROBES = 12  # products with the Hessian, by which a direction of negative curvature is looked for
NEGATIVE = -0.01  # curvature, in units of the precision, that is no rounding
RATES = (0.1, 0.03, *[0.01] * 4)  # of Adam along kinks, in sds: the last until it gains nothing
SLIDES = 100  # steps at each; fewer where they would read more rows than these
ROWS = 1_000_000


class Solves(Protocol):
    """The part of a precision that is needed here."""

    noise_dim: int

    def solve(self, values: Tensor) -> Tensor:
        """Its inverse times values ``[P]``."""

    def deviations(self, noise: Tensor) -> Tensor:
        """A root of its inverse, applied to noise ``[S, M]``: ``[S, P]``."""


J_co = TypeVar("J_co", bound=Joint, covariant=True)


class MinusLogJoint(Generic[J_co]):
    """Minus the log joint density of all rows and z, with its derivatives, in float64.

    Args:
        program: The model as tensor functions; its point-estimated parameters are held fixed.
        rows: All rows.
        prior: The Gaussian part of its prior.

    Attributes:
        chunk: How many rows are computed at once; all, unless it is set.
        factors: Of the precisions of that part ``[P]``, 1 for the model's own.
        others: Which entries ``[P]`` have a prior that is no Gaussian.
        params: Values of the point-estimated parameters.
        bar: Where it is told which rows are read.
        is_convex: Whether it is known to have no saddle.
    """

    is_convex: ClassVar[bool] = False

    def __init__(self, program: J_co, rows: Batch, prior: GaussianPrior) -> None:
        self.program, self.rows, self.chunk, self.bar = program, rows, len(rows.x), Bar()
        self.loc, self.precision = prior.loc.double(), prior.precision.double()
        self.factors = torch.ones_like(self.precision)
        self.others = normal_entries(program)[1].isnan()
        self.params = {name: value.detach() for name, value in program.params.items()}
        self._replayed = Captured(self._with_slope, f"{model_name(program.model)}, all of it")

    def __call__(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """Value ``[]`` and gradient ``[P]`` at z ``[P]``, by a graph that many calls repay."""
        at = z.to(self.program.dtype)
        return self._summed([self._replayed(at, *chunk) for chunk in self._read()], z)

    def rounding(self, value: Tensor) -> float:
        """What rounding may hide of a value, nats."""
        return ROUNDING * torch.finfo(self.program.dtype).eps * float(1 + value.abs())

    def hessian_at(self, z: Tensor) -> Callable[[Tensor], Tensor]:
        """What gives the Hessian at z ``[P]`` times v ``[P]``."""
        at = z.to(self.program.dtype)
        first, *others = self._chunks()
        held = self._hessian_of(at, *first)  # those of all chunks might not fit the memory

        def times(v: Tensor) -> Tensor:
            total, along = (self.factors - 1) * self.precision * v, v.to(at)
            total = total + held(along).double()
            for chunk in others:
                total = total + self._hessian_of(at, *chunk)(along).double()
            return total

        return times

    def _chunks(self) -> list[tuple[Tensor, Tensor]]:
        x, y = self.rows
        return list(zip(x.split(self.chunk), y.split(self.chunk), strict=True))

    def _read(self) -> Iterator[tuple[Tensor, Tensor]]:
        for chunk in self._chunks():
            yield chunk
            self.bar.rows(len(chunk[0]))

    def _hessian_of(self, z: Tensor, x: Tensor, y: Tensor) -> Callable[[Tensor], Tensor]:
        """The Hessian of a chunk as a product; it is symmetric."""
        found: tuple[Any, ...] = torch.func.vjp(lambda z: self._with_slope(z, x, y)[1], z)
        return lambda v: found[1](v)[0]

    def _with_slope(self, z: Tensor, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Value ``[]`` and gradient ``[P]`` of a chunk, which has its share of the prior."""
        share = len(x) / len(self.rows.x)  # each chunk's likelihood is scaled by N/B

        args = self.program.arguments(Batch(x, y))

        def value(z: Tensor) -> Tensor:
            with plain_attention():
                return -share * self.program.log_joint(z, args, self.params)

        slope, at = torch.func.grad_and_value(value)(z)
        return at, slope

    def _summed(self, parts: Sequence[tuple[Tensor, ...]], z: Tensor) -> tuple[Tensor, Tensor]:
        """The sums of what chunks have, with the factors of the prior."""
        error, more = z - self.loc, (self.factors - 1) * self.precision
        value = 0.5 * ((more * error.square()).sum() - self.factors.log().sum())
        gradient = more * error
        for of_value, slope in parts:
            value, gradient = value + of_value.double(), gradient + slope.double()
        return value, gradient


class PolishedMode(NamedTuple):
    """Where a polish ended.

    Attributes:
        z: The point ``[P]``.
        minus_log_joint: Minus the log joint density there, ``[]``.
        steps: Newton's step at z for each entry times its gradient, over 2, ``[P]``: nats.
        gain: What the last round of L-BFGS gained, or of Adam along kinks, nats; 0 where rounding
            hides all gains.
    """

    z: Tensor
    minus_log_joint: Tensor
    steps: Tensor
    gain: float

    @property
    def decrement(self) -> float:
        """Newton's decrement, nats."""
        return float(self.steps.sum())

    @property
    def is_mode(self) -> bool:
        """Whether it is one: nothing is left to gain.

        Where units have kinks, a mode lies at some of them: the gradient jumps there, and does not
        vanish. What steps gain does, of L-BFGS at any kink, of :func:`settle` at modes alone.
        """
        return min(self.decrement, self.gain) < FARTHEST

    @property
    def is_settled(self) -> bool:
        """Whether it is one, or small steps along kinks gain too little to matter."""
        return self.decrement < FARTHEST or self.gain < ALONG_KINKS


def polish(
    objective: MinusLogJoint[Joint], precision_at: Callable[[Tensor], Solves], z: Tensor
) -> PolishedMode:
    """Go down from z ``[P]`` until no step gains anything, beyond saddles.

    What is a mode already stays where it is: nothing to gain is what its rounding hides.
    """
    gain, is_settled = math.inf, False
    for left in range(ROUNDS, -1, -1):
        precision = precision_at(z)
        value, gradient = objective(z)
        mode = PolishedMode(z, value, 0.5 * gradient * precision.solve(gradient), gain)
        objective.bar.nats(mode.decrement)
        rounding = objective.rounding(value)
        if mode.decrement < rounding:
            mode, is_settled = mode._replace(gain=0.0), True
        if is_settled:
            lower = None if objective.is_convex else _beyond_saddle(objective, precision, z)
            if lower is None:
                break
            z, is_settled = lower, False
        elif left:
            z, gain = descend(objective, precision, z, rounding)
            is_settled = gain < SETTLED
    return mode


def settle(
    objective: MinusLogJoint[Joint], precision_at: Callable[[Tensor], Solves], mode: PolishedMode
) -> PolishedMode:
    """Go on along the kinks at which a polish ended, by small steps of Adam.

    The gradient of one side of a kink leads over it to a higher point, so that L-BFGS stands still
    there. Averages of the gradients of both sides lead along it. A mode stays where it is.
    """
    if mode.decrement < FARTHEST or objective.is_convex:  # and smooth: rounding is what is left
        return mode
    z, gain = mode.z, mode.gain
    for rate in RATES:
        z, gain = _slide(objective, precision_at(z), z, rate)
        if rate == RATES[-1] and gain < FARTHEST:
            break
    value, gradient = objective(z)
    return PolishedMode(z, value, 0.5 * gradient * precision_at(z).solve(gradient), gain)


def _slide(
    objective: MinusLogJoint[Joint], precision: Solves, z: Tensor, rate: float
) -> tuple[Tensor, float]:
    """Steps of Adam between roots of the precision, from a rate to 0; where they end, their gain.

    It is z itself where they gain no more than a mode may be away.
    """
    num_steps = min(SLIDES, max(SLIDES // 10, ROWS // len(objective.rows.x)))
    noise = z.new_zeros(1, precision.noise_dim).requires_grad_()
    adam = Descent([noise], learning_rate=rate, num_steps=num_steps)
    for step in range(num_steps):
        apart = precision.deviations(noise)[0]
        _, gradient = objective(z + apart.detach())
        (noise.grad,) = torch.autograd.grad(apart, noise, gradient)
        adam.step(step)
    new = z + precision.deviations(noise.detach())[0]
    gain = float(objective(z)[0] - objective(new)[0])
    return (new, gain) if gain >= FARTHEST else (z, max(0.0, gain))  # of NaN too


def descend(
    objective: Callable[[Tensor], tuple[Tensor, Tensor]],
    precision: Solves,
    z: Tensor,
    tolerance: float,
) -> tuple[Tensor, float]:
    """Steps of L-BFGS from z ``[P]``, until one would gain less than ``tolerance`` nats.

    Returns:
        Where they end, and what they gained, nats.
    """
    pairs: deque[tuple[Tensor, Tensor]] = deque(maxlen=PAIRS)
    value, gradient = objective(z)
    start, idle = value, 0
    rounding = 1e-10 * value.abs()
    for _ in range(STEPS):
        direction = -_inverse_times(gradient, precision, pairs)
        slope = gradient @ direction
        if float(slope) > -2 * tolerance or idle == IDLE:
            break
        size = 1.0
        for _ in range(TRIES):
            step = size * direction
            new, new_gradient = objective(z + step)
            if bool(new <= value + 1e-4 * size * slope + rounding):
                break
            size *= _shorter(float(new - value), size * float(slope))
        else:
            break
        change = new_gradient - gradient
        if float(step @ change) > 0:
            pairs.append((step, change))
        idle = idle + 1 if float(value - new) < SETTLED / 10 else 0
        z, value, gradient = z + step, new, new_gradient
    return z, float(start - value)


def _shorter(rise: float, slope: float) -> float:
    """The share of a step to the least of the parabola of what it rose by and of its first slope.

    References:
        Nocedal & Wright, section 3.5.
    """
    share = -slope / (2 * (rise - slope)) if math.isfinite(rise) else 0.0
    return min(max(share, 0.1), 0.5)


def _beyond_saddle(objective: MinusLogJoint[Joint], precision: Solves, z: Tensor) -> Tensor | None:
    """A lower point along a direction of negative curvature; None where there is none."""
    curvature, direction = _smallest_curvature(objective.hessian_at(z), precision, z)
    if curvature > NEGATIVE:
        return None
    here = float(objective(z)[0]) - SETTLED
    sides = (z + t * direction for t in (1.0, -1.0, 0.3, -0.3, 0.1, -0.1))
    return next((side for side in sides if float(objective(side)[0]) < here), None)


def _inverse_times(
    gradient: Tensor, precision: Solves, pairs: deque[tuple[Tensor, Tensor]]
) -> Tensor:
    """L-BFGS' inverse Hessian times a gradient, the precision's inverse before any step."""
    q, shares = gradient, []
    for step, change in reversed(pairs):
        share = (step @ q) / (step @ change)
        shares.append(share)
        q = q - share * change
    r = precision.solve(q)
    for (step, change), share in zip(pairs, reversed(shares), strict=True):
        r = r + (share - (change @ r) / (step @ change)) * step
    return r


def _smallest_curvature(
    hessian_times: Callable[[Tensor], Tensor], precision: Solves, z: Tensor
) -> tuple[float, Tensor]:
    """Smallest eigenvalue that Lanczos finds of the Hessian between roots of P^-1, its direction.

    Of a matrix that is larger than the number of products it is an upper bound.
    """
    generator = torch.Generator(z.device).manual_seed(0)
    noise = z.new_zeros(1, precision.noise_dim).requires_grad_()
    spread = precision.deviations(noise)

    def transposed(value: Tensor) -> Tensor:
        (found,) = torch.autograd.grad(spread, noise, value.unsqueeze(0), retain_graph=True)
        row: Tensor = found[0]
        return row

    v = transposed(torch.empty_like(z).normal_(generator=generator))
    basis = [v / v.norm()]
    diagonal, beside = [], []
    for _ in range(min(PROBES, len(z))):
        w = transposed(hessian_times(precision.deviations(basis[-1][None])[0]))
        diagonal.append(w @ basis[-1])
        B = torch.stack(basis)
        w = w - B.mT @ (B @ w)
        w = w - B.mT @ (B @ w)
        length = w.norm()
        if float(length) < 1e-8 * (1 + abs(float(diagonal[-1]))):
            break
        beside.append(length)
        basis.append(w / length)
    n = len(diagonal)
    T = torch.diag(torch.stack(diagonal))
    if n > 1:
        off = torch.stack(beside[: n - 1])
        T = T + torch.diag(off, 1) + torch.diag(off, -1)
    values, vectors = torch.linalg.eigh(T)
    u = vectors[:, 0] @ torch.stack(basis[:n])
    return float(values[0]), precision.deviations(u[None])[0]
