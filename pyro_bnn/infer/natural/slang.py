"""SLANG: a Gaussian whose precision is of low rank plus a diagonal, by natural gradients."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from pyro_bnn.infer.curvature.precision import LowRank, Precision, largest
from pyro_bnn.infer.curvature.rows import Curvature, RowTerms
from pyro_bnn.infer.natural.engine import NaturalEngine
from pyro_bnn.infer.natural.options import Expectation
from pyro_bnn.infer.natural.run import NaturalRun
from pyro_bnn.posterior.nature import Fault


@dataclass(frozen=True, kw_only=True)
class SLANG(NaturalEngine):
    r"""SLANG: precision of rank R plus a diagonal, by the gradients of rows.

    .. math::
        A = (1 - b)\, U U^\top + b\, G G^\top, \qquad U' U'^\top = \text{the R largest of } A \\
        d' = (1 - b)\, d + b\, \delta + \mathrm{diag}(A - U' U'^\top), \qquad
        m \leftarrow m - a\, (U' U'^\top + \mathrm{diag}(d'))^{-1} (N \hat g + \delta (m - l))

    with :math:`G G^\top = \frac N{MS} \sum_i g_i g_i^\top` of the gradients of M rows at S draws of
    :math:`q = \mathcal N(m, (U U^\top + \mathrm{diag}\, d)^{-1})`, and :math:`\hat g` their mean
    with momentum, bias-corrected. What the rank leaves out goes to the diagonal, so that the
    precision's diagonal is that of the full average. It is the empirical Fisher information: on
    regression it has the bias of ``VOGN``, and its short steps where residuals are large: take a
    ``learning_rate`` near 1 there. A step costs O(P (R + M S)^2) and keeps M S gradients: take
    minibatches.

    Args:
        rank: Rank R; that of a model with fewer entries of z is P.
        momentum: Share of the last steps' gradients in each, in [0, 1).
        damping: Constant added to the diagonal in the mean's step, in curvature of one row; no part
            of q.
        expectation: ``"sample"`` takes gradients at draws of q; ``"mean"`` at its mean.
        init_scale: Standard deviation of q at the start, > 0, where the prior's is not smaller;
            None for the prior's.

    All other options are those of :class:`~pyro_bnn.infer.natural.engine.NaturalEngine`.

    Raises:
        OptionError: If an option is out of its range.

    References:
        Mishkin et al., "SLANG: Fast Structured Covariance Approximations for Bayesian Deep Learning
        with Natural Gradient", NeurIPS 2018, arXiv:1811.04504.

    Example:
        >>> from pyro_bnn import models
        >>> x = torch.linspace(-1, 1, 20).unsqueeze(-1)
        >>> posterior = SLANG(num_steps=5).run(models.MLP(1), (x, x[:, 0]), progress=False)
        >>> posterior.predict(x).mean.shape
        torch.Size([20, 1])
    """

    learning_rate: float = 0.05
    rank: int = 5
    momentum: float = 0.9
    damping: float = 0.0
    expectation: Expectation = "sample"
    init_scale: float | None = 0.1

    @classmethod
    def family(cls, options: Mapping[str, Any]) -> str:  # noqa: ARG003
        """Name of the guide that posteriors of these options are."""
        return "AutoLowRankPrecision"

    @classmethod
    def remedies(cls, options: Mapping[str, Any]) -> dict[Fault, str]:
        """What mends each fault; see the base class."""
        wider = "raise rank, or use NUTS"
        return {**super().remedies(options), "narrow": wider, "poor family": wider}

    def _make_run(self) -> type[NaturalRun]:
        return _Run


class _Run(NaturalRun):
    """The run, in float64; see the base class.

    Attributes:
        diagonal: d ``[P]``.
        factor: U ``[P, R]``.
        velocity: Gradient of minus the log likelihood with momentum ``[P]``.
    """

    STATE: ClassVar[tuple[str, ...]] = ("mean", "diagonal", "factor", "velocity")
    in_float64: ClassVar[bool] = True
    needs: Curvature = "gradients"

    engine: Any  # a SLANG
    diagonal: Tensor
    factor: Tensor

    def start(self) -> None:
        size = len(self.mean)
        self.diagonal = self.prior.at_least(self.engine.init_scale).clone()
        self.factor = self.mean.new_zeros(size, min(self.engine.rank, size))

    def precision(self) -> Precision:
        return LowRank(self.diagonal, self.factor)

    def update(self, terms: RowTerms) -> None:
        r"""Move U, d and m; w is the likelihood's weight, and P the precision of q.

        .. math::
            A = (1 - b)\, U U^\top + b w\, G G^\top = W W^\top, \qquad
            U' U'^\top = \text{the R largest of } A \\
            d' = (1 - b)\, d + b\, \delta + \mathrm{diag}(A - U' U'^\top), \qquad
            P = U' U'^\top + \mathrm{diag}(d') \\
            m \leftarrow m - a\, (P + \lambda w N)^{-1} (w N \hat g + \delta (m - l))
        """
        assert terms.curvature is not None
        a, b, w, N = self.rate, self.precision_rate, self.weight, self.num_data
        m, loc, delta = self.mean, self.prior.loc, self.prior.precision
        U, d, G = self.factor, self.diagonal, terms.curvature.mT
        W = torch.cat([(1 - b) ** 0.5 * U, (b * w) ** 0.5 * G], 1)
        self.factor = U = largest(W, U.shape[1])
        rest = (W.square().sum(1) - U.square().sum(1)).clamp(min=0)  # below 0 by rounding
        self.diagonal = d = (1 - b) * d + b * delta + rest
        self.q = P = LowRank(d, U)
        Ng = self.with_momentum(terms.gradient.mean(0), self.engine.momentum)
        self.mean = m - a * P.solve(w * Ng + delta * (m - loc), self.engine.damping * w * N)
