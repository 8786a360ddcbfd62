"""A Pyro model, traced once, as pure tensor functions of one flat vector z."""

from __future__ import annotations

from pyro_bnn.program.conditional_draws import discrete_draws
from pyro_bnn.program.enumerated import EnumeratedJoint, joint_of
from pyro_bnn.program.joint import Joint
from pyro_bnn.program.program import Program
from pyro_bnn.program.terms import Batch, ELBOTerms, GuideLike, GuideTerms, Params, RowEstimate

__all__ = [
    "Batch",
    "ELBOTerms",
    "EnumeratedJoint",
    "GuideLike",
    "GuideTerms",
    "Joint",
    "Params",
    "Program",
    "RowEstimate",
    "discrete_draws",
    "joint_of",
]
