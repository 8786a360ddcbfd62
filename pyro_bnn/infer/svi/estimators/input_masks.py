r"""Masks of the inputs of layers in each row, in place of draws of the weights in each row.

.. math:: W_n x_n = \Theta\, \mathrm{diag}(m_n)\, x_n = \Theta\,(m_n \circ x_n)

The same numbers, in one product for all rows.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from pyro_bnn.errors import ModelError, SiteError
from pyro_bnn.guides import AutoDropout, Guide
from pyro_bnn.infer.svi.estimators.gaussian_weights import Product, Rule, Weight
from pyro_bnn.infer.svi.estimators.product_estimators import ProductEstimator
from pyro_bnn.layers.dropout import keeps
from pyro_bnn.program.program import Program
from pyro_bnn.program.terms import Batch, EntryNoise, GuideTerms


class InputMasks(ProductEstimator):
    """``SVI(AutoDropout, per_example_draws=True)`` where all dropped weights enter products.

    Args:
        program: The model as tensor functions.
        rates: Probability of dropping an input, by name of the weight, in the order of the noise.

    Raises:
        SiteError: If a matrix enters another operation.

    References:
        Gal & Ghahramani, "Dropout as a Bayesian Approximation", ICML 2016, arXiv:1506.02142.
    """

    name = "input_masks"

    def __init__(self, program: Program, rates: Mapping[str, float]) -> None:
        super().__init__(program)
        self._rates, self._places = rates, dict[str, slice]()
        widths = {site.name: site.shape[1] for site in program.sites if site.name in rates}
        for site in rates:
            self._places[site] = slice(self.row_numbers, self.row_numbers + widths[site])
            self.row_numbers += widths[site]
        self.sites = tuple(name for name in self.sites if name in rates)

    @classmethod
    def serves(cls, guide: object) -> bool:
        """Whether the masks of a guide have fixed rates."""
        return isinstance(guide, AutoDropout) and guide.kind == "bernoulli" and bool(guide.rates())

    @classmethod
    def where_right(cls, program: Program, guide: Guide) -> InputMasks | None:
        """The estimator, if on three rows it gives what the weights of each row give; else None.

        It does not where a weight is no plain factor of its layer's inputs (turned, shifted, shared
        by groups of channels), where a layer has no row a row of x, and where a guide has masks of
        another kind. Parameters are moved off their start, as a shift may begin at 0, and every
        third input is dropped, another one in each row: a mask that keeps all tells nothing.
        """
        assert isinstance(guide, AutoDropout)
        generator = torch.Generator().manual_seed(0)

        def moved(value: Tensor) -> Tensor:
            noise = torch.randn(value.shape, generator=generator).to(value)
            return (value + 0.3 * noise).detach() if value.is_floating_point() else value

        x, y = (torch.cat([part, part[:1]]) for part in program.batch(*program.example))
        batch, rows = Batch(moved(x), y), len(x)
        params = {f"guide.{name}": moved(value) for name, value in guide.named_parameters()}
        params |= {f"model.{name}": moved(value) for name, value in program.params.items()}
        place = torch.arange(rows)[:, None] + torch.arange(guide.noise_dim)
        noise = torch.where(place % 3 == 0, -9.0, 9.0).to(program.initial).unsqueeze(0)
        try:
            estimator = cls(program, guide.rates())
            with torch.no_grad():
                expected = program.elbo(guide, params, noise, batch)
                found = program.elbo(guide, params, noise[:, 0], batch, estimator, [noise])
        except (SiteError, ModelError, RuntimeError):  # the general way says what is wrong
            return None
        masked, drawn = found.expected_log_likelihood, expected.expected_log_likelihood
        return estimator if torch.allclose(masked, drawn, rtol=1e-3, atol=1e-3) else None

    def _check(self, product: Product) -> None:
        self._require_rows(product)

    def _own_noise(self, terms: GuideTerms, noise: Tensor) -> EntryNoise:
        """The masks' own: the rule takes the means alone."""
        assert terms.marginals is not None
        return EntryNoise(terms.marginals.loc.unsqueeze(0), terms.marginals.scale, noise)

    def _deviation(self, scale: Tensor, noise: Tensor) -> Tensor:  # noqa: ARG002
        return scale

    def _rule(self, noise: Tensor) -> Rule:
        def mask(product: Product) -> Tensor:
            weight = product.weight
            if not isinstance(weight, Weight) or weight.site not in self._places:
                return product.mean()
            rate, drawn = self._rates[weight.site], noise[:, self._places[weight.site]]
            masks = keeps(drawn, rate).to(drawn.dtype) / (1 - rate)
            return product._replace(x=product.x * product.per_channel(masks)).mean()

        return mask
