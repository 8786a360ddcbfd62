"""Guides from stock Pyro, trained by Pyro's own ``Trace_ELBO`` and kept as stored draws."""

from __future__ import annotations

import copy
import logging
import math
import time
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
from pyro_bnn.infer.engine import Data, batches_of
from pyro_bnn.posterior import DrawsPosterior, Provenance
from pyro_bnn.program import Program

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
    """
    start = time.perf_counter()
    name = getattr(guide, "__name__", type(guide).__name__)
    logger.warning("%s is a guide of stock Pyro and runs through plain Pyro, which is slower", name)
    own = copy.deepcopy(model) if isinstance(model, nn.Module) else model
    program = Program(own, dataset.x, dataset.y)
    batch = program.batch(dataset.x, dataset.y)
    _check_covers(guide, batch.x, batch.y, program)
    scaled = _ScaleLikelihood(program.num_data)(own)
    elbo = Trace_ELBO(num_particles=svi.num_particles)
    batches = batches_of(data, program, batch, svi.batch_size, seed)
    losses: list[float] = []
    descent: Descent | None = None
    known: set[Tensor] = set()
    steps = tqdm(range(svi.num_steps), disable=not progress, desc=name, unit="step")
    for step, rows in zip(steps, batches, strict=False):
        weight = 1.0 if svi.kl_warmup == 0 else min(1.0, (step + 1) / svi.kl_warmup)
        with poutine.trace(param_only=True) as params, _ScaleLatents(weight):
            loss = elbo.differentiable_loss(scaled, guide, *rows)
        if not math.isfinite(loss.item()):
            raise DivergenceError(
                f"the loss of {name} is not finite at step {step}. Lower learning_rate, set "
                "clip_norm, or standardise the data"
            )
        values = [cast(Any, node["value"]) for node in params.trace.nodes.values()]
        leaves = {value.unconstrained() for value in values}
        if new := [leaf for leaf in leaves if leaf not in known]:
            known |= set(new)
            if descent is None:
                descent = svi.descent(new)
            else:
                descent.add(new)
        assert descent is not None
        for leaf in known:
            leaf.grad = None
        loss.backward()
        descent.step(step)
        losses.append(loss.item())
    program = Program(own, dataset.x, dataset.y)  # its point parameters are trained now
    z, log_q = _draws(guide, batch.x, batch.y, program, seed)
    provenance = Provenance(
        method=name,
        engine="SVI",
        options=svi.describe(guide),
        seed=seed,
        wall_time=time.perf_counter() - start,
        num_parameters=sum(leaf.numel() for leaf in known),
        losses=np.asarray(losses),
        inputs=dataset.inputs,
        target=dataset.target,
    )
    has_density = not isinstance(guide, AutoDelta)
    return DrawsPosterior(
        program, z.unsqueeze(0), provenance, log_q=log_q.unsqueeze(0) if has_density else None
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
