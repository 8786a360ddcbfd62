r"""Weights that are given to a model as distributions: its products with them are handed over.

A model is run with the mean of a factorised Gaussian :math:`w = m + d` as the value of a site.
Where a layer multiplies its input by that very tensor, the product is computed by a rule of the
estimator's, which knows the deviation d too; weights scaled, shifted or transposed by the model
stay what they are,

.. math:: t \circ w + c = (t \circ m + c) + t \circ d

Any other operation on a weight is told to the estimator, or refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812  # as all of torch calls it
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves


class Weight(NamedTuple):
    """A weight of one site, given in two parts.

    Attributes:
        site: Name of the site.
        loc: Its mean, in the weight's shape: the tensor that the model sees.
        deviation: In the same shape what the rule makes of it: a standard deviation, or a draw.
        is_turned: Whether it is the transpose of the site.
    """

    site: str
    loc: Tensor
    deviation: Tensor
    is_turned: bool = False


class Product(NamedTuple):
    """One product of an input and weights, as a layer computes it.

    Attributes:
        apply: The operation, of an input, a weight and a bias or None.
        x: The input, rows first.
        weight: The weight ``[O, I]``, of a convolution ``[O, I, *kernel]``; a tensor where it is
            not random.
        bias: The bias ``[O]``, or None.
        channel_dim: Dimension of the inputs in x, and of the outputs in the result.
    """

    apply: Callable[[Tensor, Tensor, Tensor | None], Tensor]
    x: Tensor
    weight: Weight | Tensor
    bias: Weight | Tensor | None
    channel_dim: int

    @property
    def is_convolution(self) -> bool:
        """Whether an output uses the weight at several positions of one row."""
        return self.channel_dim == 1

    @property
    def weights(self) -> list[Weight]:
        """Weight and bias, those of them that are random."""
        return [part for part in (self.weight, self.bias) if isinstance(part, Weight)]

    @property
    def named(self) -> str:
        """Their sites, for messages."""
        return ", ".join(repr(weight.site) for weight in self.weights)

    @property
    def num_outputs(self) -> int:
        """Outputs O, or channels of them."""
        return self.mean().shape[self.channel_dim]

    def mean(self) -> Tensor:
        """The product with the weights at their means."""
        bias = None if self.bias is None else loc_of(self.bias)
        return self.apply(self.x, loc_of(self.weight), bias)

    def per_channel(self, value: Tensor) -> Tensor:
        """Values ``[..., C]`` of channels in a shape that broadcasts over all positions."""
        middle = (1,) * (self.x.ndim - 2)
        if self.is_convolution:
            return value.reshape((*value.shape, *middle))
        return value.reshape((*value.shape[:-1], *middle, value.shape[-1]))


ProductRule: TypeAlias = Callable[[Product], Tensor]


class GaussianWeights(TorchFunctionMode):
    """Within it, products with given weights are computed by a rule.

    Args:
        weights: The weights; their ``loc`` are recognised by identity.
        rule: Computes a product, one of whose weights is given.
        other: Told the site and the name of every other operation on a weight.
    """

    def __init__(
        self, weights: Iterable[Weight], rule: ProductRule, other: Callable[[str, str], None]
    ) -> None:
        super().__init__()
        self._given = {id(w.loc): w for w in weights}
        self._rule, self._other = rule, other

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        named = [self._given[id(a)] for a in tree_leaves((args, kwargs)) if id(a) in self._given]
        if not named or func in _PROPERTIES:
            return func(*args, **kwargs)
        if func in _PRODUCTS:
            product = _PRODUCTS[func](func, self._part, *args, **kwargs)
            if product is not None and not isinstance(product.x, Weight):
                return self._rule(product)
        value = func(*args, **kwargs)
        if len(named) == 1 and (mapped := self._mapped(func, named[0], args, kwargs, value)):
            self._given[id(value)] = mapped
            return value
        for site in {weight.site for weight in named}:
            self._other(site, getattr(func, "__name__", str(func)))
        return value

    def _part(self, value: Any) -> Any:
        return self._given.get(id(value), value)

    def _mapped(
        self, func: Any, weight: Weight, args: tuple[Any, ...], kwargs: Any, value: Any
    ) -> Weight | None:
        """The weight after an operation that it stays a Gaussian under, entry by entry."""
        swapped = tuple(weight.deviation if a is weight.loc else a for a in args)
        if func in _TRANSPOSITIONS:
            return Weight(weight.site, value, func(*swapped, **kwargs), not weight.is_turned)
        if value.shape != weight.loc.shape or kwargs:  # an entry would stand in several places
            return None
        if func in _SCALINGS and (args[0] is weight.loc or func not in _QUOTIENTS):
            return weight._replace(loc=value, deviation=func(*swapped))
        return weight._replace(loc=value) if func in _SHIFTS else None


def loc_of(weight: Weight | Tensor) -> Tensor:
    """The mean of a weight, or a weight that is not random itself."""
    return weight.loc if isinstance(weight, Weight) else weight


def _linear(_: Any, part: Any, input: Tensor, weight: Tensor, bias: Any = None) -> Product:  # noqa: A002
    return Product(F.linear, part(input), part(weight), part(bias), -1)


def _matmul(_: Any, part: Any, input: Tensor, other: Tensor) -> Product | None:  # noqa: A002
    weight = part(other)
    if not isinstance(weight, Weight) or weight.loc.ndim != 2:
        return None
    turned = Weight(weight.site, weight.loc.mT, weight.deviation.mT, not weight.is_turned)
    return Product(F.linear, part(input), turned, None, -1)


def _convolution(
    func: Any,
    part: Any,
    input: Tensor,  # noqa: A002
    weight: Tensor,
    bias: Any = None,
    *args: Any,
    **kwargs: Any,
) -> Product:
    def apply(x: Tensor, w: Tensor, b: Tensor | None) -> Tensor:
        value: Tensor = func(x, w, b, *args, **kwargs)
        return value

    return Product(apply, part(input), part(weight), part(bias), 1)


_PROPERTIES = {
    *(getattr(torch.Tensor, name).__get__ for name in ("shape", "dtype", "device", "ndim")),
    *(getattr(torch.Tensor, name).__get__ for name in ("requires_grad", "is_cuda", "layout")),
    *(torch.Tensor.size, torch.Tensor.dim, torch.Tensor.numel, torch.numel),
    *(torch.Tensor.is_floating_point, torch.is_floating_point),
}
_PRODUCTS: dict[Any, Callable[..., Product | None]] = {
    F.linear: _linear,
    **dict.fromkeys((torch.matmul, torch.mm, torch.Tensor.matmul, torch.Tensor.mm), _matmul),
    **dict.fromkeys((F.conv1d, F.conv2d, F.conv3d), _convolution),
}
_TRANSPOSITIONS = {
    *(getattr(torch.Tensor, name).__get__ for name in ("T", "mT")),
    *(torch.t, torch.Tensor.t, torch.transpose, torch.Tensor.transpose),
}
_QUOTIENTS = {torch.div, torch.Tensor.div}
_SCALINGS = {torch.mul, torch.Tensor.mul, *_QUOTIENTS}
_SHIFTS = {torch.add, torch.Tensor.add}
