"""A verdict is one function under a rule, in one file."""

from __future__ import annotations

from types import ModuleType
from typing import Any

from pyro_bnn.report import Comparison
from pyro_bnn.report.verdicts.merits import Merits
from pyro_bnn.report.verdicts.statement import NOT
from pyro_bnn.report.verdicts.verdict import (
    CAVEAT,
    FUNCTION,
    REFIT,
    Judged,
    VerdictRule,
    rules_of,
)
from pyro_bnn.report.verdicts.verdicts import RULES


@VerdictRule("slow", "Slow fits", "fit fewer steps", short="slow", against=FUNCTION).of_each
def slow(entry: Any) -> str | None:
    """Fits that took long."""
    return "took 2 s" if entry.name == "MAP" else None


def test_a_rule_is_found_by_its_place_in_a_module(regression: Comparison) -> None:
    module = ModuleType("slow_verdicts")
    vars(module).update(first=1, slow=slow, last=RULES[0])
    assert rules_of(module) == [slow, RULES[0]]
    (verdict,) = slow.verdicts(Judged(list(regression.evaluations.values()), None))
    assert verdict.text == "MAP: took 2 s; fit fewer steps."
    assert (verdict.kind, verdict.methods) == ("slow", ("MAP",))
    assert verdict.steps == {"MAP": "fit fewer steps"}


def test_every_kind_of_verdict_is_there_once() -> None:
    kinds = [rule.kind for rule in RULES]
    assert len(kinds) == len(set(kinds)) == 28


def test_the_answer_asks_what_a_rule_speaks_against(regression: Comparison) -> None:
    judged = Judged(list(regression.evaluations.values()), None)
    merits = Merits(judged, regression.ranking, list(slow.verdicts(judged)))
    assert merits.rules_against("MAP", FUNCTION) == []  # no rule of the report
    merits.rules["slow"] = slow
    assert merits.faults("MAP", FUNCTION, CAVEAT) == ["slow"]
    assert merits.faults("MAP", REFIT, CAVEAT) == []
    assert merits.steps("MAP", FUNCTION) == ["fit fewer steps"]
    assert regression.answer.status["MAP"] == NOT
