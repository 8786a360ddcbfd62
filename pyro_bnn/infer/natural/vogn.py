"""Variational online Gauss-Newton: curvature from the squared gradients of single rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from pyro_bnn.infer.curvature.precision import Diagonal
from pyro_bnn.infer.curvature.rows import Curvature, RowTerms
from pyro_bnn.infer.natural.engine import NaturalEngine
from pyro_bnn.infer.natural.options import Expectation
from pyro_bnn.infer.natural.run import NaturalRun
from pyro_bnn.infer.natural.von import CurvatureRun


@dataclass(frozen=True, kw_only=True)
class VOGN(NaturalEngine):
    r"""Variational online Gauss-Newton: a diagonal Gaussian by the squared gradients of rows.

    .. math::
        s \leftarrow (1 - b)\, s + b\, E_q \tfrac1M \sum_i g_i^2, \qquad
        m \leftarrow m - a\, \frac{\hat g + \tilde\delta (m - l)}{s + \tilde\delta + \lambda},
        \qquad q = \mathcal N\Bigl(m, \frac1{N s + \delta}\Bigr)

    elementwise, with the gradients :math:`g_i` of M rows of a batch, each of its own, the mean
    gradient :math:`\hat g` with momentum, and :math:`\tilde\delta = \delta / N` of the prior's
    precision. Costs one backward pass a step, as Adam does, and no second derivatives: s is the
    empirical Fisher information. That is never negative, and close to the curvature for classes; it
    is biased for regression, where it follows the squared residuals instead of the noise:
    :math:`N s_j = \sum_i x_{ij}^2 E_q[(y_i - f_i)^2] / \sigma^4`, which ``VON`` is not. Residuals
    of r noise sds, as of a random start under small noise, make s larger than the curvature by r^2
    and steps as much shorter: a ``learning_rate`` near 1 makes up for it; the first scale, momentum
    and damping do not. Misses every correlation between weights.

    Args:
        momentum: Share of the last steps' gradients in each, in [0, 1), bias-corrected.
        damping: Constant :math:`\lambda` in the mean's step, in curvature of one row. It makes
            steps smaller and is no part of q, so that it moves no fixed point; the authors' large
            experiments add it to the precision of q too, which makes q too narrow.
        expectation: ``"sample"`` takes gradients at draws of q; ``"mean"`` at its mean (online
            Gauss-Newton).
        init_scale: Standard deviation of q at the start, > 0, where the prior's is not smaller;
            None for the prior's.

    All other options are those of :class:`~pyro_bnn.infer.natural.engine.NaturalEngine`.

    Raises:
        OptionError: If an option is out of its range.

    References:
        Khan et al., "Fast and Scalable Bayesian Deep Learning by Weight-Perturbation in Adam",
        ICML 2018, arXiv:1806.04854. Osawa et al., "Practical Deep Learning with Bayesian
        Principles", NeurIPS 2019, arXiv:1906.02506.

    Example:
        >>> import torch
        >>> from pyro_bnn import models
        >>> x = torch.linspace(-1, 1, 20).unsqueeze(-1)
        >>> posterior = VOGN(num_steps=5).run(models.MLP(1), (x, x[:, 0]), progress=False)
        >>> posterior.predict(x).mean.shape
        torch.Size([20, 1])
    """

    momentum: float = 0.9
    damping: float = 0.0
    expectation: Expectation = "sample"
    init_scale: float | None = 0.1

    def _make_run(self) -> type[NaturalRun]:
        return _Run


class _Run(CurvatureRun):
    """The run; see the base class."""

    STATE: ClassVar[tuple[str, ...]] = (*CurvatureRun.STATE, "velocity")
    needs: Curvature = "squared_gradients"

    def update(self, terms: RowTerms) -> None:
        r"""Move S = N s, the precision P of q, and m; w is the likelihood's weight.

        .. math::
            S \leftarrow (1 - b)\, S + b\, E_q \tfrac NM \sum_i g_i^2, \qquad P = w S + \delta \\
            m \leftarrow m - a\, \frac{w N \hat g + \delta (m - l)}{P + \lambda w N}
        """
        assert terms.curvature is not None
        a, b, w, N = self.rate, self.precision_rate, self.weight, self.num_data
        m, loc, delta = self.mean, self.prior.loc, self.prior.precision
        self.average = S = torch.lerp(self.average, terms.curvature, b)
        self.q = P = Diagonal(w * S + delta)
        Ng = self.with_momentum(terms.gradient.mean(0), self.engine.momentum)
        self.mean = m - a * P.solve(w * Ng + delta * (m - loc), self.engine.damping * w * N)
