"""The precision of Laplace's approximation at a point: of the data's curvature and the prior's."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor

from pyro_bnn.errors import DivergenceError, OptionError
from pyro_bnn.guides.kronecker import layers_with_bias
from pyro_bnn.infer.curvature.kronecker import Factors, Kronecker, factors_of
from pyro_bnn.infer.curvature.precision import Dense, Diagonal, LowRank, largest
from pyro_bnn.infer.curvature.rows import NewtonCurvature, RowTermsOf
from pyro_bnn.infer.laplace.mode import MinusLogJoint
from pyro_bnn.program.program import Program

Structure: TypeAlias = Literal["full", "kron", "diagonal", "low_rank"]
DENSE = 5_000  # entries of z, above which a matrix of all is too much
ROOTS = 1 << 27  # numbers of the roots of all rows that are kept together


class CurvatureOf:
    """Precisions of one structure at any point.

    Args:
        objective: Minus the log joint density.
        structure: Which precision.
        curvature: Of the data.
        rank: Of ``"low_rank"``.
        entries: Entries of z ``[P']`` that it is over; the others are held.

    Raises:
        OptionError: If the structure is too large, or not built for this curvature or likelihood.

    Attributes:
        objective, structure, entries: As they were given.
    """

    def __init__(
        self,
        objective: MinusLogJoint[Program],
        structure: Structure,
        curvature: NewtonCurvature,
        rank: int,
        entries: Tensor | None = None,
    ) -> None:
        self.objective, self.structure, self.rank = objective, structure, rank
        self.entries, program, rows = entries, objective.program, objective.rows
        size = program.num_latents if entries is None else len(entries)
        if structure == "full":
            require_size(size, f'"kron", "low_rank" or "diagonal"{self._or_last}')
        self._curvature = curvature
        self._known: dict[int, Any] = {}  # of Kronecker factors that stay
        self._last: tuple[Tensor, Any] | None = None  # the point asked for last, and its answer
        self._terms = RowTermsOf(
            program,
            "roots" if curvature == "ggn" else curvature,
            rows,
            1,
            is_full=structure == "full",
            is_captured=False,
            entries=entries,
        )

    def like(self, structure: Structure, entries: Tensor | None) -> CurvatureOf:
        """That of another structure over other entries."""
        return CurvatureOf(self.objective, structure, self._curvature, self.rank, entries)

    @property
    def _remedy(self) -> str:
        """What helps where it is no precision of a mode."""
        longer = "raise num_steps"
        if self._curvature == "ggn":
            return longer
        return f'take curvature="ggn", which is never negative, or {longer}'

    @property
    def _or_last(self) -> str:
        """Which other entries are fewer; those of a subset are some already."""
        return ', or subset="last_layer"' if self.entries is None else ""

    @property
    def chunk(self) -> int:
        """How many rows are computed at once."""
        return self._terms.chunk

    def __call__(self, z: Tensor, *, is_mode: bool = False) -> Any:
        """The precision at z ``[P]``; on the way to a mode with positive eigenvalues for others.

        Raises:
            DivergenceError: If it is not positive definite at a mode; names the eigenvalue.
        """
        if self._last is None or self._last[0] is not z:
            self._last = z, self.of_data(z)
        return self.with_prior(self._last[1], z, is_mode=is_mode)

    def of_data(self, z: Tensor) -> Any:
        """Curvature of the data: ``[P', P']``, ``[P']``, a factor ``[P', R]``, or Kronecker's."""
        at, rows = z.to(self.objective.program.dtype), self.objective.rows
        if self._curvature == "hessian":
            found = self._terms(at.unsqueeze(0), rows).curvature
            assert found is not None
            return found.double()
        each = self._told(self._terms.roots(at, rows))  # [B, K, P'] of some rows
        if self.structure == "kron":
            weights = self._terms.weights(at, rows.x)
            return factors_of(layers_with_bias(self._sites()), each, weights)
        if self.structure == "low_rank":
            parts, count = [], 0
            for roots in each:
                parts.append(roots.flatten(0, 1))
                count += parts[-1].numel()
                if count > ROOTS:
                    raise OptionError(
                        f'structure="low_rank" takes the roots of all {len(rows.x):,} rows, which '
                        f'are too many: take "kron" or "diagonal"{self._or_last}'
                    )
            W = torch.cat(parts).double().mT  # [P', N K]
            return largest(W, min(self.rank, *W.shape))
        total = at.new_zeros((), dtype=torch.float64)
        for roots in each:  # summed in float64
            some = roots.flatten(0, 1).double()
            total = total + (some.mT @ some if self.structure == "full" else some.square().sum(0))
        return total

    def _told(self, each: Iterator[Tensor]) -> Iterator[Tensor]:
        """The same, with the bar told of their rows."""
        for some in each:
            yield some
            self.objective.bar.rows(len(some))

    def with_prior(
        self, of_data: Any, z: Tensor, *, is_mode: bool = True
    ) -> Dense | Diagonal | LowRank | Kronecker:
        """The precision of a curvature of the data, with the prior's at z; see :meth:`__call__`."""
        prior, bend = self.prior_precision(z)
        if isinstance(of_data, Factors):
            return Kronecker(of_data, prior, self._known)
        if self.structure == "full":
            matrix = of_data + prior.diag()
            if bend is not None:
                where, more = bend
                matrix = matrix.index_put((where[:, None], where[None, :]), more, accumulate=True)
            try:
                return Dense(matrix)
            except DivergenceError:
                return Dense(positive(matrix, is_mode=is_mode, remedy=self._remedy))
        if self.structure == "low_rank":
            return LowRank(prior, of_data)
        return Diagonal(positive(of_data + prior, is_mode=is_mode, remedy=self._remedy))

    def _sites(self) -> list[tuple[str, tuple[int, ...], int]]:
        """Names, shapes and first of the ``P'`` entries of the sites that it is over."""
        found, start = [], 0
        taken = None if self.entries is None else set(self.entries.tolist())
        for site in self.objective.program.sites:
            if taken is None or site.start in taken:
                found.append((site.name, tuple(site.shape), start))
                start += site.stop - site.start
        return found

    def prior_precision(self, z: Tensor) -> tuple[Tensor, tuple[Tensor, Tensor] | None]:
        """Curvature of minus the log prior ``[P']``, and where it is no diagonal the rest."""
        objective = self.objective
        prior = objective.factors * objective.precision
        where = objective.others.nonzero()[:, 0]
        bend = None
        if len(where):
            hessian = self._curvature_of_prior(z, where)
            prior = prior.index_put((where,), hessian.diagonal())
            bend = where, hessian - hessian.diagonal().diag()
        if self.entries is None:
            return prior, bend
        return prior[self.entries], None

    def _curvature_of_prior(self, z: Tensor, where: Tensor) -> Tensor:
        """Hessian ``[r, r]`` of minus the log prior in some entries ``[r]`` at z."""
        objective, program = self.objective, self.objective.program
        at = z.to(program.dtype)

        def value(part: Tensor) -> Tensor:
            z = at.index_put((where,), part)
            return -program.log_prior(z, program.example.x, objective.params)

        hessian: Tensor = torch.func.jacrev(torch.func.grad(value))(at[where])
        return hessian.double()


def require_size(size: int, others: str) -> None:
    """Refuse a matrix of all entries that is too large.

    Raises:
        OptionError: If it is; names other options.
    """
    if size > DENSE:
        raise OptionError(
            f'structure="full" is a matrix of {size:,} x {size:,} numbers: take {others}'
        )


def positive(precision: Tensor, *, is_mode: bool, remedy: str) -> Tensor:
    """A precision ``[P, P]`` or ``[P]``; of negative eigenvalues the absolute values.

    Args:
        precision: What is to be one.
        is_mode: Whether it has to be one as it is.
        remedy: What helps where it is not.

    Raises:
        DivergenceError: If it has one at a mode, or is not finite.
    """
    is_matrix = precision.ndim == 2
    if not bool(precision.isfinite().all()):
        raise DivergenceError("Laplace found no mode: the curvature is not finite")
    if not is_matrix and bool((precision > 0).all()):
        return precision
    values, vectors = torch.linalg.eigh(precision) if is_matrix else (precision, None)
    if is_mode:
        least, most = float(values.min()), float(values.max())
        found = (
            f"Laplace found no mode: the curvature has an eigenvalue {least:.3g} beside one of "
            f"{most:.3g}"
        )
        rounding = torch.finfo(values.dtype).eps * len(values) * most
        if is_matrix and abs(least) <= rounding:  # its log determinant is not known
            raise DivergenceError(
                f"{found}, less than the rounding errors of the latter, as where a noise "
                'scale goes to 0. Take a likelihood of fixed scale, or prior_scales="model" '
                "with narrower priors"
            )
        raise DivergenceError(
            f"{found}, so that no Gaussian has it. {remedy[0].upper()}{remedy[1:]}"
        )
    values = values.abs().clamp(min=1e-6 * float(values.abs().max()))
    return values if vectors is None else (vectors * values) @ vectors.mT
