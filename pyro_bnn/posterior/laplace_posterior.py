"""A Gaussian around a mode of a network as a posterior."""

from __future__ import annotations

from functools import cached_property, partial

import pyro.distributions as dist
import torch
from jaxtyping import Float
from torch import Tensor

from pyro_bnn.checks import check_choice, check_positive_int
from pyro_bnn.data.arrays import ArrayLike
from pyro_bnn.errors import OptionError
from pyro_bnn.guides import Guide
from pyro_bnn.posterior.class_probabilities import (
    Approximation,
    bridge,
    by_draws,
    logits_of,
    probit,
)
from pyro_bnn.posterior.guide_posterior import GuidePosterior
from pyro_bnn.posterior.laplace_draws import LaplaceDraws
from pyro_bnn.posterior.provenance import Provenance
from pyro_bnn.predictive.map_draws import Chunks
from pyro_bnn.program.head import Head
from pyro_bnn.program.linearised import LinearisedProgram
from pyro_bnn.program.program import Program
from pyro_bnn.program.random_state import isolated


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
        is_linearised = option == "linearised" if nature is None else nature.is_linearised
        if is_linearised and self._head is None:  # which is linear as it is
            self.predictor = LinearisedProgram(program, guide.centre())
            self.chunks = Chunks(self.predictor)

    @cached_property
    def _head(self) -> Head | None:
        """The head whose weights are all of z; None without one."""
        head = Head.of(self.program)
        return head if head is not None and head.is_all_of(self.program) else None

    @isolated()
    def class_probs(
        self,
        x: ArrayLike,
        by: Approximation = "probit",
        num_samples: int = 1_000,
        seed: int = 0,
    ) -> Float[Tensor, "N C"]:
        """Probabilities of classes at x ``[N, I]``, from the Gaussian that the logits have.

        Of the network that is linear in z at the mode, whatever ``predictive`` is. No weights are
        drawn: of a head of 1,000 classes a row takes about as long as the network itself.

        Args:
            x: Inputs in the model's units; columns as in :meth:`predict`.
            by: ``"probit"``, logits scaled by their variances; ``"bridge"``, the Laplace bridge to
                a Dirichlet distribution, of three or more classes, which is too even where logits
                are wide: of 200 classes on 1,500 rows its log score was -4.7, that of draws -2.5;
                ``"draws"``, a mean over draws of the logits of each row.
            num_samples: Number of draws of ``"draws"``.
            seed: Their seed.

        Returns:
            Probabilities; under ``Bernoulli`` those of 1, a column for each logit.

        Raises:
            OptionError: If the model has no classes, or the bridge has two.
        """
        check_choice("by", by, Approximation)
        check_positive_int("num_samples", num_samples)
        family = self.program.likelihood_family
        if family not in (dist.Categorical, dist.Bernoulli):
            raise OptionError(
                f"class_probs is of classes, and y is {family.__name__} here: call predict(x)"
            )
        if by == "bridge" and (family is dist.Bernoulli or self.program.num_function_outputs < 3):
            raise OptionError(
                'by="bridge" takes three or more classes that exclude each other: take "probit" or '
                '"draws"'
            )
        rows, params = self._inputs(x), self.params
        logits = logits_of(self.program, self.guide, self._head, rows, params)
        if by == "bridge":
            return bridge(logits)
        squash = torch.sigmoid if family is dist.Bernoulli else partial(torch.softmax, dim=-1)
        if by == "draws":
            return by_draws(logits, squash, num_samples, seed)
        return probit(logits, squash)
