"""Verdicts: what the numbers carry in plain words, each with its threshold and the next step.

A check is one function under a `VerdictRule`: what it looks for, its words in the report of one
comparison and over several, and the next step. A rule speaks only where its number is beyond its
own noise; it says nothing where it cannot tell.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Protocol, cast

from pyro_bnn.diagnostics.max_t import FAMILY_WISE_ERROR
from pyro_bnn.diagnostics.ranking import Ranked
from pyro_bnn.plotting.numbers import number, percent, with_error
from pyro_bnn.report.evaluation.evaluate import Evaluation
from pyro_bnn.report.evaluation.fit_checks import run_checks
from pyro_bnn.report.evaluation.fit_record import FitRecord
from pyro_bnn.report.verdicts import (
    calibration_verdicts,
    chain_verdicts,
    fit_verdicts,
    member_verdicts,
    particle_verdicts,
    reference_verdicts,
    spread_verdicts,
    temperature_verdicts,
)
from pyro_bnn.report.verdicts.evidence_verdicts import evidence_verdicts
from pyro_bnn.report.verdicts.fit_verdicts import converged
from pyro_bnn.report.verdicts.model_verdicts import model_verdicts
from pyro_bnn.report.verdicts.reference_verdicts import climb_verdicts
from pyro_bnn.report.verdicts.verdict import Judged, Verdict, rules_of

if TYPE_CHECKING:
    from pyro_bnn.data.split import Split
    from pyro_bnn.posterior.protocol import PosteriorLike

OF_CHAINS = rules_of(chain_verdicts, particle_verdicts, temperature_verdicts)
RULES = [
    *OF_CHAINS,
    *rules_of(
        fit_verdicts, calibration_verdicts, member_verdicts, spread_verdicts, reference_verdicts
    ),
]
"""All checks, in the order in which the report gives them."""
OF_RUNS = [*OF_CHAINS, fit_verdicts.trend, fit_verdicts.unchecked]
"""Those that ask a run alone whether it has converged."""


def of_run(name: str, posterior: PosteriorLike, split: Split, seed: int) -> list[Verdict]:
    """What one run says of whether it has converged, then what limits that, which warns of nothing.

    Nothing said is not passed: the checks are those of `OF_RUNS`, and a point has none.

    Args:
        name: What it is called.
        posterior: The posterior.
        split: The data; chains are asked at its test rows.
        seed: Seed of the draws of f.
    """
    checks = run_checks(posterior, split, seed)
    run = cast("Evaluation", SimpleNamespace(name=name, fit=FitRecord.of(posterior), checks=checks))
    judged = Judged([run], None)
    verdicts = [verdict for rule in OF_RUNS for verdict in rule.verdicts(judged)]
    verdicts += converged(judged)
    said = "convergence not judged"  # a verdict says so already
    notes = [f"{name}: {note}." for note in checks.notes if not note.startswith(said)]
    return [*verdicts, *(Verdict(note, "note", is_warning=False) for note in notes)]


class RankedPlace(Protocol):
    """A method's place in a ranking, over rows or over splits."""

    @property
    def name(self) -> str:
        """The method."""

    @property
    def difference(self) -> Any:
        """Its difference to the best, with ``mean`` and ``standard_error``."""

    @property
    def p_value(self) -> float:
        """Of "no method is better"."""


def verdicts(judged: Judged, ranking: Sequence[Ranked]) -> list[Verdict]:
    """All verdicts on a comparison: the ranking first, then what limits each method.

    Args:
        judged: All methods, and the reference.
        ranking: By held-out log score, best first.
    """
    return [
        *score_verdicts(ranking),
        *model_verdicts(judged),
        *converged(judged),
        *evidence_verdicts(judged),
        *(verdict for rule in RULES for verdict in rule.verdicts(judged)),
        *climb_verdicts(judged),
    ]


def lost_verdicts(lost: Mapping[str, str]) -> Iterator[Verdict]:
    """Which methods have no row, and why."""
    for name, why in lost.items():
        yield Verdict(f"{name} has no row: {why.rstrip('.')}.", "lost")


def score_verdicts(ranking: Sequence[Ranked]) -> Iterator[Verdict]:
    """Who has the highest score, who is tied with it, who is behind some other method."""
    best, *others = ranking
    score = with_error(best.score, best.standard_error)
    if not others:
        text = f"{best.name}: held-out log score {score} nats per test row."
        yield Verdict(text, "scores", is_warning=False)
        return
    tied = [place for place in others if not place.is_behind]
    yield from ranking_verdicts(
        best.name,
        f"the highest held-out log score, {score}",
        tied,
        [place for place in others if place.is_behind],
        _to_separate(tied),
        " (test rows resampled, with the errors of draws)",
        ", for other test rows and draws, not for other splits or fits",
    )


def ranking_verdicts(
    best: str,
    has: str,
    tied: Sequence[RankedPlace],
    behind: Sequence[RankedPlace],
    advice: str,
    test: str,
    scope: str = "",
) -> Iterator[Verdict]:
    """The best, those tied with it, and those behind.

    Args:
        best: Name of the best.
        has: What it has, with the number.
        tied: Those tied with it.
        behind: Those behind some other method.
        advice: What would tell ties apart.
        test: How the test was made.
        scope: What it holds for.
    """
    yield Verdict(f"{best} has {has} nats per test row.", "scores", is_warning=False)

    def gap(place: RankedPlace) -> str:
        return with_error(place.difference.mean, place.difference.standard_error)

    if tied:
        gaps = ", ".join(f"{place.name} ({gap(place)})" for place in tied)
        text = f"Tied with {best}, no method is shown to be better: {gaps}. {advice}"
        yield Verdict(text, "tied", is_warning=False)
    if behind:
        gaps = ", ".join(f"{p.name} ({gap(p)}, p {number(p.p_value, 2)})" for p in behind)
        yield Verdict(
            f"Behind, with the difference to {best}: {gaps} nats per test row. For each, some "
            "other method is better by a step-down max-t test over all pairs of the "
            f"{1 + len(tied) + len(behind)} methods{test}; it is made to keep the chance of "
            "calling any method behind of which none is better at "
            f"{percent(FAMILY_WISE_ERROR, 0)} or below{scope}.",
            "scores",
            is_warning=False,
        )


def _to_separate(tied: Sequence[Ranked]) -> str:
    """What would tell ties apart: more draws where these are most of an error, else more rows."""
    of_draws = [p.name for p in tied if p.difference.draws_error > p.difference.points_error]
    unknown = [p.name for p in tied if math.isnan(p.difference.draws_error)]
    rows = "These test rows do not separate them; compare on more rows or other splits"
    parts = []
    if of_draws:
        parts.append(f"most of the error is of the draws ({', '.join(of_draws)})")
    if unknown:
        parts.append(f"draws are too few for an error, so no test was made ({', '.join(unknown)})")
    if not parts:
        return f"{rows}."
    draws = f"{'; '.join(parts)}: raise num_samples"
    if len(of_draws) + len(unknown) < len(tied):
        return f"{rows}; {draws}."
    return f"These draws do not separate them; {draws}."
