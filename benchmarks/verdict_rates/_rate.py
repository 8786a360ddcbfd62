"""What a simulation measured of one verdict."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Rate:
    """The share of simulated reports in which a verdict was given.

    Attributes:
        verdict: Its topic on the page.
        measures: What its number is.
        threshold: Where it speaks, in words with the number.
        setting: The simulated case, with its sizes.
        is_true: Whether the verdict is right in this case: its share is then power, else false
            alarms.
        given: How many of the simulated reports gave it.
        simulated: How many were simulated.
        seed: Of the generator.
    """

    verdict: str
    measures: str
    threshold: str
    setting: str
    is_true: bool
    given: int
    simulated: int
    seed: int
