"""A Gaussian of the iterates of stochastic gradient descent around a mode."""

from __future__ import annotations

import dataclasses
import functools
import logging
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from pyro_bnn.capture.captured import Captured
from pyro_bnn.capture.compilers import compiler_of
from pyro_bnn.checks import check_positive, check_positive_int, check_share
from pyro_bnn.errors import DataError, OptionError
from pyro_bnn.guides import AutoDelta, AutoLowRankMultivariateNormal
from pyro_bnn.guides.guide import LOG_JOINT
from pyro_bnn.handled import model_name
from pyro_bnn.infer.batches import Batches, IndependentMinibatches
from pyro_bnn.infer.checkpoints.checkpoint import Checkpoint, State
from pyro_bnn.infer.compiling import C_TIME, check_compile, is_compiled
from pyro_bnn.infer.engine import Engine, Start
from pyro_bnn.infer.ensembles.iterates import Iterates
from pyro_bnn.infer.inputs import new_guide
from pyro_bnn.infer.problem import Problem
from pyro_bnn.infer.run import GradientRun
from pyro_bnn.infer.sgmcmc.tuning import largest_curvature
from pyro_bnn.infer.steps.descent import LEARNING_RATE, Descent
from pyro_bnn.infer.steps.potentials import potential_of
from pyro_bnn.infer.warm_start import started
from pyro_bnn.memory import GIB
from pyro_bnn.posterior.guide_posterior import GuidePosterior
from pyro_bnn.posterior.nature import Fault
from pyro_bnn.predictive.draws import Draws
from pyro_bnn.predictive.map_draws import Chunks
from pyro_bnn.predictive.moments import log_mean
from pyro_bnn.predictive.predict import log_likelihoods
from pyro_bnn.program.random_state import derived_seed
from pyro_bnn.program.terms import Batch

logger = logging.getLogger("pyro_bnn")

BATCH_SIZE = 32
NUM_BATCHES = 32  # that the variance of the gradient is estimated by
NUM_CURVED = 4  # of which the largest curvature is found
PAPER = math.sqrt(0.5)  # the scale of Maddox et al.
SCALES = tuple(2 ** (k / 2) for k in range(-4, 9))  # 1/4 to 16
NUM_DRAWS = 50  # by which a scale is scored: 200 choose the same one or its neighbour
SPLIT, NOISE = 111, 112  # streams of random numbers
LEAST_VARIANCE = 1e-12  # of an entry of z


@dataclass(frozen=True, kw_only=True)
class SWAG(Engine[GuidePosterior]):
    r"""Stochastic weight averaging, Gaussian: mean and covariance of the iterates of SGD.

    .. math:: q(z) = \mathcal N\Bigl(z \,\Big|\, m,\; s^2 \bigl[\mathrm{diag}(v)
              + \tfrac{1}{K - 1} \textstyle\sum_n \Delta_n \Delta_n^\top\bigr]\Bigr)

    Adam goes to a mode of the density of z, then plain SGD goes on from there at a constant step;
    every so many steps its iterate is taken, with mean m, variances v and the last K deviations
    :math:`\Delta_n` from the running mean. At a mode of curvature :math:`\lambda` a step h of
    gradients of variance V gives iterates the variance :math:`h V / (\lambda (2 - h \lambda))`,
    where the posterior has :math:`1 / \lambda`: their spread is that of step and batch. So the
    scale s is a number that is tuned, on the log score of rows held out of the fit, and no claim of
    calibration. With it fixed at the :math:`\sqrt{1/2}` of the paper all rows are fitted.

    It captures one mode and the directions in which SGD moves there. With all rows in every step
    iterates stand still, and there is nothing to take. Nothing that it maximises says how far q is
    from the posterior, so the posterior has no ``losses``: compare its ``elbo``.

    Args:
        num_steps: Steps of Adam on the way to the mode; 0 where ``init`` is one.
        learning_rate: Its step size at the start, which decays to 0.
        num_iterates: Number T of iterates taken.
        thin: Steps of SGD between two of them; default one pass over the rows.
        rank: Number K of deviations.
        step_size: The step h of SGD, along the gradient of the log joint density in nats. Default:
            2 P over the sum of the P variances of the gradient over batches at the mode, at which
            the spread is nearest the posterior's, and at most one over the largest curvature.
        scale: The factor s of standard deviations; default the best of 13 from 1/4 to 16 by the
            log score of the held-out rows. ``options["scale"]`` of the posterior has it, and
            ``options["scale_tuned_on"]`` the number of these rows.
        held_out: Share of the rows that are held out of the fit where ``scale`` is None.
        batch_size: Rows a step, drawn with replacement; default 32. A ``DataLoader`` has its own:
            where it goes through all rows, its batches make up for each other, and iterates spread
            less.
        compile: As in ``SVI``.

    Raises:
        OptionError: If an option is out of its range.

    References:
        Maddox, Garipov, Izmailov, Vetrov & Wilson, "A Simple Baseline for Bayesian Uncertainty in
        Deep Learning", NeurIPS 2019, arXiv:1902.02476. The step: Mandt, Hoffman & Blei, "Stochastic
        Gradient Descent as Approximate Bayesian Inference", JMLR 2017, arXiv:1704.04289.

    Example:
        >>> import torch
        >>> from pyro_bnn import models
        >>> x = torch.linspace(-1, 1, 20).unsqueeze(-1)
        >>> engine = SWAG(num_steps=5, num_iterates=6, rank=3, compile=False)
        >>> posterior = engine.run(models.MLP(1, hidden=(5,)), (x, x[:, 0]), progress=False)
        >>> posterior.options["scale_tuned_on"]
        2
    """

    trains_params: ClassVar[bool] = False

    num_steps: int = 10_000
    learning_rate: float = LEARNING_RATE
    num_iterates: int = 60
    thin: int | None = None
    rank: int = 20
    step_size: float | None = None
    scale: float | None = None
    held_out: float = 0.1
    batch_size: int | None = None
    compile: Literal["auto"] | bool = "auto"

    def __post_init__(self) -> None:
        check_positive_int("num_steps", self.num_steps, minimum=0)
        check_positive("learning_rate", self.learning_rate)
        check_positive_int("rank", self.rank, minimum=2)
        check_positive_int("num_iterates", self.num_iterates)
        if self.num_iterates < self.rank:
            raise OptionError(
                f"num_iterates={self.num_iterates} is fewer than the rank={self.rank} deviations "
                "that are kept of them: raise it, or lower rank"
            )
        for name in ("thin", "batch_size"):
            if getattr(self, name) is not None:
                check_positive_int(name, getattr(self, name))
        for name in ("step_size", "scale"):
            if getattr(self, name) is not None:
                check_positive(name, getattr(self, name))
        check_share("held_out", self.held_out)
        check_compile(self.compile)

    @staticmethod
    def family(options: Mapping[str, Any]) -> str:  # noqa: ARG004
        """Name of the guide that it ends at."""
        return AutoLowRankMultivariateNormal.__name__

    @classmethod
    def remedies(cls, options: Mapping[str, Any]) -> dict[Fault, str]:  # noqa: ARG003
        """What mends each fault; see the base class."""
        return {
            "unfinished": "double num_steps",
            "optimum": "double num_steps, or lower learning_rate",
            "narrow": "raise scale, or use NUTS",
            "poor family": "use NUTS",
        }

    def start(self, problem: Problem) -> Start:
        """Hold rows out, and find where the run starts; see the base class."""
        problem, held = self._split(problem)
        problem.warn_of_held_parameters()
        guide = started(AutoDelta, problem)
        rows = None if held is None else problem.program.batch(held.x, held.y)
        make = functools.partial(SWAGRun, self, problem, guide.centre(), rows)
        return Start(problem, asdict(self), make)

    def _split(self, problem: Problem) -> tuple[Problem, Any]:
        """The problem of the rows that are fitted, and those held out."""
        if self.scale is not None:
            return problem, None
        if problem.has_own_order:
            raise OptionError(
                "the scale is chosen on rows held out of the fit, and a DataLoader goes through "
                "all: pass the data set itself, or scale="
            )
        dataset = problem.dataset
        num_held = round(self.held_out * len(dataset))
        if not num_held:
            raise DataError(
                f"held_out={self.held_out} of {len(dataset)} rows is none, on which the scale is "
                f"to be chosen: raise it, or pass scale={PAPER:.3f}, that of the paper"
            )
        generator = torch.Generator().manual_seed(derived_seed(problem.seed, SPLIT))
        order = torch.randperm(len(dataset), generator=generator)
        kept = dataset.rows(order[num_held:])
        fitted = dataclasses.replace(problem, data=kept, dataset=kept)
        return fitted, dataset.rows(order[:num_held])


class SWAGRun(GradientRun[GuidePosterior]):
    """The way to the mode, and the iterates around it.

    Args:
        engine: The options.
        problem: Model and the rows that are fitted.
        z: Where the run starts ``[P]``.
        held: Rows by which the scale is chosen, or None.
        saves: The checkpoint, which says how the run that is resumed computes.

    Attributes:
        iterates: Those taken so far.
        step_size: Of SGD; None until it is found.
    """

    objective = LOG_JOINT
    remedy = "Lower learning_rate or step_size, or standardise the data"

    def __init__(
        self,
        engine: SWAG,
        problem: Problem,
        z: Tensor,
        held: Batch | None,
        saves: Checkpoint,
    ) -> None:
        self.engine, self.program, self._held = engine, problem.program, held
        compile_path = saves.compile_path
        size = engine.batch_size or BATCH_SIZE
        batches = (
            problem.batches(size)
            if problem.has_own_order
            else IndependentMinibatches(problem.rows, size, problem.seed)
        )
        self.thin = engine.thin or _num_batches(problem, batches, size)
        num_steps = engine.num_steps + self.thin * engine.num_iterates
        super().__init__(num_steps, type(engine).__name__, batches)
        self.z = z.detach().clone().unsqueeze(0).requires_grad_()  # [1, P]
        self.iterates = Iterates(z, engine.rank)
        self.step_size = engine.step_size
        self._seed = problem.seed
        self.descent = Descent(
            [self.z], learning_rate=engine.learning_rate, num_steps=engine.num_steps
        )
        of_sizes = functools.partial(is_compiled, engine.compile, num_steps, len(z))
        self._gradient = Captured(
            potential_of(self.program),
            f"{self.title} on {model_name(problem.model)}",
            enabled=compile_path != "eager",
            compiled=of_sizes(C_TIME) if compile_path is None else compile_path == "compiled",
            strict=engine.compile is True,
            compiler=compiler_of(is_long=of_sizes()),
        )

    def go(self) -> None:
        """One step.

        Raises:
            DivergenceError: If the log joint density or its gradient is not finite.
        """
        self.keep()
        is_on_the_way = self.step < self.engine.num_steps
        if not is_on_the_way and self.step_size is None:
            self.step_size = self._found_step()
        value, slope = self._gradient(self.z.detach(), *next(self._batches))
        if not (math.isfinite(value) and bool(slope.isfinite().all())):
            self.diverged(f"the log joint density is not finite at step {self.step}")
        self.losses.append(float(value))
        if is_on_the_way:
            self.z.grad = slope
            self.descent.step(self.step)
        else:
            assert self.step_size is not None
            with torch.no_grad():
                self.z -= self.step_size * slope
        self.step += 1
        taken, over = divmod(self.step - self.engine.num_steps, self.thin)
        if taken > 0 and over == 0:
            self.iterates.add(self.z[0])

    def finish(self) -> None:
        """Check where the last step went."""
        if not bool(self.z.isfinite().all()):
            self.diverged("z is not finite after the last step")

    def _found_step(self) -> float:
        """The step of SGD: 2 P / tr V, at most one over the largest curvature of some batches."""
        z = self.z.detach()
        batches = [next(self._batches) for _ in range(NUM_BATCHES)]
        slopes = torch.stack([self._gradient(z, *batch)[1] for batch in batches])
        generator = torch.Generator(z.device).manual_seed(derived_seed(self._seed, NOISE))

        def curvature(batch: Batch) -> float:
            return largest_curvature(lambda at: self._gradient(at, *batch)[1], z, generator)

        largest = max(curvature(batch) for batch in batches[:NUM_CURVED])
        variance = float(slopes.var(0).sum())
        return 1 / max(variance / (2 * z.numel()), largest)

    # What comes of it

    def posterior(self, problem: Problem, saves: Checkpoint) -> GuidePosterior:
        """The Gaussian of the iterates that were taken; a point where there are none."""
        family = functools.partial(AutoLowRankMultivariateNormal, rank=self.engine.rank)
        guide = new_guide(family, self.program)
        mean = self.iterates.mean if self.iterates.count else self.z[0].detach().double()
        scale = self.engine.scale or PAPER
        if self._held is not None and self.iterates.count > 1:
            scale = self._best_scale(mean, self._held)
        sds = scale * self._sds
        with torch.no_grad():
            guide.loc.copy_(mean)
            guide.cov_factor.copy_(scale * self.iterates.factor / sds.unsqueeze(-1))
        guide.scale = sds.to(guide.loc)
        options: dict[str, Any] = {
            **asdict(self.engine),
            "batch_size": self.engine.batch_size or BATCH_SIZE,
            "thin": self.thin,
            "step_size": self.step_size,
            "scale": scale,
            "scale_tuned_on": 0 if self._held is None else len(self._held.x),
            "compiled": self._gradient.path == "compiled",
        }
        return problem.guide_posterior(guide, saves, options)

    @property
    def _sds(self) -> Tensor:
        """Square roots of v ``[P]``, above 0."""
        return self.iterates.variance.clamp(min=LEAST_VARIANCE).sqrt()

    def _best_scale(self, mean: Tensor, held: Batch) -> float:
        """The scale of the highest log score of the held-out rows, by draws of one noise."""
        generator = torch.Generator().manual_seed(derived_seed(self._seed, NOISE))
        own, shared = (
            torch.randn(NUM_DRAWS, n, generator=generator, dtype=torch.float64).to(mean.device)
            for n in (len(mean), self.engine.rank)
        )
        spread = own * self._sds + shared @ self.iterates.factor.mT  # [S, P]
        params = {name: value.detach() for name, value in self.program.params.items()}

        chunks = Chunks(self.program)

        def score(scale: float) -> float:
            draws = Draws.of((mean + scale * spread).to(self.program.dtype))
            blocks = log_likelihoods(chunks, draws, held, params).blocks(GIB)
            rows = torch.cat([log_mean(v for (v,) in block.parts(GIB)) for block in blocks])  # [H]
            found = float(rows.double().mean())
            return found if math.isfinite(found) else -math.inf

        best = max(SCALES, key=score)
        if best == SCALES[-1]:
            logger.warning(
                "SWAG's scale %.3g is the largest of those tried: iterates spread far less than "
                "the posterior, and a wider one may score better. Pass scale=, or raise step_size",
                best,
            )
        return best

    # A checkpoint's two methods

    def values(self) -> dict[str, Tensor]:
        """Where the run is, and what it has taken."""
        return {"z": self.z.detach()[0], **self.iterates.tensors}

    def state(self) -> State:
        """All that the next steps depend on; see ``Resumable``."""
        return super().state() | {
            "compile_path": self._gradient.path,
            "step_size": self.step_size,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go to a state; see ``Resumable``.

        Raises:
            ValueError: If it is of another run.
        """
        super().restore(state)
        self.step_size = state["step_size"]


def _num_batches(problem: Problem, batches: Batches, batch_size: int) -> int:
    """Batches of one pass over the rows."""
    if isinstance(problem.data, DataLoader):
        return len(problem.data)
    return math.ceil(len(batches.whole.x) / batch_size)
