"""Verdicts on a reference: whether others may be measured against it, and how it was found."""

from __future__ import annotations

from collections.abc import Iterator

from pyro_bnn.report.evaluation.account import account
from pyro_bnn.report.evaluation.natures import is_biased_sampler
from pyro_bnn.report.verdicts.chain_verdicts import defects
from pyro_bnn.report.verdicts.verdict import Judged, Said, Verdict, VerdictRule

CLIMB = "climb"
STEP = (
    "Next step: more seconds where R-hat is little above its limit; where chains are in modes of "
    "their own because the learned noise is small, a likelihood that holds it fixed, or a smooth "
    "activation such as tanh: a reference of that other model."
)


@VerdictRule("reference", "A reference that cannot judge",
             "use longer NUTS chains as the reference, or mend what its report names",
             ).of_all  # fmt: skip
def reference(judged: Judged) -> Iterator[Said]:
    """A reference that cannot judge others, with its defects."""
    entry = judged.reference
    if entry is None or judged.judge is not None:
        return
    why = "is an approximation, neither exact nor a Markov chain"
    step = "use NUTS chains as the reference"
    if is_biased_sampler(entry.fit):
        why = "is a biased sampler, whose chains do not converge to the posterior"
        step = "use chains of NUTS, HMC or MAMS as the reference"
    elif checks := entry.checks.sampling:
        why, step = f"has defects ({'; '.join(defects(checks))})", "mend these first"
    yield (
        f"The reference {entry.name} {why}: distances and sd ratios to it are shown but not "
        f"judged; {step}.",
        [entry],
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
