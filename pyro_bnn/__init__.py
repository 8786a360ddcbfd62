"""Bayesian neural networks as Pyro models, any posterior, one honest comparison.

Everything is imported when it is first used: ``import pyro_bnn`` alone loads neither torch nor
Pyro nor ArviZ.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_MODULES = {
    "BNNError": "errors",
    "Comparison": "report",
    "Dataset": "data",
    "Interrupted": "infer.checkpoints.interrupts",
    "Posterior": "posterior",
    "Prediction": "predictive.prediction",
    "Program": "program",
    "Split": "data",
    "bayesian": "models",
    "bayesian_dropout": "models",
    "boost": "infer.svi.boosting",
    "compare": "report",
    "description_length": "infer.svi.estimators.analytic",
    "from_guide": "infer.existing",
    "from_mcmc": "infer.existing",
    "mc_dropout": "infer.mc_dropout",
    "prior_predictive": "diagnostics.simulation.prior_predictive",
    "stack_chains": "diagnostics.stacked_chains",
    "reference": "report.ladder.reference",
    "trust": "report",
}
"""Where names are defined that are neither rooms, in lower case, nor engines."""

__all__ = [
    "BAOAB",
    "CAVI",
    "HMC",
    "IVON",
    "MAMS",
    "MCLMC",
    "MILE",
    "NUTS",
    "PSGLD",
    "SGHMC",
    "SGLD",
    "SGNHT",
    "SLANG",
    "SMC",
    "SVI",
    "SWAG",
    "VOGN",
    "VON",
    "BNNError",
    "Comparison",
    "Cyclical",
    "Dataset",
    "Ensemble",
    "Exact",
    "Interrupted",
    "Laplace",
    "MCDropout",
    "Posterior",
    "Prediction",
    "Program",
    "Split",
    "Subspace",
    "Vadam",
    "bayesian",
    "bayesian_dropout",
    "boost",
    "compare",
    "data",
    "description_length",
    "diagnostics",
    "from_guide",
    "from_mcmc",
    "guides",
    "infer",
    "layers",
    "likelihoods",
    "mc_dropout",
    "models",
    "prior_predictive",
    "priors",
    "reference",
    "report",
    "sklearn",
    "stack_chains",
    "trust",
]

if TYPE_CHECKING:
    from pyro_bnn import (
        data,
        diagnostics,
        guides,
        infer,
        layers,
        likelihoods,
        models,
        priors,
        report,
        sklearn,
    )
    from pyro_bnn.data import Dataset, Split
    from pyro_bnn.diagnostics.simulation.prior_predictive import prior_predictive
    from pyro_bnn.errors import BNNError
    from pyro_bnn.infer import (
        BAOAB,
        CAVI,
        HMC,
        IVON,
        MAMS,
        MCLMC,
        MILE,
        NUTS,
        PSGLD,
        SGHMC,
        SGLD,
        SGNHT,
        SLANG,
        SMC,
        SVI,
        SWAG,
        VOGN,
        VON,
        Cyclical,
        Ensemble,
        Exact,
        Laplace,
        MCDropout,
        Subspace,
        Vadam,
    )
    from pyro_bnn.infer.checkpoints.interrupts import Interrupted
    from pyro_bnn.infer.existing import from_guide, from_mcmc
    from pyro_bnn.infer.mc_dropout import mc_dropout
    from pyro_bnn.infer.svi.boosting import boost
    from pyro_bnn.infer.svi.estimators.analytic import description_length
    from pyro_bnn.models import bayesian, bayesian_dropout
    from pyro_bnn.posterior.posterior import Posterior
    from pyro_bnn.predictive.prediction import Prediction
    from pyro_bnn.program.program import Program
    from pyro_bnn.report.beyond.trust import trust
    from pyro_bnn.report.compare import Comparison, compare
    from pyro_bnn.report.ladder.reference import reference


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'pyro_bnn' has no attribute {name!r}")
    if name.islower() and name not in _MODULES:
        return importlib.import_module(f"pyro_bnn.{name}")
    module = importlib.import_module(f"pyro_bnn.{_MODULES.get(name, 'infer')}")
    value = globals()[name] = getattr(module, name)
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
