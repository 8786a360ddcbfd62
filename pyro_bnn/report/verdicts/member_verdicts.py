r"""Rule on ensembles of points: do their members say different things?

A posterior of p effective parameters has, on average over the rows that it was fitted to, the share
p / N of the variance of y in its function: leverages have the sum p. Members whose share is below
1 / N know less doubt than one number estimated from these rows would have.
"""

from __future__ import annotations

from pyro_bnn.plotting.numbers import number
from pyro_bnn.report.evaluation.evaluate import Evaluation
from pyro_bnn.report.verdicts.verdict import FUNCTION, VerdictRule

LEAST_PARAMETERS = 1.0  # that the spread of a posterior's function is worth


@VerdictRule("one map", "Members of an ensemble that are one MAP",
             "keep members apart, or give each a spread", short="members are one MAP",
             against=FUNCTION, fault="narrow").of_each  # fmt: skip
def one_map(entry: Evaluation) -> str:
    """Members that are several, and whose predictions are all but one."""
    members, share = entry.fit.num_atoms or 1, entry.held_out.epistemic_share
    num_rows = entry.checks.num_rows
    if entry.fit.nature.kind != "members" or members == 1 or not share.size:
        return ""
    mean = float(share.mean())
    if mean * num_rows >= LEAST_PARAMETERS:
        return ""
    return (
        f"its {members} members are one MAP: the sd of their functions is {number(mean**0.5, 2)} "
        "of the sd of y, and that of a single number estimated from "
        f"{num_rows:,} rows would be {number((LEAST_PARAMETERS / num_rows) ** 0.5, 2)}. From every "
        "start the MAP under this prior is the same function, which more members do not change"
    )
