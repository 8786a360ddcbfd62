r"""The Gaussian of a network's output under a Gaussian over the weights of its last layer.

.. math:: f_n = J_n w + c_n, \quad w \sim \mathcal N(m, S) \;\Rightarrow\;
          f_n \sim \mathcal N(J_n m + c_n,\; J_n S J_n^\top)

Where a linear layer makes f, and its entries are independent but for R numbers that they share, the
variance is a product of squared features. Where marginals of f are enough, as in the bound for
classes, it is :math:`\phi_n^\top S_k \phi_n` with :math:`S_k` that of the weights of output k. Else
f is computed at each column of a root of S.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from pyro_bnn.errors import SiteError
from pyro_bnn.guides import Guide
from pyro_bnn.infer.svi.estimators.estimator import has_own_noise
from pyro_bnn.infer.svi.estimators.gaussian_weights import GaussianWeights, Product, Weight
from pyro_bnn.program.batched import without_vmap_warnings
from pyro_bnn.program.head import is_view_of
from pyro_bnn.program.program import Program
from pyro_bnn.program.terms import Params
from pyro_bnn.sites import Site

ROUNDING = 1e-3  # of f, by which a network that is linear may differ from it
SIZES = (1.0, 1_000.0)  # of the values at which it is looked at
SMALLEST = 1e-30  # variance of f, whose root has a gradient


class OutputMoments(NamedTuple):
    """A Gaussian over the outputs ``[F]`` of each of B rows.

    Attributes:
        mean: Means ``[B, F]``.
        alone: Variances ``[B, F]`` of each output alone.
        roots: What R shared standard normal numbers add, ``[R, B, F]``.
    """

    mean: Tensor
    alone: Tensor
    roots: Tensor

    @property
    def variance(self) -> Tensor:
        """Variances ``[B, F]``."""
        shared = self.roots.square().sum(0) if len(self.roots) else 0.0
        return (self.alone + shared).clamp_min(SMALLEST)

    def covariance(self, first: Tensor, second: Tensor) -> Tensor:
        """Covariances ``[B, K]`` of K outputs with K others, by their numbers."""
        if not len(self.roots):
            return torch.zeros_like(self.mean[..., first])
        return (self.roots[..., first] * self.roots[..., second]).sum(0)

    def draw(self, noise: Tensor) -> Tensor:
        """Outputs ``[B, F]`` made of noise ``[B, F + R]`` of each row."""
        own, shared = noise.split([self.mean.shape[-1], len(self.roots)], -1)
        draws: Tensor = self.mean + self.alone.clamp_min(SMALLEST).sqrt() * own
        if not len(self.roots):
            return draws
        return draws + torch.einsum("rbf,br->bf", self.roots, shared)


class LastLayerOutputs:
    """Moments of f over the sites of one Gaussian part of a guide, at values of the others.

    Args:
        program: The model as tensor functions.
        part: The guide of the part.
        sites: Its sites, in their order.

    Attributes:
        num_outputs: Outputs F.
        num_shared: Shared numbers R.

    Raises:
        SiteError: If f is not linear in the sites.
    """

    def __init__(self, program: Program, part: Guide, sites: Sequence[Site]) -> None:
        self._program, self._part, self._sites = program, part, sites
        with torch.no_grad():
            self.num_outputs = program.function(program.initial, program.example.x).shape[-1]
        self._require_linear()
        is_product, is_plain = self._is_one_product()
        self._is_product = is_product and has_own_noise(part)
        self._knows_features = is_plain and not self._is_product
        self.noise_dim = part.noise_dim
        self.num_shared = part.noise_dim - (part.num_latents if self._is_product else 0)
        # the noise of entries comes last
        self._eye = torch.eye(self.num_shared, part.noise_dim).to(program.initial)

    @property
    def numbers_a_row(self) -> int:
        """Intermediate numbers for a row."""
        return self.num_outputs * (2 + self.num_shared)

    def weights(self, of_part: Params) -> tuple[Tensor, Tensor, Tensor | None]:
        """Means ``[P_b]``, roots ``[R, P_b]`` and standard deviations ``[P_b]`` of the weights.

        Args:
            of_part: The part's parameters, by name.
        """
        part = self._part
        zero = self._eye.new_zeros(1, part.noise_dim)
        centred = {
            name: torch.zeros_like(value) if name in part.mean_params else value
            for name, value in of_part.items()
        }
        terms = part.terms(of_part, zero, density=self._is_product)
        scale = None if terms.entry_noise is None else terms.entry_noise.scale
        roots = part.terms(centred, self._eye, density=False).z if self.num_shared else self._eye
        return terms.z[0], roots.reshape(self.num_shared, part.num_latents), scale

    def moments(
        self,
        z: Tensor,
        weights: tuple[Tensor, Tensor, Tensor | None],
        x: Tensor,
        params: Params,
        *,
        are_marginal: bool = False,
    ) -> OutputMoments:
        """Moments of f at inputs x, and z ``[P]`` of the other sites.

        Args:
            z: All sites, the part's own not used.
            weights: As :meth:`weights` gives them.
            x: Inputs.
            params: Values of the model's point-estimated parameters.
            are_marginal: Whether covariances of outputs may be left out.
        """
        mean, roots, scale = weights
        if are_marginal and self._knows_features:
            f, own = self._by_outputs(z, mean, roots, x, params)
            return OutputMoments(f, own, f.new_zeros(0, *f.shape))
        if scale is None:
            zero = torch.zeros_like(mean)
            many = torch.cat([torch.stack([mean, zero]), roots])
            f, at_zero, *_ = of_all = self._functions(z, many, x, params)  # [2 + R, B, F]
            return OutputMoments(f, torch.zeros_like(f), of_all[2:] - at_zero)
        f, own = self._product(z, mean, scale, x, params)
        if not len(roots):
            return OutputMoments(f, own, f.new_zeros(0, *f.shape))
        many = torch.cat([torch.zeros_like(mean).unsqueeze(0), roots])
        at_zero, *_ = of_all = self._functions(z, many, x, params)
        return OutputMoments(f, own, of_all[1:] - at_zero)

    def _values(self, weights: Tensor) -> dict[str, Tensor]:
        """Values of the part's sites out of their entries ``[P_b]``."""
        pieces = weights.split([site.stop - site.start for site in self._sites])
        pairs = zip(self._sites, pieces, strict=True)
        return {site.name: piece.reshape(site.shape) for site, piece in pairs}

    def _functions(self, z: Tensor, weights: Tensor, x: Tensor, params: Params) -> Tensor:
        """The network's f ``[D, N, F]`` at z ``[P]`` with other weights ``[D, P_b]``."""
        values = self._program.constrain(z)

        def at(weight: Tensor) -> Tensor:
            return self._program.function_at({**values, **self._values(weight)}, x, params)

        with without_vmap_warnings():
            found: Tensor = torch.func.vmap(at)(weights)
        return found

    def _product(
        self, z: Tensor, mean: Tensor, scale: Tensor, x: Tensor, params: Params
    ) -> tuple[Tensor, Tensor]:
        """The network's f ``[N, F]`` at means, and its variances under independent weights."""
        f, product = self._run(z, mean, self._values(scale), x, params)
        variance = torch.zeros_like(f)
        if isinstance(product.weight, Weight):
            squares = product.weight.deviation.square()
            variance = product.apply(product.x.square(), squares, None).reshape(f.shape)
        if isinstance(product.bias, Weight):
            variance = variance + product.bias.deviation.square()
        return f, variance

    def _by_outputs(
        self, z: Tensor, mean: Tensor, roots: Tensor, x: Tensor, params: Params
    ) -> tuple[Tensor, Tensor]:
        """The network's f ``[N, F]`` at means, and its variances, without covariances."""
        f, product = self._run(z, mean, self._values(mean), x, params)
        of_sites = {
            site.name: piece.unflatten(-1, (self.num_outputs, -1))  # [R, F, D], of biases [R, F, 1]
            for site, piece in zip(
                self._sites, roots.split([s.stop - s.start for s in self._sites], -1), strict=True
            )
        }
        columns = [of_sites[weight.site] for weight in product.weights]
        phi = [
            product.x if w is product.weight else torch.ones_like(product.x[:, :1])
            for w in product.weights
        ]
        of_outputs, features = torch.cat(columns, -1), torch.cat(phi, -1)
        S = torch.einsum("rkd,rke->kde", of_outputs, of_outputs)
        return f, torch.einsum("nd,kde,ne->nk", features, S, features)

    def _run(
        self,
        z: Tensor,
        mean: Tensor,
        deviations: Mapping[str, Tensor],
        x: Tensor,
        params: Params,
    ) -> tuple[Tensor, Product]:
        """The network's f ``[N, F]`` at means, and the product that made it."""
        means = self._values(mean)
        weights = [Weight(name, means[name], deviations[name]) for name in means]
        products: list[Product] = []

        def rule(product: Product) -> Tensor:
            products.append(product)
            return product.mean()

        values = {**self._program.constrain(z), **means}
        with GaussianWeights(weights, rule, lambda *_: None):
            f = self._program.function_at(values, x, params)
        return f, products[0]

    def _is_one_product(self) -> tuple[bool, bool]:
        """Whether one linear layer makes f, and whether its weights are these sites as they are."""
        program = self._program
        values = program.constrain(program.initial)
        given = [Weight(s.name, values[s.name], values[s.name]) for s in self._sites]
        products: list[tuple[Product, Tensor, int]] = []
        others: list[str] = []

        def look(product: Product) -> Tensor:
            mean = product.mean()
            products.append((product, mean, mean._version))
            return mean

        with (
            torch.inference_mode(mode=False),
            torch.no_grad(),
            GaussianWeights(given, look, lambda *what: others.extend(what)),
        ):
            f = program.function_at(values, program.example.x, program.params)
        if others or len(products) != 1:
            return False, False
        product, value, version = products[0]
        is_whole = len(product.weights) == len(given) and value.numel() == f.numel()
        is_plain = product.x.ndim == 2 and not product.is_convolution
        is_product = is_whole and is_plain and is_view_of(f, value, version)
        return is_product, is_product and all(w.loc is values[w.site] for w in product.weights)

    def _require_linear(self) -> None:
        """Compare f at the sum of two values of the part's sites with the sum of f there.

        So it is at large values, too, which reach the bounds that a network may put on f.
        """
        is_linear = all(site.is_real for site in self._sites)
        if is_linear:
            program = self._program
            generator = torch.Generator().manual_seed(0)
            a, b = torch.randn(2, self._part.num_latents, generator=generator).to(program.initial)
            weights = torch.stack([a, b, a + b, torch.zeros_like(a)])
            for size in SIZES:
                with torch.no_grad():
                    many, x = size * weights, program.spread.x
                    f = self._functions(program.initial, many, x, program.params)
                gap = (f[0] + f[1] - f[2] - f[3]).abs().max()
                is_linear = is_linear and bool(gap <= ROUNDING * f.abs().max())
        if not is_linear:
            names = ", ".join(site.name for site in self._sites)
            raise SiteError(
                'estimator="last_layer" needs an output that is linear in the sites of a part, '
                f'and it is not in {names}: give the last layer a part of its own, "last layer", '
                "or leave the estimator at its default"
            )


def moved_by(program: Program, sites: Sequence[Site]) -> Mapping[str, Tensor]:
    """Values of all sites where those of some have moved by 1."""
    moved = program.initial.clone()
    for site in sites:
        moved[site.start : site.stop] += 1
    return program.constrain(moved)
