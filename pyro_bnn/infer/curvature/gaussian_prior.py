r"""The prior by Gaussians, :math:`p(z) \approx \prod_j \mathcal N(z_j \mid l_j, 1/\delta_j)`.

It is exact for sites with independent Gaussian priors. A positive site, such as a noise scale, has
the Gaussian at the mode of its density in z, and the difference of the log densities is added to
what the data say, so that the ELBO is that of the model's own prior.
"""

from __future__ import annotations

from typing import NamedTuple

import pyro.distributions as dist
import torch
from torch import Tensor

from pyro_bnn.capture.captured import Captured
from pyro_bnn.errors import SiteError
from pyro_bnn.program.closed_forms import FAMILIES
from pyro_bnn.program.joint import Joint
from pyro_bnn.program.program import Program

NEWTON_STEPS = 50


class GaussianPrior(NamedTuple):
    """Means and precisions of independent Gaussians over z.

    Attributes:
        loc: Means l ``[P]``.
        precision: Precisions delta ``[P]``, each entry that of its own site's prior.
        is_exact: Whether they are the prior itself.
    """

    loc: Tensor
    precision: Tensor
    is_exact: bool = True

    @classmethod
    def of(cls, program: Program, engine: str) -> GaussianPrior:
        """The prior of a model.

        Args:
            program: The model as tensor functions.
            engine: Name of the engine, for the message.

        Raises:
            SiteError: If the prior of a real site is not a Gaussian of fixed mean and scale, or
                that of a positive one has no mode in z.
        """
        loc, scale = normal_entries(program)
        others = [s for s in program.sites if bool(scale[s.start : s.stop].isnan().any())]
        prior = cls(loc, scale.square().reciprocal(), is_exact=not others)
        if not others:
            return prior
        rest = scale.isnan()
        real = [site for site in others if site.is_real]
        found = None if real else _at_mode(program, rest)
        if found is None:
            raise SiteError(
                f"{engine} adds the curvature of a Gaussian prior in closed form, but that of "
                f"{', '.join(repr(site.name) for site in real or others)} is no independent "
                "Gaussian of fixed mean and scale: give it priors.Normal(), or take SVI or NUTS, "
                "which serve every prior"
            )
        prior.loc[rest], prior.precision[rest] = found
        return prior

    def at_least(self, scale: float | None) -> Tensor:
        """Precisions ``[P]`` of the prior, or of a smaller standard deviation."""
        return self.precision if scale is None else self.precision.clamp(min=scale**-2)

    def gradient(self, mean: Tensor) -> Tensor:
        """Gradient ``[P]`` of minus the log prior at the mean of q."""
        return self.precision * (mean - self.loc)

    def kl(self, mean: Tensor, variance: Tensor, log_det: Tensor) -> Tensor:
        """KL(q || p) ``[]`` of a Gaussian q.

        Args:
            mean: Means of q ``[P]``.
            variance: Its marginal variances ``[P]``.
            log_det: Log determinant of its precision, ``[]``.
        """
        moment = self.precision * (variance + (mean - self.loc).square())
        return 0.5 * (moment.sum() - len(mean) - self.precision.log().sum() + log_det)


def normal_entries(program: Joint) -> tuple[Tensor, Tensor]:
    """Means and sds ``[P]`` of entries with independent Gaussian priors, NaN at all others."""
    missing = torch.full_like(program.initial, torch.nan)
    loc, scale = missing.clone(), missing.clone()
    for block, _ in program.latents.closed_forms().expected:
        if block.family is FAMILIES[dist.Normal]:
            loc[block.index], scale[block.index] = block.loc, block.scale
    return loc, scale


def correction_of(
    program: Program,
    prior: GaussianPrior,
    *,
    has_hessian: bool,
    is_full: bool,
    is_captured: bool,
) -> Captured:
    """What minus the log prior is more than that of the Gaussians, with its derivatives.

    Args:
        program: The model as tensor functions.
        prior: The Gaussians.
        has_hessian: Whether second derivatives are needed; else the Gaussians' stand for them.
        is_full: Whether these are a matrix.
        is_captured: Whether it is replayed as a graph of operations.

    Returns:
        A function of draws ``[S, P]``: values ``[S]``, gradients ``[S, P]``, and the second
        derivatives of each draw, if they are needed.
    """
    gaussian = torch.distributions.Normal(prior.loc, prior.precision.rsqrt(), validate_args=False)
    params = {name: value.detach() for name, value in program.params.items()}
    x = program.example.x

    def value(z: Tensor) -> Tensor:
        of_gaussians: Tensor = gaussian.log_prob(z).sum()
        return of_gaussians - program.log_prior(z, x, params)

    def derivatives(z: Tensor) -> tuple[Tensor, ...]:
        gradient, more = torch.func.grad_and_value(value)(z)
        if not has_hessian:
            return more, gradient
        hessian = torch.func.jacrev(torch.func.grad(value))(z)
        return more, gradient, hessian if is_full else hessian.diagonal()

    return Captured(torch.func.vmap(derivatives), "the prior", enabled=is_captured)


def _at_mode(program: Program, rest: Tensor) -> tuple[Tensor, Tensor] | None:
    """Mode and curvature of the prior of some entries of z, by Newton's steps; None without one."""
    params = {name: value.detach() for name, value in program.params.items()}

    where = rest.nonzero()[:, 0]

    def value(r: Tensor) -> Tensor:
        z = program.initial.index_put((where,), r)
        return -program.log_prior(z, program.example.x, params)

    r = torch.zeros_like(program.initial[rest])
    curvature = torch.ones_like(r)
    for _ in range(NEWTON_STEPS):
        gradient = torch.func.grad(value)(r)
        curvature = torch.func.jacrev(torch.func.grad(value))(r).diagonal()
        step = (gradient / curvature.abs().clamp(min=0.1)).clamp(-1, 1)
        before, r = r, r - step
        if torch.equal(r, before):  # so would all further steps be
            break
    is_mode = gradient.abs() < 1e-3 * (1 + curvature.abs())
    if not bool((is_mode & (curvature > 1e-3)).all()):
        return None
    return r, curvature
