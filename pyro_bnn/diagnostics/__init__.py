"""Is a posterior right, and are its predictions? Numbers from draws, and how sure they are."""

from pyro_bnn.diagnostics.agreement import PooledScore, between_share, pooled_score
from pyro_bnn.diagnostics.bands import (
    binomial_band,
    central_band,
    simulated_pit,
    simultaneous_band,
    upper_limit,
)
from pyro_bnn.diagnostics.calibration import (
    Coverage,
    PITDifference,
    PITHistogram,
    Reliability,
    coverage,
    covered_share,
    ece,
    ece_floor,
    pit,
    pit_difference,
    pit_histogram,
    reliability_curve,
    simulated_ece,
)
from pyro_bnn.diagnostics.chain_clusters import ChainClusters, chain_clusters
from pyro_bnn.diagnostics.convergence import (
    ChainChecks,
    FunctionConvergence,
    ebfmi,
    function_convergence,
    rhat_within,
)
from pyro_bnn.diagnostics.energy_error import mean_energy_variance, variance_bias
from pyro_bnn.diagnostics.gaussian_process.nngp import NNGP
from pyro_bnn.diagnostics.gaussian_process.regression import GaussianProcess
from pyro_bnn.diagnostics.khat import khat, khat_error, khat_threshold
from pyro_bnn.diagnostics.mean_field.distance import (
    MeanFieldDistance,
    gaussian_w2,
    mean_field_distance,
)
from pyro_bnn.diagnostics.mean_field.error import MeanFieldKL, kl_bias, mean_field_kl
from pyro_bnn.diagnostics.mean_field.gauss_newton import CurvatureMatrices, curvature_matrices
from pyro_bnn.diagnostics.mean_field.in_between import (
    MeanFieldNet,
    bound_ratio,
    dropout_variance,
    is_bounded,
    overconfidence,
    segment,
)
from pyro_bnn.diagnostics.mean_field.local_product import LocalProducts, local_products
from pyro_bnn.diagnostics.mean_field.matrix_moments import MatrixMoments
from pyro_bnn.diagnostics.mean_field.product_matrix import (
    matrix_moments,
    product_draws,
    product_moments,
)
from pyro_bnn.diagnostics.mean_field.pruning import PrunedPosterior, prune, signal_to_noise
from pyro_bnn.diagnostics.novelty import Novelty
from pyro_bnn.diagnostics.one_pass.feature_density import FeatureDensity
from pyro_bnn.diagnostics.one_pass.single_pass import DDU, Mahalanobis
from pyro_bnn.diagnostics.one_pass.sngp import SNGP
from pyro_bnn.diagnostics.one_pass.spectral_bound import bound_spectral_norms
from pyro_bnn.diagnostics.probes import Probes, probe_rows
from pyro_bnn.diagnostics.ranking import PairedDifference, Ranked, paired_difference, rank
from pyro_bnn.diagnostics.reference import (
    ReferenceDistance,
    reference_distance,
    w1,
)
from pyro_bnn.diagnostics.rejection import (
    ClassUncertainty,
    RejectionCurve,
    class_uncertainty,
    rejection_curve,
)
from pyro_bnn.diagnostics.row_by_row import RowByRow, mean_shift, sd_ratio
from pyro_bnn.diagnostics.scores import (
    accuracy,
    brier,
    crps,
    log_score,
    log_score_error,
    moment_matched_log_score,
    rmse,
)
from pyro_bnn.diagnostics.simulation.probabilities import SimulationProbabilities
from pyro_bnn.diagnostics.simulation.ranks import SimulationRanks
from pyro_bnn.diagnostics.simulation.sbc import simulation_based_calibration
from pyro_bnn.diagnostics.simulation.symmetry import symmetry_test
from pyro_bnn.diagnostics.simulation.vsbc import variational_calibration
from pyro_bnn.diagnostics.stacked_chains import stack_chains
from pyro_bnn.diagnostics.stacking import stacked_score, stacking_weights
from pyro_bnn.diagnostics.trend import Trend, objective_trend
from pyro_bnn.diagnostics.trust.against_reference import (
    class_agreement,
    class_total_variation,
)
from pyro_bnn.diagnostics.trust.attack import Attacked, fgsm
from pyro_bnn.diagnostics.trust.calibration_error import (
    classwise_ece,
    debiased_squared_ece,
    debiased_squared_ece_sd,
    equal_mass_ece,
    equal_mass_floor,
    skce,
    smooth_ece,
    smooth_ece_floor,
)
from pyro_bnn.diagnostics.trust.corruptions import corrupt
from pyro_bnn.diagnostics.trust.out_of_distribution import auroc, fpr95, novelty_scores
from pyro_bnn.diagnostics.trust.selective import SelectiveRisk, selective_risk
from pyro_bnn.diagnostics.trust.temperature_scaling import TemperatureScale, temperature_scaling
from pyro_bnn.infer.sgmcmc.temperature import Temperature, temperature_of

__all__ = [
    "DDU",
    "NNGP",
    "SNGP",
    "Attacked",
    "ChainChecks",
    "ChainClusters",
    "ClassUncertainty",
    "Coverage",
    "CurvatureMatrices",
    "FeatureDensity",
    "FunctionConvergence",
    "GaussianProcess",
    "LocalProducts",
    "Mahalanobis",
    "MatrixMoments",
    "MeanFieldDistance",
    "MeanFieldKL",
    "MeanFieldNet",
    "Novelty",
    "PITDifference",
    "PITHistogram",
    "PairedDifference",
    "PooledScore",
    "Probes",
    "PrunedPosterior",
    "Ranked",
    "ReferenceDistance",
    "RejectionCurve",
    "Reliability",
    "RowByRow",
    "SelectiveRisk",
    "SimulationProbabilities",
    "SimulationRanks",
    "Temperature",
    "TemperatureScale",
    "Trend",
    "accuracy",
    "auroc",
    "between_share",
    "binomial_band",
    "bound_ratio",
    "bound_spectral_norms",
    "brier",
    "central_band",
    "chain_clusters",
    "class_agreement",
    "class_total_variation",
    "class_uncertainty",
    "classwise_ece",
    "corrupt",
    "coverage",
    "covered_share",
    "crps",
    "curvature_matrices",
    "debiased_squared_ece",
    "debiased_squared_ece_sd",
    "dropout_variance",
    "ebfmi",
    "ece",
    "ece_floor",
    "equal_mass_ece",
    "equal_mass_floor",
    "fgsm",
    "fpr95",
    "function_convergence",
    "gaussian_w2",
    "is_bounded",
    "khat",
    "khat_error",
    "khat_threshold",
    "kl_bias",
    "local_products",
    "log_score",
    "log_score_error",
    "matrix_moments",
    "mean_energy_variance",
    "mean_field_distance",
    "mean_field_kl",
    "mean_shift",
    "moment_matched_log_score",
    "novelty_scores",
    "objective_trend",
    "overconfidence",
    "paired_difference",
    "pit",
    "pit_difference",
    "pit_histogram",
    "pooled_score",
    "probe_rows",
    "product_draws",
    "product_moments",
    "prune",
    "rank",
    "reference_distance",
    "rejection_curve",
    "reliability_curve",
    "rhat_within",
    "rmse",
    "sd_ratio",
    "segment",
    "selective_risk",
    "signal_to_noise",
    "simulated_ece",
    "simulated_pit",
    "simulation_based_calibration",
    "simultaneous_band",
    "skce",
    "smooth_ece",
    "smooth_ece_floor",
    "stack_chains",
    "stacked_score",
    "stacking_weights",
    "symmetry_test",
    "temperature_of",
    "temperature_scaling",
    "upper_limit",
    "variance_bias",
    "variational_calibration",
    "w1",
]
