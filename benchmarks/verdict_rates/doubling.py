"""How often a fit is called unfinished by what the second half of its steps gained.

Networks of one hidden ReLU layer under ``AutoNormal``, whose ELBO is in closed form: a fit, and
snapshots that random changes of means and scales have moved down from it until the closed form has
the gain that is asked for. A fit that is 5 nats short has gained 5 in its second half where the gap
falls as 1/n, and more where it falls faster. The comparison is that of the package, with as many
draws as a run of 16,000 steps may take: with outputs of layers drawn, as it is for this guide, and
with weights drawn, as it is for others.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import torch
from torch import Tensor

from benchmarks.verdict_rates._rate import Rate
from pyro_bnn import SVI, guides, models
from pyro_bnn.data import Dataset
from pyro_bnn.infer.checkpoints.checkpoint import Checkpoint
from pyro_bnn.infer.problem import Problem
from pyro_bnn.infer.svi.estimators.analytic import Analytic
from pyro_bnn.infer.svi.judge import most_pairs, objective_of
from pyro_bnn.infer.svi.paired import PairedObjective
from pyro_bnn.infer.svi.training import Training
from pyro_bnn.likelihoods import Normal
from pyro_bnn.posterior.doubling import MIN_GAIN, STANDARD_ERRORS, Doubling

SEED = 7
NUM_INPUTS, STEPS, LENGTH = 8, 400, 16_000
ROWS, HIDDEN = (400, 5_000), (5, 50)
GAINS = (5.0, 0.0)
DEPTH = 2.0  # nats below the fit, of the higher one of two snapshots
RUNS = 20


def rows(quick: bool = False) -> Iterator[Rate]:
    """Comparisons by number of rows and weights, gain, and what is drawn."""
    for num_rows, hidden in product(ROWS[:1] if quick else ROWS, HIDDEN[:1] if quick else HIDDEN):
        run = _fitted(num_rows, hidden)
        num_runs = 2 if quick else RUNS
        for gain, drawn in product(GAINS, ("outputs of layers", "weights")):
            given = judged = 0
            for seed in range(num_runs):
                told = _compared(run, gain, SEED + seed, draws_weights=drawn == "weights")
                given, judged = given + told.is_rising, judged + told.is_judged
            yield Rate(
                verdict="trend",
                measures="gain of the second half of the steps, by paired ELBOs",
                threshold=f"{STANDARD_ERRORS:g} standard errors and {MIN_GAIN:g} nats",
                setting=f"{num_rows:,} rows, {run.program.num_latents:,} weights, {drawn} drawn, "
                + (f"gained {gain:g} nats" if gain else "gained nothing")
                + f"; {judged} of {num_runs} judged, the others called not judged",
                is_true=gain > 0,
                given=given,
                simulated=num_runs,
                seed=SEED,
            )


def _fitted(num_rows: int, hidden: int) -> Training:
    """A fit of a few hundred steps, as its run holds it."""
    generator = torch.Generator().manual_seed(SEED)
    x = torch.randn(num_rows, NUM_INPUTS, generator=generator)
    y = torch.sin(x[:, 0]) * x[:, 1] + 0.3 * torch.randn(num_rows, generator=generator)
    model = models.MLP(NUM_INPUTS, hidden=(hidden,), likelihood=Normal(0.3))
    engine = SVI(guides.AutoNormal, num_steps=STEPS, compile=False)
    problem = Problem(model, (x, y), Dataset(x, y), None, SEED, "SVI")
    run = engine.start(problem).make(Checkpoint(device=torch.device("cpu"), start=0.0))
    assert isinstance(run, Training)
    run.begin()
    while not run.is_done:
        run.go()
    return run


def _compared(run: Training, gain: float, seed: int, *, draws_weights: bool) -> Doubling:
    """What the comparison says of two snapshots of which one is higher by the gain, to a seed."""
    generator = torch.Generator().manual_seed(seed)
    before, after = (_lowered(run, depth, generator) for depth in (gain + DEPTH, DEPTH))
    whole = run.batches.whole
    paired = objective_of(run.loss.at, run.program, run.guide, whole, seed)
    if draws_weights:
        paired = PairedObjective(
            lambda values, noise, of: -run.loss.at(values, noise, of, None),
            run.guide.draw_noise,
            whole,
            seed=seed,
        )
    most = most_pairs(run.program, run.batches, LENGTH)
    return Doubling(*paired.gain(before, after, most), LENGTH)


def _lowered(run: Training, depth: float, generator: torch.Generator) -> list[Tensor]:
    """The fit, moved along a random direction to where its ELBO is lower by so many nats."""
    estimator = Analytic(run.program)
    marginals = run.guide.marginals()
    assert estimator.nodes is not None
    assert marginals is not None
    nodes, units = estimator.nodes, {"guide.loc": marginals[1].detach()}
    directions = [
        torch.randn(value.shape, generator=generator) * units.get(name, torch.ones(()))
        for name, value in run.values().items()
    ]

    def moved(size: float) -> list[Tensor]:
        pairs = zip(run.parameters, directions, strict=True)
        return [value.detach() + size * direction for value, direction in pairs]

    def elbo(size: float) -> float:
        with torch.no_grad():
            loss = run.loss.at(moved(size), (nodes,), run.batches.whole, estimator)
        return -float(loss)

    top, low, high = elbo(0.0), 0.0, 1e-3
    while top - elbo(high) < depth:
        low, high = high, 2 * high
    for _ in range(40):
        middle = 0.5 * (low + high)
        low, high = (low, middle) if top - elbo(middle) > depth else (middle, high)
    return moved(high)
