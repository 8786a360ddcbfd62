"""Passes over draws and rows that give the distribution of y: stored, or its moments alone."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor

from pyro_bnn.chunks import Chunks, Pass, Rows
from pyro_bnn.conditional import COPIES, Conditional, at_rows
from pyro_bnn.data import Standardiser
from pyro_bnn.draws import Draws
from pyro_bnn.errors import OptionError
from pyro_bnn.memory import beyond
from pyro_bnn.program import Batch, Params
from pyro_bnn.streams import RunningLogMean, RunningMoments

MOMENT_BYTES = 4 * 8  # a number of two sums of two moments, in double precision


class Predictive:
    """The distribution of y at N rows given each of S draws of a posterior.

    Args:
        chunks: The model, and what was learned of it.
        draws: The draws.
        x: Inputs ``[N, ...]`` in the model's units.
        params: Values of the model's point-estimated parameters.
        memory: Bound in bytes.
        units: Carries y to the user's units; None leaves it in the model's.
        has_moments: Whether the mixture over draws has a mean.

    Attributes:
        is_number: Whether y is a number, and no class.
        is_discrete: Whether y is a count or a class.
        is_masked: Whether rows of y are masked.
        has_target_densities: Whether each number of y has a density of its own given a draw.
        num_outputs: Length O of y, or number C of its classes.
        kept: Bytes that a draw takes with all that is made of it.
    """

    def __init__(
        self,
        chunks: Chunks,
        draws: Draws,
        x: Tensor,
        params: Params,
        *,
        memory: int,
        units: Standardiser | None,
        has_moments: bool,
    ) -> None:
        self._chunks, self._memory = chunks, memory
        self._units, self._has_moments = units, has_moments
        self._run = chunks.over("predictive", self._tensors, draws, (x,), params)
        some = self._run.smallest(memory)
        fn, self.is_masked = chunks.observed(some)
        self._fn = at_rows(fn, len(x))
        of_one = Conditional(fn, (), units, has_moments).one
        self.is_number, self.is_discrete = of_one.is_number, of_one.is_discrete
        self.has_target_densities = not self.is_masked and of_one.has_target_densities
        means = of_one.means() if self.is_number else of_one.class_probs()  # [1, n, O] or [1, n, C]
        self.num_outputs = means.shape[-1]
        of_means = self.num_outputs * means.itemsize * len(x)
        of_y = 3 * of_means if self.is_number else 8 * len(x)  # with draws of y
        self.kept = self._run.stored + of_y
        self._beside = COPIES * (of_y if self.is_number else of_y + of_means)

    def _tensors(self, z: Tensor, rows: Rows, params: Params) -> tuple[Tensor, ...]:
        return self._chunks.program.predictive_tensors(z, rows[0], params)

    @property
    def excess(self) -> str | None:
        """What to say where all draws exceed the bound, else None."""
        return self._run.excess(self._memory, self.kept)

    def stored(self, *, disk: bool) -> tuple[Tensor, Conditional]:
        """Network output f ``[S, N, F]`` and the distribution of y, in files where asked for.

        Raises:
            OptionError: If a single draw exceeds the bound, or all do and no file is asked for.
            OutputError: If the disk has no room.
        """
        f, *tensors = self._run.together(self._memory, kept=self.kept, disk=disk)
        return f, Conditional(self._fn, tensors, self._units, self._has_moments, disk)

    def moments(self) -> dict[str, RunningMoments]:
        """Moments over draws of the means and variances of y, or of its class probabilities.

        Raises:
            OptionError: If a single draw exceeds the bound.
        """
        found = [_moments(parts) for _, parts in self._blocks(MOMENT_BYTES * self.num_outputs)]
        return {name: RunningMoments.joined([part[name] for part in found]) for name in found[0]}

    def log_mean(self, y: Tensor) -> RunningLogMean:
        """Log of the mean density of y, in the model's units, drawn anew."""
        return RunningLogMean.joined(
            [
                log_mean(value for part in parts for value in part.log_prob(y[rows]))
                for rows, parts in self._blocks(0)
            ]
        )

    def _blocks(self, kept_of_row: int) -> Iterator[tuple[slice, Iterator[Conditional]]]:
        """Blocks of rows, and for each the distribution of y at chunks of draws."""
        run, num_rows = self._run, len(self._run.rows[0])
        kept = kept_of_row * num_rows
        if kept > self._memory - run.fixed:
            needed, least = run.working + run.fixed + kept, run.at_one_row + run.fixed
            raise OptionError(
                beyond(len(run.draws), num_rows, needed, self._memory, 0, least=least)
            )
        run = replace(run, fixed=run.fixed + kept)
        for some in run.by_rows(self._memory, beside=self._beside):
            fn, _ = self._chunks.observed(some)
            size = len(some.rows[0])
            parts = some.parts(self._memory, beside=self._beside * size // num_rows)
            given = (Conditional(fn, t, self._units, self._has_moments) for _, *t in parts)
            yield slice(some.first_row, some.first_row + size), given


def log_likelihoods(chunks: Chunks, draws: Draws, batch: Batch, params: Params) -> Pass:
    """A pass that gives log p(y_n | x_n, z_s) ``[S, N]``."""

    def log_likelihood(z: Tensor, rows: Rows, params: Params) -> tuple[Tensor, ...]:
        return (chunks.program.log_likelihood(z, Batch(*rows), params),)

    return chunks.over("log likelihood", log_likelihood, draws, batch, params)


def log_mean(parts: Iterable[Tensor]) -> RunningLogMean:
    """The log of the mean of densities that come in chunks ``[s, N]`` of draws."""
    found = RunningLogMean()
    for part in parts:
        found.add(part)
    return found


def entropy(probs: Float[Tensor, "*N C"]) -> Float[Tensor, "*N"]:
    """Entropy of class probabilities, nats."""
    value: Tensor = torch.special.entr(probs).sum(-1)
    return value


def _moments(parts: Iterable[Conditional]) -> dict[str, RunningMoments]:
    moments: defaultdict[str, RunningMoments] = defaultdict(RunningMoments)
    for part in parts:
        if part.is_number:
            moments["means"].add(part.means())
            moments["variances"].add(part.variances())
        else:
            probs = part.class_probs()
            moments["class_probs"].add(probs)
            moments["entropies"].add(entropy(probs))
    return dict(moments)
