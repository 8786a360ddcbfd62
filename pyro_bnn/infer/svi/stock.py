"""Guides from stock Pyro, trained by Pyro's own ``Trace_ELBO`` and kept as stored draws."""

from __future__ import annotations

import logging
import math
import time
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pyro
import pyro.distributions as dist
import torch
from pyro import poutine
from pyro.infer import Trace_ELBO
from pyro.infer.autoguide import AutoLaplaceApproximation
from pyro.poutine.messenger import Messenger
from torch import Tensor, nn
from torch.linalg import LinAlgError  # type: ignore[attr-defined]  # torch does not export it
from tqdm.auto import tqdm

from pyro_bnn.data import Dataset
from pyro_bnn.errors import DivergenceError, OptionError
from pyro_bnn.handled import module_of
from pyro_bnn.infer.batches import Batches, batches_of
from pyro_bnn.infer.checkpoints.checkpoint import Checkpoint, users_code
from pyro_bnn.infer.checkpoints.interrupts import Interrupted
from pyro_bnn.infer.engine import WINDOW, Data, program_of
from pyro_bnn.infer.svi.descent import Descent
from pyro_bnn.posterior.posterior import DrawsPosterior
from pyro_bnn.posterior.provenance import Provenance, of_data
from pyro_bnn.program.distributions import base_distribution
from pyro_bnn.program.handlers import Model, without_validation
from pyro_bnn.program.program import Program
from pyro_bnn.program.random_state import isolated
from pyro_bnn.program.terms import Batch
from pyro_bnn.sites import require_sites

if TYPE_CHECKING:
    from pyro_bnn.infer.svi.options import SVIOptions

logger = logging.getLogger("pyro_bnn")

NUM_DRAWS = 1_000


class _ScaleLikelihood(Messenger):
    """Scale the site ``"y"`` by N/B, unless the model's plate does."""

    def __init__(self, num_data: int) -> None:
        super().__init__()
        self.num_data = num_data

    def _pyro_sample(self, msg: Any) -> None:
        if msg["name"] != "y":
            return
        plates = [frame for frame in msg["cond_indep_stack"] if frame.name == "data"]
        if any(p.full_size in (None, p.size) for p in plates):
            msg["scale"] = msg["scale"] * (self.num_data / plates[0].size)


class _ScaleLatents(Messenger):
    """Scale every latent site of model and guide: the KL's weight."""

    def __init__(self, weight: float) -> None:
        super().__init__()
        self.weight = weight
        self._factors: dict[str, float] = {}

    @property
    def factors(self) -> float:
        """Sum of the model's ``pyro.factor`` statements, which are not part of the ELBO."""
        return sum(self._factors.values())

    def _pyro_sample(self, msg: Any) -> None:
        if isinstance(msg["fn"], dist.Unit):
            self._factors[msg["name"]] = float(msg["fn"].log_factor.detach().sum())
        elif not msg["is_observed"] and self.weight != 1.0:
            msg["scale"] = msg["scale"] * self.weight


def run_stock_guide(
    svi: SVIOptions,
    model: Model,
    guide: Any,
    data: Data,
    dataset: Dataset,
    *,
    frozen: Sequence[str],
    seed: int,
    progress: bool,
    checkpoint: str | Path | None = None,
    resume: bool = False,
) -> DrawsPosterior:
    """Train a guide of stock Pyro and keep ``NUM_DRAWS`` draws of it.

    The caller has isolated the random state and the parameter store, and made a model for this
    fit: its parameters are trained but those named ``frozen``. Of ``AutoLaplaceApproximation`` the
    mode is trained, and the draws are of the Gaussian around it.

    Raises:
        DivergenceError: If the loss becomes NaN or infinite; holds the last good posterior.
        DivergenceError: If the log joint is not curved downwards where a Laplace approximation
            ended.
        SiteError: If the guide does not cover a site of the model.
    """
    start = time.perf_counter()
    name = getattr(guide, "__name__", type(guide).__name__)
    logger.warning("%s is a guide of stock Pyro and runs through plain Pyro, which is slower", name)
    own = _named_parameters(model)
    program = program_of(model, dataset)
    for parameter in frozen:  # Pyro thaws them
        program.params[parameter].requires_grad = False
    batch = program.batch(dataset.x, dataset.y)
    with isolated():  # what it puts into the store, such as another model's parameters, is dropped
        _check_covers(guide, batch.x, batch.y, program)
    saved = svi.open_checkpoint(
        checkpoint, guide, program, data, dataset, seed=seed, resume=resume, start=start
    )
    batches = batches_of(data, program, batch, svi.batch_size, seed)
    run = _StockRun(svi, program, guide, name, {own[key] for key in frozen}, batches)

    def posterior() -> DrawsPosterior:
        trained = _with_live_params(Program(model, dataset.x, dataset.y))
        q = _laplace(guide, batch) if isinstance(guide, AutoLaplaceApproximation) else guide
        z, log_q = _draws(q, batch.x, batch.y, trained, seed)
        provenance = Provenance(
            method=name,
            engine="SVI",
            options=svi.describe(guide, run.learning_rate),
            seed=seed,
            wall_time=saved.wall_time,
            num_parameters=sum(leaf.numel() for leaf in run.leaves),
            losses=np.asarray(run.losses),
            **of_data(dataset),
            threads=saved.threads,
        )
        return DrawsPosterior(
            trained,
            z.unsqueeze(0),
            provenance,
            log_q=None if log_q is None else log_q.unsqueeze(0),
        )

    try:
        saved.restore(run)
        run.train(saved, progress=progress)
    except (DivergenceError, Interrupted) as error:
        error.posterior = posterior()
        raise
    return posterior()


class _StockRun:
    """One training run by ``Trace_ELBO``; leaves are found as the model and the guide name them."""

    def __init__(
        self,
        svi: SVIOptions,
        program: Program,
        guide: Any,
        name: str,
        frozen: set[nn.Parameter],
        batches: Batches,
    ) -> None:
        self.svi, self.guide, self.name, self._frozen = svi, guide, name, frozen
        self._batches, self._device = batches, program.device
        self.step = 0
        self.losses: list[float] = []
        self.leaves: dict[Tensor, None] = {}  # an ordered set
        self._elbo = Trace_ELBO(num_particles=svi.num_particles)
        self._model = _ScaleLikelihood(program.num_data)(program.model)
        # parameters of a plain module inside the model have no pyro.param statement
        self._own = list(_named_parameters(program.model).values())
        self._descent: Descent | None = None
        self._last_good: tuple[int, list[Tensor]] = (0, [])

    @property
    def learning_rate(self) -> float:
        """The optimiser's, which is made at the first step."""
        return self.svi.learning_rate if self._descent is None else self._descent.learning_rate

    def train(self, checkpoint: Checkpoint, *, progress: bool) -> None:
        num_steps = self.svi.num_steps
        bar = tqdm(
            total=num_steps, initial=self.step, disable=not progress, desc=self.name, unit="step"
        )
        # a NaN shall reach the loss, where it is told with its step
        with bar, checkpoint.watch(), without_validation():
            while self.step < num_steps:
                self._advance(self.step, next(self._batches))
                self.step += 1
                bar.update()
                checkpoint.step(self)
            if not all(bool(leaf.isfinite().all()) for leaf in self.leaves):
                self._diverged(f"the parameters of {self.name} are not finite after the last step")
            checkpoint.finish(self)

    # A checkpoint's two methods

    def state(self) -> dict[str, Any]:
        """All that the next steps depend on; see ``Resumable``."""
        assert self._descent is not None
        good, values = self._last_good
        return {
            "place": f"step {self.step} of {self.svi.num_steps}",
            "compile_path": "eager",
            "step": self.step,
            "leaves": list(self.leaves),
            "optimizer": self._descent.state(),
            "generator": torch.get_rng_state(),
            "device_generator": self._device_generator(),
            "batches": self._batches.state(),
            "losses": torch.tensor(self.losses, dtype=torch.float64),
            "last_good": {"step": good, "values": values},
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go to a state; see ``Resumable``.

        Raises:
            OptionError: If the optimiser has other options, or leaves appeared after the start.
            ValueError: If leaves have other shapes.
        """
        step, losses, good = state["step"], state["losses"], state["last_good"]
        if not 0 < step <= self.svi.num_steps or losses.shape != (step,):
            raise ValueError(f"{losses.numel()} losses of {step} steps")
        with without_validation(), users_code():
            _, _, params = self._loss(0, next(self._batches))  # which names the leaves
        self._find_leaves(params.trace)
        assert self._descent is not None
        shapes = [leaf.shape for leaf in self.leaves]
        if len(state["leaves"]) != len(shapes):
            raise OptionError(
                f"{self.name} has {len(shapes)} parameters at its first step and "
                f"{len(state['leaves'])} in the checkpoint: a guide whose parameters appear later "
                "cannot be resumed"
            )
        if [leaf.shape for leaf in state["leaves"]] != shapes:
            raise ValueError(f"its parameters have the shapes {shapes}")
        self._go_to(state["leaves"])
        self._last_good = (good["step"], good["values"])
        self._descent.restore(state["optimizer"])
        self._batches.restore(state["batches"])
        self.step, self.losses = step, losses.tolist()
        # last, as all of the above may draw
        torch.set_rng_state(state["generator"])
        generator = state["device_generator"]
        if generator is not None and self._device.type == "cuda":
            torch.cuda.set_rng_state(generator, self._device)

    def _device_generator(self) -> Tensor | None:
        """State of torch's generator of the device where it is not that of the CPU."""
        on_gpu = self._device.type == "cuda"
        return torch.cuda.get_rng_state(self._device) if on_gpu else None

    def _advance(self, step: int, rows: Batch) -> None:
        loss, whole, params = self._loss(step, rows)
        if not (math.isfinite(loss.item()) and math.isfinite(whole)):
            self._diverged(f"the loss of {self.name} is not finite at step {step}")
        self._find_leaves(params.trace)
        if step % WINDOW == 0:
            self._last_good = (step, [leaf.detach().clone() for leaf in self.leaves])
        for leaf in self.leaves:
            leaf.grad = None
        loss.backward()
        assert self._descent is not None
        self._descent.step(step)
        self.losses.append(whole)

    def _loss(self, step: int, rows: Batch) -> tuple[Tensor, float, Any]:
        """What is minimised, minus the ELBO alone with its whole KL, and the trace of parameters.

        The first has the KL's weight of this step, and the model's ``pyro.factor`` statements.
        """
        warmup = self.svi.kl_warmup
        weight = 1.0 if warmup == 0 else min(1.0, (step + 1) / warmup)
        with warnings.catch_warnings(), poutine.trace(param_only=True) as params:
            warnings.filterwarnings("ignore", message="Encountered (NaN|[+-]?inf)")  # said below
            with _ScaleLatents(weight) as scaled:
                loss = self._elbo.differentiable_loss(self._model, self.guide, *rows)
            whole = (
                loss.item() if weight == 1.0 else self._elbo.loss(self._model, self.guide, *rows)
            )
        return loss, whole + scaled.factors, params

    def _find_leaves(self, trace: poutine.Trace) -> None:
        values = [cast(Any, node["value"]) for node in trace.nodes.values()]
        leaves = [value.unconstrained() for value in values] + self._own
        leaves = [leaf for leaf in leaves if leaf.requires_grad and leaf not in self._frozen]
        if new := [leaf for leaf in dict.fromkeys(leaves) if leaf not in self.leaves]:
            self.leaves |= dict.fromkeys(new)
            if self._descent is None:
                self._descent = self.svi.descent(new)
            else:
                self._descent.add(new)

    def _go_to(self, values: Sequence[Tensor]) -> None:
        with torch.no_grad():
            for leaf, value in zip(self.leaves, values, strict=False):
                leaf.copy_(value)

    def _diverged(self, what: str) -> None:
        good, values = self._last_good
        self._go_to(values)
        raise DivergenceError(
            f"{what}; the state of step {good} is kept in error.posterior. Lower learning_rate, "
            "set clip_norm, or standardise the data"
        )


def _laplace(guide: AutoLaplaceApproximation, batch: Batch) -> Any:
    """The Gaussian around a trained mode, by the curvature of the log joint of all rows.

    Raises:
        DivergenceError: If that is no maximum.
    """
    make: Any = guide.laplace_approximation
    try:
        return make(*batch)
    except LinAlgError as error:
        raise DivergenceError(
            "the log joint is not curved downwards where training of AutoLaplaceApproximation "
            "ended, which is no maximum: raise num_steps, or lower learning_rate"
        ) from error


def _named_parameters(model: Model) -> dict[str, nn.Parameter]:
    module = module_of(model)
    return {} if module is None else dict(module.named_parameters())


def _check_covers(guide: Any, x: Tensor, y: Tensor, program: Program) -> None:
    """Check that the guide samples every site of the model.

    Raises:
        SiteError: If it misses one.
    """
    trace = poutine.trace(guide).get_trace(x, y)
    require_sites(set(trace.stochastic_nodes), program.sites)


def _with_live_params(program: Program) -> Program:
    """Set the point parameters of ``pyro.param`` statements to the values in the store."""
    own = _named_parameters(program.model)
    with torch.no_grad():
        for name, value in pyro.get_param_store().named_parameters():
            if name in program.params and name not in own:
                program.params[name].copy_(value)
    return program


def _draws(
    guide: Any, x: Tensor, y: Tensor, program: Program, seed: int
) -> tuple[Tensor, Tensor | None]:
    """Draws z ``[S, P]`` of a trained guide, unconstrained, and log q(z) ``[S]`` if q has one."""
    torch.manual_seed(seed)
    rows, log_q, has_density = [], [], True
    with torch.no_grad():
        for _ in range(NUM_DRAWS):
            trace = poutine.trace(guide).get_trace(x, y)
            values = {site.name: trace.nodes[site.name]["value"] for site in program.sites}
            z = program.unconstrain(values)
            log_det = sum(site.log_abs_det_jacobian(z) for site in program.sites)
            rows.append(z)
            log_q.append(trace.log_prob_sum() + log_det)  # density of z, not of the values
            has_density = has_density and _has_density(trace, program)
    if not has_density:
        return torch.stack(rows), None
    return torch.stack(rows), torch.stack([torch.as_tensor(value) for value in log_q])


def _has_density(trace: poutine.Trace, program: Program) -> bool:
    """Whether q has a density: its point masses are maps of as many auxiliary random numbers."""
    nodes: Any = trace.nodes
    lengths = {site.name: site.stop - site.start for site in program.sites}
    fixed = free = 0
    for name in trace.stochastic_nodes:
        is_delta = isinstance(base_distribution(nodes[name]["fn"]), dist.Delta)
        if name in lengths:
            fixed += lengths[name] if is_delta else 0
        elif not is_delta and nodes[name]["infer"].get("is_auxiliary"):
            free += nodes[name]["value"].numel()
    return fixed <= free
