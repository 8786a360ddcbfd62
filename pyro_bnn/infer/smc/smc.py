r"""Tempered sequential Monte Carlo: from draws of the prior to the posterior, with its evidence."""

from __future__ import annotations

import functools
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from pyro_bnn.checks import check_positive_int
from pyro_bnn.errors import OptionError, SiteError
from pyro_bnn.handled import model_name
from pyro_bnn.infer.call_problem import CallProblem
from pyro_bnn.infer.checkpoints.checkpoint import Checkpoint
from pyro_bnn.infer.compiling import C_TIME, check_compile, is_compiled
from pyro_bnn.infer.engine import Engine, Start
from pyro_bnn.infer.problem import Facts, Problem
from pyro_bnn.infer.smc.moves import Densities, Particles
from pyro_bnn.infer.smc.run import Islands, Settings
from pyro_bnn.infer.starting_points import starting_points
from pyro_bnn.posterior.nature import Fault, Nature
from pyro_bnn.posterior.particle_posterior import ParticlePosterior
from pyro_bnn.program.handlers import is_reweighted
from pyro_bnn.program.joint import Joint
from pyro_bnn.program.program import Program
from pyro_bnn.program.terms import Batch

TYPICAL_STEPS = 1_000  # leapfrog steps of a particle


@dataclass(frozen=True, kw_only=True)
class SMC(Engine[ParticlePosterior]):
    r"""Tempered sequential Monte Carlo: draws from the exact posterior, and the log evidence.

    .. math:: p_t(z) \propto p(z)\, p(y \mid x, z)^{b_t}, \qquad 0 = b_0 < \dots < b_T = 1, \qquad
              p(y \mid x) \approx \prod_t \frac1N \sum_i p(y \mid x, z_i)^{b_t - b_{t-1}}

    N particles begin as draws from the prior. At each temperature they are weighed, resampled, and
    moved by Hamiltonian Monte Carlo until their log likelihoods have forgotten where they were.
    Temperatures are found on the way: the next one is where the weights have a given effective
    sample size. M islands do so apart from each other and are the chains of the posterior, so that
    R-hat compares them.

    It needs no start and reaches every mode that enough draws of the prior lead to, with its
    weight; ``NUTS`` stays in the mode where a chain starts. ``posterior.log_evidence`` and
    ``log_evidence_error`` compare priors and models on one data set; ``posterior.stages`` tells of
    every temperature. What it misses: a mode that no draw of the prior leads to, which nothing
    shows; and where the likelihood is peaked (many rows, little noise) temperatures become many,
    moves slow, and few ancestors are left, which the report says.

    The combined log evidence is the log of the mean of the islands' estimates of p(y | x), and its
    error the sd of their logs over :math:`\sqrt M`. Draws count alike, whatever the evidence of
    their island: where islands differ by more than half a nat, more particles are needed.

    Point-estimated parameters of the model are held at their values, which ``init`` may give; the
    evidence is then given these.

    Args:
        num_islands: Number of islands M, the chains of the posterior; 4 or more for an error.
        num_particles: Particles N of each island, of which 2 N draws are kept.
        ess_share: Effective sample size of the weights between two temperatures over N, in (0, 1):
            nearer to 1 there are more temperatures, and a smaller error.
        max_moves: Most moves of every particle at one temperature, at least 2.
        num_steps: Mean number of leapfrog steps of a move; None for a length of two standard
            deviations, at most 64 steps.
        target_accept: Mean acceptance rate that step sizes aim at, in (0, 1).
        compile: As in ``NUTS``.

    Raises:
        OptionError: If an option is out of its range.

    References:
        Neal, "Annealed Importance Sampling", Statistics and Computing 2001,
        arXiv:physics/9803008. Del Moral, Doucet & Jasra, "Sequential Monte Carlo Samplers", JRSS B
        2006. Buchholz, Chopin & Jacob, "Adaptive Tuning of Hamiltonian Monte Carlo Within
        Sequential Monte Carlo", Bayesian Analysis 2021, arXiv:1808.07730. Dau & Chopin, "Waste-Free
        Sequential Monte Carlo", JRSS B 2022, arXiv:2011.02328.

    Example:
        >>> import torch
        >>> from pyro_bnn import likelihoods, models
        >>> x = torch.linspace(-1, 1, 20).unsqueeze(-1)
        >>> model = models.LinearRegression(1, likelihood=likelihoods.Normal(0.5))
        >>> smc = SMC(num_islands=4, num_particles=64)
        >>> posterior = smc.run(model, (x, x[:, 0]), progress=False)
        >>> exact = model.log_evidence((x, x[:, 0]))
        >>> abs(posterior.log_evidence - exact) < 5 * posterior.log_evidence_error
        True
    """

    is_exact: ClassVar[bool] = True

    num_islands: int = 4
    num_particles: int = 512
    ess_share: float = 0.7
    max_moves: int = 10
    num_steps: int | None = None
    target_accept: float = 0.8
    compile: Literal["auto"] | bool = "auto"

    def __post_init__(self) -> None:
        check_positive_int("num_islands", self.num_islands)
        check_positive_int("num_particles", self.num_particles, minimum=2)
        check_positive_int("max_moves", self.max_moves, minimum=2)
        if self.num_steps is not None:
            check_positive_int("num_steps", self.num_steps)
        for name in ("ess_share", "target_accept"):
            value = getattr(self, name)
            if not (isinstance(value, float) and 0 < value < 1):
                raise OptionError(f"{name} is a number between 0 and 1, not {value!r}")
        check_compile(self.compile)

    @classmethod
    def remedies(cls, options: Mapping[str, Any]) -> dict[Fault, str]:  # noqa: ARG003
        """What mends each fault; see the base class: islands have no warm-up to lengthen."""
        return {"settling": "raise num_particles", "few draws": "raise num_particles"}

    @classmethod
    def nature(cls, options: Mapping[str, Any]) -> Nature:
        """What its posteriors are; see the base class."""
        return replace(super().nature(options), has_islands=True)

    def start(self, problem: Problem) -> Start:
        """Check the prior and ``init``; see the base class.

        Raises:
            OptionError: If ``init`` has no effect.
            SiteError: If nothing can be drawn from the prior of a site.
        """
        return self._start_of(problem)

    def start_call(self, problem: CallProblem) -> Start:
        """The same of any model; see the base class.

        Raises:
            OptionError: If ``init`` has no effect.
            SiteError: If nothing can be drawn from the prior of a site.
        """
        return self._start_of(problem)

    def _start_of(self, problem: Facts) -> Start:
        began = time.perf_counter()
        _check_prior(problem.joint, problem.engine)
        _take_values(problem)
        problem.warn_of_held_parameters()
        make = functools.partial(self._run, problem, began)
        return Start(problem, asdict(self), make)

    def _run(self, problem: Facts, began: float, saves: Checkpoint) -> Islands:
        """The run, its step captured or compiled; on the path of the run that is resumed."""
        program, rows = problem.joint, problem.rows
        path, is_over = saves.compile_path, saves.is_complete
        size = self.num_particles * program.num_latents
        count = self.num_islands * TYPICAL_STEPS
        apart = is_compiled(self.compile, count, size, C_TIME)
        compiled = is_compiled(self.compile, count, size)
        set_up = time.perf_counter()
        particles = Particles(
            densities_of(program),
            tuple(rows),
            self.num_particles,
            program.initial,
            f"the {problem.engine} step of {model_name(program.model)}",
            num_rows=len(rows.x) if program.has_rows else program.num_observed,
            captured=path != "eager" and not is_over,
            apart=apart if path is None else path == "apart",
            compiled=compiled if path is None else path in ("apart", "compiled"),
            strict=self.compile is True,
        )
        recording = "compile" if particles.compile_path in ("apart", "compiled") else "capture"
        phases = {"set-up": set_up - began, recording: time.perf_counter() - set_up}
        settings = Settings(
            self.num_islands, self.ess_share, self.max_moves, self.num_steps, self.target_accept
        )
        return Islands(particles, problem, settings, asdict(self), {} if is_over else phases)


def densities_of(program: Joint) -> Densities:
    """Log likelihood and log prior of a model, its point-estimated parameters held."""
    params = {name: value.detach() for name, value in program.params.items()}

    def densities(z: Tensor, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return program.log_densities(z, program.arguments(Batch(x, y)), params)

    return densities


def _check_prior(program: Joint, engine: str) -> None:
    """Refuse a prior that particles cannot be drawn from.

    Raises:
        SiteError: If it is improper, is scaled or masked, or has the density of a held value that
            depends on z.
    """
    latents = program.latents
    if improper := sorted(latents.improper):
        raise SiteError(
            f"{engine} starts at draws from the prior, and none can be made from the flat one of "
            f"{', '.join(improper)}: give it a proper one, such as pyro_bnn.priors.Normal(), or "
            "take NUTS"
        )
    if undrawn := sorted(latents.without_draws):
        raise SiteError(
            f"{engine} starts at draws from the prior, and that of {', '.join(undrawn)} has a "
            "density alone: take NUTS"
        )
    run = program.run_at(program.initial)
    messages = {**run.latent, **(run.summed if latents.elsewhere else {})}
    if scaled := sorted(name for name, msg in messages.items() if is_reweighted(msg)):
        raise SiteError(
            f"{engine} starts at draws from the prior, and the density of {', '.join(scaled)} is "
            "another one under poutine.scale or poutine.mask: put the handler around what is "
            "observed alone, or take NUTS"
        )
    tied = sorted(program.held_given_latents)
    if tied and isinstance(program, Program):  # else what is held is observed
        raise SiteError(
            f"{engine} starts at draws from the prior, and there are none given the value at which "
            f"{', '.join(tied)} is held, as its density depends on other sites: take NUTS"
        )


def _take_values(problem: Facts) -> None:
    """Take the values of point-estimated parameters from ``init``.

    Raises:
        OptionError: If there is nothing to take.
    """
    if not problem.is_led:
        return
    if not problem.joint.params:
        raise OptionError(
            f"init would have no effect on {problem.engine}, whose particles start at draws from "
            "the prior: leave it"
        )
    with torch.no_grad():
        starting_points(problem.joint, problem.init, 1, problem.seed)
