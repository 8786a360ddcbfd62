"""What programs take and give: batches of rows, the terms of a guide and of an ELBO."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

from pyro.distributions.torch_distribution import TorchDistributionMixin as Distribution
from torch import Tensor

from pyro_bnn.program.closed_forms import Marginal
from pyro_bnn.program.latents import Marginals

Params = Mapping[str, Tensor]


class Batch(NamedTuple):
    """Rows of data: inputs ``x [B, ...]`` and observations y, ``[B]`` or ``[B, O]``."""

    x: Tensor
    y: Tensor

    def take(self, rows: Tensor) -> Batch:
        """The rows of these numbers ``[...]``, as ``x [..., *]`` and ``y [..., *]``.

        torch copies a row whole by ``index_select``, and number by number by ``x[rows]``, which
        takes three to eight times as long at 784 inputs.
        """
        flat = rows.flatten()
        x, y = (part.index_select(0, flat).unflatten(0, rows.shape) for part in self)
        return Batch(x, y)


class EntryNoise(NamedTuple):
    """Independent Gaussians that z has once the noise that its entries share is drawn.

    Attributes:
        loc: Means ``[D, P]`` given the shared noise; ``[1, P]`` where there is none.
        scale: Standard deviations ``[P]``.
        noise: Standardised noise ``[D, P]`` of the entries: ``z = loc + scale * noise``.
    """

    loc: Tensor
    scale: Tensor
    noise: Tensor


class GuideTerms(NamedTuple):
    """What an ELBO needs of a guide at one or more noise vectors.

    Attributes:
        z: Draws ``[D, P]``; ``[D, P + Q]`` where a draw has values of its own of some of the
            model's parameters.
        entropy: Entropy of q in closed form, ``[]``, or None.
        log_prob: log q(z) ``[D]``; None where the entropy is given, or q has no density.
        marginals: Marginals of q where they are of a known family, or None.
        kl_scale: Factor of the KL.
        weights: Weights ``[D]`` of the draws, which sum to 1; None for equal ones.
        entry_noise: What is left of the draws' noise to each entry alone, or None.
    """

    z: Tensor
    entropy: Tensor | None = None
    log_prob: Tensor | None = None
    marginals: Marginals | None = None
    kl_scale: float = 1.0
    weights: Tensor | None = None
    entry_noise: EntryNoise | None = None


class GuideLike(Protocol):
    """The part of a guide that the program calls."""

    has_log_prob: bool
    marginal_family: Marginal

    @property
    def member_params(self) -> tuple[str, ...]:
        """Names of the model's parameters of which each draw has values of its own."""

    def terms(self, params: Params, noise: Tensor, *, density: bool = True) -> GuideTerms:
        """The guide's terms with ``params`` in place of its own parameters."""

    def reduce_log_likelihood(self, rows: Tensor, scale: float = 1.0) -> Tensor:
        """The likelihood term ``[]`` of log densities ``[D, B]`` of draws and rows, and N/B."""

    @property
    def cauchy_sites(self) -> frozenset[str]:
        """Names of the sites whose marginals are Cauchy."""


class RowEstimate(ABC):
    """Another estimate of the likelihood term than that of draws of z.

    Attributes:
        kl_weights: Weights ``[S]`` of the draws in the KL, or None for equal ones.
    """

    kl_weights: Tensor | None = None

    @abstractmethod
    def rows(
        self,
        terms: GuideTerms,
        noise: Sequence[Tensor],
        batch: Batch,
        params: Params,
        own: Params,
    ) -> tuple[Tensor, float]:
        """Expected log densities ``[D, B]`` of the rows, or draws of them, and N/B.

        Args:
            terms: The guide's at the noise of its draws.
            noise: The noise of its draws ``[S, M]``, and that of rows ``[S, B, R]``.
            batch: Rows of the data.
            params: Values of the model's point-estimated parameters.
            own: Values of the guide's parameters by name.
        """


class Predictive(NamedTuple):
    """What a model says of rows x given draws z ``[S, P]``.

    Attributes:
        f: Network output ``[S, N, F]``.
        y: Distribution of y, batch ``[S, N]``.
    """

    f: Tensor
    y: Distribution


class ELBOTerms(NamedTuple):
    """The parts of a variational objective, each ``[]``.

    Attributes:
        expected_log_likelihood: Likelihood term.
        kl: KL(q || p); the likelihood term less it is the bound on log p(D).
        sampled_kl: The part of it that is an average over draws.
        log_factors: Sum of the model's ``pyro.factor`` statements, such as weight decay on
            point-estimated parameters: maximised with the bound and no part of it.
    """

    expected_log_likelihood: Tensor
    kl: Tensor
    sampled_kl: Tensor
    log_factors: Tensor | None = None

    def loss(self, kl_weight: Tensor | float) -> Tensor:
        """What is minimised, with the KL's weight of a step."""
        loss = kl_weight * self.kl - self.expected_log_likelihood
        return loss if self.log_factors is None else loss - self.log_factors


def with_prefix(params: Params, prefix: str) -> dict[str, Tensor]:
    """The parameters whose names have a prefix, by their names without it."""
    return {name.removeprefix(prefix): v for name, v in params.items() if name.startswith(prefix)}
