r"""One kind of guide fitted to many data sets of one model, with a step for all of them at once.

The parameters of D guides are stacked, and the objective is the sum of theirs, so that its gradient
is that of each; Adam goes by entries, so its steps are those of D runs of SVI.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from pyro_bnn.capture.captured import Captured, value_and_grad
from pyro_bnn.capture.compilers import compiler_of
from pyro_bnn.errors import CaptureError
from pyro_bnn.guides import Guide
from pyro_bnn.infer.checkpoints.checkpoint import Checkpoint, State, saved_in
from pyro_bnn.infer.checkpoints.identity import Identity
from pyro_bnn.infer.compiling import C_TIME, is_compiled
from pyro_bnn.infer.inputs import set_up, unchanged
from pyro_bnn.infer.problem import Problem
from pyro_bnn.infer.run import Run, drive, weight_of_kl
from pyro_bnn.infer.steps.rounds import ends_of_rounds
from pyro_bnn.infer.svi.estimators.by_name import FOR_ALL
from pyro_bnn.infer.svi.svi import SVI, make_guide
from pyro_bnn.posterior.doubling import Doubling
from pyro_bnn.posterior.guide_posterior import GuidePosterior
from pyro_bnn.program.batched import without_vmap_warnings
from pyro_bnn.program.program import Program
from pyro_bnn.program.random_state import derived_seed, isolated
from pyro_bnn.program.terms import Batch

AT_ONCE = 256  # data sets at once; larger operations are no faster
NUMBERS = 1 << 22  # parameters of all guides at once
NOISE = 1  # stream of random numbers beside that of the starts
FEW = 0.05  # share of fits that may still rise where all of them end
PAIRS = 200  # of objectives at one noise, that the ends of two rounds are compared by


def fits_at_once(engine: object) -> bool:
    """Whether an engine is SVI with options that leave the steps of many fits apart.

    Clipping goes by the norm of all gradients, patience by one objective, and other optimisers and
    estimators, minibatches and draws for each row are not built here.
    """
    return (
        isinstance(engine, SVI)
        and not isinstance(engine.guide, nn.Module)  # a guide instance would be trained in place
        and engine.optimizer is None
        and engine.batch_size is engine.patience is None
        and engine.clip_norm is None
        and not engine.per_example_draws
        and engine.estimator in FOR_ALL
    )


def fit_each(
    svi: SVI,
    program: Program,
    x: Tensor,
    ys: Tensor,
    *,
    seed: int = 0,
    progress: bool = True,
    checkpoint: Path | None = None,
    resume: bool = False,
) -> Iterator[Guide | None]:
    """A guide for each data set, fitted by the options of an SVI for which ``fits_at_once`` holds.

    Args:
        svi: The options.
        program: The model, without point-estimated parameters that are trained.
        x: Inputs ``[N, ...]`` of every data set.
        ys: Observations ``[D, N, ...]``.
        seed: Seed of starts and noise.
        progress: Whether to show a progress bar over steps.
        checkpoint: Folder in which the states of the runs are saved, each in a folder of its own.
        resume: Whether to go on from there.

    Yields:
        A trained guide, or None where its objective or a parameter became NaN or infinite.

    Raises:
        CaptureError: If the guide or the model cannot be batched over data sets.
    """
    size = sum(p.numel() for p in _new_guide(svi, program, seed).parameters())
    at_once = max(min(AT_ONCE, NUMBERS // max(size, 1)), 1)
    inputs = program.inputs(x)  # of a frozen body, once for all
    for start in range(0, len(ys), at_once):
        batches = [program.batch(inputs, y) for y in ys[start : start + at_once]]
        seeds = (derived_seed(seed, start + d) for d in range(len(batches)))
        guides = [_new_guide(svi, program, own) for own in seeds]
        with isolated(), unchanged(program.model):
            run = Together(svi, program, guides, batches, seed + start)
            saves = _saves(run, saved_in(checkpoint, f"fits-{start}", resume=resume), seed + start)
            drive(run, saves, progress=progress)
        yield from run.fits()


def _new_guide(svi: SVI, program: Program, seed: int) -> Guide:
    with isolated(seed), unchanged(program.model):
        guide = make_guide(svi.guide, program.model)
        if not isinstance(guide, Guide):
            raise CaptureError("a guide of stock Pyro is not batched over data sets")
        set_up(guide, program)
    program.prepare(guide)
    return guide


def _saves(run: Together, given: Mapping[str, Any], seed: int) -> Checkpoint:
    """The checkpoint of a run."""
    program = run.program
    return Checkpoint(
        given.get("checkpoint"),
        resume=given.get("resume", False),
        identify=lambda: Identity(
            program,
            Batch(run.x, run.ys),
            engine=type(run).__name__,
            options=run.options,
            seed=seed,
            trains_params=False,
        ),
        device=program.device,
        start=time.perf_counter(),
    )


class Together(Run[GuidePosterior]):
    """A run of SVI on each of several data sets, a step for all of them at a time.

    Args:
        svi: The options.
        program: The model.
        guides: One a data set, trained in place at the end.
        batches: The data sets.
        seed: Of the noise.

    Attributes:
        x: Inputs ``[N, ...]``.
        ys: Targets ``[D, N, ...]``.
        options: By which a checkpoint knows the run.
    """

    def __init__(
        self,
        svi: SVI,
        program: Program,
        guides: Sequence[Guide],
        batches: Sequence[Batch],
        seed: int,
    ) -> None:
        self.svi, self.program, self._guides = svi, program, guides
        guide, self.x = guides[0], batches[0].x
        self.ys = torch.stack([batch.y for batch in batches])  # [D, N, ...]
        self.options = svi.identity(guide)
        self._names = [name for name, _ in guide.named_parameters()]
        parameters = zip(*(own.parameters() for own in guides), strict=True)
        self._stacked = [torch.stack(of_each).detach() for of_each in parameters]
        num_numbers = sum(values.numel() for values in self._stacked)
        gains = functools.partial(is_compiled, svi.compile, svi.likely_steps, num_numbers)
        self._step = Captured(
            value_and_grad(self._loss, len(self._names)),
            f"{type(guide).__name__} on {len(guides)} data sets",
            compiled=gains(C_TIME),
            compiler=compiler_of(is_long=gains()),
        )
        self._descent = svi.descent(self._stacked)
        self._loc_warmup = svi.warmup_of(guide, is_new=True)
        seed = derived_seed(seed, NOISE)
        self._generator = torch.Generator(program.device).manual_seed(seed)
        self._is_good = torch.ones(len(guides), dtype=torch.bool, device=program.device)
        self._ends = set(ends_of_rounds(svi.planned_steps)) if svi.ends_by_itself else set[int]()
        self._before: list[Tensor] | None = None
        self._has_converged = False
        self.num_steps = None if svi.ends_by_itself else svi.planned_steps
        self.title = f"{len(guides)} fits"

    @property
    def is_done(self) -> bool:
        """Whether all fits have converged, or no step is left."""
        return self._has_converged or self.step == self.svi.planned_steps

    def _one(self, noise: Tensor, y: Tensor, x: Tensor, weight: Tensor, *values: Tensor) -> Tensor:
        named = zip(self._names, values, strict=True)
        params = {f"guide.{name}": value for name, value in named}
        return self.program.elbo(self._guides[0], params, noise, Batch(x, y)).loss(weight)

    def _loss(
        self, variables: Sequence[Tensor], rest: Sequence[Tensor]
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        noise, x, ys, weight = rest
        of_each = (0, 0, None, None, *(0 for _ in variables))
        losses = torch.func.vmap(self._one, of_each)(noise, ys, x, weight, *variables)  # [D]
        return losses.sum(), (losses,)

    def go(self) -> None:
        """One step of all fits."""
        svi, guide, count = self.svi, self._guides[0], len(self._guides)
        noise = guide.draw_noise(count * svi.num_particles, self._generator)
        noise = noise.unflatten(0, (count, -1))  # [D, K, M]
        weight = self.program.initial.new_tensor(weight_of_kl(self.step, svi.kl_warmup))
        try:
            _, losses, *gradients = self._step(*self._stacked, noise, self.x, self.ys, weight)
        except RuntimeError as error:
            reason = str(error).strip().splitlines()[0]
            raise CaptureError(
                f"{type(guide).__name__} cannot be batched over data sets: {reason}"
            ) from error
        self._is_good &= losses.isfinite()
        for name, parameter, gradient in zip(self._names, self._stacked, gradients, strict=True):
            is_held = self.step < self._loc_warmup and name not in guide.mean_params
            parameter.grad = None if is_held else gradient
        self._descent.step(self.step)
        self.step += 1
        if self.step in self._ends:
            self._end_round()

    def _end_round(self) -> None:
        """Look whether a round has raised fits; where it has not, they have converged."""
        now = [parameter.clone() for parameter in self._stacked]
        is_warm = self.step >= 2 * max(self.svi.kl_warmup, self._loc_warmup)
        if self._before is not None and is_warm:
            rising = _num_rising(
                self._guides[0], self._one, self._before, now, self.ys, self.x, self._generator
            )
            self._has_converged = rising <= FEW * len(self._guides)
        self._before = now

    def fits(self) -> list[Guide | None]:
        """The guides, trained in place; None where one met what is not finite."""
        is_good = self._is_good.clone()
        for parameter in self._stacked:
            is_good &= parameter.isfinite().flatten(1).all(1)
        for d, own in enumerate(self._guides):
            for parameter, values in zip(own.parameters(), self._stacked, strict=True):
                parameter.data.copy_(values[d])
        pairs = zip(self._guides, is_good.tolist(), strict=True)
        return [own if good else None for own, good in pairs]

    def posterior(self, problem: Problem, saves: Checkpoint) -> None:
        """None: there is one for each data set, see :meth:`fits`."""

    def state(self) -> State:
        """See ``Resumable``."""
        return {
            "place": f"step {self.step} of {self.svi.planned_steps}",
            "compile_path": self._step.path,
            "step": self.step,
            "values": self._stacked,
            "before": self._before,
            "is_good": self._is_good,
            "has_converged": self._has_converged,
            "optimizer": self._descent.state(),
            "generator": self._generator.get_state(),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go to a state of a run of the same options; see ``Resumable``."""
        for parameter, values in zip(self._stacked, state["values"], strict=True):
            parameter.copy_(values.reshape(parameter.shape))
        self._descent.restore(state["optimizer"])
        self._generator.set_state(state["generator"].cpu())
        before = state["before"]
        self._before = None if before is None else [own.to(self.x.device) for own in before]
        self._is_good = state["is_good"].to(self._is_good)
        self.step, self._has_converged = int(state["step"]), bool(state["has_converged"])


def _num_rising(
    guide: Guide,
    loss: Callable[..., Tensor],
    before: Sequence[Tensor],
    after: Sequence[Tensor],
    ys: Tensor,
    x: Tensor,
    generator: torch.Generator,
) -> int:
    """How many of the fits the last round still raised, each by losses at one noise."""
    state = generator.get_state()  # the steps go on as if nothing had been asked
    weight = x.new_ones(()) if x.is_floating_point() else before[0].new_ones(())
    gains = []
    with torch.no_grad(), without_vmap_warnings():
        for _ in range(PAIRS if guide.noise_dim else 2):
            noise = guide.draw_noise(1, generator)
            of_each = (None, 0, None, None, *(0 for _ in after))
            first, last = (
                torch.func.vmap(loss, of_each)(noise, ys, x, weight, *values)
                for values in (before, after)
            )
            gains.append(first - last)  # [D]
    generator.set_state(state)
    rows = torch.stack(gains).double()  # [S, D]
    means, errors = rows.mean(0), rows.std(0) / len(rows) ** 0.5
    doublings = (Doubling(float(m), float(e), 0) for m, e in zip(means, errors, strict=True))
    return sum(doubling.is_unfinished for doubling in doublings)
