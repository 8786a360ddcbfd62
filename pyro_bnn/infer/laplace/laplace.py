"""Laplace's approximation: the Gaussian of the curvature at a mode."""

from __future__ import annotations

import functools
import logging
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, ClassVar, Literal, TypeAlias

import torch
from torch import Tensor

from pyro_bnn.checks import check_choice, check_positive_int
from pyro_bnn.errors import DivergenceError, OptionError, SiteError
from pyro_bnn.guides import AutoDelta, Guide
from pyro_bnn.infer.call_problem import CallProblem
from pyro_bnn.infer.checkpoints.checkpoint import Checkpoint
from pyro_bnn.infer.curvature.gaussian_prior import GaussianPrior
from pyro_bnn.infer.curvature.rows import NewtonCurvature
from pyro_bnn.infer.engine import Engine, Start
from pyro_bnn.infer.inputs import new_guide
from pyro_bnn.infer.laplace import evidence
from pyro_bnn.infer.laplace.bar import Bar
from pyro_bnn.infer.laplace.curvature import CurvatureOf, Structure
from pyro_bnn.infer.laplace.head import (
    FEW,
    HeadAlone,
    HeadAtMode,
    explains_rows,
    head_of,
    is_convex,
)
from pyro_bnn.infer.laplace.hessian import HessianOf
from pyro_bnn.infer.laplace.mode import (
    ALONG_KINKS,
    FARTHEST,
    MinusLogJoint,
    PolishedMode,
    polish,
    settle,
)
from pyro_bnn.infer.laplace.subset import Subset, entries_of, guide_of, set_guide
from pyro_bnn.infer.laplace.way import AnyWay, Way
from pyro_bnn.infer.problem import Facts, Problem
from pyro_bnn.infer.steps.descent import LEARNING_RATE
from pyro_bnn.infer.svi.svi import SVI
from pyro_bnn.infer.svi.training import Training
from pyro_bnn.infer.warm_start import started
from pyro_bnn.posterior.guide_draws import GuideDraws
from pyro_bnn.posterior.guide_posterior import GuidePosterior
from pyro_bnn.posterior.laplace_draws import LaplaceDraws
from pyro_bnn.posterior.nature import Fault, Nature
from pyro_bnn.priors.hierarchy import hierarchies
from pyro_bnn.program.head import Head
from pyro_bnn.program.joint import Joint

logger = logging.getLogger("pyro_bnn")

NUM_STEPS = 10_000
PredictiveKind: TypeAlias = Literal["linearised", "weights"]
PriorScales: TypeAlias = Literal["model", "evidence"]
FAMILIES: Mapping[str, str] = {
    "full": "AutoMultivariateNormal",
    "diagonal": "AutoNormal",
    "low_rank": "AutoLowRankPrecision",
    "kron": "AutoKroneckerBasis",
}


@dataclass(frozen=True, kw_only=True)
class Laplace(Engine[GuidePosterior]):
    r"""Laplace's approximation: a Gaussian at a mode, with the curvature there.

    .. math:: q(z) = \mathcal N(z \mid m, P^{-1}), \qquad m = \arg\max_z \log p(y, z \mid x), \qquad
              P = \sum_i J_i^\top F_i J_i + P_0

    J the Jacobian of what y is drawn by, F its Fisher information, :math:`P_0` the curvature of the
    prior. The mode is that of z: of a noise scale its log has the Gaussian. It is found by Adam,
    then by L-BFGS with P for its first direction. How far it is, Newton's decrement in nats, is
    ``posterior.newton_decrement``; what is no mode is refused. At kinks of units, as of ReLU,
    where the gradient need not vanish, small steps of Adam go on, and what the last ones gained is
    told where it is half a nat or more. ``posterior.log_evidence`` is

    .. math:: \log p(D) \approx \log p(y, m \mid x) + \tfrac P2 \log 2\pi - \tfrac12 \log\det P

    and NaN where a subset holds some entries: these have a density there, and no volume.

    Of a head on a frozen body, a last layer whose weights are all of z, the features are computed
    once, the curvature is in closed form and the mode that of a convex function, with no step of
    Adam unless ``num_steps`` asks for some: 1,000 classes of 50,000 rows in a minute. So is the
    curvature of ``subset="last_layer"`` beside other layers.
    ``posterior.class_probs(x, by="probit")`` has probabilities of classes without draws of weights.

    By default predictions are those of the network that is linear in z at m, for which this P is
    right; ``"weights"`` puts draws of z into the network itself, and underfits: P leaves out how f
    bends. It captures one mode, and its correlations; the width is that of the curvature at a
    point, which is too wide where the density falls faster. A linear model with Gaussian noise has
    it exactly. Attention that torch fuses is computed by its plain kernel, as the fused one has
    no second derivative.

    Args:
        structure: ``"full"``, all correlations, for at most 5,000 entries of z; ``"kron"``,
            Kronecker factors of each fully connected layer, bias included; ``"low_rank"``, the R
            largest eigenvectors of the data's curvature, and the prior for the rest;
            ``"diagonal"``.
        subset: What the Gaussian is over, ``"all"``, ``"last_layer"``, a pattern of sites such as
            ``"layers.1.*"``, or, with ``"full"``, a number of entries of z: those of the largest
            variances by ``"diagonal"``. The others are held at the mode.
        predictive: ``"linearised"`` or ``"weights"``.
        curvature: ``"ggn"``, as above, of Gaussian noise, classes and counts; ``"hessian"`` of any
            likelihood, with ``"full"`` or ``"diagonal"``.
        prior_scales: ``"model"``; ``"evidence"`` gives the prior of each site the scale at which
            the evidence is largest, by MacKay's fixed point, as
            ``posterior.options["found_scales"]`` tells, in units of the model's. The mode is then
            that of another prior: write it into the model where the ELBO is to be read.
        rank: Rank R of ``"low_rank"``.
        num_steps: Steps of Adam to the mode; None for 10,000, or none of a head alone, and where
            ``init`` is a point estimate or a Laplace approximation.
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
    subset: Subset = "all"
    predictive: PredictiveKind = "linearised"
    curvature: NewtonCurvature = "ggn"
    rank: int = 20
    prior_scales: PriorScales = "model"
    num_steps: int | None = None
    learning_rate: float = LEARNING_RATE
    batch_size: int | None = None
    compile: Literal["auto"] | bool = "auto"

    def __post_init__(self) -> None:
        check_choice("structure", self.structure, Structure)
        check_choice("predictive", self.predictive, PredictiveKind)
        check_choice("curvature", self.curvature, NewtonCurvature)
        check_choice("prior_scales", self.prior_scales, PriorScales)
        check_positive_int("rank", self.rank)
        if not isinstance(self.subset, str):
            check_positive_int("subset", self.subset)
        if self.prior_scales == "evidence" and self.subset != "all":
            raise OptionError(
                'prior_scales="evidence" needs the spread of all entries: take subset="all"'
            )
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
            schedule="cosine",
            compile=self.compile,
        )

    @classmethod
    def family(cls, options: Mapping[str, Any]) -> str:
        """Name of the guide that posteriors of these options are."""
        if options["subset"] == "all":
            return FAMILIES[options["structure"]]
        return "AutoSubsetNormal" if isinstance(options["subset"], int) else "AutoComposite"

    @classmethod
    def nature(cls, options: Mapping[str, Any]) -> Nature:
        """A Gaussian around a mode, whose predictions may be of the linearised network.

        A run that was stopped on its way there is at a point, as one of SVI: its options are those.
        """
        if "predictive" not in options:
            return SVI.nature(options)
        return replace(
            super().nature(options),
            is_around_a_mode=True,
            is_linearised=options.get("predictive") == "linearised",
        )

    @classmethod
    def remedies(cls, options: Mapping[str, Any]) -> dict[Fault, str]:
        """What mends each fault; see the base class."""
        longer, subset = "double num_steps", options.get("subset")
        wider = "use NUTS"
        if subset != "all":
            wider = "set subset='all', or use NUTS"
        elif options.get("structure") != "full":
            wider = "set structure='full', or use NUTS"
        return {
            "unfinished": longer,
            "optimum": f"{longer}, or lower learning_rate",
            "narrow": wider,
            "poor family": wider,
        }

    def start(self, problem: Problem) -> Start:
        """Check the prior, and start at ``init``; see the base class.

        Raises:
            OptionError: If the structure is too large, or the likelihood has no such curvature.
            SiteError: If the prior of a real site is not Gaussian, or a hierarchy is centred.
        """
        program = problem.program
        _check_hierarchies(problem)
        prior = GaussianPrior.of(program, problem.engine)
        guide = started(AutoDelta, problem)
        structure, head = self._structure_on_the_way(program), head_of(program)
        if head is not None and (head.has_bias or self.structure != "kron"):
            is_alone = is_convex(program, head, prior) and not isinstance(self.subset, int)
            if is_alone and explains_rows(program, head, problem.rows, guide.centre().detach()):
                of_head = HeadAlone(program, problem.rows, prior, head, self.structure, self.rank)
                is_trained = any(value.requires_grad for value in program.params.values())
                return self._start_at(guide, problem, of_head, steps=NUM_STEPS if is_trained else 0)
        else:
            head = None
        objective = MinusLogJoint(program, problem.rows, prior)
        on_the_way = CurvatureOf(objective, structure, self.curvature, self.rank)
        objective.chunk = on_the_way.chunk
        return self._start_at(guide, problem, self._way(on_the_way, problem.joint, head))

    def start_call(self, problem: CallProblem) -> Start:
        """The same of any model, with the Hessian of its log joint; see the base class.

        Raises:
            OptionError: If an option needs the network or the rows, or the structure is too large.
            SiteError: If a hierarchy is centred.
        """
        self._check_call()
        joint = problem.joint
        _check_hierarchies(problem)
        guide = started(AutoDelta, problem)
        none = torch.zeros_like(joint.initial)
        objective = MinusLogJoint(joint, problem.rows, GaussianPrior(none, none))
        on_the_way = HessianOf(objective, self._structure_on_the_way(joint))
        of_draws = replace(self, predictive="weights")  # there is no f to linearise
        return of_draws._start_at(guide, problem, self._way(on_the_way, joint, None))

    def _check_call(self) -> None:
        """Refuse what needs a network or rows.

        Raises:
            OptionError: If an option does.
        """
        if self.curvature != "hessian":
            raise OptionError(
                f'curvature="{self.curvature}" is made of the rows of a network, and a Call has '
                'none: take Laplace(curvature="hessian")'
            )
        if self.prior_scales == "evidence":
            raise OptionError(
                'prior_scales="evidence" scales the priors of weights: leave it at "model" on a '
                "Call, and give the scale a prior"
            )
        if self.subset == "last_layer":
            raise OptionError(
                'subset="last_layer" needs a network, and a Call has none: take "all", or a '
                "pattern of sites"
            )
        if self.batch_size is not None:
            raise OptionError(
                f"batch_size={self.batch_size} needs rows, and a Call has none: leave it at None"
            )

    def _structure_on_the_way(self, program: Joint) -> Structure:
        """That of the precision by which the mode is found, over all of z."""
        if program.num_latents <= FEW:
            return "full"
        return "diagonal" if self.subset != "all" else self.structure

    def _way(
        self, on_the_way: CurvatureOf | HessianOf, joint: Joint, head: Head | None
    ) -> Way | HeadAtMode:
        """The precisions of a run: on the way to the mode, and there.

        Args:
            on_the_way: That by which the mode is found.
            joint: The model.
            head: Its head, where it has one.
        """
        if isinstance(self.subset, int):
            entries_of(joint, self.subset, self.structure)
            return Way(on_the_way, None)
        entries = entries_of(joint, self.subset, self.structure)
        if entries is None:
            is_same = on_the_way.structure == self.structure
            return Way(on_the_way, on_the_way if is_same else on_the_way.like(self.structure, None))
        if head is not None and isinstance(on_the_way, CurvatureOf) and head.is_of(entries):
            return HeadAtMode(on_the_way, head, self.structure, self.rank, entries)
        return Way(on_the_way, on_the_way.like(self.structure, entries))

    def _start_at(
        self, guide: AutoDelta, problem: Facts, way: AnyWay, *, steps: int = NUM_STEPS
    ) -> Start:
        """A run from a point, of so many steps where the user names none."""
        num_steps = self.num_steps
        if num_steps is None:
            num_steps = 0 if _is_at_a_mode(problem.init) else steps
        make = functools.partial(LaplaceRun, self, num_steps, guide, problem, way)
        return Start(problem, asdict(self) | {"num_steps": num_steps}, make)


def _check_hierarchies(problem: Facts) -> None:
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
    return isinstance(init, LaplaceDraws) or isinstance(getattr(init, "guide", None), AutoDelta)


class LaplaceRun(Training):
    """Steps to a mode, then the Gaussian there.

    Args:
        engine: The options.
        num_steps: Steps of Adam.
        guide: The point that they move.
        problem: Model and data.
        way: The precisions by which the mode is found, and of the Gaussian there.
        saves: The checkpoint, which says how the run that is resumed computes.

    Attributes:
        approximation: The Gaussian and what is known of it, once the steps are done.
    """

    def __init__(
        self,
        engine: Laplace,
        num_steps: int,
        guide: AutoDelta,
        problem: Facts,
        way: AnyWay,
        saves: Checkpoint,
    ) -> None:
        super().__init__(
            engine.svi(num_steps),
            problem.joint,
            guide,
            problem.seed,
            batches=problem.batches(engine.batch_size),
            compile_path=saves.compile_path,
        )
        self.engine, self.num_steps, self.title = engine, num_steps, type(engine).__name__
        self._way, self._bar = way, Bar(self.title, show=problem.progress)
        self.approximation: tuple[Guide, dict[str, Any]] | None = None
        if not num_steps:
            self.compile_path = "eager"

    def finish(self) -> None:
        """Polish the mode, and take the curvature there.

        Raises:
            DivergenceError: If it is no mode.
        """
        super().finish()
        try:
            self._find()
        finally:
            self._bar.close()

    def _find(self) -> None:
        engine, program, z = self.engine, self.program, self.guide.centre().double()
        self._bar.phase("features" if isinstance(self._way, HeadAlone) else "mode")
        self._on_the_way = self._way.to_mode(z, self._bar)
        objective = self._on_the_way.objective
        self._bar.phase("mode")
        mode = polish(objective, self._on_the_way, z)
        scales: dict[str, float] = {}
        if engine.prior_scales == "evidence":
            mode, scales = self._with_evidence(objective, mode)
        self._require_mode(mode)
        mode = settle(objective, self._on_the_way, mode)
        if not mode.is_settled:
            logger.warning(
                "Laplace's point is no mode yet: the last small steps, along the kinks of units, "
                "gained %.2g nats, where %s are allowed (Newton's decrement %.3g). Raise "
                'num_steps, or take a smooth activation, such as "silu"',
                mode.gain,
                ALONG_KINKS,
                mode.decrement,
            )
        self._bar.phase("curvature")
        q, entries = self._precision_of(mode)
        guide = new_guide(functools.partial(guide_of, q, engine.subset, entries), program)
        set_guide(guide, q, entries, mode.z)
        told: dict[str, Any] = {"newton_decrement": mode.decrement, "polish_gain": mode.gain}
        if entries is None or len(entries) == len(mode.z):
            told["log_evidence"] = _log_evidence(mode, q)
        self.approximation = guide, told | ({"found_scales": scales} if scales else {})

    def _precision_of(self, mode: PolishedMode) -> tuple[Any, Tensor | None]:
        """The precision at a mode, and the entries ``[P']`` that it is over, None for all."""
        engine, at_mode = self.engine, self._way.at_mode(mode.z)
        if at_mode is None:
            assert isinstance(engine.subset, int)
            diagonal = self._on_the_way.like("diagonal", None)
            largest = diagonal(mode.z).variance().topk(engine.subset)
            entries = largest.indices.sort().values
            at_mode = self._on_the_way.like(engine.structure, entries)
        return at_mode(mode.z, is_mode=True), at_mode.entries

    def _with_evidence(
        self, objective: MinusLogJoint[Joint], mode: PolishedMode
    ) -> tuple[PolishedMode, dict[str, float]]:
        """The mode under the priors' scales at which the evidence is largest, and these."""
        blocks, since = evidence.blocks_of(objective), 0
        best = -math.inf, mode, objective.factors
        for _ in range(evidence.ROUNDS):
            self._require_mode(mode)
            q, _ = self._precision_of(mode)
            value, factors = _log_evidence(mode, q), objective.factors.clone()
            since = since + 1 if value < best[0] else 0
            best = max(best, (value, mode, factors), key=lambda found: found[0])
            change = evidence.improve(objective, blocks, mode.z, q.variance())
            if change < evidence.CONVERGED or since == evidence.PATIENCE:
                break
            mode = polish(objective, self._on_the_way, mode.z)
        _, mode, objective.factors = best
        return mode, evidence.scales_of(objective, blocks)

    def _require_mode(self, mode: PolishedMode) -> None:
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

    def show(self, bar: Any) -> None:
        """The bar of the steps ends with them: those of the polish follow."""
        super().show(bar)
        if self.is_done:
            bar.close()

    def posterior(self, problem: Facts, saves: Checkpoint) -> GuideDraws:
        """The Gaussian; before the last step the point that was reached."""
        if self.approximation is None:
            return super().posterior(problem, saves)
        guide, told = self.approximation
        options = {**asdict(self.engine), "compiled": self.is_compiled, **told}
        return problem.laplace_posterior(guide, saves, options, self.losses)


def _log_evidence(mode: PolishedMode, q: Any) -> float:
    """Laplace's approximation of it, of a precision over all entries of z; nats."""
    of_volume = len(mode.z) * math.log(2 * math.pi) - float(q.log_det())
    return 0.5 * of_volume - float(mode.minus_log_joint)
