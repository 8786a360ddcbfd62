"""Draws of a Gaussian around a mode, of whatever they are."""

from __future__ import annotations

import math

from pyro_bnn.guides.guide import LOG_JOINT
from pyro_bnn.posterior.guide_draws import GuideDraws


class LaplaceDraws(GuideDraws):
    """Draws of a Gaussian around a mode, made on demand; see :class:`pyro_bnn.Laplace`."""

    @property
    def objective(self) -> str:
        """What the steps to the mode maximised."""
        return LOG_JOINT

    @property
    def log_evidence(self) -> float:
        """Laplace's approximation of log p(D), nats; NaN where some entries of z are held."""
        return float(self.options.get("log_evidence", math.nan))

    @property
    def newton_decrement(self) -> float:
        """How far, in nats, Newton's next step would still go up."""
        return float(self.options["newton_decrement"])
