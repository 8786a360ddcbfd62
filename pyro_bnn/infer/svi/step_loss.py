"""What a step of SVI minimises, at values of the parameters, noise and rows; and its noise."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from pyro_bnn.guides import Guide
from pyro_bnn.infer.svi.counted_noise import make_key, normal
from pyro_bnn.infer.svi.estimators.by_name import make_estimator
from pyro_bnn.infer.svi.estimators.estimator import Estimator
from pyro_bnn.program.elbo import elbo
from pyro_bnn.program.joint import Joint
from pyro_bnn.program.terms import Batch

if TYPE_CHECKING:
    from pyro_bnn.infer.svi.options import SVIOptions

COUNTED_NORMALS = 1 << 15  # normals a step; more are made of the step's number, on all cores


class StepLoss:
    """Minus the ELBO of a guide, as one step estimates it.

    Args:
        svi: The options.
        program: The model as tensor functions.
        guide: The guide.
        names: Of the parameters, in their order.
        seed: Of the noise.

    Attributes:
        estimator: Of the likelihood term; None of draws of the weights.
        generator: Of the noise.
    """

    def __init__(
        self, svi: SVIOptions, program: Joint, guide: Guide, names: Sequence[str], seed: int
    ) -> None:
        self.program, self.guide, self.names = program, guide, names
        self.generator = torch.Generator(program.device).manual_seed(seed + 1)
        self.estimator: Estimator | None = make_estimator(
            svi.estimator, program, guide, per_example_draws=svi.per_example_draws
        )
        self._num_particles = svi.num_particles
        self._num_normals = svi.num_particles * guide.noise_dim
        self._draws_rows = svi.per_example_draws and self.estimator is None
        self._nodes = None if self.estimator is None else self.estimator.nodes
        is_drawn_before = self._draws_rows or self._nodes is not None
        self._counts_noise = self._num_normals > COUNTED_NORMALS and not is_drawn_before
        self._key = make_key(seed + 1)

    @property
    def has_row_noise(self) -> bool:
        """Whether rows have noise of their own beside that of the draws of z."""
        return self.estimator is not None and self.estimator.row_numbers > 0

    def row_dims(self, first: int) -> dict[int, int]:
        """Dimensions of rows of the inputs noise, x and y, of which the noise is number first."""
        by_row = {first: 1} if self._draws_rows else {}
        if self.has_row_noise:
            first += 1
            by_row = {first: 1}
        return {**by_row, first + 1: 0, first + 2: 0}

    def __call__(
        self, variables: Sequence[Tensor], rest: Sequence[Tensor]
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """The loss of a step; then minus the ELBO, and the loss's sampled part.

        Args:
            variables: Values of the parameters, in their order.
            rest: The noise as :meth:`draw` gives it, x, y, and the weight of the KL.
        """
        first, *of_rows, x, y, kl_weight = rest
        noise = (self._noise_of(first), *of_rows)
        return self.terms(variables, noise, Batch(x, y), kl_weight, self.estimator)

    def at(
        self,
        values: Sequence[Tensor],
        noise: Sequence[Tensor],
        rows: Batch,
        estimator: Estimator | None,
    ) -> Tensor:
        """What is minimised once the KL has its whole weight, ``[]``, at given noise.

        Args:
            values: Of the parameters, in their order.
            noise: Noise ``[S, M]``, and that of an estimator's rows.
            rows: Rows of the data.
            estimator: Of the likelihood term, whichever the steps take.
        """
        loss, _ = self.terms(values, noise, rows, 1.0, estimator)
        return loss

    def terms(
        self,
        variables: Sequence[Tensor],
        noise: Sequence[Tensor],
        rows: Batch,
        kl_weight: Tensor | float,
        estimator: Estimator | None,
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """The loss at given noise; then minus the ELBO, and the loss's sampled part."""
        params = dict(zip(self.names, variables, strict=True))
        first, *of_rows = noise
        args = self.program.arguments(rows)
        terms = elbo(self.program, self.guide, params, first, args, estimator, of_rows)
        bound = terms.expected_log_likelihood - terms.kl
        # The update waits until this part is known to be finite. The closed-form part sums over
        # all parameters: an update that waits for it as well needs a second pass over them.
        sampled = terms.sampled_kl - terms.expected_log_likelihood
        if terms.log_factors is not None:
            sampled = sampled - terms.log_factors
        return terms.loss(kl_weight), (-bound, sampled)

    def draw(self, step: int, num_rows: int) -> tuple[Tensor, ...]:
        """All the noise of a step: of the draws of z, then of the estimator's rows, if it has."""
        noise = self._draw_of_z(step, num_rows)
        if self.estimator is None or not self.has_row_noise:
            return (noise,)
        return noise, self.estimator.row_noise(self._num_particles, num_rows, self.generator)

    def _draw_of_z(self, step: int, num_rows: int) -> Tensor:
        """Noise ``[S, M]``, ``[S, B, M]`` with draws for each row, or the step it is made of."""
        num_particles, guide = self._num_particles, self.guide
        if self._nodes is not None:
            return self._nodes
        if self._counts_noise:
            return torch.tensor(step, dtype=torch.int32, device=self.program.device)
        if not self._draws_rows:
            return guide.draw_noise(num_particles, self.generator)
        noise = guide.draw_noise(num_particles * num_rows, self.generator)
        return noise.reshape(num_particles, num_rows, -1)

    def _noise_of(self, step: Tensor) -> Tensor:
        """The noise itself: made of the step's number inside it, or as it was drawn before it."""
        if not self._counts_noise:
            return step
        like = next(self.guide.parameters())
        values = normal(step, self._num_normals, self._key, like.dtype)
        return values.reshape(self._num_particles, -1)

    def non_finite_sites(self, noise: Tensor, batch: Batch) -> list[str]:
        """Names of the sites at which a draw has a density that is not finite."""
        with torch.no_grad():
            draws = self.guide.make_terms(self._noise_of(noise).flatten(0, -2), density=False).z
            args, params = self.program.arguments(batch), self.program.params
            named = (self.program.non_finite_terms(z, args, params) for z in draws)
            return next((names for names in named if names), [])
