"""A verdict on a reference that was looked for: what was tried, for how long, what came of it."""

from __future__ import annotations

from collections.abc import Iterator

from pyro_bnn.report.ladder.account import account
from pyro_bnn.report.verdicts.verdict import Judged, Verdict

CLIMB = "climb"


def climb_verdicts(judged: Judged) -> Iterator[Verdict]:
    """The account of a reference that ``bnn.reference`` found; a warning where none passed.

    Args:
        judged: All methods, and the reference.
    """
    entry = judged.reference
    found = None if entry is None else account(entry.posterior)
    if entry is None or found is None:
        return
    advice = (
        ""
        if found.passed
        else " Next step: give it more seconds, or a model whose noise has a larger sd."
    )
    yield Verdict(
        f"The reference {entry.name} was looked for: {found}{advice}",
        CLIMB,
        is_warning=not found.passed,
        methods=(entry.name,),
    )
