r"""Log mean densities of draws that come in chunks, entropies, ELBOs."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from jaxtyping import Float
from torch import Tensor


def log_mean(parts: Iterable[Float[Tensor, "s N"]]) -> Float[Tensor, " N"]:
    r"""Log of the mean of densities, :math:`\log \tfrac1S \sum_s e^{l_s}`, of chunks of draws."""
    total, count = torch.tensor(-math.inf), 0
    for log_values in parts:
        of_part = log_values.logsumexp(0)
        total, count = torch.logaddexp(total.to(of_part), of_part), count + len(log_values)
    return total - math.log(count)


def entropy(probs: Float[Tensor, "*N C"]) -> Float[Tensor, "*N"]:
    """Entropy of class probabilities, nats."""
    value: Tensor = torch.special.entr(probs).sum(-1)
    return value


def estimated_elbo(log_p: Float[Tensor, " S"], log_q: Float[Tensor, " S"]) -> tuple[float, float]:
    """Mean of log p(y, z | x) - log q(z) over draws of q, and its standard error, in nats."""
    weights = (log_p - log_q).double()
    return float(weights.mean()), float(weights.std() / len(weights) ** 0.5)
