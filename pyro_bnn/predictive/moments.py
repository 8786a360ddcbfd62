r"""Log mean densities of draws that come in chunks, entropies, ELBOs, quantiles of mixtures."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from jaxtyping import Float
from torch import Tensor

MOST_STEPS = 60  # steps by Newton or bisection; usually 4 are enough
PARTS, ROUNDS = 16, 4  # of a bracket, and how often


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


def normal_mixture_quantiles(
    levels: Float[Tensor, " Q"], loc: Float[Tensor, "S N O"], scale: Float[Tensor, "S N O"]
) -> Float[Tensor, "Q N O"]:
    """Quantiles of an equal mixture of S Gaussians by operations whose number is fixed.

    The same root as of :func:`normal_mixture_quantile`, for programs that cannot branch on numbers:
    its bracket is cut into 16 parts 4 times, and the last part by a secant. The error is that of a
    straight line over 1 in 65,536 of the bracket, where not of rounding.

    Args:
        levels: Probabilities, between 0 and 1.
        loc: Means.
        scale: Standard deviations, positive.
    """
    z = torch.special.ndtri(levels.double()).to(loc).reshape(-1, 1, 1, 1, 1)
    p = (2 * levels - 1).to(loc).reshape(-1, 1, 1, 1, 1)  # of erf, from -1 to 1
    loc, scale = loc.unsqueeze(-1), scale.unsqueeze(-1)  # [S, N, O, 1]
    ends = loc + z * scale  # [Q, S, N, O, 1]
    low = ends.amin(1, keepdim=True)
    width = ends.amax(1, keepdim=True) - low
    spread = scale * math.sqrt(2)
    start, slope = (low - loc) / spread, width / spread

    def mixture(t: Float[Tensor, "Q 1 N O K"]) -> Float[Tensor, "Q 1 N O K"]:
        """At shares t of the bracket."""
        return torch.erf(start + slope * t).mean(1, keepdim=True)

    t, part = torch.zeros_like(low), 1.0
    for _ in range(ROUNDS):
        part /= PARTS
        inner = part * torch.arange(1, PARTS).to(loc)
        t = t + part * (mixture(t + inner) < p).sum(-1, keepdim=True)
    below, above = mixture(t + part * torch.arange(2).to(loc)).unbind(-1)
    step = (above - below).clamp(min=torch.finfo(loc.dtype).tiny)  # the ends may be one number
    t = t[..., 0] + part * ((p[..., 0] - below) / step).clamp(0, 1)
    found: Tensor = low[..., 0] + width[..., 0] * t  # [Q, 1, N, O]
    return found.squeeze(1)


def places_of_parts(levels: Float[Tensor, "*Q"], count: int) -> Float[Tensor, "*Q"]:
    """Places, from 0, of quantiles among K sorted points at the middles of K equal parts."""
    return (levels * count - 0.5).clamp(0, count - 1)


def interpolated(
    ordered: Float[Tensor, "S N O"], places: Float[Tensor, "*Q"]
) -> Float[Tensor, "*Q N O"]:
    """Sorted values at places 0 .. S - 1, between two of them on a straight line."""
    low = places.floor().long()
    high = (low + 1).clamp(max=len(ordered) - 1)
    weight = (places - low).reshape((*places.shape, *[1] * (ordered.ndim - 1)))
    found = ordered[low] * (1 - weight) + ordered[high] * weight
    return torch.where(weight == 0, ordered[low], found)  # infinity * 0 is NaN


def entropy(probs: Float[Tensor, "*N C"]) -> Float[Tensor, "*N"]:
    """Entropy of class probabilities, nats."""
    value: Tensor = torch.special.entr(probs).sum(-1)
    return value


def estimated_elbo(log_p: Float[Tensor, " S"], log_q: Float[Tensor, " S"]) -> tuple[float, float]:
    """Mean of log p(y, z | x) - log q(z) over draws of q, and its standard error, in nats."""
    weights = (log_p - log_q).double()
    return float(weights.mean()), float(weights.std() / len(weights) ** 0.5)
