"""What one simulation of a calibration comes to: quantities of the truth and of the draws."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from pyro_bnn.errors import OptionError

DRAWS_AT_ONCE = 256  # whose log joint is computed


class Outcome(NamedTuple):
    """Quantities of the truth and of the draws of the posterior given data simulated at it.

    Attributes:
        values: ``[1 + L, Q]``, the truth first.
        ess: Effective draws that the L were taken from; NaN where draws are independent.
        num_diverging: Divergent draws.
        method: Guide or sampler whose draws they are.
    """

    values: Float[np.ndarray, "L1 Q"]
    ess: float
    num_diverging: int
    method: str


def effective_draws(
    log_joint: Callable[[Tensor], Tensor], z: Float[Tensor, "C S P"], *, is_independent: bool
) -> float:
    """Effective draws of chains by their log joint; NaN for independent ones."""
    from pyro_bnn import arviz_io

    if is_independent:
        return float("nan")
    with torch.no_grad():
        blocks = [log_joint(block) for block in z.flatten(0, 1).split(DRAWS_AT_ONCE)]
    return float(arviz_io.ess(torch.cat(blocks).unflatten(0, z.shape[:2]).cpu().numpy()))


def thinned(z: Float[Tensor, "S P"], num_draws: int) -> Float[Tensor, "L P"]:
    """So many draws of all S, evenly spaced, the last one among them.

    Raises:
        OptionError: If there are fewer.
    """
    if len(z) < num_draws:
        raise OptionError(
            f"the engine keeps {len(z)} draws, fewer than the num_draws={num_draws} that are "
            "ranked: raise its num_samples"
        )
    return z[(torch.arange(1, num_draws + 1) * len(z)) // num_draws - 1]
