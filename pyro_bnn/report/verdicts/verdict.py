"""What a verdict is, and the rule that gives it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from pyro_bnn.report.evaluation.evaluate import Evaluation
from pyro_bnn.report.evaluation.fit_checks import EXACT_ENGINES, is_biased_sampler
from pyro_bnn.report.evaluation.shared_models import same_posterior


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


class Judged(NamedTuple):
    """What a rule looks at.

    Attributes:
        entries: All methods.
        reference: What distances are measured to, or None.
    """

    entries: Sequence[Evaluation]
    reference: Evaluation | None

    @property
    def judge(self) -> Evaluation | None:
        """The reference if it is the exact posterior, or unbiased chains without a defect."""
        entry = self.reference
        if entry is None or entry.posterior.engine in EXACT_ENGINES:
            return entry
        if is_biased_sampler(entry.posterior):
            return None
        checks = entry.checks.sampling
        return entry if checks is not None and checks.can_judge else None

    def against(self) -> tuple[str, list[Evaluation]]:
        """Name of the judge and those whose difference to it is the guide's: of one posterior."""
        judge = self.judge
        if judge is None:
            return "", []
        alike = [e for e in self.entries if same_posterior(judge.posterior, e.posterior)]
        return judge.name, alike


Said: TypeAlias = tuple[str, Sequence[Evaluation]]

REFIT = "refit"
"""A verdict after which a fit is run again before its numbers count."""
UNCHECKED = "unchecked"
"""A verdict that it is not known whether the fit ended."""
FUNCTION = "function"
"""A verdict against the uncertainty of the function, which the predictions of y may bear."""
PREDICTIONS = "predictions"
"""A verdict against the uncertainty of the predictions themselves."""


@dataclass(frozen=True)
class Rule:
    """One check: what it looks for, and all its words.

    Attributes:
        kind: Its name.
        what: What it finds, where several runs are counted.
        step: What to do next.
        find: Texts of its verdicts, each with the methods that it is about.
        short: What it finds in a few words, for the answer; empty where that says nothing of it.
        against: What it speaks against in a method: ``REFIT``, ``UNCHECKED``, ``FUNCTION`` or
            ``PREDICTIONS``; empty where the method may be used for all.
    """

    kind: str
    what: str
    step: str
    find: Callable[[Judged], Iterable[Said]]
    short: str = ""
    against: str = ""

    @classmethod
    def of_each(
        cls,
        kind: str,
        what: str,
        step: str,
        say: Callable[[Evaluation], str | None],
        *,
        short: str = "",
        against: str = "",
        step_of: Callable[[Evaluation], str] | None = None,
    ) -> Rule:
        """A rule on one method at a time.

        Args:
            kind: Its name.
            what: What it finds.
            step: What to do next, in small letters.
            say: What is wrong with a method, with number and threshold; None where nothing is.
            short: What it finds in a few words.
            against: What it speaks against.
            step_of: Another next step for a method, where that one does not exist; or empty.
        """

        def find(judged: Judged) -> Iterator[Said]:
            for entry in judged.entries:
                if text := say(entry):
                    own = step_of(entry) if step_of else ""
                    yield f"{entry.name}: {text}; {own or step}.", [entry]

        return cls(kind, what, step, find, short, against)

    def verdicts(self, judged: Judged) -> Iterator[Verdict]:
        """What it finds in a comparison."""
        for text, entries in self.find(judged):
            yield Verdict(text, self.kind, methods=tuple(entry.name for entry in entries))
