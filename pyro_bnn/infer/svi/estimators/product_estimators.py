r"""Local reparameterisation and Flipout: products of layers computed with noise for each row.

One draw of the weights for all rows of a step makes the gradients of the rows covary, and the
variance of their mean stays above a bound however many rows there are. Both estimators decorrelate
the rows at the cost of two products a layer; expectations are those of draws of the weights.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor

from pyro_bnn.errors import SiteError
from pyro_bnn.infer.svi.estimators.estimator import Estimator, has_own_noise
from pyro_bnn.infer.svi.estimators.gaussian_weights import GaussianWeights, Product, Rule, Weight
from pyro_bnn.program.batched import refused_as
from pyro_bnn.program.program import Program
from pyro_bnn.program.terms import Batch, EntryNoise, GuideTerms, Params


class ProductEstimator(Estimator):
    """Base of the estimators that compute the products of layers by a rule of their own.

    The model is looked at once: sites whose values enter layers as weights and biases are given to
    it as distributions; the others, such as a noise scale or the gain of a normalisation, are drawn
    once for all rows.

    Under correlated weights the noise that they share is drawn once for all rows, and the weights
    are independent given it: :meth:`pyro_bnn.guides.Guide.own_noise`.

    Args:
        program: The model as tensor functions.

    Raises:
        SiteError: If no site enters a layer, or a matrix enters another operation; names it.
    """

    takes: ClassVar[str] = (
        "weights that are independent Gaussians, given some shared noise, as those of "
        "guides.AutoNormal and AutoLowRankMultivariateNormal are"
    )

    def __init__(self, program: Program) -> None:
        super().__init__(program)
        self.products: list[Product] = []
        others: dict[str, str] = {}
        values = program.constrain(program.initial)
        given = [Weight(s.name, values[s.name], values[s.name]) for s in program.sites if s.is_real]

        def look(product: Product) -> Tensor:
            self.products.append(product)
            return product.mean()

        def note(site: str, operation: str) -> None:
            others.setdefault(site, operation)

        with torch.no_grad(), GaussianWeights(given, look, note):
            program.row_log_likelihood(values, program.example, program.params)
        for site in program.sites:
            if site.name in others and len(site.shape) > 1:
                self._refuse_operation(site.name, others[site.name])
        entered = dict.fromkeys(w.site for p in self.products for w in p.weights)
        self.sites = tuple(name for name in entered if name not in others)
        self.products = [p for p in self.products if any(w.site in self.sites for w in p.weights)]
        if not any(isinstance(product.weight, Weight) for product in self.products):
            names = ", ".join(site.name for site in program.sites)
            raise SiteError(
                f'estimator="{self.name}" would have no effect: no site of the model enters a '
                f"linear layer as its weight; there are {names}. Leave it at its default"
            )
        for product in self.products:
            self._check(product)

    @classmethod
    def serves(cls, guide: object) -> bool:
        """Whether it serves a guide, or a class of guides."""
        return has_own_noise(guide)

    @abstractmethod
    def _check(self, product: Product) -> None:
        """Refuse a product that the rule does not serve."""

    def _own_noise(self, terms: GuideTerms, noise: Tensor) -> EntryNoise:  # noqa: ARG002
        """What is left of the noise ``[S, M]`` of draws to each weight alone."""
        assert terms.entry_noise is not None
        return terms.entry_noise

    @abstractmethod
    def _deviation(self, scale: Tensor, noise: Tensor) -> Tensor:
        """The weights' second parts, ``[P]``, of standard deviations and noise of a draw."""

    @abstractmethod
    def _rule(self, noise: Tensor) -> Rule:
        """How products are computed with noise ``[B, R]``."""

    def rows(
        self,
        terms: GuideTerms,
        noise: Sequence[Tensor],
        batch: Batch,
        params: Params,
        own: Params,  # noqa: ARG002
    ) -> tuple[Tensor, float]:
        """Log densities ``[S, B]`` of the rows, and N/B; see the base class."""
        own_noise = self._own_noise(terms, noise[0])
        scale = own_noise.scale
        factor = 1.0

        def one(z: Tensor, loc: Tensor, noise: Tensor, row_noise: Tensor) -> Tensor:
            nonlocal factor
            means = self.program.constrain(loc)
            deviations = self.program.constrain(self._deviation(scale, noise))
            values = {**self.program.constrain(z), **{name: means[name] for name in self.sites}}
            weights = [Weight(name, means[name], deviations[name]) for name in self.sites]
            with GaussianWeights(weights, self._rule(row_noise), self._refuse_operation):
                rows, factor = self.program.row_log_likelihood(values, batch, params)
            return rows

        of_draws = (terms.z, own_noise.loc.expand_as(terms.z), own_noise.noise, noise[1])
        if len(terms.z) == 1:
            return one(*(part[0] for part in of_draws)).unsqueeze(0), factor
        with refused_as(
            "several particles of this estimator need a model that can be batched over draws, and "
            "this one cannot: take num_particles=1"
        ):
            rows = torch.func.vmap(one)(*of_draws)
        return rows, factor

    def _refuse_operation(self, site: str, operation: str) -> None:
        raise SiteError(
            f'estimator="{self.name}" replaces products of inputs and weights, but the site '
            f"{site!r} enters {operation}(): use it as the weight of a linear layer, or leave the "
            "estimator at its default"
        )

    def _uses(self, site: str) -> list[Weight]:
        """A site's weight or bias in each product that it enters."""
        return [w for product in self.products for w in product.weights if w.site == site]

    def _require_rows(self, product: Product) -> None:
        num_rows = len(self.program.example.x)
        if len(product.x) != num_rows:
            raise SiteError(
                f'estimator="{self.name}" has noise of its own for each row, but the input of the '
                f"layer of {product.named} has {len(product.x)} rows where x has {num_rows}: "
                "keep the rows of x as the first dimension, or leave the estimator at its default"
            )


class LocalReparameterization(ProductEstimator):
    r"""Draws of pre-activations in place of weights.

    .. math:: h_n \sim \mathcal N\bigl(M x_n + m_b,\; S^2 x_n^2 + s_b^2\bigr)

    independent over rows and outputs, as they are under a factorised Gaussian given x; squares are
    taken entry by entry. It is exact where every weight enters one product of one input a row: at
    several positions of a row, as in a convolution, or in two layers with tied weights, outputs
    share the weights, and those are refused.

    References:
        Kingma, Salimans & Welling, "Variational Dropout and the Local Reparameterization Trick",
        NeurIPS 2015, arXiv:1506.02557.
    """

    name = "local_reparameterization"

    def __init__(self, program: Program) -> None:
        super().__init__(program)
        self.row_numbers = sum(product.num_outputs for product in self.products)

    def _check(self, product: Product) -> None:
        if product.is_convolution or product.x.ndim != 2:
            raise SiteError(
                f"the weights of {product.named} enter at several positions of each row, whose "
                "outputs share them and cannot be drawn one by one: take "
                'estimator="flipout"'
            )
        self._require_rows(product)
        for weight in product.weights:
            if (number := len(self._uses(weight.site))) > 1:
                raise SiteError(
                    f"the site {weight.site!r} enters {number} products, whose outputs share it "
                    'and cannot be drawn one by one: take estimator="flipout"'
                )

    def _deviation(self, scale: Tensor, noise: Tensor) -> Tensor:  # noqa: ARG002
        return scale

    def _rule(self, noise: Tensor) -> Rule:
        start = 0

        def draw(product: Product) -> Tensor:
            nonlocal start
            mean, x = product.mean(), product.x
            stop = start + mean.shape[-1]
            variance = torch.zeros_like(mean)
            if isinstance(product.weight, Weight):
                variance = product.apply(x.square(), product.weight.deviation.square(), None)
            if isinstance(product.bias, Weight):
                variance = variance + product.bias.deviation.square()
            # of inputs that are all 0 the variance is 0, where a root has no slope
            scale = variance.clamp_min(torch.finfo(variance.dtype).tiny).sqrt()
            value = mean + scale * noise[:, start:stop]
            start = stop
            return value

        return draw


class Flipout(ProductEstimator):
    r"""One draw of the weights' deviations, with signs of its own in each row.

    .. math:: h_n = M x_n + r_n \circ \bigl(D (s_n \circ x_n)\bigr), \qquad
              D = S \circ E, \quad r_n, s_n \in \{-1, 1\}

    Row n meets the weights :math:`M + D \circ r_n s_n^\top`, a draw from q as D is symmetric about
    0; draws of two rows are uncorrelated, though not independent. Biases have signs of their own.
    It serves linear layers and convolutions, at any number of positions, and layers that share a
    weight, as that has one set of signs.

    References:
        Wen et al., "Flipout: Efficient Pseudo-Independent Weight Perturbations on Mini-Batches",
        ICLR 2018, arXiv:1803.04386.
    """

    name = "flipout"

    def __init__(self, program: Program) -> None:
        # of each site the first of its signs, the first of its outputs', and one past the last
        self._places: dict[str, tuple[int, int, int]] = {}
        super().__init__(program)

    def _check(self, product: Product) -> None:
        self._require_rows(product)
        num_outputs = product.num_outputs
        for weight in product.weights:
            if len({use.is_turned for use in self._uses(weight.site)}) > 1:
                raise SiteError(
                    f"the site {weight.site!r} enters one product as it is and another one "
                    "transposed, whose signs differ: leave the estimator at its default"
                )
            if weight.site not in self._places:
                num_inputs = 0 if weight is product.bias else product.x.shape[product.channel_dim]
                middle = self.row_numbers + num_inputs
                self._places[weight.site] = (self.row_numbers, middle, middle + num_outputs)
                self.row_numbers = middle + num_outputs

    def _deviation(self, scale: Tensor, noise: Tensor) -> Tensor:
        return scale * noise

    def row_noise(self, num_particles: int, num_rows: int, generator: torch.Generator) -> Tensor:
        """Signs ``[S, B, R]``, -1 or 1."""
        like = self.program.initial
        size = (num_particles, num_rows, self.row_numbers)
        bits = torch.randint(2, size, generator=generator, device=like.device)
        return (2 * bits - 1).to(like.dtype)

    def _rule(self, noise: Tensor) -> Rule:
        def signs(product: Product, site: str) -> tuple[Tensor, Tensor]:
            start, middle, stop = self._places[site]
            return (
                product.per_channel(noise[:, start:middle]),
                product.per_channel(noise[:, middle:stop]),
            )

        def draw(product: Product) -> Tensor:
            value = product.mean()
            if isinstance(product.weight, Weight):
                s, r = signs(product, product.weight.site)
                value = value + r * product.apply(product.x * s, product.weight.deviation, None)
            if isinstance(product.bias, Weight):
                _, r = signs(product, product.bias.site)
                value = value + r * product.per_channel(product.bias.deviation)
            return value

        return draw
