"""Variance of the gradient of the ELBO by its noise, for every estimator and number of rows.

Two trained networks, one with independent Gaussian weights and one with rank-1 factors, at fixed
rows. What is summed are the variances of the gradient by the mean weights of the layers, which both
networks have, and by the guide's standard deviations, of weights or of factors. With one draw for
all rows of a step the variance has a part that more rows do not lower; where the rows' noise is
uncorrelated, it falls with one over their number.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

import pyro_bnn as bnn
from benchmarks import _plots, _settings, _tables
from benchmarks._contenders import mlp
from benchmarks._problem import NOISE_SD, Problem
from benchmarks._settings import Settings
from benchmarks._timing import spreads
from pyro_bnn.infer.batches import Minibatches
from pyro_bnn.infer.svi.training import Training
from pyro_bnn.posterior import GuidePosterior

ROUNDS = 15  # of the times
BATCHES, DRAWS, STEPS = (1, 8, 64, 512), 400, 2_000
QUICK_BATCHES, QUICK_DRAWS, QUICK_STEPS = (1, 4), 20, 5
TABLED = 64  # rows of a step in the table
BLOCKS = 10  # of draws, for errors
MEAN_FIELD, RANK1 = "mean-field", "rank-1"
SHARED = "one draw for all rows"


class Entry(NamedTuple):
    """One estimator on one network.

    Attributes:
        net: ``MEAN_FIELD`` or ``RANK1``.
        contender: For the tables.
        options: Of the engine.
    """

    net: str
    contender: str
    options: Mapping[str, Any]


ENTRIES = (
    Entry(MEAN_FIELD, SHARED, {"estimator": "weight_sampling"}),
    Entry(MEAN_FIELD, "a draw for each row", {"per_example_draws": True}),
    Entry(MEAN_FIELD, "local reparameterisation", {"estimator": "local_reparameterization"}),
    Entry(MEAN_FIELD, "Flipout", {"estimator": "flipout"}),
    Entry(MEAN_FIELD, "analytic", {"estimator": "analytic"}),
    Entry(RANK1, SHARED, {"estimator": "weight_sampling"}),
    Entry(RANK1, "a draw for each row", {"per_example_draws": True}),
)


def posteriors(problem: Problem, num_steps: int) -> dict[str, GuidePosterior]:
    """Both networks, trained by draws for each row."""
    rank1 = bnn.models.Rank1MLP(
        problem.num_inputs,
        hidden=problem.hidden,
        likelihood=bnn.likelihoods.Normal(NOISE_SD),
    )
    one = functools.partial(bnn.guides.AutoRank1Mixture, num_components=1)
    found = {}
    for net, model, guide, options in (
        (MEAN_FIELD, mlp(problem), bnn.guides.AutoNormal, ENTRIES[2].options),
        (RANK1, rank1, one, ENTRIES[6].options),
    ):
        engine = bnn.SVI(
            guide, num_steps=num_steps, batch_size=problem.batch, compile=False, **options
        )
        torch.manual_seed(0)
        posterior = engine.run(model, problem.data(), progress=False)
        assert isinstance(posterior, GuidePosterior)
        for name, value in posterior.params.items():  # as its training left them
            posterior.program.params[name] = value.detach().clone().requires_grad_()
        found[net] = posterior
    return found


def gradients(entry: Entry, posterior: GuidePosterior, num_rows: int) -> Callable[[], Tensor]:
    """Draws of the gradient by all mean weights, then by all scales, at the first rows."""
    program, guide = posterior.program, posterior.guide
    engine = bnn.SVI(type(guide), compile=False, **entry.options)
    x, y = Problem(program.example.x.shape[1], (), num_rows, program.num_data).batch_of()
    batch = program.batch(x, y)
    run = Training(engine, program, guide, seed=0, batches=Minibatches(batch, None, 0))

    def draw() -> Tensor:
        values = run._parts.gradient(*run._parts.inputs(run.loss.draw(0, num_rows), batch, 1.0))
        named = dict(zip(run.names, values[-len(run.names) :], strict=True))
        scales = named["guide.scale_unconstrained"].flatten()
        return torch.cat([*(p.flatten() for p in mean_weights(posterior, named)), scales])

    return draw


def mean_weights(posterior: GuidePosterior, named: Mapping[str, Tensor]) -> Iterator[Tensor]:
    """Of all gradients those by the mean weights of each layer, first to last."""
    for layer in range(2):
        name = f"layers.{layer}.weight"
        site = next((s for s in posterior.program.sites if s.name == name), None)
        if site is None:
            yield named[f"model.{name}"]
        else:
            yield named["guide.loc"][site.start : site.stop]


def measure(settings: Settings) -> list[dict[str, Any]]:
    """A row an estimator: variances by layer and number of rows, and the time of a gradient."""
    quick = settings.quick
    batches, draws = (QUICK_BATCHES, QUICK_DRAWS) if quick else (BATCHES, DRAWS)
    problem = Problem(10, (50,), batch=64, num_data=1_000)
    trained = posteriors(problem, QUICK_STEPS if quick else STEPS)
    calls: dict[tuple[str, str], Callable[[], Tensor]] = {}
    rows: list[dict[str, Any]] = []
    for entry in ENTRIES:
        posterior, found = trained[entry.net], []
        for num_rows in batches:
            draw = gradients(entry, posterior, num_rows)
            found.append(torch.stack([draw() for _ in range(draws)]).double() / problem.num_data)
            if num_rows == (batches[-1] if quick else TABLED):
                calls[entry.net, entry.contender] = draw
        first, both = sizes(problem)
        rows.append(
            {
                "net": entry.net,
                "contender": entry.contender,
                "batches": list(batches),
                "first_layer": [trace(g[:, :first]) for g in found],
                "second_layer": [trace(g[:, first:both]) for g in found],
                "mean_weights": [trace(g[:, :both]) for g in found],
                "mean_weights_error": [trace_error(g[:, :both]) for g in found],
                "scales": [trace(g[:, both:]) for g in found],
                "scales_error": [trace_error(g[:, both:]) for g in found],
            }
        )
        print(f"  {entry.net}, {entry.contender}: {rows[-1]['mean_weights']}", flush=True)
    times = spreads({" ".join(key): call for key, call in calls.items()}, rounds=settings.rounds)
    for row, time in zip(rows, times.values(), strict=True):
        row["seconds"] = time.median
    return rows


def sizes(problem: Problem) -> tuple[int, int]:
    """Number of weights of the first layer, and of both."""
    inputs, hidden, outputs = problem.sizes
    return inputs * hidden, inputs * hidden + hidden * outputs


def trace(draws: Tensor) -> float:
    """Sum of the variances of the entries of draws ``[n, P]``."""
    return float(draws.var(0).sum())


def trace_error(draws: Tensor) -> float:
    """Standard error of :func:`trace`, from blocks of draws."""
    blocks = draws.unflatten(0, (BLOCKS, -1)).var(1).sum(-1)
    return float(blocks.std() / BLOCKS**0.5)


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    """Measure, print, and write ``estimators.json`` and ``estimators.png``."""
    settings = _settings.parse("estimators", __doc__, argv, rounds=ROUNDS)
    found = _settings.result("estimators", settings, measure(settings), net="10-50-1")
    print(_tables.estimators(found))
    if settings.out is not None:
        _settings.write(found, settings.out)
        _plots.estimators(found, settings.out / "estimators.png")
        _tables.update(settings.out)
    return found


if __name__ == "__main__":
    main()
