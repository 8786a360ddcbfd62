r"""Simulation-based calibration: does an engine sample the posterior that it says it does?

Parameters drawn from the prior, data simulated at them, and the posterior given these data:

.. math:: z_d \sim p(z), \qquad y_d \sim p(y \mid x, z_d), \qquad
    z_d^{(1)}, \dots, z_d^{(L)} \sim p(z \mid x, y_d)

make the truth one more draw of the posterior, so its rank among the L draws is uniform on 0 .. L,
for every scalar of (z, y). A posterior that is too narrow gives a U, one too wide a hump, a biased
one a slope. Talts et al., 2018, arXiv:1804.06788.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol, TypeAlias, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from tqdm.auto import tqdm

from pyro_bnn.data import Call
from pyro_bnn.diagnostics.simulation.calls import Calibrated, CallQuantities, Simulator
from pyro_bnn.diagnostics.simulation.outcomes import Outcome, effective_draws, thinned
from pyro_bnn.diagnostics.simulation.quantities import Quantities, Quantity
from pyro_bnn.diagnostics.simulation.ranks import SimulationRanks
from pyro_bnn.diagnostics.simulation.simulations import (
    DRAWS,
    ENGINE,
    TIES,
    EngineLike,
    Simulations,
    check_numbers,
    num_failed,
    simulated,
    stream_seed,
)
from pyro_bnn.diagnostics.simulation.uniformity import rank_among
from pyro_bnn.errors import DivergenceError, OptionError
from pyro_bnn.infer.checkpoints.checkpoint import saved_in
from pyro_bnn.infer.inputs import unchanged
from pyro_bnn.infer.parallel.tasks import in_order, number_at_once
from pyro_bnn.memory import GIB
from pyro_bnn.program.handlers import Model
from pyro_bnn.program.program import Program

MEND = "see the error of engine.run on one of them, or take a prior that makes fewer extreme data"
Saved: TypeAlias = Callable[[str], dict[str, Any]]  # what an engine takes to be saved by a name
STORED_DRAWS = 1_000  # that an engine is taken to keep where it does not say


@runtime_checkable
class RunsEach(Protocol):
    """An engine that samples the posteriors of many data sets at once, one chain each."""

    def run_each(
        self, model: Model, x: Tensor, ys: Tensor, *, seed: int = 0, progress: bool = True
    ) -> tuple[Tensor, Mapping[str, NDArray[Any]]]:
        """Draws ``[C, S, P]`` given each of ``ys [C, N, ...]``, with statistics ``[C, S]``."""


def simulation_based_calibration(
    model: Model,
    x: Tensor | Call,
    engine: EngineLike | RunsEach,
    *,
    num_simulations: int = 200,
    num_draws: int = 99,
    sites: Sequence[str] | None = None,
    quantities: Mapping[str, Quantity] | None = None,
    seed: int = 0,
    progress: bool = True,
    checkpoint: str | Path | None = None,
    resume: bool = False,
) -> SimulationRanks:
    """Runs an engine on data simulated from the model, and ranks the truth among its draws.

    The ranks are of scalars that the data identify: f at rows of x, the log likelihood of the
    simulated data, the log joint, sites of one entry such as the noise scale, norms of the other
    sites. Single weights are exchangeable, and their ranks say nothing of the function.

    Uniform ranks show that no error was found, at these x, averaged over the prior: an engine may
    still fail on data that the prior makes rarely. Errors of a small share of the draws need more
    simulations. Markov chains are thinned to ``num_draws``, and must hold that many effective
    draws; a verdict says where they do not.

    Under ``joblib.parallel_config`` the runs go side by side, with the same results; those of an
    engine with ``run_each``, as all samplers are, are one run on all cores as it is.

    Any other Pyro model is calibrated on a ``data.Call`` with values that it observes, of which the
    shapes count alone: all observed sites are simulated, and the engine runs on
    ``pyro.condition(model, data=simulated)``. What the model computes of its arguments beside these
    sites stays as it is, as the last step in the mean of a time series. The ranks are those of
    entries of sites, of the log likelihood and of the log joint.

    Args:
        model: Pyro model with proper priors on all that is fitted.
        x: Inputs ``[N, ...]``, held fixed; y is simulated. The engine runs on these rows, so few
            make it fast. Or the arguments of any Pyro model as a ``data.Call``.
        engine: Any engine. One with a method ``run_each`` is given all data sets at once. It takes
            ``checkpoint`` and ``resume`` where these are given.
        num_simulations: Simulated data sets D, at least 20; 200 find gross errors, 1,000 small
            ones.
        num_draws: Draws L that the truth is ranked among; L + 1 is a multiple of 20.
        sites: With a ``Call``, names of the latent and deterministic sites that are ranked; by
            default all latent ones. Of a site with many entries four are, spread evenly.
        quantities: More scalars by name, each a function from the values of all sites by name,
            ``[S, *shape]``, to ``[S]``.
        seed: Seed of simulations, runs and draws.
        progress: Whether to show a progress bar over simulations.
        checkpoint: Folder in which the runs are saved, each in a folder of its own.
        resume: Whether to go on from there, with the same arguments: to the same ranks.

    Returns:
        Ranks, p-values, verdicts and a picture.

    Raises:
        DataError: If x holds no inputs, or the prior simulates no data with two values of y.
        DivergenceError: If the engine fails on too many of the simulated data sets.
        ModelError: If the model has point-estimated parameters, or scales its likelihood; on a
            ``Call`` also if it observes nothing, or has a factor that depends on latent sites.
        OptionError: If a number is out of range, the engine keeps fewer draws than are ranked, or
            ``sites`` would have no effect.
        SiteError: If a prior is improper, or a held site's density depends on other sites.
        UnknownNameError: If the model has no such site.

    References:
        Talts, Betancourt, Simpson, Vehtari & Gelman, "Validating Bayesian Inference Algorithms
        with Simulation-Based Calibration", 2018, arXiv:1804.06788. Modrák et al., Bayesian
        Analysis 2023, arXiv:2211.02383, on the quantities.

    Example:
        >>> from pyro_bnn import guides, infer, models
        >>> svi = infer.SVI(guides.AutoDelta, num_steps=1, compile=False)  # one point: too narrow
        >>> found = simulation_based_calibration(
        ...     models.MLP(1, hidden=(2,)), torch.linspace(-1, 1, 8).unsqueeze(1), svi,
        ...     num_simulations=20, num_draws=19, progress=False,
        ... )
        >>> found.ranks.shape, "too narrow" in found.shape_of("f(x[7])")
        ((20, 11), True)
    """
    saved = partial(saved_in, None if checkpoint is None else Path(checkpoint), resume=resume)
    num_redrawn = 0
    if isinstance(x, Call):
        check_numbers(num_simulations, num_draws, seed, num_ranked=num_draws)
        with unchanged(model):
            simulator = Simulator.of(model, x)
            of_call = CallQuantities(simulator.joint, sites, quantities)
        names, runs = of_call.names, Calibrated(engine, simulator, of_call, num_draws, seed, saved)
        outcomes = runs.outcomes(num_simulations, progress=progress)
    elif sites is not None:
        raise OptionError(
            "sites would have no effect on a network on rows, whose single weights are "
            "exchangeable: pass quantities, or a data.Call in place of x"
        )
    else:
        program, simulations = simulated(
            model, x, num_simulations, num_draws, seed, num_ranked=num_draws
        )
        scalars = Quantities(program, simulations.x, quantities)
        names, num_redrawn = scalars.names, simulations.num_redrawn
        of_rows = _run_all(engine, program, simulations, num_draws, seed, saved, progress=progress)
        outcomes = _outcomes(of_rows, scalars, simulations, num_draws)
    generator = np.random.default_rng(stream_seed(seed, TIES))
    ranks, sizes, diverging, method = [], [], [], type(engine).__name__
    for outcome in outcomes:
        if outcome is not None:
            ranks.append(rank_among(outcome.values[0], outcome.values[1:], generator))
            sizes.append(outcome.ess)
            diverging.append(outcome.num_diverging)
            method = outcome.method
    return SimulationRanks(
        num_failed=num_failed(method, num_simulations, len(ranks), MEND),
        ranks=np.stack(ranks),
        names=names,
        num_draws=num_draws,
        method=method,
        ess=_median(sizes),
        num_diverging=tuple(diverging),
        num_redrawn=num_redrawn,
    )


def _median(sizes: list[float]) -> float:
    """Of those that are known; NaN where none is, as of independent draws."""
    known = [size for size in sizes if not np.isnan(size)]
    return float(np.median(known)) if known else float("nan")


# Posteriors of the simulated data


@dataclass(frozen=True)
class _Run:
    """Draws ``z [C, S, P]`` given one data set; those of a guide are independent.

    ``num_diverging`` of them end a trajectory that diverges.
    """

    z: Tensor
    method: str
    is_independent: bool = False
    num_diverging: int = 0


def _outcomes(
    runs: Iterable[_Run | None], scalars: Quantities, simulations: Simulations, num_draws: int
) -> Iterator[Outcome | None]:
    """Quantities of each truth and of the draws given its data; None where there are none."""
    program = scalars.program
    for truth, y, run in zip(simulations.z, simulations.ys, runs, strict=True):
        if run is None or not run.z.isfinite().all():
            yield None
            continue
        batch, z = program.batch(simulations.x, y), run.z.to(truth)
        draws = thinned(z.flatten(0, 1), num_draws)
        log_joint = partial(program.log_joint, args=batch)
        yield Outcome(
            values=scalars(torch.cat([truth.unsqueeze(0), draws]), batch),
            ess=effective_draws(log_joint, z, is_independent=run.is_independent),
            num_diverging=run.num_diverging,
            method=run.method,
        )


def _run_all(
    engine: EngineLike | RunsEach,
    program: Program,
    simulations: Simulations,
    num_draws: int,
    seed: int,
    saved: Saved,
    *,
    progress: bool,
) -> Iterator[_Run | None]:
    """The engine's draws given each simulated data set; None where it failed."""
    x, ys = simulations.x, simulations.ys
    if isinstance(engine, RunsEach):
        stored = getattr(engine, "num_samples", STORED_DRAWS)
        at_once = max(GIB // (stored * program.num_latents * x.element_size()), 1)
        own_bar, progress = progress and number_at_once() == 1, False
        run_each = partial(_run_each, engine, program.model, x, progress=own_bar)
        tasks = [
            partial(run_each, some, stream_seed(seed, ENGINE, number), saved, f"runs-{number}")
            for number, some in enumerate(ys.split(at_once))
        ]
    else:
        tasks = [
            partial(_run_one, engine, program.model, x, y, num_draws, seed, number, saved)
            for number, y in enumerate(ys)
        ]
    with tqdm(total=len(ys), disable=not progress, desc="SBC", unit="simulation") as bar:
        for runs in in_order(tasks):
            bar.update(len(runs))
            yield from runs


def _run_one(
    engine: EngineLike,
    model: Model,
    x: Tensor,
    y: Tensor,
    num_draws: int,
    seed: int,
    number: int,
    saved: Saved,
) -> list[_Run | None]:
    """One posterior, that of the simulation of a number."""
    try:
        posterior = engine.run(
            model,
            (x, y),
            seed=stream_seed(seed, ENGINE, number),
            progress=False,
            **saved(f"simulation-{number}"),
        )
    except DivergenceError:
        return [None]
    stored = posterior.num_stored_draws
    z = posterior.unconstrained(
        num_draws if stored is None else stored,
        stream_seed(seed, DRAWS, number),
        group_by_chain=True,
    )
    num_diverging = int(np.sum(posterior.sample_stats.get("diverging", 0)))
    return [_Run(z, posterior.method, stored is None, num_diverging)]


def _run_each(
    engine: RunsEach,
    model: Model,
    x: Tensor,
    ys: Tensor,
    seed: int,
    saved: Saved,
    name: str,
    *,
    progress: bool = False,
) -> list[_Run | None]:
    """Chains of all data sets; where one of them makes the engine fail, those of each half."""
    try:
        z, stats = engine.run_each(model, x, ys, seed=seed, progress=progress, **saved(name))
    except DivergenceError:
        if len(ys) == 1:
            return [None]
        runs = []
        for half, part in enumerate(ys.tensor_split(2)):
            part_seed, folder = stream_seed(seed, ENGINE, half), f"{name}-{half}"
            runs += _run_each(engine, model, x, part, part_seed, saved, folder, progress=progress)
        return runs
    diverging = np.sum(stats.get("diverging", np.zeros((len(z), 1))), axis=1)
    return [
        _Run(chain[None], type(engine).__name__, num_diverging=int(count))
        for chain, count in zip(z, diverging, strict=True)
    ]
