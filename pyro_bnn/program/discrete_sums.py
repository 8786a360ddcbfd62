"""Factors that discrete sites tie together, and the sums over these sites, in log space."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import pyro.distributions as dist
import torch
from pyro.ops import packed
from pyro.ops.contract import contract_tensor_tree
from pyro.ops.rings import LogRing
from torch import Tensor

from pyro_bnn.errors import ModelError
from pyro_bnn.program import drawn_einsum, log_einsum


class Factor(NamedTuple):
    """A density that depends on discrete sites.

    Attributes:
        name: Of the site.
        log_prob: Its log, without scale, by Pyro's packed dimensions.
        plates: Symbols of its plates.
        scale: Of ``poutine.scale``.
        kind: ``"discrete"``, ``"mixed"``, ``"data"`` or ``"computed"``.
    """

    name: str
    log_prob: Tensor
    plates: frozenset[str]
    scale: Any
    kind: str

    @property
    def dims(self) -> set[str]:
        """Symbols of its dimensions of discrete values."""
        return {*self.log_prob._pyro_dims} - self.plates  # type: ignore[attr-defined]


class _LogRing(LogRing):
    """Pyro's sums and products in log space, by :mod:`pyro_bnn.program.log_einsum`."""

    _backend = log_einsum.__name__


class _DrawingRing(LogRing):
    """The same by :mod:`pyro_bnn.program.drawn_einsum`, whose derivatives are draws."""

    _backend = drawn_einsum.__name__


class TiedFactors(NamedTuple):
    """Factors that are summed together, as the same discrete sites tie them."""

    factors: tuple[Factor, ...]
    dims: set[str]

    @property
    def has_data(self) -> bool:
        """Whether one of the factors is no prior."""
        return any(factor.kind in ("data", "computed") for factor in self.factors)

    @property
    def is_mixed(self) -> bool:
        """Whether one of the factors is the prior of a continuous site."""
        return any(factor.kind == "mixed" for factor in self.factors)

    def log_sum(self, *, latent: bool = False) -> Tensor:
        """Log of the sum ``[]`` over all discrete values, scaled.

        Args:
            latent: Whether of the priors alone.
        """
        parts = [part.sum() for parts in self._contracted(latent).values() for part in parts]
        total: Tensor = sum(parts[1:], parts[0]) * self.factors[0].scale
        return total

    def draw(self, log_probs: Mapping[str, Tensor]) -> Tensor:
        """A number ``[]`` whose derivative by each log probability is 1 at a draw, else 0.

        Args:
            log_probs: In place of those of the factors, by the names of their sites.
        """
        factors = []
        for factor in self.factors:
            value = log_probs.get(factor.name, factor.log_prob)
            value._pyro_dims = factor.log_prob._pyro_dims  # type: ignore[attr-defined]
            factors.append(factor._replace(log_prob=value))
        left = TiedFactors(tuple(factors), self.dims)._contracted(ring=_DrawingRing).values()
        return torch.stack([part.sum() for parts in left for part in parts]).sum()

    def rows(self) -> Tensor | None:
        """Log densities of the one observed site by its plates; None if entries are not apart."""
        data = [factor for factor in self.factors if factor.kind == "data"]
        if len(data) > 1:
            return None
        signs = {False: 1.0, True: -1.0} if self.is_mixed else {False: 1.0}
        parts = [(p, s) for latent, s in signs.items() for p in self._contracted(latent).items()]
        if any(plates != data[0].plates for (plates, _), _ in parts):
            return None
        terms = [(term, sign) for (_, terms), sign in parts for term in terms]
        # the same plates, maybe in another order
        dims = max((term._pyro_dims for term, _ in terms), key=len)
        aligned = [sign * log_einsum.einsum(f"{t._pyro_dims}->{dims}", t) for t, sign in terms]
        rows: Tensor = sum(aligned[1:], aligned[0])
        rows._pyro_dims = dims  # type: ignore[attr-defined]
        return rows

    def _contracted(
        self, latent: bool = False, ring: type[LogRing] = _LogRing
    ) -> Mapping[frozenset[str], list[Any]]:
        """What is left of the factors, by its plates."""
        chosen = [f for f in self.factors if not latent or f.kind in ("discrete", "mixed")]
        by_plates: OrderedDict[frozenset[str], list[Tensor]] = OrderedDict()
        for factor in chosen:
            by_plates.setdefault(factor.plates, []).append(factor.log_prob)
        try:
            found: Mapping[frozenset[str], list[Any]] = contract_tensor_tree(
                by_plates,
                set(self.dims),
                ring=ring(),
            )
        except NotImplementedError as error:
            raise ModelError(
                f"the discrete sites cannot be summed out of {_listed(chosen)}, which lie in "
                "plates that cross, so that every entry depends on every other: make one of the "
                f"plates a loop, for i in pyro.plate(...) ({str(error).splitlines()[0]})"
            ) from error
        return found

    def require_one_scale(self) -> None:
        """Check that one number scales all factors: a sum over their values has no other scale."""
        scales = [torch.as_tensor(factor.scale) for factor in self.factors]
        if any(scale.ndim or bool(scale != scales[0]) for scale in scales):
            raise ModelError(
                f"the sites {_listed(self.factors)}, tied by discrete sites, have different "
                "scales or a scale for each row, of which a sum over discrete values has none: "
                "give all of them the same poutine.scale, of one number"
            )


class SiteFactors(NamedTuple):
    """The densities of a run, by whether they depend on discrete sites.

    Attributes:
        others: The log ``[]`` of each density that does not, as ``"prior"`` or ``"data"``.
        sums: The others, in parts that are summed apart.
        symbol_to_dim: Where Pyro's packed dimensions stand.
        like: A tensor of the dtype and device of z.
    """

    others: list[tuple[str, Tensor]]
    sums: list[TiedFactors]
    symbol_to_dim: dict[str, int]
    like: Tensor

    def add(self, factor: Factor) -> None:
        """Put a factor into the sum that has one of its dimensions, and make one of several."""
        tied = [part for part in self.sums if part.dims & factor.dims]
        factors = [f for part in tied for f in part.factors]
        apart = [part for part in self.sums if not part.dims & factor.dims]
        dims = factor.dims.union(*(part.dims for part in tied))
        self.sums[:] = [*apart, TiedFactors((*factors, factor), dims)]

    def apart(self, *kinds: str) -> Tensor:
        """Sum ``[]`` of the densities that depend on no discrete site, of these kinds."""
        total = self.like.new_zeros(())
        for kind, value in self.others:
            if kind in kinds:
                total = total + value
        return total


def packed_density(name: str, density: Tensor, symbols: dict[int, str]) -> Tensor:
    """A density without its dimensions of size 1, which knows the symbols of the others."""
    try:
        value: Tensor = packed.pack(density, symbols)
    except ValueError as error:
        raise ModelError(
            f"the density of {name!r} has shape {tuple(density.shape)}, of which a dimension is in "
            "no plate, so that a discrete site cannot be summed out of it: put the site in a "
            "pyro.plate, or give its distribution to_event"
        ) from error
    return value


def uniform_where_masked(density: Tensor, dim: int, msg: Mapping[str, Any]) -> Tensor:
    """Log probabilities of a discrete site's values, the same for all where a mask hides it.

    Args:
        density: Its log probabilities.
        dim: Where its values stand.
        msg: Message of the site.
    """
    uniform = -math.log(density.shape[dim])
    for mask in _masks(msg):
        density = torch.where(torch.as_tensor(mask, device=density.device), density, uniform)
    return density


def _masks(msg: Mapping[str, Any]) -> Iterator[Any]:
    """The masks of a site and of its distribution."""
    if msg["mask"] is not None:
        yield msg["mask"]
    fn = msg["fn"]
    while isinstance(fn, dist.MaskedDistribution):
        yield fn._mask
        fn = fn.base_dist


def _listed(factors: Iterable[Factor]) -> str:
    names = [repr(factor.name) for factor in factors]
    return ", ".join(names[:5]) + (" and others" if len(names) > 5 else "")
