"""What was tried to get a reference: engines, seconds, the checks that failed, what chains share.

It travels in the options of the posterior, so that files and reports made from them have it too.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING

from pyro_bnn.plotting.numbers import number, percent
from pyro_bnn.posterior.draws_posterior import DrawsPosterior

if TYPE_CHECKING:
    from pyro_bnn.posterior.protocol import PosteriorLike
    from pyro_bnn.report.evaluation.fit_record import FitRecord

OPTION = "climb"
"""Name of the account among the options of a posterior."""


@dataclass(frozen=True, kw_only=True)
class Tried:
    """One rung that was tried.

    Attributes:
        name: The engine and those of its options that are not its defaults, as the command line
            takes them: ``"NUTS:warmup_steps=1000"``.
        start: Where its chains started, in words.
        seconds: How long it took, its start and the checks included.
        failed: What keeps it from being a reference, each with its number and limit; none where it
            passed.
        was_cut: Whether the bound of time ended it before all draws were made. How many there are
            then depends on the machine; all else is determined by the seed.
    """

    name: str
    start: str
    seconds: float
    failed: tuple[str, ...]
    was_cut: bool = False

    @property
    def words(self) -> str:
        """The rung in one clause."""
        cut = ", ended by the bound of time" if self.was_cut else ""
        found = "passed the checks of a reference"
        if self.failed:
            found = f"failed by {'; '.join(self.failed)}"
        return f"{self.name} from {self.start} {found} ({number(self.seconds, 3)} s{cut})"


@dataclass(frozen=True, kw_only=True)
class Agreement:
    """What chains that failed the checks agree on all the same.

    Attributes:
        rhat: R-hat by the name of a quantity; of f the median over test rows.
        between: Median over test rows of the share of the variance of f that is between chains.
        scales: Smallest and largest mean of a chain, of each scale that is learned.
        log_score: Log score of all chains together, nats a held-out row in standardised units.
        gain: How far that is above the mean log score of a single chain.
        has_test_rows: Whether those rows were held out; else they are the rows of the fit.
    """

    rhat: Mapping[str, float]
    between: float
    scales: Mapping[str, tuple[float, float]]
    log_score: float
    gain: float
    has_test_rows: bool = True

    @property
    def words(self) -> str:
        """What they agree on, and what that is good for."""
        rows = "held-out" if self.has_test_rows else "training"
        rhats = ", ".join(f"{number(value, 3)} of {name}" for name, value in self.rhat.items())
        scales = "; ".join(
            f"means of {name} by chain from {number(low, 2)} to {number(high, 2)}"
            for name, (low, high) in self.scales.items()
        )
        return (
            f"What its chains agree on: R-hat {rhats} (of f at the median row); "
            f"{percent(self.between, 0)} of the variance of f at the median row is between chains"
            f"{'; ' if scales else ''}{scales}. Together they score {number(self.gain, 2)} nats a "
            f"{rows} row above the mean of single chains. Take them as an ensemble, by "
            "its held-out score: nothing may be measured against them."
        )


@dataclass(frozen=True, kw_only=True)
class Account:
    """How a reference was come by.

    Attributes:
        bound: Seconds that it was to take at most.
        seconds: Seconds that it took.
        tried: The rungs, in the order in which they were tried.
        reached: Number of the rung whose posterior was taken, from 0.
        ended: Why no further rung was tried, in words.
        agreement: What the chains agree on; None where they passed.
    """

    bound: float
    seconds: float
    tried: tuple[Tried, ...]
    reached: int
    ended: str
    agreement: Agreement | None = None

    @property
    def passed(self) -> bool:
        """Whether the posterior passed all checks of a reference."""
        return not self.tried[self.reached].failed

    def __str__(self) -> str:
        return self.told_of("A reference")

    def told_of(self, subject: str) -> str:
        """What was tried, for how long, and what came of it.

        Args:
            subject: What the reference is called.
        """
        tried = " ".join(f"Rung {i}: {one.words}." for i, one in enumerate(self.tried, start=1))
        time = f"{number(self.seconds, 3)} s of at most {number(self.bound, 3)} s"
        return f"{subject} was looked for in {time}. {tried} {self.details}".strip()

    @property
    def details(self) -> str:
        """Of a reference that failed: which rung was taken, why the search ended, what is left."""
        if self.passed:
            return ""
        taken = f"None passed: rung {self.reached + 1} is taken, whose R-hat is smallest"
        words = "" if self.agreement is None else f" {self.agreement.words}"
        return f"{taken}; {self.ended}.{words}"


def account(posterior: PosteriorLike | FitRecord) -> Account | None:
    """How a reference was come by; None for a posterior that ``bnn.reference`` did not make.

    Args:
        posterior: Any posterior, or what a report says of its fit.

    Example:
        >>> import torch
        >>> from pyro_bnn import NUTS, models
        >>> x = torch.linspace(-1, 1, 20).unsqueeze(-1)
        >>> nuts = NUTS(num_chains=2, warmup_steps=5, num_samples=5)
        >>> account(nuts.run(models.MLP(1, hidden=(3,)), (x, x[:, 0]), progress=False)) is None
        True
    """
    saved = posterior.options.get(OPTION)
    if saved is None:
        return None
    agreement = saved["agreement"]
    if agreement is not None:
        scales = {name: (low, high) for name, (low, high) in agreement["scales"].items()}
        agreement = Agreement(**{**agreement, "scales": scales})
    tried = tuple(Tried(**{**one, "failed": tuple(one["failed"])}) for one in saved["tried"])
    return Account(**{**saved, "tried": tried, "agreement": agreement})


def with_account(posterior: DrawsPosterior, found: Account) -> DrawsPosterior:
    """The same draws, with the account among the options."""
    provenance = replace(posterior.provenance, options={**posterior.options, OPTION: asdict(found)})
    told = copy.copy(posterior)  # of its own class, such as that of particles
    told.provenance, told.options = provenance, provenance.options
    return told
