"""Passes over draws and rows that give the distribution of y: stored, or its moments alone."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float
from torch import Tensor

from pyro_bnn.data import Standardiser
from pyro_bnn.errors import OptionError
from pyro_bnn.memory import beyond
from pyro_bnn.predictive.conditional import COPIES, Conditional, at_rows
from pyro_bnn.predictive.draws import Draws
from pyro_bnn.predictive.map_draws import Chunks, Pass, Rows
from pyro_bnn.predictive.moments import RunningLogMean, RunningMoments, entropy, log_mean
from pyro_bnn.predictive.prediction import Names, Prediction, StreamedPrediction
from pyro_bnn.program.program import Program
from pyro_bnn.program.random_state import derived_seed, isolated
from pyro_bnn.program.terms import Batch, Params

if TYPE_CHECKING:
    pass

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


def predict(
    program: Program,
    params: Params,
    z: Float[Tensor, "S Q"] | Draws,
    x: Tensor,
    *,
    seed: int,
    memory: int,
    target: Standardiser | None = None,
    has_moments: bool = True,
    chunks: Chunks | None = None,
    disk: bool = False,
    names: Names | None = None,
) -> Prediction:
    """Predict y at x from draws of the posterior, in chunks over draws and rows.

    Args:
        program: The model.
        params: Values of the model's point-estimated parameters.
        z: Draws ``[S, Q]``.
        x: Inputs ``[N, ...]`` in the model's units.
        seed: Seed of the draws of y.
        memory: Bound in bytes on results and intermediate results, draws of weights included.
            Beyond it the prediction keeps moments alone, or its draws in files.
        target: Carries y to the user's units, in the wider of its dtype and the model's; None
            leaves y in the model's units.
        has_moments: Whether the mixture over draws has a mean and sd; without, both are NaN.
        chunks: What was learned of the program in earlier calls.
        disk: Whether draws beyond the bound are kept in files.
        names: What the table of the prediction calls its rows and columns.

    Raises:
        DataError: If x holds NaN or infinite values.
        OptionError: If ``memory`` is no positive integer, or a single draw exceeds it.
        OutputError: If the disk has no room.
    """
    chunks = Chunks(program) if chunks is None else chunks
    draws = z if isinstance(z, Draws) else Draws.of(z)
    x = program.inputs(x)
    units = None if target is None else target.to(program.device)
    stream = derived_seed(seed, 1)  # z has the stream of seed
    with torch.no_grad(), isolated(stream):
        given = Predictive(
            chunks, draws, x, params, memory=memory, units=units, has_moments=has_moments
        )
        refusal = given.excess
        is_stored = refusal is None or disk
        if is_stored:
            f, whole = given.stored(disk=refusal is not None)
        else:
            moments = given.moments()

    def log_likelihood(y: Tensor) -> RunningLogMean:
        if given.is_number and target is not None:
            y = target.to("cpu").transform(y.cpu())  # before y is rounded to the model's dtype
        if given.is_number:
            y = y.to(device=program.device, dtype=program.dtype)
        batch = program.batch(x, y)
        with isolated(stream):
            if given.is_masked:
                blocks = log_likelihoods(chunks, draws, batch, params).by_rows(memory)
                found = RunningLogMean.joined(
                    [log_mean(part for (part,) in some.parts(memory)) for some in blocks]
                )
            else:
                found = log_mean(whole.log_prob(batch.y)) if is_stored else given.log_mean(batch.y)
        if units is not None and given.is_number:  # the density in the user's units
            found.shift(-units.scale.log().expand(given.num_outputs).sum())
        return found

    def target_log_likelihood(y: Tensor) -> Tensor:
        if target is not None:
            y = target.to("cpu").transform(y.cpu())
        batch = program.batch(x, y.to(device=program.device, dtype=program.dtype))
        densities = whole.target_log_prob(batch.y)
        return densities if units is None else densities - units.scale.log()

    if not is_stored:

        def on_disk() -> Prediction:
            return predict(
                program,
                params,
                draws,
                x,
                seed=seed,
                memory=memory,
                target=target,
                has_moments=has_moments,
                chunks=chunks,
                disk=True,
                names=names,
            )

        message = (
            f"{refusal}; moments and log_prob(y) need no draws in memory, quantile(q) writes them "
            "to a file, and with disk=True all are there"
        )
        return StreamedPrediction(moments, message, log_likelihood, on_disk, names)
    return Prediction(
        draws=lambda: whole.sample(stream),
        function_draws=f,
        means=(lambda: whole.whole(Conditional.means)) if given.is_number else None,
        variances=(lambda: whole.whole(Conditional.variances)) if given.is_number else None,
        class_probs=None if given.is_number else lambda: whole.whole(Conditional.class_probs),
        _log_likelihood=log_likelihood,
        is_discrete=given.is_discrete,
        _target_log_likelihood=target_log_likelihood if given.has_target_densities else None,
        names=names,
    )
