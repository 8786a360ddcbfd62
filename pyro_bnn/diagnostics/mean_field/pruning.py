r"""Weights that a posterior can do without: those whose mean is small beside their spread.

.. math:: \mathrm{SNR}_j = \frac{|\mathrm{E}\,w_j|}{\mathrm{sd}\,w_j}

That weights can go without loss is no merit of the ratio until others that go by their magnitude,
or by chance, cost more: those are the controls.
"""

from __future__ import annotations

import fnmatch
import math
from typing import Literal, TypeAlias

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from pyro_bnn.checks import check_choice
from pyro_bnn.errors import OptionError, SiteError
from pyro_bnn.posterior.guide_posterior import GuidePosterior
from pyro_bnn.posterior.posterior import Posterior
from pyro_bnn.predictive.draws import Draws
from pyro_bnn.sites import Site

Order: TypeAlias = Literal["signal to noise", "magnitude", "random"]


class PrunedPosterior(Posterior):
    """A posterior with some weights removed: they are zero in every draw, the others as they were.

    One seed gives the draws of the whole posterior with zeros in them, so that predictions before
    and after differ by the pruning alone. It has no density q.

    Args:
        whole: The posterior before pruning.
        kept: Whether each entry of z ``[P]`` is kept.

    Attributes:
        kept: As given.
        num_removed: Number of weights that are zero.
    """

    def __init__(self, whole: Posterior, kept: Bool[Tensor, " P"]) -> None:
        super().__init__(whole.program, whole.provenance)
        self.params = whole.params
        self.kept = kept
        self.num_removed = int((~kept).sum())
        self._whole = whole

    @property
    def num_chains(self) -> int:
        """Number of chains C of the whole posterior."""
        return self._whole.num_chains

    @property
    def has_moments(self) -> bool:
        """As of the whole posterior."""
        return self._whole.has_moments

    def in_blocks(self, num_samples: int, seed: int) -> Draws:
        """Draws of the whole posterior with zeros for the removed weights; see the base class."""
        whole = self._whole.in_blocks(num_samples, seed)
        removed = (~self.kept).nonzero()[:, 0]
        return Draws(
            lambda: (block.index_fill(-1, removed, 0.0) for block in whole.blocks()),
            whole.num_draws,
            whole.num_chains,
        )


def signal_to_noise(posterior: Posterior, sites: str = "*") -> dict[str, Tensor]:
    r"""How many standard deviations the mean of each weight is away from zero.

    Args:
        posterior: A fit whose guide has a marginal mean and sd of each weight.
        sites: Pattern of the names of sites, such as ``"*.weight"``. Sites that are positive or
            otherwise constrained, such as scales, are no weights and are left out.

    Returns:
        Site to :math:`|\mathrm{E}\,w| / \mathrm{sd}\,w`, >= 0, in the site's shape.

    Raises:
        SiteError: If the posterior has no such marginals, or the pattern matches no weights.
    """
    loc, scale = _marginals(posterior)
    ratio = loc.abs() / scale
    return {site.name: site.value(ratio) for site in _weights(posterior, sites)}


def prune(
    posterior: Posterior,
    fraction: float,
    sites: str = "*",
    *,
    by: Order = "signal to noise",
    seed: int = 0,
) -> PrunedPosterior:
    """Remove the weights of the smallest signal-to-noise ratio, of all sites together.

    Args:
        posterior: A fit whose guide has a marginal mean and sd of each weight; by magnitude or at
            random that of any guide, such as a point estimate.
        fraction: Share of the weights to remove, 0 to 1, rounded to whole weights.
        sites: Pattern of the names of sites to prune, as in :func:`signal_to_noise`. Of a
            hierarchical weight it is ``.raw`` that is set to zero, which leaves its ``loc``.
        by: What goes first: the smallest ratio, the smallest absolute value of the guide's centre,
            or any at random.
        seed: Of the random order.

    Returns:
        The posterior with zeros, to predict with.

    Raises:
        OptionError: If ``fraction`` is not within 0 and 1, or ``by`` is none of these.
        SiteError: If the posterior has no such marginals, or the pattern matches no weights.

    References:
        Blundell et al., "Weight Uncertainty in Neural Networks", ICML 2015, arXiv:1505.05424,
        section 5.1. Graves, "Practical Variational Inference for Neural Networks", NeurIPS 2011.

    Example:
        >>> from pyro_bnn import SVI, guides, models
        >>> x = torch.linspace(-1, 1, 20).unsqueeze(-1)
        >>> fit = SVI(guides.AutoNormal, num_steps=5).run(
        ...     models.MLP(1, hidden=(8,)), (x, x[:, 0]), progress=False
        ... )
        >>> pruned = prune(fit, 0.75, "*.weight")
        >>> pruned.num_removed, pruned.predict(x, num_samples=10).mean.shape
        (12, torch.Size([20, 1]))
    """
    if isinstance(fraction, bool) or not (
        isinstance(fraction, int | float) and 0 <= fraction <= 1 and math.isfinite(fraction)
    ):
        raise OptionError(f"fraction is the share of weights to remove, 0 to 1, not {fraction!r}")
    check_choice("by", by, Order)
    if by == "signal to noise":
        loc, scale = _marginals(posterior)
        worth = loc.abs() / scale
    elif not isinstance(posterior, GuidePosterior):
        raise SiteError(f"{posterior.method} has no guide with a centre: prune the fit of a guide")
    elif by == "magnitude":
        worth = posterior.guide.centre().abs()
    else:
        size = posterior.guide.centre()
        worth = torch.rand(size.shape, generator=torch.Generator().manual_seed(seed)).to(size)
    entries = torch.cat(
        [torch.arange(site.start, site.stop) for site in _weights(posterior, sites)]
    ).to(worth.device)
    num_removed = round(fraction * len(entries))
    kept = torch.ones_like(worth, dtype=torch.bool)
    kept[entries[worth[entries].argsort(stable=True)[:num_removed]]] = False
    return PrunedPosterior(posterior, kept)


def _marginals(posterior: Posterior) -> tuple[Float[Tensor, " P"], Float[Tensor, " P"]]:
    marginals = posterior.guide.marginals() if isinstance(posterior, GuidePosterior) else None
    if marginals is None:
        raise SiteError(
            f"{posterior.method} has no marginal mean and sd of each weight: fit AutoNormal, or "
            "another guide whose marginals() are not None"
        )
    loc, scale = marginals
    return loc.detach(), scale.detach()


def _weights(posterior: Posterior, pattern: str) -> list[Site]:
    """The sites of unconstrained values whose names fit."""
    real = [site for site in posterior.program.sites if site.is_real]
    if not (fitting := [s for s in real if fnmatch.fnmatchcase(s.name, pattern)]):
        raise SiteError(
            f"the pattern {pattern!r} matches no weights; there are "
            f"{', '.join(site.name for site in real)}"
        )
    return fitting
