"""The distribution of y at new rows, given draws: whole, or by blocks of rows where it is large."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from pyro_bnn.data import Standardiser
from pyro_bnn.errors import OptionError
from pyro_bnn.predictive.conditional import Conditional
from pyro_bnn.predictive.draws import Draws
from pyro_bnn.predictive.map_draws import Chunks, Pass, RowTensors
from pyro_bnn.predictive.moments import log_mean
from pyro_bnn.predictive.prediction import Names, Prediction, StreamedPrediction
from pyro_bnn.priors.prior import tensors_of
from pyro_bnn.program.program import Program
from pyro_bnn.program.random_state import derived_seed, isolated
from pyro_bnn.program.terms import Batch, Params

KIND_ROWS = 63  # rows at which the kind of distribution is found; few other axes have this length
MOMENTS = 4  # numbers kept a row and output where draws are not kept


def log_likelihoods(chunks: Chunks, draws: Draws, batch: Batch, params: Params) -> Pass:
    """A pass that gives log p(y_n | x_n, z_s) ``[S, N]``."""

    def log_likelihood(z: Tensor, rows: RowTensors, params: Params) -> tuple[Tensor, ...]:
        return (chunks.program.log_likelihood(z, Batch(*rows), params),)

    return chunks.over("log likelihood", log_likelihood, draws, batch, params)


def _tensors(program: Program, z: Tensor, rows: RowTensors, params: Params) -> tuple[Tensor, ...]:
    return program.predictive_tensors(z, rows[0], params)


def predict(
    chunks: Chunks,
    params: Params,
    draws: Draws,
    x: Tensor,
    *,
    seed: int,
    memory: int,
    target: Standardiser | None = None,
    has_moments: bool = True,
    names: Names | None = None,
) -> Prediction:
    """Predict y at x from draws of the posterior, in chunks over draws and rows.

    Args:
        chunks: Of the model, with what was learned of it in earlier calls.
        params: Values of the model's point-estimated parameters.
        draws: Draws ``[S, Q]``.
        x: Inputs ``[N, ...]`` in the model's units.
        seed: Seed of the draws of y.
        memory: Bound in bytes on results and intermediate results, draws of weights included.
            Beyond it the prediction is by blocks of rows, and has no draws.
        target: Carries y to the user's units, in the wider of its dtype and the model's; None
            leaves y in the model's units.
        has_moments: Whether means and sds over draws are to be relied on; else they are NaN.
        names: What the table of the prediction calls its rows and columns.

    Raises:
        OptionError: If ``memory`` is no positive integer, or a single draw exceeds it, or all draws
            of a single row do; or all draws of all rows, where rows depend on each other.
    """
    program = chunks.program
    stream = derived_seed(seed, 1)  # z has the stream of seed

    with torch.no_grad(), isolated(stream):
        tensors = partial(_tensors, program)
        run = chunks.over("predictive", tensors, draws, (program.inputs(x),), params)
        of_y = _OfY(run, target, has_moments=has_moments)
    refusal = run.excess(memory, of_y.kept(run))
    if refusal is None:
        return of_y.at(run, stream, memory, names)
    left = memory - MOMENTS * of_y.bytes_of_row * run.num_rows
    of_draws = len(draws) * run.one.nbytes
    if of_draws <= left // 4:  # made once, for all blocks
        left, held = left - of_draws, draws.together().flatten(0, 1)
        run = replace(run, draws=replace(draws, blocks=lambda: iter((held,))))
    size = run.num_rows if left > 0 and chunks.are_rows_apart(run) else 0
    while size and run.at(0, size).excess(left, of_y.kept(run.at(0, size))):
        size //= 2
    if not size:
        raise OptionError(refusal)
    blocks = [run.at(i, i + size) for i in range(0, run.num_rows, size)]
    return StreamedPrediction(
        [partial(of_y.at, block, derived_seed(stream, block.first_row), left) for block in blocks],
        [block.num_rows for block in blocks],
        is_number=of_y.is_number,
        has_target_densities=of_y.has_target_densities,
        refusal=f"{refusal}; moments, quantiles and log_prob(y) need no draws of all rows",
        names=names,
    )


class _OfY:
    """What a look at one draw and a few rows tells of the distribution of y.

    Args:
        run: The pass over all draws and rows.
        target: Carries y to the user's units; None leaves it in the model's.
        has_moments: Whether means and sds over draws are to be relied on.

    Attributes:
        is_number: Whether y is a number, and no class.
        has_target_densities: Whether each of several targets has a density of its own.
        bytes_of_row: Of the mean of y at a row, given a draw.
    """

    def __init__(self, run: Pass, target: Standardiser | None, *, has_moments: bool) -> None:
        program = run.chunks.program
        self._program, self._target = program, target
        self._units = None if target is None else target.to(program.device)
        self._has_moments = has_moments
        some = run.rows[0][:KIND_ROWS]
        self._fn, self._is_masked = program.observed(run.one[0], some, run.params)
        tensors = [value.unsqueeze(0) for value in tensors_of(self._fn)]
        kind = Conditional(self._fn, tensors, len(some), self._units, has_moments)
        self.is_number, self._is_discrete = kind.is_number, kind.is_discrete
        likes = kind.means() if kind.is_number else kind.class_probs()  # [1, n, O] or [1, n, C]
        self._num_outputs = likes.shape[-1]
        self.bytes_of_row = self._num_outputs * likes.itemsize
        self.has_target_densities = not self._is_masked and kind.has_target_densities

    def kept(self, run: Pass) -> int:
        """Bytes of a draw with all that is made of it: y, and its mean and variance."""
        return run.stored + run.num_rows * (3 * self.bytes_of_row if self.is_number else 8)

    def at(self, run: Pass, seed: int, memory: int, names: Names | None = None) -> Prediction:
        """The prediction at the rows of a pass."""
        with torch.no_grad(), isolated(seed):
            f, *values = run.together(memory, kept=self.kept(run))
        given = Conditional(self._fn, values, run.num_rows, self._units, self._has_moments)

        return Prediction(
            draws=partial(given.sample, seed),
            function_draws=f,
            means=given.means if self.is_number else None,
            variances=given.variances if self.is_number else None,
            class_probs=None if self.is_number else given.class_probs,
            _log_likelihood=partial(
                self._log_likelihood, run if self._is_masked else given, run.rows[0], seed, memory
            ),
            is_discrete=self._is_discrete,
            is_normal=given.is_normal,
            _by_common_noise=partial(given.by_common_noise, seed),
            _target_log_likelihood=(
                partial(self._target_log_likelihood, given, run.rows[0])
                if self.has_target_densities
                else None
            ),
            names=names,
        )

    def _log_likelihood(
        self, given: Conditional | Pass, x: Tensor, seed: int, memory: int, y: Tensor
    ) -> Tensor:
        """Log densities ``[N]`` of y in the user's units, by its distribution or by the model."""
        with isolated(seed):
            rows = self._batch(x, y)
            if isinstance(given, Conditional):
                found = given.log_prob(rows.y)
            else:
                own = log_likelihoods(given.chunks, given.draws, rows, given.params)
                found = log_mean(own.together(memory))
        if self._units is not None and self.is_number:  # the density in the user's units
            found = found - self._units.scale.log().expand(self._num_outputs).sum()
        return found

    def _target_log_likelihood(self, given: Conditional, x: Tensor, y: Tensor) -> Tensor:
        with isolated():
            densities = given.target_log_prob(self._batch(x, y).y)
        return densities if self._units is None else densities - self._units.scale.log()

    def _batch(self, x: Tensor, y: Tensor) -> Batch:
        """Rows with their y, which is in the user's units."""
        if self.is_number:
            if self._target is not None:  # before y is rounded to the model's dtype
                y = self._target.to("cpu").transform(y.cpu())
            y = y.to(device=self._program.device, dtype=self._program.dtype)
        return self._program.batch(x, y)
