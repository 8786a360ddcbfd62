"""Guides from stock Pyro, trained by Pyro's own ``Trace_ELBO`` and kept as stored draws."""

from __future__ import annotations

import logging
import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import astuple
from typing import TYPE_CHECKING, Any, cast

import pyro
import pyro.distributions as dist
import torch
from pyro import poutine
from pyro.infer import Trace_ELBO
from pyro.infer.autoguide import AutoLaplaceApproximation
from pyro.poutine.messenger import Messenger
from torch import Tensor, nn
from torch.linalg import LinAlgError  # type: ignore[attr-defined]  # torch does not export it

from pyro_bnn.data import Call
from pyro_bnn.errors import DivergenceError, OptionError
from pyro_bnn.handled import parameters_of
from pyro_bnn.infer.batches import Minibatches
from pyro_bnn.infer.checkpoints.checkpoint import Checkpoint, State, users_code
from pyro_bnn.infer.engine import Start
from pyro_bnn.infer.problem import Problem
from pyro_bnn.infer.run import GradientRun, weight_of_kl
from pyro_bnn.infer.steps.rounds import ends_of_rounds
from pyro_bnn.infer.svi.paired import STREAM
from pyro_bnn.posterior.doubling import Doubling
from pyro_bnn.posterior.draws_posterior import DrawsPosterior
from pyro_bnn.program.distributions import base_distribution
from pyro_bnn.program.handlers import own_rows, without_validation
from pyro_bnn.program.program import Program
from pyro_bnn.program.random_state import derived_seed, isolated, own_generators
from pyro_bnn.program.terms import Batch
from pyro_bnn.sites import Site, require_sites

if TYPE_CHECKING:
    from pyro_bnn.infer.svi.options import SVIOptions

logger = logging.getLogger("pyro_bnn")

NUM_DRAWS = 1_000
PAIRS = 100  # of losses at one noise, that the ends of two rounds are compared by


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


def start_stock(svi: SVIOptions, problem: Problem, guide: Any, frozen: Sequence[str]) -> Start:
    """Get the training of a guide of stock Pyro ready, of which ``NUM_DRAWS`` draws are kept.

    The caller has isolated the random state and the parameter store, and made a model for this
    fit: its parameters are trained but those named ``frozen``. Of ``AutoLaplaceApproximation`` the
    mode is trained, and the draws are of the Gaussian around it.

    Raises:
        SiteError: If the guide does not cover a site of the model.
    """
    name = getattr(guide, "__name__", type(guide).__name__)
    logger.warning("%s is a guide of stock Pyro and runs through plain Pyro, which is slower", name)
    own = parameters_of(problem.model)
    program = problem.program
    for parameter in frozen:  # Pyro thaws them
        program.params[parameter].requires_grad = False
    with isolated():  # what it puts into the store, such as another model's parameters, is dropped
        trace = poutine.trace(guide).get_trace(*problem.rows)
        require_sites(set(trace.stochastic_nodes), program.sites)
    run = _StockRun(svi, problem, guide, name, {own[key] for key in frozen})
    return Start(problem, svi.identity(guide), lambda saves: run)  # noqa: ARG005


class _StockRun(GradientRun[DrawsPosterior]):
    """One training run by ``Trace_ELBO``; leaves are found as the model and the guide name them."""

    def __init__(
        self, svi: SVIOptions, problem: Problem, guide: Any, name: str, frozen: set[nn.Parameter]
    ) -> None:
        rows = svi.rows_a_step(guide, problem)
        super().__init__(svi.planned_steps, name, problem.batches(rows))
        self.svi, self.guide, self._frozen = svi, guide, frozen
        self._ends = () if svi.schedule == "cosine" else ends_of_rounds(svi.planned_steps)
        self._whole, self._seed = problem.rows, problem.seed
        self._before: dict[str, Tensor] | None = None  # the values at the end of the last round
        program = problem.program
        self._device = program.device
        self.leaves: dict[Tensor, None] = {}  # an ordered set
        self._elbo = Trace_ELBO(num_particles=svi.num_particles)
        self._model = _ScaleLikelihood(program.num_data)(program.model)
        # parameters of a plain module inside the model have no pyro.param statement
        self._own = list(parameters_of(program.model).values())

    def go(self) -> None:
        """One step.

        Raises:
            DivergenceError: If the loss is not finite.
        """
        with without_validation():  # a NaN must reach the loss, whose error names the step
            self._advance(self.step, next(self._batches))
        self.step += 1
        if self.step in self._ends:
            self._end_round()

    def _end_round(self) -> None:
        """After a round: what it gained."""
        values, before = self._snapshot(), self._before
        if before is not None and before.keys() == values.keys():
            self.doubling = self._compared(before, values)
            is_whole = self.step // 2 >= self.svi.kl_warmup
            if self.svi.ends_by_itself and is_whole and not self.doubling.is_unfinished:
                self.num_steps = self.step
        self._before = values

    def _compared(self, before: Mapping[str, Tensor], after: Mapping[str, Tensor]) -> Doubling:
        """What the last round gained, on all rows, both at the same noise."""
        losses: list[list[float]] = []
        with torch.no_grad(), own_generators(), without_validation():
            for values in (before, after):
                self._go_to(values)
                torch.manual_seed(derived_seed(self._seed, STREAM) % 2**63)
                losses.append([self._loss(self.step, self._whole)[1] for _ in range(PAIRS)])
        gains = torch.tensor(losses[0], dtype=torch.float64) - torch.tensor(losses[1])
        return Doubling(float(gains.mean()), float(gains.std()) / PAIRS**0.5, self.step)

    def finish(self) -> None:
        """Check the parameters of the last step.

        Raises:
            DivergenceError: If they are not finite.
        """
        if not all(bool(leaf.isfinite().all()) for leaf in self.leaves):
            self.diverged(f"the parameters of {self.title} are not finite after the last step")

    def posterior(self, problem: Problem, saves: Checkpoint) -> DrawsPosterior:
        """Draws of the guide as it is.

        Raises:
            DivergenceError: If the log joint is not curved downwards where a Laplace approximation
                ended.
        """
        dataset, rows = problem.dataset, problem.rows
        trained, own = Program(problem.model, dataset.x, dataset.y), parameters_of(problem.model)
        with torch.no_grad():
            for name, value in pyro.get_param_store().named_parameters():
                if name in trained.params and name not in own:  # of pyro.param statements
                    trained.params[name].copy_(value)
        is_mode = isinstance(self.guide, AutoLaplaceApproximation)
        call = Call(*rows)
        q = laplace_of(self.guide, call) if is_mode else self.guide
        torch.manual_seed(problem.seed)
        values, log_q = draws_of_guide(q, call, trained.sites, NUM_DRAWS)
        z = trained.unconstrain(values)  # [S, P]
        if log_q is not None:  # density of z, not of the constrained values
            log_q = (log_q + trained.log_abs_det_jacobian(z)).unsqueeze(0)
        # the optimiser is made at the first step
        rate = self.descent.learning_rate if self.leaves else self.svi.learning_rate
        provenance = problem.provenance(
            saves,
            method=self.title,
            options=self.svi.describe(self.guide, rate) | self._chosen(),
            num_parameters=sum(leaf.numel() for leaf in self.leaves),
            losses=self.losses,
            doubling=self.doubling_here(self.step),
        )
        return DrawsPosterior(trained, z.unsqueeze(0), provenance, log_q=log_q)

    def _chosen(self) -> dict[str, Any]:
        """What became of options that were left open."""
        chosen: dict[str, Any] = {}
        if self.svi.ends_by_itself:
            chosen["num_steps"] = self.step
        if isinstance(self._batches, Minibatches) and not self._batches.are_all:
            chosen["batch_size"] = self._batches.size
        return chosen

    # A checkpoint's two methods

    def values(self) -> dict[str, Tensor]:
        """The leaves, by their numbers."""
        return {str(i): leaf for i, leaf in enumerate(self.leaves)}

    def state(self) -> State:
        """All that the next steps depend on; see ``Resumable``."""
        on_gpu = self._device.type == "cuda"
        return super().state() | {
            "compile_path": "eager",
            "generator": torch.get_rng_state(),
            "device_generator": torch.cuda.get_rng_state(self._device) if on_gpu else None,
            "before": self._before,
            "doubling": None if self.doubling is None else list(astuple(self.doubling)),
            "is_done": self.is_done,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go to a state; see ``Resumable``.

        Raises:
            OptionError: If the optimiser has other options, or leaves appeared after the start.
            ValueError: If leaves have other shapes.
        """
        with without_validation(), users_code():
            _, _, params = self._loss(0, next(self._batches))  # the loss tells the parameters
        self._find_leaves(params.trace)
        if len(state["values"]) != len(self.leaves):
            raise OptionError(
                f"{self.title} has {len(self.leaves)} parameters at its first step and "
                f"{len(state['values'])} in the checkpoint: a guide whose parameters appear later "
                "cannot be resumed"
            )
        super().restore(state)
        told = state["doubling"]
        self._before = None if state["before"] is None else dict(state["before"])
        self.doubling = None if told is None else Doubling(told[0], told[1], int(told[2]))
        if state["is_done"]:
            self.num_steps = self.step
        # last, as all of the above may draw
        torch.set_rng_state(state["generator"])
        generator = state["device_generator"]
        if generator is not None and self._device.type == "cuda":
            torch.cuda.set_rng_state(generator, self._device)

    def _advance(self, step: int, rows: Batch) -> None:
        loss, whole, params = self._loss(step, rows)
        if not (math.isfinite(loss.item()) and math.isfinite(whole)):
            self.diverged(f"the loss of {self.title} is not finite at step {step}")
        self._find_leaves(params.trace)
        self.keep()
        for leaf in self.leaves:
            leaf.grad = None
        loss.backward()
        self.descent.step(step)
        self.losses.append(whole)

    def _loss(self, step: int, rows: Batch) -> tuple[Tensor, float, Any]:
        """What is minimised, minus the ELBO alone with its whole KL, and the trace of parameters.

        The first has the KL's weight of this step, and the model's ``pyro.factor`` statements.
        """
        weight = weight_of_kl(step, self.svi.kl_warmup)
        rows = Batch(*own_rows(rows))
        with warnings.catch_warnings(), poutine.trace(param_only=True) as params:
            # the error below says it
            warnings.filterwarnings("ignore", message="Encountered (NaN|[+-]?inf)")
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
            if self.leaves:
                self.descent.add(new)
            else:
                self.descent = self.svi.descent(new)
            self.leaves |= dict.fromkeys(new)


def laplace_of(guide: AutoLaplaceApproximation, call: Call) -> Any:
    """The Gaussian around a trained mode, by the curvature of the log joint of all data.

    Raises:
        DivergenceError: If that is no maximum.
    """
    make: Any = guide.laplace_approximation
    try:
        return make(*call.args, **call.kwargs)
    except LinAlgError as error:
        raise DivergenceError(
            "the log joint is not curved downwards where training of AutoLaplaceApproximation "
            "ended, which is no maximum: double num_steps, or lower learning_rate"
        ) from error


def draws_of_guide(
    guide: Any, call: Call, sites: Sequence[Site], num_draws: int
) -> tuple[dict[str, Tensor], Tensor | None]:
    """Values ``[S, *shape]`` of the sites at draws of a trained guide, and log q of them ``[S]``.

    Log q is None where q has no density. Draws are from the global generator.
    """
    rows, log_q, has_density = [], [], True
    with torch.no_grad():
        for _ in range(num_draws):
            trace = poutine.trace(guide).get_trace(*call.args, **call.kwargs)
            rows.append([trace.nodes[site.name]["value"] for site in sites])
            log_q.append(torch.as_tensor(trace.log_prob_sum()))
            has_density = has_density and _has_density(trace, sites)
    values = {site.name: torch.stack([row[i] for row in rows]) for i, site in enumerate(sites)}
    return values, torch.stack(log_q) if has_density else None


def _has_density(trace: poutine.Trace, sites: Sequence[Site]) -> bool:
    """Whether q has a density: its point masses are maps of as many auxiliary random numbers."""
    nodes: Any = trace.nodes
    lengths = {site.name: site.stop - site.start for site in sites}
    fixed = free = 0
    for name in trace.stochastic_nodes:
        is_delta = isinstance(base_distribution(nodes[name]["fn"]), dist.Delta)
        if name in lengths:
            fixed += lengths[name] if is_delta else 0
        elif not is_delta and nodes[name]["infer"].get("is_auxiliary"):
            free += nodes[name]["value"].numel()
    return fixed <= free
