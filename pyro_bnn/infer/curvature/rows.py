r"""Likelihood of rows at draws with its gradients and curvature, a chunk of rows at a time.

With :math:`\ell_i = -\log p(y_i \mid x_i, z)`, its gradient :math:`g_i` and the weights :math:`w_i`
of ``poutine.scale``, 1 without it, all sums over the rows of a batch times N/B, the curvature is
one of

.. math:: \sum_i w_i\, g_i \circ g_i \;\text{(empirical Fisher, diagonal)}, \qquad
          \sum_i w_i\, J_i^\top F_i J_i \;\text{(generalised Gauss-Newton)}, \qquad
          \sum_i w_i\, \nabla^2 \ell_i \;\text{(Hessian)}

Gradients of single rows are those of ``torch.func.vmap`` over the rows.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Literal, NamedTuple, TypeAlias

import torch
from torch import Tensor

from pyro_bnn.capture.captured import Captured
from pyro_bnn.errors import OptionError
from pyro_bnn.handled import model_name
from pyro_bnn.infer.curvature.fisher import FISHER
from pyro_bnn.memory import bytes_per_draw
from pyro_bnn.program.batched import plain_attention, refused_as, without_vmap_warnings
from pyro_bnn.program.distributions import base_distribution
from pyro_bnn.program.program import Program
from pyro_bnn.program.terms import Batch

MEMORY = 64 << 20  # bytes of intermediate results of one chunk of rows

Curvature: TypeAlias = Literal["none", "squared_gradients", "gradients", "ggn", "roots", "hessian"]
NewtonCurvature: TypeAlias = Literal["ggn", "hessian"]
PerDraw: TypeAlias = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, ...]]


class RowTerms(NamedTuple):
    r"""What a batch says at draws, for all N rows.

    Attributes:
        z: The draws ``[S, P]``.
        nll: Minus the log likelihood at each draw ``[S]``.
        gradient: Its gradient ``[S, P]``.
        curvature: Mean over the draws of the curvature: ``[P]``, ``[P, P]``, or None; of
            ``"gradients"`` the gradient of each row ``[S B, P]`` times :math:`\sqrt{N/(S B)}`,
            whose products sum to the empirical Fisher information.
    """

    z: Tensor
    nll: Tensor
    gradient: Tensor
    curvature: Tensor | None


class RowTermsOf:
    """The terms of any rows of a program at any draws.

    Args:
        program: The model as tensor functions; its point-estimated parameters are held fixed.
        curvature: Which one, see the module; ``"roots"`` for :meth:`roots` of ``"ggn"`` alone.
        batch: Rows of the data.
        num_draws: Draws S at once.
        is_full: Whether it is a matrix, of ``"ggn"`` and ``"hessian"``.
        rows_vary: Whether batches have many numbers of rows.
        is_captured: Whether it is replayed as a graph of operations.
        entries: Entries ``[P']`` of z that ``"ggn"`` is over; default all.

    Raises:
        ModelError: If the model cannot be batched over rows.
        OptionError: If the likelihood has no known Fisher information.

    Attributes:
        chunk: How many rows are computed at once.
    """

    def __init__(
        self,
        program: Program,
        curvature: Curvature,
        batch: Batch,
        num_draws: int,
        *,
        is_full: bool = False,
        rows_vary: bool = False,
        is_captured: bool = True,
        entries: Tensor | None = None,
    ) -> None:
        self._program, self._curvature, self._is_full = program, curvature, is_full
        self._entries = entries
        self._params = {name: value.detach() for name, value in program.params.items()}
        values = program.constrain(program.initial)
        first = Batch(batch.x[:1], batch.y[:1])
        _, self._scale_of_one = program.row_log_likelihood(values, first, self._params)
        weights = program.row_weights(program.initial, first.x, self._params)
        self._has_weights = weights is not None
        if curvature in ("ggn", "roots"):
            self._require_fisher(batch.x[:1])
        self._draws_at_once = 1 if is_full else num_draws
        own: PerDraw = getattr(self, f"_with_{curvature}")
        self.chunk = self._rows_at_once(own, batch)
        name = model_name(program.model)
        rows = {1: 0, 2: 0} if rows_vary else {}
        self._terms = Captured(_over_draws(own), f"{name} by rows", enabled=is_captured, rows=rows)
        self._nll = Captured(
            _over_draws(self._without_gradient), f"{name} at draws", enabled=is_captured, rows=rows
        )

    @property
    def compile_path(self) -> str:
        """How it computes."""
        return "captured" if self._terms.is_captured and self._nll.is_captured else "eager"

    def __call__(self, z: Tensor, batch: Batch) -> RowTerms:
        """The terms at draws z ``[S, P]``."""
        scale = self._scale(batch)
        chunks = self._chunks(batch)
        if self._curvature == "gradients":
            parts = [self._terms(z, *chunk) for chunk in chunks]
            nll = sum((part[0] for part in parts[1:]), parts[0][0])
            gradient = sum((part[1] for part in parts[1:]), parts[0][1])
            each = torch.cat([part[2] for part in parts], 1)  # [S, B, P]
            curvature = each.flatten(0, 1) * (scale / len(z)) ** 0.5
            return RowTerms(z, scale * nll, scale * gradient, curvature)
        of_draws = [
            functools.reduce(_added, (self._terms(some, *chunk) for chunk in chunks))
            for some in z.split(self._draws_at_once)
        ]
        nll, gradient = (torch.cat([values[i] for values in of_draws]) for i in (0, 1))
        if self._curvature == "none":
            return RowTerms(z, scale * nll, scale * gradient, None)
        total = functools.reduce(torch.add, (values[2].sum(0) for values in of_draws))
        return RowTerms(z, scale * nll, scale * gradient, scale * total / len(z))

    def nll(self, z: Tensor, batch: Batch) -> Tensor:
        """Minus the log likelihood of all N rows at each draw ``[S]``, without gradients."""
        values = [self._nll(z, *chunk)[0] for chunk in self._chunks(batch)]
        return self._scale(batch) * functools.reduce(torch.add, values)

    def roots(self, z: Tensor, batch: Batch) -> Iterator[Tensor]:
        """Roots of ``"ggn"`` at z ``[P]``, some rows at a time.

        Yields:
            R^T J ``[B, K, P']`` of these rows, times the root of their scale: over all rows the
            products of the ``[P']`` sum to the matrix.
        """
        scale = self._scale(batch) ** 0.5
        for chunk in self._chunks(batch):
            with without_vmap_warnings():
                yield scale * self._roots(z, chunk.x)

    def weights(self, z: Tensor, x: Tensor) -> Tensor | None:
        """Weights ``[B]`` of rows by a tensor of ``poutine.scale``; None without one."""
        if not self._has_weights:
            return None
        weights = self._program.row_weights(z, x, self._params)
        assert weights is not None
        return weights.detach().to(z)

    def _scale(self, batch: Batch) -> float:
        """N/B, times what the model scales its likelihood by."""
        return self._scale_of_one / len(batch.x)

    def _chunks(self, batch: Batch) -> Sequence[Batch]:
        pairs = zip(batch.x.split(self.chunk), batch.y.split(self.chunk), strict=True)
        return [Batch(x, y) for x, y in pairs]

    def _rows_at_once(self, own: PerDraw, batch: Batch) -> int:
        """How many rows are within the bound of memory.

        Raises:
            ModelError: If the model cannot be batched over rows.
        """
        z = self._program.initial.unsqueeze(0)
        with refused_as(
            "gradients of single rows need a model that can be batched over draws and rows, and "
            "this one cannot: take SVI"
        ):
            at_all, at_one = bytes_per_draw(_over_draws(own), z, batch)
        num_rows = len(batch.x)
        per_row = max(1, (at_all - at_one) // max(1, num_rows - 1)) * self._draws_at_once
        return max(1, min(num_rows, 1 + (MEMORY - at_one * self._draws_at_once) // per_row))

    def _require_fisher(self, x: Tensor) -> None:
        fn, is_masked = self._program.observed(self._program.initial, x, self._params)
        family = type(base_distribution(fn))
        if family not in FISHER or is_masked:
            what = "rows that are masked" if is_masked else f"the likelihood {family.__name__}"
            raise OptionError(
                f'curvature="ggn" is not built for {what}, but for '
                'Normal, Bernoulli, Categorical and Poisson: take curvature="hessian"'
            )

    # Of one draw z [P] and rows

    def _row_nll(self, z: Tensor, x: Tensor, y: Tensor) -> Tensor:
        """Minus the log likelihood ``[]`` of rows, unscaled."""
        values = self._program.constrain(z)
        rows, _ = self._program.row_log_likelihood(values, Batch(x, y), self._params)
        return -rows.sum()

    def _without_gradient(self, z: Tensor, x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        return (self._row_nll(z, x, y),)

    def _with_none(self, z: Tensor, x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        gradient, nll = torch.func.grad_and_value(self._row_nll)(z, x, y)
        return nll, gradient

    def _with_gradients(self, z: Tensor, x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        """Values ``[]`` and gradients ``[P]``, summed; roots ``[B, P]`` of the Fisher information.

        A row of weight w counts as w rows: its root is sqrt(w) times its own gradient.
        """

        def of_row(z: Tensor, x: Tensor, y: Tensor) -> Tensor:
            row = Batch(x.unsqueeze(0), y.unsqueeze(0))
            return -self._program.log_likelihood(z, row, self._params).sum()

        each = torch.func.vmap(torch.func.grad_and_value(of_row), (None, 0, 0))
        gradients, values = each(z, x, y)
        if not self._has_weights:
            return values.sum(), gradients.sum(0), gradients
        w = self.weights(z, x)
        assert w is not None
        return w @ values, w @ gradients, w.sqrt().unsqueeze(-1) * gradients

    def _with_squared_gradients(self, z: Tensor, x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        nll, gradient, roots = self._with_gradients(z, x, y)
        return nll, gradient, roots.square().sum(0)

    def _with_hessian(self, z: Tensor, x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        nll, gradient = self._with_none(z, x, y)
        with plain_attention():
            hessian = torch.func.jacrev(torch.func.grad(self._row_nll))(z, x, y)
        return nll, gradient, hessian if self._is_full else hessian.diagonal()

    def _with_ggn(self, z: Tensor, x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        nll, gradient = self._with_none(z, x, y)
        roots = self._roots(z, x).flatten(0, 1)  # [B K, P']
        return nll, gradient, roots.mT @ roots if self._is_full else roots.square().sum(0)

    def _with_roots(self, z: Tensor, x: Tensor, y: Tensor) -> tuple[Tensor, ...]:  # noqa: ARG002
        return (self._roots(z, x),)

    def _roots(self, z: Tensor, x: Tensor) -> Tensor:
        """R^T J ``[B, K, P']`` of rows."""
        where = self._entries
        part = z if where is None else z[where]

        def of_row(x: Tensor) -> Tensor:
            """R^T J ``[K, P']`` of one row."""

            def tensors(part: Tensor) -> Tensor:
                whole = part if where is None else z.index_put((where,), part)
                return self._information(whole, x)[0]

            _, root = self._information(z, x)
            return root(torch.func.jacrev(tensors)(part))

        roots: Tensor = torch.func.vmap(of_row)(x)
        weights = self.weights(z, x)
        return roots if weights is None else roots * weights.sqrt()[:, None, None]

    def _information(self, z: Tensor, x: Tensor) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
        fn, _ = self._program.observed(z, x.unsqueeze(0), self._params)
        base = base_distribution(fn)
        return FISHER[type(base)](base)


def _over_draws(own: PerDraw) -> Callable[..., tuple[Tensor, ...]]:
    def over_draws(z: Tensor, x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        with without_vmap_warnings():
            return torch.func.vmap(own, (0, None, None))(z, x, y)

    return over_draws


def _added(left: tuple[Tensor, ...], right: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return tuple(a + b for a, b in zip(left, right, strict=True))
