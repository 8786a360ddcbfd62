"""The run that all methods of SG-MCMC share: the warm-up, then steps whose draws are kept."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pyro_bnn.errors import DivergenceError, OptionError
from pyro_bnn.handled import model_name
from pyro_bnn.infer.batches import IndependentMinibatches
from pyro_bnn.infer.checkpoints.checkpoint import Checkpoint
from pyro_bnn.infer.checkpoints.checkpoint import State as Saved
from pyro_bnn.infer.problem import Facts
from pyro_bnn.infer.run import Run
from pyro_bnn.infer.sgmcmc.batches import OwnMinibatches, own_batches
from pyro_bnn.infer.sgmcmc.dynamics import Dynamics
from pyro_bnn.infer.sgmcmc.gradient import difference
from pyro_bnn.infer.sgmcmc.moving_chains import MovingChains, Tuned
from pyro_bnn.infer.sgmcmc.schedule import Plan, StepSchedule
from pyro_bnn.infer.sgmcmc.temperature import MIN_DRAWS, temperature_of
from pyro_bnn.infer.sgmcmc.warm_up import WarmUp
from pyro_bnn.infer.starting_points import take_params
from pyro_bnn.infer.steps.potentials import of_one
from pyro_bnn.infer.steps.starts import find_starts
from pyro_bnn.infer.steps.store import DrawStore
from pyro_bnn.posterior.call_posterior import CallDraws
from pyro_bnn.posterior.draws_posterior import DrawsPosterior
from pyro_bnn.program.random_state import derived_seed

logger = logging.getLogger("pyro_bnn")

APART = 113  # stream of the rows that temperatures are taken from
DRAWS = "pyro-bnn-sgmcmc-draws.bin"  # in the folder of a checkpoint
STATISTICS = ("configurational_temperature", "kinetic_temperature", "step_size")


class Chains(Run[DrawsPosterior]):
    """Chains of one method.

    Args:
        method: The options and the step.
        problem: Model and data.
        saves: The checkpoint that the run goes on from, if any.
        schedule: Step sizes after the warm-up.
        options: Options for the posterior's provenance.

    Raises:
        OptionError: If there are control variates, and every step has all rows.

    Attributes:
        chains: Where they are, and their step.
        warm_up: The steps before the first draw, and the step size that they find.
        stats: Statistics of the draws that were kept ``[C, S, len(STATISTICS)]``.
    """

    def __init__(
        self,
        method: Dynamics,
        problem: Facts,
        saves: Checkpoint,
        schedule: StepSchedule,
        options: Mapping[str, Any],
    ) -> None:
        self.method, self.options, self.title = method, dict(options), problem.engine
        take_params(problem.joint, problem.init, problem.seed)
        size = problem.own_batch_size if method.batch_size is None else method.batch_size
        self._batch_size = size
        self.batches = own_batches(
            problem, size, method.num_chains, independent=method.undoes_noise
        )
        if method.control is not None and self.batches.are_all:
            raise OptionError(
                f"control={method.control!r} would have no effect, as every step has all rows: set "
                "batch_size, or leave control at None"
            )
        num_sampling = method.thin * method.num_samples
        self.num_steps = method.warmup_steps + num_sampling
        self.plan = Plan(schedule, num_sampling, method.num_samples, method.step_power)
        self.program = problem.joint
        target = of_one(problem.joint, problem.rows)
        z = find_starts(target, problem.init, method.num_chains, problem.seed)
        # other rows than those of the steps: where the chains are depends on the latter's noise
        self._apart = IndependentMinibatches(
            problem.rows,
            size,
            derived_seed(problem.seed, APART),
            chains=(method.num_chains,),
        )
        self.chains = MovingChains(
            method,
            target.potential,
            self.batches,
            problem.rows,
            z,
            seed=problem.seed + 1,
            name=f"the {self.title} step of {model_name(problem.model)}",
            path=saves.compile_path,
            num_steps=self.num_steps,
        )
        goes_down = not problem.is_led or method.control == "mode"
        self.warm_up = WarmUp(
            self.chains, z, goes_down=goes_down, sites=problem.joint.sites, seed=problem.seed
        )
        self.stats = np.zeros((method.num_chains, method.num_samples, len(STATISTICS)))
        self.num_kept = 0
        self._path = None if saves.folder is None else saves.folder / DRAWS
        self._store: DrawStore | None = None

    # How it is driven

    def begin(self) -> None:
        """Make room for the draws."""
        self._store = self._open(None)

    def go(self) -> None:
        """One step of all chains.

        Raises:
            DivergenceError: If a chain is not finite after it.
        """
        warm_up, chains = self.warm_up, self.chains
        done = self.step - warm_up.num_descent  # steps of the method
        if done < 0:
            slope = warm_up.slope_down()
            self._check(slope)
            warm_up.go_down(self.step, slope)
        else:
            step_size = warm_up.step_size_at(done, self.step)
            if done < warm_up.num_burn_in:
                temperature = self.method.temperature
                chains.advance(next(self.batches), step_size, temperature, adapts=True)
                self._check(chains.now["z"])
                warm_up.note_centre(done)
            else:
                self._sample(done - warm_up.num_burn_in, step_size)
        self.step += 1

    def _sample(self, t: int, step_size: float) -> None:
        """Take step t after the warm-up, and keep its draws."""
        h = step_size * float(self.plan.factors[t])
        temperature = self.method.temperature if self.plan.samples[t] else 0.0
        _, stats = self.chains.advance(next(self.batches), h, temperature)
        self._check(self.chains.now["z"])
        for _ in range(int(self.plan.counts[t])):
            self._keep(stats, h)

    def _keep(self, stats: Tensor, step_size: float) -> None:
        assert self._store is not None
        z, tuned = self.chains.z, self.chains.tuned
        self._store.append(torch.arange(len(z)), z)
        self.stats[:, self.num_kept, :2] = stats.cpu().numpy()
        if isinstance(self.batches, OwnMinibatches) and not self.batches.are_all:
            rows = next(self._apart)
            if self.method.control is None:
                slope = self.chains.slope(z, *rows)
            else:
                change = difference(self.chains.potential, z, tuned.anchor, *rows)
                slope = tuned.anchor_slope + change
            displacement = z - tuned.scale * tuned.centre
            self.stats[:, self.num_kept, 0] = (displacement * slope).mean(-1).cpu().numpy()
        self.stats[:, self.num_kept, 2] = step_size
        self.num_kept += 1

    def _check(self, values: Tensor) -> None:
        if not bool(values.isfinite().all()):
            raise DivergenceError(
                f"the chains are not finite at step {self.step}; error.posterior has the draws "
                "before it, if any. Lower step_size, or standardise the data"
            )

    def finish(self) -> None:
        """Warn if the draws have another temperature than the user asked for."""
        if self.num_kept < MIN_DRAWS:
            return
        measured = temperature_of(self.stats[:, : self.num_kept, 0], self.method.temperature)
        if measured.is_off:
            logger.warning(
                "the draws have a configurational temperature of %.3g ± %.2g, not %.3g: too %s",
                *(measured.mean, measured.error, measured.wanted),
                "wide, by the step or the noise of batches: lower step_size, or raise batch_size"
                if measured.mean > measured.wanted
                else "narrow, or not spread yet: raise warmup_steps and thin",
            )

    # A checkpoint's two methods, and the posterior

    def state(self) -> Saved:
        """All that the next steps depend on; see ``Resumable``."""
        assert self._store is not None
        return {
            "place": f"step {self.step} of {self.num_steps}",
            "compile_path": self.chains.path,
            "step": self.step,
            "tensors": self._changing(),
            "step_size": self.warm_up.step_size,
            "descent": self.warm_up.descent.state(),
            "store": None if self._path is None else self._store.state(),
            "stats": torch.from_numpy(self.stats[:, : self.num_kept]),
            "generator": self.chains.generator.get_state(),
            "batches": self.batches.state(),
            "apart": self._apart.state(),
        }

    def _changing(self) -> dict[str, Tensor]:
        """Tensors that change from step to step or in the warm-up, by name."""
        now = {f"now.{name}": value for name, value in self.chains.now.items()}
        return {"down": self.warm_up.z, **now, **self.chains.tuned._asdict()}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go to a state; see ``Resumable``.

        Raises:
            ValueError: If it is of another run.
        """
        step, stats, saved = state["step"], state["stats"].numpy(), state["tensors"]
        if not 0 <= step <= (self.num_steps or 0):
            raise ValueError(f"step {step}")
        kept = int(self.plan.counts[: max(0, step - self.method.warmup_steps)].sum())
        if stats.shape != self.stats[:, :kept].shape:
            raise ValueError(f"statistics {stats.shape} at step {step}")
        shapes = {name: (value.shape, value.dtype) for name, value in self._changing().items()}
        if shapes != {name: (value.shape, value.dtype) for name, value in saved.items()}:
            raise ValueError(f"its tensors are {', '.join(saved)}")
        self._store = self._open(state["store"])
        self.warm_up.descent.restore(state["descent"])
        self.chains.generator.set_state(state["generator"])
        self.batches.restore(state["batches"])
        self._apart.restore(state["apart"])
        values = {name: value.to(self.warm_up.z.device) for name, value in saved.items()}
        with torch.no_grad():
            self.warm_up.z.copy_(values["down"])
        self.chains.now = {name: values[f"now.{name}"] for name in self.chains.now}
        self.chains.tuned = Tuned(**{name: values[name] for name in Tuned._fields})
        self.stats[:, :kept] = stats
        self.step, self.num_kept, self.warm_up.step_size = step, kept, state["step_size"]

    def _open(self, saved: Mapping[str, Any] | None) -> DrawStore:
        shape = (self.method.num_chains, self.method.num_samples, self.program.num_latents)
        like = self.warm_up.z
        return DrawStore(*shape, like.dtype, device=like.device, path=self._path, saved=saved)

    def posterior(  # type: ignore[override]  # of a Call, draws of its sites
        self, problem: Facts, saves: Checkpoint
    ) -> DrawsPosterior | CallDraws | None:
        """The draws that were kept, with temperatures and step of each; None before the first."""
        if not self.num_kept:
            return None
        assert self._store is not None
        provenance = problem.provenance(
            saves,
            method=problem.engine,
            options={
                **self.options,
                "batch_size": self._batch_size,
                "step_size": self.warm_up.step_size,
            },
            num_parameters=self.program.num_latents,
        )
        stats = {
            name: self.stats[:, : self.num_kept, i].copy()
            for i, name in enumerate(STATISTICS)
            if name != "kinetic_temperature" or "p" in self.chains.now
        }
        draws = self._store.draws[:, : self.num_kept]
        return problem.draws_posterior(draws, provenance, stats)
