r"""Masks of the inputs of layers in each row, in place of draws of the weights in each row.

.. math:: W_n x_n = \Theta\, \mathrm{diag}(m_n)\, x_n = \Theta\,(m_n \circ x_n)

The same numbers, in one product for all rows.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from pyro_bnn.errors import SiteError
from pyro_bnn.guides import AutoDropout, Guide
from pyro_bnn.infer.svi.estimators.gaussian_weights import Product, Rule, Weight
from pyro_bnn.infer.svi.estimators.product_estimators import ProductEstimator
from pyro_bnn.layers.dropout import keeps
from pyro_bnn.program.program import Program


class InputMasks(ProductEstimator):
    """``SVI(AutoDropout, per_example_draws=True)`` where all dropped weights enter products.

    Args:
        program: The model as tensor functions.
        rates: Probability of dropping an input, by name of the weight.

    Raises:
        SiteError: If a weight is no plain factor of its layer's inputs: turned, shifted, shared by
            groups of channels, or in another operation.

    References:
        Gal & Ghahramani, "Dropout as a Bayesian Approximation", ICML 2016, arXiv:1506.02142.
    """

    name = "input_masks"

    def __init__(self, program: Program, rates: Mapping[str, float]) -> None:
        self._rates = rates
        self._places: dict[str, slice] = {}
        super().__init__(program)
        if missing := rates.keys() - self._places.keys():
            raise SiteError(f"{', '.join(sorted(missing))} enters no product of its own")
        self.sites = tuple(name for name in self.sites if name in rates)

    @classmethod
    def serves(cls, guide: object) -> bool:
        """Whether the masks of a guide have fixed rates."""
        return isinstance(guide, AutoDropout) and guide.kind == "bernoulli" and bool(guide.rates())

    @classmethod
    def of(cls, program: Program, guide: Guide) -> InputMasks:
        """The estimator for one model and guide."""
        assert isinstance(guide, AutoDropout)
        return cls(program, guide.rates())

    def _check(self, product: Product) -> None:
        weight = product.weight
        if not isinstance(weight, Weight) or weight.site not in self._rates:
            return
        self._require_rows(product)
        num_inputs = product.x.shape[product.channel_dim]
        is_plain = not weight.is_turned and torch.equal(weight.loc, weight.deviation)
        if not is_plain or num_inputs != weight.loc.shape[1]:
            raise SiteError(f"{weight.site} is no plain factor of the inputs of its layer")
        if weight.site not in self._places:
            start = self.row_numbers
            self.row_numbers += num_inputs
            self._places[weight.site] = slice(start, self.row_numbers)

    def _deviation(self, scale: Tensor, noise: Tensor) -> Tensor:  # noqa: ARG002
        return scale  # the rule takes the means alone

    def _rule(self, noise: Tensor) -> Rule:
        def mask(product: Product) -> Tensor:
            weight = product.weight
            if not isinstance(weight, Weight) or weight.site not in self._places:
                return product.mean()
            rate, drawn = self._rates[weight.site], noise[:, self._places[weight.site]]
            masks = keeps(drawn, rate).to(drawn.dtype) / (1 - rate)
            return product._replace(x=product.x * product.per_channel(masks)).mean()

        return mask
