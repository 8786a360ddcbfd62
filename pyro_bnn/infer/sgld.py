r"""Stochastic gradient Langevin dynamics with a constant step.

.. math:: z_{t+1} = z_t + h\, \nabla \log \hat p(z_t, D) + \sqrt{2 h}\, \xi_t,
          \qquad \xi_t \sim \mathcal N(0, I)

with the log joint's likelihood estimated from a batch, N/B times that of its rows. No proposal is
rejected, so the draws are biased: by the step, and by the noise of the batches. Of a Gaussian
posterior of precision :math:`\Lambda` and with all rows, draws have the right mean and the
covariance :math:`(\Lambda - h \Lambda^2 / 2)^{-1}`; the step diverges above
:math:`2 / \lambda_{\max}(\Lambda)`.

References:
    Welling & Teh, "Bayesian Learning via Stochastic Gradient Langevin Dynamics", ICML 2011, whose
    step is :math:`\epsilon = 2 h`. Vollmer, Zygalakis & Teh, "Exploration of the (Non-)Asymptotic
    Bias and Variance of Stochastic Gradient Langevin Dynamics", JMLR 2016, arXiv:1501.00438.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch

from pyro_bnn.capture import Captured
from pyro_bnn.checks import check_positive, check_positive_int
from pyro_bnn.errors import DivergenceError
from pyro_bnn.handled import model_name
from pyro_bnn.infer.checkpoints.checkpoint import Checkpoint, State, users_code
from pyro_bnn.infer.engine import Engine, Start
from pyro_bnn.infer.mcmc.potentials import of_one
from pyro_bnn.infer.mcmc.starts import find_starts
from pyro_bnn.infer.problem import Problem
from pyro_bnn.infer.run import Run
from pyro_bnn.posterior.posterior import DrawsPosterior


@dataclass(frozen=True, kw_only=True)
class SGLD(Engine[DrawsPosterior]):
    """Langevin dynamics on batches of rows: biased draws, at the price of one gradient a step.

    Point-estimated parameters of the model are held fixed at their values. Compare with NUTS, or
    with half the step, before the spread is trusted.

    Args:
        num_chains: Number of chains C, which move side by side.
        warmup_steps: Steps of a chain that are dropped.
        num_samples: Draws S of each chain that are kept.
        thin: Steps from one draw that is kept to the next.
        step_size: The step h, constant, in units of z squared.
        batch_size: Rows a step; default all. A ``DataLoader`` has its own.

    Raises:
        OptionError: If an option is out of its range.

    Example:
        >>> import torch
        >>> from pyro_bnn import models
        >>> x = torch.linspace(-1, 1, 20).unsqueeze(-1)
        >>> sgld = SGLD(num_chains=2, warmup_steps=10, num_samples=5, thin=2)
        >>> posterior = sgld.run(models.MLP(1, hidden=(3,)), (x, x[:, 0]), progress=False)
        >>> posterior.num_stored_draws
        10
    """

    num_chains: int = 4
    warmup_steps: int = 1_000
    num_samples: int = 1_000
    thin: int = 10
    step_size: float = 1e-4
    batch_size: int | None = None

    def __post_init__(self) -> None:
        for name in ("num_chains", "num_samples", "thin"):
            check_positive_int(name, getattr(self, name))
        check_positive_int("warmup_steps", self.warmup_steps, minimum=0)
        check_positive("step_size", self.step_size)
        if self.batch_size is not None:
            check_positive_int("batch_size", self.batch_size)

    def start(self, problem: Problem) -> Start:
        """Find where the chains start; see the base class."""
        problem.warn_of_held_parameters()
        return Start(problem, asdict(self), lambda saves, _: _Chains(self, problem, saves))


class _Chains(Run[DrawsPosterior]):
    """Chains z ``[C, P]`` and what was kept of them ``[C, S, P]``."""

    def __init__(self, options: SGLD, problem: Problem, saves: Checkpoint) -> None:
        _, potential, data, rows = of_one(problem.program, problem.rows)
        self.options, self.batches = options, problem.batches(options.batch_size)
        self.num_steps = options.warmup_steps + options.thin * options.num_samples
        self.title = problem.engine
        self.z = find_starts(
            problem.program,
            lambda z: potential(z, *data),
            problem.init,
            options.num_chains,
            problem.seed,
            rows,
        )
        self.kept = self.z.new_empty(len(self.z), options.num_samples, self.z.shape[1])
        self.generator = torch.Generator(self.z.device).manual_seed(problem.seed + 1)
        self.gradient = Captured(
            potential,
            f"the SGLD step of {model_name(problem.model)}",
            enabled=saves.compile_path != "eager",
            rows={1: 0, 2: 0} if self.batches.rows_vary else {},
        )

    @property
    def num_kept(self) -> int:
        """How many draws of each chain are kept so far."""
        return max(0, self.step - self.options.warmup_steps) // self.options.thin

    def go(self) -> None:
        """One step of all chains.

        Raises:
            DivergenceError: If a chain is not finite after it.
        """
        h, before = self.options.step_size, self.num_kept
        _, slope = self.gradient(self.z, *next(self.batches))  # of minus the log joint
        noise = torch.empty_like(self.z).normal_(generator=self.generator)
        self.z = self.z - h * slope + math.sqrt(2 * h) * noise
        if not bool(self.z.isfinite().all()):
            raise DivergenceError(
                f"the chains are not finite at step {self.step}; error.posterior has the draws "
                "before it, if any. Lower step_size, or standardise the data"
            )
        self.step += 1
        if self.num_kept > before:
            self.kept[:, before] = self.z

    def state(self) -> State:
        """See ``Resumable``."""
        return {
            "place": f"step {self.step} of {self.num_steps}",
            "compile_path": "captured" if self.gradient.is_captured else "eager",
            "step": self.step,
            "z": self.z,
            "kept": self.kept[:, : self.num_kept],
            "generator": self.generator.get_state(),
            "batches": self.batches.state(),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """See ``Resumable``."""
        if state["z"].shape != self.z.shape or not 0 <= state["step"] <= (self.num_steps or 0):
            raise ValueError(f"chains {tuple(state['z'].shape)} at step {state['step']}")
        self.step, self.z = state["step"], state["z"].to(self.z)
        self.kept[:, : self.num_kept] = state["kept"].to(self.z)
        with users_code():  # the graph is made of the first batch of a run, in any
            self.gradient(self.z, *self.batches.first(len(next(self.batches).x)))
        self.generator.set_state(state["generator"])
        self.batches.restore(state["batches"])

    def posterior(self, problem: Problem, saves: Checkpoint) -> DrawsPosterior | None:
        """The draws that were kept; None before the first."""
        if not self.num_kept:
            return None
        provenance = problem.provenance(
            saves,
            method=problem.engine,
            options=asdict(self.options),
            num_parameters=problem.program.num_latents,
        )
        return DrawsPosterior(problem.program, self.kept[:, : self.num_kept], provenance)
