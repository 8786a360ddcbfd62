"""Numbers of classifiers, each with the column that shows it; errors are of `estimate`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from pyro_bnn.diagnostics.scores import accuracy, brier
from pyro_bnn.diagnostics.trust.calibration_error import (
    classwise_ece,
    equal_mass_ece,
    smooth_ece,
)
from pyro_bnn.diagnostics.trust.selective import SelectiveRisk, selective_risk
from pyro_bnn.plotting.numbers import number, percent, with_error
from pyro_bnn.report.beyond.scored import LabelledRows
from pyro_bnn.report.tables.metric import Metric

NATS = "nats a row"


def estimate(value: float, *, se: float) -> str:
    """A number with its error."""
    return with_error(value, se)


def share(value: float, *, se: float) -> str:
    """A share with its error."""
    text = percent(value, 2)
    return f"{text} ± {percent(se, 2)}" if se == se else text


def gap(value: float, *, se: float) -> str:
    """A paired difference with its error; blank for the method that others differ from."""
    return with_error(value, se) if value else ""


def over_seeds(error: float) -> str:
    """An error of fits of other seeds."""
    return number(error, 2)


def mean_log_score(rows: LabelledRows) -> float:
    """Mean log probability of the observed class."""
    return float(rows.log_score.mean())


def of_probs(measure: Callable[..., Any]) -> Callable[[LabelledRows], float]:
    """The mean over rows of what the probabilities and the classes have."""
    return lambda rows: float(np.mean(measure(rows.probs, rows.labels)))


def rejection(rows: LabelledRows) -> SelectiveRisk:
    """Errors over shares of rows kept by entropy."""
    return selective_risk(rows.entropy, rows.probs.argmax(1) == rows.labels)


def augrc(rows: LabelledRows) -> float:
    """Joint risk over shares of rows kept."""
    return rejection(rows).augrc


def aurc(rows: LabelledRows) -> float:
    """Error rate over shares of rows kept."""
    return rejection(rows).aurc


estimated = partial(Metric, text=estimate)
"""A number that has an error."""
SCORE = estimated("log_score", mean_log_score, "log score",
                  "Mean log probability of the observed class.", unit=NATS)  # fmt: skip
GAP = Metric("log_score_gap", None, "to the best",
             "Paired difference to the method with the highest log score.", unit=NATS,
             text=gap)  # fmt: skip
SEEDS = Metric("log_score_seeds_se", None, "over seeds",
               "The part of the error of fits of other seeds; none of one fit.", unit=NATS,
               text=over_seeds)  # fmt: skip
ACCURACY = Metric("accuracy", of_probs(accuracy), "accuracy", text=share)
BRIER = estimated("brier", of_probs(brier), "Brier score", "0 to 2, lower is better.")
ECE = estimated("ece", of_probs(equal_mass_ece), "ECE",
                "Calibration error of the largest probability, equal-mass bins.")  # fmt: skip
FLOOR = Metric("floor", None, "floor", "About what ECE is where the probabilities are right.")
AUGRC = estimated("augrc", augrc, "AUGRC",
                  "Joint risk over shares of rows kept by entropy; lower is better.")  # fmt: skip

ROWS = (SCORE, GAP, SEEDS, ACCURACY, BRIER, ECE, FLOOR, AUGRC)
CALIBRATION = (
    ECE, FLOOR,
    estimated("smooth_ece", of_probs(smooth_ece), "smooth ECE",
              "The same without bins, smoothed by its own width."),
    Metric("smooth_floor", None, "its floor", "About what smooth ECE is where they are right."),
    estimated("classwise_ece", of_probs(classwise_ece), "class-wise ECE",
              "Mean over classes of each one's error."),
    Metric("debiased_ece2", None, "debiased ECE squared",
           "About 0, on either side, if calibrated."),
    Metric("debiased_ece2_sd", None, "its sd by chance", "Its scatter where they are right."),
    Metric("skce", None, "SKCE", "Squared kernel error, first 1,000 rows; about 0 if calibrated."),
    estimated("temperature", None, "temperature",
              "The best one on one half of the rows, mean of both halves; above 1: too sure."),
    estimated("temperature_gain", None, "its gain", "On the other half.", unit=NATS),
)  # fmt: skip
REJECTION = (
    ACCURACY, AUGRC, replace(GAP, key="augrc_gap", unit=""),
    Metric("augrc_random", None, "at random"), Metric("augrc_best", None, "at best"),
    estimated("aurc", aurc, "AURC", "Mean error rate over shares kept."),
)  # fmt: skip
UNKNOWN = (
    estimated("auroc", None, "AUROC"),
    Metric("auroc_gap", None, "to the best", "Paired.", text=gap),
    estimated("fpr95_known", None, "FPR95, known found",
              "Unknown rows kept where 95 % of the known are (OpenOOD's)."),
    estimated("fpr95_unknown", None, "FPR95, unknown found",
              "Known rows refused where 95 % of the unknown are (TorchUncertainty's)."),
)  # fmt: skip
ATTACKED = (
    estimated("before", None, "before", "Log score of the rows as they are.", unit=NATS),
    estimated("control", None, "at random", "Moved by up to as much, with random signs.",
              unit=NATS),
    estimated("moved", None, "attacked", "Moved up the gradient of the mean over draws.",
              unit=NATS),
    estimated("lost", None, "attack less random", "Paired.", unit=NATS),
    Metric("before_accuracy", None, "accuracy before", text=share),
    Metric("control_accuracy", None, "at random", text=share),
    Metric("moved_accuracy", None, "attacked", text=share),
)  # fmt: skip
OF_REFERENCE = (
    Metric("agreement", None, "agreement",
           "Share of rows whose likeliest class is the reference's.", text=share),
    estimated("total_variation", None, "total variation",
              "Half the sum over classes of the differences of probabilities; 0 where equal."),
)  # fmt: skip
NEVER_RANKED = "Shown beside their errors, never ranked by; the floor is of the calibration error."

RESAMPLED = (SCORE, ACCURACY, BRIER, ECE, AUGRC)
"""Numbers of the test rows and of corrupted ones."""
OF_TEST_ROWS = (
    *RESAMPLED,
    *(m for m in (*CALIBRATION, REJECTION[-1]) if m.value and m not in RESAMPLED),
)
"""Numbers of the test rows."""
