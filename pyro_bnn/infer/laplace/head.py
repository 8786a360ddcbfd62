r"""Laplace's approximation of the head of a network, from features that are computed once.

With features :math:`\phi_n` (1 for the bias among them), :math:`f_n = W \phi_n` and F the Fisher
information of y in f, the curvature of the data in W is

.. math:: H = \sum_n F_n \otimes \phi_n \phi_n^\top, \qquad
          G \otimes A / N, \quad G = \sum_n F_n, \quad A = \sum_n \phi_n \phi_n^\top

exactly, and by Kronecker factors, whose eigendecompositions take C^3 + D^3 operations for C outputs
and D features. Of the families of :mod:`pyro_bnn.infer.curvature.outputs` the mode is that of a
convex function.

References:
    Daxberger et al., "Laplace Redux", NeurIPS 2021, arXiv:2106.14806.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pyro_bnn.guides.kronecker import layers_with_bias
from pyro_bnn.infer.curvature.gaussian_prior import GaussianPrior
from pyro_bnn.infer.curvature.kronecker import Factors
from pyro_bnn.infer.curvature.outputs import Outputs, outputs_of
from pyro_bnn.infer.laplace.bar import Bar
from pyro_bnn.infer.laplace.curvature import CurvatureOf, Structure, require_size
from pyro_bnn.infer.laplace.mode import MinusLogJoint
from pyro_bnn.program.features import features as in_chunks
from pyro_bnn.program.handlers import log_prob
from pyro_bnn.program.head import Head
from pyro_bnn.program.program import Program
from pyro_bnn.program.terms import Batch, Params

NUMBERS = 1 << 22  # of f that are computed at once
SMALL = 1_000  # entries, up to which the matrix of all gives its largest eigenvectors
EIGENVALUES = 1e-10  # relative errors of the largest ones
OTHERS = '"kron", "low_rank" or "diagonal"'
FEW = 1_000  # entries of z, up to which all correlations lead to the mode
FAR = 10.0  # outputs of two rows, where the head's weights are others
TOLERANCE = 1e-5  # of a log prior, by which a model's own may differ from its Gaussians'


@dataclass(frozen=True)
class Features:
    """Features of all rows, with what the likelihood is of the head's outputs.

    Attributes:
        head: The head.
        outputs: The likelihood.
        phi: Features ``[N, D + 1]``.
        y: Observations.
        weights: Of rows ``[N]``; None for equal ones.
        scale: Of all rows.
    """

    head: Head
    outputs: Outputs
    phi: Tensor
    y: Tensor
    weights: Tensor | None
    scale: float

    @classmethod
    def of(cls, program: Program, head: Head, rows: Batch, z: Tensor) -> Features:
        """The features at z ``[P]``, of a program that :func:`head_of` found to have a head."""
        at = z.to(program.initial)
        outputs = outputs_of(program, at)
        assert outputs is not None
        params = {name: value.detach() for name, value in program.params.items()}
        first = Batch(rows.x[:1], rows.y[:1])
        with torch.no_grad():
            _, of_one = program.row_log_likelihood(program.constrain(at), first, params)
            weights = program.row_weights(at, first.x, params)
            if weights is not None:
                weights = program.row_weights(at, rows.x, params)
        phi = head.of_rows(program, at, rows.x, params)
        return cls(head, outputs, phi, rows.y, weights, float(of_one) / len(rows.x))

    def chunks(self) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Features, observations and weights, scale included, of some rows after others."""
        size = max(1, NUMBERS // len(self.head.entries))
        for start in range(0, len(self.phi), size):
            part = slice(start, start + size)
            phi = self.phi[part]
            own = phi.new_ones(len(phi)) if self.weights is None else self.weights[part].to(phi)
            yield phi, self.y[part], self.scale * own

    @functools.cached_property
    def products(self) -> Tensor:
        """The mean A over rows of the products of features, by their weights, float64."""
        total = torch.zeros((), dtype=torch.float64)
        count = 0.0
        for phi, _, w in self.chunks():
            weighted, of_rows = phi.double(), w.double()
            total = total + (weighted.mT * of_rows) @ weighted
            count += float(of_rows.sum())
        return total / count


class HeadObjective(MinusLogJoint[Program]):
    """Minus the log joint density of a network whose only sites are its head's.

    Args:
        program: The model as tensor functions.
        rows: All rows.
        prior: Its prior.
        features: The features of all rows.
    """

    is_convex = True

    def __init__(
        self, program: Program, rows: Batch, prior: GaussianPrior, features: Features
    ) -> None:
        super().__init__(program, rows, prior)
        self.features = features
        self._of_rows = 0.0  # their part of the last value

    def rounding(self, value: Tensor) -> float:  # noqa: ARG002
        """What rounding may hide: only the rows are computed in the dtype of the model."""
        return torch.finfo(self.program.dtype).eps * (1 + abs(self._of_rows))

    def __call__(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """Value ``[]`` and gradient ``[P]`` at z ``[P]``."""
        features, head = self.features, self.features.head
        W = head.weights(z.to(self.program.dtype))  # [C, D + 1]
        precision, error = self.factors * self.precision, z - self.loc
        prior = 0.5 * (precision * error.square() - precision.log()).sum()
        prior = prior + 0.5 * len(z) * math.log(2 * math.pi)
        of_rows, slope = torch.zeros_like(prior), torch.zeros(W.shape, dtype=torch.float64)
        with torch.no_grad():
            for phi, y, w in features.chunks():
                nll, residual = features.outputs.nll(phi @ W.mT, y)
                of_rows += w.double() @ nll.double()
                slope += (w.unsqueeze(-1) * residual).mT @ phi
                self.bar.rows(len(phi))
        gradient = precision * error
        gradient[head.entries] += slope
        self._of_rows = float(of_rows)
        return prior + of_rows, gradient


class HeadCurvature(CurvatureOf):
    """Precisions over the entries of a head at any point; as :class:`.CurvatureOf` of all networks.

    Args:
        objective: Minus the log joint density.
        structure: Which precision.
        rank: Of ``"low_rank"``.
        features: The features of all rows.
        entries: The head's entries of z in the order of z; None where there are no others.

    Raises:
        OptionError: If the structure is too large.
    """

    def __init__(
        self,
        objective: MinusLogJoint[Program],
        structure: Structure,
        rank: int,
        features: Features,
        entries: Tensor | None = None,
    ) -> None:
        self.objective, self.structure, self.rank = objective, structure, rank
        self.features, self.entries = features, entries
        self._curvature = "ggn"  # which is the Hessian here
        self._last, self._known = None, {}
        if structure == "full":
            require_size(features.head.entries.numel(), OTHERS)

    def like(self, structure: Structure, entries: Tensor | None) -> CurvatureOf:
        """That of another structure, of all entries or, where they are given, of some."""
        if entries is not None and self.entries is None:
            return CurvatureOf(self.objective, structure, "ggn", self.rank, entries)
        return HeadCurvature(self.objective, structure, self.rank, self.features, entries)

    @property
    def chunk(self) -> int:
        """How many rows are computed at once."""
        return len(self.features.phi)

    @functools.cached_property
    def _places(self) -> Tensor:
        """Where the head's entries ``[C, D + 1]`` stand among those that it is over."""
        entries = self.features.head.entries
        return entries if self.entries is None else torch.searchsorted(self.entries, entries)

    def of_data(self, z: Tensor) -> Any:
        """Curvature of the data; see the base class."""
        with torch.no_grad():
            if self.structure == "kron":
                return self._factors(z)
            if self.structure == "full":
                return self._matrix(z)
            if self.structure == "low_rank":
                return self._largest(z)
            return self._flat(self._diagonal(z))

    def _outputs_at(self, z: Tensor) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Features, f and weights of some rows after others, float64."""
        W = self.features.head.weights(z.double())
        for phi, _, w in self.features.chunks():
            own = phi.double()
            yield own, own @ W.mT, w.double()
            self.objective.bar.rows(len(phi))

    def _flat(self, of_head: Tensor) -> Tensor:
        """What is of the head's entries ``[C, D + 1]`` in the order of z, ``[P']``."""
        out = of_head.new_zeros(of_head.numel())
        out[self._places] = of_head
        return out

    def _factors(self, z: Tensor) -> Factors:
        (layer,) = layers_with_bias(self._sites())
        G: Any = 0.0
        for _, f, w in self._outputs_at(z):
            G = G + self.features.outputs.summed(f, w)
        zeros = z.new_zeros(self._places.numel(), dtype=torch.float64)
        return Factors(zeros, [(layer.entries, G, self.features.products)])

    def _diagonal(self, z: Tensor) -> Tensor:
        total: Any = 0.0
        for phi, f, w in self._outputs_at(z):
            total = total + (w.unsqueeze(-1) * self.features.outputs.variance(f)).mT @ phi.square()
        return torch.as_tensor(total)

    def _matrix(self, z: Tensor) -> Tensor:
        """The sum of F_n (x) phi_n phi_n^T ``[P', P']``, a row of F after the other."""
        num_outputs, num_features = self._places.shape
        H = z.new_zeros(num_outputs, num_features, num_outputs, num_features, dtype=torch.float64)
        for phi, f, w in self._outputs_at(z):
            for k in range(num_outputs):
                own = w.unsqueeze(-1) * self.features.outputs.row(f, k)  # [B, C]
                for j in range(k + 1):
                    H[k, :, j] += (own[:, j : j + 1] * phi).mT @ phi
        for k in range(num_outputs):
            for j in range(k):
                H[j, :, k] = H[k, :, j].mT
        order = self._places.flatten()
        out = H.new_zeros(order.numel(), order.numel())
        out[order.unsqueeze(-1), order] = H.reshape(order.numel(), -1)
        return out

    def _largest(self, z: Tensor) -> Tensor:
        """Its R largest eigenvectors times the roots of their eigenvalues, ``[P', R]``."""
        size = self._places.numel()
        rank = min(self.rank, size)
        if size <= SMALL:
            values, vectors = torch.linalg.eigh(self._matrix(z))
        else:
            from scipy.sparse import linalg

            outputs = self.features.outputs

            def times(v: Any) -> Any:
                V = torch.from_numpy(np.ascontiguousarray(v)).reshape(-1)[self._places]
                total: Any = 0.0
                for phi, f, w in self._outputs_at(z):
                    total = total + (w.unsqueeze(-1) * outputs.times(f, phi @ V.mT)).mT @ phi
                return self._flat(total).numpy()

            operator = linalg.LinearOperator((size, size), matvec=times, dtype=np.float64)
            start = np.random.default_rng(0).standard_normal(size)
            found = linalg.eigsh(operator, rank, which="LA", v0=start, tol=EIGENVALUES)
            values, vectors = (torch.from_numpy(part) for part in found)
        leading: Tensor = vectors[:, -rank:] * values[-rank:].clamp(min=0).sqrt()
        return leading


class HeadAlone:
    """The precisions where the head's entries are all of z; see :class:`.way.AnyWay`.

    Args:
        program: The model as tensor functions.
        rows: All rows.
        prior: Its prior.
        head: The head.
        structure: Which precision.
        rank: Of ``"low_rank"``.

    Raises:
        OptionError: If the structure is too large.
    """

    def __init__(
        self,
        program: Program,
        rows: Batch,
        prior: GaussianPrior,
        head: Head,
        structure: Structure,
        rank: int,
    ) -> None:
        if structure == "full":
            require_size(head.entries.numel(), OTHERS)
        self._program, self._rows, self._prior, self._head = program, rows, prior, head
        self._structure, self._rank = structure, rank
        self._own: CurvatureOf | None = None

    def to_mode(self, z: Tensor, bar: Bar) -> CurvatureOf:
        """Kronecker factors, or all correlations of few entries, which lead there in few steps."""
        program = self._program
        features = Features.of(program, self._head, self._rows, z)
        objective = HeadObjective(program, self._rows, self._prior, features)
        objective.bar = bar
        structure: Structure = "full" if program.num_latents <= FEW else "kron"
        if structure == "kron" and not self._head.has_bias:
            structure = "diagonal"
        found = HeadCurvature(objective, structure, self._rank, features)
        self._own = found if structure == self._structure else found.like(self._structure, None)
        return found

    def at_mode(self, z: Tensor) -> CurvatureOf | None:  # noqa: ARG002
        """That of the Gaussian."""
        return self._own


class HeadAtMode:
    """The precisions where the Gaussian is over the head alone, and z is more than that.

    Args:
        on_the_way: That by which the mode is found.
        head: The head.
        structure: Which precision.
        rank: Of ``"low_rank"``.
        entries: The head's entries in the order of z ``[P']``.

    Raises:
        OptionError: If the structure is too large.
    """

    def __init__(
        self,
        on_the_way: CurvatureOf,
        head: Head,
        structure: Structure,
        rank: int,
        entries: Tensor,
    ) -> None:
        if structure == "full":
            require_size(len(entries), OTHERS)
        self._on_the_way, self._head, self._entries = on_the_way, head, entries
        self._structure, self._rank = structure, rank

    def to_mode(self, z: Tensor, bar: Bar) -> CurvatureOf:  # noqa: ARG002
        """The same from anywhere."""
        self._on_the_way.objective.bar = bar
        return self._on_the_way

    def at_mode(self, z: Tensor) -> CurvatureOf:
        """By the features there, or as of all networks where some row has a density of its own."""
        objective = self._on_the_way.objective
        if not explains_rows(objective.program, self._head, objective.rows, z):
            return self._on_the_way.like(self._structure, self._entries)
        features = Features.of(objective.program, self._head, objective.rows, z)
        return HeadCurvature(objective, self._structure, self._rank, features, self._entries)


def head_of(program: Program) -> Head | None:
    """The head of a program whose curvature has a closed form on two rows; None without one.

    Whether it has on all rows :func:`explains_rows` tells, which runs the model on them.
    """
    head = Head.of(program)
    return None if head is None or outputs_of(program, program.initial) is None else head


def explains_rows(program: Program, head: Head, rows: Batch, z: Tensor) -> bool:
    """Whether the log density of each row is that of the family at the features times the weights.

    It is looked at twice: at z ``[P]``, and where the head's weights are others, with outputs of
    about 10, and all other values have moved a little. So an sd, an offset or an exposure of some
    rows is seen, and bounds on f are.

    Args:
        program: The model as tensor functions.
        head: Its head.
        rows: All rows.
        z: Values of the sites.
    """
    at = z.to(program.initial)
    params = {name: value.detach() for name, value in program.params.items()}
    if not _explains_rows_at(program, head, rows, at, params):
        return False
    generator = torch.Generator().manual_seed(0)

    def noise(like: Tensor) -> Tensor:
        return torch.randn(like.shape, generator=generator).to(like)

    for name, value in program.params.items():
        if value.requires_grad:
            params[name] = 1.1 * params[name] + 0.05 * noise(value)
    moved = 1.1 * at + 0.05 * noise(at)
    W = noise(moved[head.entries])
    phi, _ = head.seen(program, moved, program.example[:1], params)
    if phi is None:
        return False
    moved[head.entries] = W * (FAR / (phi @ W.mT).abs().max().clamp_min(1e-3))
    return _explains_rows_at(program, head, rows, moved, params)


def _explains_rows_at(program: Program, head: Head, rows: Batch, z: Tensor, params: Params) -> bool:
    """Whether it is at values of all sites, and of the point-estimated parameters."""
    outputs = outputs_of(program, z, params)
    if outputs is None:
        return False
    W, eps = head.weights(z), torch.finfo(program.dtype).eps

    def fit(numbers: Tensor) -> Tensor:
        some = rows.take(numbers)
        phi, run = head.seen(program, z, some, params)
        if phi is None:
            return torch.zeros_like(numbers, dtype=torch.bool)
        (nll, slope), own = outputs.nll(phi @ W.mT, some.y), -log_prob(run.y)
        # what rounding of f, a sum of products, makes of the density
        of_f = 4 * eps * phi.norm(dim=-1) * (slope.abs() @ W.norm(dim=-1))
        fits: Tensor = (nll - own).abs() <= eps**0.5 * (1 + own.abs()) + of_f
        return fits | (nll == own)  # infinite ones

    return bool(in_chunks(fit, torch.arange(len(rows.x))).all())


def is_convex(program: Program, head: Head, prior: GaussianPrior) -> bool:
    """Whether the head's entries are all of z, under a prior that is Gaussian as it stands."""
    if not head.is_all_of(program) or not prior.is_exact:
        return False
    params = {name: value.detach() for name, value in program.params.items()}
    loc, precision = prior.loc.double(), prior.precision.double()
    with torch.no_grad():
        if program.run_at(program.initial).factors:
            return False
        for z in (program.initial, 0.5 * program.initial + 0.1):
            error = z.double() - loc
            own = 0.5 * (precision.log() - precision * error.square()).sum()
            own = own - 0.5 * len(z) * math.log(2 * math.pi)
            actual = program.log_prior(z, program.example.x, params)
            if not math.isclose(own, actual, rel_tol=TOLERANCE, abs_tol=TOLERANCE):
                return False
    return True
