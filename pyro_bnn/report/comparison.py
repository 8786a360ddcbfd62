"""Posteriors and all numbers about them on one split; what is drawn and written is made of it."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING

from pyro_bnn.diagnostics.probes import Probes
from pyro_bnn.diagnostics.ranking import Ranked, rank
from pyro_bnn.plotting.numbers import decimals_of
from pyro_bnn.report.evaluation.evaluate import Evaluation, split_with_draws
from pyro_bnn.report.evaluation.shared_models import SharedModel, shared_evidences, shared_models
from pyro_bnn.report.evaluation.units import Units
from pyro_bnn.report.tables.metrics import METRICS
from pyro_bnn.report.tables.table import make_table
from pyro_bnn.report.verdicts.answer import answer
from pyro_bnn.report.verdicts.merits import Merits
from pyro_bnn.report.verdicts.statement import Answer
from pyro_bnn.report.verdicts.verdict import Judged, Verdict
from pyro_bnn.report.verdicts.verdicts import lost_verdicts, verdicts

if TYPE_CHECKING:
    import pandas as pd

    from pyro_bnn.data.split import Split
    from pyro_bnn.posterior.protocol import PosteriorLike


class Evaluations:
    """Posteriors compared on one split: numbers, ranking and verdicts, nothing drawn.

    Attributes:
        evaluations: All numbers by method, in the order given.
        posteriors: The posteriors themselves by name; none of files, which hold evaluations.
        split: The data they are compared on.
        rows: Those at which all draws are kept: all, or of a large table some, evenly spread.
        reference: Name of the reference, or None.
        num_draws: Draws of the function behind the scores of every method but point estimates.
        seed: Seed of all draws.
        probes: Rows off the data where spreads are compared too; None without a reference, and
            where there are none.
        lost: Why further methods have none, by name.
        ranking: Methods by held-out log score, best first.
        models: The models that the methods answer under, each with its label and its methods.
        evidences: Names of the methods whose ELBOs bound one evidence (one model, equal point
            estimates) by group; ELBOs of different groups must not be compared.
        table: A row a method in the order of the ranking; see the column ``units``.
    """

    def __init__(
        self,
        evaluations: Mapping[str, Evaluation],
        split: Split,
        *,
        reference: str | None,
        num_draws: int,
        seed: int,
        posteriors: Mapping[str, PosteriorLike] | None = None,
        probes: Probes | None = None,
        lost: Mapping[str, str] | None = None,
    ) -> None:
        self.posteriors = dict(posteriors or {})
        self.split = split
        self.reference = reference
        self.num_draws = num_draws
        self.seed = seed
        self.probes = probes
        self.evaluations = dict(evaluations)
        self.rows = split_with_draws(split, num_draws)
        self.lost = dict(lost or {})
        self.units = Units.of(split)
        self.ranking: list[Ranked] = rank(
            {name: entry.held_out.log_score for name, entry in evaluations.items()},
            {name: entry.held_out.log_score_error for name, entry in evaluations.items()},
        )
        fits = {name: entry.fit for name, entry in evaluations.items()}
        self.models: list[SharedModel] = shared_models(fits)
        self.evidences: list[list[str]] = shared_evidences(fits)
        self.table: pd.DataFrame = make_table(
            list(self.evaluations.values()), self.ranking, self.units, split.task, reference
        )

    @property
    def _judged(self) -> Judged:
        return Judged(list(self.evaluations.values()), self.evaluations.get(self.reference or ""))

    @cached_property
    def findings(self) -> list[Verdict]:
        """The verdicts with the rule that each comes from."""
        return [*verdicts(self._judged, self.ranking), *lost_verdicts(self.lost)]

    @cached_property
    def answer(self) -> Answer:
        """Which posterior to use, why, what it costs, and what would change that."""
        return answer(Merits(self._judged, self.ranking, self.findings))

    @property
    def verdicts(self) -> list[str]:
        """What the numbers carry in plain words, each with its threshold and the next step."""
        return [finding.text for finding in self.findings]

    def decimals(self, key: str) -> int | None:
        """Decimal places of a number's column in the table; None where each has its own."""
        error = next((metric.error for metric in METRICS if metric.key == key), "")
        return decimals_of(list(self.table[key]), list(self.table[error]) if error else None)

    @property
    def num_train(self) -> int:
        """Training rows, also of a large table, of which files keep some."""
        return max(entry.checks.num_rows for entry in self.evaluations.values())

    @property
    def num_test(self) -> int:
        """Held-out rows, each of which has a log score."""
        return max(len(entry.held_out.log_score) for entry in self.evaluations.values())

    @property
    def shares_model(self) -> bool:
        """Whether all posteriors are of one model."""
        return len(self.models) == 1

    @property
    def ranked(self) -> list[Evaluation]:
        """The evaluations in the order of the ranking."""
        return [self.evaluations[place.name] for place in self.ranking]
