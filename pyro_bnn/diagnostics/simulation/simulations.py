"""Parameters drawn from the prior, and data simulated at them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from pyro_bnn.checks import check_positive_int, check_seed
from pyro_bnn.data import Call
from pyro_bnn.diagnostics.simulation.uniformity import equal_bins
from pyro_bnn.errors import DataError, DivergenceError, ModelError, SiteError
from pyro_bnn.infer.inputs import unchanged
from pyro_bnn.posterior.posterior import Posterior
from pyro_bnn.program.handlers import Model, evaluate, tried
from pyro_bnn.program.joint import Joint
from pyro_bnn.program.program import Program
from pyro_bnn.program.random_state import isolated
from pyro_bnn.program.terms import Batch

MAX_REDRAWS = 1_000  # of one simulation
MIN_SIMULATIONS = 20

PRIOR, DATA, ENGINE, DRAWS, TIES = range(5)  # streams of random numbers


class EngineLike(Protocol):
    """What is calibrated: anything that makes a posterior of a model and data."""

    def run(self, model: Model, data: Any, *, seed: int = 0, progress: bool = True) -> Posterior:
        """Fit or sample the model."""


class Simulations(NamedTuple):
    """Truths ``z [D, P]`` from the prior, inputs ``x [N, ...]``, data ``ys [D, N, ...]``."""

    z: Tensor
    x: Tensor
    ys: Tensor
    num_redrawn: int


def check_numbers(num_simulations: int, num_draws: int, seed: int, *, num_ranked: int) -> None:
    """Check the size of a calibration.

    Raises:
        OptionError: If a number is out of range.
    """
    check_positive_int("num_simulations", num_simulations)
    check_positive_int("num_draws", num_draws)
    check_seed(seed)
    equal_bins(num_simulations, num_ranked)


def simulated(
    model: Model, x: Tensor, num_simulations: int, num_draws: int, seed: int, *, num_ranked: int
) -> tuple[Program, Simulations]:
    """The model as tensor functions, and data simulated from it, which stays as it is.

    Args:
        model: The model.
        x: Inputs ``[N, ...]``.
        num_simulations: Number of data sets.
        num_draws: Draws of each posterior.
        seed: Seed of the simulations.
        num_ranked: Draws that a truth is ranked among in the tests of uniformity.

    Raises:
        DataError: As :func:`simulate`; also if x holds no inputs.
        ModelError: As :func:`simulate` and :func:`proper_program`.
        OptionError: If a number is out of range.
        SiteError: As :func:`proper_program`.
    """
    check_numbers(num_simulations, num_draws, seed, num_ranked=num_ranked)
    x = _inputs(x)
    with unchanged(model):
        program = proper_program(model, x)
        return program, simulate(program, x, num_simulations, seed)


def _inputs(x: Any) -> Tensor:
    """Inputs as a tensor.

    Raises:
        DataError: If they are none, such as a whole data set.
    """
    try:
        return torch.as_tensor(x)
    except (RuntimeError, TypeError, ValueError) as error:
        if hasattr(x, "train"):
            mend = "pass split.train.x"
        elif hasattr(x, "x"):
            mend = "pass data.x"
        elif isinstance(x, tuple | list):
            mend = "of a pair (x, y) pass x"
        elif isinstance(x, Call):
            mend = "simulation_based_calibration takes a data.Call of any other Pyro model"
        else:
            mend = (
                "pass a tensor [N, ...], or to simulation_based_calibration the arguments of any "
                "other Pyro model as a data.Call"
            )
        raise DataError(
            f"x takes the inputs of a network alone, since y is simulated, and {type(x).__name__} "
            f"came: {mend}"
        ) from error


def num_failed(method: str, num_simulations: int, num_left: int, mend: str) -> int:
    """How many simulations an engine failed on.

    Raises:
        DivergenceError: If too few are left; says how to mend it.
    """
    failed = num_simulations - num_left
    if num_left < MIN_SIMULATIONS:
        raise DivergenceError(
            f"{method} failed on {failed} of {num_simulations} simulated data sets, and "
            f"{MIN_SIMULATIONS} are needed: {mend}"
        )
    return failed


def proper_program(model: Model, x: Tensor) -> Program:
    """The model as tensor functions, refused where it is no joint density of z and y.

    Raises:
        ModelError: If it has point-estimated parameters.
        SiteError: If a prior is improper, or a held site's density depends on other sites.
    """
    _, like = tried(model, x[:1])
    x = x if like is None else x.to(like)
    with isolated(0):
        target = evaluate(model, {}, x).observed.get("y")
        y = x.new_zeros(len(x)) if target is None else target["fn"].sample()
        program = Program(model, x, y, num_data=len(x))  # whatever classes y has
    require_drawn_parameters(program)
    require_proper(program.latents.improper)
    if tied := sorted(program.held_given_latents):
        raise SiteError(
            f"the density of {', '.join(tied)}, held at a value, depends on other sites, of which "
            "draws from the prior are none given the value: take the model without it"
        )
    return program


def require_drawn_parameters(program: Joint) -> None:
    """Check that a model has no point-estimated parameters.

    Raises:
        ModelError: If it has.
    """
    if trained := [name for name, value in program.params.items() if value.requires_grad]:
        raise ModelError(
            f"there is no prior to draw {', '.join(trained)} from, which are point estimates: give "
            "them priors, as pyro_bnn.bayesian(net, prior=...) does, or hold them fixed with "
            "requires_grad_(False)"
        )


def require_proper(improper: Iterable[str]) -> None:
    """Check that no site has a flat prior.

    Raises:
        SiteError: If one has; names them.
    """
    if names := sorted(improper):
        raise SiteError(
            f"nothing can be drawn from the flat prior of {', '.join(names)}: give it a proper "
            "one, such as pyro_bnn.priors.Normal()"
        )


def simulate(program: Program, x: Tensor, num_simulations: int, seed: int) -> Simulations:
    """Draws of the prior, and data at each of them.

    Data with one value in all rows, such as one class, are drawn again with their z: engines
    refuse them. Given y, the choice says nothing of z, so ranks stay uniform.

    Raises:
        DataError: If a simulation finds no data with two values.
        ModelError: If the likelihood is scaled, so that data are of another model than densities.
    """
    x = program.inputs(x)
    zs, ys, num_redrawn = [], [], 0
    for number in range(num_simulations):
        for attempt in range(MAX_REDRAWS):
            (z,) = program.prior_draws(1, x, stream_seed(seed, PRIOR, number, attempt))
            with isolated(stream_seed(seed, DATA, number, attempt)):
                y = program.observed(z, x)[0].sample()  # [N] or [N, O]
            if bool(y.isfinite().all()) and (len(y) == 1 or bool((y != y[:1]).any())):
                break
            num_redrawn += 1
        else:
            raise DataError(
                f"{MAX_REDRAWS} draws from the prior gave no data of {len(x)} rows with two values "
                "of y: pass more rows x, or take a prior under which y varies"
            )
        zs.append(z)
        ys.append(y)
    _require_unscaled(program, zs[0], program.batch(x, ys[0]))
    return Simulations(torch.stack(zs), x, torch.stack(ys), num_redrawn)


def _require_unscaled(program: Program, z: Tensor, batch: Batch) -> None:
    with torch.no_grad():
        parts = program.log_likelihood(z, batch).sum() + program.log_prior(z, batch.x)
        whole = program.log_joint(z, batch)
    if not torch.isclose(whole, parts, rtol=1e-3, atol=1e-3):
        raise ModelError(
            "the model scales its likelihood (pyro.poutine.scale, or a plate of another size than "
            "x), so that its posterior is not that of data simulated from it: calibrate it unscaled"
        )


def stream_seed(*numbers: int) -> int:
    """A seed of its own for each stream and place in it, so that no engine starts at the truth."""
    return int(np.random.SeedSequence(numbers).generate_state(1)[0])
