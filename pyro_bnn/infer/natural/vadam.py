"""Variational Adam: a Gaussian from Adam's own moments, by perturbed weights."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from pyro_bnn.infer.curvature.precision import Diagonal, Precision
from pyro_bnn.infer.curvature.rows import RowTerms
from pyro_bnn.infer.natural.engine import NaturalEngine
from pyro_bnn.infer.natural.run import NaturalRun


@dataclass(frozen=True, kw_only=True)
class Vadam(NaturalEngine):
    r"""Variational Adam: Adam at perturbed weights, whose second moment is the precision of q.

    .. math::
        v \leftarrow \beta_1 v + (1 - \beta_1)(g + \tilde\delta (m - l)), \quad
        s \leftarrow (1 - b)\, s + b\, g^2, \qquad
        m \leftarrow m - a\, \frac{\hat v}{\sqrt{\hat s} + \tilde\delta}, \quad
        q = \mathcal N\Bigl(m, \frac1{N s + \delta}\Bigr)

    elementwise, with g the mean gradient of a batch at a draw of q, :math:`\hat v` and
    :math:`\hat s` bias-corrected, :math:`\tilde\delta = \delta / N` of the prior's precision; q
    takes the uncorrected s. Its precision starts at the prior's, or at a larger one that decays at
    the rate b. A step costs as much as one of Adam.

    The square of a mean is less than the mean of squares: with batches of more than one row q is
    too wide. In one dimension with all N rows and curvature H its precision P stands still at
    :math:`P = \delta + N H^2 / P`, about :math:`\sqrt N H` instead of N H. With several draws s
    takes the mean of their squared gradients: more draws lower its noise, not its value. Unlike
    ``VOGN`` it has no ``expectation``: only perturbed weights show it the curvature. Gradients at
    the mean would make it Adam, whose s vanishes at the mode of the likelihood whatever the
    curvature there.

    Args:
        momentum: :math:`\beta_1`, in [0, 1).
        init_scale: Standard deviation of q at the start, > 0, where the prior's is not smaller;
            None for the prior's, as in the paper. It does not enter the step of the mean.

    All other options are those of :class:`~pyro_bnn.infer.natural.engine.NaturalEngine`;
    Adam's second rate is ``precision_learning_rate`` :math:`b = 1 - \beta_2`.

    Raises:
        OptionError: If an option is out of its range.

    References:
        Khan et al., "Fast and Scalable Bayesian Deep Learning by Weight-Perturbation in Adam",
        ICML 2018, arXiv:1806.04854.

    Example:
        >>> from pyro_bnn import models
        >>> x = torch.linspace(-1, 1, 20).unsqueeze(-1)
        >>> posterior = Vadam(num_steps=5).run(models.MLP(1), (x, x[:, 0]), progress=False)
        >>> posterior.predict(x).mean.shape
        torch.Size([20, 1])
    """

    learning_rate: float = 1e-2
    precision_learning_rate: float | None = 1e-2
    momentum: float = 0.9
    init_scale: float | None = None

    def _make_run(self) -> type[NaturalRun]:
        return _Run


class _Run(NaturalRun):
    """The run; see the base class.

    Attributes:
        velocity: Mean gradient of a row, the prior's included, with momentum ``[P]``.
        square: s ``[P]``.
        uncorrected: Weight that the initial zero still has in s, ``[]``.
    """

    STATE: ClassVar[tuple[str, ...]] = ("mean", "velocity", "square", "uncorrected")

    engine: Any  # a Vadam
    square: Tensor
    uncorrected: Tensor

    def start(self) -> None:
        self.square = torch.zeros_like(self.mean)
        self.uncorrected = self.mean.new_ones(())

    def precision(self) -> Precision:
        first = self.prior.at_least(self.engine.init_scale) - self.prior.precision
        curvature = self.weight * self.num_data * self.square
        return Diagonal(curvature + self.uncorrected * first + self.prior.precision)

    def update(self, terms: RowTerms) -> None:
        r"""Move v, s and m, and q with them; n is N times the likelihood's weight.

        .. math::
            \tilde\delta = \delta / n, \qquad
            v \leftarrow \beta_1 v + (1 - \beta_1)(g + \tilde\delta (m - l)), \qquad
            s \leftarrow (1 - b)\, s + b\, g^2 \\
            m \leftarrow m - a\, \hat v / (\sqrt{\hat s} + \tilde\delta)
        """
        n, a, b = self.weight * self.num_data, self.rate, self.precision_rate
        m, loc, delta = self.mean, self.prior.loc, self.prior.precision
        g = terms.gradient / self.num_data  # [S, P], of a row
        slope = g.mean(0) + delta * (m - loc) / n
        v_hat = self.with_momentum(slope, self.engine.momentum)
        self.square = s = torch.lerp(self.square, g.square().mean(0), b)
        self.uncorrected = self.uncorrected * (1 - b)
        s_hat = s / (1 - self.uncorrected)
        self.mean = m - a * (v_hat / (s_hat.sqrt() + delta / n))
        self.q = self.precision()
