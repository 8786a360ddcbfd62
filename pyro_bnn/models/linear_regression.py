r"""Linear regression, whose posterior and evidence are known in closed form.

.. math:: f = x W^\top + b, \qquad y_{no} \sim \mathcal N(f_{no}, s_o^2)
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, TypeAlias, cast

import torch
from jaxtyping import Float
from torch import Tensor

from pyro_bnn.data import Dataset
from pyro_bnn.data.arrays import ArrayLike
from pyro_bnn.errors import ModelError, ShapeError
from pyro_bnn.likelihoods import Likelihood
from pyro_bnn.likelihoods import Normal as NormalLikelihood
from pyro_bnn.models.description import _base
from pyro_bnn.models.network import Perceptron, priors_of_all, require_columns
from pyro_bnn.priors import Hierarchy, PriorModule, Priors, assign_prior, value_of

Rows: TypeAlias = "Dataset | tuple[ArrayLike, ArrayLike]"
NAMES = ("weight", "bias")


@dataclass(frozen=True, eq=False)
class ExactPosterior:
    r"""A Gaussian posterior over the flat vector z ``[P]``, in float64, by natural parameters.

    .. math:: p(z \mid D) = \mathcal N(z \mid \Lambda^{-1} h, \Lambda^{-1})

    Attributes:
        precision: :math:`\Lambda` ``[P, P]``.
        shift: :math:`h`, the precision times the mean, ``[P]``.
        log_evidence: Log p(y | x) in nats.
    """

    precision: Float[Tensor, "P P"]
    shift: Float[Tensor, " P"]
    log_evidence: float

    @cached_property
    def mean(self) -> Float[Tensor, " P"]:
        """Posterior mean."""
        return torch.cholesky_solve(self.shift.unsqueeze(-1), self._tril).squeeze(-1)

    @cached_property
    def covariance(self) -> Float[Tensor, "P P"]:
        """Posterior covariance."""
        return torch.cholesky_inverse(self._tril)

    def log_prob(self, z: Float[Tensor, "*S P"]) -> Float[Tensor, "*S"]:
        """Log p(z | D)."""
        u = (z - self.mean) @ self._tril
        return self._log_normaliser - 0.5 * u.square().sum(-1)

    @cached_property
    def _tril(self) -> Tensor:
        return cast(Tensor, torch.linalg.cholesky(self.precision))

    @property
    def _log_normaliser(self) -> Tensor:
        """Log density at the mean."""
        return self._tril.diagonal().log().sum() - 0.5 * len(self.shift) * math.log(2 * math.pi)


class LinearRegression(Perceptron):
    r"""Bayesian linear regression; its sites are ``weight`` ``[O, I]`` and ``bias`` ``[O]``.

    With Gaussian priors and fixed Gaussian noise it is conjugate. Of one target, with the design
    matrix :math:`A = [X, 1]` and the prior :math:`\mathcal N(l, T)`, T diagonal, the posterior has

    .. math:: \Lambda = A^\top A / s^2 + T^{-1}, \qquad h = A^\top y / s^2 + T^{-1} l, \qquad
              p(y \mid x) = \mathcal N(y \mid A l, s^2 I + A T A^\top)

    and targets are independent. So it is where approximations can be held against the truth:
    ``Exact`` gives it as a posterior, ``CAVI`` the best product of independent Gaussians. With
    other priors and likelihoods (Bernoulli: logistic regression) it is a model as any other.

    Args:
        num_inputs: Number of input columns I.
        num_outputs: Number of targets O.
        prior: One prior for weight and bias, or a mapping from name patterns that covers both.
            Default: Gaussian with fan-in scale.
        likelihood: Distribution of y given f. Default: Gaussian noise of fixed standard deviation
            1, that of a standardised target, which the noise cannot exceed; of several scales take
            the one of the highest ``log_evidence``.

    Raises:
        OptionError: If a size is not a positive integer.
        SiteError: If the patterns leave one without a prior, or one matches nothing.

    References:
        Bishop, "Pattern Recognition and Machine Learning", 2006, section 3.3.

    Example:
        >>> import torch
        >>> from pyro_bnn.likelihoods import Normal
        >>> from pyro_bnn.priors import Normal as NormalPrior
        >>> x, y = torch.tensor([[-1.0], [1.0]]), torch.tensor([-2.0, 2.0])
        >>> model = LinearRegression(1, prior=NormalPrior(scale=1.0), likelihood=Normal(scale=1.0))
        >>> exact = model.exact_posterior((x, y))
        >>> [round(float(m), 3) for m in exact.mean]
        [1.333, 0.0]
        >>> round(model.log_evidence((x, y)), 4)
        -4.2698
    """

    default_likelihood: ClassVar[Likelihood] = NormalLikelihood(scale=1.0)

    weight: Tensor | Hierarchy
    bias: Tensor | Hierarchy

    def __init__(
        self,
        num_inputs: int,
        num_outputs: int = 1,
        *,
        prior: Priors | None = None,
        likelihood: Likelihood | None = None,
    ) -> None:
        own = self.default_likelihood if likelihood is None else likelihood
        super().__init__(num_inputs, num_outputs, (), own)
        self.num_outputs = self.sizes[1]
        priors = priors_of_all(prior, NAMES, self)
        assign_prior(self, "weight", priors["weight"], (self.num_outputs, self.num_inputs))
        assign_prior(self, "bias", priors["bias"], (self.num_outputs,))

    def network(self, x: Tensor) -> Tensor:
        """The output f ``[N, F]`` at inputs x ``[N, I]``."""
        return torch.nn.functional.linear(x, value_of(self.weight), value_of(self.bias))

    def exact_posterior(self, data: Rows) -> ExactPosterior:
        """The posterior over z = (weight, bias) ``[P]``, weight row by row, and the evidence.

        Args:
            data: Rows in the model's units: a ``Dataset`` or a pair (x, y).

        Raises:
            ModelError: If the model is not conjugate; says what to take.
            ShapeError: If x or y does not fit the model.
        """
        loc, scale, noise = self._conjugate()
        rows = data if isinstance(data, Dataset) else Dataset(*data)
        require_columns(rows.x, self.num_inputs)
        y = rows.y.detach().cpu().double().reshape(len(rows), -1)  # [N, O]
        if y.shape[1] != self.num_outputs:
            raise ShapeError(
                f"y has shape {tuple(rows.y.shape)}, but the model has {self.num_outputs} targets"
            )
        x = rows.x.detach().cpu().double()
        a = torch.cat([x, torch.ones_like(x[:, :1])], 1)  # [N, I + 1]
        num_weights = self.num_outputs * self.num_inputs
        precision, shift = torch.diag(scale**-2), loc / scale**2  # [P, P], [P]
        for target in range(self.num_outputs):
            row = torch.arange(self.num_inputs) + target * self.num_inputs
            # entries of z of this target
            own = torch.cat([row, torch.tensor([num_weights + target])])
            precision[own[:, None], own] += a.T @ a / noise[target] ** 2
            shift[own] += a.T @ y[:, target] / noise[target] ** 2
        posterior = ExactPosterior(precision, shift, math.nan)
        z = posterior.mean  # any z gives the evidence, this one without large terms that cancel
        weight, bias = z[:num_weights].reshape(self.num_outputs, -1), z[num_weights:]
        log_joint = _normal(y, x @ weight.T + bias, noise) + _normal(z, loc, scale)
        return replace(posterior, log_evidence=float(log_joint - posterior.log_prob(z)))

    def log_evidence(self, data: Rows) -> float:
        """Log p(y | x) in nats; see :meth:`exact_posterior`."""
        return self.exact_posterior(data).log_evidence

    def _conjugate(self) -> tuple[Tensor, Tensor, Tensor]:
        """Prior means and sds ``[P]``, and noise sds ``[O]``, in float64.

        Raises:
            ModelError: If the model has others than Gaussian priors and fixed Gaussian noise.
        """
        parts = []
        for name in NAMES:
            module = getattr(self, f"{name}_prior", None)  # a hierarchy has no such module
            fn: Any = _base(module.distribution) if isinstance(module, PriorModule) else None
            if module is None or type(fn).__name__ != "Normal":
                what = type(getattr(self, name) if fn is None else fn).__name__.lstrip("_")
                raise ModelError(
                    f"the posterior has no closed form under the {what} prior of {name!r}: take "
                    "independent Gaussians, such as prior=priors.Normal()"
                )
            shape = module.distribution.event_shape
            parts.append([v.expand(shape).reshape(-1).cpu().double() for v in (fn.loc, fn.scale)])
        likelihood = self.likelihood
        if type(likelihood) is not NormalLikelihood or hasattr(likelihood, "scale_prior"):
            learned = "learned scale" if type(likelihood) is NormalLikelihood else "another family"
            raise ModelError(
                f"the posterior has no closed form with the {type(likelihood).__name__} "
                f"likelihood, of {learned}: fix the noise by "
                "likelihood=likelihoods.Normal(scale=1.0), or another number"
            )
        (weight_loc, weight_scale), (bias_loc, bias_scale) = parts
        noise = likelihood.scale.cpu().double().expand(self.num_outputs)
        return torch.cat([weight_loc, bias_loc]), torch.cat([weight_scale, bias_scale]), noise


def _normal(value: Tensor, loc: Tensor, scale: Tensor) -> Tensor:
    """Summed log density ``[]`` of independent Gaussians."""
    total: Tensor = torch.distributions.Normal(loc, scale).log_prob(value).sum()
    return total
