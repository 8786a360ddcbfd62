r"""Snapshots of one guide compared at the same noise, on all rows.

.. math:: \delta_s = \tfrac12 \sum_{\pm} \bigl[\mathcal L(\theta_b; \pm\epsilon_s)
          - \mathcal L(\theta_a; \pm\epsilon_s)\bigr]

What is odd in the noise drops out of a pair. Beside two draws apart, a pair had 0.7 to 1.5 times
the variance on networks. Of independent Gaussian weights in linear layers the outputs of layers
are drawn in place of the weights: a tenth of the variance or less.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from pyro_bnn.infer.svi.estimators.estimator import Estimator
from pyro_bnn.posterior.doubling import MIN_GAIN
from pyro_bnn.program.batched import without_vmap_warnings
from pyro_bnn.program.random_state import derived_seed
from pyro_bnn.program.terms import Batch

ENOUGH = 0.2  # nats: an error at which half a nat can be told from none
CLEAR = 4.0  # errors by which a gain that is looked at many times is above its limit
FEWEST, MOST = 4, 2_048  # pairs of draws
AT_ONCE = 16  # pairs of one batch
ROWS, NUMBERS = 4_096, 1 << 22  # rows, and intermediate numbers, at once
NUMBERS_A_ROW = 64  # of them for a row and draw, at least
STREAM = 211  # of random numbers, beside those of starts and steps

Values = Sequence[Tensor]
Objective = Callable[[Values, Sequence[Tensor], Batch], Tensor]


class PairedObjective:
    """The objective of a guide on all rows, draw by draw, at noise that snapshots share.

    Args:
        objective: Of values of the parameters, noise ``[1, M]`` (and ``[1, B, R]`` of rows) and
            rows, in nats, with their likelihood scaled by N/B; ``[]``.
        draw_noise: Makes noise ``[S, M]`` of so many draws.
        whole: All rows.
        seed: Of the run.
        estimator: Of the likelihood term, where it has noise of rows.
        is_exact: Whether noise changes nothing.
        needs_all_rows: Whether the objective is no sum over rows.
    """

    def __init__(
        self,
        objective: Objective,
        draw_noise: Callable[[int, torch.Generator], Tensor],
        whole: Batch,
        *,
        seed: int,
        estimator: Estimator | None = None,
        is_exact: bool = False,
        needs_all_rows: bool = False,
    ) -> None:
        self._objective, self._draw_noise = objective, draw_noise
        self._seed, self._estimator, self._is_exact = seed, estimator, is_exact
        num_rows = len(whole.x)
        a_row = max(NUMBERS_A_ROW, estimator.row_numbers if estimator else 0)
        size = num_rows if needs_all_rows else min(ROWS, num_rows, max(NUMBERS // a_row, 1))
        parts = zip(whole.x.split(size), whole.y.split(size), strict=True)
        self._rows = [Batch(x, y) for x, y in parts]
        self._shares = [len(rows.x) / num_rows for rows in self._rows]
        self._at_once = max(1, min(AT_ONCE, NUMBERS // (size * a_row)))
        self._is_batched = True

    def gain(self, before: Values, after: Values, most: int = MOST) -> tuple[float, float]:
        """Rise of the objective from one snapshot to another, and its standard error, nats.

        Draws are made until the error is small, or the gain plain; at most ``most`` pairs.
        """
        generator = self._generator()
        if self._is_exact:
            (a,), (b,) = (self._at(values, 1, generator) for values in (before, after))
            return float(b - a), 0.0
        deltas = torch.empty(0, dtype=torch.float64)
        while True:
            state = generator.get_state()
            count = min(self._at_once, max(most, FEWEST) - len(deltas))
            a = self._at(before, count, generator)
            generator.set_state(state)
            b = self._at(after, count, generator)
            deltas = torch.cat([deltas, (b - a).cpu()])
            if len(deltas) < FEWEST:
                continue
            mean, error = float(deltas.mean()), float(deltas.std()) / math.sqrt(len(deltas))
            is_plain = mean - CLEAR * error > MIN_GAIN
            if error <= ENOUGH or is_plain or len(deltas) >= most or not math.isfinite(error):
                return mean, error

    def best(self, snapshots: Sequence[Values], count: int) -> list[int]:
        """Which snapshots have the highest objectives, at most ``count``, the best one first."""
        scores = []
        for values in snapshots:
            generator = self._generator()
            draws = torch.cat(
                [
                    self._at(values, self._at_once, generator)
                    for _ in range(-(-AT_ONCE // self._at_once))
                ]
            )
            score = float(draws.mean())
            scores.append(score if math.isfinite(score) else -math.inf)
        return sorted(range(len(scores)), key=lambda k: -scores[k])[:count]

    def _generator(self) -> torch.Generator:
        device = self._rows[0].x.device
        return torch.Generator(device).manual_seed(derived_seed(self._seed, STREAM))

    def _at(self, values: Values, num_pairs: int, generator: torch.Generator) -> Tensor:
        """The objective at pairs of draws ``[D]``, over all rows."""
        noise = self._draw_noise(num_pairs, generator)  # [D, M]
        total = torch.zeros(num_pairs, dtype=torch.float64, device=noise.device)
        with torch.no_grad():
            for rows, share in zip(self._rows, self._shares, strict=True):
                of_rows: tuple[Tensor, ...] = ()
                if self._estimator is not None and self._estimator.row_numbers:
                    of_rows = (self._estimator.row_noise(num_pairs, len(rows.x), generator),)
                signs = (1.0,) if self._is_exact else (1.0, -1.0)
                for sign in signs:
                    signed = [sign * part for part in (noise, *of_rows)]
                    total += self._each(values, signed, rows).double() * (share / len(signs))
        return total

    def _each(self, values: Values, noise: Sequence[Tensor], rows: Batch) -> Tensor:
        """The objective at each draw ``[D]``, for a part of the rows."""

        def one(*parts: Tensor) -> Tensor:
            return self._objective(values, [part.unsqueeze(0) for part in parts], rows)

        if self._is_batched and len(noise[0]) > 1:
            try:
                with without_vmap_warnings():
                    return torch.func.vmap(one)(*noise)
            except RuntimeError:
                self._is_batched = False
        return torch.stack([one(*parts) for parts in zip(*noise, strict=True)])
