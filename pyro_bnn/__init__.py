"""Bayesian neural networks as Pyro models, any posterior, one honest comparison.

Everything is imported when it is first used: ``import pyro_bnn`` alone loads neither torch nor
Pyro nor ArviZ.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_NAMES = {
    "Dataset": "data",
    "Split": "data",
    "bayesian": "models",
    "bayesian_dropout": "models",
    "BAOAB": "infer",
    "CAVI": "infer",
    "Cyclical": "infer",
    "Ensemble": "infer",
    "Exact": "infer",
    "Laplace": "infer",
    "SVI": "infer",
    "SWAG": "infer",
    "Subspace": "infer",
    "HMC": "infer",
    "MAMS": "infer",
    "MCDropout": "infer",
    "MCLMC": "infer",
    "MILE": "infer",
    "NUTS": "infer",
    "IVON": "infer",
    "PSGLD": "infer",
    "SGHMC": "infer",
    "SGLD": "infer",
    "SGNHT": "infer",
    "SLANG": "infer",
    "VOGN": "infer",
    "VON": "infer",
    "Vadam": "infer",
    "Interrupted": "infer.checkpoints.interrupts",
    "boost": "infer.svi.boosting",
    "mc_dropout": "infer.mc_dropout",
    "description_length": "infer.svi.estimators.analytic",
    "Posterior": "posterior",
    "Prediction": "predictive.prediction",
    "Program": "program",
    "prior_predictive": "diagnostics.simulation.prior_predictive",
    "Comparison": "report",
    "compare": "report",
    "trust": "report",
    "BNNError": "errors",
}

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
    "guides",
    "infer",
    "layers",
    "likelihoods",
    "mc_dropout",
    "models",
    "prior_predictive",
    "priors",
    "report",
    "sklearn",
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
    from pyro_bnn.infer.mc_dropout import mc_dropout
    from pyro_bnn.infer.svi.boosting import boost
    from pyro_bnn.infer.svi.estimators.analytic import description_length
    from pyro_bnn.models import bayesian, bayesian_dropout
    from pyro_bnn.posterior.posterior import Posterior
    from pyro_bnn.predictive.prediction import Prediction
    from pyro_bnn.program.program import Program
    from pyro_bnn.report.beyond.trust import trust
    from pyro_bnn.report.compare import Comparison, compare


def __getattr__(name: str) -> Any:
    if name in _NAMES:
        value = getattr(importlib.import_module(f"pyro_bnn.{_NAMES[name]}"), name)
        globals()[name] = value
        return value
    if name in __all__:
        return importlib.import_module(f"pyro_bnn.{name}")
    raise AttributeError(f"module 'pyro_bnn' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
