r"""Variational Bayesian last layer: the expectation over a layer in which f is linear, exactly.

With :math:`f_n = J_n w` plus a constant, w the weights of the layer and :math:`q(w) = \mathcal N(m,
S)`, the output is Gaussian whatever the other sites are, and of Gaussian noise

.. math:: \mathbb E_q \log \mathcal N(y_n \mid f_n, s^2)
          = \log \mathcal N(y_n \mid J_n m, s^2) - \frac{J_n S J_n^\top}{2 s^2}

Of another likelihood of one output it is an integral over one number, by Gauss-Hermite quadrature.

References:
    Harrison, Willes & Snoek, "Variational Bayesian Last Layers", ICLR 2024, arXiv:2404.11599.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import numpy as np
import pyro.distributions as dist
import torch
from torch import Tensor

from pyro_bnn.errors import OptionError, SiteError
from pyro_bnn.guides import AutoComposite, Guide
from pyro_bnn.guides.parts.blocks import LAST_LAYER, matching_sites
from pyro_bnn.infer.svi.estimators.estimator import Estimator
from pyro_bnn.priors.from_posterior import gaussian_of_guide
from pyro_bnn.program.batched import refused_as, without_vmap_warnings
from pyro_bnn.program.distributions import base_distribution
from pyro_bnn.program.program import Program
from pyro_bnn.program.terms import Batch, GuideTerms, Params, with_prefix

NUM_NODES = 20  # of the quadrature; of a square, as the log density of Gaussian noise, 2 are exact
ROUNDING = 1e-3  # of f, by which a network that is linear may differ from it
SMALLEST = 1e-30  # variance of f, whose root has a gradient


class LastLayer(Estimator):
    """The expected log likelihood in closed form over the last layer, at draws of all else.

    The part of an ``AutoComposite`` that has the last layer is Gaussian, and f is linear in its
    sites. The likelihood is ``Normal``, or another one of a single output, taken by quadrature.
    Beside a point estimate of all else nothing is random.

    Args:
        program: The model as tensor functions.
        guide: The guide, set up.

    Raises:
        OptionError: If the part is not Gaussian, or the likelihood is another one.
        SiteError: If f is not linear in the sites of the part; names them.
    """

    name = "last_layer"
    takes = "a Gaussian part over the last layer, as guides.AutoComposite has it"

    def __init__(self, program: Program, guide: Guide) -> None:
        super().__init__(program)
        assert isinstance(guide, AutoComposite)
        self.guide = guide
        last = matching_sites(LAST_LAYER, program.sites, program.model)[-1]
        names = guide.names_of_parts
        number = next(i for i, own in enumerate(names) if last in own)
        parts = cast(list[Guide], list(guide.parts))
        self.part, self._prefix = parts[number], f"parts.{number}."
        if gaussian_of_guide(self.part) is None:
            raise OptionError(
                f'estimator="{self.name}" takes a Gaussian over the last layer, and '
                f"{type(self.part).__name__} is none: take AutoMultivariateNormal for that part, "
                "or leave the estimator at its default"
            )
        self._eye = torch.eye(self.part.noise_dim).to(program.initial)  # C has none
        sites = {site.name: site for site in program.sites}
        self._sites = [sites[name] for name in names[number]]
        self._check_linear()
        self._nodes, self._weights = self._quadrature()

    @classmethod
    def serves(cls, guide: object) -> bool:
        """Whether it serves a guide, or a class of guides."""
        return issubclass(guide if isinstance(guide, type) else type(guide), AutoComposite)

    @classmethod
    def of(cls, program: Program, guide: Guide) -> LastLayer:
        """The estimator for one model and guide."""
        return cls(program, guide)

    def rows(
        self,
        terms: GuideTerms,  # noqa: ARG002
        noise: Sequence[Tensor],
        batch: Batch,
        params: Params,
        own: Params,
    ) -> tuple[Tensor, float]:
        """Expected log densities ``[S, B]`` at S draws of the other sites; see the base class."""
        z = self.guide.terms(own, noise[0], density=False).z  # [S, P], the part's own not used
        of_part = with_prefix(own, self._prefix)
        centred = {
            name: torch.zeros_like(value) if name in self.part.mean_params else value
            for name, value in of_part.items()
        }
        centre = self.part.terms(of_part, self._eye[:1] * 0, density=False).z  # [1, P_b]
        root = self.part.terms(centred, self._eye, density=False).z  # rows of one of S, [M, P_b]
        weights = torch.cat([centre, centre * 0, root])
        factor = 1.0

        def one(z: Tensor) -> Tensor:
            nonlocal factor
            mean, at_zero, *_ = f = self._functions(z, weights, batch.x, params)  # [2 + M, B, F]
            sd = (f[2:] - at_zero).square().sum(0).clamp_min(SMALLEST).sqrt()
            values = self.program.constrain(z)

            def at(node: Tensor) -> Tensor:
                nonlocal factor
                rows, factor = self.program.row_log_likelihood(
                    values, batch, params, output=mean + node * sd
                )
                return rows

            of_nodes: Tensor = torch.func.vmap(at)(self._nodes)  # [K, B]
            return (self._weights.unsqueeze(-1) * of_nodes).sum(0)

        with refused_as(
            f'estimator="{self.name}" needs a model that can be batched over draws, and this one '
            "cannot: leave the estimator at its default"
        ):
            rows = one(z[0]).unsqueeze(0) if len(z) == 1 else torch.func.vmap(one)(z)
        return rows, factor

    def _functions(self, z: Tensor, weights: Tensor, x: Tensor, params: Params) -> Tensor:
        """The network's f ``[D, N, F]`` at z ``[P]`` with other weights ``[D, P_b]``."""
        values = self.program.constrain(z)

        def at(weight: Tensor) -> Tensor:
            pieces = weight.split([site.stop - site.start for site in self._sites])
            own = {s.name: w.reshape(s.shape) for s, w in zip(self._sites, pieces, strict=True)}
            return self.program.function_at({**values, **own}, x, params)

        with without_vmap_warnings():
            found: Tensor = torch.func.vmap(at)(weights)
        return found

    def _check_linear(self) -> None:
        """Compare f at the sum of two values of the part's sites with the sum of f there."""
        names = ", ".join(site.name for site in self._sites)
        is_linear = all(site.is_real for site in self._sites)
        if is_linear:
            program = self.program
            generator = torch.Generator().manual_seed(0)
            a, b = torch.randn(2, self.part.num_latents, generator=generator).to(program.initial)
            weights = torch.stack([a, b, a + b, torch.zeros_like(a)])
            with torch.no_grad():
                f = self._functions(program.initial, weights, program.example.x, program.params)
            gap = (f[0] + f[1] - f[2] - f[3]).abs().max()
            is_linear = bool(gap <= ROUNDING * f.abs().max())
        if not is_linear:
            raise SiteError(
                f'estimator="{self.name}" needs an output that is linear in the sites of a part, '
                f'and it is not in {names}: give the last layer a part of its own, "last layer", '
                "or leave the estimator at its default"
            )

    def _quadrature(self) -> tuple[Tensor, Tensor]:
        """Nodes and weights ``[K]`` of the mean over a standard normal number."""
        program, x = self.program, self.program.example.x
        moved = program.initial.clone()  # to another f, all else as it was
        for site in self._sites:
            moved[site.start : site.stop] += 1
        with torch.no_grad():
            f = program.function(program.initial, x)
            first, second = (
                base_distribution(program.observed(z, x)[0]) for z in (program.initial, moved)
            )
        is_square = (
            isinstance(first, dist.Normal)
            and isinstance(second, dist.Normal)
            and f.numel() == first.loc.numel()
            and torch.equal(first.loc, f.reshape(first.loc.shape))
            and torch.equal(first.scale, second.scale)
        )
        if not is_square and f.shape[-1] > 1:
            raise OptionError(
                f'estimator="{self.name}" is in closed form for Gaussian noise, and an integral '
                f"over one number for other likelihoods of one output; this is "
                f"{type(first).__name__} of {f.shape[-1]} outputs: leave the estimator at its "
                "default"
            )
        nodes, weights = np.polynomial.hermite_e.hermegauss(2 if is_square else NUM_NODES)
        like = program.initial
        return torch.from_numpy(nodes).to(like), torch.from_numpy(weights / weights.sum()).to(like)
