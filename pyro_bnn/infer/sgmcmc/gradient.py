r"""The gradient of U, minus the log joint, of all chains at once: of a batch, of all rows, between.

A control variate takes the noise of batches away near a point :math:`z_0`:

.. math:: \widehat{\nabla U}(z) = \nabla U(z_0)
          + \tfrac NB \sum_{b} \bigl[\nabla U_b(z) - \nabla U_b(z_0)\bigr]
          + \nabla U_p(z) - \nabla U_p(z_0)

with :math:`U_b` minus the log likelihood of a row and :math:`U_p` minus the log prior: the prior's
gradient at z is exact. At a mode (SGLD-CV), or a point that is renewed (SVRG).

References:
    Baker, Fearnhead, Fox & Nemeth, "Control Variates for Stochastic Gradient MCMC", Statistics and
    Computing 2019, arXiv:1706.05439. Dubey et al., "Variance Reduction in Stochastic Gradient
    Langevin Dynamics", NeurIPS 2016.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import torch
from torch import Tensor

from pyro_bnn.infer.steps.potentials import Potential
from pyro_bnn.program.terms import Batch

Slope: TypeAlias = Callable[[Tensor, Tensor, Tensor], Tensor]
"""Maps z ``[C, P]`` and rows x and y to the gradient of U ``[C, P]``."""

ROWS_AT_ONCE = 1 << 14  # of the gradient of all rows


def difference(potential: Potential, z: Tensor, anchor: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """The gradient at z less that at the anchor ``[C, P]``, of the same rows ``[C, B, ...]``."""
    _, both = potential(torch.cat([z, anchor]), torch.cat([x, x]), torch.cat([y, y]))
    return both[: len(z)] - both[len(z) :]


def slope_of_all(slope: Slope, z: Tensor, whole: Batch) -> Tensor:
    """The gradient ``[C, P]`` of all rows, some of them at a time."""
    parts = zip(whole.x.split(ROWS_AT_ONCE), whole.y.split(ROWS_AT_ONCE), strict=True)
    # each part is scaled to all rows, and has the whole prior
    weighted = [slope(z, x, y) * (len(x) / len(whole.x)) for x, y in parts]
    return torch.stack(weighted).sum(0)


def hessian_product(slope_at: Callable[[Tensor], Tensor], z: Tensor, v: Tensor) -> Tensor:
    """The Hessian of U times v ``[C, P]``, by the change of the gradient along it.

    Central differences over the length of v, so that kinks of ReLU count as a chain meets them.
    """
    return (slope_at(z + v) - slope_at(z - v)) / 2
