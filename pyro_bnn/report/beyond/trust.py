"""Classifiers beyond one log score: calibration, rejection, corruption, unknown inputs, attack."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from tqdm.auto import tqdm

from pyro_bnn.checks import check_positive_int
from pyro_bnn.data.split import require_split
from pyro_bnn.diagnostics.one_pass.single_pass import OnePass
from pyro_bnn.diagnostics.trust.corruptions import CorruptionScale
from pyro_bnn.errors import DataError, OptionError
from pyro_bnn.files.atomic import made_folder, write_text
from pyro_bnn.report.beyond.answer import answer, text_summary
from pyro_bnn.report.beyond.images import Pixels, corrupted, unknown_inputs
from pyro_bnn.report.beyond.numbers import CONTROL, MOVED, TEST, UNKNOWN, Fit, TrustNumbers
from pyro_bnn.report.beyond.scored import score_rows
from pyro_bnn.report.compare import check_names, common_draws

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from pyro_bnn.data.split import Split
    from pyro_bnn.diagnostics.trust.attack import Attacked
    from pyro_bnn.posterior.protocol import PosteriorLike
    from pyro_bnn.report.verdicts.statement import Answer

NUM_DRAWS = 200
SHIFTED_ROWS = 1_000


class Trust(TrustNumbers):
    """Classifiers on test rows, corrupted, unknown and attacked ones; made by `trust`.

    Methods are RANKED by the log score only; all else is shown with its error, and the paired
    difference to the best. Printing it gives a summary. Numbers and tables are those of
    `TrustNumbers`.
    """

    @cached_property
    def answer(self) -> Answer:
        """A headline, and labelled statements; no difference below its standard error is stated."""
        return answer(self)

    @cached_property
    def figures(self) -> dict[str, Figure]:
        """Figures by name; matplotlib without pyplot."""
        from pyro_bnn.report.beyond.plots import PLOTS
        from pyro_bnn.report.plots.figures import Figures

        return dict(Figures(self, PLOTS))

    def summary(self) -> str:
        """The answer and the main table for a terminal."""
        return text_summary(self)

    def __repr__(self) -> str:
        return self.summary()

    def save(self, folder: str | Path, *, command: str = "") -> Path:
        """Writes ``index.html`` and the tables as CSV files.

        Args:
            folder: Made where it does not exist; files of the same names are replaced.
            command: What to run to get this page again, shown at its end.

        Returns:
            The folder.

        Raises:
            OutputError: If a file cannot be written.
        """
        from pyro_bnn.report.beyond.page import render

        folder = made_folder(folder)
        tables = {"table.csv": self.table, "shifted.csv": self.shifted}
        tables |= {"conditions.csv": self.by_condition, "unknown.csv": self.unknown}
        tables |= {"attacked.csv": self.attacked}
        kept = {name: table for name, table in tables.items() if len(table)}
        for name, table in kept.items():
            text = table.to_csv(index=table.index.name == "method")
            write_text(folder / name, text, follow=False)
        write_text(folder / "index.html", render(self, command, list(kept)), follow=False)
        return folder


def trust(
    posteriors: Mapping[str, PosteriorLike | OnePass | Sequence[PosteriorLike | OnePass]],
    split: Split,
    *,
    ood: Split | None = None,
    corruptions: Sequence[int] = (),
    kinds: Sequence[str] | None = None,
    scale: CorruptionScale | None = None,
    attack: float | None = None,
    reference: str | PosteriorLike | None = None,
    num_samples: int = NUM_DRAWS,
    num_rows: int = SHIFTED_ROWS,
    seed: int = 0,
    progress: bool = False,
) -> Trust:
    """Judges classifiers on test rows, and on corrupted, unknown and attacked ones.

    Numbers have standard errors over rows and, of several fits of a method, over their seeds;
    differences are paired over rows. Methods are ranked by the log score alone.

    Args:
        posteriors: By the name of the method, a posterior or one a seed; or a classifier of one
            pass, such as ``pyro_bnn.diagnostics.DDU``, whose scores of features are then beside
            those of the probabilities.
        split: Classes; test rows in the units of the models.
        ood: A data set of other images; its test rows are the unknown inputs.
        corruptions: Severities of corruption, some of 1 to 5.
        kinds: Names of corruptions, of ``pyro_bnn.diagnostics.KINDS``; None for eight usual ones.
        scale: Constants of ``"mnist"`` or of ``"cifar"``; None chooses by the number of channels.
        attack: Largest move of a pixel by the fast gradient sign method, in units of the largest
            pixel, within black and white.
        reference: Name of one of the methods, such as long chains, or another posterior: the table
            then has ``agreement`` and ``total_variation``, the mean over test rows of equal classes
            and of the total variation distance of the probabilities.
        num_samples: Draws of every method.
        num_rows: Largest number of test rows, from the first, that are corrupted and attacked.
        seed: Of draws, noise and random signs.
        progress: Whether to show a progress bar.

    Raises:
        OptionError: If there is no posterior, a name is no text, or a number is not allowed.
        ShapeError: If the unknown inputs have another number of pixels.
        DataError: If the data are no classes, or the inputs no images where these are needed.

    References:
        Ovadia et al., "Can You Trust Your Model's Uncertainty? Evaluating Predictive Uncertainty
        Under Dataset Shift", NeurIPS 2019, arXiv:1906.02530.
    """
    fitted = {name: _several(fits) for name, fits in posteriors.items()}
    if not fitted or not all(fitted.values()):
        raise OptionError("nothing to judge: give at least one posterior by the name of its method")
    check_names(fitted)
    check_trust(split, attack=attack, corruptions=corruptions, kinds=kinds, scale=scale, ood=ood)
    check_reference(reference, fitted)
    if attack is not None and (
        one_pass := [n for n, f in fitted.items() if isinstance(f[0], OnePass)]
    ):
        raise OptionError(
            f"the attack follows the gradient of a posterior's draws, which {', '.join(one_pass)} "
            "has none of: leave attack out, or judge the posteriors alone"
        )
    check_positive_int("num_samples", num_samples)
    check_positive_int("num_rows", num_rows)
    num_draws = common_draws([fit for seeds in fitted.values() for fit in seeds], num_samples)
    conditions = []
    if corruptions:
        conditions = corrupted(
            split, corruptions, kinds=kinds, scale=scale, num_rows=num_rows, seed=seed
        )
    shared = {TEST: split.test.x} | {condition.name: condition.x for condition in conditions}
    if ood is not None:
        shared[UNKNOWN] = unknown_inputs(split, ood)
    num_sets = sum(map(len, fitted.values())) * (len(shared) + 2 * (attack is not None))
    bar = tqdm(total=num_sets, disable=not progress, desc="Judging", unit="set")

    def fit_of(posterior: PosteriorLike | OnePass) -> Fit:
        scores, inputs = {}, dict(shared)
        if attack is not None:
            attacked = _attacked(posterior, split, attack, num_rows, num_draws, seed)
            inputs |= {MOVED: attacked.x, CONTROL: attacked.control}
        for name, x in inputs.items():
            y = None if name == UNKNOWN else split.test.y[: len(x)]
            scores[name] = score_rows(posterior, x, y, num_draws, seed)
            bar.update()
        return scores

    with bar:
        fits = {name: [fit_of(posterior) for posterior in seeds] for name, seeds in fitted.items()}
        reference_probs = None
        if isinstance(reference, str):
            reference_probs = np.mean([fit[TEST].probs for fit in fits[reference]], axis=0)
        elif reference is not None:
            count = common_draws([reference], num_samples)
            scored = score_rows(reference, split.test.x, split.test.y, count, seed)
            reference_probs = scored.probs
    return Trust(
        split,
        fits,
        num_draws=num_draws,
        conditions=conditions,
        ood_name=None if ood is None else ood.name,
        epsilon=attack,
        reference=reference_probs,
        reference_name=reference if isinstance(reference, str) else "the reference",
    )


def check_reference(reference: object, names: Collection[str]) -> None:
    """Check that a reference is one of the methods, or a posterior.

    Raises:
        OptionError: If it is another text.
    """
    if isinstance(reference, str) and reference not in names:
        raise OptionError(
            f"the reference {reference!r} is none of the methods: name one of {', '.join(names)}, "
            "or give a posterior"
        )


def check_trust(
    split: Split,
    *,
    ood: Split | None = None,
    corruptions: Sequence[int] = (),
    kinds: Sequence[str] | None = None,
    scale: CorruptionScale | None = None,
    attack: float | None = None,
) -> None:
    """Check the arguments of `trust` before anything is fitted.

    Raises:
        OptionError, ShapeError, DataError: As `trust`.
    """
    require_split(split)
    if split.task != "classification":
        raise DataError(f"{split.name} is a {split.task} set: trust is judged of classes")
    if attack is not None:
        if not 0 < attack < math.inf:
            raise OptionError(f"attack is a step > 0 in units of the largest pixel, not {attack}")
        Pixels.of(split)
    if corruptions:
        corrupted(split, corruptions, kinds=kinds, scale=scale, num_rows=1)
    elif kinds is not None or scale is not None:
        raise OptionError("kinds and scale say which corruptions: give their severities as well")
    if ood is not None:
        unknown_inputs(split, ood)


def _several(fits: Any) -> list[Any]:
    return list(fits) if isinstance(fits, Sequence) else [fits]


def _attacked(
    posterior: Any, split: Split, epsilon: float, num_rows: int, num_draws: int, seed: int
) -> Attacked:
    from pyro_bnn.diagnostics.trust.attack import fgsm

    pixels = Pixels.of(split)
    x, y = split.test.x[:num_rows], split.test.y[:num_rows]
    scale = 1.0 if pixels.units is None else pixels.units.scale.to(x)
    low, high = (pixels.inputs(np.full((1, *pixels.shape), value), x)[0] for value in (0.0, 1.0))
    return fgsm(
        posterior,
        (x, y),
        epsilon * pixels.largest / scale,
        num_samples=num_draws,
        seed=seed,
        low=low,
        high=high,
    )
