"""What numbers of classifiers carry, in sentences: nothing that is below its standard error."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from pyro_bnn.diagnostics.ranking import Ranked
from pyro_bnn.plotting.numbers import number, percent, with_error
from pyro_bnn.report.beyond.estimate import ERRORS
from pyro_bnn.report.verdicts.advice import listed
from pyro_bnn.report.verdicts.statement import Answer, Statement

if TYPE_CHECKING:
    import pandas as pd

    from pyro_bnn.report.beyond.numbers import TrustNumbers

OOD_SCORE = "entropy"


def answer(results: TrustNumbers) -> Answer:
    """A headline, and statements with a label each."""
    return Answer(headline(results), tuple(Statement(*one) for one in statements(results)))


def headline(results: TrustNumbers) -> str:
    """Which methods are not behind."""
    ahead = _tied(results.ranking)
    everywhere = [
        name for name in ahead if name in _tied(results.shifted_ranking or results.ranking)
    ]
    where = " and under corruption" if results.conditions else ""
    if len(results.names) == 1:
        return f"One method, {results.names[0]}: nothing to compare"
    if not everywhere:
        return (
            f"No method is ahead everywhere: on the test images {listed(ahead)}, under "
            f"corruption {listed(_tied(results.shifted_ranking))}"
        )
    if len(everywhere) == 1:
        return f"Trust {everywhere[0]} here, by the log score on the test {results.noun}{where}"
    rest = (
        "" if len(everywhere) < len(results.names) else f"; these {results.noun} cannot rank them"
    )
    return f"Not behind on the test {results.noun}{where}: {listed(everywhere)}{rest}"


def statements(results: TrustNumbers) -> Iterator[tuple[str, str]]:
    """One a question: scores, corruption, calibration, rejection, unknown inputs, attack."""
    yield f"Test {results.noun}", _scores(results.ranking, results.table)
    if results.conditions:
        yield "Corrupted", _scores(results.shifted_ranking, results.shifted)
    yield "Calibration", _calibration(results.table, results.noun)
    yield "Rejection", _rejection(results.table, results.noun)
    if results.reference is not None and len(others := results.table.dropna(subset="agreement")):
        yield "Reference", _from_reference(others, results.reference_name, results.noun)
    if results.ood_name is not None:
        yield "Unknown inputs", _unknown(results.unknown, results.ood_name)
    if results.epsilon is not None:
        yield "Attack", _attack(results.attacked, results.epsilon)
    single = [name for name, own in results.fits.items() if len(own) == 1]
    if single:
        is_all = len(single) == len(results.names)
        ranked = "" if is_all else " The ranking takes its scatter over seeds from the others."
        yield (
            "Not in the errors",
            "other seeds of the fit, and other draws of its weights: one fit of "
            f"{'each method' if is_all else listed(single)} was judged.{ranked}",
        )


def text_summary(results: TrustNumbers) -> str:
    """The answer and the main numbers for a terminal."""
    title, lines, _ = answer(results)
    table = results.table
    rows = [
        f"  {name:<32} {with_error(row['log_score'], row['log_score_se']):>20} "
        f"{row['accuracy']:>8.4f} {row['ece']:>8.4f} {row['floor']:>8.4f}"
        for name, row in table.iterrows()
    ]
    head = f"  {'method':<32} {'log score':>20} {'accuracy':>8} {'ECE':>8} {'floor':>8}"
    return "\n".join(
        [title + ".", "", *(f"{one.label}: {one.text}" for one in lines), "", head, *rows]
    )


def _scores(ranking: Sequence[Ranked], table: pd.DataFrame) -> str:
    best = ranking[0]
    row = table.loc[best.name]
    text = f"{best.name} scores {with_error(row['log_score'], row['log_score_se'])} nats a row"
    behind = [place for place in ranking if place.is_behind]
    tied = [place.name for place in ranking[1:] if not place.is_behind]
    if tied:
        text += f"; not shown to be behind it: {listed(tied)}"
    if behind:
        gaps = [
            f"{p.name} by {with_error(-gap['log_score_gap'], gap['log_score_gap_se'])}"
            for p in behind
            for gap in [table.loc[p.name]]
        ]
        text += f"; behind: {listed(gaps)}"
    return f"{text}."


def _calibration(table: pd.DataFrame, noun: str) -> str:
    """By the debiased squared error: of a calibrated method its mean is 0, its scatter known."""
    value = table["debiased_ece2"]
    is_known = value.notna()  # not of a single row
    is_off = is_known & (value > ERRORS * table["debiased_ece2_sd"])
    off = [
        f"{name} (ECE {number(row['ece'])}, floor {number(row['floor'])}{_direction(row)})"
        for name, row in table[is_off].iterrows()
    ]
    told = {
        f"probabilities are off by more than {ERRORS:.0f} standard deviations of chance": off,
        "not shown to be off": list(table.index[is_known & ~is_off]),
        f"too few {noun} to say": list(table.index[~is_known]),
    }
    text = "; ".join(f"{what}: {listed(names)}" for what, names in told.items() if names)
    return (
        f"{text}. ECE is the mean distance between the largest probability and how often it is "
        "right; the floor is what chance gives."
    )


def _direction(row: pd.Series[float]) -> str:
    """Where a temperature improves the other half of the rows, whether it cools or heats."""
    if not row["temperature_gain"] > ERRORS * row["temperature_gain_se"]:
        return ""
    word = "too sure" if row["temperature"] > 1 else "not sure enough"
    return f", {word}: temperature {number(row['temperature'])}"


def _rejection(table: pd.DataFrame, noun: str) -> str:
    first = str(table.index[0])
    row = table.loc[first]
    return (
        f"with the least certain {noun} left out first, the share of {noun} that are kept and "
        f"wrong, over all shares kept (AUGRC, lower is better), is "
        f"{with_error(row['augrc'], row['augrc_se'])} of {first} (at random "
        f"{number(row['augrc_random'])}, at best {number(row['augrc_best'])})"
        f"{_beside(table, 'augrc', first, sign=-1)}."
    )


def _from_reference(table: pd.DataFrame, name: str, noun: str) -> str:
    """How near each method's probabilities are to the reference's."""
    each = [
        f"{method} on {percent(row['agreement'], 2)}, total variation "
        f"{with_error(row['total_variation'], row['total_variation_se'])}"
        for method, row in table.iterrows()
    ]
    return (
        f"share of {noun} on which the likeliest class is that of {name}, and mean distance of the "
        f"probabilities (total variation, 0 to 1): {'; '.join(each)}."
    )


def _unknown(table: pd.DataFrame, name: str) -> str:
    of = table[table["score"] == OOD_SCORE].set_index("method")
    features = table[table["score"].str.startswith("feature")].set_index("method")
    beside = [
        f" By its {row['score']} {method} has AUROC {with_error(row['auroc'], row['auroc_se'])}."
        for method, row in features.iterrows()
    ]
    best = str(of["auroc"].idxmax())
    row = of.loc[best]
    words = f"AUROC {with_error(row['auroc'], row['auroc_se'])}, 0.5 being chance"
    if not row["auroc"] - 0.5 > row["auroc_told"] * row["auroc_se"]:
        return (
            f"no method is shown to tell {name} from the test images by its {OOD_SCORE}: the "
            f"highest is {best}, {words}.{''.join(beside)}"
        )
    return (
        f"by its {OOD_SCORE} {best} tells {name} from the test images best ({words})"
        f"{_beside(of, 'auroc', best)}.{''.join(beside)}"
    )


def _beside(table: pd.DataFrame, key: str, best: str, sign: float = 1.0) -> str:
    """Who differs from one method, of all pairs at once, and who does not."""
    others: dict[str, list[str]] = {"worse": [], "better": [], "not told from it": []}
    for name, row in table.drop(index=best).iterrows():
        gap, error = sign * row[f"{key}_gap"], row[f"{key}_gap_se"]
        if abs(gap) > row[f"{key}_gap_told"] * error:
            what = "better" if gap > 0 else "worse"
            others[what].append(f"{name} by {with_error(abs(gap), error)}")
        else:
            others["not told from it"].append(str(name))
    text = "".join(f"; {what}: {listed(names)}" for what, names in others.items() if names)
    how = "all pairs at once: of equal methods none is told apart in 95 of 100 data sets"
    if len(table) == 2:
        how = f"told from {table[f'{key}_gap_told'].max():.3g} paired errors on"
    return f"{text} ({how})" if text else ""


def _attack(table: pd.DataFrame, epsilon: float) -> str:
    is_told = -table["lost"] > ERRORS * table["lost_se"]
    costs = [f"{n} {with_error(-row['lost'], row['lost_se'])}" for n, row in table.iterrows()]
    rest = list(table.index[~is_told])
    return (
        f"every pixel is moved by up to {epsilon:g} of the largest, within black and white, "
        "against the method. Beyond what random signs cost, this costs (nats a row): "
        f"{listed(costs)}"
        f"{f'; not shown to cost more than at random: {listed(rest)}' if rest else ''}."
    )


def _tied(ranking: Sequence[Ranked]) -> list[str]:
    return [place.name for place in ranking if not place.is_behind]
