r"""Log mean densities of draws that come in chunks, entropies, ELBOs, quantiles of mixtures."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from jaxtyping import Float
from torch import Tensor

MOST_STEPS = 60  # steps by Newton or bisection; usually 4 are enough


def log_mean(parts: Iterable[Float[Tensor, "s N"]]) -> Float[Tensor, " N"]:
    r"""Log of the mean of densities, :math:`\log \tfrac1S \sum_s e^{l_s}`, over chunks of draws."""
    total, count = torch.tensor(-math.inf), 0
    for log_values in parts:
        of_part = log_values.logsumexp(0)
        total, count = torch.logaddexp(total.to(of_part), of_part), count + len(log_values)
    return total - math.log(count)


def normal_mixture_quantile(
    level: float, loc: Float[Tensor, "S N O"], scale: Float[Tensor, "S N O"]
) -> Float[Tensor, "N O"]:
    r"""Quantile of an equal mixture of S Gaussians.

    It is the root q of

    .. math:: \tfrac1S \sum_s \Phi\Bigl(\frac{q - \mu_s}{\sigma_s}\Bigr) = p

    which lies between the least and the largest quantile of the S Gaussians. Each step
    narrows this bracket; a Newton step that leaves it is replaced by its middle.

    Args:
        level: Probability p, between 0 and 1.
        loc: Means.
        scale: Standard deviations, positive.
    """
    z = torch.special.ndtri(torch.tensor(level, dtype=torch.float64)).item()
    ends = loc + z * scale
    low, high = ends.amin(0), ends.amax(0)
    spread = (scale.square().mean(0) + loc.var(0, correction=0)).sqrt()
    q: Tensor = (loc.mean(0) + z * spread).clamp(low, high)
    precision = 32 * torch.finfo(loc.dtype).eps
    for _ in range(MOST_STEPS):
        u = (q - loc) / scale
        excess = torch.special.ndtr(u).mean(0) - level
        density = ((-0.5 * u.square()).exp() / scale).mean(0) / math.sqrt(2 * math.pi)
        low, high = torch.where(excess < 0, q, low), torch.where(excess > 0, q, high)
        newton, before = q - excess / density, q
        q = torch.where((newton >= low) & (newton <= high), newton, (low + high) / 2)
        if not ((q - before).abs() > precision * (q.abs() + spread)).any():
            break
    return q


def entropy(probs: Float[Tensor, "*N C"]) -> Float[Tensor, "*N"]:
    """Entropy of class probabilities, nats."""
    value: Tensor = torch.special.entr(probs).sum(-1)
    return value


def estimated_elbo(log_p: Float[Tensor, " S"], log_q: Float[Tensor, " S"]) -> tuple[float, float]:
    """Mean of log p(y, z | x) - log q(z) over draws of q, and its standard error, in nats."""
    weights = (log_p - log_q).double()
    return float(weights.mean()), float(weights.std() / len(weights) ** 0.5)
