"""Held-out scores and calibration of one method, in the user's units."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float

from pyro_bnn.diagnostics.bands import BAND_PROBABILITY, simulated_pit, upper_limit
from pyro_bnn.diagnostics.calibration import (
    Coverage,
    PITDifference,
    PITHistogram,
    Reliability,
    coverage,
    covered_share,
    ece,
    pit,
    pit_difference,
    pit_histogram,
    reliability_curve,
    simulated_ece,
)
from pyro_bnn.diagnostics.rejection import class_uncertainty, rejection_curve
from pyro_bnn.diagnostics.scores import (
    accuracy,
    brier,
    crps,
    log_score_error,
    moment_matched_log_score,
    rmse,
)
from pyro_bnn.errors import BNNWarning
from pyro_bnn.plotting.numbers import MINUS
from pyro_bnn.report.evaluation.likelihood_checks import CoverageByMean, coverage_by_mean
from pyro_bnn.report.evaluation.units import Units, to_numpy

if TYPE_CHECKING:
    from pyro_bnn.data.dataset import Dataset
    from pyro_bnn.data.split import Split
    from pyro_bnn.posterior.protocol import PosteriorLike
    from pyro_bnn.predictive.prediction import Prediction

LEVEL = 0.95
ROWS_AT_ONCE = 4_096
POINT_TOLERANCE = 1e-5  # rounding differs between rows of one batch
NAN = float("nan")
NUMBERS_AT_ONCE = 1 << 22


@dataclass(frozen=True, kw_only=True)
class TargetScores:
    """Scores of one target on the test rows, in its units.

    Attributes:
        rmse: Of the predictive mean, or of the median where the mean does not exist.
        crps: Mean continuous ranked probability score.
        coverage: Of the central 95 % interval.
        log_score: Log of the mean density over draws of this target alone, every row ``[N]``,
            nats; None where it has no density of its own.
    """

    rmse: float
    crps: float
    coverage: Coverage
    log_score: Float[np.ndarray, " N"] | None = None


@dataclass(frozen=True, kw_only=True)
class HeldOut:
    """Scores on the test rows; NaN or None where one does not apply to the task.

    With several targets a point is a row for the log score, and an entry for all else; RMSE and
    CRPS over all of them are in sds of each, and ``targets`` has those of one alone in its units.

    Attributes:
        log_score: Log of the mean density over draws, every row ``[R]``, nats. Of a large table
            R, all test rows, is more than N, those of them at which all draws are kept; RMSE,
            accuracy and Brier score are of all, too.
        function_draws: Draws of the network output ``[S, N, F]``, standardised units.
        is_point: Whether all draws are one function (MAP, maximum likelihood).
        log_score_error: Monte Carlo error of the mean log score, of its draws; 0 for a point,
            for K functions of which the draws are as many of each, and in closed form.
        gaussian_log_score: Mean moment-matched log score: another number, never ranked.
        rmse: Of the predictive mean, or of the median where the mean does not exist.
        crps: Mean continuous ranked probability score.
        mean: Predictive means ``[N, O]``, or medians of the draws where means do not exist.
        interval: Ends of the central 95 % interval ``[2, N, O]``.
        pit: PIT values ``[M]``, M = N O.
        pit_histogram: Their counts, with the band of data drawn from the posterior itself.
        pit_difference: Their distribution function less the uniform one, with such a band.
        coverage: Of the central 95 % interval, with the band of such data.
        by_mean: Of the central 90 % interval by thirds of the rows, in order of their means; None
            for counts, whose noise grows by itself.
        negative: Share of the predictive draws of each target below zero ``[O]``.
        accuracy: Share of rows.
        brier: Mean Brier score, 0 to 2.
        probs: Predictive class probabilities ``[N, C]``.
        ece: Expected calibration error, 15 bins.
        ece_floor: Mean ECE over classes drawn from the posterior itself: of an exact posterior.
        ece_high: The ECE that an exact posterior exceeds once in a hundred times; NaN where it has
            too few draws to tell.
        reliability: Accuracy against confidence.
        rejection_area: Area under the accuracy-rejection curve by entropy.
        epistemic_share: Share of the predictive variance that is of the function, every row and
            target ``[N O]``, or every row ``[N]``; empty where a variance does not exist.
        targets: Scores of each of several targets; none where there is one.
        has_mean: Whether the predictive mean exists; Cauchy tails have none.
        notes: What limits the numbers.
    """

    log_score: Float[np.ndarray, " R"]
    function_draws: Float[np.ndarray, "S N F"]
    is_point: bool
    log_score_error: float = 0.0
    gaussian_log_score: float = NAN
    rmse: float = NAN
    crps: float = NAN
    mean: Float[np.ndarray, "N O"] | None = None
    interval: Float[np.ndarray, "2 N O"] | None = None
    pit: Float[np.ndarray, " M"] | None = None
    pit_histogram: PITHistogram | None = None
    pit_difference: PITDifference | None = None
    coverage: Coverage | None = None
    by_mean: CoverageByMean | None = None
    negative: Float[np.ndarray, " O"] = field(default_factory=lambda: np.zeros(0))
    accuracy: float = NAN
    brier: float = NAN
    probs: Float[np.ndarray, "N C"] | None = None
    ece: float = NAN
    ece_floor: float = NAN
    ece_high: float = NAN
    reliability: Reliability | None = None
    rejection_area: float = NAN
    epistemic_share: Float[np.ndarray, " E"] = field(default_factory=lambda: np.zeros(0))
    targets: tuple[TargetScores, ...] = ()
    has_mean: bool = True
    notes: tuple[str, ...] = ()


def held_out(
    posterior: PosteriorLike,
    split: Split,
    num_draws: int,
    seed: int,
    every_row: Dataset | None = None,
) -> HeldOut:
    """Scores a posterior on the test rows of a split.

    Args:
        posterior: Any posterior.
        split: Test rows in the standardised units of the model, with the way back.
        num_draws: Draws S of the function, the same for every method that is compared.
        seed: Seed of the draws.
        every_row: All test rows, where ``split`` has some of a large table.
    """
    scores = _scores_with_draws(posterior, split, num_draws, seed)
    if every_row is None or len(every_row) == len(split.test):
        return scores
    return _with_every_row(scores, posterior, every_row, Units.of(split), num_draws, seed)


def _with_every_row(
    scores: HeldOut,
    posterior: PosteriorLike,
    rows: Dataset,
    units: Units,
    num_draws: int,
    seed: int,
) -> HeldOut:
    """Log score, RMSE, accuracy and Brier score of all rows, read a block at a time."""
    log_scores, errors = [], []
    for start in range(0, len(rows), ROWS_AT_ONCE):
        some = rows.rows(range(start, min(start + ROWS_AT_ONCE, len(rows))))
        prediction = posterior.predict(some.x, num_samples=num_draws, seed=seed)
        log_scores.append(to_numpy(prediction.log_prob(some.y)).astype(float))
        y = to_numpy(some.y)
        if scores.probs is not None:
            probs = to_numpy(prediction.probs).astype(float)
            errors.append(np.stack([probs.argmax(1) == y, brier(probs, y)], 1))
        elif scores.has_mean:
            errors.append((_moments(prediction)[0] - y.reshape(len(some), -1)) ** 2)
    log_score = np.concatenate(log_scores)
    if scores.probs is None:
        log_score -= units.log_scale
    shown = len(scores.function_draws[0])
    note = f"calibration, CRPS and distances at {shown:,} of {len(rows):,} test rows, evenly spread"
    scores = dataclasses.replace(
        scores, log_score=log_score, notes=(*scores.notes, *_impossible_rows(log_score), note)
    )
    if not errors:
        return scores
    mean = np.concatenate(errors).mean(0)
    if scores.probs is not None:
        return dataclasses.replace(scores, accuracy=float(mean[0]), brier=float(mean[1]))
    scale = units.scale if len(units.scale) == 1 else 1.0
    return dataclasses.replace(scores, rmse=float(np.sqrt((mean * scale**2).mean())))


def _scores_with_draws(
    posterior: PosteriorLike, split: Split, num_draws: int, seed: int
) -> HeldOut:
    """All scores at rows of which all draws are kept."""
    prediction = posterior.predict(split.test.x, num_samples=num_draws, seed=seed)
    f = to_numpy(prediction.function_draws)
    log_score = to_numpy(prediction.log_prob(split.test.y)).astype(float)
    is_point = len(f) == 1 or bool(
        (np.ptp(f, axis=0) <= POINT_TOLERANCE * (1 + np.abs(f[0]))).all()
    )
    atoms, is_all = posterior.num_atoms, posterior.num_stored_draws in (None, num_draws)
    # as many draws of each function, which some of those in a file are not
    is_weighted = atoms is not None and is_all and num_draws % atoms == 0
    is_exact = is_point or is_weighted or prediction.has_exact_densities
    if split.task == "classification":
        scores = _score_classes(prediction, split, log_score, f, is_point)
    else:
        scores = _score_regression(prediction, split, log_score, f, is_point, seed)
    return dataclasses.replace(
        scores,
        log_score_error=0.0 if is_exact else _monte_carlo_error(posterior, split, num_draws, seed),
        notes=scores.notes + _impossible_rows(log_score),
    )


def _monte_carlo_error(posterior: PosteriorLike, split: Split, num_draws: int, seed: int) -> float:
    """Error of the mean log score over draws: of a Markov chain by its ESS, else independent."""
    log_likelihood = posterior.log_likelihood(
        split.test, num_samples=num_draws, seed=seed, group_by_chain=True
    )
    return log_score_error(to_numpy(log_likelihood), independent=not posterior.sample_stats)


def _impossible_rows(log_score: Float[np.ndarray, " N"]) -> tuple[str, ...]:
    rows = np.flatnonzero(np.isneginf(log_score))
    if not len(rows):
        return ()
    return (
        f"log score {MINUS}∞: the density of {len(rows)} of {len(log_score)} test rows is 0 to the "
        f"last digit of its dtype, first of row {rows[0]} (from 0); is it an outlier?",
    )


def _score_regression(
    prediction: Prediction,
    split: Split,
    log_score: Float[np.ndarray, " N"],
    f: Float[np.ndarray, "S N F"],
    is_point: bool,
    seed: int,
) -> HeldOut:
    units = Units.of(split)
    shape = (len(log_score), len(units.scale))  # [N, O]
    z = to_numpy(split.test.y).reshape(shape).astype(float)
    y = units.values(z).ravel()  # [N O]
    draws = units.values(to_numpy(prediction.draws).reshape(-1, *shape)).reshape(-1, y.size)
    z_mean, z_sd = (moment.reshape(shape) for moment in _moments(prediction))
    has_mean = not np.isnan(z_mean).any()
    has_sd = has_mean and not np.isnan(z_sd).any()
    mean = units.values(z_mean) if has_mean else np.median(draws, axis=0).reshape(shape)
    gaussian = NAN
    if has_sd:
        matched = moment_matched_log_score(z_mean.ravel(), z_sd.ravel(), z.ravel())
        gaussian = float(matched.reshape(shape).sum(1).mean() - units.log_scale)
    values, simulated = pit(draws, y, seed=seed), simulated_pit(draws, y, seed=seed)
    covered, of_targets, own_crps = _coverage(values, simulated), None, crps(draws, y)
    if shape[1] > 1 and prediction.has_target_densities:
        of_targets = to_numpy(prediction.target_log_prob(split.test.y)) - np.log(units.scale)
    # over several targets the units of none: their sds, which weigh them alike
    sds = np.tile(units.scale, len(z)) if shape[1] > 1 else np.ones(y.size)
    tail = (1 - LEVEL) / 2
    # "weibull" puts quantile p at rank p (S + 1), as the PIT does: no shrinkage with few draws
    interval = np.quantile(draws, [tail, 1 - tail], axis=0, method="weibull")
    return HeldOut(
        log_score=log_score - units.log_scale,
        function_draws=f,
        is_point=is_point,
        gaussian_log_score=gaussian,
        rmse=rmse(mean.ravel() / sds, y / sds),
        crps=float((own_crps / sds).mean()),
        mean=mean,
        interval=interval.reshape(2, *shape),
        pit=values,
        pit_histogram=pit_histogram(values, simulated),
        pit_difference=pit_difference(values, simulated),
        coverage=covered,
        by_mean=None
        if split.train.target is None
        else coverage_by_mean(values.reshape(shape), simulated.reshape(-1, *shape), mean),
        negative=(draws.reshape(-1, *shape) < 0).mean((0, 1)),
        targets=tuple(  # each has every O-th of [N O]
            TargetScores(
                rmse=rmse(mean[:, o], y[o :: shape[1]]),
                crps=float(own_crps[o :: shape[1]].mean()),
                coverage=_coverage(values[o :: shape[1]], simulated[:, o :: shape[1]]),
                log_score=None if of_targets is None else of_targets[:, o],
            )
            for o in range(shape[1] if shape[1] > 1 else 0)
        ),
        epistemic_share=_share_of_variance(f[..., : shape[1]], z_sd, split),
        has_mean=has_mean,
        notes=_missing_moments(has_mean, has_sd)
        + _no_band("coverage", np.isnan(covered.low), len(draws)),
    )


def _coverage(pit: Float[np.ndarray, " M"], simulated: Float[np.ndarray, "S M"]) -> Coverage:
    return coverage(pit, LEVEL, covered_share(simulated, LEVEL))


def _moments(
    prediction: Prediction,
) -> tuple[Float[np.ndarray, "N O"], Float[np.ndarray, "N O"]]:
    """Predictive means and sds; NaN where they do not exist, which the notes say, not a warning."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", BNNWarning)
        return to_numpy(prediction.mean).astype(float), to_numpy(prediction.sd).astype(float)


def _missing_moments(has_mean: bool, has_sd: bool) -> tuple[str, ...]:
    if has_sd:
        return ()
    if has_mean:
        return ("the predictive sd does not exist or hangs on few draws: no Gaussian score",)
    return (
        "the predictive mean does not exist or hangs on few draws: RMSE is that of the predictive "
        "median, and there is no Gaussian score",
    )


def _no_band(what: str, is_missing: bool, num_draws: int) -> tuple[str, ...]:
    """Says that calibration is shown unchecked, where it is."""
    least = round(2 / (1 - BAND_PROBABILITY)) - 1
    text = f"{what} not checked: a band of 99 % needs {least} draws, and there are {num_draws}"
    return (text,) if is_missing else ()


def _score_classes(
    prediction: Prediction,
    split: Split,
    log_score: Float[np.ndarray, " N"],
    f: Float[np.ndarray, "S N F"],
    is_point: bool,
) -> HeldOut:
    y = to_numpy(split.test.y)
    probs = to_numpy(prediction.probs).astype(float)
    total = class_uncertainty(probs[None]).entropy
    simulated = to_numpy(prediction.draws)[..., 0]  # [S, N]
    errors = simulated_ece(probs, simulated)
    curve = reliability_curve(probs, y, simulated=simulated)
    return HeldOut(
        log_score=log_score,
        function_draws=f,
        is_point=is_point,
        accuracy=accuracy(probs, y),
        brier=float(brier(probs, y).mean()),
        probs=probs,
        ece=ece(probs, y),
        ece_floor=float(errors.mean()),
        ece_high=upper_limit(errors),
        reliability=curve,
        rejection_area=rejection_curve(total, probs.argmax(1) == y).area,
        epistemic_share=_share_of_classes(f, probs),
        notes=_no_band("reliability", bool(np.isnan(curve.low).all()), len(simulated)),
    )


def _share_of_variance(
    f: Float[np.ndarray, "S N O"], sd: Float[np.ndarray, "N O"], split: Split
) -> Float[np.ndarray, " M"]:
    """Variance of the mean of y given a draw, over the variance of y.

    None where that mean is not f itself, as of counts, or the variance does not exist.
    """
    if split.train.target is None or np.isnan(sd).any():
        return np.zeros(0)
    return np.asarray((f.var(0, dtype=float) / np.square(sd)).ravel().clip(max=1.0))


def _share_of_classes(
    f: Float[np.ndarray, "S N F"], probs: Float[np.ndarray, "N C"]
) -> Float[np.ndarray, " N"]:
    """The same of the indicators of all classes together, a few rows at a time."""
    found = np.concatenate([p.var(0).sum(-1) for p in class_blocks(f)])
    total = (probs * (1 - probs)).sum(-1)  # [N]
    share = np.divide(found, total, out=np.zeros_like(found), where=total > 0)
    return np.asarray(share.clip(max=1.0))


def marginals(
    f: Float[np.ndarray, "*batch F"], task: str, num_targets: int
) -> Float[np.ndarray, "*batch G"]:
    r"""What distances to a reference are measured on.

    The location of y for regression (the first O outputs; what follows are raw scales), and the
    class probabilities for classification, because logits are free up to a shift and saturate.

    Args:
        f: Network outputs, the last axis F.
        task: ``"regression"`` or ``"classification"``.
        num_targets: Number of targets O.

    Example:
        >>> marginals(np.zeros((1, 1)), "classification", 1), marginals(np.eye(2), "regression", 1)
        (array([[0.5]]), array([[1.],
               [0.]]))
    """
    from scipy import special

    if task != "classification":
        return np.asarray(f[..., :num_targets])
    return np.asarray(special.expit(f) if f.shape[-1] == 1 else special.softmax(f, axis=-1))


def class_draws(f: Float[np.ndarray, "S N F"]) -> Float[np.ndarray, "S N C"]:
    """Class probabilities of network outputs: of one output by the logistic function."""
    from scipy import special

    if f.shape[-1] > 1:
        return np.asarray(special.softmax(f, axis=-1))
    return np.concatenate([special.expit(-f), special.expit(f)], -1)


def class_blocks(f: Float[np.ndarray, "S N F"]) -> Iterator[Float[np.ndarray, "S n C"]]:
    """Class probabilities of draws of the logits in double precision, a few rows at a time."""
    at_once = max(1, NUMBERS_AT_ONCE // f[:, 0].size)
    for start in range(0, f.shape[1], at_once):
        yield class_draws(f[:, start : start + at_once].astype(float))
