r"""Expected log densities of a row under a Gaussian over its outputs f, ``[F]``.

Where each target has an output of its own it is an integral over one number, by Gauss-Hermite
quadrature; of Gaussian noise, whose log density is a square, 2 nodes are exact. So it is where the
sd of the noise is another output, as given that output the log density is a square. Of two classes
only :math:`f_1 - f_0` counts, which is one number. Of C classes it is at least

.. math:: \mu_y - \log \sum_k \exp(\mu_k + v_k / 2)

with v the variances, as the logarithm is concave (Jensen).

References:
    Harrison, Willes & Snoek, "Variational Bayesian Last Layers", ICLR 2024, arXiv:2404.11599.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
import pyro.distributions as dist
import torch
from torch import Tensor

from pyro_bnn.infer.svi.estimators.output_moments import SMALLEST, OutputMoments, moved_by
from pyro_bnn.program.distributions import base_distribution
from pyro_bnn.program.program import Program
from pyro_bnn.sites import Site

NUM_NODES = 20  # of the quadrature
NUM_OF_SQUARE = 2  # which are exact for polynomials up to the third degree
ROUNDING = 1e-6  # of logits
FAR = 1_000.0  # outputs that a likelihood which bounds f would not take as they are


class OutputExpectation(ABC):
    """An expected log density out of log densities at some outputs.

    Args:
        like: A tensor of the dtype and on the device of f.

    Attributes:
        is_bound: Whether it is a lower bound on the expectation.
    """

    is_bound: ClassVar[bool] = False

    def __init__(self, like: Tensor) -> None:
        self.nodes, self.weights = _gauss_hermite(self.num_nodes, like)

    @property
    def num_nodes(self) -> int:
        """Nodes of the integral over one number."""
        return NUM_NODES

    @abstractmethod
    def outputs(self, q: OutputMoments) -> Tensor:
        """Outputs ``[K, B, F]`` at which log densities are needed."""

    def combine(self, rows: Tensor, q: OutputMoments) -> Tensor:  # noqa: ARG002
        """The expectation ``[B]`` out of log densities ``[K, B]`` there."""
        return (self.weights.unsqueeze(-1) * rows).sum(0)


class OneOutputEach(OutputExpectation):
    """The log density is a sum over outputs, each of whose terms sees its own marginal alone."""

    def outputs(self, q: OutputMoments) -> Tensor:
        """All outputs at a node of their own marginals at once."""
        return q.mean + self.nodes.reshape(-1, 1, 1) * q.variance.sqrt()


class Square(OneOutputEach):
    """The log density is a square of f, as that of Gaussian noise."""

    @property
    def num_nodes(self) -> int:
        """Few, and exact."""
        return NUM_OF_SQUARE


class MeanAndScale(OutputExpectation):
    """Gaussian noise whose means are the first half of the outputs, whose sds see the second."""

    def __init__(self, like: Tensor) -> None:
        super().__init__(like)
        inner, inner_weights = _gauss_hermite(NUM_OF_SQUARE, like)
        self._inner = inner.repeat(len(self.nodes))  # [K]
        self._outer = self.nodes.repeat_interleave(len(inner))
        self.weights = torch.outer(self.weights, inner_weights).flatten()

    def outputs(self, q: OutputMoments) -> Tensor:
        """Raw scales at the nodes, and means at two nodes given these."""
        first, second = torch.arange(q.mean.shape[-1], device=q.mean.device).chunk(2)
        loc, raw = q.mean.chunk(2, -1)
        variance, sd = q.variance[..., first], q.variance[..., second].sqrt()  # [B, O]
        slope = q.covariance(first, second) / sd
        rest = (variance - slope.square()).clamp_min(SMALLEST).sqrt()
        inner, outer = (nodes.reshape(-1, 1, 1) for nodes in (self._inner, self._outer))
        return torch.cat([loc + outer * slope + inner * rest, raw + outer * sd], -1)


class TwoClasses(OutputExpectation):
    """Two logits, of which only the difference counts."""

    def outputs(self, q: OutputMoments) -> Tensor:
        """Logits whose difference is at a node of its own Gaussian."""
        first, second = torch.arange(2, device=q.mean.device).split(1)
        variance = q.variance.sum(-1, keepdim=True) - 2 * q.covariance(first, second)  # [B, 1]
        half = 0.5 * self.nodes.reshape(-1, 1, 1) * variance.clamp_min(SMALLEST).sqrt()
        return q.mean + torch.cat([-half, half], -1)


class JensenBound(OutputExpectation):
    r"""A lower bound for C classes, :math:`\mu_y - \log \sum_k \exp(\mu_k + v_k / 2)`.

    It is tight as v falls to 0, and correlations of logits do not enter it.
    """

    is_bound = True

    def outputs(self, q: OutputMoments) -> Tensor:
        """The means, and logits of 0, whose log density is minus log C times a row's weight."""
        return torch.stack([q.mean, torch.zeros_like(q.mean)])

    def combine(self, rows: Tensor, q: OutputMoments) -> Tensor:
        """The log density at the means less what Jensen's inequality adds to the normaliser."""
        moved = (q.mean + 0.5 * q.variance).logsumexp(-1) - q.mean.logsumexp(-1)  # [B]
        return rows[0] + rows[1] * moved / math.log(q.mean.shape[-1])


def expectation_of(program: Program, sites: Sequence[Site]) -> OutputExpectation | None:
    """The expectation that a model's likelihood has over its last layer; None where none serves.

    Args:
        program: The model as tensor functions.
        sites: The sites of the last layer: y depends on them through f alone.
    """
    first, second = _Likelihood(program), _Likelihood(program, sites)
    num_outputs, like = first.f.shape[-1], program.initial
    if first.are_logits and second.are_logits:
        return TwoClasses(like) if num_outputs == 2 else JensenBound(like)
    is_normal = first.is_centred(num_outputs) and second.is_centred(num_outputs)
    if is_normal and torch.equal(first.fn.scale, second.fn.scale):
        return Square(like)
    if num_outputs == 1 or first.is_each_of_its_own():
        return OneOutputEach(like)
    if num_outputs % 2 == 0 and first.is_mean_and_scale() and second.is_mean_and_scale():
        return MeanAndScale(like)
    return None


class _Likelihood:
    """Which outputs a distribution of y sees, looked at on rows that are spread over all.

    Args:
        program: The model as tensor functions.
        moved: Sites whose values are moved by 1.
    """

    def __init__(self, program: Program, moved: Sequence[Site] = ()) -> None:
        self._program = program
        self._values = moved_by(program, moved)
        with torch.no_grad():
            run = self._run()
        self.f, self.fn = run.f, base_distribution(run.y["fn"])

    def _run(self, output: Tensor | None = None) -> Any:
        return self._program.run(
            self._values, self._program.spread, self._program.params, output=output
        )

    @property
    def are_logits(self) -> bool:
        """Whether y is one of F classes whose logits are f."""

        def are(f: Tensor, fn: Any) -> bool:
            if not isinstance(fn, dist.Categorical) or fn.logits.shape != f.shape:
                return False
            gap = (fn.logits - f.log_softmax(-1)).abs().max()
            return bool(gap <= ROUNDING * (1 + f.abs().max()))

        return are(self.f, self.fn) and are(*self._far(self.f.shape[-1]))

    def is_centred(self, columns: int) -> bool:
        """Whether noise is Gaussian around the first columns of f."""

        def is_around(f: Tensor, fn: Any) -> bool:
            loc = f[..., :columns]
            return (
                isinstance(fn, dist.Normal)
                and fn.loc.numel() == loc.numel()
                and torch.equal(fn.loc, loc.reshape(fn.loc.shape))
            )

        return is_around(self.f, self.fn) and is_around(*self._far(columns))

    def is_each_of_its_own(self) -> bool:
        """Whether the density of each number of y depends on the output of its own place alone."""
        width = self.f.shape[-1]
        return all(self._is_seen_alone(k, k, width) for k in range(width))

    def is_mean_and_scale(self) -> bool:
        """Whether noise is Gaussian around the first half of f, its sds of the second, in pairs."""
        half = self.f.shape[-1] // 2
        return self.is_centred(half) and all(
            torch.equal(self._moved(k)[0].scale, self.fn.scale)
            and self._is_seen_alone(half + k, k, half)
            for k in range(half)
        )

    def _far(self, columns: int) -> tuple[Tensor, Any]:
        """Outputs whose first columns are beyond bounds on f, and the distribution of y there."""
        output = self.f.clone()
        far = torch.linspace(-FAR, FAR, output[..., :columns].numel())
        output[..., :columns] = far.reshape(output[..., :columns].shape).to(output)
        with torch.no_grad():
            return output, base_distribution(self._run(output).y["fn"])

    def _moved(self, column: int) -> tuple[Any, Tensor]:
        """The distribution of y where a column of f has moved by 1, and y."""
        output = self.f.clone()
        output[..., column] += 1
        with torch.no_grad():
            run = self._run(output)
        return base_distribution(run.y["fn"]), run.y["value"]

    def _is_seen_alone(self, column: int, place: int, width: int) -> bool:
        """Whether of the densities of the numbers of y ``[N, width]`` a column of f moves one."""
        fn, y = self._moved(column)
        changed = self.fn.log_prob(y) != fn.log_prob(y)
        if changed.numel() != len(self.f) * width:
            return False
        others = torch.arange(width, device=changed.device) != place
        return not bool(changed.reshape(-1, width)[:, others].any())


def _gauss_hermite(num_nodes: int, like: Tensor) -> tuple[Tensor, Tensor]:
    """Nodes and weights ``[K]`` of the mean over a standard normal number."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(num_nodes)
    return torch.from_numpy(nodes).to(like), torch.from_numpy(weights / weights.sum()).to(like)
