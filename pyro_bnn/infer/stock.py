"""Guides from stock Pyro, trained by Pyro's own ``Trace_ELBO`` and kept as stored draws."""

from __future__ import annotations

import copy
import logging
import math
import time
import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from pyro import poutine
from pyro.infer import Trace_ELBO
from pyro.infer.autoguide import AutoDelta
from pyro.poutine.messenger import Messenger
from torch import Tensor, nn
from tqdm.auto import tqdm

from pyro_bnn.data import Dataset
from pyro_bnn.effects import Model, require_sites
from pyro_bnn.errors import DivergenceError
from pyro_bnn.infer.descent import Descent
from pyro_bnn.infer.engine import WINDOW, Data, batches_of
from pyro_bnn.posterior import DrawsPosterior, Provenance
from pyro_bnn.program import Batch, Program

if TYPE_CHECKING:
    from pyro_bnn.infer.svi import SVI

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

    def _pyro_sample(self, msg: Any) -> None:
        if msg["name"] != "y" and self.weight != 1.0:
            msg["scale"] = msg["scale"] * self.weight


def run_stock_guide(
    svi: SVI,
    model: Model,
    guide: Any,
    data: Data,
    dataset: Dataset,
    *,
    seed: int,
    progress: bool,
) -> DrawsPosterior:
    """Train a guide of stock Pyro and keep ``NUM_DRAWS`` draws of it.

    The caller has isolated the random state and the parameter store.

    Raises:
        DivergenceError: If the loss becomes NaN or infinite; holds the last good posterior.
        SiteError: If the guide does not cover a site of the model.
    """
    start = time.perf_counter()
    name = getattr(guide, "__name__", type(guide).__name__)
    logger.warning("%s is a guide of stock Pyro and runs through plain Pyro, which is slower", name)
    own = copy.deepcopy(model) if isinstance(model, nn.Module) else model
    program = Program(own, dataset.x, dataset.y)
    batch = program.batch(dataset.x, dataset.y)
    _check_covers(guide, batch.x, batch.y, program)
    run = _StockRun(svi, program, guide, name)

    def posterior() -> DrawsPosterior:
        trained = Program(own, dataset.x, dataset.y)  # with the point parameters of this moment
        z, log_q = _draws(guide, batch.x, batch.y, trained, seed)
        provenance = Provenance(
            method=name,
            engine="SVI",
            options=svi.describe(guide),
            seed=seed,
            wall_time=time.perf_counter() - start,
            num_parameters=sum(leaf.numel() for leaf in run.leaves),
            losses=np.asarray(run.losses),
            inputs=dataset.inputs,
            target=dataset.target,
        )
        has_density = not isinstance(guide, AutoDelta)
        return DrawsPosterior(
            trained, z.unsqueeze(0), provenance, log_q=log_q.unsqueeze(0) if has_density else None
        )

    try:
        run.train(batches_of(data, program, batch, svi.batch_size, seed), progress=progress)
    except DivergenceError as error:
        error.posterior = posterior()
        raise
    return posterior()


class _StockRun:
    """One training run by ``Trace_ELBO``; leaves are found as the model and the guide name them."""

    def __init__(self, svi: SVI, program: Program, guide: Any, name: str) -> None:
        self.svi, self.guide, self.name = svi, guide, name
        self.losses: list[float] = []
        self.leaves: dict[Tensor, None] = {}  # an ordered set
        self._elbo = Trace_ELBO(num_particles=svi.num_particles)
        self._model = _ScaleLikelihood(program.num_data)(program.model)
        # parameters of a plain module inside the model have no pyro.param statement
        model = program.model
        self._own = list(model.parameters()) if isinstance(model, nn.Module) else []
        self._descent: Descent | None = None
        self._last_good: tuple[int, list[Tensor]] = (0, [])

    def train(self, batches: Iterator[Batch], *, progress: bool) -> None:
        steps = tqdm(range(self.svi.num_steps), disable=not progress, desc=self.name, unit="step")
        for step, rows in zip(steps, batches, strict=False):
            self._advance(step, rows)

    def _advance(self, step: int, rows: Batch) -> None:
        warmup = self.svi.kl_warmup
        weight = 1.0 if warmup == 0 else min(1.0, (step + 1) / warmup)
        with warnings.catch_warnings(), poutine.trace(param_only=True) as params:
            warnings.filterwarnings("ignore", message="Encountered (NaN|[+-]?inf)")  # said below
            with _ScaleLatents(weight):
                loss = self._elbo.differentiable_loss(self._model, self.guide, *rows)
            whole = (
                loss.item() if weight == 1.0 else self._elbo.loss(self._model, self.guide, *rows)
            )
        if not (math.isfinite(loss.item()) and math.isfinite(whole)):
            self._diverged(step)
        self._find_leaves(params.trace)
        if step % WINDOW == 0:
            self._last_good = (step, [leaf.detach().clone() for leaf in self.leaves])
        for leaf in self.leaves:
            leaf.grad = None
        loss.backward()
        assert self._descent is not None
        self._descent.step(step)
        self.losses.append(whole)

    def _find_leaves(self, trace: poutine.Trace) -> None:
        values = [cast(Any, node["value"]) for node in trace.nodes.values()]
        leaves = [value.unconstrained() for value in values] + self._own
        if new := [leaf for leaf in dict.fromkeys(leaves) if leaf not in self.leaves]:
            self.leaves |= dict.fromkeys(new)
            if self._descent is None:
                self._descent = self.svi.descent(new)
            else:
                self._descent.add(new)

    def _diverged(self, step: int) -> None:
        good, values = self._last_good
        with torch.no_grad():
            for leaf, value in zip(self.leaves, values, strict=False):
                leaf.copy_(value)
        raise DivergenceError(
            f"the loss of {self.name} is not finite at step {step}; the state of step {good} is "
            "kept in error.posterior. Lower learning_rate, set clip_norm, or standardise the data"
        )


def _check_covers(guide: Any, x: Tensor, y: Tensor, program: Program) -> None:
    """Check that the guide samples every site of the model.

    Raises:
        SiteError: If it misses one.
    """
    trace = poutine.trace(guide).get_trace(x, y)
    require_sites(set(trace.stochastic_nodes), program.sites)


def _draws(guide: Any, x: Tensor, y: Tensor, program: Program, seed: int) -> tuple[Tensor, Tensor]:
    """Draws z ``[S, P]`` of a trained guide and log q(z) ``[S]``, in unconstrained coordinates."""
    torch.manual_seed(seed)
    rows, log_q = [], []
    with torch.no_grad():
        for _ in range(NUM_DRAWS):
            trace = poutine.trace(guide).get_trace(x, y)
            values = {site.name: trace.nodes[site.name]["value"] for site in program.sites}
            z = program.unconstrain(values)
            log_det = sum(site.log_abs_det_jacobian(z) for site in program.sites)
            rows.append(z)
            log_q.append(trace.log_prob_sum() + log_det)  # density of z, not of the values
    return torch.stack(rows), torch.stack([torch.as_tensor(value) for value in log_q])
