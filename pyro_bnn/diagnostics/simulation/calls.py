r"""Simulation-based calibration of any Pyro model, run on a :class:`~pyro_bnn.data.Call`.

One run of the model draws its latent sites and, in place of what it observes, data:

.. math:: (\theta_d, y_d) \sim p(\theta)\, p(y \mid \theta), \qquad
    \theta_d^{(1)}, \dots, \theta_d^{(L)} \sim q(\theta \mid y_d)

The posterior given them is that of ``pyro.condition(model, data=y_d)`` on the same arguments.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pyro
import torch
from jaxtyping import Float
from torch import Tensor
from tqdm.auto import tqdm

from pyro_bnn.data import Call
from pyro_bnn.diagnostics.shapes import evenly_spread
from pyro_bnn.diagnostics.simulation.outcomes import Outcome, effective_draws, thinned
from pyro_bnn.diagnostics.simulation.quantities import Quantity, extra_value
from pyro_bnn.diagnostics.simulation.simulations import (
    DATA,
    DRAWS,
    ENGINE,
    PRIOR,
    require_drawn_parameters,
    require_proper,
    stream_seed,
)
from pyro_bnn.errors import (
    DataError,
    DivergenceError,
    ModelError,
    OptionError,
    SiteError,
    UnknownNameError,
)
from pyro_bnn.infer.parallel.tasks import in_order
from pyro_bnn.posterior.call_posterior import CallPosterior
from pyro_bnn.program.enumerated import EnumeratedJoint, joint_of
from pyro_bnn.program.handlers import Evaluate, Model, is_point, is_reweighted, log_prob
from pyro_bnn.program.joint import Joint
from pyro_bnn.program.predictions import prediction
from pyro_bnn.program.random_state import isolated

MOST_ENTRIES = 4  # of a site
LIKELIHOOD, JOINT = "log likelihood", "log joint"


class CallSimulation(NamedTuple):
    """Values of the latent sites and of the observed ones, by name, of one run of the model."""

    latents: dict[str, Tensor]
    data: dict[str, Tensor]


@dataclass(frozen=True, eq=False)
class Simulator:
    """A model that has a joint density of latent and observed sites, of which it can be run.

    Args:
        joint: The model as tensor functions.
        observed: Names of the observed sites.
    """

    joint: Joint
    observed: tuple[str, ...]

    @staticmethod
    def of(model: Model, call: Call) -> Simulator:
        """The simulator of a model, refused where data of it are of another density.

        Raises:
            ModelError: If it observes nothing, has point-estimated parameters, scales what it
                observes, or has a factor that depends on latent sites.
            SiteError: If a prior is improper, or is scaled or masked.
        """
        joint = joint_of(model, call.args, call.kwargs)
        run = joint.run_at(joint.initial)
        observed = {name: msg for name, msg in run.observed.items() if not is_point(msg["fn"])}
        if not observed:
            raise ModelError(
                "the model observes nothing, so that no data can be simulated: pass a data.Call "
                "with the values that it observes, of which the shapes count alone"
            )
        require_drawn_parameters(joint)
        require_proper({*joint.latents.improper, *joint.latents.without_draws})
        if other := sorted(n for n, m in {**run.latent, **run.summed}.items() if is_reweighted(m)):
            raise SiteError(
                f"the density of {', '.join(other)} under poutine.scale or poutine.mask is not "
                "that of its draws: put the handler around what is observed alone"
            )
        if scaled := sorted(name for name, msg in observed.items() if not _is_one(msg["scale"])):
            raise ModelError(
                f"the density of {', '.join(scaled)} is scaled (pyro.poutine.scale), so that the "
                "posterior is not that of data simulated from it: calibrate the model unscaled"
            )
        if factors := _factors_of_latents(joint, run):
            raise ModelError(
                f"the factor {', '.join(map(repr, factors))} depends on latent sites, and nothing "
                "is drawn from it, so that simulated data are of another model: write it as a "
                "sample statement, observed or not"
            )
        return Simulator(joint, tuple(observed))

    def draw(self, seed: int, number: int) -> CallSimulation:
        """Latent sites from their prior, and data at them."""
        joint = self.joint
        with isolated(stream_seed(seed, PRIOR, number, DATA)), torch.no_grad():
            values = prediction(joint, None, {}, {}, joint.params)
        return CallSimulation(
            {site.name: values[site.name] for site in joint.sites},
            {name: values[name] for name in self.observed},
        )

    def model_of(self, data: Mapping[str, Tensor]) -> Model:
        """The model that observes these data in place of its own."""
        model: Model = pyro.condition(self.joint.model, data=dict(data))
        return model


def _is_one(scale: object) -> bool:
    return bool((torch.as_tensor(scale) == 1).all())


def _factors_of_latents(joint: Joint, run: Evaluate) -> list[str]:
    """Names of the ``pyro.factor`` statements whose value is another one at another draw."""
    other = joint.run_at(joint.initial + 0.5)
    most = joint.batch_dims if isinstance(joint, EnumeratedJoint) else None
    found = []
    for name, msg in run.factors.items():
        density = log_prob(msg)
        is_same = torch.equal(density, log_prob(other.factors[name]))
        if not is_same or (most is not None and density.ndim > most):
            found.append(name)
    return found


class CallQuantities:
    r"""Scalars of a draw that are ranked: entries of sites, the log likelihood and the log joint.

    Args:
        joint: The model as tensor functions.
        sites: Names of latent sites, or of ``pyro.deterministic`` statements; None for all latent
            sites. Of one with several entries up to four are taken, spread evenly.
        extra: More quantities by name; see :class:`Quantities`.

    Raises:
        OptionError: If a name of ``extra`` is taken.
        UnknownNameError: If there is no such site.
    """

    def __init__(
        self,
        joint: Joint,
        sites: Sequence[str] | None = None,
        extra: Mapping[str, Quantity] | None = None,
    ) -> None:
        self.extra = dict(extra or {})
        with torch.no_grad():
            every = self._values(joint, joint.initial[None], joint.params)
        latent = [site.name for site in joint.sites]
        self.sites = tuple(latent if sites is None else sites)
        if unknown := [name for name in self.sites if name not in every]:
            raise UnknownNameError("site", unknown[0], every)
        names, self._entries = list[str](), dict[str, list[int]]()
        for name in self.sites:
            shape = every[name].shape[1:]
            self._entries[name] = [int(i) for i in evenly_spread(shape.numel(), MOST_ENTRIES)]
            for entry in self._entries[name]:
                at = ",".join(map(str, np.unravel_index(entry, tuple(shape)))) if shape else ""
                names.append(f"{name}[{at}]" if at else name)
        names += [LIKELIHOOD, JOINT]
        if taken := [name for name in self.extra if name in names]:
            raise OptionError(
                f"the quantity {taken[0]!r} is there already: give yours another name"
            )
        self.names = (*names, *self.extra)

    def of(self, posterior: CallPosterior, z: Float[Tensor, "S P"]) -> Float[np.ndarray, "S Q"]:
        """Values at draws z of all quantities, in the order of ``names``, given its data.

        Raises:
            ShapeError: If a quantity of the user's is not ``[S]``.
        """
        joint, params = posterior.program, posterior.params
        with torch.no_grad():
            every = self._values(joint, z, params)
            columns = [
                every[name].double().reshape(len(z), -1)[:, entries]
                for name, entries in self._entries.items()
            ]
            likelihood, prior = joint.log_densities(z, params=params)
            columns += [likelihood.double()[:, None], (likelihood + prior).double()[:, None]]
            columns += [extra_value(n, fn, every)[:, None] for n, fn in self.extra.items()]
        return torch.cat([column.cpu() for column in columns], 1).numpy()

    @staticmethod
    def _values(joint: Joint, z: Tensor, params: Any) -> dict[str, Tensor]:
        return joint.constrain(z, params=params) | joint.deterministics(z, params=params)


# Posteriors of the simulated data


@dataclass(frozen=True, eq=False)
class Calibrated:
    """An engine that runs on data simulated from a model.

    Args:
        engine: The engine.
        simulator: Of the model.
        quantities: What is ranked.
        num_draws: Draws L of each posterior that are ranked.
        seed: Of simulations, runs and draws.
        saved: What an engine takes to be saved by a name.
    """

    engine: Any
    simulator: Simulator
    quantities: CallQuantities
    num_draws: int
    seed: int
    saved: Callable[[str], dict[str, Any]]

    def outcomes(self, num_simulations: int, *, progress: bool) -> Iterator[Outcome | None]:
        """Quantities of each truth and of the draws given its data; None where the engine failed.

        Raises:
            OptionError: If the engine keeps fewer draws than are ranked, or has no ``run``.
        """
        if not hasattr(self.engine, "run"):
            raise OptionError(
                f"{type(self.engine).__name__} has no method run(model, call, ...), which a model "
                "on a data.Call needs: run_each is of a network on rows"
            )
        tasks = [partial(self.outcome, number) for number in range(num_simulations)]
        of_bar: Any = {"total": num_simulations, "disable": not progress, "unit": "simulation"}
        yield from tqdm(in_order(tasks), desc="SBC", **of_bar)

    def outcome(self, number: int) -> Outcome | None:
        """That of the simulation of a number."""
        made = self.simulator.draw(self.seed, number)
        try:
            posterior: CallPosterior = self.engine.run(
                self.simulator.model_of(made.data),
                self.simulator.joint.call,
                seed=stream_seed(self.seed, ENGINE, number),
                progress=False,
                **self.saved(f"simulation-{number}"),
            )
        except (DataError, DivergenceError):  # of data that overflow
            return None
        stored = posterior.num_stored_draws
        z = posterior.unconstrained(
            self.num_draws if stored is None else stored,
            stream_seed(self.seed, DRAWS, number),
            group_by_chain=True,
        )
        truth = posterior.program.unconstrain(made.latents, params=posterior.params).to(z)
        if not bool(z.isfinite().all() and truth.isfinite().all()):
            return None
        draws = thinned(z.flatten(0, 1), self.num_draws)
        log_joint = partial(posterior.program.log_joint, params=posterior.params)
        return Outcome(
            values=self.quantities.of(posterior, torch.cat([truth[None], draws])),
            ess=effective_draws(log_joint, z, is_independent=stored is None),
            num_diverging=int(np.sum(posterior.sample_stats.get("diverging", 0))),
            method=posterior.method,
        )
