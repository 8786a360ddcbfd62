r"""What the energy errors of an unadjusted sampler say of the bias of its draws.

A leapfrog step h of a Gaussian direction, in coordinates where its density has unit scale, turns
:math:`(x / \sqrt{1 + r},\, p)` by an angle :math:`\theta` with :math:`\sin^2\theta = 4 u (1 - u)`,
where :math:`u = h^2 / 4` and :math:`r = u / (1 - u)`. Without a test of acceptance draws have the
variance :math:`1 + r` in place of 1, and the energy error of a step,
:math:`\tfrac r2 (x'^2 - x^2) / (1 + r)`, the variance

.. math:: E = r^2 \sin^2\theta = \frac{4 r^3}{(1 + r)^2}

:func:`variance_bias` solves the mean of E over directions for r: the relative error of variances
*if all directions were equally stiff*. Where a few make all the error they are biased by more, and
the others by less. Steps of minimal norm are less biased at one E (variances 3.5 % too small where
this says 7 %), up to E = 0.03. Posteriors of networks are not Gaussian: r is a scale, not a bound,
and it says nothing of chains that miss a mode.

References:
    Robnik & Seljak, "Fluctuation without Dissipation: Microcanonical Langevin Monte Carlo", 2023,
    arXiv:2303.18221. Robnik, Cohn-Gordon & Seljak, "Black-Box Unadjusted Hamiltonian Monte Carlo",
    2024, arXiv:2412.08876 (bias by the energy error).
"""

from __future__ import annotations

import math

import numpy as np
from jaxtyping import Float
from scipy.optimize import brentq

MAX_BIAS = 0.1  # of a variance: above it the spread of an unadjusted sampler is not to be trusted


def variance_bias(energy_variance: float) -> float:
    """Relative error r of variances by the variance E of a step's energy error, a dimension.

    Args:
        energy_variance: E, at least 0.

    Returns:
        r, at least 0; infinite where E is, NaN where it is not a number.

    Example:
        >>> round(variance_bias(5e-4), 3), round(variance_bias(0.1), 2)
        (0.052, 0.36)
    """
    if not 0 < energy_variance < math.inf:
        return energy_variance
    return float(
        brentq(
            lambda r: 4 * r**3 - energy_variance * (1 + r) ** 2,
            0,
            1 + energy_variance,
            xtol=1e-15,
        )
    )


def mean_energy_variance(
    energy_variance: Float[np.ndarray, "C S"], diverging: Float[np.ndarray, "C S"]
) -> float:
    """Mean of E over the draws of all chains, but for those that diverged; NaN of none."""
    values = np.asarray(energy_variance)[~np.asarray(diverging, bool)]
    return float(values.mean()) if values.size else math.nan
