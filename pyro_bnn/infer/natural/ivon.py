"""Improved variational online Newton: curvature from first derivatives, and always positive."""

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
class IVON(NaturalEngine):
    r"""Improved variational online Newton: the diagonal Hessian out of gradients at draws of q.

    .. math::
        \hat h &= E_q[g \circ (z - m)] \circ N (h + \tilde\delta) \\
        h &\leftarrow (1 - b)\, h + b\, \hat h
            + \tfrac12 b^2 \frac{(h - \hat h)^2}{h + \tilde\delta} \\
        m &\leftarrow m - a\, (h_0 + \tilde\delta)\, \mathrm{clip}\Bigl(
            \frac{\hat g + \tilde\delta (m - l)}{h + \tilde\delta}\Bigr), \qquad
        q = \mathcal N\Bigl(m, \frac1{N (h + \tilde\delta)}\Bigr)

    elementwise, with g the mean gradient of a batch, :math:`\hat g` the same with momentum,
    bias-corrected, and :math:`\tilde\delta = \delta / N` of the prior's precision. By Price's
    theorem :math:`\hat h` is the mean Hessian of a row, without bias; the last term keeps
    :math:`h + \tilde\delta \ge \tfrac12 (h + \tilde\delta)` of the step before, so that no
    :math:`\hat h`, however noisy, makes it negative. That noise passes through the square: h ends
    above the Hessian by a share of order b. There is no ``expectation``, as of ``VON``: at the mean
    :math:`z - m`, and with it :math:`\hat h`, is 0. Costs what Adam does. Misses every correlation
    between weights.

    Args:
        momentum: Share of the last steps' gradients in each, in [0, 1).
        init_curvature: :math:`h_0 > 0`, curvature of a row at the start.
        clip_radius: Largest step of an entry in units of the learning rate; None for none.

    All other options are those of :class:`~pyro_bnn.infer.natural.engine.NaturalEngine`;
    ``precision_learning_rate`` is :math:`b = 1 - \beta_2`.

    Raises:
        OptionError: If an option is out of its range.

    References:
        Shen et al., "Variational Learning is Effective for Large Deep Networks", ICML 2024,
        arXiv:2402.17641. Lin, Schmidt & Khan, "Handling the Positive-Definite Constraint in the
        Bayesian Learning Rule", ICML 2020, arXiv:2002.10060.

    Example:
        >>> from pyro_bnn import models
        >>> x = torch.linspace(-1, 1, 20).unsqueeze(-1)
        >>> posterior = IVON(num_steps=5).run(models.MLP(1), (x, x[:, 0]), progress=False)
        >>> posterior.predict(x).mean.shape
        torch.Size([20, 1])
    """

    learning_rate: float = 0.1
    precision_learning_rate: float | None = 0.05
    momentum: float = 0.9
    init_curvature: float = 1.0
    clip_radius: float | None = 0.3

    def _make_run(self) -> type[NaturalRun]:
        return _Run


class _Run(NaturalRun):
    """The run; see the base class.

    Attributes:
        velocity: Mean gradient of a row with momentum ``[P]``.
        curvature: h ``[P]``.
    """

    STATE: ClassVar[tuple[str, ...]] = ("mean", "velocity", "curvature")

    engine: Any  # an IVON
    curvature: Tensor

    def start(self) -> None:
        self.curvature = torch.full_like(self.mean, self.engine.init_curvature)

    def precision(self) -> Precision:
        return Diagonal(self.weight * self.num_data * self.curvature + self.prior.precision)

    def update(self, terms: RowTerms) -> None:
        r"""Move h and m, and q with them; n is N times the likelihood's weight.

        .. math::
            \tilde\delta = \delta / n, \qquad
            \hat h = E_q[g \circ (z - m)] \circ n (h + \tilde\delta), \qquad
            h \leftarrow (1 - b)\, h + b\, \hat h
                + \tfrac12 b^2 \frac{(h - \hat h)^2}{h + \tilde\delta} \\
            m \leftarrow m - a\, (h_0 + \tilde\delta)\, \mathrm{clip}\Bigl(
                \frac{\hat g + \tilde\delta (m - l)}{h + \tilde\delta}\Bigr)
        """
        n, a, b = self.weight * self.num_data, self.rate, self.precision_rate
        h, h0, m, loc = self.curvature, self.engine.init_curvature, self.mean, self.prior.loc
        delta = self.prior.precision / n
        g = terms.gradient / self.num_data  # [S, P], of a row
        h_hat = (g * (terms.z - m)).mean(0) * n * (h + delta)
        correction = 0.5 * b**2 * (h - h_hat).square() / (h + delta)
        self.curvature = h = torch.lerp(h, h_hat, b) + correction
        g_hat = self.with_momentum(g.mean(0), self.engine.momentum)
        step = (g_hat + delta * (m - loc)) / (h + delta)
        if (radius := self.engine.clip_radius) is not None:
            step = step.clamp(-radius, radius)
        self.mean = m - a * (h0 + delta) * step
        self.q = self.precision()
