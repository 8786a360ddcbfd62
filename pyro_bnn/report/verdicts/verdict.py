"""What a verdict is."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Verdict:
    """One finding.

    Attributes:
        text: Plain words with number, threshold and next step.
        kind: The rule it comes from.
        is_warning: Whether something should be mended, as against a plain result.
        methods: Names of the methods it is about; empty where it is about the comparison.
    """

    text: str
    kind: str
    is_warning: bool = True
    methods: tuple[str, ...] = ()
