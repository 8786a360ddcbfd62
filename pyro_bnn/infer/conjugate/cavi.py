"""Coordinate ascent variational inference for a conjugate model."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from pyro_bnn.checks import check_positive, check_positive_int
from pyro_bnn.guides import AutoNormal, Guide
from pyro_bnn.infer.checkpoints.checkpoint import State
from pyro_bnn.infer.conjugate.ascent import Ascent, ConjugateEngine
from pyro_bnn.models.linear_regression import ExactPosterior
from pyro_bnn.posterior.nature import Fault

logger = logging.getLogger("pyro_bnn")


@dataclass(frozen=True, kw_only=True)
class CAVI(ConjugateEngine):
    r"""Coordinate ascent to the best product of independent Gaussians, of a linear regression.

    .. math:: q(z) = \prod_j \mathcal N(m_j, 1/\Lambda_{jj}), \qquad
              m_j \leftarrow \frac1{\Lambda_{jj}}
              \Bigl(h_j - \sum_{k \ne j} \Lambda_{jk} m_k\Bigr)

    in turn for every j, where the exact posterior is :math:`\mathcal N(\Lambda^{-1} h,
    \Lambda^{-1})`. Each update maximises the ELBO in :math:`q_j`, so the ELBO never falls, and the
    sweeps are those of Gauss and Seidel, which converge for every positive definite precision: to
    the exact means, with variances :math:`1/\Lambda_{jj}`, at most the true ones. It is the optimum
    that ``SVI(AutoNormal)`` looks for by gradients, and below the log evidence by

    .. math:: \log p(y \mid x) - \mathcal L
              = \tfrac12 \Bigl(\sum_j \log \Lambda_{jj} - \log\det\Lambda\Bigr)

    Misses every correlation between weights. Correlated inputs make it slow.

    Args:
        max_sweeps: Most sweeps over the entries of z.
        tolerance: It ends after a sweep that moved no mean by more than this many standard
            deviations of q.

    Raises:
        OptionError: If an option is out of its range.

    References:
        Bishop, "Pattern Recognition and Machine Learning", 2006, section 10.1. Blei, Kucukelbir &
        McAuliffe, "Variational Inference: A Review for Statisticians", JASA 2017, arXiv:1601.00670.

    Example:
        >>> from pyro_bnn import models
        >>> x = torch.linspace(-1, 1, 20).unsqueeze(-1)
        >>> posterior = CAVI().run(models.LinearRegression(1), (x, x[:, 0]), progress=False)
        >>> bool((posterior.losses[1:] <= posterior.losses[:-1]).all())
        True
    """

    max_sweeps: int = 10_000
    tolerance: float = 1e-8

    _guide: ClassVar[type[Guide]] = AutoNormal

    @classmethod
    def remedies(cls, options: Mapping[str, Any]) -> dict[Fault, str]:  # noqa: ARG003
        """What mends each fault; see the base class."""
        return {
            "unfinished": "raise max_sweeps",
            "narrow": "use Exact, which has the correlations",
            "poor family": "use Exact, which has the correlations",
        }

    def __post_init__(self) -> None:
        check_positive_int("max_sweeps", self.max_sweeps)
        check_positive("tolerance", self.tolerance)

    def _ascent(self, exact: ExactPosterior, start: Tensor) -> Ascent:
        return _Sweeps(exact, start, self)


class _Sweeps(Ascent):
    """The sweeps of one run; see the base class."""

    def __init__(self, exact: ExactPosterior, start: Tensor, options: CAVI) -> None:
        super().__init__(exact, start)
        self._options = options
        self._scale = exact.precision.diagonal().rsqrt()  # [P]
        self._change = torch.inf  # of the last sweep

    @property
    def is_done(self) -> bool:
        return self.is_converged or self._is_at_end

    @property
    def _is_at_end(self) -> bool:
        return len(self.losses) >= self._options.max_sweeps

    def go(self) -> None:
        """All entries in turn, each given the new values before it: one triangular solve."""
        precision, before = self.exact.precision, self.mean
        rest = self.exact.shift - torch.triu(precision, 1) @ before
        lower = torch.tril(precision)
        self.mean = torch.linalg.solve_triangular(lower, rest.unsqueeze(-1), upper=False)[:, 0]
        self._change = float(((self.mean - before) / self._scale).abs().max())
        self.losses.append(-self._elbo())
        self.step += 1
        if self._is_at_end and not self.is_converged:
            logger.warning(
                "CAVI stopped after %d sweeps, the last of which moved a mean by %.2g of its "
                "standard deviations: raise max_sweeps",
                len(self.losses),
                self._change,
            )

    @property
    def is_converged(self) -> bool:
        """Whether the last sweep moved no mean by more than the tolerance."""
        return self._change <= self._options.tolerance

    def _elbo(self) -> float:
        """E log p(y, z | x) plus the entropy of q."""
        log_joint = self.exact.log_evidence + self.exact.log_prob(self.mean)
        entropy = torch.distributions.Normal(self.mean, self._scale).entropy().sum()
        return float(log_joint - 0.5 * len(self.mean) + entropy)

    def set(self, guide: Any) -> None:
        with torch.no_grad():
            guide.loc.copy_(self.mean)
        guide.scale = self._scale.to(guide.loc)

    def state(self) -> State:
        return {**super().state(), "change": self._change}

    def restore(self, state: Mapping[str, Any]) -> None:
        super().restore(state)
        self._change = float(state["change"])
