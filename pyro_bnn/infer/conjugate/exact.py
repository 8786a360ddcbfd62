"""The exact posterior of a conjugate model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from pyro_bnn.guides import AutoMultivariateNormal, Guide
from pyro_bnn.infer.conjugate.ascent import Ascent, ConjugateEngine
from pyro_bnn.models.linear_regression import ExactPosterior
from pyro_bnn.posterior.nature import PosteriorKind


@dataclass(frozen=True, kw_only=True)
class Exact(ConjugateEngine):
    r"""The posterior itself, in closed form, of a conjugate linear regression.

    .. math:: p(z \mid D) = \mathcal N(z \mid \Lambda^{-1} h, \Lambda^{-1})

    Other methods are measured against it: in ``compare(..., reference="Exact")`` the reference
    has no error but that of its finite number of draws. Its ELBO is the log evidence.

    References:
        Bishop, "Pattern Recognition and Machine Learning", 2006, section 3.3.

    Example:
        >>> import torch
        >>> from pyro_bnn import models
        >>> x = torch.linspace(-1, 1, 20).unsqueeze(-1)
        >>> posterior = Exact().run(models.LinearRegression(1), (x, x[:, 0]), progress=False)
        >>> round(float(posterior.predict(x).mean[-1]), 1)
        0.9
    """

    posterior_kind: ClassVar[PosteriorKind | None] = "exact"

    _guide: ClassVar[type[Guide]] = AutoMultivariateNormal
    _has_start: ClassVar[bool] = False

    def _ascent(self, exact: ExactPosterior, start: Tensor) -> Ascent:
        return _Known(exact, start)


class _Known(Ascent):
    """A run without a sweep."""

    num_steps = 0

    def go(self) -> None:
        raise AssertionError("there is nothing to do")

    def set(self, guide: Any) -> None:
        guide.set_moments(self.exact.mean, self.exact.covariance)
