"""What a posterior is, as whoever made it declares: its kind, its family, what mends its faults."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal, TypeAlias, get_args

from pyro_bnn.errors import FileFormatError
from pyro_bnn.guides import Guide

PosteriorKind: TypeAlias = Literal[
    "exact", "limit", "chains", "biased chains", "members", "stacked", "approximation", "point",
    "undeclared",
]  # fmt: skip
"""The posterior in closed form; that of the network's limit of infinite width; chains that converge
to the posterior; chains that do not; members of an ensemble, each in a place of its own; chains
weighted by how they predict; an approximation; a single point; what nobody declared."""

Fault: TypeAlias = Literal[
    "settling", "few draws", "divergent", "saturated", "step bias", "asked temperature", "heat",
    "cold", "unfinished", "optimum", "narrow", "poor family",
]  # fmt: skip
"""Chains that have not settled, have too few effective draws, diverge, have trees as large as
allowed, or steps too long; a temperature asked for, or draws too hot or too cold; a fit that ended
early, or at a worse optimum; too small a spread, or a family too poor for the posterior."""

SHAPES = ("AutoFlow", "AutoNormalMixture")  # guides that are no single Gaussian


@dataclass(frozen=True)
class Nature:
    """What a posterior is.

    Advice on it is chosen by this, and never by the name of an engine or by which options it has.

    Attributes:
        kind: What its draws are.
        family: Name of the guide that it is of, whatever engine found it; None for draws of none.
        has_correlations: Whether the family can have correlations between weights; None where that
            is not known.
        is_linearised: Whether it predicts by a network that is linear in its weights.
        is_around_a_mode: Whether it is a Gaussian around a mode of the log joint.
        has_islands: Whether its chains are islands of particles, which have no order in time.
        remedies: What mends a fault, in a few words that name options of the method, by the fault.
    """

    kind: PosteriorKind = "undeclared"
    family: str | None = None
    has_correlations: bool | None = None
    is_linearised: bool = False
    is_around_a_mode: bool = False
    has_islands: bool = False
    remedies: Mapping[str, str] = field(default_factory=dict)

    def of_guide(self, guide: Guide | type[Guide]) -> Nature:
        """The same, as a posterior of this guide is it.

        What the engine says goes before what the guide says.
        """
        cls = guide if isinstance(guide, type) else type(guide)
        kind = self.kind
        if not isinstance(guide, type) and (atoms := guide.atoms()) is not None and len(atoms) == 1:
            kind = "point"
        return replace(
            self,
            kind=kind,
            family=cls.__name__,
            has_correlations=guide.has_correlations,
            remedies={**remedies_of_guide(cls, guide.has_correlations), **self.remedies},
        )

    def to_json(self) -> dict[str, Any]:
        """As JSON can hold it."""
        return asdict(replace(self, remedies=dict(self.remedies)))

    @staticmethod
    def from_json(values: Mapping[str, Any] | None) -> Nature | None:
        """What :meth:`to_json` gave; None of an older file, which has none.

        Raises:
            FileFormatError: If it is of a kind that is not known.
        """
        if values is None:
            return None
        if values["kind"] not in get_args(PosteriorKind):
            raise FileFormatError(f"it is of the kind {values['kind']!r}, which is not known")
        return Nature(**values)


SCHEMA: Mapping[Any, Any] = {
    "kind": str,
    "family": (None, str),
    "has_correlations": (None, bool),
    "is_linearised": bool,
    "is_around_a_mode": bool,
    "has_islands": bool,
    "remedies": {str: str},
}
"""What files hold of it, as `pyro_bnn.files.schema.expect` reads it."""


def remedies_of_guide(cls: type[Guide], has_correlations: bool | None) -> dict[str, str]:
    """What mends too small a spread, and a family too poor, by what the guide declares."""
    larger = f"raise {cls.enlarged_by}, or " if cls.enlarged_by else ""
    others = [name for name in SHAPES if name != cls.__name__]
    richer = f"try a guide of another shape, such as {' or '.join(others)}, or use NUTS"
    if has_correlations is False:
        richer = (
            "try a guide with correlations, such as AutoLowRankMultivariateNormal or "
            "AutoMultivariateNormal"
        )
    elif has_correlations is None:
        richer = f"try a richer guide, such as {' or '.join(others)}, or use NUTS"
    return {"narrow": f"{larger}{richer}", "poor family": f"{larger}{richer}"}
