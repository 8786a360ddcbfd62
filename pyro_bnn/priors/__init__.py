"""Priors over weights: any Pyro distribution, or one of these that know a weight's shape."""

from pyro_bnn.priors.cauchy import Cauchy
from pyro_bnn.priors.continued import continued
from pyro_bnn.priors.flat import Flat
from pyro_bnn.priors.from_posterior import FromPosterior
from pyro_bnn.priors.half_cauchy_scale import HalfCauchyScale
from pyro_bnn.priors.hierarchy import Hierarchy, assign_prior, value_of
from pyro_bnn.priors.horseshoe import Horseshoe
from pyro_bnn.priors.laplace import Laplace
from pyro_bnn.priors.normal import Normal
from pyro_bnn.priors.positive import HalfCauchy, LogNormal
from pyro_bnn.priors.pretrained import Pretrained
from pyro_bnn.priors.prior import (
    HierarchicalPrior,
    Prior,
    PriorLike,
    PriorModule,
    Priors,
    as_prior,
    match_priors,
)
from pyro_bnn.priors.scale_mixture import ScaleMixture
from pyro_bnn.priors.student_t import StudentT

__all__ = [
    "Cauchy",
    "Flat",
    "FromPosterior",
    "HalfCauchy",
    "HalfCauchyScale",
    "HierarchicalPrior",
    "Hierarchy",
    "Horseshoe",
    "Laplace",
    "LogNormal",
    "Normal",
    "Pretrained",
    "Prior",
    "PriorLike",
    "PriorModule",
    "Priors",
    "ScaleMixture",
    "StudentT",
    "as_prior",
    "assign_prior",
    "continued",
    "match_priors",
    "value_of",
]
