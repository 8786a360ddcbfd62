"""Numbers of classifiers on test rows, corrupted, unknown and attacked ones, with their errors."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from jaxtyping import Float, Int

from pyro_bnn.diagnostics.ranking import Ranked, rank
from pyro_bnn.diagnostics.trust.against_reference import (
    class_agreement,
    class_total_variation,
)
from pyro_bnn.diagnostics.trust.calibration_error import equal_mass_floor, smooth_ece_floor
from pyro_bnn.diagnostics.trust.out_of_distribution import auroc, fpr95
from pyro_bnn.diagnostics.trust.temperature_scaling import temperature_scaling
from pyro_bnn.errors import DataError
from pyro_bnn.report.beyond.estimate import (
    Estimate,
    Resampled,
    RowNumbers,
    mean_of,
    of_seeds,
    resampled,
    told_from,
    told_from_constant,
)
from pyro_bnn.report.beyond.images import Condition
from pyro_bnn.report.beyond.metrics import ACCURACY, OF_TEST_ROWS, RESAMPLED, SCORE
from pyro_bnn.report.beyond.scored import Scored, of_pairs
from pyro_bnn.report.evaluation.units import to_numpy
from pyro_bnn.report.tables.metric import Metric, value_of

if TYPE_CHECKING:
    import pandas as pd

    from pyro_bnn.data.split import Split

NAN = float("nan")

TEST, UNKNOWN, MOVED, CONTROL = "test", "unknown", "moved", "control"
Fit: TypeAlias = Mapping[str, Scored]
"""What one posterior says of rows by what these are: the ``TEST`` rows, those of a condition by its
name, ``UNKNOWN`` inputs, rows ``MOVED`` against the method, and by as much at random, ``CONTROL``.
"""
Samples: TypeAlias = Mapping[str, Mapping[str, Resampled]]
"""Numbers by method and name."""


class TrustNumbers:
    """Classifiers on test rows, corrupted, unknown and attacked ones.

    Methods are RANKED by the log score only; all else is shown with its error, and the paired
    difference to the best.

    Attributes:
        names: Methods, the highest log score on the test rows first.
        split: The data.
        ood_name: Of the unknown inputs; None without.
        conditions: Corruptions; none without.
        epsilon: Step of the attack in units of the largest pixel; None without.
        reference: Probabilities ``[N, C]`` of a reference for the test rows; None without.
        reference_name: Its name, as text.
        num_draws: Draws of every method.
        labels: Classes of the test rows ``[N]``.
        fits: What the fits of each method say.
        ranking: By the log score of the test rows.
        shifted_ranking: By the mean log score over the corruptions; none without.
    """

    def __init__(
        self,
        split: Split,
        fits: Mapping[str, Sequence[Fit]],
        *,
        num_draws: int,
        conditions: Sequence[Condition] = (),
        ood_name: str | None = None,
        epsilon: float | None = None,
        reference: Float[np.ndarray, "N C"] | None = None,
        reference_name: str = "",
    ) -> None:
        self.split = split
        self.num_draws = num_draws
        self.conditions = tuple(conditions)
        self.ood_name, self.epsilon = ood_name, epsilon
        self.reference, self.reference_name = reference, reference_name
        self.labels = to_numpy(split.test.y).astype(int)
        self.ranking = _ranking(fits, [TEST])
        self.names = tuple(place.name for place in self.ranking)
        self.fits = {name: tuple(fits[name]) for name in self.names}
        shifted = [condition.name for condition in self.conditions]
        self.shifted_ranking = _ranking(self.fits, shifted) if shifted else []

    @property
    def num_fits(self) -> int:
        """Largest number of fits of a method."""
        return max(map(len, self.fits.values()))

    @property
    def noun(self) -> str:
        """``"images"`` where rows have axes of pixels, or are taken for images."""
        taken = self.conditions or self.ood_name is not None or self.epsilon is not None
        return "images" if taken or self.split.test.x.ndim > 2 else "rows"

    @cached_property
    def table(self) -> pd.DataFrame:
        """Numbers of the test rows: a row a method, each with its error in ``<number>_se``.

        ``log_score_gap`` is the paired difference to the first, and ``augrc_gap_told`` from how
        many of its errors on ``augrc_gap`` is told, of all pairs at once; ``floor`` and
        ``smooth_floor`` are about what ``ece`` and ``smooth_ece`` are where the probabilities are
        right, and ``debiased_ece2_sd`` is what ``debiased_ece2`` scatters by; ``temperature`` is
        found on one half of the rows and ``temperature_gain``, in nats a row, is what it gains on
        the other, both ways. With a reference, ``agreement`` is the share of rows of the same
        likeliest class, and ``total_variation`` the mean distance of the probabilities.
        """
        rows = len(self.labels)
        samples = self._samples(OF_TEST_ROWS, TEST, self.labels)
        numbers = _compared(samples)
        told = told_from([of["augrc"] for of in samples.values()])[0]
        for limit, (name, own) in zip(told, self.fits.items(), strict=True):
            error = 1 - numbers[name]["accuracy"]
            tests = [fit[TEST] for fit in own]
            scaled = [_scaled(test, self.labels) for test in tests]
            gain = resampled([_mean_of(gains) for *_, gains in scaled], rows).estimate
            temperatures = np.array([t for t, *_ in scaled])
            temperature = Estimate(
                float(temperatures.mean()),
                float(np.mean([error for _, error, _ in scaled])),  # of the same images
                of_seeds(temperatures),
            )
            pairs = [of_pairs(test, self.labels) for test in tests]
            numbers[name] |= {key: float(np.mean([of[key] for of in pairs])) for key in pairs[0]}
            numbers[name] |= {
                "floor": _floor(tests),
                "smooth_floor": float(np.mean([smooth_ece_floor(test.probs) for test in tests])),
                "augrc_gap_told": limit,
                "augrc_random": error / 2,
                "augrc_best": error**2 / 2,
                "fits": len(own),
            }
            numbers[name] |= _pair("temperature", temperature) | _pair("temperature_gain", gain)
            numbers[name] |= self._from_reference(name, tests)
        return _frame(numbers)

    def _from_reference(self, name: str, tests: Sequence[Scored]) -> dict[str, float]:
        """Agreement and total variation, with errors; none of the reference itself."""
        if self.reference is None:
            return {}
        numbers: dict[str, float] = {}
        kinds = {"agreement": class_agreement, "total_variation": class_total_variation}
        for key, measure in kinds.items():
            estimate = Estimate(NAN, NAN)
            if name != self.reference_name:
                each = [_mean_of(measure(test.probs, self.reference)) for test in tests]
                estimate = resampled(each, len(self.labels)).estimate
            numbers |= _pair(key, estimate)
        return numbers

    @cached_property
    def shifted(self) -> pd.DataFrame:
        """The same numbers under corruption: the mean over kinds and severities of each."""
        if not self.conditions:
            return _frame({})
        samples = {
            name: {
                number.key: mean_of([of[name][number.key] for of in self._under_each])
                for number in RESAMPLED
            }
            for name in self.names
        }
        numbers = _compared(samples)
        for name, own in self.fits.items():
            numbers[name]["floor"] = _floor(fit[c.name] for fit in own for c in self.conditions)
        return _frame(numbers).loc[[place.name for place in self.shifted_ranking]]

    @cached_property
    def by_condition(self) -> pd.DataFrame:
        """Numbers of each corruption: a row a kind, severity and method."""
        import pandas as pd

        rows = []
        for condition, samples in zip(self.conditions, self._under_each, strict=True):
            for name, numbers in _compared(samples).items():
                where = {"kind": condition.kind, "severity": condition.severity, "method": name}
                floor = _floor(fit[condition.name] for fit in self.fits[name])
                rows.append(where | numbers | {"floor": floor})
        return pd.DataFrame(rows)

    @cached_property
    def _under_each(self) -> list[Samples]:
        """Numbers under each corruption, on the same resamples of the images."""
        return [
            self._samples(RESAMPLED, condition.name, self.labels[: len(condition.x)])
            for condition in self.conditions
        ]

    @cached_property
    def unknown(self) -> pd.DataFrame:
        """How well scores tell unknown inputs apart: a row a method and score that it has.

        ``auroc`` and both FPR at 95 %, named by what is taken as positive, with errors over images
        of both data sets; ``auroc`` is told from 0.5 from ``auroc_told`` of its errors on;
        ``auroc_gap`` is paired to the best method by the same score, and told from
        ``auroc_gap_told`` of its errors on.
        """
        import pandas as pd

        if self.ood_name is None:
            return pd.DataFrame()
        known = len(self.labels)
        kinds = {
            "auroc": auroc,
            "fpr95_known": lambda a, b: fpr95(a, b, positive="known"),
            "fpr95_unknown": lambda a, b: fpr95(a, b, positive="unknown"),
        }
        rows = []
        first = next(iter(self.fits.values()))[0]
        for score in dict.fromkeys(
            s for (fit, *_) in self.fits.values() for s in fit[TEST].novelty
        ):
            fits = {name: own for name, own in self.fits.items() if score in own[0][TEST].novelty}
            of = {
                name: {
                    kind: resampled(
                        [_told_apart(fit, score, measure, known) for fit in own],
                        known,
                        len(first[UNKNOWN].probs),
                    )
                    for kind, measure in kinds.items()
                }
                for name, own in fits.items()
            }
            best = max(of, key=lambda name: of[name]["auroc"].estimate.value)
            every = [one["auroc"] for one in of.values()]
            alone, told = told_from_constant(every), told_from(every)[[*fits].index(best)]
            for place, name in enumerate(fits):
                row: dict[str, Any] = {"method": name, "score": score}
                for kind, one in of[name].items():
                    row |= _pair(kind, one.estimate)
                gap = of[name]["auroc"].minus(of[best]["auroc"])
                row |= _pair("auroc_gap", gap if name != best else Estimate(0.0, 0.0))
                row |= {"auroc_told": alone[place], "auroc_gap_told": told[place]}
                rows.append(row)
        return pd.DataFrame(rows)

    @cached_property
    def attacked(self) -> pd.DataFrame:
        """Log scores and accuracy of the attacked rows, and where they were moved at random."""
        if self.epsilon is None:
            return _frame({})
        rows: dict[str, dict[str, float]] = {}
        first = next(iter(self.fits.values()))[0]
        y = self.labels[: len(first[MOVED].probs)]
        by_key = {"before": TEST, "control": CONTROL, "moved": MOVED}
        every = {key: self._samples((SCORE, ACCURACY), where, y) for key, where in by_key.items()}
        for name in self.names:
            row: dict[str, float] = {}
            for key, samples in every.items():
                row |= _pair(key, samples[name]["log_score"].estimate)
                row |= _pair(f"{key}_accuracy", samples[name]["accuracy"].estimate)
            moved, control = (every[key][name]["log_score"] for key in ("moved", "control"))
            rows[name] = row | _pair("lost", moved.minus(control))
        return _frame(rows)

    def _samples(self, numbers: Sequence[Metric], where: str, y: Int[np.ndarray, " N"]) -> Samples:
        """Numbers of every method, of the first rows of some, whose classes are given."""
        return {
            name: {
                number.key: resampled([_on(fit[where], number, y) for fit in own], len(y))
                for number in numbers
            }
            for name, own in self.fits.items()
        }


def _compared(samples: Samples) -> dict[str, dict[str, float]]:
    """Of every method each number with its error, and its paired difference to the best.

    The best is by the log score, whatever the number.
    """
    best = max(samples, key=lambda name: samples[name]["log_score"].estimate.value)
    numbers: dict[str, dict[str, float]] = {}
    for name, own in samples.items():
        numbers[name] = {}
        for key, one in own.items():
            numbers[name] |= _pair(key, one.estimate)
            numbers[name][f"{key}_seeds_se"] = one.estimate.seeds_error
            gap = one.minus(samples[best][key])
            numbers[name] |= _pair(f"{key}_gap", gap if name != best else Estimate(0.0, 0.0))
    return numbers


def _ranking(fits: Mapping[str, Sequence[Fit]], where: Sequence[str]) -> list[Ranked]:
    r"""By the mean over fits of each row's log score; the errors over seeds are those of draws.

    A row's score is the mean over the sets of rows that are named.

    .. math:: s^2 = \frac{1}{\nu} \sum_k (R_k - 1)\, s_k^2, \qquad \nu = \sum_k (R_k - 1), \qquad
        \mathrm{mc}_k^2 = \max(s^2, s_k^2) / R_k

    for the variance :math:`s_k^2` of the mean score over the fits of a method; a single fit takes
    that of the others, and has none where all are single. Of simulated pages of equal methods at
    most 5 % tell any apart, from two fits each on, and where one method scatters three times as
    much as the others; but 12 % of two methods with two fits each where one alone scatters: then
    there is one degree of freedom in place of two.
    """
    scores = {
        name: [np.mean([fit[one].log_score for one in where], axis=0) for fit in own]
        for name, own in fits.items()
    }
    with np.errstate(invalid="ignore"):  # impossible rows: NaN
        own = {n: float(np.var([f.mean() for f in s], ddof=1)) for n, s in scores.items() if s[1:]}
    own = {name: variance for name, variance in own.items() if math.isfinite(variance)}
    free = sum(len(scores[name]) - 1 for name in own)
    pooled = sum((len(scores[name]) - 1) * own[name] for name in own) / max(free, 1)
    return rank(
        {name: np.mean(each, axis=0) for name, each in scores.items()},
        {n: math.sqrt(max(pooled, own.get(n, 0.0)) / len(each)) for n, each in scores.items()},
        free or math.inf,
    )


def _on(scored: Scored, number: Metric, y: Int[np.ndarray, " N"]) -> Callable[[RowNumbers], float]:
    return lambda rows: float(value_of(number.value, scored.at(rows, y)))


def _mean_of(values: Float[np.ndarray, " N"]) -> Callable[[RowNumbers], float]:
    return lambda rows: float(values[rows].mean())


def _told_apart(
    fit: Fit, score: str, measure: Callable[..., float], num_known: int
) -> Callable[[RowNumbers], float]:
    known, unknown = fit[TEST].novelty[score], fit[UNKNOWN].novelty[score]
    return lambda rows: measure(
        known[rows[rows < num_known]], unknown[rows[rows >= num_known] - num_known]
    )


def _floor(every: Iterable[Scored]) -> float:
    """About what the calibration error is where the probabilities are right, mean over several."""
    return float(np.mean([equal_mass_floor(scored.probs) for scored in every]))


def _scaled(
    scored: Scored, y: Int[np.ndarray, " N"]
) -> tuple[float, float, Float[np.ndarray, " N"]]:
    """Mean temperature of two halves, its error, and what each gains a row on the other one."""
    with np.errstate(divide="ignore"):
        logits = np.log(scored.probs)
    halves = np.arange(len(y)) % 2 == 0
    gains, scales = np.full(len(y), np.nan), []
    if len(y) < 2:  # a half would be empty
        return NAN, NAN, gains
    for half in (halves, ~halves):
        try:
            scale = temperature_scaling(logits[half], y[half])
        except DataError:  # no temperature is best: every row is right, or one impossible
            return NAN, NAN, gains
        scales.append(scale)
        other = np.flatnonzero(~half)
        with np.errstate(divide="ignore"):
            after = np.log(scale.apply(logits[other])[np.arange(len(other)), y[other]])
        gains[other] = after - logits[other, y[other]]
    one, two = scales
    mean = (one.temperature + two.temperature) / 2
    return mean, math.hypot(one.error, two.error) / 2, gains


def _pair(key: str, estimate: Estimate) -> dict[str, float]:
    return {key: estimate.value, f"{key}_se": estimate.error}


def _frame(numbers: Mapping[str, Mapping[str, float]]) -> pd.DataFrame:
    import pandas as pd

    table = pd.DataFrame.from_dict(numbers, orient="index")
    table.index.name = "method"
    return table
