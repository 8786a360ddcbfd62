"""What a posterior is: as it declares, or by the names in older files, which do not declare it."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Protocol

from pyro_bnn import infer
from pyro_bnn.guides import Guide
from pyro_bnn.infer.engine import Engine
from pyro_bnn.posterior.nature import Nature

OF_BIASED = ("biased chains", "members", "approximation")  # whose chains, if any, are biased
IN_CLOSED_FORM = ("exact", "limit")
GAUSSIAN_PROCESS = "GaussianProcess"  # engine of the limit, in files that do not declare it


class FitLike(Protocol):
    """A posterior, or what a report says of its fit."""

    @property
    def method(self) -> str:
        """Name of the guide or sampler."""

    @property
    def engine(self) -> str:
        """Name of the engine."""

    @property
    def options(self) -> Mapping[str, Any]:
        """Options of the engine and the guide."""

    @property
    def sample_stats(self) -> Mapping[str, Any]:
        """Sampler statistics; empty for approximations."""


def nature_of(posterior: FitLike) -> Nature:
    """What a posterior is.

    One that does not declare it, of an older file or of somebody's own class, is taken for what its
    engine and guide declare today, if they are of this package; else it is undeclared.
    """
    declared: Nature | None = getattr(posterior, "nature", None)
    if declared is not None:
        return declared
    if posterior.engine == GAUSSIAN_PROCESS:
        return Nature(kind="limit")
    nature = Nature()
    for name in (posterior.method, posterior.engine):
        cls: Any = getattr(infer, name) if name in infer.__all__ else None
        if isinstance(cls, type) and issubclass(cls, Engine):
            with suppress(KeyError):  # options of a file that lacks some
                nature = cls.nature(posterior.options)
            break
    guide = Guide.known.get(nature.family or posterior.method)
    return nature if guide is None else nature.of_guide(guide)


def is_in_closed_form(posterior: FitLike) -> bool:
    """Whether it is a posterior itself, without a fit that could have ended early."""
    return nature_of(posterior).kind in IN_CLOSED_FORM


def is_exact_sampler(posterior: FitLike) -> bool:
    """Whether its draws are of the posterior itself, once its chains have converged."""
    return nature_of(posterior).kind == "chains"


def is_biased_sampler(posterior: FitLike) -> bool:
    """Whether these are Markov chains that do not converge to the posterior, such as of MCLMC."""
    return bool(posterior.sample_stats) and nature_of(posterior).kind in OF_BIASED


def has_members(posterior: FitLike) -> bool:
    """Whether its chains are members of an ensemble, each in a mode of its own, as of MILE."""
    return bool(posterior.sample_stats) and nature_of(posterior).kind == "members"


def is_linearised(posterior: FitLike) -> bool:
    """Whether it predicts by a network that is linear in its weights, as Laplace does."""
    return nature_of(posterior).is_linearised
