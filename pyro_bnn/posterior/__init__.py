"""A fit: its draws, predictions and densities, how it came about; saved and loaded."""

from __future__ import annotations

from pyro_bnn.posterior.nature import Nature
from pyro_bnn.posterior.posterior import DrawsPosterior, GuidePosterior, Posterior
from pyro_bnn.posterior.provenance import Provenance

__all__ = ["DrawsPosterior", "GuidePosterior", "Nature", "Posterior", "Provenance"]
