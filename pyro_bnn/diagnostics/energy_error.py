r"""What the energy errors of an unadjusted sampler say of the bias of its draws.

A Hamiltonian leapfrog step h of a Gaussian direction, in coordinates where its density has unit
scale, turns :math:`(x / \sqrt{1 + r},\, p)` by an angle :math:`\theta` with :math:`\sin^2\theta = 4
u (1 - u)`, where :math:`u = h^2 / 4` and :math:`r = u / (1 - u)`. Without a test of acceptance
draws have the variance :math:`1 + r` in place of 1, and the energy error of a step, :math:`\tfrac
r2 (x'^2 - x^2) / (1 + r)`, the variance

.. math:: E = r^2 \sin^2\theta = \frac{4 r^3}{(1 + r)^2}

:func:`variance_bias` solves the mean of E over directions for r. On a Gaussian whose directions err
by :math:`r_i` the mean is :math:`4 \langle r_i^3 \rangle` in small steps, so that r is the root
mean square of the :math:`r_i` where all directions are equally stiff, and at least that elsewhere.
A few stiff ones can be biased by more.

**Isokinetic steps**, those of ``MCLMC``, err less at one E. A leapfrog step
:math:`\epsilon = h \sqrt{P - 1}` turns velocities by kicks of size
:math:`\delta \approx h / 2`, :math:`h^2 = 4 \delta \tanh\delta`; on a Gaussian equally stiff
everywhere, as :math:`P \to \infty`,

.. math:: r = \delta \coth\delta - 1, \qquad
          E = \frac{4 r^2 \tanh^2\delta\, (1 - \tanh^2\delta)}{1 - \delta \tanh\delta}
            = 12 r^3 + O(r^4)

and in small steps directions of curvature :math:`\lambda_i` have :math:`r_i = \tfrac{h^2}{4}
(\lambda_i - \tfrac23 \langle\lambda\rangle)` and :math:`E = h^2 \langle \lambda_i r_i^2 \rangle`:
thus :math:`\sqrt{\langle r_i^2 \rangle} \le (E / 5.8)^{1/3}`, and :math:`(E / 12)^{1/3}` where all
are equal, while :func:`variance_bias` says :math:`(E / 4)^{1/3}`: an upper bound for these steps,
1.1 to 1.6 times too large. How much of a velocity is kept from step to step changes neither r nor
E. Steps of minimal norm are less biased as well (variances 3.5 % too small where this says 7 %), up
to E = 0.006; between that and 0.5 they have no step on a Gaussian equally stiff everywhere, where
they resonate. Posteriors of networks are not Gaussian: r is a scale there, and it says nothing of
chains that miss a mode.

References:
    Robnik & Seljak, "Fluctuation without Dissipation: Microcanonical Langevin Monte Carlo", 2023,
    arXiv:2303.18221. Robnik, Cohn-Gordon & Seljak, "Black-Box Unadjusted Hamiltonian Monte Carlo",
    2024, arXiv:2412.08876 (the energy error bounds the bias on Gaussians). What is said of
    isokinetic steps is derived here: ``tests/infer/isokinetic_laws.py`` has the derivation.
"""

from __future__ import annotations

import math

import numpy as np
from jaxtyping import Float
from scipy.optimize import brentq

MAX_BIAS = 0.1  # of a variance: above it the spread of an unadjusted sampler is not to be trusted


def variance_bias(energy_variance: float) -> float:
    """Relative error r of variances by the variance E of a step's energy error, a dimension.

    Of Hamiltonian steps; an upper bound for isokinetic ones.

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
