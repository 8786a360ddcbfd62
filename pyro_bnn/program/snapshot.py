"""A module's buffers, priors and modes of one moment, to evaluate it by whatever becomes of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from pyro.distributions.torch_distribution import TorchDistributionMixin as Distribution
from torch import Tensor, nn

from pyro_bnn.handled import module_of
from pyro_bnn.priors import PriorModule
from pyro_bnn.priors.prior import map_tensors


class Snapshot:
    """What a module is besides its parameters, as copies.

    The module itself is not copied: a prior written as a lambda refers to it.

    Args:
        model: Pyro model; of a plain function there is nothing to keep.

    Attributes:
        buffers: Copies of the module's buffers, by name.
    """

    def __init__(self, model: Callable[..., Any]) -> None:
        self.buffers: dict[str, Tensor] = {}
        self._held: list[tuple[nn.Module, dict[str, Any]]] = []
        inner = module_of(model)
        if inner is None:
            return
        self.buffers = {name: value.detach().clone() for name, value in inner.named_buffers()}
        for module in inner.modules():
            held: dict[str, Any] = {"training": module.training}
            if isinstance(module, PriorModule):
                held["distribution"] = _copied(module.distribution)
            if samples := module.__dict__.get("_pyro_samples"):  # priors given by PyroSample
                held["_pyro_samples"] = type(samples)(
                    (name, _copied(prior)) for name, prior in samples.items()
                )
            self._held.append((module, held))

    @contextmanager
    def held(self) -> Iterator[None]:
        """Put the copied priors and modes into the module, and its own back at the end."""
        own = [(module, {key: module.__dict__[key] for key in held}) for module, held in self._held]
        try:
            for module, held in self._held:
                module.__dict__.update(held)
            yield
        finally:
            for module, values in own:
                module.__dict__.update(values)


def _copied(prior: Any) -> Any:
    """A copy of a distribution; a callable prior as it is."""
    if not isinstance(prior, Distribution):
        return prior
    return map_tensors(prior, lambda t: t if t.requires_grad else t.clone(), {})
