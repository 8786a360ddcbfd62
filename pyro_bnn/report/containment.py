"""Which families of Gaussians and others lie within which, and the family of a posterior."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from pyro_bnn import infer

if TYPE_CHECKING:
    from pyro_bnn.report.protocol import PosteriorLike

MEAN_FIELD = ("AutoNormal", "AutoKTiedNormal")
LOW_RANK = ("AutoLowRankMultivariateNormal", "AutoLowRankPrecision")

SPECIAL_CASES: Mapping[str, tuple[str, ...]] = {
    "AutoNormal": ("AutoKTiedNormal",),
    "AutoLowRankMultivariateNormal": MEAN_FIELD,
    "AutoLowRankPrecision": MEAN_FIELD,
    "AutoFlow": MEAN_FIELD,
    "AutoNormalMixture": MEAN_FIELD,
    "AutoMultivariateNormal": (*MEAN_FIELD, *LOW_RANK, "AutoMatrixNormal"),
}
"""Guides, each with the guides that are special cases of it whatever their options.

One whose family goes by its options, as ``AutoComposite`` or ``AutoDropout``, is in none.
"""


def family_of(posterior: PosteriorLike) -> str:
    """Name of the guide that a posterior is of, whatever engine found it.

    An engine of this package that makes a guide of its own says which, as its ``family``; the
    method of any other is the guide, a sampler, or a name that is in no family.
    """
    engine = getattr(infer, posterior.engine) if posterior.engine in infer.__all__ else None
    family = getattr(engine, "family", None)
    return posterior.method if family is None else str(family(posterior.options))


def contains(guide: PosteriorLike, other: PosteriorLike) -> bool:
    """Whether a guide that was fitted could have been another method's posterior.

    That is where the other one is of a special case of its family, or was found in its family by
    another engine. A method that is not fitted by the ELBO itself, as VOGN, contains none.
    """
    if guide.method == other.method:
        return False
    return family_of(other) in (guide.method, *SPECIAL_CASES.get(guide.method, ()))
