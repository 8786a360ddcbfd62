"""Compare posteriors of any Pyro models: LOO and k-fold scores, distances to a reference."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from pyro_bnn.arviz_io import khat_limit
from pyro_bnn.arviz_io.loo import LooResult
from pyro_bnn.diagnostics.convergence import MIN_CHAINS, MIN_ESS, RHAT_THRESHOLD, ChainChecks
from pyro_bnn.diagnostics.ranking import Ranked, paired_difference, rank
from pyro_bnn.errors import DataError, OptionError, SiteError, UnknownNameError
from pyro_bnn.plotting.numbers import number, with_error
from pyro_bnn.posterior.call_posterior import CallPosterior
from pyro_bnn.posterior.nature import Fault, Nature
from pyro_bnn.program.fingerprint import wave
from pyro_bnn.program.joint import Joint
from pyro_bnn.report.calls.evaluate import (
    CallEvaluation,
    KFoldResult,
    evaluate_call,
    require_same_number,
)
from pyro_bnn.report.calls.kfold import Folds, with_kfold
from pyro_bnn.report.evaluation.against import AgainstReference, against
from pyro_bnn.report.verdicts.advice import advice, listed, sentence
from pyro_bnn.report.verdicts.chain_verdicts import defects
from pyro_bnn.report.verdicts.spread_verdicts import (
    is_far,
    is_narrow,
    is_shifted,
    is_wide,
    median_of,
)

if TYPE_CHECKING:
    import pandas as pd

NAN = float("nan")
WIDTH = 100  # of a terminal
INDENT: dict[str, Any] = {"subsequent_indent": "  ", "break_long_words": False}
SAME = 1e-6  # relative difference of the densities of one model


@dataclass(frozen=True, eq=False)
class CallComparison:
    """Posteriors of any Pyro models compared; made by `compare`. Printing it gives a summary.

    Attributes:
        table: A row a method, by LOO score: ``elpd_loo`` and ``p_loo`` of the exact posterior of
            its model, in nats over all data, with the paired ``difference`` to that of the best
            model, which one posterior of each model is ``tied`` with or not; ``max_khat`` and the
            share ``bad_khat`` of data above the limit for so many draws, at most 0.7; ``khat`` of
            an approximation; and of chains the worst R-hat and ESS over latent sites. With folds
            by ``elpd_kfold``, of which ``difference`` and ``tied`` are then, of each posterior.
        distances: A row a method and site against the reference: ``distance``, the mean over the
            site's numbers of the first Wasserstein distance in sds of the reference, and ``floor``,
            the same between halves of the reference; shift of the mean in these sds and ratio of
            sds, each the median and the extremes over the site's numbers.
        verdicts: What the numbers carry, in words.
        site: The observed site whose values are left out.
        reference: Name of the reference, or None.
        evaluations: All numbers by method.
    """

    table: pd.DataFrame
    distances: pd.DataFrame
    verdicts: list[str]
    site: str | None
    reference: str | None
    evaluations: dict[str, CallEvaluation]

    def summary(self) -> str:
        """Tables and verdicts for a terminal."""
        parts = [_shown(self.table).T.to_string()]
        if len(self.distances):
            parts.append(
                f"Against {self.reference}, in its sds\n{_shown(self.distances).to_string()}"
            )
        parts.append("\n".join(textwrap.fill(f"- {v}", WIDTH, **INDENT) for v in self.verdicts))
        return "\n\n".join(parts)

    def __repr__(self) -> str:
        return self.summary()

    def _repr_html_(self) -> str:
        from html import escape

        tables = [_shown(table).to_html() for table in (self.table, self.distances) if len(table)]
        items = "".join(f"<li>{escape(verdict)}</li>" for verdict in self.verdicts)
        return f"{''.join(tables)}<ul>{items}</ul>"


def compare_calls(
    posteriors: Mapping[str, CallPosterior],
    *,
    site: str | None = None,
    reference: str | None = None,
    folds: Folds | None = None,
    num_samples: int | None = None,
    seed: int = 0,
) -> CallComparison:
    """As :func:`pyro_bnn.report.compare` of posteriors without rows, which describes it."""
    if reference is not None and reference not in posteriors:
        raise UnknownNameError("reference", reference, posteriors)
    for name, posterior in posteriors.items():
        if not isinstance(posterior, CallPosterior):
            raise OptionError(
                f"{name!r} is a {type(posterior).__name__}, of rows: compare it on held-out rows, "
                "compare(posteriors, split), or run its model on a data.Call"
            )
    site = _site(posteriors, site, is_needed=reference is None or folds is not None)
    entries = {
        name: evaluate_call(name, posterior, site, num_samples, seed)
        for name, posterior in posteriors.items()
    }
    if folds is not None and site is not None:
        entries = with_kfold(entries, site, folds, num_samples, seed)
        groups = [[own] for own in entries.values() if own.kfold is not None]
    else:
        groups = _of_one_model([own for own in entries.values() if own.loo is not None])
    scores = {name: own.score for name, own in entries.items() if own.score is not None}
    require_same_number({name: len(score.pointwise) for name, score in scores.items()}, site)
    ranked = {own[0].name: scores[own[0].name] for own in groups}
    places = []
    if ranked:
        places = rank(
            {name: score.pointwise for name, score in ranked.items()},
            {name: _draws_error(score) for name, score in ranked.items()},
        )
    found, left_out = _against(entries, reference)
    return CallComparison(
        table=_table(entries, places),
        distances=_distances(found),
        verdicts=[*_verdicts(entries, groups, places, found, left_out, site, reference)],
        site=site,
        reference=reference,
        evaluations=entries,
    )


def _site(
    posteriors: Mapping[str, CallPosterior], site: str | None, *, is_needed: bool
) -> str | None:
    """The observed site that is left out, of the same values in all models.

    Raises:
        DataError: If its values differ.
        OptionError: If it is not clear which one is meant.
        SiteError: If a model does not observe it.
    """
    observed = {name: posterior.observed for name, posterior in posteriors.items()}
    if site is None:
        first = next(iter(observed.values()))
        common = [each for each in first if all(each in own for own in observed.values())]
        if len(common) > 1 or (is_needed and not common):
            told = "; ".join(
                f"{name}: {', '.join(own) or 'none'}" for name, own in observed.items()
            )
            raise OptionError(
                f"site= names the observed site that is left out; observed are {told}"
            )
        if not common:
            return None
        site = common[0]
    for name, own in observed.items():
        if site not in own:
            raise SiteError(
                f"{name} observes no {site!r}; it observes {', '.join(own) or 'nothing'}"
            )
    (first_name, values), *others = ((name, own[site]) for name, own in observed.items())
    for name, other in others:
        if values.shape != other.shape or not bool((values == other.to(values)).all()):
            raise DataError(
                f"{name} observes other values of {site!r} than {first_name}, so that their LOO "
                "scores are of other data: run both on the same"
            )
    return site


# Tables


def _table(entries: Mapping[str, CallEvaluation], places: Sequence[Ranked]) -> pd.DataFrame:
    import pandas as pd

    ranked = {place.name: place for place in places}
    with_folds = any(own.kfold is not None or own.kfold_why for own in entries.values())
    best = None if not places else entries[places[0].name].score
    rows: dict[str, dict[str, Any]] = {}
    for name, own in entries.items():
        loo, kfold, checks = own.loo, own.kfold, own.checks
        difference = None
        if own.score is not None and best is not None:
            errors = _draws_error(own.score), _draws_error(best)
            difference = paired_difference(own.score.pointwise, best.pointwise, monte_carlo=errors)
        if checks is not None and not checks.quantities:
            checks = None
        of_folds = {
            "elpd_kfold": NAN if kfold is None else kfold.elpd,
            "elpd_kfold_se": NAN if kfold is None else kfold.se,
        }
        rows[name] = (of_folds if with_folds else {}) | {
            "elpd_loo": NAN if loo is None else loo.elpd,
            "elpd_loo_se": NAN if loo is None else loo.se,
            "difference": NAN if difference is None else difference.total,
            "difference_se": NAN if difference is None else difference.total_standard_error,
            "tied": not ranked[name].is_behind if name in ranked else None,
            "p_loo": NAN if loo is None else loo.p,
            "max_khat": NAN if loo is None else float(loo.khat.max()),
            "bad_khat": NAN if loo is None else loo.num_bad / len(loo.khat),
            "khat": own.khat,
            "r_hat": NAN if checks is None else checks.worst_rhat,
            "ess_bulk": NAN if checks is None else checks.smallest_ess,
            "ess_tail": NAN if checks is None else checks.smallest_ess_tail,
            "divergent": NAN if own.checks is None else own.checks.divergent,
            "draws": own.num_draws,
            "seconds": own.posterior.wall_time,
        }
    table = pd.DataFrame.from_dict(rows, orient="index").rename_axis("method")
    first = "elpd_kfold" if with_folds else "elpd_loo"
    return table.sort_values(first, ascending=False, kind="stable")


def _draws_error(score: LooResult | KFoldResult) -> float:
    """Monte Carlo error of the mean score that is known: of refits, whose draws are their own."""
    return score.draws_error / len(score.pointwise) if isinstance(score, KFoldResult) else 0.0


Against = dict[str, dict[str, AgainstReference]]


def _against(
    entries: Mapping[str, CallEvaluation], reference: str | None
) -> tuple[Against, dict[str, list[str]]]:
    """Each method against the reference by site, and the sites that it lacks or has otherwise."""
    found: Against = {}
    left_out: dict[str, list[str]] = {}
    if reference is None:
        return found, left_out
    judge = entries[reference].draws
    for name, own in entries.items():
        if name == reference:
            continue
        found[name], left_out[name] = {}, []
        for site, draws in judge.items():
            theirs = own.draws.get(site)
            if theirs is None or theirs.shape[2] != draws.shape[2]:
                left_out[name].append(site)
                continue
            sd = draws.std((0, 1))
            unit = np.where(sd > 0, sd, 1.0)  # a site without spread has the units of its values
            found[name][site] = against(
                (theirs / unit).reshape(-1, theirs.shape[2])[..., None],
                (draws / unit)[..., None],
                where=f"numbers of {site!r}",
            )
    return found, left_out


def _distances(found: Against) -> pd.DataFrame:
    import pandas as pd

    rows = [
        {
            "method": name,
            "site": site,
            "distance": at.distance.value,
            "floor": at.distance.floor,
            "mean_shift": at.mean_shift.value,
            "mean_shift_se": at.mean_shift.standard_error,
            "mean_shift_max": at.mean_shift.quantile(1.0)[0],
            "sd_ratio": at.sd_ratio.value,
            "sd_ratio_se": at.sd_ratio.standard_error,
            "sd_ratio_min": at.sd_ratio.quantile(0.0)[0],
            "sd_ratio_max": at.sd_ratio.quantile(1.0)[0],
        }
        for name, sites in found.items()
        for site, at in sites.items()
    ]
    table = pd.DataFrame(rows)
    return table.set_index(["method", "site"]) if rows else table


def _shown(table: pd.DataFrame) -> pd.DataFrame:
    """The numbers as text, each with its error; without columns that are blank."""
    import pandas as pd

    cells = {}
    for name in table.columns:
        if str(name).endswith("_se") or name == "tied":
            continue
        errors = table.get(f"{name}_se", [NAN] * len(table))
        cells[name] = [with_error(float(v), e) for v, e in zip(table[name], errors, strict=True)]
        if name == "r_hat":
            cells[name] = [number(v, 4) for v in table[name]]  # as its limit needs
    shown = pd.DataFrame(cells, index=table.index)
    return shown.loc[:, (shown != "").any()]


# Verdicts


def _verdicts(
    entries: Mapping[str, CallEvaluation],
    models: Sequence[Sequence[CallEvaluation]],
    places: Sequence[Ranked],
    found: Against,
    left_out: Mapping[str, list[str]],
    site: str | None,
    reference: str | None,
) -> Iterator[str]:
    folds = max((own.kfold.num_folds for own in entries.values() if own.kfold), default=0)
    yield from _of_scores(models, places, site, f"{folds}-fold" if folds else "LOO")
    for name, own in entries.items():
        yield from _of_chains(own, is_reference=name == reference)
        if own.kfold is not None or own.kfold_why:
            yield from _of_refits(own, site)
        elif own.loo is None and site is not None:
            yield f"{name}: no LOO score of {site!r}: {own.why}."
        elif own.loo is not None and own.loo.num_bad:
            limit = khat_limit(max(own.num_draws, 2))
            yield (
                f"{name}: its LOO score is not to be trusted: k-hat is above {number(limit, 2)} at "
                f"{own.loo.num_bad} of {len(own.loo.khat)} values of {site!r}, up to "
                f"{number(float(own.loo.khat.max()), 2)}. Take folds={min(10, len(own.loo.khat))}, "
                "which scores values that refits have not seen."
            )
    if reference is not None:
        yield from _of_distances(entries[reference], entries, found)
    for name, sites in left_out.items():
        if sites:
            yield (
                f"{name}: not compared with {reference} at {listed(sites)}, which it lacks or has "
                "in another shape."
            )


def _of_refits(own: CallEvaluation, site: str | None) -> Iterator[str]:
    """Why there is no k-fold score, or which refits are not to be trusted."""
    if own.kfold is None:
        yield f"{own.name}: no k-fold score of {site!r}: {own.kfold_why}."
    elif faults := own.kfold.faults:
        fold, checks = next(iter(faults.items()))
        yield (
            f"{own.name}: defects in {len(faults)} of its {own.kfold.num_folds} refits, without "
            f"fold {fold}: {'; '.join(defects(checks))}. {_mend(own.nature, checks)}."
        )


def _of_scores(
    models: Sequence[Sequence[CallEvaluation]],
    places: Sequence[Ranked],
    site: str | None,
    kind: str,
) -> Iterator[str]:
    if len(places) > 1:
        best, *others = places
        tied = [_difference(place) for place in others if not place.is_behind]
        behind = [_difference(place) for place in others if place.is_behind]
        whose = f"The model of {best.name}" if kind == "LOO" else best.name
        text = f"{whose} has the highest {kind} score of {site!r}."
        if behind:
            text += f" Behind it by a test over all pairs: {listed(behind)} nats."
        if tied:
            text += f" Not shown to be behind: {listed(tied)} nats."
        yield text
    for group in models:
        if len(group) > 1:
            first, *others_of_it = (own.name for own in group)
            yield (
                f"{listed([first, *others_of_it])} are posteriors of one model, ranked by the "
                f"score of {first}. Each LOO score estimates that of its exact posterior, so that "
                "it does not tell them apart: the distances to a reference do."
            )


def _difference(place: Ranked) -> str:
    total, error = place.difference.total, place.difference.total_standard_error
    return f"{place.name} ({with_error(total, error)})"


def _of_one_model(entries: Sequence[CallEvaluation]) -> list[list[CallEvaluation]]:
    """Posteriors by their model, of each the one first whose score is the surest."""
    groups: list[list[CallEvaluation]] = []
    for own in entries:
        same = [g for g in groups if _is_same(g[0].posterior.program, own.posterior.program)]
        if same:
            same[0].append(own)
        else:
            groups.append([own])
    # chains before approximations, and of these that of the smallest k-hat
    return [sorted(group, key=lambda own: (own.checks is None, own.khat)) for group in groups]


def _is_same(a: Joint, b: Joint) -> bool:
    """Whether two models have the same sites, and the same density of them."""
    if [(s.name, s.shape) for s in a.sites] != [(s.name, s.shape) for s in b.sites]:
        return False
    first, second = (float(joint.log_joint(wave(joint.initial)).detach()) for joint in (a, b))
    return bool(np.isclose(first, second, rtol=SAME, atol=SAME))


def _of_chains(own: CallEvaluation, *, is_reference: bool) -> Iterator[str]:
    checks = own.checks
    if checks is None or is_reference:  # of the reference below
        return
    if faults := list(defects(replace(checks, num_chains=MIN_CHAINS))):
        yield f"{own.name}: {'; '.join(faults)}. {_mend(own.nature, checks)}."


def _mend(nature: Nature, checks: ChainChecks | None) -> str:
    """What mends the first fault of chains."""
    fault: Fault = "settling"
    if checks is not None and checks.quantities and checks.worst_rhat <= RHAT_THRESHOLD:
        few = min(checks.smallest_ess, checks.smallest_ess_tail) < MIN_ESS
        fault = "few draws" if few else "divergent"
    return sentence(advice(nature, fault))


def _of_distances(
    judge: CallEvaluation, entries: Mapping[str, CallEvaluation], found: Against
) -> Iterator[str]:
    checks = judge.checks
    if judge.nature.kind not in ("chains", "exact"):
        yield (
            f"The reference {judge.name} is of the kind {judge.nature.kind}: distances to it are "
            "shown but not judged. Take chains of NUTS, HMC or MAMS."
        )
        return
    if checks is not None and (faults := list(defects(checks))):
        yield (
            f"The reference {judge.name} has defects ({'; '.join(faults)}): distances to it are "
            f"shown but not judged. {_mend(judge.nature, checks)}."
        )
        return
    for name, sites in found.items():
        said = [text for site, at in sites.items() if (text := _fault(site, at))]
        step = sentence(advice(entries[name].nature, "poor family"))
        if said:
            yield f"{name} against {judge.name}: {'; '.join(said)}. {step}."
        elif sites:
            yield f"{name}: no fault against {judge.name} at {listed([*sites])}."


def _fault(site: str, at: AgainstReference) -> str:
    """What is wrong with a method at one site; empty where nothing is beyond doubt."""
    parts = []
    if is_shifted(at):
        parts.append(f"its mean is off by {median_of(at.mean_shift)} sds")
    if is_narrow(at):
        parts.append(f"its sd is {median_of(at.sd_ratio)} times that of the reference, too small")
    if is_wide(at):
        parts.append(f"its sd is {median_of(at.sd_ratio)} times that of the reference, too large")
    if is_far(at):
        parts.append(f"its shape differs, by a distance of {number(at.distance.value)} sds")
    return f"{site!r}: {' and '.join(parts)}" if parts else ""
