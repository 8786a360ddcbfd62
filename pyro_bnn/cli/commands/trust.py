"""``pyro-bnn trust``: classifiers on corrupted, unknown and attacked images."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from functools import partial
from typing import Any

import typer

from pyro_bnn.cli import options as opt
from pyro_bnn.cli.app import command
from pyro_bnn.cli.results import Found
from pyro_bnn.cli.saves import Saves, check
from pyro_bnn.errors import DivergenceError, OutputError


@command(short_help="Judge classifiers on corrupted, unknown and attacked images too.")
@opt.spread(unlisted=("seed",))
def trust(
    context: typer.Context,
    source: opt.Source,
    trusted: opt.Trusted,
    network: opt.NetworkOptions,
    how: opt.FitOptions,
    saves: Saves,
) -> Iterator[Found]:
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
    from pyro_bnn.cli import fits, networks, runs
    from pyro_bnn.cli.before_fits import check_and_describe
    from pyro_bnn.cli.kept import EndedFits, alone, write_or_rescue
    from pyro_bnn.cli.methods import find_methods
    from pyro_bnn.data import load
    from pyro_bnn.report import trust as judge
    from pyro_bnn.report.beyond.trust import check_trust

    plan = runs.Plan.of(context, find_methods(trusted.methods), network, how)
    seeds = runs.one_or_several(context, "seed", trusted.seeds)
    asked = _asked(trusted)
    rows = networks.load_rows(source, network.likelihood)
    if trusted.ood is not None:
        asked["ood"] = load(trusted.ood)
    check_trust(rows, **asked)
    models = {seed: plan.models(rows, seed) for seed in seeds}
    first = models[seeds[0]]
    plan = dataclasses.replace(plan, engines=fits.in_batches(plan.engines, first, rows.train))
    plans = {seed: dataclasses.replace(plan, saves=saves.within(f"seed-{seed}")) for seed in seeds}
    check(saves, [own for one in plans.values() for own in one.saves_of_each().values()])
    check_and_describe(context, how, rows, first, network, trusted.out, saves.checkpoint)
    posteriors: dict[str, list[Any]] = {}
    lost: list[str] = []
    with alone(trusted.out):
        kept = {seed: EndedFits(trusted.out, plan.methods, f"seed-{seed}-") for seed in seeds}
        for seed, own in plans.items():
            try:
                fitted, without = own.fit(models[seed], rows, seed, say=how.say, ended=kept[seed])
            except DivergenceError as error:  # of all methods
                if seed == seeds[-1] and not posteriors:
                    raise
                lost.append(f"seed {seed}: {error}")
                continue
            lost += [f"{name}, seed {seed}: {why}" for name, why in without.items()]
            for name, posterior in fitted.items():
                posteriors.setdefault(name, []).append(posterior)
        how.say("Judging ...")
        page = judge(
            posteriors,
            rows,
            **asked,
            num_samples=trusted.draws,
            num_rows=trusted.rows,
            seed=seeds[0],
            progress=how.progress,
        )
        out, unwritten = write_or_rescue(trusted.out, partial(page.save, command=context.obj))
        if not unwritten:
            for ended in kept.values():
                ended.forget(plan.methods)
    yield Found(
        text=f"\n{page.summary()}\n",
        document=lambda: {
            name: getattr(page, name)
            for name in ("table", "shifted", "by_condition", "unknown", "attacked")
        },
        files=[] if out is None else [out / "index.html"],
    )
    if unwritten:
        raise OutputError("; ".join([unwritten, *lost]))
    if lost:
        raise DivergenceError("; ".join(lost))


def _asked(trusted: opt.Trusted) -> dict[str, Any]:
    """What else is asked of the classifiers, but for images of another data set."""
    from pyro_bnn.cli.methods import comma_parts
    from pyro_bnn.cli.runs import numbers

    example = "kinds are names separated by commas, such as rotate,jpeg"
    return {
        "corruptions": [] if trusted.corrupt is None else numbers(trusted.corrupt, "--corrupt"),
        "kinds": None if trusted.kinds is None else comma_parts(trusted.kinds, example),
        "scale": trusted.scale,
        "attack": trusted.attack,
    }
