r"""K point estimates of equal weight, :math:`q(z) = \frac1K \sum_k \delta(z - m_k)`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from pyro_bnn.checks import check_positive_int
from pyro_bnn.guides.guide import LOG_JOINT, Guide, KLKind
from pyro_bnn.guides.parts.components import component_of
from pyro_bnn.handled import parameters_of
from pyro_bnn.program.handlers import Model
from pyro_bnn.program.random_state import isolated
from pyro_bnn.program.terms import GuideTerms, Params


class AutoEnsemble(Guide):
    r"""K maximum a posteriori estimates, each from a start of its own.

    .. math:: \hat\theta_k = \arg\max_\theta\; \log p(y \mid x, \theta) + \log p(\theta)

    What is maximised is the mean of their log joints, whose gradient is that of each over K: Adam,
    which goes by entries, takes the steps that it would take for each alone. Point-estimated
    parameters of the model have K values as well, which start at the model's. It captures several
    modes and misses the spread around each; it has no density, so no ELBO.

    The posteriors of :class:`~pyro_bnn.Ensemble` are this guide, and it is no method of its own.

    Args:
        model: Pyro model.
        init_loc_fn: Start of each site; default a draw from the prior, one a member.
        num_members: Number of members K.

    Raises:
        OptionError: If ``num_members`` is not a positive integer.

    References:
        Lakshminarayanan, Pritzel & Blundell, "Simple and Scalable Predictive Uncertainty Estimation
        using Deep Ensembles", NeurIPS 2017, arXiv:1612.01474.
    """

    has_log_prob: bool = False
    kl_kind: KLKind = "none"
    objective: str = LOG_JOINT
    has_correlations = True
    own_state: ClassVar[Mapping[str, str]] = {"params": "member_params"}

    loc: Tensor
    values: Tensor

    def __init__(
        self,
        model: Model,
        init_loc_fn: Callable[[dict[str, Any]], Tensor] | None = None,
        num_members: int = 10,
    ) -> None:
        super().__init__(model, init_loc_fn=init_loc_fn)
        check_positive_int("num_members", num_members)
        self.num_members = num_members
        trained = {name: p for name, p in parameters_of(model).items() if p.requires_grad}
        self.member_params = tuple(trained)
        self._starts = [p.detach().flatten() for p in trained.values()]

    def make_parameters(self, loc: Tensor) -> None:
        """Create ``loc [K, P]``, a draw of the prior a member, and ``values [K, Q]``."""
        members = [loc]
        if self._event_dims:  # set up with a model; a state that is loaded has its own values
            with isolated():  # the caller's random state decides, as it did for the first
                members = [self._start(self._traced()) for _ in range(self.num_members)]
        locs = torch.stack(members).to(loc)
        self.loc = nn.Parameter(locs.expand(self.num_members, -1).clone())
        if self.member_params:
            values = torch.cat(self._starts).to(loc)
            self.values = nn.Parameter(values.expand(self.num_members, -1).clone())

    def set_member_params(self, params: Params) -> None:
        """Start every member's parameters at those of the model."""
        if self.member_params:
            with torch.no_grad():
                self.values.copy_(torch.cat([params[n].flatten() for n in self.member_params]))

    # Draws

    @property
    def noise_dim(self) -> int:
        """One number, which says which member is taken."""
        return 1

    def atoms(self) -> Tensor:
        """The members ``[K, P + Q]`` with their own parameters."""
        return torch.cat([self.loc, self.values], -1) if self.member_params else self.loc

    def draws(self, noise: Tensor) -> Tensor:
        """Draws ``[..., P + Q]``: members at random, with their own parameters."""
        return self.atoms()[component_of(noise[..., 0], self.num_members)]

    def transport(self, noise: Tensor) -> Tensor:
        """Draws ``[..., P]``: members at random."""
        return self.loc[component_of(noise[..., 0], self.num_members)]

    def make_terms(self, noise: Tensor, *, density: bool) -> GuideTerms:
        """All K members, whatever the noise; without ``density`` draws of them."""
        return GuideTerms(self.atoms() if density else self.draws(noise))
