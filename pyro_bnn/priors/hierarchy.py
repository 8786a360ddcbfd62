r"""Weights made of several sample sites, :math:`w = m + s \cdot \epsilon`, where s is random too.

.. math:: \epsilon_{ij} \sim \mathcal N(0, 1), \qquad w = m + s \epsilon
          \quad\Longleftrightarrow\quad w \mid s \sim \mathcal N(m, s^2)

Non-centred, the sites are s and :math:`\epsilon`, independent a priori: no funnel for a sampler
to get stuck in where data say little of the weights. Centred, they are s and w (Betancourt &
Girolami, "Hamiltonian Monte Carlo for Hierarchical Models", 2013, arXiv:1312.0906).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import pyro
import pyro.distributions as dist
import torch
from pyro.nn import PyroModule, PyroSample
from torch import Tensor

from pyro_bnn.errors import ShapeError
from pyro_bnn.handled import module_of
from pyro_bnn.priors.normal import Normal
from pyro_bnn.priors.prior import HierarchicalPrior, ModulePrior, PriorLike, PriorModule, as_prior


class Hierarchy(PyroModule):
    """A weight tensor that is Gaussian given its scale, and the scale has a prior of its own.

    As the attribute ``weight`` of the module ``layers.0`` its sites are ``layers.0.weight.raw``
    and those of the scale (``layers.0.weight.scale``, ...). Centred, ``layers.0.weight.value``, the
    weight itself, is a site in place of ``.raw``. Both record ``layers.0.weight`` with
    ``pyro.deterministic``: as a site it could not stand beside ``layers.0.weight.scale`` in guides
    of stock Pyro, which keep each site's parameters in an attribute of that name.

    A subclass keeps the distributions of its scale in :class:`PriorModule` attributes, so that
    they follow ``.to(...)``, and has ``sample_scale`` and ``scale_values``.

    Args:
        shape: Shape of the weight.
        loc: Mean of every entry.
        centred: Whether the weight itself is a sample site.

    Attributes:
        own_name: Name of the weight where it is not that of the attribute, else None.
    """

    def __init__(self, shape: torch.Size, *, loc: float = 0.0, centred: bool = False) -> None:
        super().__init__()
        self.shape, self.loc, self.centred = shape, float(loc), centred
        self.raw_prior = PriorModule(Normal(1.0).distribution(shape))
        self.own_name: str | None = None

    @property
    def weight_name(self) -> str:
        """Name of the weight: the module's full Pyro name, ``"weight"`` where it stands alone."""
        return self.own_name or self._pyro_name or "weight"

    @property
    def weight_site(self) -> str:
        """Name of the site of the weight's shape: raw, or centred the value."""
        return f"{self.weight_name}.{'value' if self.centred else 'raw'}"

    def sample_scale(self, name: str) -> Tensor:
        """Sample the sites of the scale, named ``{name}.<site>``.

        Returns:
            The scale, > 0, in a shape that broadcasts to the weight's.
        """
        raise NotImplementedError(f"{type(self).__name__} has no sample_scale(name)")

    def scale_values(self, deviation: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        """Values of the scale's sites that suit a given weight, to start at a trained network.

        Args:
            deviation: The weight less ``loc``, in the weight's shape.

        Returns:
            The values by the site's last name, and the scale that they make.
        """
        raise NotImplementedError(f"{type(self).__name__} has no scale_values(deviation)")

    def forward(self) -> Tensor:
        """The weight; sampled once in a call of the model, however often it is read."""
        name = self.weight_name
        value = self._pyro_context.get(name)
        if value is None:
            value = self.sample(name)
            self._pyro_context.set(name, value)
        return value

    def sample(self, name: str) -> Tensor:
        """Sample the sites of a weight of this name, and return the weight."""
        scale = self.sample_scale(name)
        if self.centred:
            normal = dist.Normal(self.loc, scale.expand(self.shape)).to_event(len(self.shape))
            value = pyro.sample(f"{name}.value", normal)
        else:
            value = self.loc + scale * pyro.sample(f"{name}.raw", self.raw_prior())
        return pyro.deterministic(name, value)

    def values_at(self, weight: Tensor) -> dict[str, Tensor]:
        """Values of all sites, by full name, at which the weight has a given value.

        Args:
            weight: The value, in the weight's shape.

        Raises:
            ShapeError: If it has another shape.
        """
        name = self.weight_name
        if weight.shape != self.shape:
            raise ShapeError(
                f"the weight {name!r} has shape {tuple(self.shape)}, the value has "
                f"{tuple(weight.shape)}"
            )
        deviation = weight - self.loc
        values, scale = self.scale_values(deviation)
        named = {f"{name}.{key}": value for key, value in values.items()}
        return {**named, self.weight_site: weight if self.centred else deviation / scale}


def assign_prior(
    module: PyroModule, name: str, prior: PriorLike | None, shape: Sequence[int]
) -> None:
    """Make an attribute of a module a sampled weight; read it with :func:`value_of`.

    Args:
        module: The module.
        name: Name of the attribute.
        prior: Its prior: with ``distribution`` the attribute becomes a ``PyroSample``, its
            distribution the attribute ``<name>_prior``; with ``hierarchy`` it becomes a
            :class:`Hierarchy`. None for no weight: the attribute is None.
        shape: Shape of the weight.

    Raises:
        OptionError: If ``prior`` is no prior.
    """
    own, size = None if prior is None else as_prior(prior), torch.Size(shape)
    if own is None or isinstance(own, HierarchicalPrior):
        setattr(module, name, None if own is None else own.hierarchy(size))
    else:
        setattr(module, f"{name}_prior", PriorModule(own.distribution(size)))
        setattr(module, name, PyroSample(ModulePrior(f"{name}_prior")))


def value_of(attribute: Tensor | Hierarchy) -> Tensor:
    """The value of an attribute that :func:`assign_prior` made: a tensor, or a hierarchy's."""
    return cast(Tensor, attribute()) if isinstance(attribute, Hierarchy) else attribute


def hierarchies(model: object) -> dict[str, Hierarchy]:
    """The hierarchies in a model, by the name of the weight."""
    module = module_of(model)
    modules = () if module is None else module.modules()
    return {m.weight_name: m for m in modules if isinstance(m, Hierarchy)}
