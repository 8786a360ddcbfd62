"""Rules on calibration, each against data that a method's own posterior expects.

Rows share one draw of the function, so bands are simulated: all rows of y from one draw of the
posterior. An exact posterior is called wrong in at most one of a hundred reports by each rule.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from pyro_bnn.diagnostics.bands import BAND_PROBABILITY
from pyro_bnn.diagnostics.calibration import PITHistogram
from pyro_bnn.plotting.numbers import MINUS, number, percent
from pyro_bnn.report.evaluation.evaluate import Evaluation
from pyro_bnn.report.evaluation.held_out import LEVEL
from pyro_bnn.report.evaluation.likelihood_checks import LEVEL_OF_THIRDS
from pyro_bnn.report.evaluation.shared_models import same_model
from pyro_bnn.report.verdicts.advice import advised, sentence, together
from pyro_bnn.report.verdicts.verdict import PREDICTIONS, Judged, Said, VerdictRule

OF_ITSELF = (
    f"what {percent(BAND_PROBABILITY, 0)} of data sets drawn from the method's own posterior give, "
    "all rows from one draw of its function"
)

OTHER_NOISE = (
    "take likelihoods.HeteroscedasticNormal (--likelihood heteroscedastic-normal), or fit the "
    "logarithm of a positive target"
)
POSITIVE = (
    "Fit the logarithm of a target without zeros, take likelihoods.Poisson for counts, or write a "
    "Pyro model with a likelihood of positive numbers"
)


@VerdictRule("coverage", "95 % coverage outside what the method's own posterior allows",
             "Look at the likelihood and its noise scale, or try a richer posterior",
             short="intervals of y too narrow or too wide", against=PREDICTIONS).of_all  # fmt: skip
def coverage(judged: Judged) -> Iterator[Said]:
    """Intervals that hold too few or too many observations; methods with one fault together."""
    for too_few in (True, False):
        parts, group = [], []
        for entry in judged.entries:
            own = entry.held_out.coverage
            if own is None or own.consistent or (own.observed < own.low) is not too_few:
                continue
            group.append(entry)
            band = f"{percent(own.low)} to {percent(own.high)}"
            parts.append(f"{entry.name} {percent(own.observed)} (allowed: {band})")
            num_points = own.num_points
        if group:
            yield (
                f"{percent(LEVEL, 0)} intervals are too {'narrow' if too_few else 'wide'}: of "
                f"{num_points:,} test targets they cover {', '.join(parts)}. Allowed is "
                f"{OF_ITSELF}. {_cause(group, judged.judge)}.",
                group,
            )


@VerdictRule("pit", "PIT histogram outside what the method's own posterior allows",
             "Look at the likelihood, or try a richer posterior", short="PIT values not uniform",
             against=PREDICTIONS).of_all  # fmt: skip
def pit(judged: Judged) -> Iterator[Said]:
    """Histograms of PIT values with a bar outside the band, where coverage shows no fault."""
    group, parts = [], []
    for entry in judged.entries:
        found, covered = entry.held_out.pit_histogram, entry.held_out.coverage
        if found and covered and covered.consistent and found.outside.any():
            group.append(entry)
            parts.append(f"{entry.name} has {_worst_bar(found)}")
    if group:
        yield (
            f"PIT values are not uniform: {'; '.join(parts)}. Allowed is {OF_ITSELF}, all bars "
            "together; a slope of the bars is a bias, a bowl intervals too narrow, a hump too "
            f"wide. {_cause(group, judged.judge)}.",
            group,
        )


def _other_noise(entry: Evaluation) -> str:
    """What to try; another noise scale only where there is one for all rows."""
    scores = entry.held_out
    assert scores.mean is not None
    if scores.function_draws.shape[-1] > scores.mean.shape[-1]:  # f has raw scales, too
        return "give the network more units, or fit the logarithm of a positive target"
    return OTHER_NOISE


@VerdictRule("noise by mean",
             "90 % coverage at small and at large predicted means further apart than "
             "the method's own posterior allows",
             sentence(OTHER_NOISE), short="errors change with the predicted mean",
             against=PREDICTIONS, advise=_other_noise).of_all  # fmt: skip
def by_mean(judged: Judged) -> Iterator[Said]:
    """Intervals too wide at one end of the predicted means and too narrow at the other."""
    for grows in (True, False):
        parts, group = [], []
        for entry in judged.entries:
            own = entry.held_out.by_mean
            if own is None or not own.is_uneven or (own.difference > 0) is not grows:
                continue
            group.append(entry)
            shares = ", ".join(percent(share) for share in own.shares)
            band = f"{percent(own.low)} to {percent(own.high)}".replace("-", MINUS)
            parts.append(f"{entry.name} {shares} (allowed for the first less the last: {band})")
        if group:
            yield (
                f"Errors {'grow' if grows else 'shrink'} with the predicted mean: by thirds of "
                f"the test rows, from the smallest means to the largest, "
                f"{percent(LEVEL_OF_THIRDS, 0)} intervals cover {'; '.join(parts)}. Allowed is "
                f"{OF_ITSELF}. {sentence(together({e.name: _other_noise(e) for e in group}))}.",
                group,
            )


@VerdictRule("below zero", "95 % intervals below zero for a target that never is", POSITIVE,
             short="intervals of y below zero").of_all  # fmt: skip
def below_zero(judged: Judged) -> Iterator[Said]:
    """Intervals that reach below zero, where no target does and some would have by chance."""
    found = [entry for entry in judged.entries if entry.below_zero > 0]
    if found:
        parts = ", ".join(f"{entry.name} {percent(entry.below_zero)}" for entry in found)
        yield (
            f"{percent(LEVEL, 0)} intervals reach below zero, which the target never does in "
            f"training or test rows: {parts} of the intervals. {POSITIVE}.",
            found,
        )


@VerdictRule("ece", "Calibration error above what the method's own posterior allows",
             "Look at the prior and the network, or try a richer posterior",
             short="probabilities not calibrated", against=PREDICTIONS).of_all  # fmt: skip
def ece(judged: Judged) -> Iterator[Said]:
    """Class probabilities whose calibration error exceeds what the posterior itself expects."""
    far = [entry for entry in judged.entries if entry.held_out.ece > entry.held_out.ece_high]
    if far:
        parts = "; ".join(
            f"{entry.name} {number(entry.held_out.ece)} (allowed: to "
            f"{number(entry.held_out.ece_high)}), mean confidence {_confidence(entry)}, accuracy "
            f"{percent(entry.held_out.accuracy)}"
            for entry in far
        )
        yield (
            f"Expected calibration error too large: {parts}. Allowed is {OF_ITSELF}. "
            f"{_cause(far, judged.judge)}.",
            far,
        )


def _cause(group: Sequence[Evaluation], reference: Evaluation | None) -> str:
    """Where to look: a fault that a converged reference shares is the model's, else the guide's.

    Without a reference of the same model the two are not told apart.
    """
    is_shared = reference is not None and all(
        same_model(entry.fit, reference.fit) for entry in group
    )
    if reference in group:
        return (
            f"The reference is among them, so look at {'the' if is_shared else 'its'} model "
            "(likelihood, noise scale, prior) before the approximation"
        )
    if reference is None or not is_shared:
        return (
            "The approximation or the model (likelihood, noise scale, prior) may be the cause: a "
            "converged reference of the same model, such as long NUTS chains, would tell"
        )
    return (
        f"The reference {reference.name}, of the same model, is not among them: look at the "
        f"approximation first, {advised(group, 'poor family')}"
    )


def _worst_bar(found: PITHistogram) -> str:
    """The bar that is furthest outside, in words."""
    beyond = np.maximum(found.low - found.counts, found.counts - found.high)
    bar = int(np.argmax(beyond / (found.high - found.low)))
    least, most = max(found.low[bar], 0), found.high[bar]
    return (
        f"{found.counts[bar]:,} rows in {number(found.edges[bar], 2)} to "
        f"{number(found.edges[bar + 1], 2)} (allowed: {int(np.ceil(least)):,} to {int(most):,})"
    )


def _confidence(entry: Evaluation) -> str:
    assert entry.held_out.probs is not None
    return percent(float(entry.held_out.probs.max(1).mean()))
