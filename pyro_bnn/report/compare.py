"""Compare posteriors on one split: same draws, same rows, same scores, ties called ties."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, overload

from pyro_bnn.data.dataset import whole_columns
from pyro_bnn.data.split import require_split
from pyro_bnn.diagnostics.probes import Probes, probe_rows
from pyro_bnn.errors import BNNError, DivergenceError, OptionError, UnknownNameError
from pyro_bnn.files.atomic import made_folder, write_text
from pyro_bnn.report.calls.compare import CallComparison, compare_calls
from pyro_bnn.report.calls.kfold import Folds
from pyro_bnn.report.comparison import Evaluations
from pyro_bnn.report.evaluation.distances import (
    as_reference,
    at_probes,
    reference_draws,
    with_distances,
)
from pyro_bnn.report.evaluation.evaluate import Evaluation, evaluate
from pyro_bnn.report.evaluation.fit_record import ModelRecord, record_of
from pyro_bnn.report.evaluation.saved import SavedEvaluation, tree_of
from pyro_bnn.report.evaluation.units import to_numpy
from pyro_bnn.report.output.names import file_names, tutorial_from, warn_of_others
from pyro_bnn.report.output.target_tables import target_table
from pyro_bnn.report.output.text import text_summary

if TYPE_CHECKING:
    import pandas as pd

    from pyro_bnn.data.split import Split
    from pyro_bnn.posterior.call_posterior import CallPosterior
    from pyro_bnn.posterior.protocol import HasDrawCounts, PosteriorLike
    from pyro_bnn.report.plots.figures import Figures


class Alone(NamedTuple):
    """What a posterior comes to by itself, before it is compared with others.

    Attributes:
        num_draws: Draws that it was to have.
        entry: Its numbers; None if there are none.
        why: Why there are none.
    """

    num_draws: int
    entry: Evaluation | None
    why: str = ""


class Comparison(Evaluations):
    """Posteriors compared on one split; made by `compare`.

    Printing it gives a summary for the terminal.

    Attributes:
        evaluations: All numbers by method, in the order given.
        posteriors: The posteriors themselves by name; none of files, which hold evaluations.
        split: The data they are compared on.
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

    @cached_property
    def targets(self) -> pd.DataFrame:
        """Scores of each of several targets, by target and method; empty where there is one."""
        return target_table(self)

    @cached_property
    def figures(self) -> Figures:
        """Figures by name, drawn when they are first asked for; matplotlib without pyplot."""
        from pyro_bnn.report.plots.figures import Figures

        return Figures(self)

    def summary(self) -> str:
        """Table and verdicts for a terminal, at most 100 columns wide."""
        return text_summary(self)

    def __repr__(self) -> str:
        return self.summary()

    def _repr_html_(self) -> str:
        from pyro_bnn.report.output.html import render_fragment

        return render_fragment(self)

    def to_html(self, path: str | Path, *, command: str = "") -> Path:
        """Writes the report as one self-contained page.

        Args:
            path: File to write; its folder is made where it does not exist.
            command: What to run to get this report again, shown at its end.

        Returns:
            The path.

        Raises:
            OutputError: If the file cannot be written.
        """
        from pyro_bnn.report.output.html import render

        path = Path(path)
        made_folder(path.parent)
        write_text(path, render(self, command))
        return path

    def save(self, folder: str | Path, *, command: str = "", with_draws: bool = True) -> Path:
        """Writes ``index.html``, ``table.csv``, ``verdicts.json`` and a NetCDF file a method.

        NetCDF files are named by the kebab-case name of the method in the comparison. Those of
        other methods, and folders of single runs, stay with a
        :class:`~pyro_bnn.errors.BNNWarning` that names them.

        Args:
            folder: Made where it does not exist; files of the same names are replaced.
            command: What to run to get this report again, shown at its end.
            with_draws: Whether to write the NetCDF files.

        Returns:
            The folder.

        Raises:
            OutputError: If a file cannot be written; the others are, the NetCDF files last.
        """
        return self.save_with(folder, command, self.write_draws if with_draws else None)

    def draws_files(self, folder: Path) -> dict[str, Path]:
        """The NetCDF file of each method in a folder; none of files, which have theirs."""
        return {name: folder / f"{stem}.nc" for name, stem in file_names(self.posteriors).items()}

    def write_draws(self, name: str, path: Path) -> None:
        """Writes the NetCDF file of one method: draws of its posterior, and its evaluation."""
        from pyro_bnn import arviz_io

        tree = tree_of(self.saved(name), self.posteriors[name], self.split)
        arviz_io.save_netcdf(tree, path, follow=False)

    def saved(self, name: str) -> SavedEvaluation:
        """What the file of one method has beside its draws."""
        return SavedEvaluation(
            entry=self.evaluations[name],
            split=self.rows,
            compared=tuple(self.evaluations),
            num_draws=self.num_draws,
            seed=self.seed,
            reference=self.reference,
            probes=self.probes,
        )

    def save_with(
        self, folder: str | Path, command: str, write_draws: Callable[[str, Path], object] | None
    ) -> Path:
        """As :meth:`save`, with draws that a function writes."""
        from pyro_bnn.report.output.html import render
        from pyro_bnn.report.output.verdict_file import verdict_document

        folder = made_folder(folder)
        files = {} if write_draws is None else self.draws_files(folder)
        write_text(folder / "table.csv", self.table.to_csv(), follow=False)
        verdicts = json.dumps(verdict_document(self), indent=2)
        write_text(folder / "verdicts.json", verdicts + "\n", follow=False)
        names = ["table.csv", "verdicts.json", *(path.name for path in files.values())]
        tutorial = tutorial_from(folder)
        page = render(self, command, [(name, name) for name in names], tutorial)
        write_text(folder / "index.html", page, follow=False)
        missing: list[BNNError] = []
        for name, path in files.items():  # the largest come last, and one stops no other
            try:
                assert write_draws is not None
                write_draws(name, path)
            except BNNError as error:
                missing.append(error)
        if missing:
            raise missing[0]
        if files:
            warn_of_others(folder, [path.name for path in files.values()])
        return folder


@overload
def compare(
    posteriors: Mapping[str, CallPosterior],
    split: None = ...,
    *,
    site: str | None = ...,
    folds: Folds | None = ...,
    reference: str | None = ...,
    num_samples: int | None = ...,
    seed: int = ...,
) -> CallComparison: ...


@overload
def compare(
    posteriors: Mapping[str, PosteriorLike],
    split: Split,
    *,
    reference: str | None = ...,
    num_samples: int | None = ...,
    seed: int = ...,
) -> Comparison: ...


def compare(
    posteriors: Mapping[str, Any],
    split: Split | None = None,
    *,
    site: str | None = None,
    folds: Folds | None = None,
    reference: str | None = None,
    num_samples: int | None = None,
    seed: int = 0,
) -> Comparison | CallComparison:
    """Compares posteriors on the held-out rows of one split, or those of any Pyro models.

    Methods are RANKED by one number only, the held-out log score (log of the mean density over
    draws). A method is behind if some other is better by a test over all pairs at once, with a
    family-wise error of 5 % (:func:`pyro_bnn.diagnostics.rank`); the others are tied. All else is
    shown beside it, and judged in the verdicts where the numbers carry that.

    Every method gets the same number of draws, the smallest that all can give; a point estimate
    (MAP) is one draw of the function, an ensemble of K networks K, and they say so.

    Posteriors of any Pyro models, run on a ``data.Call``, have no rows to hold out: without a
    split their MODELS are ranked by the PSIS leave-one-out score of an observed site, each value
    left out in turn, by the same test. It is the score of the exact posterior of each model, to
    which draws of an approximation are reweighted, or none is given. How near a posterior is to the
    reference is told by the distances of each site that both have.

    Args:
        posteriors: Posteriors by the name they shall have in the report.
        split: Training and test rows in the standardised units of the models; None for posteriors
            of a ``data.Call``.
        site: Of these, the observed site; by default the only one that all of them observe.
        folds: Of these, the number of folds, into which values fall at random, or the fold of each
            value in an array of the site's shape, as of groups that are left out whole.
        reference: Name of the posterior to measure distances to (long NUTS chains), or None.
        num_samples: Draws of every method, over all chains; by default 1,000 on a split, and
            without one all that are stored.
        seed: Seed of all draws.

    Raises:
        OptionError: If there is no posterior, a name is no text, or fewer than one draw is asked
            for, or than two of what is no point estimate; if a split is missing or has no effect,
            it is not clear which site is meant, or a posterior has no engine to run on folds.
        UnknownNameError: If ``reference`` is not one of the names; suggests the nearest.
        DataError: If the data are no Split, a held-out log score is NaN, or models without a split
            observe other values.
        SiteError: If a model does not observe the site.
    """
    if split is None:
        _require_posteriors(posteriors)
        return compare_calls(
            posteriors,
            site=site,
            folds=folds,
            reference=reference,
            num_samples=num_samples,
            seed=seed,
        )
    if site is not None or folds is not None:
        option = "folds" if site is None else f"site={site!r}"
        raise OptionError(
            f"{option} would have no effect with a split, whose rows are scored: leave one out"
        )
    num_samples = 1000 if num_samples is None else num_samples
    return compare_all(
        posteriors, split, {}, reference=reference, num_samples=num_samples, seed=seed
    )


def _require_posteriors(posteriors: Mapping[str, object]) -> None:
    if not posteriors:
        raise OptionError(
            "nothing to compare: give posteriors by name, such as "
            'compare({"mean-field": posterior, "NUTS": reference}, split)'
        )
    check_names(posteriors)
    for name, value in posteriors.items():
        if not hasattr(value, "num_stored_draws"):
            raise OptionError(
                f"{name!r} is no posterior, but {type(value).__name__}: pass what engine.run "
                "returns, or of a run of stock Pyro bnn.from_mcmc or bnn.from_guide"
            )


def compare_all(
    posteriors: Mapping[str, PosteriorLike],
    split: Split,
    lost: dict[str, str],
    *,
    reference: str | None = None,
    num_samples: int = 1000,
    seed: int = 0,
    reason_of: Callable[[Exception], str] | None = None,
    alone: dict[str, Alone] | None = None,
) -> Comparison:
    """As :func:`compare`, with verdicts on methods that have no row.

    Args:
        posteriors: As :func:`compare` takes them.
        split: The data.
        lost: Why the others have none, by name; gets the reasons of those that cannot be evaluated.
        reference: Name of the reference, or None.
        num_samples: Draws of every method.
        seed: Seed of all draws.
        reason_of: Such a reason by its error; None raises each.
        alone: What posteriors come to by themselves, from :func:`evaluate_alone`, which is taken
            out of it; one that had another number of draws, or is not there, is evaluated here.

    Raises:
        DivergenceError: If no method can be evaluated.
    """
    _require_posteriors(posteriors)
    require_split(split)
    if num_samples < 1:
        raise OptionError(f"num_samples must be at least 1, got {num_samples}")
    if reference is not None and reference not in posteriors:
        raise UnknownNameError("reference", reference, posteriors)
    num_draws = common_draws(posteriors.values(), num_samples)
    if num_draws < 2 and any(posterior.num_atoms != 1 for posterior in posteriors.values()):
        raise OptionError(
            f"num_samples is {num_samples}, of which all posteriors have {num_draws} in common: "
            "one draw does not tell a spread from a point estimate; take at least 2"
        )
    probes, why = (None, "") if reference is None else find_probes(split)
    judge, models = None, dict[Any, ModelRecord]()
    evaluations: dict[str, Evaluation] = {}
    # the reference first: the others are measured against it
    for name in sorted(posteriors, key=lambda name: name != reference):
        own, posterior = (alone or {}).pop(name, None), posteriors[name]
        if own is None or own.num_draws != num_draws:
            own = evaluate_alone(
                name, posterior, split, num_draws=num_draws, seed=seed, reason_of=reason_of
            )
        if own.entry is None:
            lost[name] = own.why
            continue
        entry = own.entry.of_model(record_of(posterior.model, models))
        try:
            if name == reference:
                entry = as_reference(entry, why)
                if entry.held_out.has_mean:
                    judge = reference_draws(
                        entry, posterior, split, num_draws=num_draws, seed=seed, probes=probes
                    )
            if judge is not None and probes is not None:
                entry = at_probes(entry, posterior, split.test.x.new_tensor(probes.x), seed)
            if judge is not None and name != reference:
                entry = with_distances(entry, judge, split, num_draws)
        except Exception as error:
            lost[name] = _why(error, reason_of)
            continue
        evaluations[name] = entry
    if not evaluations:
        raise DivergenceError("; ".join(f"{name}: {reason}" for name, reason in lost.items()))
    return Comparison(
        {name: evaluations[name] for name in posteriors if name in evaluations},
        split,
        reference=reference if reference in evaluations else None,
        num_draws=num_draws,
        seed=seed,
        posteriors={name: own for name, own in posteriors.items() if name in evaluations},
        probes=probes,
        lost=lost,
    )


def evaluate_alone(
    name: str,
    posterior: PosteriorLike,
    split: Split,
    *,
    num_draws: int,
    seed: int,
    reason_of: Callable[[Exception], str] | None = None,
) -> Alone:
    """Evaluates one posterior, before or among others; arguments as of :func:`compare_all`."""
    try:
        entry = evaluate(name, posterior, split, num_draws=num_draws, seed=seed)
    except Exception as error:
        return Alone(num_draws, None, _why(error, reason_of))
    return Alone(num_draws, entry)


def _why(error: Exception, reason_of: Callable[[Exception], str] | None) -> str:
    if reason_of is None:
        raise error
    return f"its fit cannot be evaluated: {reason_of(error)}"


def check_names(names: Iterable[object]) -> None:
    """Check that names of posteriors are text.

    Raises:
        OptionError: If one is not.
    """
    if wrong := [name for name in names if not isinstance(name, str)]:
        raise OptionError(f"the name of a posterior is text, not {wrong[0]!r}: take '{wrong[0]}'")


def common_draws(posteriors: Iterable[HasDrawCounts], num_samples: int) -> int:
    """Largest number of draws up to ``num_samples`` that every posterior can give.

    Chains give equally many, and atoms have equal weights where draws are as many of each: it is a
    multiple of every number of chains, and of atoms where that leaves any.
    """
    posteriors = list(posteriors)
    stored = [posterior for posterior in posteriors if posterior.num_stored_draws is not None]
    count = min([num_samples, *(posterior.num_stored_draws or 1 for posterior in stored)])
    chains = math.lcm(*(posterior.num_chains for posterior in stored))
    both = math.lcm(chains, *(posterior.num_atoms or 1 for posterior in posteriors))
    for multiple in (both, chains):
        if count >= multiple:
            return count - count % multiple
    return count


def find_probes(split: Split) -> tuple[Probes | None, str]:
    """Rows off the data, or why there are none."""
    x = split.train.x
    if x.ndim != 2 or not x.is_floating_point():
        return None, f"inputs of shape {list(x.shape)} and type {x.dtype} are no table of numbers"
    whole = whole_columns(split.train)
    found = probe_rows(to_numpy(x), whole)
    if len(found.x):
        return found, ""
    why = "; columns of whole numbers stay at values that occur" if whole.any() else ""
    return None, f"its training inputs leave no gap and no range{why}"
