"""Pyro's normalising flows as pure maps that start at the identity and can be inverted.

Pyro's transforms are used as they are, with three things around them. They keep their last input,
output and log determinant as attributes, which would be tensors of a finished recording, of a
``vmap`` or of another copy of the guide: these are cleared after each call. Their networks start at
random, and here so that the map is the identity. And where Pyro has no inverse, or one that fails
in double precision, there is one here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, cast

import torch
from pyro.distributions.torch_transform import TransformModule
from pyro.distributions.transforms import (
    AffineAutoregressive,
    AffineCoupling,
    Planar,
    SplineAutoregressive,
    SplineCoupling,
)
from pyro.distributions.transforms.utils import clamp_preserve_gradients
from pyro.nn import AutoRegressiveNN, DenseNN
from torch import Tensor, nn

from pyro_bnn.guides.parts.bisection import root
from pyro_bnn.program.random_state import isolated

UNITS = 32  # of a layer's network, by default
BINS, BOUND = 8, 4.0  # of splines, which are the identity beyond the bound
SPLINE = (BINS, BINS, BINS - 1, BINS)  # widths, heights, slopes, and the place of each bin's joint
# inverse softplus of slope 1: Pyro adds 0.001 to slopes and sets 0.999 at both ends
SLOPE = math.log(math.expm1(1 - 1e-3))
STARTS = (0.0, 0.0, SLOPE, 0.0)
_CACHES = ("_cached_log_scale", "_cached_logDetJ", "_cache_log_detJ")


class Kind(NamedTuple):
    """What is known of one of Pyro's flows over vectors of n entries.

    Attributes:
        make: Makes a layer of n and the units of its network.
        inverse: Maps a layer and y ``[..., n]`` to x ``[..., n]``.
        numbers: How many a layer trains, of n and the units.
        is_autoregressive: Whether its network has to have n units or more.
        num_layers: By default.
        min_size: Least n.
    """

    make: Callable[[int, int], TransformModule]
    inverse: Callable[[Any, Tensor], Tensor]
    numbers: Callable[[int, int], int]
    is_autoregressive: bool = False
    num_layers: int = 2
    min_size: int = 2

    def units(self, size: int) -> int:
        """Units of the network by default, of n."""
        return max(size, UNITS) if self.is_autoregressive else UNITS


class Flows(nn.Module):
    """Layers of a flow over vectors ``[..., n]``, each over another order of the entries.

    Args:
        flow: Name of the layers' kind.
        size: n.
        num_layers: Number L of layers.
        hidden: Units of the networks.
    """

    orders: Tensor
    backs: Tensor

    def __init__(self, flow: str, size: int, num_layers: int, hidden: int) -> None:
        super().__init__()
        self.flow = flow  # its functions cannot be pickled
        with isolated(0):
            made = (KINDS[flow].make(size, hidden) for _ in range(num_layers))
            self.layers = nn.ModuleList(made)
        orders = torch.stack([order_of(size, i) for i in range(num_layers)])
        self.register_buffer("orders", orders, persistent=False)  # [L, n]
        self.register_buffer("backs", orders.argsort(-1), persistent=False)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Y ``[..., n]`` of x ``[..., n]``, and log|det dy/dx| ``[...]``."""
        total = x.new_zeros(x.shape[:-1])
        for layer, order, back in zip(self.layers, self.orders, self.backs, strict=True):
            y, log_det = push(cast(TransformModule, layer), x[..., order])
            x, total = y[..., back], total + log_det
        return x, total

    def inverse(self, y: Tensor) -> Tensor:
        """X ``[..., n]`` of y ``[..., n]``."""
        layers = list(zip(self.layers, self.orders, self.backs, strict=True))
        for layer, order, back in reversed(layers):
            with without_caches(layer):
                y = KINDS[self.flow].inverse(layer, y[..., order])[..., back]
        return y


def order_of(size: int, layer: int) -> Tensor:
    """The order ``[n]`` in which a layer takes the entries, half of which a coupling keeps.

    The second of two layers has that of the first reversed. The halves are the first and the last
    entries at first, then those of an even and an odd number, then of the next bit of the number.
    """
    order = torch.arange(size)
    if pair := layer // 2:
        order = ((order >> (pair - 1)) & 1).argsort(stable=True)
    return order.flip(0) if layer % 2 else order


def push(layer: TransformModule, x: Tensor) -> tuple[Tensor, Tensor]:
    """Y ``[..., n]`` of one of Pyro's transforms, and log|det dy/dx| ``[...]``."""
    with without_caches(layer):  # the layer's caches are valid inside this block only
        y = layer(x)
        return y, layer.log_abs_det_jacobian(x, y)


@contextmanager
def without_caches(layer: nn.Module) -> Iterator[None]:
    """Leave no tensor of a call on a transform or its parts."""
    try:
        yield
    finally:
        for part in layer.modules():
            if isinstance(part, TransformModule):
                part._cached_x_y = None, None
                for name in _CACHES:
                    if name in part.__dict__:
                        part.__dict__[name] = None


class FromStart(nn.Module):
    r"""A network of Pyro whose outputs start at given numbers, whatever the input.

    What its last layer adds to them is divided by :math:`\sqrt m`, with m entries in a row: they
    are noisy, and with this factor one step of Adam in random directions changes their sum as it
    changes a single parameter.

    Args:
        net: The network, with outputs for each of the numbers.
        starts: The numbers.
    """

    def __init__(self, net: AutoRegressiveNN | DenseNN, starts: Sequence[float]) -> None:
        super().__init__()
        self.net, self.starts = net, tuple(starts)
        last = [cast(nn.Linear, net.layers[-1])]
        if skip := getattr(net, "skip_layer", None):
            last.append(skip)
        self.divisor = math.sqrt(sum(layer.in_features for layer in last))
        with torch.no_grad():
            for layer in last:
                for parameter in layer.parameters():
                    parameter.zero_()

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        """The outputs, as Pyro's transforms take them."""
        pairs = zip(self.net(x), self.starts, strict=True)
        return tuple(value / self.divisor + start for value, start in pairs)


def _autoregressive(size: int, hidden: int, outputs: Sequence[int]) -> AutoRegressiveNN:
    return AutoRegressiveNN(
        size,
        [hidden],
        param_dims=list(outputs),
        permutation=cast(torch.LongTensor, torch.arange(size)),
        skip_connections=True,  # linear in the entries before: every Gaussian is in the family
        nonlinearity=nn.Tanh(),
    )


def _affine_autoregressive(size: int, hidden: int) -> TransformModule:
    return AffineAutoregressive(FromStart(_autoregressive(size, hidden, (1, 1)), (0.0, 0.0)))


def _spline_autoregressive(size: int, hidden: int) -> TransformModule:
    net = FromStart(_autoregressive(size, hidden, SPLINE), STARTS)
    return SplineAutoregressive(size, net, count_bins=BINS, bound=BOUND)


def _affine_coupling(size: int, hidden: int) -> TransformModule:
    kept = size // 2
    net = DenseNN(kept, [hidden], [size - kept] * 2, nonlinearity=nn.Tanh())
    return AffineCoupling(kept, FromStart(net, (0.0, 0.0)))


def _spline_coupling(size: int, hidden: int) -> TransformModule:
    kept = size // 2
    outputs = [(size - kept) * count for count in SPLINE]
    net = DenseNN(kept, [hidden], outputs, nonlinearity=nn.Tanh())
    layer = SplineCoupling(size, kept, FromStart(net, STARTS), count_bins=BINS, bound=BOUND)
    with torch.no_grad():
        for parameter in layer.lower_spline.parameters():
            parameter.zero_()
        layer.lower_spline.unnormalized_derivatives.fill_(SLOPE)
    return cast(TransformModule, layer)


def _planar(size: int, hidden: int) -> TransformModule:  # noqa: ARG001
    layer = Planar(size)
    with torch.no_grad():  # Pyro's correction of u, that keeps the map invertible, makes 0 of it
        layer.u.copy_(layer.w * (math.log(math.expm1(1)) / layer.w.square().sum()))
    return cast(TransformModule, layer)


def _by_pyro(layer: Any, y: Tensor) -> Tensor:
    return cast(Tensor, layer._inverse(y))


def _one_entry_after_another(layer: AffineAutoregressive, y: Tensor) -> Tensor:
    """The inverse of an affine autoregressive flow; Pyro's starts at zeros of the default dtype."""
    x, position = torch.zeros_like(y), torch.arange(y.shape[-1], device=y.device)
    for i in range(y.shape[-1]):  # entries up to i are right
        mean, log_scale = layer.arn(x)
        log_scale = clamp_preserve_gradients(
            log_scale, layer.log_scale_min_clip, layer.log_scale_max_clip
        )
        x = torch.where(position <= i, (y - mean) * (-log_scale).exp(), 0.0)
    return x


def _across_the_plane(layer: Planar, y: Tensor) -> Tensor:
    r"""The inverse of a planar flow, which Pyro has not: a root in one dimension.

    With :math:`a = w^\top x` and :math:`c = w^\top u > -1`, y has :math:`w^\top y = a + c
    \tanh(a + b)`, which rises in a. A Newton step from the root has the root's gradient.
    """
    (bias,), u, w = layer._params()
    u = layer.u_hat(u, w)
    target: Tensor = y @ w
    c: Tensor = (w * u).sum()

    def misses(a: Tensor) -> Tensor:
        return a + c * torch.tanh(a + bias) - target

    with torch.no_grad():
        a = root(misses, target - c.abs(), target + c.abs())
        slope = 1 + c * (1 - torch.tanh(a + bias).square())
    a = a - misses(a) / slope
    x: Tensor = y - u * torch.tanh(a + bias).unsqueeze(-1)
    return x


def _rows(outputs: int) -> Callable[[int, int], int]:
    """Numbers of an autoregressive network with skip connections."""
    return lambda n, units: (n + 1) * units + (units + 1 + n) * outputs * n


def _dense(outputs: int, own: int) -> Callable[[int, int], int]:
    """Numbers of a coupling: its network, and those of the entries that condition it."""

    def count(n: int, units: int) -> int:
        kept = n // 2
        return (kept + 1) * units + (units + 1) * outputs * (n - kept) + own * kept

    return count


KINDS: Mapping[str, Kind] = {
    "affine_autoregressive": Kind(
        _affine_autoregressive, _one_entry_after_another, _rows(2), is_autoregressive=True
    ),
    "affine_coupling": Kind(_affine_coupling, _by_pyro, _dense(2, 0), num_layers=4),
    "planar": Kind(_planar, _across_the_plane, lambda n, _: 2 * n + 1, num_layers=8, min_size=1),
    "spline_autoregressive": Kind(
        _spline_autoregressive, _by_pyro, _rows(sum(SPLINE)), is_autoregressive=True
    ),
    "spline_coupling": Kind(_spline_coupling, _by_pyro, _dense(sum(SPLINE), sum(SPLINE))),
}
# flows without an inverse: in Pyro, in closed form or as a root
NOT_INVERTED = (
    "block_autoregressive",
    "neural_autoregressive",
    "polynomial",
    "radial",
    "sylvester",
)
