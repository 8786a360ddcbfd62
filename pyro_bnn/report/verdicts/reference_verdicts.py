"""A verdict on a reference that was looked for: what was tried, for how long, what came of it."""

from __future__ import annotations

from collections.abc import Iterator

from pyro_bnn.report.evaluation.account import account
from pyro_bnn.report.verdicts.verdict import Judged, Verdict

CLIMB = "climb"
STEP = (
    "Next step: more seconds where R-hat is little above its limit; where chains are in modes of "
    "their own because the learned noise is small, a likelihood that holds it fixed, or a smooth "
    "activation such as tanh: a reference of that other model."
)


def climb_verdicts(judged: Judged) -> Iterator[Verdict]:
    """The account of a reference that ``bnn.reference`` found; a warning where none passed.

    Args:
        judged: All methods, and the reference.
    """
    entry = judged.reference
    found = None if entry is None else account(entry.fit)
    if entry is None or found is None:
        return
    advice = "" if found.passed else f" {STEP}"
    yield Verdict(
        f"{found.told_of(f'The reference {entry.name}')}{advice}",
        CLIMB,
        is_warning=not found.passed,
        methods=(entry.name,),
    )
