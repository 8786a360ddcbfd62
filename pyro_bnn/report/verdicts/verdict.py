"""What a verdict is, and the rule that gives it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import ModuleType
from typing import NamedTuple, TypeAlias

from pyro_bnn.posterior.nature import Fault
from pyro_bnn.report.evaluation.evaluate import Evaluation
from pyro_bnn.report.evaluation.natures import is_biased_sampler, is_in_closed_form
from pyro_bnn.report.evaluation.shared_models import same_posterior
from pyro_bnn.report.verdicts.advice import advised, together


@dataclass(frozen=True)
class Verdict:
    """One finding.

    Attributes:
        text: Plain words with number, threshold and next step.
        kind: The rule it comes from.
        is_warning: Whether something should be mended, as against a plain result.
        methods: Names of the methods it is about; empty where it is about the comparison.
        steps: What each of them is to do next, in small letters.
    """

    text: str
    kind: str
    is_warning: bool = True
    methods: tuple[str, ...] = ()
    steps: Mapping[str, str] = field(default_factory=dict)


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
        if entry is None or is_in_closed_form(entry.fit):
            return entry
        if is_biased_sampler(entry.fit):
            return None
        checks = entry.checks.sampling
        return entry if checks is not None and checks.can_judge else None

    def against(self) -> tuple[str, list[Evaluation]]:
        """Name of the judge and those whose difference to it is the guide's: of one posterior."""
        judge = self.judge
        if judge is None:
            return "", []
        alike = [e for e in self.entries if same_posterior(judge.fit, e.fit)]
        return judge.name, alike


Said: TypeAlias = tuple[str, Sequence[Evaluation]]
"""Text of a verdict, and the methods that it is about."""

REFIT = "refit"
"""A verdict after which a fit is run again before its numbers count."""
UNCHECKED = "unchecked"
"""A verdict that it is not known whether the fit ended."""
FUNCTION = "function"
"""A verdict against the uncertainty of the function, which the predictions of y may bear."""
PREDICTIONS = "predictions"
"""A verdict against the uncertainty of the predictions themselves."""
CAVEAT = ""
"""A verdict that keeps a method from nothing."""


@dataclass(frozen=True)
class VerdictRule:
    """One check: what it looks for, and all its words; it decorates the function that finds it.

    Attributes:
        kind: Its name.
        what: What it finds, where several runs are counted.
        step: What to do next, in general; where there is a ``fault``, each method is told its own.
        short: What it finds in a few words, for the answer; empty where that says nothing of it.
        against: What it speaks against in a method: ``REFIT``, ``UNCHECKED``, ``FUNCTION``,
            ``PREDICTIONS`` or, where the method may be used for all, ``CAVEAT``.
        fault: What is to be mended, for which a method declares a remedy; None where the step is
            the same for all.
        advise: What to do in a given case, where one fault does not say it all.
        find: Texts of its verdicts, each with the methods that it is about.
    """

    kind: str
    what: str
    step: str
    short: str = ""
    against: str = CAVEAT
    fault: Fault | None = None
    advise: Callable[[Evaluation], str] | None = None
    find: Callable[[Judged], Iterable[Said]] = lambda _: ()

    def of_all(self, find: Callable[[Judged], Iterable[Said]]) -> VerdictRule:
        """The rule whose verdicts a function finds, on several methods together."""
        return replace(self, find=find)

    def of_each(self, fault_of: Callable[[Evaluation], str | None]) -> VerdictRule:
        """The rule on one method at a time.

        Args:
            fault_of: What is wrong with a method, with number and threshold; nothing where it is
                not.
        """

        def find(judged: Judged) -> Iterator[Said]:
            for entry in judged.entries:
                if text := fault_of(entry):
                    yield f"{entry.name}: {text}; {self.step_for([entry])}.", [entry]

        return replace(self, find=find)

    def step_for(self, entries: Sequence[Evaluation]) -> str:
        """What these methods are to do next, by what they are, in small letters."""
        if self.advise is not None:
            return together({entry.name: self.advise(entry) for entry in entries})
        return self.step if self.fault is None else advised(entries, self.fault)

    def verdicts(self, judged: Judged) -> Iterator[Verdict]:
        """What it finds in a comparison."""
        for text, entries in self.find(judged):
            names = tuple(entry.name for entry in entries)
            steps = {name: self.step_for([e]) for name, e in zip(names, entries, strict=True)}
            yield Verdict(text, self.kind, methods=names, steps=steps)


def rules_of(*modules: ModuleType) -> list[VerdictRule]:
    """The rules of modules, in the order in which they stand there."""
    return [
        rule
        for module in modules
        for rule in vars(module).values()
        if isinstance(rule, VerdictRule)
    ]
