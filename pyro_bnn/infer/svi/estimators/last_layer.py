r"""Variational Bayesian last layer: the expectation over a layer in which f is linear.

With :math:`f_n = J_n w` plus a constant, w the weights of the layer and :math:`q(w) = \mathcal N(m,
S)`, the output is Gaussian whatever the other sites are, and of Gaussian noise

.. math:: \mathbb E_q \log \mathcal N(y_n \mid f_n, s^2)
          = \log \mathcal N(y_n \mid J_n m, s^2) - \frac{J_n S J_n^\top}{2 s^2}

Of likelihoods whose targets have one output each, of Gaussian noise whose sd is an output, and of
two classes it is an integral over one number, by quadrature. Of C classes there is a lower bound,

.. math:: \mathbb E_q \log \mathrm{softmax}_y(f_n)
          \ge \mu_{ny} - \log \sum_k \exp\bigl(\mu_{nk} + v_{nk} / 2\bigr), \qquad
          \mu_n = J_n m, \; v_{nk} = (J_n S J_n^\top)_{kk}

References:
    Harrison, Willes & Snoek, "Variational Bayesian Last Layers", ICLR 2024, arXiv:2404.11599.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import ClassVar, TypeAlias, cast

import torch
from torch import Tensor

from pyro_bnn.errors import OptionError
from pyro_bnn.guides import AutoComposite, Guide
from pyro_bnn.guides.parts.blocks import LAST_LAYER, matching_sites
from pyro_bnn.infer.svi.estimators.estimator import Estimator
from pyro_bnn.infer.svi.estimators.expectations import OutputExpectation, expectation_of
from pyro_bnn.infer.svi.estimators.output_moments import LastLayerOutputs, OutputMoments
from pyro_bnn.priors.from_posterior import gaussian_of_guide
from pyro_bnn.program.batched import refused_as
from pyro_bnn.program.distributions import base_distribution
from pyro_bnn.program.program import Program
from pyro_bnn.program.terms import Batch, GuideTerms, Params, with_prefix

RowsAt: TypeAlias = Callable[[Tensor], Tensor]
"""Log densities ``[B]`` of rows at outputs ``[B, F]``."""


class OverLastLayer(Estimator):
    """Base of the estimators that know f as a Gaussian, at draws of all but the last layer.

    The part of an ``AutoComposite`` that has the last layer is Gaussian, and f is linear in its
    sites.

    Args:
        program: The model as tensor functions.
        guide: The guide, set up.

    Raises:
        OptionError: If the part is not Gaussian.
        SiteError: If f is not linear in the sites of the part; names them.
    """

    takes: ClassVar[str] = "a Gaussian part over the last layer, as guides.AutoComposite has it"
    compares = True

    def __init__(self, program: Program, guide: Guide) -> None:
        super().__init__(program)
        assert isinstance(guide, AutoComposite)
        self.guide = guide
        last = matching_sites(LAST_LAYER, program.sites, program.model)[-1]
        names = guide.names_of_parts
        number = next(i for i, own in enumerate(names) if last in own)
        part = cast(list[Guide], list(guide.parts))[number]
        self._prefix = f"parts.{number}."
        if gaussian_of_guide(part) is None:
            raise OptionError(
                f'estimator="{self.name}" takes a Gaussian over the last layer, and '
                f"{type(part).__name__} is none: take AutoMultivariateNormal for that part, "
                "or leave the estimator at its default"
            )
        sites = {site.name: site for site in program.sites}
        self.sites = [sites[name] for name in names[number]]
        self.outputs = LastLayerOutputs(program, part, self.sites)
        self.numbers_a_row = self.outputs.numbers_a_row

    @property
    def needs_marginals_alone(self) -> bool:
        """Whether nothing depends on covariances of outputs."""
        return False

    @classmethod
    def serves(cls, guide: object) -> bool:
        """Whether it serves a guide, or a class of guides."""
        return issubclass(guide if isinstance(guide, type) else type(guide), AutoComposite)

    @classmethod
    def of(cls, program: Program, guide: Guide) -> OverLastLayer:
        """The estimator for one model and guide."""
        return cls(program, guide)

    @abstractmethod
    def of_output(self, q: OutputMoments, noise: Tensor, rows_at: RowsAt) -> Tensor:
        """Log densities ``[B]`` of rows, expected or drawn, given the Gaussian of f.

        Args:
            q: The Gaussian of f.
            noise: Noise ``[B, R]`` of the rows.
            rows_at: Log densities at given outputs.
        """

    def rows(
        self,
        terms: GuideTerms,  # noqa: ARG002
        noise: Sequence[Tensor],
        batch: Batch,
        params: Params,
        own: Params,
    ) -> tuple[Tensor, float]:
        """Log densities ``[S, B]`` at S draws of the other sites; see the base class."""
        return self._at_draws(
            self.of_output, noise, batch, params, own, are_marginal=self.needs_marginals_alone
        )

    def _at_draws(
        self,
        of_output: Callable[[OutputMoments, Tensor, RowsAt], Tensor],
        noise: Sequence[Tensor],
        batch: Batch,
        params: Params,
        own: Params,
        *,
        are_marginal: bool = False,
    ) -> tuple[Tensor, float]:
        """What a function makes of the Gaussian of f, ``[S, B]``; and N/B."""
        z = self.guide.terms(own, noise[0], density=False).z  # [S, P], the part's own not used
        of_rows = noise[1] if len(noise) > 1 else z.new_zeros(len(z), len(batch.x), 0)
        weights = self.outputs.weights(with_prefix(own, self._prefix))
        factor = 1.0

        def one(z: Tensor, of_rows: Tensor) -> Tensor:
            values = self.program.constrain(z)

            def rows_at(output: Tensor) -> Tensor:
                nonlocal factor
                rows, factor = self.program.row_log_likelihood(values, batch, params, output=output)
                return rows

            q = self.outputs.moments(z, weights, batch.x, params, are_marginal=are_marginal)
            return of_output(q, of_rows, rows_at)

        with refused_as(
            f'estimator="{self.name}" needs a model that can be batched over draws, and this one '
            "cannot: leave the estimator at its default"
        ):
            if len(z) == 1:
                rows = one(z[0], of_rows[0]).unsqueeze(0)
            else:
                rows = torch.func.vmap(one)(z, of_rows)
        return rows, factor


class LastLayer(OverLastLayer):
    """The expected log likelihood in closed form over the last layer, at draws of all else.

    By quadrature over one number where y asks for it, and of three classes or more a lower bound.
    Beside a point estimate of all else nothing is random.

    Args:
        program: The model as tensor functions.
        guide: The guide, set up.

    Raises:
        OptionError: If the part is not Gaussian, or the likelihood is another one.
        SiteError: If f is not linear in the sites of the part; names them.
    """

    name = "last_layer"

    def __init__(self, program: Program, guide: Guide) -> None:
        super().__init__(program, guide)
        self.expectation = self._expectation()
        self.is_bound = self.expectation.is_bound
        self.is_exact = self.guide.noise_dim == self.outputs.noise_dim  # nothing else is drawn

    @property
    def needs_marginals_alone(self) -> bool:
        """Whether the bound is used, in which covariances of classes do not occur."""
        return self.is_bound

    def of_output(self, q: OutputMoments, noise: Tensor, rows_at: RowsAt) -> Tensor:  # noqa: ARG002
        """Expected log densities ``[B]``; see the base class."""
        rows: Tensor = torch.func.vmap(rows_at)(self.expectation.outputs(q))  # [K, B]
        return self.expectation.combine(rows, q)

    def slack(
        self,
        noise: Tensor,
        generator: torch.Generator,
        batch: Batch,
        params: Params,
        own: Params,
        *,
        num_draws: int,
    ) -> Tensor:
        """By how much log densities at draws of f are above the bound, ``[S, K, B]``.

        Args:
            noise: Noise ``[S, M]`` of the guide's draws.
            generator: Of the noise of f.
            batch: Rows of the data.
            params: Values of the model's point-estimated parameters.
            own: Values of the guide's parameters by name.
            num_draws: Draws K of f at each of these.
        """
        width = self.outputs.num_outputs + self.outputs.num_shared
        size = (len(noise), len(batch.x), num_draws, width)
        of_rows = torch.randn(size, generator=generator, dtype=noise.dtype, device=noise.device)

        def above(q: OutputMoments, noise: Tensor, rows_at: RowsAt) -> Tensor:
            bound = self.of_output(q, noise, rows_at)  # [B]
            outputs = torch.stack([q.draw(one) for one in noise.unbind(1)])  # [K, B, F]
            rows: Tensor = torch.func.vmap(rows_at)(outputs)
            return rows - bound

        return self._at_draws(above, (noise, of_rows), batch, params, own)[0]

    def _expectation(self) -> OutputExpectation:
        found = expectation_of(self.program, self.sites)
        if found is None:
            program = self.program
            fn = base_distribution(program.observed(program.initial, program.example.x)[0])
            raise OptionError(
                f'estimator="{self.name}" takes Gaussian noise, also of an sd that is an output, '
                "classes of logits f, and other likelihoods whose targets have an output each. In "
                f"this {type(fn).__name__} several outputs enter one target in another way: take "
                f'estimator="{LastLayerDraws.name}"'
            )
        return found


class LastLayerDraws(OverLastLayer):
    """Draws of f of each row in place of draws of the last layer: under any likelihood, unbiased.

    Args:
        program: The model as tensor functions.
        guide: The guide, set up.

    Raises:
        OptionError: If the part is not Gaussian.
        SiteError: If f is not linear in the sites of the part; names them.
    """

    name = "last_layer_draws"

    def __init__(self, program: Program, guide: Guide) -> None:
        super().__init__(program, guide)
        self.row_numbers = self.outputs.num_outputs + self.outputs.num_shared

    def of_output(self, q: OutputMoments, noise: Tensor, rows_at: RowsAt) -> Tensor:
        """Log densities ``[B]`` at a draw of f of each row; see the base class."""
        return rows_at(q.draw(noise))
