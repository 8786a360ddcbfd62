"""Variational online Newton: natural-gradient variational inference with second derivatives."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from pyro_bnn.infer.curvature.precision import Dense, Diagonal, Precision
from pyro_bnn.infer.curvature.rows import NewtonCurvature, RowTerms
from pyro_bnn.infer.natural.engine import NaturalEngine
from pyro_bnn.infer.natural.options import Covariance, Expectation
from pyro_bnn.infer.natural.run import NaturalRun
from pyro_bnn.posterior.nature import Fault


@dataclass(frozen=True, kw_only=True)
class VON(NaturalEngine):
    r"""Variational online Newton: a Gaussian whose precision averages the curvature at its draws.

    .. math::
        \Sigma^{-1} \leftarrow (1 - b)\, \Sigma^{-1} + b\, (E_q[N H] + \Delta), \qquad
        m \leftarrow m - a\, \Sigma\, (E_q[N g] + \Delta (m - l))

    with the new :math:`\Sigma`, the mean gradient g and curvature H of the negative log likelihood
    of a row, and the prior :math:`\mathcal N(l, \Delta^{-1})`. It is the natural gradient of the
    ELBO in the Gaussian's natural parameters, by the theorems of Bonnet and Price. Where it stands
    still with the Hessian, q is a stationary point of the ELBO over its family, whatever the rates:
    :math:`\Sigma^{-1} = \Delta + E_q[N H]`, elementwise for the diagonal. With a full covariance,
    a = b = 1 and exact expectations a linear regression is done in one step; the diagonal is then a
    Jacobi iteration, which may diverge: lower the rate.

    Args:
        covariance: ``"diagonal"``; ``"full"`` costs O(P^3) a step, in float64.
        curvature: ``"hessian"``, exact, which may be indefinite for a network, so that the
            precision is lost: an error says so; it takes P backward passes and P^2 numbers, also
            for the diagonal. Or ``"ggn"``, generalised Gauss-Newton, which is never indefinite, and
            equals it for a network that is linear in z under Gaussian noise of fixed scale, classes
            or counts; it takes a backward pass for each network output.
        expectation: ``"sample"`` takes gradient and curvature at draws of q; ``"mean"`` at its mean
            alone, without noise and without what the spread of q does: a Laplace approximation
            found by Newton's steps.
        init_scale: Standard deviation of q at the start, > 0, where the prior's is not smaller;
            None for the prior's.

    All other options are those of :class:`~pyro_bnn.infer.natural.engine.NaturalEngine`.

    Raises:
        OptionError: If an option is out of its range.

    References:
        Khan et al., "Fast and Scalable Bayesian Deep Learning by Weight-Perturbation in Adam",
        ICML 2018, arXiv:1806.04854. Khan & Rue, "The Bayesian Learning Rule", JMLR 2023,
        arXiv:2107.04562.

    Example:
        >>> from pyro_bnn import models
        >>> x = torch.linspace(-1, 1, 20).unsqueeze(-1)
        >>> newton = {"num_steps": 1, "learning_rate": 1.0, "precision_learning_rate": 1.0}
        >>> von = VON(covariance="full", expectation="mean", **newton)
        >>> posterior = von.run(models.LinearRegression(1), (x, x[:, 0]), progress=False)
        >>> round(float(posterior.predict(x).mean[-1]), 1)
        0.9
    """

    learning_rate: float = 0.02
    precision_learning_rate: float | None = 0.05
    covariance: Covariance = "diagonal"
    curvature: NewtonCurvature = "ggn"
    expectation: Expectation = "sample"
    init_scale: float | None = 0.01

    remedy: ClassVar[str] = 'Take curvature="ggn", lower learning_rate, or standardise the data'

    @classmethod
    def family(cls, options: Mapping[str, Any]) -> str:
        """Name of the guide that posteriors of these options are."""
        is_full = options.get("covariance") == "full"
        return "AutoMultivariateNormal" if is_full else "AutoNormal"

    @classmethod
    def remedies(cls, options: Mapping[str, Any]) -> dict[Fault, str]:
        """What mends each fault; see the base class."""
        own = super().remedies(options)
        wider = "set covariance='full'"
        if options.get("covariance") == "full":
            wider = "try a guide of another shape, such as AutoFlow, or use NUTS"
        return {**own, "narrow": wider, "poor family": wider}

    def _make_run(self) -> type[NaturalRun]:
        return _FullRun if self.covariance == "full" else CurvatureRun


class CurvatureRun(NaturalRun):
    """A run whose precision is that of the prior plus a moving average of the curvature.

    Attributes:
        average: Curvature of all N rows, of likelihood weight 1: ``[P]`` or ``[P, P]``.
    """

    STATE: ClassVar[tuple[str, ...]] = ("mean", "average")

    engine: Any  # the subclass, with options of its own
    average: Tensor

    def start(self) -> None:
        """The curvature that gives q its first scale."""
        first = self.prior.at_least(self.engine.init_scale)
        self.average = (first - self.prior.precision) / self.weight

    def precision(self) -> Precision:
        """Prior plus curvature."""
        return Diagonal(self.weight * self.average + self.prior.precision)

    def update(self, terms: RowTerms) -> None:
        r"""Move the average A of the curvature, the precision P of q, and m; w is its weight.

        .. math::
            A \leftarrow (1 - b)\, A + b\, E_q[N H], \qquad P = w A + \Delta \\
            m \leftarrow m - a\, P^{-1} (w\, E_q[N g] + \Delta (m - l))
        """
        assert terms.curvature is not None
        a, b, w = self.rate, self.precision_rate, self.weight
        m, loc, delta = self.mean, self.prior.loc, self.prior.precision
        self.average = torch.lerp(self.average, terms.curvature, b)
        self.q = P = self.precision()
        Ng = terms.gradient.mean(0)
        self.mean = m - a * P.solve(w * Ng + delta * (m - loc))


class _FullRun(CurvatureRun):
    """The run of a full covariance, in float64; see the base class."""

    is_full: ClassVar[bool] = True
    in_float64: ClassVar[bool] = True

    def start(self) -> None:
        super().start()
        self.average = self.average.diag()

    def precision(self) -> Precision:
        return Dense(self.weight * self.average + self.prior.precision.diag())
