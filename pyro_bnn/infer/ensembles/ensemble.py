"""Several networks fitted at once, each from a start of its own."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from pyro_bnn.checks import check_choice, check_positive_int
from pyro_bnn.errors import OptionError
from pyro_bnn.guides.ensemble import AutoEnsemble
from pyro_bnn.infer.checkpoints.checkpoint import Checkpoint
from pyro_bnn.infer.engine import DrawCounts, Engine, Start
from pyro_bnn.infer.ensembles.members import engine_of, members_start
from pyro_bnn.infer.ensembles.pushes import EnsembleKind, Push, push_of
from pyro_bnn.infer.problem import Problem
from pyro_bnn.infer.steps.descent import LEARNING_RATE
from pyro_bnn.infer.steps.rounds import AUTO, NumSteps
from pyro_bnn.infer.svi.estimators.estimator import Estimator
from pyro_bnn.infer.svi.options import GuideSpec, name_of
from pyro_bnn.infer.svi.step_loss import StepLoss
from pyro_bnn.infer.svi.svi import SVI
from pyro_bnn.infer.svi.training import Training
from pyro_bnn.infer.warm_start import started
from pyro_bnn.posterior.guide_posterior import GuidePosterior
from pyro_bnn.posterior.nature import Fault, PosteriorKind
from pyro_bnn.program.terms import Batch

OF_SVI = ("num_steps", "learning_rate", "batch_size", "compile")


@dataclass(frozen=True, kw_only=True)
class Ensemble(Engine[GuidePosterior]):
    r"""K networks, each at a maximum of its own: a deep ensemble.

    .. math:: p(y \mid x, D) \approx \frac1K \sum_k p(y \mid x, \hat\theta_k)

    What members differ by is what the predictions are uncertain about:

    - ``"independent"``: starts at draws of the prior, of ``bayesian(net)`` with a trained network
      the first at its weights. Nothing keeps members from the same mode.
    - ``"anchored"``: each member's prior is moved to a draw of it. On a linear model their
      covariance is :math:`P^{-1} P_0 P^{-1}` where the posterior's is :math:`P^{-1}`: too small.
    - ``"rto"`` (randomise, then optimise): the targets have noise of their own as well. On a linear
      model members are draws of the posterior, exactly; of a network they are near one where each
      mode is Gaussian.
    - ``"repulsive"``: members push each other apart as functions at the rows of the batch.
    - ``"svgd"``: Stein variational gradient descent of functions at these rows: members share the
      forces of the data by how alike they are, and push each other apart.

    With ``member`` each is a guide, fitted by ``SVI``, or what an engine finds, such as a
    :class:`~pyro_bnn.SWAG` (MultiSWAG): an equal mixture, which has a spread around every mode, and
    a density where its members have one. Members are then fitted side by side, a step each in turn.

    Without it a member is a point, and all take a step at once. Members weigh alike, whatever the
    mass of their modes. Points have no density, so no ELBO and no k-hat, and members are no chains:
    neither R-hat nor ESS speak of them.

    Args:
        num_members: Number of members K.
        kind: What makes the members differ; with ``member`` ``"independent"``.
        member: What each member is: a guide class, or a partial of one, which the options below
            fit; or an engine that ends at a guide, which has its own; None for a point.
        num_steps: Steps of Adam; ``"auto"`` as in ``SVI``, for all members of points together.
        learning_rate: Its step size at the start of each round, which falls to 0.
        batch_size: Rows a step; default as in ``SVI``, but ``"rto"`` takes all. Each batch's
            likelihood is scaled by N/B.
        compile: As in ``SVI``.

    Raises:
        OptionError: If an option is out of its range, or ``batch_size`` is given to ``"rto"``.

    References:
        Lakshminarayanan, Pritzel & Blundell, "Simple and Scalable Predictive Uncertainty Estimation
        using Deep Ensembles", NeurIPS 2017, arXiv:1612.01474; of the other kinds see
        :mod:`pyro_bnn.infer.ensembles.pushes`.

    Example:
        >>> import torch
        >>> from pyro_bnn import models
        >>> x = torch.linspace(-1, 1, 20).unsqueeze(-1)
        >>> engine = Ensemble(num_members=3, num_steps=5)
        >>> posterior = engine.run(models.MLP(1, hidden=(5,)), (x, x[:, 0]), progress=False)
        >>> posterior.num_atoms
        3
    """

    trains_params: ClassVar[bool] = True
    posterior_kind: ClassVar[PosteriorKind | None] = "members"

    num_members: int = 10
    kind: EnsembleKind = "independent"
    member: Engine[Any] | GuideSpec | None = None
    num_steps: NumSteps = AUTO
    learning_rate: float = LEARNING_RATE
    batch_size: int | None = None
    compile: Literal["auto"] | bool = "auto"

    def __post_init__(self) -> None:
        check_positive_int("num_members", self.num_members)
        check_choice("kind", self.kind, EnsembleKind)
        if self.kind == "rto" and self.batch_size is not None:
            raise OptionError(
                'kind="rto" gives each row\'s target noise of its own, and takes all rows in every '
                "step: leave batch_size at None"
            )
        self._svi()
        if self.member is None:
            return
        if self.kind != "independent":
            raise OptionError(
                f'kind="{self.kind}" is built for points alone: leave member at None, or kind at '
                '"independent"'
            )
        engine_of(self.member, **self._of_svi)
        given = [
            f.name for f in fields(self) if f.name in OF_SVI and getattr(self, f.name) != f.default
        ]
        if isinstance(self.member, Engine) and given:
            raise OptionError(
                f"{', '.join(given)} would have no effect, as members are fits of "
                f"{name_of(self.member)}: set it there"
            )

    @classmethod
    def remedies(cls, options: Mapping[str, Any]) -> dict[Fault, str]:
        """What mends each fault; see the base class."""
        is_point = options.get("member") is None
        longer = "double num_steps" if is_point else "double num_steps of its members"
        wider = "use NUTS"
        if is_point:
            anchored, rto = 'kind="anchored" (for Gaussian priors)', 'kind="rto" (for these and '
            rto += "Gaussian noise of a fixed scale)"
            kind, takes_all = options.get("kind"), options.get("batch_size") is None
            kinds = [anchored] if kind not in ("anchored", "rto") else []
            kinds += [rto] if kind != "rto" and takes_all else []
            wider = f"set {', '.join([*kinds, 'member to a guide with spread'])}, or use NUTS"
        return {
            "unfinished": longer,
            "optimum": f"{longer}, or lower learning_rate",
            "narrow": wider,
            "poor family": wider,
        }

    @property
    def _guide(self) -> functools.partial[AutoEnsemble]:
        return functools.partial(AutoEnsemble, num_members=self.num_members)

    @property
    def _of_svi(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in OF_SVI}

    def _svi(self) -> SVI:
        """What takes the steps; checks their options."""
        return SVI(self._guide, **self._of_svi)

    @property
    def draw_counts(self) -> DrawCounts:
        """As :attr:`Engine.draw_counts`."""
        return DrawCounts(num_atoms=self.num_members)

    def start(self, problem: Problem) -> Start:
        """Start the members; see the base class."""
        if self.member is not None:
            engine = engine_of(self.member, **self._of_svi)
            own = {"num_members": self.num_members, "kind": self.kind}
            return members_start(engine, self.num_members, problem, own)
        if self.kind == "rto" and problem.has_own_order:
            raise OptionError('kind="rto" takes all rows in every step: pass the data set itself')
        guide = started(self._guide, problem)
        push = push_of(self.kind, problem, self.num_members)
        make = functools.partial(MembersRun, self, guide, problem, push)
        return Start(problem, asdict(self), make)


class PushedLoss(StepLoss):
    """The loss of all members, and what pushes them apart or anchors them.

    Args:
        push: What is added.
        args: Arguments of ``StepLoss``.
    """

    def __init__(self, push: Push, *args: Any) -> None:
        super().__init__(*args)
        self._push = push

    def terms(
        self,
        variables: Sequence[Tensor],
        noise: Sequence[Tensor],
        rows: Batch,
        kl_weight: Tensor | float,
        estimator: Estimator | None,
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """The loss with the push; see the base class."""
        loss, others = super().terms(variables, noise, rows, kl_weight, estimator)
        named = dict(zip(self.names, variables, strict=True))
        z = [named[f"guide.{name}"] for name in ("loc", "values") if f"guide.{name}" in named]
        return loss + self._push(torch.cat(z, -1), rows, self.program.params), others


class MembersRun(Training):
    """The steps of all members.

    Args:
        engine: The options.
        guide: The members.
        problem: Model and data.
        push: What is added to their objectives.
        saves: The checkpoint, which says how the run that is resumed computes.
    """

    def __init__(
        self,
        engine: Ensemble,
        guide: AutoEnsemble,
        problem: Problem,
        push: Push | None,
        saves: Checkpoint,
    ) -> None:
        self.engine, self._push = engine, push
        svi = engine._svi()
        super().__init__(
            svi,
            problem.program,
            guide,
            problem.seed,
            batches=problem.batches(
                None if engine.kind == "rto" else svi.rows_a_step(guide, problem)
            ),
            compile_path=saves.compile_path,
        )
        self.title = self.method = problem.engine

    def _make_loss(self) -> StepLoss:
        push = self._push
        if push is None:
            return super()._make_loss()
        return PushedLoss(push, self.svi, self.program, self.guide, self.names, self.seed)

    @property
    def needs_all_rows(self) -> bool:
        """Whether each row has noise of its target, by its place."""
        return self.engine.kind == "rto"

    def described(self) -> dict[str, Any]:
        """The options of an ensemble of points."""
        of_run = {"schedule": self.svi.schedule, "compiled": self.is_compiled}
        return asdict(self.engine) | of_run | {"num_steps": self.position}
