r"""Low-rank plus diagonal Gaussian, :math:`\Sigma = F F^\top + \mathrm{diag}(d^2)`."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, ClassVar, Literal, TypeAlias

import pyro.distributions as dist
import torch
from pyro.distributions.torch_distribution import TorchDistributionMixin as Distribution
from torch import Tensor, nn

from pyro_bnn.checks import check_positive_int
from pyro_bnn.errors import OptionError
from pyro_bnn.guides.guide import GaussianGuide, positive_parameter
from pyro_bnn.guides.parts.blocks import Blocks, layers_of
from pyro_bnn.guides.parts.capacitance import capacitance_tril
from pyro_bnn.guides.parts.matrices import pieces
from pyro_bnn.program.handlers import Model
from pyro_bnn.program.terms import EntryNoise

Block: TypeAlias = Literal["layer", "all"]


class AutoLowRankMultivariateNormal(GaussianGuide):
    r"""Gaussian whose covariance is of rank R plus a diagonal, over all of z or layer by layer.

    .. math:: z = m + d \circ (C \epsilon_1 + \epsilon_2), \qquad
              \Sigma = F F^\top + \mathrm{diag}(d^2), \; F = \mathrm{diag}(d) C

    With the matrix determinant lemma and Woodbury's identity every density costs O(P R^2). It
    captures the R strongest directions of correlation; misses the others. ``rank=0`` is the
    mean-field family, ``rank=P`` the full covariance.

    With ``block="layer"`` each layer has a Gaussian of this form, of rank R of its own, and layers
    are independent: :math:`\Sigma` is block-diagonal. It captures the R strongest directions of
    each layer, which one factor over all of z has to share out; misses every correlation between
    layers. A layer is the module that owns the sites, such as ``layers.0`` of
    ``layers.0.weight`` and ``layers.0.bias``; sites of the model itself are one layer. A layer of
    at most R entries has a full covariance, so that a large ``rank`` is one of blocks.

    Args:
        model: Pyro model.
        init_loc_fn: Start of the means; default a draw from the prior.
        init_scale: Initial standard deviation s of z, > 0, in its units, in the mean square: as C
            starts at random, an entry starts at variance :math:`\tfrac{s^2}{2} (1 + \chi^2_R / R)`,
            and with rank 0 at s^2.
        rank: Rank R; default the square root of P, or of the layer's number of entries, rounded.
        block: ``"layer"`` for layers that are independent; ``"all"`` or None for one Gaussian.

    Raises:
        OptionError: If ``rank`` is negative, ``init_scale`` is not positive, or there is no such
            ``block``.

    References:
        Ong, Nott & Smith, "Gaussian Variational Approximation With a Factor Covariance
        Structure", JCGS 2018, arXiv:1701.03208. Layer by layer: Tomczak, Swaroop & Turner,
        "Efficient Low Rank Gaussian Variational Inference for Neural Networks", NeurIPS 2020.
    """

    tall_params: ClassVar[tuple[str, ...]] = ("cov_factor",)
    contains = ("AutoNormal",)
    has_correlations = True
    enlarged_by = "rank"
    factor_param = "cov_factor"

    cov_factor: Tensor

    def __init__(
        self,
        model: Model,
        init_loc_fn: Callable[[dict[str, Any]], Tensor] | None = None,
        init_scale: float = 0.01,
        rank: int | None = None,
        block: Block | None = None,
    ) -> None:
        super().__init__(model, init_loc_fn, init_scale)
        if rank is not None:
            check_positive_int("rank", rank, minimum=0)
        if block not in ("layer", "all", None):
            raise OptionError(f'block is "layer", "all" or None, not {block!r}')
        self.rank = rank
        self.block: Block | None = None if block == "all" else block

    def make_parameters(self, loc: Tensor) -> None:
        """Create ``loc [P]``, ``scale [P]`` (the sds d) and ``cov_factor [P, R]`` (C).

        Layer by layer ``cov_factor`` holds C ``[P_b, R_b]`` of one layer after another, flat.
        """
        if self.rank is None and self.block is None:
            self.rank = _root(len(loc))
        names = [name for name, _, _ in self._shapes]
        layers = layers_of(names, self.model) if self.block == "layer" else [""] * len(names)
        self._blocks = Blocks.of([length for _, _, length in self._shapes], layers)
        self._ranks = [self._rank_of(size) for size in self._blocks.sizes]
        generator = torch.Generator(loc.device).manual_seed(0)
        factors = [
            loc.new_empty(n, r).normal_(generator=generator) / math.sqrt(max(r, 1))
            for n, r in zip(self._blocks.sizes, self._ranks, strict=True)
        ]
        # half of the initial variance in the diagonal, half in the factor
        share = 1.0 if self.rank == 0 else math.sqrt(0.5)
        self.loc = nn.Parameter(loc)
        self.scale = positive_parameter(torch.full_like(loc, share * self.init_scale))
        flat = torch.cat([factor.flatten() for factor in factors])
        self.cov_factor = nn.Parameter(factors[0] if self.block is None else flat)

    def set_precision(self, mean: Tensor, precision: Tensor) -> None:
        r"""Start near a Gaussian of a given mean ``[P]`` and precision ``[P, P]``.

        With :math:`d_j = P_{jj}^{-1/2}`, the best independent Gaussians, and the eigenvalues
        :math:`\lambda` of :math:`\mathrm{diag}(d) P\, \mathrm{diag}(d)`, the R directions of the
        smallest get their covariance :math:`1 / \lambda` in place of 1, in each block. That lowers
        :math:`\mathrm{KL}(q \| p)` by half of :math:`\lambda - 1 - \log \lambda` each.
        """
        self.require_setup()
        d = precision.diagonal().rsqrt()
        scaled = precision * d * d.unsqueeze(-1)
        factors: list[Tensor] = []
        rows = self._blocks.split(scaled)  # [P, P_b] each
        for own, rank in zip(rows, self._ranks, strict=True):
            number = len(factors)
            block = self._blocks.split(own.mT)[number]  # [P_b, P_b]
            values, vectors = torch.linalg.eigh(block)
            factors.append(vectors[:, :rank] * (1 / values[:rank] - 1).clamp(min=0).sqrt())
        flat = torch.cat([factor.flatten() for factor in factors])
        with torch.no_grad():
            self.loc.copy_(mean)
            self.cov_factor.copy_(factors[0] if self.block is None else flat)
        self.scale = d.to(self.loc)

    def _rank_of(self, size: int) -> int:
        """Rank of a block of so many entries."""
        if self.rank is None:
            return _root(size)
        return self.rank if self.block is None else min(self.rank, size)

    @property
    def noise_dim(self) -> int:
        """Length R + P of the noise of one draw; R is the sum over layers where they are apart."""
        return self.num_latents + sum(self._ranks)

    def _factors(self) -> list[Tensor]:
        """C ``[P_b, R_b]`` of each block."""
        if self.block is None:
            return [self.cov_factor]
        return pieces(self.cov_factor, list(zip(self._blocks.sizes, self._ranks, strict=True)))

    def transport(self, noise: Tensor) -> Tensor:
        """``loc + scale * (C noise_1 + noise_2)``, ``[..., P]``."""
        *noises, own = noise.split([*self._ranks, self.num_latents], -1)
        pairs = zip(noises, self._factors(), strict=True)
        shared = self._blocks.join([e @ C.mT for e, C in pairs])  # [..., P]
        z: Tensor = self.loc + self.scale * (shared + own)
        return z

    def own_noise(self, draws: Tensor, noise: Tensor) -> EntryNoise | None:
        r""":math:`\epsilon_2`: given :math:`\epsilon_1` entries are independent, of the sds d."""
        own = noise[..., -self.num_latents :]
        return EntryNoise(draws - self.scale * own, self.scale, own)

    def squared_distance(self, z: Tensor) -> Tensor:
        """By Woodbury's identity, ``[...]`` of z ``[..., P]``, at O(P R^2)."""
        u = (z - self.loc) / self.scale
        squared: Tensor = u.square().sum(-1)
        for part, C in zip(self._blocks.split(u), self._factors(), strict=True):
            v = torch.linalg.solve_triangular(
                capacitance_tril(C).mT, (part @ C).unsqueeze(-2), upper=True, left=False
            )
            squared = squared - v.squeeze(-2).square().sum(-1)
        return squared

    def half_log_det(self) -> Tensor:
        r""":math:`\sum_j \log d_j + \tfrac12 \sum_b \log\det(I + C_b^\top C_b)`."""
        total = self.scale.log().sum()
        for C in self._factors():
            total = total + capacitance_tril(C).diagonal().log().sum()
        return total

    def marginals(self) -> tuple[Tensor, Tensor]:
        """Means and marginal standard deviations, each ``[P]``."""
        squares = self._blocks.join([C.square().sum(-1) for C in self._factors()])
        return self.loc, self.scale * (1 + squares).sqrt()

    def get_posterior(self) -> Distribution:
        """The Gaussian over z ``[P]``."""
        self.require_setup()
        factors, scale = self._factors(), self.scale
        if self.rank == 0:  # which Pyro's distribution does not take
            normal: Distribution = dist.Normal(self.loc, scale).to_event(1)
            return normal
        C = factors[0]  # [P, R]
        if len(factors) > 1:  # one factor over all layers, zero outside of each layer's block
            widths = [len(factor) for factor in factors]
            whole = torch.block_diag(*(factor.mT for factor in factors))
            C = self._blocks.join(whole.split(widths, -1)).mT
        return dist.LowRankMultivariateNormal(self.loc, scale.unsqueeze(-1) * C, scale.square())


def _root(size: int) -> int:
    """The default rank of so many entries."""
    return round(math.sqrt(size))
