"""What verdicts and ranking say of each method: what it may be used for, and why not."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pyro_bnn.diagnostics.ranking import PairedDifference, Ranked, paired_difference
from pyro_bnn.report.evaluation.evaluate import Evaluation
from pyro_bnn.report.evaluation.shared_models import same_posterior
from pyro_bnn.report.verdicts.verdict import (
    CAVEAT,
    FUNCTION,
    PREDICTIONS,
    REFIT,
    UNCHECKED,
    Judged,
    Verdict,
    VerdictRule,
)
from pyro_bnn.report.verdicts.verdicts import RULES

POINT = "a point estimate: its intervals hold noise only"


class Merits:
    """What verdicts and ranking say of each method.

    Args:
        judged: All methods, and the reference.
        ranking: By held-out log score, best first.
        findings: The verdicts on them.
    """

    def __init__(
        self, judged: Judged, ranking: Sequence[Ranked], findings: Sequence[Verdict]
    ) -> None:
        self.entries = {entry.name: entry for entry in judged.entries}
        self.ranking = ranking
        self.places = {place.name: place for place in ranking}
        self.judge = judged.judge
        self.findings = findings
        self.rules = {rule.kind: rule for rule in RULES}
        self.used = self._used()

    def rules_against(self, name: str, *uses: str) -> list[VerdictRule]:
        """Rules that gave a verdict on a method which speaks against some uses.

        Args:
            name: The method.
            uses: Some of ``VerdictRule.against``; ``CAVEAT`` for verdicts against no use.
        """
        kinds = [one.kind for one in self.findings if one.is_warning and name in one.methods]
        rules = [self.rules[kind] for kind in dict.fromkeys(kinds) if kind in self.rules]
        return [rule for rule in rules if rule.short and rule.against in uses]

    def faults(self, name: str, *uses: str) -> list[str]:
        """What those rules found, in a few words each."""
        return [rule.short for rule in self.rules_against(name, *uses)]

    def steps(self, name: str, *uses: str) -> list[str]:
        """What those rules tell this method to do next, in small letters."""
        kinds = [rule.kind for rule in self.rules_against(name, *uses)]
        return [
            one.steps[name]
            for kind in kinds
            for one in self.findings
            if one.kind == kind and name in one.methods
        ]

    @property
    def num_rows(self) -> int:
        """Held-out rows."""
        return len(next(iter(self.entries.values())).held_out.log_score)

    def is_point(self, name: str) -> bool:
        """Whether a method is a point estimate."""
        return self.entries[name].held_out.is_point

    def is_exact(self, name: str) -> bool:
        """Whether a method is the posterior of its network, not of one of infinite width."""
        return self.entries[name].fit.nature.kind == "exact"

    def bars_uncertainty(self, name: str) -> list[str]:
        """Why the uncertainty of a method is not to be used, in a few words each."""
        if self.is_point(name):
            return [POINT]
        is_barred = self.rules_against(name, FUNCTION, PREDICTIONS)
        return self.faults(name, FUNCTION, PREDICTIONS, CAVEAT) if is_barred else []

    def is_fit(self, name: str) -> bool:
        """Whether a fit ended, or nearly; the judge has passed its own checks."""
        is_judge = self.judge is not None and self.judge.name == name
        rules = self.rules_against(name, REFIT, UNCHECKED)
        if self.entries[name].checks.is_nearly_done:
            rules = [rule for rule in rules if rule.kind != "trend"]
        return is_judge or not rules

    def is_of_the_judge(self, name: str) -> bool:
        """Whether a method has the judge's model."""
        return self.judge is not None and same_posterior(self.entries[name].fit, self.judge.fit)

    def unjudged(self, name: str) -> str:
        """Why the spread of a method was not judged; empty where it was, or is the posterior's."""
        if self.judge is None:
            return "" if self.is_exact(name) else "no reference judges"
        if not self.is_of_the_judge(name):
            return f"another model than that of {self.judge.name}: only scores compare"
        at = self.entries[name].at_rows
        if at is None:
            return f"no mean or sd to hold against that of {self.judge.name}"
        if not at.sd_ratio.values.size:
            return f"{self.judge.name} has no spread that matters at any test row"
        if not np.isfinite(at.sd_ratio.errors).all():
            return "too few draws for an error of its spread"
        return ""

    def seconds(self, name: str) -> float:
        """Wall time of a fit; NaN where it is not known."""
        return float(self.entries[name].fit.wall_time)

    def difference(self, name: str, other: str) -> PairedDifference:
        """Of the log scores of two methods, paired over rows."""
        scores = self.entries[name].held_out, self.entries[other].held_out
        one, two = (score.log_score for score in scores)
        errors = scores[0].log_score_error, scores[1].log_score_error
        return paired_difference(one, two, monte_carlo=errors)

    def _used(self) -> Evaluation | None:
        """The judge; else the best score of those that no verdict bars; else none."""
        if self.judge is not None:
            return self.judge
        for place in self.ranking:
            name = place.name
            if not place.is_behind and self.is_fit(name) and not self.bars_uncertainty(name):
                return self.entries[name]
        return None
