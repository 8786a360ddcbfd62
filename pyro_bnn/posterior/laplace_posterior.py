"""A Gaussian around a mode of a network as a posterior."""

from __future__ import annotations

from pyro_bnn.guides import Guide
from pyro_bnn.posterior.guide_posterior import GuidePosterior
from pyro_bnn.posterior.laplace_draws import LaplaceDraws
from pyro_bnn.posterior.provenance import Provenance
from pyro_bnn.predictive.map_draws import Chunks
from pyro_bnn.program.linearised import LinearisedProgram
from pyro_bnn.program.program import Program


class LaplacePosterior(LaplaceDraws, GuidePosterior, kind="laplace"):
    """A Gaussian around a mode; see :class:`pyro_bnn.Laplace`.

    With ``predictive="linearised"`` functions, predictions and log likelihoods of rows are those of
    the network that is linear in z at the mode. ``log_joint``, ``densities`` and ``elbo`` are of
    the model itself, as those of any other approximation.

    Args:
        program: The model as tensor functions.
        guide: The Gaussian.
        provenance: How it came about.
    """

    def __init__(self, program: Program, guide: Guide, provenance: Provenance) -> None:
        super().__init__(program, guide, provenance)
        nature, option = provenance.nature, self.options.get("predictive")
        if option == "linearised" if nature is None else nature.is_linearised:
            self.predictor = LinearisedProgram(program, guide.centre())
            self.chunks = Chunks(self.predictor)
