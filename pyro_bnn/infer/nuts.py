r"""No-U-Turn sampling of the exact posterior, several chains at once.

.. math:: p(z \mid D) \propto e^{-U(z)}, \qquad U(z) = -\log p(y, z \mid x)

on the flat unconstrained vector z of the program. Hoffman & Gelman, JMLR 2014, arXiv:1111.4246.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
import pyro
import torch
from numpy.typing import NDArray
from torch import Tensor

from pyro_bnn.capture import Captured, value_and_grad
from pyro_bnn.effects import Model, isolated, trace_model, without_validation
from pyro_bnn.errors import DivergenceError, OptionError
from pyro_bnn.infer.chains import Report, State, chain_seeds, run_chains
from pyro_bnn.infer.engine import (
    Data,
    Init,
    as_dataset,
    check_compile,
    check_positive_int,
    is_compiled,
    refuse_unbuilt,
    starting_points,
    unchanged,
)
from pyro_bnn.infer.nuts_kernel import Draw, FlatNUTS
from pyro_bnn.posterior import DrawsPosterior, Provenance
from pyro_bnn.program import Batch, Params, Program
from pyro_bnn.recording import TensorFunction

logger = logging.getLogger("pyro_bnn")

MAX_STARTS = 20  # prior draws tried for each chain
TYPICAL_STEPS = 64  # of leapfrog a draw
STATISTICS: dict[str, type[np.generic]] = {
    "lp": np.float64,
    "energy": np.float64,
    "tree_depth": np.int64,
    "n_steps": np.int64,
    "acceptance_rate": np.float64,
    "step_size": np.float64,
    "diverging": np.bool_,
}


@dataclass(frozen=True, kw_only=True)
class NUTS:
    """No-U-Turn sampler: draws from the exact posterior, up to convergence of the chains.

    Every chain is Pyro's kernel on a captured gradient, with a diagonal mass matrix and a step size
    of its own, both adapted during warm-up; chains run in one process a core. It misses modes that
    no chain visits: look at R-hat of the function, not of single weights, which are exchangeable.
    All rows of the data enter every gradient. Point-estimated parameters of the model are held
    fixed at their values, and one logged line names them.

    Args:
        num_chains: Number of chains C.
        warmup_steps: Draws of each chain that adapt step size and mass matrix and are dropped.
        num_samples: Draws S of each chain that are kept.
        target_accept: Mean acceptance rate that the step size aims at, in (0, 1); raise it where
            draws diverge.
        max_tree_depth: A trajectory has fewer than 2 to this power leapfrog steps.
        compile: Whether the gradient is compiled: ``"auto"`` where the run is long enough to gain
            from it, True always, an error where that cannot be, False never. Uncompiled it is
            replayed as a graph of operations.

    Raises:
        OptionError: If an option is out of its range.

    References:
        Hoffman & Gelman, "The No-U-Turn Sampler: Adaptively Setting Path Lengths in Hamiltonian
        Monte Carlo", JMLR 2014, arXiv:1111.4246.

    Example:
        >>> from pyro_bnn import models
        >>> x = torch.linspace(-1, 1, 20).unsqueeze(-1)
        >>> model = models.MLP(1, hidden=(3,))
        >>> nuts = NUTS(num_chains=1, warmup_steps=5, num_samples=5)
        >>> posterior = nuts.run(model, (x, x[:, 0]), progress=False)
        >>> posterior.sample_stats["lp"].shape
        (1, 5)
    """

    num_chains: int = 4
    warmup_steps: int = 300
    num_samples: int = 1_000
    target_accept: float = 0.8
    max_tree_depth: int = 10
    compile: Literal["auto"] | bool = "auto"

    def __post_init__(self) -> None:
        check_positive_int("num_chains", self.num_chains)
        check_positive_int("warmup_steps", self.warmup_steps, minimum=0)
        check_positive_int("num_samples", self.num_samples)
        check_positive_int("max_tree_depth", self.max_tree_depth)
        if not (isinstance(self.target_accept, float) and 0 < self.target_accept < 1):
            raise OptionError(
                f"target_accept is a number between 0 and 1, not {self.target_accept!r}"
            )
        check_compile(self.compile)

    def run(
        self,
        model: Model,
        data: Data,
        *,
        init: Init = None,
        seed: int = 0,
        progress: bool = True,
        checkpoint: str | None = None,
        resume: bool = False,
    ) -> DrawsPosterior:
        """Sample the posterior.

        Args:
            model: Pyro model ``model(x, y=None)``.
            data: A ``Dataset``, a pair (x, y), or a ``DataLoader``, of which one pass is read.
            init: Where the chains start: a posterior (a draw of it for each chain), a trained
                module, or values of sites. Sites that it leaves out, all of them by default, start
                at draws from the prior, others for each chain.
            seed: Seed, >= 0. A chain's draws depend on the seed and its number alone.
            progress: Whether to show a progress bar over all chains.
            checkpoint: Not built yet.
            resume: Not built yet.

        Returns:
            The draws, with the statistics of each in ``sample_stats``.

        Raises:
            CaptureError: If ``compile=True`` and the gradient cannot be compiled.
            DivergenceError: If a chain finds no starting point of finite density; names the chain
                and the sites.
            ModelError: If the model breaks the contract.
            OptionError: If the seed is negative, or an option is not built.
        """
        refuse_unbuilt(checkpoint=checkpoint, resume=resume)
        check_positive_int("seed", seed, minimum=0)
        start = time.perf_counter()
        with isolated(seed):
            dataset = as_dataset(data)  # a DataLoader draws from the global random state
        with isolated(seed), unchanged(model):
            program = Program(model, dataset.x, dataset.y)
            batch = program.batch(dataset.x, dataset.y)
            starts = _starts(program, batch, init, self.num_chains, seed)
        if program.params:
            names = ", ".join(program.params)
            logger.warning("NUTS holds point-estimated parameters at their values: %s", names)
        params = {name: value.detach() for name, value in program.params.items()}
        chains = _Chains(self, model, batch, params, starts, chain_seeds(seed, self.num_chains))
        with unchanged(model):  # chains may run in this process
            results = run_chains(
                chains,
                self.num_chains,
                self.warmup_steps + self.num_samples,
                progress=progress,
                title="NUTS",
                num_processes=None if program.device.type == "cpu" else 1,
            )
        provenance = Provenance(
            method="NUTS",
            engine="NUTS",
            options=asdict(self),
            seed=seed,
            wall_time=time.perf_counter() - start,
            num_parameters=program.num_latents,
            inputs=dataset.inputs,
            target=dataset.target,
        )
        z = torch.stack([z for z, _ in results])  # [C, S, P]
        stats = {name: np.stack([chain[name] for _, chain in results]) for name in STATISTICS}
        return DrawsPosterior(program, z, provenance, sample_stats=stats)


class _Chains:
    """All that a process needs to run chains: pickled, and the program built anew there."""

    def __init__(
        self,
        options: NUTS,
        model: Model,
        batch: Batch,
        params: Params,
        starts: Tensor,
        seeds: Any,
    ) -> None:
        self.options, self.model, self.batch, self.params = options, model, batch, params
        self.starts, self.seeds = starts, seeds
        self._default_dtype = torch.get_default_dtype()  # the caller's, in every process
        self._pyro_settings = pyro.settings.get()

    def prepare(self) -> Callable[[int, Report], tuple[Tensor, dict[str, NDArray[Any]]]]:
        """Build and capture the potential; returns the function that samples one chain."""
        torch.set_default_dtype(self._default_dtype)
        known = pyro.settings.get()
        pyro.settings.set(**{k: v for k, v in self._pyro_settings.items() if k in known})
        with isolated(self.seeds[0]):
            program = Program(self.model, *self.batch)

        def negative_log_joint(z: Any, batch: Any) -> tuple[Tensor, tuple[Tensor, ...]]:
            return -program.log_joint(z[0], Batch(*batch), self.params), ()

        options = self.options
        num_calls = TYPICAL_STEPS * (options.warmup_steps + options.num_samples)
        name = getattr(self.model, "__name__", type(self.model).__name__)
        captured = Captured(
            value_and_grad(negative_log_joint, 1),
            f"the log density of {name}",
            compiled=is_compiled(options.compile, num_calls, program.num_latents),
            strict=options.compile is True,
        )

        def potential(z: Tensor) -> tuple[Tensor, ...]:
            return captured(z, *self.batch)

        def run(chain: int, report: Report) -> tuple[Tensor, dict[str, NDArray[Any]]]:
            with isolated(self.seeds[chain]):
                return self._sample(potential, self.starts[chain], report)

        return run

    def _sample(
        self, potential: TensorFunction, start: Tensor, report: Report
    ) -> tuple[Tensor, dict[str, NDArray[Any]]]:
        options = self.options
        kernel = FlatNUTS(
            potential,
            start,
            warmup_steps=options.warmup_steps,
            target_accept=options.target_accept,
            max_tree_depth=options.max_tree_depth,
        )
        kept: list[Draw] = []
        divergences, acceptance = 0, 0.0
        for step in range(options.warmup_steps + options.num_samples):
            draw = kernel.draw()
            if step == options.warmup_steps:  # statistics of the kept draws from here
                divergences, acceptance = 0, 0.0
            divergences += draw.diverging
            since = step + 1 - (options.warmup_steps if step >= options.warmup_steps else 0)
            acceptance += (draw.acceptance_rate - acceptance) / since
            report(State(step + 1, divergences, acceptance, draw.step_size))
            if step >= options.warmup_steps:
                kept.append(draw)
        stats = {
            name: np.array([getattr(draw, name) for draw in kept], dtype)
            for name, dtype in STATISTICS.items()
        }
        return torch.stack([draw.z for draw in kept]), stats  # [S, P]


def _starts(program: Program, batch: Batch, init: Init, num_chains: int, seed: int) -> Tensor:
    """Starting points ``[C, P]`` with finite density and gradient."""
    points = []
    for chain in range(num_chains):
        found: list[str] = []
        for attempt in range(MAX_STARTS):
            start_seed = chain_seeds(seed, num_chains, stream=attempt + 1)[chain]
            with isolated(start_seed), without_validation():
                messages = trace_model(program.model, batch.x[:1]).messages
            values = {site.name: messages[site.name]["value"] for site in program.sites}
            program.initial = program.unconstrain(values).detach()
            given = starting_points(program, init, num_chains, seed + attempt)
            z = program.initial if given is None else given[chain]
            if not (found := _not_finite(program, z, batch)):
                points.append(z.detach())
                break
        if found:
            where = "draws from the prior" if init is None else "tries around init"
            raise DivergenceError(
                f"chain {chain} found no starting point of finite density in {MAX_STARTS} {where}: "
                f"not finite at {', '.join(map(repr, found))}; standardise the data, or pass "
                "init=, values of the sites"
            )
    return torch.stack(points)


def _not_finite(program: Program, z: Tensor, batch: Batch) -> list[str]:
    """Names of the sites whose density or gradient is not finite at z; ``"y"`` included."""
    z = z.detach().requires_grad_()
    log_joint = program.log_joint(z, batch)
    if not log_joint.isfinite():
        return program.non_finite_terms(z.detach(), batch) or ["the sum over sites"]
    (grad,) = torch.autograd.grad(log_joint, z)
    sites = program.sites
    return [s.name for s in sites if not bool(grad[s.start : s.stop].isfinite().all())]
