"""What to do about a fault, by what a method is: options that it has, which mend it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from pyro_bnn.posterior.nature import Fault, Nature

if TYPE_CHECKING:
    from pyro_bnn.report.evaluation.evaluate import Evaluation

LONGER_CHAINS = "run longer chains"
WORDS: Mapping[Fault, str] = {
    "settling": LONGER_CHAINS,
    "few draws": "take more draws",
    "divergent": "take shorter steps, or use a non-centred prior",
    "saturated": "allow longer trajectories",
    "step bias": "take shorter steps, or use MAMS or NUTS",
    "asked temperature": "run it at temperature 1",
    "heat": "take shorter steps or larger batches",
    "cold": LONGER_CHAINS,
    "unfinished": "run it longer",
    "optimum": "run it longer, or from another start",
    "narrow": "compare with NUTS",
    "poor family": "compare with NUTS",
}
"""What to do where nobody declares an option that mends it."""
OF_CHAINS = ("chains", "biased chains")


def advice(nature: Nature, fault: Fault) -> str:
    """What to do about a fault of one method, in small letters.

    Chains have no family that could be too poor: what looks like it, they have not settled.
    """
    if fault in nature.remedies:
        return nature.remedies[fault]
    if nature.kind in OF_CHAINS and fault in ("narrow", "poor family", "optimum"):
        return advice(nature, "settling")
    return WORDS[fault]


def advised(entries: Sequence[Evaluation], fault: Fault) -> str:
    """What to do about a fault of several methods: once where it is the same for all."""
    return together({entry.name: advice(entry.fit.nature, fault) for entry in entries})


def together(steps: Mapping[str, str]) -> str:
    """Steps of several methods as one sentence, in small letters: those alike together.

    Args:
        steps: What to do, by method.

    Example:
        >>> together({"a": "raise rank", "b": "use NUTS", "c": "raise rank"})
        'for a and c raise rank; for b use NUTS'
        >>> together({"a": "raise rank", "c": "raise rank"})
        'raise rank'
    """
    names: dict[str, list[str]] = {}
    for name, step in steps.items():
        names.setdefault(step, []).append(name)
    if len(names) == 1:
        return next(iter(names))
    return "; ".join(f"for {listed(methods)} {step}" for step, methods in names.items())


def sentence(step: str) -> str:
    """The same with a capital letter at its start."""
    return f"{step[:1].upper()}{step[1:]}"


def listed(words: Sequence[str]) -> str:
    """Words with commas and an "and".

    Example:
        >>> listed(["a", "b", "c"]), listed(["a"])
        ('a, b and c', 'a')
    """
    *most, last = words
    return f"{', '.join(most)} and {last}" if most else last
