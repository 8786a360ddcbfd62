"""``pyro-bnn trust``: classifiers on corrupted, unknown and attacked images."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import typer

from pyro_bnn.cli.app import command
from pyro_bnn.cli.option_groups import MOST_DRAWS, named, option, spread
from pyro_bnn.cli.options import DataOptions, FitOptions, NetworkOptions
from pyro_bnn.cli.results import Result
from pyro_bnn.cli.saves import Saves, check
from pyro_bnn.errors import BNNError, DivergenceError

if TYPE_CHECKING:
    from pyro_bnn.cli.kept import EndedFits
    from pyro_bnn.cli.runs import RunPlan
    from pyro_bnn.data import Split


@dataclass(frozen=True, kw_only=True)
class TrustOptions:
    """What 'pyro-bnn trust' judges, beyond the test images as they are."""

    methods: str = option("As in 'pyro-bnn compare'.", ..., metavar="NAME,NAME,...")
    out: Path = option("Folder of the page; made where it does not exist.", Path("trust"))
    ood: str | None = option(
        "Data set of other images of the same size, whose held-out rows are unknown inputs.",
        metavar="NAME|PATH",
        autocompletion=named("data sets"),
    )
    corrupt: str | None = option(
        "Severities of corruption, some of 1 to 5, such as 1,3,5.", metavar="K,K,..."
    )
    kinds: str | None = option(
        "Corruptions, such as gaussian-noise,rotate.",
        metavar="NAME,NAME,...",
        shown="eight usual ones",
    )
    scale: Literal["mnist", "cifar"] | None = option(
        "Whose constants of corruptions, those of MNIST-C or of CIFAR-10-C.",
        shown="mnist for one channel",
    )
    attack: float | None = option(
        "Step of an attack by the sign of the gradient, in units of the largest pixel.",
        metavar="STEP",
    )
    reference: str | None = option(
        "One of the methods: the others' classes and probabilities are compared with its.",
        metavar="NAME",
    )
    seeds: str = option(
        "Seeds of the fits, such as 0-2: errors over seeds need several.",
        "0",
        metavar="N-N|N,N,...",
    )
    rows: int = option(
        "How many test images, the first ones, are corrupted and attacked.", 1_000, min=1
    )
    draws: int = option(
        "Draws of the posterior, the same for every method.", 200, min=1, max=MOST_DRAWS
    )


@command(short_help="Judge classifiers on corrupted, unknown and attacked images too.")
@spread(unlisted=("seed",))
def trust(
    context: typer.Context,
    source: DataOptions,
    options: TrustOptions,
    network: NetworkOptions,
    how: FitOptions,
    saves: Saves,
) -> Iterator[Result]:
    """Fit a classifier by several methods and ask of each what its probabilities are worth.

    On the held-out images: log score, calibration beside its floor, rejection. With --corrupt the
    same under corruption, the noise of an image the same for every method; with --ood how well
    uncertainty tells images of another data set; with --attack what a step against the prediction
    does, beside one of random signs. Numbers have standard errors over images, paired
    against the best method, and over seeds where --seeds names several. Methods are ranked by the
    log score alone.

    FOLDER gets index.html and the tables as CSV files. Until then a fit that has ended is in
    FOLDER/fits; one that was stopped goes on with --checkpoint and --resume.
    """
    from pyro_bnn.cli import fits, networks
    from pyro_bnn.cli.before_fits import check_and_describe
    from pyro_bnn.cli.kept import EndedFits, locked_folder, write_or_rescue
    from pyro_bnn.cli.methods import find_methods
    from pyro_bnn.cli.number_lists import one_or_several
    from pyro_bnn.cli.runs import RunPlan
    from pyro_bnn.data import load
    from pyro_bnn.report import trust as judge
    from pyro_bnn.report.beyond.trust import check_reference, check_trust

    plan = RunPlan.of(context, find_methods(options.methods), network, how)
    seeds = one_or_several(context, "seed", options.seeds)
    asked = _asked(options)
    rows = networks.load_rows(source, network.likelihood)
    if options.ood is not None:
        asked["ood"] = load(options.ood)
    check_trust(rows, **asked)
    reference = None
    if options.reference is not None:
        (reference,) = find_methods(options.reference)
        check_reference(reference, plan.methods)
    models = {seed: plan.models(rows, seed) for seed in seeds}
    first = models[seeds[0]]
    plan = dataclasses.replace(plan, engines=fits.in_batches(plan.engines, first, rows.train))
    plans = {seed: dataclasses.replace(plan, saves=saves.within(f"seed-{seed}")) for seed in seeds}
    check(saves, [save for one in plans.values() for save in one.saves_of_each().values()])
    check_and_describe(context, how, rows, first, network, options.out, saves.checkpoint)
    own = locked_folder(options.out, can_go_on=bool(saves.checkpoint))
    with own as fits_folder, saves.alone(fits_folder):
        kept = {seed: EndedFits(options.out, plan.methods, f"seed-{seed}-") for seed in seeds}
        posteriors, lost = _fit_all(plans, models, rows, kept)
        how.say("Judging ...")
        page = judge(
            posteriors,
            rows,
            **asked,
            reference=reference if reference in posteriors else None,
            num_samples=options.draws,
            num_rows=options.rows,
            seed=seeds[0],
            progress=how.progress,
        )
        out, unwritten = write_or_rescue(options.out, partial(page.save, command=context.obj))
        if not unwritten:
            for ended in kept.values():
                ended.forget(plan.methods)
    yield Result(
        text=f"\n{page.summary()}\n",
        document=lambda: {
            name: getattr(page, name)
            for name in ("table", "shifted", "by_condition", "unknown", "attacked")
        },
        files=[] if out is None else [out / "index.html"],
    )
    if failures := [*filter(None, [unwritten]), *lost]:
        raise BNNError("; ".join(failures))


def _fit_all(
    plans: Mapping[int, RunPlan],
    models: Mapping[int, Mapping[str, Any]],
    rows: Split,
    kept: Mapping[int, EndedFits],
) -> tuple[dict[str, list[Any]], list[str]]:
    """The posteriors of each method, one a seed, and a line on each that is lost.

    Raises:
        DivergenceError: If all are.
    """
    posteriors: dict[str, list[Any]] = {}
    lost: list[str] = []
    for seed, plan in plans.items():
        try:
            fitted, without = plan.fit(models[seed], rows, seed, say=plan.say, ended=kept[seed])
        except DivergenceError as error:  # of all methods
            if seed == [*plans][-1] and not posteriors:
                raise
            lost.append(f"seed {seed}: {error}")
            continue
        lost += [f"{name}, seed {seed}: {why}" for name, why in without.items()]
        for name, posterior in fitted.items():
            posteriors.setdefault(name, []).append(posterior)
    return posteriors, lost


def _asked(options: TrustOptions) -> dict[str, Any]:
    """What else is asked of the classifiers, but for images of another data set."""
    from pyro_bnn.cli.methods import comma_parts
    from pyro_bnn.cli.number_lists import numbers

    example = "kinds are names separated by commas, such as rotate,jpeg"
    return {
        "corruptions": [] if options.corrupt is None else numbers(options.corrupt, "--corrupt"),
        "kinds": None if options.kinds is None else comma_parts(options.kinds, example),
        "scale": options.scale,
        "attack": options.attack,
    }
