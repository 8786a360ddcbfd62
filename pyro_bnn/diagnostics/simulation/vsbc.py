r"""Variational simulation-based calibration: is the point estimate of a guide unbiased?

Parameters drawn from the prior, data simulated at them, and a guide q fitted to these data:

.. math:: \theta_d \sim p(\theta), \qquad y_d \sim p(y \mid x, \theta_d), \qquad
    p_{dj} = Q_d(h_j(\theta) \le h_j(\theta_d)), \quad \theta \sim q_d

For the exact posterior the p are uniform. A variational fit is seldom exact, and a mean-field one
too narrow by its nature, which makes their histogram a U; what its mean is worth is seen in their
symmetry: p and 1 - p have one distribution where q lies above the truth as often as below. Yao,
Vehtari, Simpson & Gelman, 2018, arXiv:1802.02538, section 4.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from tqdm.auto import tqdm

from pyro_bnn.diagnostics.simulation.estimands import Estimands
from pyro_bnn.diagnostics.simulation.probabilities import CELLS, SimulationProbabilities
from pyro_bnn.diagnostics.simulation.quantities import Quantity
from pyro_bnn.diagnostics.simulation.simulations import (
    DRAWS,
    ENGINE,
    TIES,
    EngineLike,
    Simulations,
    num_failed,
    simulated,
    stream_seed,
)
from pyro_bnn.diagnostics.simulation.uniformity import rank_among
from pyro_bnn.errors import CaptureError, DivergenceError, OptionError
from pyro_bnn.guides import Guide
from pyro_bnn.infer import SVI
from pyro_bnn.infer.checkpoints.checkpoint import saved_in
from pyro_bnn.infer.parallel.tasks import in_order
from pyro_bnn.infer.svi.fit_each import fit_each, fits_at_once
from pyro_bnn.posterior.guide_posterior import GuidePosterior
from pyro_bnn.program.handlers import Model
from pyro_bnn.program.program import Program

logger = logging.getLogger("pyro_bnn")

MEND = "lower the learning rate of its fit, or take a prior that makes fewer extreme data"


def variational_calibration(
    model: Model,
    x: Tensor,
    engine: EngineLike,
    *,
    num_simulations: int = 200,
    num_draws: int = 999,
    weights: bool = False,
    quantities: Mapping[str, Quantity] | None = None,
    seed: int = 0,
    progress: bool = True,
    checkpoint: str | Path | None = None,
    resume: bool = False,
) -> SimulationProbabilities:
    """Fits a guide to data simulated from the model, and asks it for the truth's probability.

    The scalars are those that the data identify: f at rows of x, and sites of one entry such as
    the noise scale. Single weights are aliased by the symmetries of a network: q sits in one of
    many modes and the truth in another, which says nothing of the function. Ask for them with
    ``weights=True`` where they are not, as in a linear model.

    Where q has marginals of a known family the probability of a site's entry is in closed form;
    the others are of draws. A histogram that is symmetric and even shows that no error was found
    at these x, averaged over the prior: a guide may still fail on data that the prior makes rarely.

    The fits of SVI with its default optimiser are trained together, a step for all of them; others
    go side by side under ``joblib.parallel_config``, with the same results.

    Args:
        model: Pyro model with proper priors on all that is fitted.
        x: Inputs ``[N, ...]``, held fixed; y is simulated. Few rows make it fast.
        engine: ``SVI`` with a guide that has a density, or another engine whose posterior is one.
        num_simulations: Simulated data sets D, at least 20; the verdicts say what so many find.
        num_draws: Draws L of q for probabilities that are in no closed form.
        weights: Whether each entry of z is a scalar too.
        quantities: More scalars by name, each a function from the values of all sites by name,
            ``[S, *shape]``, to ``[S]``.
        seed: Seed of simulations, fits and draws.
        progress: Whether to show a progress bar.
        checkpoint: Folder in which the fits are saved, each run of them in a folder of its own.
        resume: Whether to go on from there, with the same arguments: to the same probabilities.

    Returns:
        Probabilities, tests, verdicts and a picture.

    Raises:
        DataError: If the prior simulates no data with two values of y.
        DivergenceError: If the fit fails on too many of the simulated data sets.
        ModelError: If the model has point-estimated parameters, or scales its likelihood.
        OptionError: If a number is out of range, or the engine makes no guide with a density.
        SiteError: If a prior is improper, or a held site's density depends on other sites.

    References:
        Yao, Vehtari, Simpson & Gelman, "Yes, but Did It Work?: Evaluating Variational Inference",
        ICML 2018, arXiv:1802.02538.

    Example:
        >>> from pyro_bnn import guides, infer, models
        >>> svi = infer.SVI(guides.AutoNormal, num_steps=300, learning_rate=0.05, compile=False)
        >>> found = variational_calibration(
        ...     models.MLP(1, hidden=(2,)), torch.linspace(-1, 1, 8).unsqueeze(1), svi,
        ...     num_simulations=20, progress=False,
        ... )
        >>> found.probabilities.shape, found.names[:2]
        ((20, 6), ('f(x[0])', 'f(x[2])'))
    """
    program, simulations = simulated(
        model, x, num_simulations, num_draws, seed, num_ranked=CELLS - 1
    )
    estimands = Estimands(program, simulations.x, weights=weights, extra=quantities)
    generator = np.random.default_rng(stream_seed(seed, TIES))
    rows, exact, method = [], dict[int, float](), type(engine).__name__
    folder = None if checkpoint is None else Path(checkpoint)
    fits = _fits(engine, program, simulations, seed, folder, progress=progress, resume=resume)
    for number, fit in enumerate(fits):
        if fit is None:
            continue
        method, guide = fit
        truth = simulations.z[number]
        z = guide.sample(num_draws, stream_seed(seed, DRAWS, number)).to(truth)
        if not bool(z.isfinite().all()):
            continue
        values = estimands(torch.cat([truth.unsqueeze(0), z]))  # [1 + L, Q]
        ranks = rank_among(values[0], values[1:], generator)
        p = (ranks + generator.random(len(ranks))) / (num_draws + 1)  # uniform where ranks are
        exact = estimands.exact(guide, truth)
        p[list(exact)] = list(exact.values())
        rows.append(p)
    return SimulationProbabilities(
        num_failed=num_failed(method, num_simulations, len(rows), MEND),
        probabilities=np.stack(rows),
        names=estimands.names,
        exact=frozenset(estimands.names[place] for place in exact),
        num_draws=num_draws,
        method=method,
        num_redrawn=simulations.num_redrawn,
    )


def _fits(
    engine: EngineLike,
    program: Program,
    simulations: Simulations,
    seed: int,
    folder: Path | None,
    *,
    progress: bool,
    resume: bool,
) -> Iterator[tuple[str, Guide] | None]:
    """Method and guide fitted to each simulated data set; None where the fit failed."""
    x, ys = simulations.x, simulations.ys
    if isinstance(engine, SVI) and fits_at_once(engine):
        together = fit_each(
            engine,
            program,
            x,
            ys,
            seed=stream_seed(seed, ENGINE),
            progress=progress,
            checkpoint=folder,
            resume=resume,
        )
        try:
            first = next(together)
        except CaptureError as error:
            logger.warning("%s; the fits run one after another, which is slower", error)
        else:
            for guide in itertools.chain([first], together):
                yield None if guide is None else (type(guide).__name__, _with_density(guide))
            return
    tasks = [
        partial(
            _fit,
            engine,
            program.model,
            x,
            y,
            stream_seed(seed, ENGINE, number),
            saved_in(folder, f"simulation-{number}", resume=resume),
        )
        for number, y in enumerate(ys)
    ]
    bar = tqdm(in_order(tasks), total=len(ys), disable=not progress, desc="VSBC", unit="simulation")
    yield from bar


def _fit(
    engine: EngineLike, model: Model, x: Tensor, y: Tensor, seed: int, saved: Mapping[str, Any]
) -> tuple[str, Guide] | None:
    """Method and guide of one fit; None where it failed."""
    try:
        posterior = engine.run(model, (x, y), seed=seed, progress=False, **saved)
    except DivergenceError:
        return None
    if not isinstance(posterior, GuidePosterior):
        raise OptionError(
            f"{posterior.method} is no guide with a density, of which probabilities could be "
            "asked: take diagnostics.simulation_based_calibration, which ranks draws"
        )
    return posterior.method, _with_density(posterior.guide)


def _with_density(guide: Guide) -> Guide:
    if not guide.has_log_prob:
        raise OptionError(
            f"{type(guide).__name__} has no density, and puts all probability on points: take "
            "diagnostics.simulation_based_calibration, which ranks draws"
        )
    return guide
