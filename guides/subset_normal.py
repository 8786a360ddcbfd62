r"""One Gaussian over some entries of z; the others are points."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from pyro_bnn.guides.guide import Guide, KLKind
from pyro_bnn.program.handlers import Model


class AutoSubsetNormal(Guide):
    r"""A dense Gaussian over P' entries of z, wherever they stand; the others are held.

    .. math:: z_E = m_E + L \epsilon, \qquad z_{\setminus E} = m_{\setminus E}

    The posteriors of ``Laplace(subset=P')`` are this guide, which sets its entries; it has no
    density over z and is no method of its own.

    Args:
        model: Pyro model.
        init_loc_fn: Start of the means; default a draw from the prior.
        num_entries: Number of entries P'.

    References:
        Daxberger et al., "Bayesian Deep Learning via Subnetwork Inference", ICML 2021,
        arXiv:2010.14689.
    """

    has_log_prob: bool = False
    kl_kind: KLKind = "none"
    has_correlations = True

    loc: Tensor
    scale_tril: Tensor
    entries: Tensor

    def __init__(
        self,
        model: Model,
        init_loc_fn: Callable[[dict[str, Any]], Tensor] | None = None,
        num_entries: int = 1,
    ) -> None:
        super().__init__(model, init_loc_fn=init_loc_fn)
        self.num_entries = num_entries

    def make_parameters(self, loc: Tensor) -> None:
        """Create ``loc [P]``, ``scale_tril [P', P']`` and the numbers ``entries [P']``."""
        self.loc = nn.Parameter(loc)
        self.scale_tril = nn.Parameter(loc.new_zeros(self.num_entries, self.num_entries))
        self.register_buffer("entries", torch.arange(self.num_entries, device=loc.device))

    @property
    def noise_dim(self) -> int:
        """P'."""
        return self.num_entries

    def transport(self, noise: Tensor) -> Tensor:
        """Draws z ``[..., P]``."""
        whole = noise.new_zeros((*noise.shape[:-1], self.num_latents))
        moved = whole.index_copy(-1, self.entries, noise @ self.scale_tril.tril().mT)
        return self.loc + moved
