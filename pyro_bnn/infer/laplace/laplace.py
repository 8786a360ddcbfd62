"""Laplace's approximation: the Gaussian of the curvature at a mode."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Literal, TypeAlias

from pyro_bnn.checks import check_choice, check_positive_int
from pyro_bnn.errors import DivergenceError, OptionError, SiteError
from pyro_bnn.guides import AutoDelta, Guide
from pyro_bnn.infer.checkpoints.checkpoint import Checkpoint
from pyro_bnn.infer.engine import Engine, Start
from pyro_bnn.infer.inputs import set_up
from pyro_bnn.infer.laplace.curvature import CurvatureOf, Structure
from pyro_bnn.infer.laplace.mode import FARTHEST, MinusLogJoint, Mode, polish
from pyro_bnn.infer.natural.gaussian_prior import GaussianPrior
from pyro_bnn.infer.natural.options import NewtonCurvature
from pyro_bnn.infer.problem import Problem
from pyro_bnn.infer.svi.options import LEARNING_RATE
from pyro_bnn.infer.svi.svi import SVI
from pyro_bnn.infer.svi.training import Training
from pyro_bnn.infer.warm_start import start_guide
from pyro_bnn.posterior.posterior import GuidePosterior, LaplacePosterior
from pyro_bnn.priors.hierarchy import hierarchies
from pyro_bnn.program.random_state import isolated

logger = logging.getLogger("pyro_bnn")

NUM_STEPS = 10_000
Predictive: TypeAlias = Literal["linearised", "weights"]
FAMILIES: Mapping[str, str] = {
    "full": "AutoMultivariateNormal",
    "diagonal": "AutoNormal",
    "low_rank": "AutoLowRankPrecision",
}


@dataclass(frozen=True, kw_only=True)
class Laplace(Engine[GuidePosterior]):
    r"""Laplace's approximation: a Gaussian at a mode, with the curvature there.

    .. math:: q(z) = \mathcal N(z \mid m, P^{-1}), \qquad m = \arg\max_z \log p(y, z \mid x), \qquad
              P = \sum_i J_i^\top F_i J_i + P_0

    J the Jacobian of what y is drawn by, F its Fisher information, :math:`P_0` the curvature of the
    prior. The mode is that of z: of a noise scale its log has the Gaussian. It is found by Adam,
    then by L-BFGS with P for its first direction. How far it is, Newton's decrement in nats, is
    ``posterior.newton_decrement``; what is no mode is refused. ``posterior.log_evidence`` is

    .. math:: \log p(D) \approx \log p(y, m \mid x) + \tfrac P2 \log 2\pi - \tfrac12 \log\det P

    By default predictions are those of the network that is linear in z at m, for which this P is
    right; ``"weights"`` puts draws of z into the network itself, and underfits: P leaves out how f
    bends. It captures one mode, and its correlations; the width is that of the curvature at a
    point, which is too wide where the density falls faster. A linear model with Gaussian noise has
    it exactly.

    Args:
        structure: ``"full"``, all correlations, for at most 5,000 entries of z; ``"low_rank"``, the
            R largest eigenvectors of the data's curvature, and the prior for the rest;
            ``"diagonal"``.
        predictive: ``"linearised"`` or ``"weights"``.
        curvature: ``"ggn"``, as above, of Gaussian noise, classes and counts; ``"hessian"`` of any
            likelihood, with ``"full"`` or ``"diagonal"``.
        rank: Rank R of ``"low_rank"``.
        num_steps: Steps of Adam to the mode; None for 10,000, or none where ``init`` is a point
            estimate or a Laplace approximation.
        learning_rate: Its step size at the start, which decays to 0.
        batch_size: Rows a step; default all.
        compile: As in ``SVI``.

    Raises:
        OptionError: If an option is out of its range.

    References:
        MacKay, "A Practical Bayesian Framework for Backpropagation Networks", 1992. Immer, Korzepa
        & Bauer, "Improving predictions of Bayesian neural nets via local linearization", AISTATS
        2021, arXiv:2008.08400. Daxberger et al., "Laplace Redux", NeurIPS 2021, arXiv:2106.14806.

    Example:
        >>> import torch
        >>> from pyro_bnn import models
        >>> x = torch.linspace(-1, 1, 20).unsqueeze(-1)
        >>> model = models.MLP(1, hidden=(5,))
        >>> y = x[:, 0].sin() + 0.1 * (20 * x[:, 0]).cos()
        >>> posterior = Laplace(num_steps=200).run(model, (x, y), progress=False)
        >>> posterior.predict(x).mean.shape
        torch.Size([20, 1])
    """

    trains_params: ClassVar[bool] = True

    structure: Structure = "full"
    predictive: Predictive = "linearised"
    curvature: NewtonCurvature = "ggn"
    rank: int = 20
    num_steps: int | None = None
    learning_rate: float = LEARNING_RATE
    batch_size: int | None = None
    compile: Literal["auto"] | bool = "auto"

    def __post_init__(self) -> None:
        check_choice("structure", self.structure, Structure)
        check_choice("predictive", self.predictive, Predictive)
        check_choice("curvature", self.curvature, NewtonCurvature)
        check_positive_int("rank", self.rank)
        if self.num_steps is not None:
            check_positive_int("num_steps", self.num_steps, minimum=0)
        if self.curvature == "hessian" and self.structure not in ("full", "diagonal"):
            raise OptionError(
                f'structure="{self.structure}" is made of roots, which curvature="hessian" has '
                'not: take structure="full" or "diagonal", or curvature="ggn"'
            )
        self.svi(1)

    def svi(self, num_steps: int) -> SVI:
        """What takes the steps of Adam; checks their options."""
        return SVI(
            AutoDelta,
            num_steps=max(1, num_steps),
            learning_rate=self.learning_rate,
            batch_size=self.batch_size,
            compile=self.compile,
        )

    @classmethod
    def family(cls, options: Mapping[str, Any]) -> str:
        """Name of the guide that posteriors of these options are."""
        return FAMILIES[options["structure"]]

    def start(self, problem: Problem) -> Start:
        """Check the prior, and start at ``init``; see the base class.

        Raises:
            OptionError: If the structure is too large, or the likelihood has no such curvature.
            SiteError: If the prior of a real site is not Gaussian, or a hierarchy is centred.
        """
        program = problem.program
        _check_hierarchies(problem)
        prior = GaussianPrior.of(program, problem.engine)
        with isolated():
            guide = AutoDelta(problem.model)
            set_up(guide, program)
        program.prepare(guide)
        start_guide(guide, program, problem.init, problem.seed)
        num_steps = self.num_steps
        if num_steps is None:
            num_steps = 0 if _is_at_a_mode(problem.init) else NUM_STEPS
        self._curvature_of(MinusLogJoint(program, problem.rows, prior))  # refuses what is not built

        def make(saves: Checkpoint, progress: bool) -> LaplaceRun:  # noqa: ARG001
            return LaplaceRun(self, num_steps, guide, problem, prior, saves)

        return Start(problem, asdict(self) | {"num_steps": num_steps}, make)

    def _curvature_of(self, objective: MinusLogJoint) -> CurvatureOf:
        return CurvatureOf(objective, self.structure, self.curvature, self.rank)


def _check_hierarchies(problem: Problem) -> None:
    """Refuse centred hierarchies, and warn of others.

    Raises:
        SiteError: If a hierarchy is centred.
    """
    nested = hierarchies(problem.model)
    if centred := [name for name, hierarchy in nested.items() if hierarchy.centred]:
        raise SiteError(
            f"the density of {', '.join(centred)} and their scale has no bound where the scale "
            "goes to 0, so that there is no mode: take centred=False, priors.Normal(), or NUTS"
        )
    if nested:
        logger.warning(
            "the mode of the scales of %s lies in a funnel, and the Gaussian there says little of "
            "it: compare with NUTS or AutoNormal",
            ", ".join(nested),
        )


def _is_at_a_mode(init: object) -> bool:
    """Whether a start was maximised already."""
    return isinstance(init, LaplacePosterior) or isinstance(getattr(init, "guide", None), AutoDelta)


class LaplaceRun(Training):
    """Steps to a mode, then the Gaussian there.

    Args:
        engine: The options.
        num_steps: Steps of Adam.
        guide: The point that they move.
        problem: Model and data.
        prior: The Gaussian part of the prior.
        saves: The checkpoint, which says how the run that is resumed computes.

    Attributes:
        found: The Gaussian and what is known of it, once the steps are done.
    """

    def __init__(
        self,
        engine: Laplace,
        num_steps: int,
        guide: AutoDelta,
        problem: Problem,
        prior: GaussianPrior,
        saves: Checkpoint,
    ) -> None:
        super().__init__(
            engine.svi(num_steps),
            problem.program,
            guide,
            problem.seed,
            batches=problem.batches(engine.batch_size),
            compile_path=saves.compile_path,
        )
        self.engine, self.num_steps, self.title = engine, num_steps, type(engine).__name__
        self._problem, self._prior = problem, prior
        self.found: tuple[Guide, dict[str, Any]] | None = None
        if not num_steps:
            self.compile_path = "eager"

    def finish(self) -> None:
        """Polish the mode, and take the curvature there.

        Raises:
            DivergenceError: If it is no mode.
        """
        super().finish()
        program = self.program
        objective = MinusLogJoint(program, self._problem.rows, self._prior)
        precision_at = self.engine._curvature_of(objective)
        mode = polish(objective, precision_at, self.guide.centre().double())
        self._require_mode(mode)
        q = precision_at(mode.z, is_mode=True)
        with isolated():
            guide = q.make_guide(self._problem.model)
            set_up(guide, program)
        q.set(guide, mode.z)
        log_evidence = -float(mode.minus_log_joint) - 0.5 * float(q.log_det())
        log_evidence += 0.5 * len(mode.z) * math.log(2 * math.pi)
        told = {
            "newton_decrement": mode.decrement,
            "polish_gain": mode.gain,
            "log_evidence": log_evidence,
        }
        self.found = guide, told

    def _require_mode(self, mode: Mode) -> None:
        if mode.is_mode:
            return
        by_site = {
            site.name: float(mode.steps[site.start : site.stop].sum())
            for site in self.program.sites
        }
        farthest = sorted(by_site, key=lambda name: -by_site[name])[:3]
        raise DivergenceError(
            f"Laplace found no mode: after {self.step} steps and a polish Newton's step would "
            f"still gain {mode.decrement:.3g} nats, and a round of L-BFGS gained {mode.gain:.3g}, "
            f"where {FARTHEST} are allowed, most of {', '.join(farthest)}. Raise num_steps, or "
            "take init=, a trained posterior; a density without bound has no mode"
        )

    def posterior(self, problem: Problem, saves: Checkpoint) -> GuidePosterior:
        """The Gaussian; before the last step the point that was reached."""
        reached = super().posterior(problem, saves)
        if self.found is None:
            return reached
        guide, told = self.found
        provenance = problem.provenance(
            saves,
            method=problem.engine,
            options={**asdict(self.engine), "compiled": self.is_compiled, **told},
            num_parameters=sum(p.numel() for p in guide.parameters()),
            losses=self.losses,
        )
        return LaplacePosterior(self.program, guide, provenance)
