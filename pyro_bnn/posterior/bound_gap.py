r"""How far the bound that a fit maximised lies below the expectation that it stands in for.

.. math:: \sum_n \mathbb E_q \log p(y_n \mid f_n) - \sum_n b_n(q)

with :math:`b_n` the closed-form bound of a row. The ELBO of the fit is higher by this gap. A fit of
a large gap is pulled to small variances, which make the bound tight.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class BoundGap:
    """The gap of all rows, by draws.

    Attributes:
        gap: Expectation less bound, nats.
        error: Its Monte Carlo standard error, nats.
        num_rows: Number of rows N.
    """

    gap: float
    error: float
    num_rows: int

    @property
    def a_row(self) -> float:
        """The gap of a row, nats."""
        return self.gap / self.num_rows
