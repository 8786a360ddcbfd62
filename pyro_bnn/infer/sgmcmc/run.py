"""The run that all methods share: chains side by side, their batches, noise, warm-up and draws.

The warm-up has two parts. Chains that start at draws of the prior first go downhill, each to a mode
of its own, by Adam. Then they move as later, and a step that is not given is found on the way: the
scales of the coordinates at the modes; and three times, as the chains spread, the largest curvature
and the variance of the gradient over batches.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from pyro_bnn.capture import Captured
from pyro_bnn.capture.compilers import compiler_of
from pyro_bnn.errors import DivergenceError, OptionError
from pyro_bnn.handled import model_name
from pyro_bnn.infer.batches import IndependentMinibatches
from pyro_bnn.infer.checkpoints.checkpoint import Checkpoint
from pyro_bnn.infer.checkpoints.checkpoint import State as Saved
from pyro_bnn.infer.compiling import C_TIME, is_compiled
from pyro_bnn.infer.mcmc.potentials import of_one
from pyro_bnn.infer.mcmc.starts import find_starts
from pyro_bnn.infer.mcmc.store import DrawStore
from pyro_bnn.infer.problem import Problem
from pyro_bnn.infer.run import Run
from pyro_bnn.infer.sgmcmc.batches import OwnMinibatches, own_batches
from pyro_bnn.infer.sgmcmc.dynamics import Dynamics, Given, State
from pyro_bnn.infer.sgmcmc.gradient import difference, slope_of_all
from pyro_bnn.infer.sgmcmc.schedule import Plan, Schedule
from pyro_bnn.infer.sgmcmc.temperature import MIN_DRAWS, temperature_of
from pyro_bnn.infer.sgmcmc.tuning import coordinate_curvatures, largest_curvature
from pyro_bnn.infer.svi.descent import Descent
from pyro_bnn.posterior.draws_posterior import DrawsPosterior
from pyro_bnn.program.random_state import derived_seed
from pyro_bnn.program.terms import Batch

logger = logging.getLogger("pyro_bnn")

DESCENT = 1 / 3  # of the warm-up
DESCENT_RATE = 0.02  # of Adam at its start
LOOKS = (0, 1 / 3, 2 / 3)  # shares of the rest of the warm-up at which the step is found
SETTLED = 1 / 2  # share of it from which on its mean is taken
NEAR_A_MODE = 0.1  # squared slope of an anchor, beside that of draws, up to which it is at a mode
APART = 113  # stream of the rows that temperatures are taken from
NUM_BATCHES = 16  # that the variance of the gradient is estimated by
DRAWS = "pyro-bnn-sgmcmc-draws.bin"  # in the folder of a checkpoint
STATISTICS = ("configurational_temperature", "kinetic_temperature", "step_size")


class Found(NamedTuple):
    """What the warm-up finds, and a step uses.

    Attributes:
        scale: Of each coordinate ``[P]``: z is the state's z times it.
        centre: Where the configurational temperature is taken from ``[C, P]``.
        variance: Variance of the gradient's entries over batches ``[C, P]``.
        anchor: Where control variates are taken ``[C, P]``, in z itself.
        anchor_slope: The gradient of all rows there ``[C, P]``.
    """

    scale: Tensor
    centre: Tensor
    variance: Tensor
    anchor: Tensor
    anchor_slope: Tensor


class Chains(Run[DrawsPosterior]):
    """Chains of one method.

    Args:
        method: The options and the step.
        problem: What is sampled.
        saves: The checkpoint that the run goes on from, if any.
        schedule: Of the step after the warm-up.
        options: That the posterior's provenance holds.

    Raises:
        OptionError: If there are control variates, and every step has all rows.

    Attributes:
        now: Tensors of the method, z ``[C, P]`` over the scale of each coordinate the first.
        found: What the warm-up has found.
        step_size: The step h, before the schedule's factor; None until it is found.
        stats: Statistics of the draws that were kept ``[C, S, len(STATISTICS)]``.
    """

    def __init__(
        self,
        method: Dynamics,
        problem: Problem,
        saves: Checkpoint,
        schedule: Schedule,
        options: Mapping[str, Any],
    ) -> None:
        self.method, self.options, self.title = method, dict(options), problem.engine
        self.batches = own_batches(
            problem, method.batch_size, method.num_chains, independent=method.undoes_noise
        )
        if method.control is not None and self.batches.are_all:
            raise OptionError(
                f"control={method.control!r} would have no effect, as every step has all rows: set "
                "batch_size, or leave control at None"
            )
        num_sampling = method.thin * method.num_samples
        self.num_steps = method.warmup_steps + num_sampling
        self.plan = Plan(schedule, num_sampling, method.num_samples, method.step_power)
        goes_down = problem.init is None or method.control == "mode"
        self.num_descent = round(DESCENT * method.warmup_steps) if goes_down else 0
        self.num_burn_in = method.warmup_steps - self.num_descent
        self._looks = {self._look_at(share) for share in LOOKS}
        self.program, self._whole, self._seed = problem.program, problem.rows, problem.seed
        target = of_one(problem.program, problem.rows)
        self._potential = target.potential
        z = find_starts(target, problem.init, method.num_chains, problem.seed)
        self._z = z.requires_grad_()  # on the way down
        self._descent = Descent(
            [self._z],
            optimizer=None,
            learning_rate=DESCENT_RATE,
            schedule="cosine",
            num_steps=self.num_descent,
            clip_norm=None,
        )
        self._generator = torch.Generator(z.device).manual_seed(problem.seed + 1)
        # the noise of a permutation's batches depends on where it has brought the chains
        self._apart = IndependentMinibatches(
            problem.rows,
            method.batch_size,
            derived_seed(problem.seed, APART),
            chains=(method.num_chains,),
        )
        self.step_size = method.step_size
        z, zero = z.detach(), torch.zeros_like(z)
        one = torch.ones_like(z[0])
        self.now: State = method.begin(z.clone(), zero, one)
        self.found = Found(one, z.clone(), zero, z.clone(), zero)
        self._noise, self._told = torch.zeros_like(z), z.new_zeros(3)
        self._make_graphs(saves.compile_path, model_name(problem.model))
        self.stats = np.zeros((method.num_chains, method.num_samples, len(STATISTICS)))
        self.num_kept = 0
        self._path = None if saves.folder is None else saves.folder / DRAWS
        self._store: DrawStore | None = None

    def _make_graphs(self, path: str | None, model: str) -> None:
        method, name = self.method, f"the {self.title} step of {model}"
        of_sizes = functools.partial(
            is_compiled, method.compile, self.num_steps or 0, self._z.numel()
        )
        # Inductor's graph alone serves several numbers of rows
        automatic = of_sizes() if self.batches.rows_vary else of_sizes(C_TIME)
        self._slope = Captured(
            lambda *args: (self._potential(*args)[1],), name, enabled=path != "eager"
        )
        x = len(self._tensors(self._whole)) - 2
        self._step = Captured(
            self._iterate,
            name,
            enabled=path != "eager",
            compiled=automatic if path is None else path == "compiled",
            rows={x: 1, x + 1: 1} if self.batches.rows_vary else {},
            num_state=len(self.now),
            strict=method.compile is True,
            compiler=None if self.batches.rows_vary else compiler_of(is_long=of_sizes()),
        )

    # How it is driven

    def begin(self) -> None:
        """Make room for the draws."""
        self._store = self._open(None)

    def go(self) -> None:
        """One step of all chains.

        Raises:
            DivergenceError: If a chain is not finite after it.
        """
        if self.step < self.num_descent:
            self._go_down()
        else:
            self._move(self.step - self.num_descent)
        self.step += 1

    def _go_down(self) -> None:
        (slope,) = self._slope(self._z.detach(), *next(self.batches))
        self._check(slope)
        self._z.grad = slope
        self._descent.step(self.step)

    def _move(self, done: int) -> None:
        """A step of the method, of which so many are done."""
        if done == 0:
            self._enter()
        if self.method.control == "svrg" and done % self.batches.per_epoch == 0:
            self._set_anchor()
        if done in self._looks:
            self._look(is_first=done == 0)
        assert self.step_size is not None
        if done < self.num_burn_in:
            self._advance(next(self.batches), self.step_size, self.method.temperature, adapts=True)
            self._check(self.now["z"])
            self._note_centre(done - round(SETTLED * self.num_burn_in))
            return
        t = done - self.num_burn_in
        h = self.step_size * float(self.plan.factors[t])
        temperature = self.method.temperature if self.plan.samples[t] else 0.0
        _, stats = self._advance(next(self.batches), h, temperature)
        self._check(self.now["z"])
        for _ in range(int(self.plan.counts[t])):
            self._keep(stats, h)

    def _note_centre(self, before: int) -> None:
        """Take where the chains are into the mean, after so many that were taken."""
        if before >= 0:
            self.found.centre.lerp_(self.now["z"], 1 / (before + 1))

    def _keep(self, stats: Tensor, step_size: float) -> None:
        assert self._store is not None
        z = self.found.scale * self.now["z"]
        self._store.append(torch.arange(len(z)), z)
        self.stats[:, self.num_kept, :2] = stats.cpu().numpy()
        if isinstance(self.batches, OwnMinibatches) and not self.batches.are_all:
            rows = next(self._apart)
            if self.method.control is None:
                (slope,) = self._slope(z, *rows)
            else:
                moved = difference(self._potential, z, self.found.anchor, *rows)
                slope = self.found.anchor_slope + moved
            away = z - self.found.scale * self.found.centre
            self.stats[:, self.num_kept, 0] = (away * slope).mean(-1).cpu().numpy()
        self.stats[:, self.num_kept, 2] = step_size
        self.num_kept += 1

    def _check(self, values: Tensor) -> None:
        if not bool(values.isfinite().all()):
            raise DivergenceError(
                f"the chains are not finite at step {self.step}; error.posterior has the draws "
                "before it, if any. Lower step_size, or standardise the data"
            )

    def finish(self) -> None:
        """Warn of draws that have another temperature than was asked for."""
        if self.num_kept < MIN_DRAWS:
            return
        found = temperature_of(self.stats[:, : self.num_kept, 0], self.method.temperature)
        if found.is_off:
            logger.warning(
                "the draws have a configurational temperature of %.3g ± %.2g, not %.3g: too %s",
                *(found.mean, found.error, found.wanted),
                "wide, by the step or the noise of batches: lower step_size, or raise batch_size"
                if found.mean > found.wanted
                else "narrow, or not spread yet: raise warmup_steps and thin",
            )

    # A step

    def _advance(
        self, batch: Batch, step_size: float, temperature: float, *, adapts: bool = False
    ) -> tuple[Tensor, Tensor]:
        """Move all chains; the gradient ``[C, P]`` where they were, and temperatures ``[C, 2]``."""
        if temperature:
            self._noise.normal_(generator=self._generator)
        self._told = self._told.new_tensor([step_size, temperature, float(adapts)])
        slope, stats = self._step(*self._tensors(batch))
        return slope, stats

    def _tensors(self, batch: Batch) -> list[Tensor]:
        """What a step takes, in the order of :meth:`_iterate`."""
        scale, centre, variance, *anchors = self.found
        given = [*self.now.values(), self._noise, self._told, scale, centre, variance]
        return [*given, *(anchors if self.method.control else ()), *batch]

    def _iterate(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """The gradient and temperatures where the chains are, then their new state."""
        given = iter(tensors)
        state = {name: next(given) for name in self.now}
        noise, told, scale, centre, variance, *rest = given
        z = scale * state["z"]
        if self.method.control is None:
            _, slope = self._potential(z, *rest)
        else:
            anchor, anchor_slope, x, y = rest
            slope = anchor_slope + difference(self._potential, z, anchor, x, y)
        with torch.no_grad():
            slope = scale * slope
            configurational = ((state["z"] - centre) * slope).mean(-1)
            h, temperature, adapts = told.unbind()
            step = Given(h, temperature, adapts, variance)
            new = self.method.step(state, slope, noise, step)
            kinetic = new.get("p", noise).square().mean(-1)
            stats = torch.stack([configurational, kinetic], -1)
        return (slope, stats, *(new[name] for name in self.now))

    # The warm-up

    def _enter(self) -> None:
        """Start the method where the chains are, in coordinates that suit them."""
        z = self._z.detach().clone()
        scale = curvature = torch.ones_like(z[0])
        needs_scale = self.method.step_size is None or self.method.has_own_scale
        if needs_scale or self.method.control == "mode":
            found = coordinate_curvatures(self._slope_of_all, z, self.program.sites, self._probes())
            if self.method.has_own_scale:
                curvature = found
            elif needs_scale:
                scale = found.rsqrt()
        normal = torch.empty_like(z).normal_(generator=self._generator)
        state = self.method.begin(z / scale, self.method.temperature**0.5 * normal, curvature)
        self.now = {name: value.clone() for name, value in state.items()}
        self.found = self.found._replace(scale=scale, centre=z / scale)
        if self.method.control is not None:
            self._set_anchor()
        if self.num_descent and (needs_scale or self.method.control == "mode"):
            self._warn_of_no_mode(self._slope_of_all(z), found)

    def _warn_of_no_mode(self, slope: Tensor, curvature: Tensor) -> None:
        """Warn where the descent ended farther from a mode than draws are, or an anchor may be.

        A draw has :math:`E g_j^2 = H_{jj} T`, at most :math:`D_j T`, and a mode g = 0.
        """
        excess = float((slope.square() / curvature).mean(-1).max()) / self.method.temperature
        logger.info("step %d: the squared slope is %.3g of a draw's", self.step, excess)
        place = (
            f"the descent of {self.num_descent} steps ended where the squared slope is "
            f"{excess:.3g} times that of a draw"
        )
        if self.method.control == "mode" and excess > NEAR_A_MODE:
            logger.warning(
                "control='mode': %s, so not near a mode, and control variates take little noise "
                "away. Raise warmup_steps or batch_size, start from init=, or take control='svrg'",
                place,
            )
        elif excess > 1:
            logger.warning(
                "%s, so not near the posterior, and the step that is found there does not suit it: "
                "raise warmup_steps, or start from init=, such as a posterior of SVI",
                place,
            )

    def _set_anchor(self) -> None:
        """Take the control variates from where the chains are."""
        anchor = self.found.scale * self.now["z"]
        self.found = self.found._replace(anchor=anchor, anchor_slope=self._slope_of_all(anchor))

    def _probes(self) -> torch.Generator:
        """Random numbers of this step beside those of the chains."""
        seed = derived_seed(self._seed, self.step)
        return torch.Generator(self._noise.device).manual_seed(seed)

    def _slope_of_all(self, z: Tensor) -> Tensor:
        return slope_of_all(lambda *args: self._slope(*args)[0], z, self._whole)

    def _look_at(self, share: float) -> int:
        """The step at a share of the burn-in; with SVRG in the middle of an epoch.

        The noise of its gradient grows from one anchor to the next.
        """
        step, epoch = round(share * self.num_burn_in), self.batches.per_epoch
        middle = step - step % epoch + epoch // 2
        renews = self.method.control == "svrg" and step > 0
        return middle if renews and middle < self.num_burn_in else step

    def _look(self, *, is_first: bool) -> None:
        """Find the step, and the variance of the gradient, where they are asked for."""
        method = self.method
        if method.step_size is not None and not method.uses_variance:
            return
        variance = self._gradient_variance(is_first=is_first)
        self.found = self.found._replace(variance=variance)
        if method.step_size is None:
            units = method.scale(self.now)
            scale = units * self.found.scale
            curvature = largest_curvature(
                lambda v: scale * self._slope_of_all(scale * v),
                self.now["z"] / units,
                self._probes(),
            )
            mean = float((variance * units.square()).mean()) / method.temperature
            largest = method.largest_step(curvature, mean)
            if method.control == "svrg" and self.step_size is not None:
                # variance seen at the old step; it grows with the step, as chains leave the anchor
                largest = min(largest, (largest * self.step_size) ** 0.5)
            self.step_size = largest
            logger.info(
                "step %d: curvature %.3g, variance of the gradient %.3g, so step_size %.3g",
                *(self.step, curvature, mean, self.step_size),
            )
        assert self.step_size is not None
        if share := method.lacks_room(self.step_size, variance):
            logger.warning(
                "batches are noisier than the friction allows in %.0f %% of the coordinates, which "
                "will be too hot: lower step_size, or raise friction or batch_size",
                100 * share,
            )

    def _gradient_variance(self, *, is_first: bool) -> Tensor:
        """Variance of the gradient over batches ``[C, P]``, in the coordinates of the steps."""
        if self.batches.are_all:
            return torch.zeros_like(self._noise)
        here = self.now
        if is_first and self.method.control:  # at their anchor control variates leave no noise
            away = torch.empty_like(here["z"]).normal_(generator=self._probes())
            self.now = {**here, "z": here["z"] + away}
        # steps of length 0 change nothing
        slopes = [
            self._advance(next(self.batches), 0.0, 0.0)[0].clone() for _ in range(NUM_BATCHES)
        ]
        self.now = here
        return torch.stack(slopes).var(0)

    # A checkpoint's two methods, and the posterior

    def state(self) -> Saved:
        """All that the next steps depend on; see ``Resumable``."""
        assert self._store is not None
        return {
            "place": f"step {self.step} of {self.num_steps}",
            "compile_path": self._step.path,
            "step": self.step,
            "tensors": self._changing(),
            "step_size": self.step_size,
            "descent": self._descent.state(),
            "store": None if self._path is None else self._store.state(),
            "stats": torch.from_numpy(self.stats[:, : self.num_kept]),
            "generator": self._generator.get_state(),
            "batches": self.batches.state(),
            "apart": self._apart.state(),
        }

    def _changing(self) -> dict[str, Tensor]:
        """Tensors that change from step to step or in the warm-up, by name."""
        now = {f"now.{name}": value for name, value in self.now.items()}
        return {"down": self._z, **now, **self.found._asdict()}

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
        self._descent.restore(state["descent"])
        self._generator.set_state(state["generator"])
        self.batches.restore(state["batches"])
        self._apart.restore(state["apart"])
        values = {name: value.to(self._noise.device) for name, value in saved.items()}
        with torch.no_grad():
            self._z.copy_(values["down"])
        self.now = {name: values[f"now.{name}"] for name in self.now}
        self.found = Found(**{name: values[name] for name in Found._fields})
        self.stats[:, :kept] = stats
        self.step, self.num_kept, self.step_size = step, kept, state["step_size"]

    def _open(self, saved: Mapping[str, Any] | None) -> DrawStore:
        shape = (self.method.num_chains, self.method.num_samples, self.program.num_latents)
        like = self._noise
        return DrawStore(*shape, like.dtype, device=like.device, path=self._path, saved=saved)

    def posterior(self, problem: Problem, saves: Checkpoint) -> DrawsPosterior | None:
        """The draws that were kept, with temperatures and step of each; None before the first."""
        if not self.num_kept:
            return None
        assert self._store is not None
        provenance = problem.provenance(
            saves,
            method=problem.engine,
            options={**self.options, "step_size": self.step_size},
            num_parameters=self.program.num_latents,
        )
        stats = {
            name: self.stats[:, : self.num_kept, i].copy()
            for i, name in enumerate(STATISTICS)
            if name != "kinetic_temperature" or "p" in self.now
        }
        draws = self._store.draws[:, : self.num_kept]
        return DrawsPosterior(self.program, draws, provenance, sample_stats=stats)
