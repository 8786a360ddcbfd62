r"""Temperatures of a sampler's draws: what its steps and the noise of batches do to them.

Of draws of :math:`\exp(-U(z) / T)`, momenta with unit masses and any point l,

.. math:: E\, \frac{|p|^2}{P} = T, \qquad E\, \frac{(z - l)^\top \nabla U(z)}{P} = T,

the kinetic and the configurational temperature. The second is an average over directions: one
stiff direction that is far too hot hardly shows among many.

References:
    Wenzel et al., "How Good is the Bayes Posterior in Deep Neural Networks Really?", ICML 2020,
    arXiv:2002.02405, appendix on temperature diagnostics. Leimkuhler & Matthews, "Molecular
    Dynamics", Springer 2015, chapter 6.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from pyro_bnn.errors import OptionError, ShapeError

MOST_OFF = 0.1  # of the temperature itself
STANDARD_ERRORS = 3.0
MIN_DRAWS = 4  # of each chain


@dataclass(frozen=True, kw_only=True)
class Temperature:
    """A temperature of draws beside that which was asked for.

    Attributes:
        mean: Mean over draws.
        error: Its standard error, which counts draws of one chain by their ESS.
        wanted: The temperature T that was asked for.
    """

    mean: float
    error: float
    wanted: float

    @property
    def is_off(self) -> bool:
        """Whether it is off by more than a tenth of T, beyond 3 standard errors."""
        return abs(self.mean - self.wanted) - STANDARD_ERRORS * self.error > MOST_OFF * self.wanted


def temperature_of(values: Float[np.ndarray, "C S"], wanted: float = 1.0) -> Temperature:
    """The mean of a temperature over chains, and how sure it is.

    Args:
        values: Temperature of each draw ``[C, S]``.
        wanted: T, > 0.

    Raises:
        OptionError: If T is not above 0.
        ShapeError: If the values are not ``[C, S]``, or a chain has fewer than 4 draws.

    Example:
        >>> values = 1.5 + np.random.default_rng(0).normal(0, 0.1, (4, 500))
        >>> found = temperature_of(values)
        >>> round(found.mean, 2), found.error < 0.004, found.is_off
        (1.5, True, True)
    """
    from pyro_bnn import arviz_io

    values = np.asarray(values, dtype=float)
    if values.ndim != 2:
        raise ShapeError(f"values must have shape [C, S], got {list(values.shape)}")
    if not wanted > 0:
        raise OptionError(f"wanted is a temperature above 0, not {wanted!r}")
    if values.shape[1] < MIN_DRAWS:
        raise ShapeError(
            f"a temperature needs at least {MIN_DRAWS} draws a chain, got {values.shape[1]}"
        )
    error = float(arviz_io.mcse_mean(values))
    return Temperature(mean=float(values.mean()), error=error, wanted=wanted)
