r"""Weights of a mixture whose components stand, by the ELBO.

.. math:: \mathcal L(\pi) = \sum_k \pi_k\, E_{q_k} \bigl[ \log p(y, z \mid x) - \log q(z) \bigr],
          \qquad q = \sum_j \pi_j q_j

is concave in :math:`\pi`. The update :math:`\pi_k \propto \pi_k \exp E_{q_k} \log \tfrac{p(y, z
\mid x)}{q(z)}` is mirror ascent of step size 1, and raises it: what it leaves out is the KL of the
new mixture from the old one, which is at most that of their weights.
"""

from __future__ import annotations

import math

from jaxtyping import Float
from torch import Tensor

MAX_UPDATES = 5_000
TOLERANCE = 1e-9  # change of a weight at which they have converged
SMALLEST_LOG_WEIGHT = -50.0


def fit_weights(
    log_joint: Float[Tensor, "K S"], log_q: Float[Tensor, "K S K"]
) -> Float[Tensor, " K"]:
    """Logs of the weights at which the mixture's ELBO is highest.

    Args:
        log_joint: Log p(y, z | x) of draws of every component.
        log_q: Log densities of these draws under every component.
    """
    K = len(log_joint)
    log_weights = log_joint.new_full((K,), -math.log(K))
    for _ in range(MAX_UPDATES):
        updated = (log_weights + _gains(log_joint, log_q, log_weights)).log_softmax(-1)
        updated = updated.clamp(min=SMALLEST_LOG_WEIGHT)  # a weight of 0 would stay 0
        change = float((updated.exp() - log_weights.exp()).abs().max())
        log_weights = updated
        if change < TOLERANCE:
            break
    return log_weights


def mixture_elbo(
    log_joint: Float[Tensor, "K S"],
    log_q: Float[Tensor, "K S K"],
    log_weights: Float[Tensor, " K"],
) -> float:
    """ELBO of the mixture of given weights, in nats; see :func:`fit_weights`."""
    return float(log_weights.exp() @ _gains(log_joint, log_q, log_weights))


def _gains(log_joint: Tensor, log_q: Tensor, log_weights: Tensor) -> Tensor:
    """Mean ``[K]`` of log p - log q over the draws of every component."""
    return (log_joint - (log_q + log_weights).logsumexp(-1)).mean(-1)
