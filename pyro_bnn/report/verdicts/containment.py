"""Which families of Gaussians and others lie within which, and the family of a posterior."""

from __future__ import annotations

import math
from dataclasses import fields
from statistics import NormalDist
from typing import TYPE_CHECKING, Any

from pyro_bnn import infer
from pyro_bnn.guides import Guide

if TYPE_CHECKING:
    from pyro_bnn.report.evaluation.fit_record import FitRecord

MIN_ELBO_GAP = 1.0  # nats, between two fits
FALSE_ALARMS = 0.05  # of all pairs together
SIZE = "rank"  # option of which a guide contains those with less
STARTS = ("init_scale",)  # options that only say where a fit begins


def family_of(fit: FitRecord) -> str:
    """Name of the guide that a posterior is of, whatever engine found it.

    The method of one that is of no guide is a sampler, or a name that is in no family.
    """
    return fit.nature.family or fit.method


def contains(guide: FitRecord, other: FitRecord) -> bool:
    """Whether a guide that was fitted could have been another method's posterior.

    That is where the other one is another fit of the same guide, of a special case of its family,
    or was found in its family by another engine. A method that is not fitted by the ELBO itself, as
    VOGN, contains none.
    """
    if guide.method == other.method:
        is_guide = guide.method != guide.engine  # an engine with a guide of its own has its name
        return is_guide and _holds(_own_options(guide), _own_options(other))
    family = family_of(other)
    if family == guide.method:  # found by an engine, which has no other option of a family
        size = {SIZE: other.options[SIZE]} if SIZE in other.options else {}
        return _holds(_own_options(guide), size)
    return family in special_cases(guide.method)


def special_cases(name: str) -> set[str]:
    """Names of the guides that are special cases of the one of this name, and of these in turn.

    A family that goes by its options, as ``AutoComposite`` or ``AutoDropout``, has and is none.
    """
    own = Guide.known[name].contains if name in Guide.known else ()
    return {*own, *(case for each in own for case in special_cases(each))}


def is_below(elbo: float, error: float, other: float, other_error: float, num_pairs: int) -> bool:
    """Whether one ELBO is below another by a nat, and by more than chance among so many pairs.

    Args:
        elbo: Of the guide that could have been the other.
        error: Its Monte Carlo error.
        other: Of the other.
        other_error: Its error.
        num_pairs: How many pairs are compared; all together are wrongly found in 5 % of cases.
    """
    error = math.hypot(error, other_error)
    return other - elbo >= MIN_ELBO_GAP and other - elbo > limit_of(num_pairs) * error


def limit_of(num_pairs: int) -> float:
    """Standard errors of a difference of ELBOs that are chance among so many, at least 2."""
    return max(2.0, NormalDist().inv_cdf(1 - FALSE_ALARMS / num_pairs))


def _own_options(fit: FitRecord) -> dict[str, Any]:
    """Options of the guide, which its family goes by, without those of the fit."""
    of_fit = {field.name for field in fields(infer.SVI)} | {"compiled", *STARTS}
    return {name: value for name, value in fit.options.items() if name not in of_fit}


def _holds(own: dict[str, Any], other: dict[str, Any]) -> bool:
    """Whether a guide of these options could be one of the others: equal, or of a larger rank."""
    if own.get(SIZE) is not None and other.get(SIZE) is not None and own[SIZE] > other[SIZE]:
        own = {**own, SIZE: other[SIZE]}
    return own == other
