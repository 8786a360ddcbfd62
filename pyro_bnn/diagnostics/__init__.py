"""Diagnostics: convergence, calibration, scores, distance to a reference, simulated data."""

from pyro_bnn.diagnostics.calibration import (
    Coverage,
    Reliability,
    binomial_band,
    coverage,
    ece,
    ece_floor,
    pit,
    reliability_curve,
)
from pyro_bnn.diagnostics.convergence import FunctionConvergence, function_convergence
from pyro_bnn.diagnostics.khat import khat, khat_threshold
from pyro_bnn.diagnostics.pruning import PrunedPosterior, prune, signal_to_noise
from pyro_bnn.diagnostics.ranking import PairedDifference, Ranked, paired_difference, rank
from pyro_bnn.diagnostics.reference import (
    ReferenceDistance,
    SdRatio,
    reference_distance,
    sd_ratio,
    w1,
)
from pyro_bnn.diagnostics.rejection import (
    ClassUncertainty,
    RejectionCurve,
    class_uncertainty,
    rejection_curve,
)
from pyro_bnn.diagnostics.sbc import simulation_based_calibration
from pyro_bnn.diagnostics.scores import (
    accuracy,
    brier,
    crps,
    log_score,
    log_score_error,
    moment_matched_log_score,
    rmse,
)
from pyro_bnn.diagnostics.simulation_probabilities import SimulationProbabilities
from pyro_bnn.diagnostics.simulation_ranks import SimulationRanks
from pyro_bnn.diagnostics.symmetry import symmetry_test
from pyro_bnn.diagnostics.trend import Trend, objective_trend
from pyro_bnn.diagnostics.vsbc import variational_calibration

__all__ = [
    "ClassUncertainty",
    "Coverage",
    "FunctionConvergence",
    "PairedDifference",
    "PrunedPosterior",
    "Ranked",
    "ReferenceDistance",
    "RejectionCurve",
    "Reliability",
    "SdRatio",
    "SimulationProbabilities",
    "SimulationRanks",
    "Trend",
    "accuracy",
    "binomial_band",
    "brier",
    "class_uncertainty",
    "coverage",
    "crps",
    "ece",
    "ece_floor",
    "function_convergence",
    "khat",
    "khat_threshold",
    "log_score",
    "log_score_error",
    "moment_matched_log_score",
    "objective_trend",
    "paired_difference",
    "pit",
    "prune",
    "rank",
    "reference_distance",
    "rejection_curve",
    "reliability_curve",
    "rmse",
    "sd_ratio",
    "signal_to_noise",
    "simulation_based_calibration",
    "symmetry_test",
    "variational_calibration",
    "w1",
]
