r"""Probabilities of classes from Gaussian logits, without draws of weights.

With logits of a row :math:`f \sim \mathcal N(m, S)`, :math:`s_k^2 = S_{kk}`, the probabilities are

.. math:: \operatorname{softmax}_k \frac{m_k}{\sqrt{1 + \pi s_k^2 / 8}} \;\text{(probit)}, \qquad
          \alpha_k / \textstyle\sum_j \alpha_j, \quad
          \alpha_k = \frac{1}{s_k^2} \Big(1 - \frac 2C + \frac{e^{m_k}}{C^2} \sum_j e^{-m_j}\Big)
          \;\text{(Laplace bridge)}

or a mean over draws of f, a row for itself. The bridge is to a Dirichlet distribution of parameters
alpha, from the Gaussian given that its entries sum to 0. Both miss what draws have: probit scaling
the correlations between logits, the bridge large variances, of which it makes even probabilities.

References:
    MacKay, "The Evidence Framework Applied to Classification Networks", Neural Computation 1992.
    Hobbhahn, Kristiadi & Hennig, "Fast Predictive Uncertainty for Classification with Bayesian Deep
    Networks", UAI 2022, arXiv:2003.01227.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal, NamedTuple, TypeAlias

import torch
from torch import Tensor

from pyro_bnn.errors import ModelError
from pyro_bnn.guides import Guide
from pyro_bnn.guides.kronecker import AutoKroneckerBasis
from pyro_bnn.program.head import Head
from pyro_bnn.program.linearised import LinearisedProgram
from pyro_bnn.program.program import Program
from pyro_bnn.program.terms import Params

Approximation: TypeAlias = Literal["probit", "bridge", "draws"]
Squash: TypeAlias = Callable[[Tensor], Tensor]
"""Probabilities of logits ``[..., C]``."""
NUMBERS = 1 << 24  # of Jacobians and of drawn logits that are in memory at once


class GaussianLogits(NamedTuple):
    """Gaussians over the logits of rows, :math:`f = m + R e`.

    Attributes:
        mean: m ``[N, C]``.
        root: R ``[C, M]`` of all rows, or ``[N, C, M]`` of each.
        scale: Standard deviations of e ``[N, M]``, independent Gaussians around 0.
    """

    mean: Tensor
    root: Tensor
    scale: Tensor

    def variance(self) -> Tensor:
        """Of each logit, ``[N, C]``."""
        return self._times(self.root.square(), self.scale.square())

    def sums(self) -> Tensor:
        """Of each row of the covariance, ``[N, C]``."""
        of_noise = self.root.sum(-2) * self.scale.square()
        return self._times(self.root, of_noise)

    def draws(self, noise: Tensor) -> Tensor:
        """Logits ``[S, N, C]`` of noise ``[S, N, M]``."""
        return self.mean + self._times(self.root, self.scale * noise)

    def _times(self, matrix: Tensor, e: Tensor) -> Tensor:
        if matrix.ndim == 2:
            return e @ matrix.mT
        return (matrix @ e.unsqueeze(-1)).squeeze(-1)


def logits_of(
    program: Program, guide: Guide, head: Head | None, x: Tensor, params: Params
) -> GaussianLogits:
    """The Gaussians over logits at rows x, of the network that is linear in z at the mode.

    Of a head with Kronecker factors they come from the eigenvectors, of other guides from the
    Jacobian of the network times a root of the covariance.

    Raises:
        ModelError: If the Jacobian of a row cannot be made.
    """
    z = guide.centre().detach()
    with torch.no_grad():
        if head is not None and isinstance(guide, AutoKroneckerBasis) and head.has_bias:
            ((index, U, B),) = guide.bases()
            phi = head.of_rows(program, z, x, params)
            scale = ((phi @ B).square() @ guide.scale.square()[index].mT).sqrt()  # [N, C]
            return GaussianLogits(phi @ head.weights(z).mT, U.detach(), scale)
    linear, means, roots = LinearisedProgram(program, z), [], []
    size = max(1, NUMBERS // max(1, linear.num_function_outputs * guide.noise_dim))
    noise = z.new_zeros(1, guide.noise_dim).requires_grad_()
    spread = guide.draws(noise)
    for some in x.split(size):
        found = linear.for_all_draws(some, params)
        if not found:
            raise ModelError(
                "the Jacobian of the network at a row is too large, or rows depend on each other: "
                "call predict(x), which takes draws of weights"
            )
        f, jacobian = found
        (root,) = torch.autograd.grad(
            spread,
            noise,
            jacobian.flatten(0, 1).unsqueeze(1),
            retain_graph=True,
            is_grads_batched=True,
        )
        means.append(f)
        roots.append(root.squeeze(1).unflatten(0, f.shape))
    return GaussianLogits(torch.cat(means), torch.cat(roots), z.new_ones(len(x), guide.noise_dim))


def probit(logits: GaussianLogits, squash: Squash) -> Tensor:
    """Probabilities ``[N, C]`` by logits that are scaled."""
    return squash(logits.mean * (1 + math.pi / 8 * logits.variance()).rsqrt())


def bridge(logits: GaussianLogits) -> Tensor:
    """Probabilities ``[N, C]`` by the Laplace bridge."""
    m, variance, sums = logits.mean, logits.variance(), logits.sums()
    C, total = m.shape[-1], sums.sum(-1, keepdim=True)
    m = m - sums * m.sum(-1, keepdim=True) / total  # given that they sum to 0
    variance = variance - sums.square() / total
    log_sum = torch.logsumexp(-m, -1, keepdim=True)
    alpha = (1 - 2 / C + (m + log_sum).exp() / C**2) / variance
    return alpha / alpha.sum(-1, keepdim=True)


def by_draws(logits: GaussianLogits, squash: Squash, num_samples: int, seed: int) -> Tensor:
    """Probabilities ``[N, C]``, means over draws of logits."""
    generator = torch.Generator(logits.mean.device).manual_seed(seed)
    total, left = torch.zeros_like(logits.mean), num_samples
    while left:
        count = min(left, max(1, NUMBERS // logits.scale.numel()))
        noise = torch.randn(
            (count, *logits.scale.shape), generator=generator, device=logits.mean.device
        )
        total += squash(logits.draws(noise.to(logits.mean))).sum(0)
        left -= count
    return total / num_samples
