r"""A bound on the spectral norms of the weights of a network, kept while it is trained.

.. math:: \tilde W = W / \max(1, \sigma(W) / c)

A residual block :math:`h + g(h)` whose g is Lipschitz of a constant below 1 keeps distances: inputs
that differ have features that differ. Weights whose norm is below c stay as they are.

References:
    Miyato et al., "Spectral Normalization for Generative Adversarial Networks", ICLR 2018,
    arXiv:1802.05957. Liu et al., "Simple and Principled Uncertainty Estimation with Deterministic
    Deep Learning via Distance Awareness", NeurIPS 2020, arXiv:2006.10108 (the soft bound).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from pyro_bnn.checks import check_positive
from pyro_bnn.errors import OptionError

KINDS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)
FIRST = 30  # iterations at the start, then one a step


class SpectralBound(nn.Module):
    r"""A parametrization of torch: a weight whose largest singular value is at most c.

    The value is estimated by power iteration, one step a forward in training mode. Of a
    convolution it is that of the kernel as a matrix ``[O, I * kernel]``.

    Args:
        weight: The weight at the start.
        bound: The bound c.
    """

    u: Tensor
    v: Tensor

    def __init__(self, weight: Tensor, bound: float) -> None:
        super().__init__()
        self.bound = bound
        matrix = weight.detach().flatten(1)
        generator = torch.Generator().manual_seed(0)
        for name, size in zip("uv", matrix.shape, strict=True):
            start = torch.randn(size, generator=generator).to(matrix)
            self.register_buffer(name, nn.functional.normalize(start, dim=0))
        self.iterate(matrix, FIRST)

    @torch.no_grad()
    def iterate(self, matrix: Tensor, count: int) -> None:
        """Go on with the power iteration for a weight as a matrix ``[O, I]``."""
        for _ in range(count):
            self.u.copy_(nn.functional.normalize(matrix @ self.v, dim=0))
            self.v.copy_(nn.functional.normalize(matrix.mT @ self.u, dim=0))

    def forward(self, weight: Tensor) -> Tensor:
        """The weight, smaller where its norm is above the bound."""
        matrix = weight.flatten(1)
        if self.training:
            self.iterate(matrix.detach(), 1)
        norm = self.u.clone() @ matrix @ self.v.clone()
        return weight / (norm / self.bound).clamp_min(1)


def bound_spectral_norms(
    net: nn.Module, bound: float = 0.95, layers: Sequence[str] | None = None
) -> tuple[str, ...]:
    """Keep the spectral norms of linear layers and convolutions below a bound, in place.

    Train the network afterwards: its weights change where they are above. What is registered is a
    parametrization of torch, which ``torch.nn.utils.parametrize.remove_parametrizations`` takes
    away.

    Args:
        net: The network.
        bound: Largest norm c, > 0; below 1 for the inner part of residual blocks.
        layers: Paths of the layers; by default all linear layers and convolutions.

    Returns:
        The paths.

    Raises:
        OptionError: If a path leads to no such layer, or the bound is not positive.

    Example:
        >>> net = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
        >>> bound_spectral_norms(net, 0.5, ["0"])
        ('0',)
        >>> bool(torch.linalg.matrix_norm(net[0].weight, 2) < 0.501)
        True
    """
    check_positive("bound", bound)
    known = {name: module for name, module in net.named_modules() if isinstance(module, KINDS)}
    for name in layers if layers is not None else ():
        if name not in known:
            raise OptionError(
                f"{name!r} is no linear layer or convolution of the network: name some of "
                f"{', '.join(known) or 'none, as it has none'}"
            )
    names = tuple(known) if layers is None else tuple(layers)
    for name in names:
        module = known[name]
        parametrize.register_parametrization(
            module, "weight", SpectralBound(module.weight, float(bound))
        )
    return names


def settle(net: nn.Module) -> None:
    """End the power iterations at the weights as they are, for their use without training."""
    for module in net.modules():
        if parametrize.is_parametrized(module, "weight"):
            parametrizations: Any = module.parametrizations
            of_weight = parametrizations["weight"]
            for step in of_weight:
                if isinstance(step, SpectralBound):
                    step.iterate(of_weight.original.detach().flatten(1), 10 * FIRST)
