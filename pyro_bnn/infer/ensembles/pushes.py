r"""What is added to the objectives of an ensemble's members so that they are not all alike.

**Anchored**: member k has the prior moved to a draw of its own, :math:`a_k \sim p(z)`,

.. math:: -\log \mathcal N(z \mid a_k, P_0^{-1}) = -\log \mathcal N(z \mid l, P_0^{-1})
          - (a_k - l)^\top P_0\, z + \text{const}

so the push is linear in z. **Randomise, then optimise** moves the targets as well, to
:math:`y + \epsilon_k`, :math:`\epsilon_k \sim \mathcal N(0, s^2)`, of a Gaussian likelihood,

.. math:: -\log \mathcal N(y + \epsilon_k \mid f, s^2) = -\log \mathcal N(y \mid f, s^2)
          - \epsilon_k^\top f / s^2 + \text{const}

A likelihood that ``poutine.scale`` raises to the power w is that of a variance :math:`s^2 / w`.
For a model linear in z with posterior precision P the members of the first have the covariance
:math:`P^{-1} P_0 P^{-1}`, smaller than the posterior's; those of the second have :math:`P^{-1}`,
exactly. **Repulsive** members have the force of a kernel density of their functions at the batch,

.. math:: -\nabla_i \log \sum_j k(f_i, f_j), \qquad k(f, f') = \exp(-|f - f'|^2 / h)

Members of **Stein variational gradient descent** share the forces of the data on their functions as
well, and the prior acts on each one's weights,

.. math:: \phi_i = \frac{\sum_j \big[ k(f_j, f_i) \nabla_{f_j} \log p(y \mid f_j)
          + \nabla_{f_j} k(f_j, f_i) \big]}{\sum_j k(f_j, f_i)}, \qquad
          \dot z_i = J_i^\top \phi_i + \nabla \log p(z_i)

The sum below is 1 over K in the paper, where the prior is shared by the kernel too: it cannot be
here, and without that sum it would weigh K times as much where members are far apart.

References:
    Pearce, Leibfried & Brintrup, "Uncertainty in Neural Networks: Approximately Bayesian
    Ensembling", AISTATS 2020, arXiv:1810.05546. Bardsley et al., "Randomize-Then-Optimize: A Method
    for Sampling from Posterior Distributions in Nonlinear Inverse Problems", SIAM J. Sci. Comput.
    2014. D'Angelo & Fortuin, "Repulsive Deep Ensembles are Bayesian", NeurIPS 2021,
    arXiv:2106.11642. Liu & Wang, "Stein Variational Gradient Descent", NeurIPS 2016,
    arXiv:1608.04471. Wang et al., "Function Space Particle Optimization for Bayesian Neural
    Networks", ICLR 2019, arXiv:1902.09754.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Literal, TypeAlias

import pyro.distributions as dist
import torch
from torch import Tensor

from pyro_bnn.errors import OptionError, SiteError
from pyro_bnn.infer.curvature.gaussian_prior import normal_entries
from pyro_bnn.infer.problem import Problem
from pyro_bnn.program.batched import without_vmap_warnings
from pyro_bnn.program.distributions import base_distribution
from pyro_bnn.program.program import Program
from pyro_bnn.program.random_state import derived_seed
from pyro_bnn.program.terms import Batch, Params

Kind: TypeAlias = Literal["independent", "anchored", "rto", "repulsive", "svgd"]
Push: TypeAlias = Callable[[Tensor, Batch, Params], Tensor]
Kernel: TypeAlias = Callable[[Tensor, Tensor], Tensor]
ANCHORS, TARGETS = 101, 102  # streams of random numbers


def pull_of_anchors(program: Program, num_members: int, seed: int) -> Tensor:
    """Draws of the priors, one a member, less the means, times the precisions ``[K, P]``.

    The prior of every real site has to be independent Gaussians; entries of other sites are 0.

    Raises:
        SiteError: If a real site has another prior.
    """
    loc, scale = normal_entries(program)
    missing = scale.isnan()
    real = [site for site in program.sites if site.is_real]
    other = [site.name for site in real if bool(missing[site.start : site.stop].any())]
    if other or bool(missing.all()):
        named = ", ".join(other) or "all sites"
        raise SiteError(
            f"anchors are draws of Gaussian priors of fixed mean and scale, and that of {named} is "
            'none: give it priors.Normal(), or take kind="independent"'
        )
    normal = _normal((num_members, len(loc)), derived_seed(seed, ANCHORS), loc)
    return torch.where(missing, 0.0, normal / scale)


def pull_of_targets(problem: Problem, num_members: int) -> Tensor:
    """Noise of the targets times their precision, ``[K, N, ...]``, scales of the likelihood in.

    Raises:
        OptionError: If the likelihood is not Gaussian with a fixed scale.
    """
    program, (x, y) = problem.program, problem.rows
    known = []
    for z in (program.initial, program.initial + 1):
        base = base_distribution(program.observed(z, x)[0])
        known.append(base.scale if isinstance(base, dist.Normal) else None)
    first, second = known
    if first is None or second is None or not torch.equal(first, second):
        raise OptionError(
            'kind="rto" draws targets of a Gaussian likelihood of fixed scale, and this one is no '
            "such: pass likelihoods.Normal(scale) with a number, or take another kind"
        )

    def slope(y: Tensor) -> Tensor:
        def log_likelihood(y: Tensor) -> Tensor:
            return program.log_likelihood_terms(program.initial, Batch(x, y)).sum()

        found: Tensor = torch.func.grad(log_likelihood)(y)
        return found

    # the second derivative knows of scales and masks
    precision: Tensor = -torch.func.jvp(slope, (y,), (torch.ones_like(y),))[1]  # [N, ...]
    seed = derived_seed(problem.seed, TARGETS)
    return precision.sqrt() * _normal((num_members, *precision.shape), seed, precision)


def push_of(kind: Kind, problem: Problem, num_members: int) -> Push | None:
    """The push of a kind: the mean over members ``[]`` of what is added to their objectives.

    Its arguments are the members z ``[K, P + Q]``, the batch and the values of parameters.

    Raises:
        OptionError, SiteError: If the kind does not serve the model.
    """
    program = problem.program
    if kind == "independent":
        return None
    if kind == "repulsive":
        return lambda z, rows, params: repulsion(program.function(z, rows.x, params)).mean()
    if kind == "svgd":
        return functools.partial(_stein_push, program)
    pull = pull_of_anchors(program, num_members, problem.seed)
    size = program.num_latents
    if kind == "anchored":
        return lambda z, rows, params: -(pull * z[:, :size]).sum(-1).mean()  # noqa: ARG005
    of_noise = pull_of_targets(problem, num_members)

    def both(z: Tensor, rows: Batch, params: Params) -> Tensor:
        def mean_of(each: Tensor) -> Tensor:
            location: Tensor = base_distribution(program.observed(each, rows.x, params)[0]).loc
            return location

        with without_vmap_warnings():
            means = torch.func.vmap(mean_of)(z)  # [K, N, ...]
        of_targets = (of_noise * means).flatten(1).sum(-1)
        return -(of_targets + (pull * z[:, :size]).sum(-1)).mean()

    return both


def repulsion(f: Tensor) -> Tensor:
    r"""Log of each member's kernel density :math:`\log \sum_j k(f_i, f_j)` ``[K]``.

    Only the member's own place has a gradient. The bandwidth is the median squared distance of two
    members over log K, for two or more; 1 where all functions are equal.

    Args:
        f: Functions of the members at the batch ``[K, B, F]``.
    """
    f = f.flatten(1)
    others = f.detach()
    square = (f.unsqueeze(1) - others).square().sum(-1)  # [K, K]
    if len(f) < 2:
        return 0.0 * square.sum(-1)
    return (-square / _width(others)).logsumexp(-1)


def stein(points: Tensor, slopes: Tensor, kernel: Kernel) -> Tensor:
    r"""Stein's force on each of K points, downwards: minus :math:`\phi_i` ``[K, D]``.

    Args:
        points: The points ``[K, D]``.
        slopes: Gradients ``[K, D]`` there of minus the log density.
        kernel: Of points ``[K, D]`` and other points ``[L, D]``: ``[K, L]``.
    """
    points, slopes = points.detach(), slopes.detach()

    def apart(of: Tensor) -> Tensor:
        """The gradient of each k(x_j, x_i) in x_j, summed over j."""
        slope: Tensor = torch.func.grad(lambda x: kernel(x, of.unsqueeze(0)).sum())(points)
        return slope.sum(0)

    return (kernel(points, points).mT @ slopes - torch.func.vmap(apart)(points)) / len(points)


def _stein_push(program: Program, z: Tensor, rows: Batch, params: Params) -> Tensor:
    """What makes the data's forces on functions those of Stein; the prior's are of the loss."""
    f = program.function(z, rows.x, params)  # [K, B, F]

    def misfit(f: Tensor, z: Tensor) -> Tensor:
        return -program.log_likelihood_given(f, z, rows, params)

    at = f.detach()
    own = torch.func.vmap(torch.func.grad(misfit))(at, z.detach())
    width = _width(at.flatten(1))

    def kernel(x: Tensor, y: Tensor) -> Tensor:
        return (-(x.unsqueeze(1) - y).square().sum(-1) / width).exp()

    mean = kernel(at.flatten(1), at.flatten(1)).mean(0).unsqueeze(-1)
    forces = stein(at.flatten(1), own.flatten(1), kernel) / mean
    push: Tensor = ((forces - own.flatten(1)).detach() * (f - at).flatten(1)).sum(-1).mean()
    return push


def _width(f: Tensor) -> Tensor:
    """The median squared distance of two of K points ``[K, D]`` over log K; 1 where that is 0."""
    if len(f) < 2:
        return f.new_ones(())
    square = (f.unsqueeze(1) - f).square().sum(-1)  # [K, K]
    rows, columns = torch.triu_indices(len(f), len(f), 1)
    width = square[rows, columns].median() / math.log(len(f))
    return torch.where(width > 0, width, 1.0)


def _normal(shape: tuple[int, ...], seed: int, like: Tensor) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=like.dtype).to(like.device)
