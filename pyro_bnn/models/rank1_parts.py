"""What the rank-1 networks share: priors of the factors, and priors of W that are weight decay."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import pyro
from pyro.poutine.runtime import am_i_wrapped
from torch import Tensor, nn

from pyro_bnn.errors import OptionError, SiteError, UnknownNameError
from pyro_bnn.layers import Rank1Layer
from pyro_bnn.models.from_network import suited_to_norms
from pyro_bnn.models.network import Network, module_list
from pyro_bnn.priors import (
    HierarchicalPrior,
    PriorLike,
    PriorModule,
    Priors,
    as_prior,
    match_priors,
)
from pyro_bnn.priors import Normal as NormalPrior
from pyro_bnn.priors.prior import unvalidated

SIDES: Mapping[str, tuple[str, ...]] = {"both": ("s", "r"), "inputs": ("s",), "outputs": ("r",)}
FACTOR_PRIOR = NormalPrior(scale=0.1, loc=1.0)
WEIGHT_PRIOR = NormalPrior()


class Rank1Network(Network):
    """A network whose factors are sampled and whose weights are point estimates with a prior.

    A subclass makes ``layers``, and then calls ``set_factor_priors`` and ``set_weight_prior``.
    """

    layers: nn.Module
    weight_priors: nn.ModuleList

    def set_factor_priors(self, prior: Priors | None, on: str) -> None:
        """Make the factors of all rank-1 layers sample sites.

        Args:
            prior: One for all, or a mapping from patterns that covers all; None for N(1, 0.1).
            on: Side of the factors, a key of ``SIDES``.

        Raises:
            SiteError: If the patterns leave a factor without a prior, or one matches nothing.
            UnknownNameError: If the side is not known.
        """
        if on not in SIDES:
            raise UnknownNameError("side of the factors", str(on), SIDES)
        modules = self.layers.named_modules(prefix="layers")
        layers = {name: module for name, module in modules if isinstance(module, Rank1Layer)}
        names = [f"{layer}.{factor}" for layer in layers for factor in SIDES[on]]
        priors = match_priors(FACTOR_PRIOR if prior is None else prior, names)
        if missing := [name for name in names if name not in priors]:
            raise SiteError(
                f"no prior pattern matches {', '.join(missing)}; every factor has a prior: add "
                '{"*": pyro_bnn.priors.Normal(loc=1.0, scale=0.1)} as the last pattern, or choose '
                "a side by on='inputs' or on='outputs'"
            )
        for name, layer in layers.items():
            layer.set_priors(priors.get(f"{name}.s"), priors.get(f"{name}.r"))

    def set_weight_prior(self, prior: PriorLike | None) -> None:
        """Take a prior of all point estimates, around 1 for gains of normalisations.

        Raises:
            OptionError: If it is a hierarchy, or has no density at the initial weights.
        """
        self._weight_names = tuple(name for name, _ in self.layers.named_parameters())
        modules: list[PriorModule] = []
        if prior is not None:
            one = as_prior(prior)
            if isinstance(one, HierarchicalPrior):
                raise OptionError(
                    "weight_prior is one distribution, as weights and biases are no sites, not the "
                    f"hierarchy {prior!r}: put the hierarchy on the factors by prior=..., and take "
                    "priors.Normal() here"
                )
            priors: Any = suited_to_norms(self.layers, dict.fromkeys(self._weight_names, one))
            pairs = zip(priors.values(), self._weights(), strict=True)
            modules = [PriorModule(unvalidated(own.distribution(w.shape))) for own, w in pairs]
        self.weight_priors = module_list(modules)
        if not self.weight_log_prior().isfinite():
            raise OptionError(
                f"weight_prior {prior!r} has no density at the initial weights, which have "
                "both signs: take one over all real numbers, for example priors.Normal()"
            )

    def weight_log_prior(self) -> Tensor:
        """Log density ``[]`` of all point estimates under ``weight_prior``; 0 without one."""
        weights = self._weights()
        total = weights[0].new_zeros(())
        for prior, weight in zip(self.weight_priors, weights, strict=False):  # no priors, or all
            total = total + prior().log_prob(weight)
        return total

    def forward(self, x: Tensor, y: Tensor | None = None) -> Tensor:
        """Record the weights' prior; then as :meth:`Network.forward`."""
        if len(self.weight_priors) and am_i_wrapped():  # Pyro warns of factors outside inference
            pyro.factor("weight_prior", self.weight_log_prior())
        return super().forward(x, y)

    def _weights(self) -> list[Tensor]:
        """All point estimates, in the order of their names."""
        found = []
        for name in self._weight_names:
            layer, _, own = name.rpartition(".")
            found.append(cast(Tensor, getattr(self.layers.get_submodule(layer), own)))
        return found
