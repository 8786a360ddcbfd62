"""Any engine in a few directions around a mode, or in the plane through two of them."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple, TypeAlias

import torch
from torch import Tensor

from pyro_bnn import memory
from pyro_bnn.capture.captured import Captured
from pyro_bnn.checks import check_choice, check_positive, check_positive_int
from pyro_bnn.errors import OptionError
from pyro_bnn.guides import AutoLowRankMultivariateNormal
from pyro_bnn.infer.checkpoints.checkpoint import Checkpoint, State, users_code
from pyro_bnn.infer.engine import DrawCounts, Engine, Start
from pyro_bnn.infer.ensembles.members import require_weights
from pyro_bnn.infer.ensembles.subspace_model import SubspaceModel
from pyro_bnn.infer.ensembles.swag import BATCH_SIZE, SWAG
from pyro_bnn.infer.mcmc.nuts import NUTS
from pyro_bnn.infer.own_weights import PRIOR
from pyro_bnn.infer.problem import Problem
from pyro_bnn.infer.run import Run
from pyro_bnn.infer.steps.adam import PlainAdam
from pyro_bnn.infer.steps.potentials import potential_of
from pyro_bnn.infer.svi.options import name_of
from pyro_bnn.posterior.draws_posterior import DrawsPosterior
from pyro_bnn.posterior.guide_posterior import GuidePosterior
from pyro_bnn.posterior.nature import Fault
from pyro_bnn.posterior.posterior import Posterior
from pyro_bnn.posterior.site_posterior import NUM_SAMPLES
from pyro_bnn.program.random_state import derived_seed, isolated

SubspaceKind: TypeAlias = Literal["random", "pca", "curve"]
OTHER, DIRECTIONS, CURVE = 131, 132, 133  # streams of random numbers


class Plane(NamedTuple):
    """Where z may be, :math:`z_0 + A t`.

    Attributes:
        origin: :math:`z_0` ``[P]``.
        basis: A ``[P, R]``.
    """

    origin: Tensor
    basis: Tensor


@dataclass(frozen=True)
class Subspace(Engine[DrawsPosterior]):
    r"""The posterior in R directions of z, by any engine.

    .. math:: z = z_0 + A t, \qquad p(t \mid D) \propto p(y \mid x, z_0 + A t)\, p(t)

    The engine samples or fits t alone, of R numbers; the posterior is its draws of z. It captures
    all that the engine captures, in these directions, and no spread in the others:

    - ``"pca"``: :math:`z_0` is the mean of the iterates of a :class:`~pyro_bnn.SWAG`, the columns
      of A are the R largest principal components of their deviations, each as long as its sd;
    - ``"random"``: the same :math:`z_0`, and random directions, orthonormal;
    - ``"curve"``: the plane through the means of two runs and through the control point of a
      quadratic Bezier curve between them, along which the mean of U is minimised. t = (-1, 0) and
      (1, 0) are the two, and R = 2.

    The prior of t is the model's own density there, :math:`p(t) \propto p(z_0 + A t)`, so that with
    R = P independent directions this is the posterior; or independent Gaussians of a given sd, in
    units of the columns of A, as in the paper.

    Args:
        engine: What is run in t, with its options: of chains, or one that ends at a guide, of which
            1,000 draws are taken. From the command line ``NUTS``.
        kind: Which directions.
        rank: Number R of directions; 2 for a curve.
        prior: ``"model"``, or the sd of Gaussians over t.
        around: The run whose iterates give the directions, all rows fitted: ``scale`` and
            ``held_out`` are not used, and a posterior of ``SWAG`` as ``init`` takes its place.

    Raises:
        OptionError: If an option is out of its range, there are more directions than deviations, or
            the model has point-estimated parameters.

    References:
        Izmailov, Maddox, Kirichenko, Garipov, Vetrov & Wilson, "Subspace Inference for Bayesian
        Deep Learning", UAI 2019, arXiv:1907.07504. Curves: Garipov et al., "Loss Surfaces, Mode
        Connectivity, and Fast Ensembling of DNNs", NeurIPS 2018, arXiv:1802.10026.

    Example:
        >>> import torch
        >>> from pyro_bnn import NUTS, SWAG, models
        >>> x = torch.linspace(-1, 1, 20).unsqueeze(-1)
        >>> around = SWAG(num_steps=20, num_iterates=4, rank=3, compile=False)
        >>> nuts = NUTS(num_chains=2, warmup_steps=5, num_samples=5, compile=False)
        >>> engine = Subspace(nuts, rank=2, around=around)
        >>> posterior = engine.run(models.MLP(1, hidden=(3,)), (x, x[:, 0]), progress=False)
        >>> posterior.num_chains, posterior.options["prior"]
        (2, 'model')
    """

    inner: ClassVar[type[Engine[Any]]] = NUTS  # from the command line

    engine: Engine[Any] = NUTS()  # noqa: RUF009  # frozen
    kind: SubspaceKind = "pca"
    rank: int = 5
    prior: Literal["model"] | float = "model"
    around: SWAG = SWAG()  # noqa: RUF009  # frozen

    def __post_init__(self) -> None:
        if not isinstance(self.engine, Engine) or isinstance(self.engine, Subspace):
            raise OptionError(f"engine is an engine with its options, not {self.engine!r:.80}")
        if not isinstance(self.around, SWAG):
            raise OptionError(f"around is a SWAG with its options, not {self.around!r:.80}")
        check_choice("kind", self.kind, SubspaceKind)
        check_positive_int("rank", self.rank)
        check_positive("prior", self.prior, also="model")
        if self.kind == "curve" and self.rank != 2:
            raise OptionError(f"a curve lies in a plane: rank is 2, not {self.rank}")
        if self.kind == "pca" and self.rank > self.around.rank:
            raise OptionError(
                f"rank={self.rank} directions of {self.around.rank} deviations: raise the rank of "
                "around=SWAG(rank=...), or lower this one"
            )

    @classmethod
    def remedies(cls, options: Mapping[str, Any]) -> dict[Fault, str]:
        """What mends each fault; see the base class."""
        found: dict[Fault, str] = {
            "settling": "raise warmup_steps and num_samples of its engine",
            "few draws": "raise num_samples of its engine",
            "narrow": "use NUTS",
        }
        if options.get("kind") != "curve":
            found["narrow"] = "raise rank, or use NUTS"
        if "target_accept" in options:  # of its engine
            found["divergent"] = "raise target_accept of its engine"
        if "max_tree_depth" in options:
            found["saturated"] = "raise max_tree_depth of its engine"
        return found

    @property
    def draw_counts(self) -> DrawCounts:
        """As :attr:`Engine.draw_counts`."""
        return self.engine.draw_counts

    def start(self, problem: Problem) -> Start:
        """Check the model; the directions are found where the run begins."""
        require_weights(self.engine)
        self.engine.check_batches(problem.data)
        if self.rank > problem.program.num_latents:
            raise OptionError(
                f"rank={self.rank} directions of z, which has {problem.program.num_latents}"
            )
        trained = [name for name, p in problem.program.params.items() if p.requires_grad]
        if trained:
            raise OptionError(
                f"a subspace is one of sites, and {', '.join(trained)} are point-estimated: give "
                "them priors, or freeze them with requires_grad_(False)"
            )
        options = self.describe()
        return Start(problem, options, functools.partial(SubspaceRun, self, problem, options))

    def describe(self) -> dict[str, Any]:
        """All options as JSON can hold them."""
        own = {name: getattr(self, name) for name in ("kind", "rank", "prior")}
        engine = {"engine": name_of(self.engine), **_plain(self.engine)}
        return {**engine, **own, "around": _plain(self.around)}

    def _plane(self, problem: Problem) -> Plane:
        program, seed, progress = problem.program, problem.seed, problem.progress
        around = dataclasses.replace(self.around, scale=1.0)
        found: Any = problem.init
        if not (isinstance(found, GuidePosterior) and found.method == SWAG.__name__):
            start = PRIOR if found is None else found  # the weights of the network were in it
            found = around.run(
                problem.model, problem.data, init=start, seed=seed, progress=progress
            )
        guide = found.guide
        assert isinstance(guide, AutoLowRankMultivariateNormal)
        origin = guide.centre().to(program.initial)
        generator = torch.Generator().manual_seed(derived_seed(seed, DIRECTIONS))
        if self.kind == "random":
            basis = torch.randn(len(origin), self.rank, generator=generator, dtype=torch.float64)
            return Plane(origin, torch.linalg.qr(basis).Q.to(origin))
        if self.kind == "pca":
            with torch.no_grad():
                factor = (guide.scale.unsqueeze(-1) * guide.cov_factor).double()
            if factor.shape[1] < self.rank:
                raise OptionError(
                    f"rank={self.rank} directions of the {factor.shape[1]} deviations of init"
                )
            left, lengths, _ = torch.linalg.svd(factor, full_matrices=False)
            return Plane(origin, (left * lengths)[:, : self.rank].to(origin))
        other: Any = around.run(
            problem.model, problem.data, seed=derived_seed(seed, OTHER), progress=progress
        )
        end = other.guide.centre().to(origin)
        middle, half = (origin + end) / 2, (end - origin) / 2
        bend = self._control_point(problem, origin, end) - middle
        return Plane(middle, torch.stack([half, bend - half * (bend @ half) / (half @ half)], -1))

    def _control_point(self, problem: Problem, first: Tensor, last: Tensor) -> Tensor:
        """The control point of the curve along which the mean of U is least, by Adam."""
        potential = potential_of(problem.program)

        def on_curve(control: Tensor, s: Tensor, x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
            z = (1 - s) ** 2 * first + 2 * s * (1 - s) * control + s**2 * last
            return (2 * s * (1 - s) * potential(z.unsqueeze(0), x, y)[1].squeeze(0),)

        batches = problem.batches(self.around.batch_size or BATCH_SIZE)
        rows = {2: 0, 3: 0} if batches.rows_vary else {}
        slope = Captured(on_curve, "the curve between two modes", rows=rows)
        control = ((first + last) / 2).requires_grad_()
        adam = PlainAdam([control], lr=self.around.learning_rate)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(adam, max(self.around.num_steps, 1))
        generator = torch.Generator().manual_seed(derived_seed(problem.seed, CURVE))
        for _ in range(self.around.num_steps):
            s = torch.rand((), generator=generator).to(first)
            (control.grad,) = slope(control.detach(), s, *next(batches))
            adam.step()
            schedule.step()
        return control.detach()


class SubspaceRun(Run[DrawsPosterior]):
    """The run of the engine in t; what it ends at is told in z.

    Args:
        subspace: The options.
        problem: Model and data, in z.
        options: As they are told.
        saves: The checkpoint.

    Attributes:
        plane: Where z may be; None before the run has begun or gone on.
        run: That of the engine there.
    """

    run: Run[Any]

    def __init__(
        self, subspace: Subspace, problem: Problem, options: dict[str, Any], saves: Checkpoint
    ) -> None:
        self.subspace, self.problem, self.options, self._saves = subspace, problem, options, saves
        self.plane: Plane | None = None

    @property
    def is_done(self) -> bool:
        """Whether the engine is."""
        return self.plane is not None and self.run.is_done

    def begin(self) -> None:
        """Find the plane, and begin as the engine does."""
        self._enter(self.subspace._plane(self.problem))
        self.run.begin()

    def _enter(self, plane: Plane) -> None:
        """Make the run in a plane, which lies in memory as one that was read does: for its bits."""
        problem, prior, layout = self.problem, self.subspace.prior, torch.contiguous_format
        like = problem.program.initial
        plane = Plane(*(part.to(like).clone(memory_format=layout) for part in plane))
        scale = None if isinstance(prior, str) else float(prior)
        model = SubspaceModel(problem.program, plane.origin, plane.basis, scale)
        inside = dataclasses.replace(problem, model=model, init=None)
        with isolated(problem.seed):
            start = self.subspace.engine.start(inside)
            self.run, self._inside = start.make(self._saves), start.problem
        self.plane = plane

    def go(self) -> None:
        """One step of the engine."""
        self.run.go()

    def finish(self) -> None:
        """Finish as the engine does."""
        self.run.finish()

    def reached(self) -> tuple[int, float | None]:
        """What the engine has reached."""
        return self.run.reached()

    def bar(self, *, show: bool) -> AbstractContextManager[Any]:
        """The engine's."""
        return self.run.bar(show=show)

    def show(self, bar: Any) -> None:
        """Move the engine's bar."""
        self.run.show(bar)

    def state(self) -> State:
        """The engine's, and the plane that it is in."""
        assert self.plane is not None
        return {**self.run.state(), "plane": self.plane._asdict()}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go to a state of the engine, in the plane of that; see ``Resumable``.

        Raises:
            ValueError: If the plane is one of other sizes.
        """
        plane = Plane(**state["plane"])
        size, shapes = self.problem.program.num_latents, [tuple(part.shape) for part in plane]
        if shapes != [(size,), (size, self.subspace.rank)]:
            raise ValueError(f"a plane of shapes {shapes}")
        with users_code():
            self._enter(plane)
        self.run.restore(state)

    def posterior(self, problem: Problem, saves: Checkpoint) -> DrawsPosterior | None:
        """Draws of z, of those of t."""
        if self.plane is None:
            return None
        found: Posterior | None = self.run.posterior(self._inside, saves)
        if found is None:
            return None
        if isinstance(found, DrawsPosterior):
            t = found.stored
        else:
            t = found.unconstrained(NUM_SAMPLES, problem.seed).unsqueeze(0)
        origin, basis = self.plane
        if t.shape[0] * t.shape[1] * origin.nbytes > memory.STORED_DRAWS:
            raise OptionError(
                f"{t.shape[0] * t.shape[1]:,} draws of {len(origin):,} numbers exceed "
                f"{memory.readable(memory.STORED_DRAWS)}: lower num_samples of the engine"
            )
        own = found.provenance
        provenance = problem.provenance(
            saves,
            method=problem.engine,
            options={**found.options, **self.options},
            num_parameters=self.plane.basis.shape[1],
            phases=own.phases,
        )
        stats = found.sample_stats
        z = origin + t.to(basis) @ basis.mT
        return DrawsPosterior(problem.program, z, provenance, sample_stats=stats)


def _plain(engine: Engine[Any]) -> dict[str, Any]:
    """Options as JSON can hold them; of what is none its name."""
    values = {f.name: getattr(engine, f.name) for f in dataclasses.fields(engine)}  # type: ignore[arg-type]
    plain = (int, float, str, bool, type(None))
    return {name: v if isinstance(v, plain) else name_of(v) for name, v in values.items()}
