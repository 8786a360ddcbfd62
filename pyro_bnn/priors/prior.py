"""What a prior over one weight tensor is, and which prior belongs to which name.

A prior is anything with ``distribution(shape)`` (a weight is one sample site) or with
``hierarchy(shape)`` (it is made of several), or any univariate ``pyro.distributions.Distribution``,
which then holds independently for every entry. One with ``by_name(names)`` has a prior of its own
for each weight of a network.
"""

from __future__ import annotations

import copy
import fnmatch
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol, TypeAlias, cast, runtime_checkable

import torch
from pyro.distributions.torch_distribution import TorchDistributionMixin as Distribution
from pyro.nn import PyroModule
from torch import Tensor

from pyro_bnn.errors import OptionError, ShapeError, SiteError

COMPOSITE = (torch.distributions.Distribution, torch.distributions.Transform)


@runtime_checkable
class Prior(Protocol):
    """A prior over a weight tensor of any shape."""

    def distribution(self, shape: torch.Size) -> Distribution:
        """The prior over one tensor: batch shape ``()``, event shape ``shape``."""


@runtime_checkable
class HierarchicalPrior(Protocol):
    """A prior over a weight tensor of any shape that is made of several sample sites."""

    def hierarchy(self, shape: torch.Size) -> PyroModule:
        """A module, a ``Hierarchy``, that samples one tensor of ``shape``."""


AnyPrior: TypeAlias = Prior | HierarchicalPrior
PriorLike: TypeAlias = AnyPrior | Distribution


@runtime_checkable
class NamedPrior(Protocol):
    """Priors of the weights of a network, each its own, such as those of an earlier fit."""

    def by_name(self, names: Sequence[str]) -> Mapping[str, PriorLike]:
        """The prior of each weight.

        Args:
            names: Names of the weights that it is for, in the network's order.
        """


Priors: TypeAlias = PriorLike | NamedPrior | Mapping[str, PriorLike | NamedPrior]


class Independent:
    """The same univariate distribution for every entry of a tensor.

    Args:
        base: A univariate Pyro distribution whose batch shape broadcasts to the tensor's shape,
            or one whose event shape is the tensor's shape.
    """

    def __init__(self, base: Distribution) -> None:
        if not isinstance(base, Distribution):
            raise OptionError(
                "a prior is a pyro_bnn.priors object, with distribution(shape) or "
                "hierarchy(shape), or a pyro.distributions distribution, but "
                f"{base!r} is a {type(base).__module__}.{type(base).__name__}; "
                "write for example pyro.distributions.Laplace(0.0, 1.0)"
            )
        self.base = base

    def distribution(self, shape: torch.Size) -> Distribution:
        """The prior over a tensor of ``shape``, all entries as one event."""
        base = copy.deepcopy(self.base)
        if base.event_shape == shape and not base.batch_shape:
            return base
        if base.event_shape:
            raise ShapeError(
                f"a prior of event shape {tuple(base.event_shape)} does not fit a weight of shape "
                f"{tuple(shape)}; use a univariate distribution, which holds for every entry"
            )
        try:
            return cast(Distribution, base.expand(shape).to_event(len(shape)))
        except RuntimeError as error:
            raise ShapeError(
                f"a prior of batch shape {tuple(base.batch_shape)} does not broadcast to a weight "
                f"of shape {tuple(shape)}"
            ) from error


def as_prior(prior: PriorLike) -> AnyPrior:
    """The prior itself, or a Pyro distribution as a prior that is iid over the entries.

    Raises:
        OptionError: If it is neither, a class instead of an instance, or a :class:`NamedPrior`.
    """
    if isinstance(prior, type):
        raise OptionError(
            f"a prior is an object, not the class {prior.__name__}: write {prior.__name__}(...)"
        )
    if isinstance(prior, Prior | HierarchicalPrior):
        return prior
    if isinstance(prior, NamedPrior):
        raise OptionError(
            f"{type(prior).__name__} holds priors of several weights by name: pass it to a model, "
            "as prior=... or under a pattern"
        )
    return Independent(prior)


def match_priors(
    prior: Priors, names: Iterable[str], tied: Mapping[str, str] | None = None
) -> dict[str, AnyPrior]:
    """Assign a prior to every name that a pattern matches.

    Args:
        prior: One prior for all names, or a mapping from shell patterns (``"*.weight"``,
            ``"layers.0.*"``) to priors; the first pattern that matches a name wins.
        names: Names of the weight tensors.
        tied: Other names of the same tensors, each with the one that stands in ``names``.

    Returns:
        The prior of each matched name; names that no pattern matches are absent.

    Raises:
        SiteError: If a pattern matches no name, or only names of earlier patterns.
    """
    names = list(names)
    if not isinstance(prior, Mapping):
        return _of_names(prior, names)
    winners: dict[str, str] = {}  # pattern of each name
    for pattern in prior:
        fitting = [name for name in names if fnmatch.fnmatchcase(name, pattern)]
        if not fitting:
            for other, first in (tied or {}).items():
                if fnmatch.fnmatchcase(other, pattern):
                    raise SiteError(
                        f"the prior pattern {pattern!r} matches no parameter of its own: {other} "
                        f"is the same tensor as {first}; name that one"
                    )
            raise SiteError(
                f"the prior pattern {pattern!r} matches no parameter; there are {', '.join(names)}"
            )
        new = [name for name in fitting if name not in winners]
        if not new:
            earlier = dict.fromkeys(winners[name] for name in fitting)
            raise SiteError(
                f"the prior pattern {pattern!r} has no effect: {', '.join(fitting)} match the "
                f"earlier {', '.join(map(repr, earlier))}; put the narrower pattern first"
            )
        winners |= dict.fromkeys(new, pattern)
    matched: dict[str, AnyPrior] = {}
    for pattern, own in prior.items():
        matched |= _of_names(own, [name for name in names if winners.get(name) == pattern])
    return {name: matched[name] for name in names if name in matched}


def _of_names(prior: PriorLike | NamedPrior, names: Sequence[str]) -> dict[str, AnyPrior]:
    """One prior for all these names, or that of each."""
    if isinstance(prior, NamedPrior) and not isinstance(prior, type):
        return {name: as_prior(own) for name, own in prior.by_name(names).items()}
    return dict.fromkeys(names, as_prior(prior))


class PriorModule(PyroModule):
    """A distribution that moves with its module: ``.to(...)`` and ``.double()`` reach its tensors.

    Plain ``PyroSample`` priors keep their tensors on the device and in the dtype they were made
    in; this one does not.
    """

    def __init__(self, distribution: Distribution) -> None:
        super().__init__()
        self.distribution = distribution

    def forward(self) -> Distribution:
        """The distribution, on the module's device and in its dtype."""
        return self.distribution

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> PriorModule:
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]  # torch leaves it untyped
        self.distribution = map_tensors(self.distribution, fn, {})
        return self


class ModulePrior:
    """The prior of a ``PyroSample`` that stands in a :class:`PriorModule` of the same module.

    Each ``PyroSample`` takes an object of its own: Pyro renames a function it is given, and a
    function of two models would be renamed twice.

    Args:
        name: Attribute of the module that holds the prior.
    """

    def __init__(self, name: str) -> None:
        self.name = name

    def __call__(self, module: PyroModule) -> Distribution:
        """The distribution, given the module that is sampled."""
        return cast(Distribution, getattr(module, self.name)())


def map_tensors(value: Any, fn: Callable[[Tensor], Tensor], done: dict[int, Any]) -> Any:
    """A copy of a distribution, transform or list with ``fn`` applied to its tensors."""
    if id(value) in done:
        return done[id(value)]
    if isinstance(value, Tensor):
        return fn(value)
    if isinstance(value, list | tuple) and not isinstance(value, torch.Size):
        return type(value)(map_tensors(item, fn, done) for item in value)
    if isinstance(value, COMPOSITE):
        moved = done[id(value)] = copy.copy(value)
        for name, item in vars(value).items():
            moved.__dict__[name] = map_tensors(item, fn, done)
        return moved
    return value


def unvalidated(fn: Distribution) -> Distribution:
    """A copy of a distribution that does not check its arguments, nor do those that it is made of.

    ``expand`` freezes the check at construction, where turning validation off no longer reaches
    it, and the check can be neither batched nor captured as a graph.
    """
    copied = object.__new__(type(fn))
    for name, part in vars(fn).items():
        is_own = isinstance(part, torch.distributions.Distribution)
        copied.__dict__[name] = unvalidated(cast(Distribution, part)) if is_own else part
    copied.__dict__["_validate_args"] = False
    return copied


def tensors_of(made: object) -> list[Tensor]:
    """All tensors that a distribution, or a list of some, is made of, in a fixed order."""
    found: list[Tensor] = []

    def take(value: Tensor) -> Tensor:
        found.append(value)
        return value

    map_tensors(made, take, {})
    return found
