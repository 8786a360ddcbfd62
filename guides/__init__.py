"""Variational families, each a Pyro guide that also works with ``pyro.infer.SVI`` as it is."""

if __name__ != "pyro_bnn.guides":
    raise ImportError(
        f"this folder is the package 'pyro_bnn.guides', not {__name__!r}: "
        "write 'from pyro_bnn import guides'"
    )

from pyro_bnn.guides.batch_ensemble import BatchEnsemble
from pyro_bnn.guides.composite import AutoComposite
from pyro_bnn.guides.delta import AutoDelta
from pyro_bnn.guides.dropout import AutoDropout
from pyro_bnn.guides.ensemble import AutoEnsemble  # noqa: F401  # known by name; an engine makes it
from pyro_bnn.guides.flow import AutoFlow
from pyro_bnn.guides.guide import Guide
from pyro_bnn.guides.guide_mixture import AutoGuideMixture  # noqa: F401  # of an Ensemble
from pyro_bnn.guides.k_tied_normal import AutoKTiedNormal
from pyro_bnn.guides.kronecker import AutoKroneckerBasis  # noqa: F401  # of Laplace
from pyro_bnn.guides.low_rank import AutoLowRankMultivariateNormal
from pyro_bnn.guides.low_rank_precision import (  # noqa: F401  # known by name; SLANG makes it
    AutoLowRankPrecision,
)
from pyro_bnn.guides.matrix_normal import AutoMatrixNormal
from pyro_bnn.guides.multivariate_normal import AutoMultivariateNormal
from pyro_bnn.guides.normal import AutoNormal
from pyro_bnn.guides.normal_mixture import AutoNormalMixture
from pyro_bnn.guides.radial import AutoRadial
from pyro_bnn.guides.rank1_mixture import AutoRank1Mixture
from pyro_bnn.guides.subset_normal import AutoSubsetNormal  # noqa: F401  # of Laplace

__all__ = [
    "AutoComposite",
    "AutoDelta",
    "AutoDropout",
    "AutoFlow",
    "AutoKTiedNormal",
    "AutoLowRankMultivariateNormal",
    "AutoMatrixNormal",
    "AutoMultivariateNormal",
    "AutoNormal",
    "AutoNormalMixture",
    "AutoRadial",
    "AutoRank1Mixture",
    "BatchEnsemble",
    "Guide",
]
