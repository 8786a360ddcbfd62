r"""Mean-field Gaussian of low-rank standard deviations, :math:`\sigma = A B^\top`."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from pyro_bnn.checks import check_positive_int
from pyro_bnn.guides.guide import fixed_noise, positive_parameter
from pyro_bnn.guides.matrix_sites import MatrixGuide
from pyro_bnn.guides.normal import AutoNormal
from pyro_bnn.guides.parts.matrices import Layout, fit_scales, pieces, total
from pyro_bnn.program.handlers import Model


class AutoKTiedNormal(MatrixGuide, AutoNormal):
    r"""Mean-field Gaussian with tied standard deviations in each weight matrix.

    .. math:: W_{ij} \sim \mathcal N\bigl(M_{ij}, \sigma_{ij}^2\bigr) \text{ independently}, \qquad
              \sigma = A B^\top, \quad A_{ik}, B_{jk} > 0

    with A ``[O, R]`` and B ``[I, R]``: O I + R (O + I) parameters a matrix instead of 2 O I, and
    gradients of the scales that are averages over rows and columns, of less noise. Captures what of
    the scales belongs to units, as the trained scales of mean-field fits mostly do; misses every
    correlation between weights, as ``AutoNormal`` does, and a single weight whose scale is unlike
    those of its row and column. With a rank of min(O, I) it contains the mean-field family.

    It covers every real site whose value is a matrix ``[O, I]`` with O and I above 1; the weights
    ``[O, I, ...]`` of a convolution are one matrix of O rows, a column for each input channel and
    position. All other sites (biases, the one row of a single output, scales) are as in
    ``AutoNormal``, and so is everything that follows from independent Gaussians: the KL in closed
    form, quantiles, local reparameterisation. As :math:`(c A_{\cdot k}, B_{\cdot k} / c)` is the
    same q for every c > 0, the factors have units only together.

    Args:
        model: Pyro model with at least one such matrix.
        init_loc_fn: Start of the means; default a draw from the prior.
        init_scale: Initial standard deviation of every entry of z, > 0, in its units.
        rank: Rank R of the matrices of standard deviations; the paper's k.

    Raises:
        OptionError: If ``rank`` is not a positive integer or ``init_scale`` is not positive.
        SiteError: If the model has no such matrix; names the sites that it has.

    References:
        Swiatkowski et al., "The k-tied Normal Distribution: A Compact Parameterization of Gaussian
        Mean Field Posteriors in Bayesian Neural Networks", ICML 2020, arXiv:2002.02655.

    Example:
        >>> from pyro_bnn.models import MLP
        >>> guide = AutoKTiedNormal(MLP(3, hidden=(8,)))
        >>> guide.setup(torch.zeros(1, 3))
        >>> {name: (A.shape, B.shape) for name, (A, B) in guide.scale_factors().items()}
        {'layers.0.weight': (torch.Size([8, 2]), torch.Size([3, 2]))}
    """

    takes_filters: ClassVar[bool] = True
    contains = ()
    enlarged_by = "rank"

    other_scale: Tensor
    row_scale: Tensor
    column_scale: Tensor

    def __init__(
        self,
        model: Model,
        init_loc_fn: Callable[[dict[str, Any]], Tensor] | None = None,
        init_scale: float = 0.01,
        rank: int = 2,
    ) -> None:
        super().__init__(model, init_loc_fn, init_scale)
        check_positive_int("rank", rank)
        self.rank = rank

    def make_parameters(self, loc: Tensor) -> None:
        r"""Create the means, the scales outside matrices, and the factors of those within.

        ``loc [P]``; ``other_scale`` of the entries outside matrices; and of one matrix after
        another, those of equal shape together: ``row_scale`` (A) and ``column_scale`` (B). All of B
        is :math:`\sqrt{s / R}`, and the rows of A are random shares of :math:`\sqrt{s R}` that
        differ by a tenth: every scale is s, and no two columns have the same gradient.
        """
        self._layout = layout = Layout.of(self._shapes, self._matrices)
        shares = (0.1 * fixed_noise(total(layout.rows), self.rank, loc)).softmax(-1)
        length, each = total(layout.columns) * self.rank, math.sqrt(self.init_scale / self.rank)
        self.loc = nn.Parameter(loc)
        self.other_scale = positive_parameter(loc.new_full((layout.num_others,), self.init_scale))
        root = math.sqrt(self.init_scale * self.rank)
        self.row_scale = positive_parameter(root * shares.flatten())
        self.column_scale = positive_parameter(loc.new_full((length,), each))

    def set_sds(self, sds: Tensor) -> None:
        """Make the products of the factors near ``sds [P]``; other entries have these sds."""
        self.require_setup()
        others, matrices = self._layout.split(sds.to(self.loc))
        with torch.no_grad():
            fits = [
                fit_scales(S, A, B) for S, (A, B) in zip(matrices, self._factors(), strict=True)
            ]
        empty = [self.loc.new_zeros(0)]
        self.other_scale = others
        self.row_scale = torch.cat(empty + [A.flatten() for A, _ in fits])
        self.column_scale = torch.cat(empty + [B.flatten() for _, B in fits])

    @property
    def scale(self) -> Tensor:  # type: ignore[override]  # made of parameters, and no parameter
        """Standard deviations ``[P]`` of all entries of z."""
        self.require_setup()
        return self.once("scale", self._sds)

    def _sds(self) -> Tensor:
        return self._layout.join(self.other_scale, [A @ B.mT for A, B in self._factors()])

    def _factors(self) -> list[tuple[Tensor, Tensor]]:
        """A ``[G, O, R]`` and B ``[G, I, R]`` of each group of matrices."""
        R = self.rank
        rows = pieces(self.row_scale, [(G, n * R) for G, n in self._layout.rows])
        columns = pieces(self.column_scale, [(G, n * R) for G, n in self._layout.columns])
        return [
            (A.unflatten(-1, (-1, R)), B.unflatten(-1, (-1, R)))
            for A, B in zip(rows, columns, strict=True)
        ]

    def scale_factors(self) -> dict[str, tuple[Tensor, Tensor]]:
        """A ``[O, R]`` and B ``[I, R]`` of each matrix by the name of its site, detached."""
        self.require_setup()
        return self.by_site(self._factors())
