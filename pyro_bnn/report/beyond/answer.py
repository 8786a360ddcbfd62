"""What the numbers of a `Judged` carry, in sentences: nothing that is below its standard error."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from pyro_bnn.diagnostics.ranking import Ranked
from pyro_bnn.plotting.numbers import number, with_error

if TYPE_CHECKING:
    import pandas as pd

    from pyro_bnn.report.beyond.judged import Judged

ERRORS = 2.0  # standard errors from which on a difference is told
OOD_SCORE = "entropy"


def answer(found: Judged) -> tuple[str, list[tuple[str, str]]]:
    """A headline, and statements with a label each."""
    return headline(found), list(statements(found))


def headline(found: Judged) -> str:
    """Which methods are not behind."""
    ahead = _tied(found.ranking)
    everywhere = [name for name in ahead if name in _tied(found.shifted_ranking or found.ranking)]
    where = " and under corruption" if found.conditions else ""
    if len(found.names) == 1:
        return f"One method, {found.names[0]}: nothing to compare"
    if not everywhere:
        return (
            f"No method is ahead everywhere: on the test images {_listed(ahead)}, under "
            f"corruption {_listed(_tied(found.shifted_ranking))}"
        )
    if len(everywhere) == 1:
        return f"Trust {everywhere[0]} here, by the log score on the test images{where}"
    rest = "" if len(everywhere) < len(found.names) else "; these images cannot rank them"
    return f"Not behind on the test images{where}: {_listed(everywhere)}{rest}"


def statements(found: Judged) -> Iterator[tuple[str, str]]:
    """One a question: scores, corruption, calibration, rejection, unknown inputs, attack."""
    yield "Test images", _scores(found.ranking, found.table)
    if found.conditions:
        yield "Corrupted", _scores(found.shifted_ranking, found.shifted)
    yield "Calibration", _calibration(found.table)
    yield "Rejection", _rejection(found.table)
    if found.ood_name is not None:
        yield "Unknown inputs", _unknown(found.unknown, found.ood_name)
    if found.epsilon is not None:
        yield "Attack", _attack(found.attacked, found.epsilon)
    if found.num_fits == 1:
        yield "Not in the errors", "other seeds: one fit of each method was judged."


def text_summary(found: Judged) -> str:
    """The answer and the main numbers for a terminal."""
    title, lines = answer(found)
    table = found.table
    rows = [
        f"  {name:<32} {with_error(row['log_score'], row['log_score_se']):>20} "
        f"{row['accuracy']:>8.4f} {row['ece']:>8.4f} {row['floor']:>8.4f}"
        for name, row in table.iterrows()
    ]
    head = f"  {'method':<32} {'log score':>20} {'accuracy':>8} {'ECE':>8} {'floor':>8}"
    return "\n".join([title + ".", "", *(f"{k}: {v}" for k, v in lines), "", head, *rows])


def _scores(ranking: Sequence[Ranked], table: pd.DataFrame) -> str:
    best = ranking[0]
    row = table.loc[best.name]
    text = f"{best.name} scores {with_error(row['log_score'], row['log_score_se'])} nats a row"
    behind = [place for place in ranking if place.is_behind]
    tied = [place.name for place in ranking[1:] if not place.is_behind]
    if tied:
        text += f"; not shown to be behind it: {_listed(tied)}"
    if behind:
        gaps = [
            f"{p.name} by {with_error(-gap['log_score_gap'], gap['log_score_gap_se'])}"
            for p in behind
            for gap in [table.loc[p.name]]
        ]
        text += f"; behind: {_listed(gaps)}"
    return f"{text}."


def _calibration(table: pd.DataFrame) -> str:
    """By the debiased squared error, which is 0 in the mean of a calibrated method."""
    off = [
        f"{name} (ECE {number(row['ece'])}, floor {number(row['floor'])})"
        for name, row in table.iterrows()
        if row["debiased_ece2"] > ERRORS * row["debiased_ece2_se"]
    ]
    if not off:
        return "no method is shown to be off: every error is within what chance gives."
    text = f"off by more than {ERRORS:.0f} standard errors: {_listed(off)}"
    rest = [str(name) for name in table.index if not any(o.startswith(f"{name} (") for o in off)]
    return f"{text}; not shown to be off: {_listed(rest)}." if rest else f"{text}."


def _rejection(table: pd.DataFrame) -> str:
    parts = [
        f"{name} {with_error(row['augrc'], row['augrc_se'])} (at random "
        f"{number(row['augrc_random'])}, at best {number(row['augrc_best'])})"
        for name, row in table.iterrows()
    ]
    return f"joint risk over the shares of rows kept (AUGRC): {_listed(parts)}."


def _unknown(table: pd.DataFrame, name: str) -> str:
    of = table[table["score"] == OOD_SCORE].set_index("method")
    best = str(of["auroc"].idxmax())
    text = (
        f"by its {OOD_SCORE} {best} tells {name} apart with AUROC "
        f"{with_error(of.loc[best, 'auroc'], of.loc[best, 'auroc_se'])}"
    )
    worse = [
        f"{other} by {with_error(-row['auroc_gap'], row['auroc_gap_se'])}"
        for other, row in of.iterrows()
        if -row["auroc_gap"] > ERRORS * row["auroc_gap_se"]
    ]
    near = [str(n) for n, row in of.iterrows() if n != best]
    near = [n for n in near if not any(w.startswith(f"{n} by ") for w in worse)]
    if worse:
        text += f"; lower by more than {ERRORS:.0f} paired errors: {_listed(worse)}"
    if near:
        text += f"; not told from it: {_listed(near)}"
    return f"{text}."


def _attack(table: pd.DataFrame, epsilon: float) -> str:
    parts = [f"{name} {with_error(row['lost'], row['lost_se'])}" for name, row in table.iterrows()]
    return (
        f"a step of {epsilon:g} of the largest pixel against each method changes its log score, "
        f"beyond what as large a step at random does, by (nats a row): {_listed(parts)}."
    )


def _tied(ranking: Sequence[Ranked]) -> list[str]:
    return [place.name for place in ranking if not place.is_behind]


def _listed(names: Sequence[str]) -> str:
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)
