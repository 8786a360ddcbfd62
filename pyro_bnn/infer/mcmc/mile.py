"""An ensemble trained to its optimum, of which every member is then sampled around."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, ClassVar, Literal

from torch import Tensor

from pyro_bnn.checks import check_positive, check_positive_int
from pyro_bnn.infer.engine import DrawCounts, Engine, Start
from pyro_bnn.infer.mcmc.mclmc import MCLMC
from pyro_bnn.infer.mcmc.members import train
from pyro_bnn.infer.mcmc.sampling import MassMatrix
from pyro_bnn.infer.own_weights import for_members
from pyro_bnn.infer.problem import Problem
from pyro_bnn.posterior.draws_posterior import DrawsPosterior
from pyro_bnn.posterior.nature import Fault, PosteriorKind


@dataclass(frozen=True, kw_only=True)
class MILE(Engine[DrawsPosterior]):
    r"""Microcanonical Langevin ensemble: K trained networks, and a chain of MCLMC around each.

    .. math:: q(z) = \frac1K \sum_{k=1}^K q_k(z)

    Members are trained in one batch, with an early stop on a tenth of the rows, and then each is
    where a chain starts, on all rows: no draw is spent on the way from the prior. The members weigh
    alike, whatever the mass of the modes that they are in, which chains of this length do not
    exchange: so it is a mixture of local posteriors and not the posterior, and of each MCLMC has
    its bias. Two R-hats tell of it: within members, whether each chain has settled, and over
    members, whether they all say the same function.

    Args:
        num_members: Number of members K, a chain each.
        member_learning_rate: Of Adam, which trains them.
        warmup_steps: Draws of a member that adapt and are dropped, as in ``MCLMC``.
        num_samples: Draws S of each member that are kept.
        energy_variance: The variance of a step's energy error a dimension, as in ``MCLMC``.
        num_steps: Steps of a velocity's memory, or None to find them, as in ``MCLMC``.
        integrator: ``"minimal_norm"`` or ``"leapfrog"``.
        mass_matrix: ``"diagonal"``, or ``"low_rank"`` with up to ten directions beside it.
        compile: As in ``NUTS``.

    Raises:
        OptionError: If an option is out of its range.

    References:
        Sommer, Robnik, Nozadze, Seljak & Ruegamer, "Microcanonical Langevin Ensembles: Advancing
        the Sampling of Bayesian Neural Networks", ICLR 2025, arXiv:2502.06335, whose step sizes aim
        at energy variances of 0.5 to 0.1.

    Example:
        >>> import torch
        >>> from pyro_bnn import likelihoods, models
        >>> x = torch.linspace(-1, 1, 20).unsqueeze(-1)
        >>> y = x[:, 0].sin() + 0.1 * torch.randn(20)
        >>> model = models.MLP(1, hidden=(3,), likelihood=likelihoods.Normal(0.1))
        >>> mile = MILE(num_members=2, warmup_steps=5, num_samples=5, compile=False)
        >>> posterior = mile.run(model, (x, y), progress=False)
        >>> posterior.num_chains
        2
    """

    posterior_kind: ClassVar[PosteriorKind | None] = "members"

    num_members: int = 12
    member_learning_rate: float = 0.01
    warmup_steps: int = 300
    num_samples: int = 1_000
    energy_variance: float = 5e-4
    num_steps: int | None = None
    integrator: Literal["leapfrog", "minimal_norm"] = "minimal_norm"
    mass_matrix: MassMatrix = "diagonal"
    compile: Literal["auto"] | bool = "auto"

    def __post_init__(self) -> None:
        check_positive_int("num_members", self.num_members)
        check_positive("member_learning_rate", self.member_learning_rate)
        self._sampler()

    def _sampler(self) -> MCLMC:
        """What draws around the members; refuses its options."""
        options = asdict(self)
        num_chains = options.pop("num_members")
        del options["member_learning_rate"]
        return MCLMC(num_chains=num_chains, **options)

    @classmethod
    def remedies(cls, options: Mapping[str, Any]) -> dict[Fault, str]:
        """What mends each fault; see the base class."""
        return {**MCLMC.remedies(options), "narrow": "use NUTS"}

    @property
    def draw_counts(self) -> DrawCounts:
        """As :attr:`Engine.draw_counts`."""
        return DrawCounts(self.num_members, self.num_members * self.num_samples)

    def start(self, problem: Problem) -> Start:
        """Find where the members start; see the base class."""

        def lead(starts: Tensor) -> Tensor:
            return train(problem, starts, self.member_learning_rate)

        problem = replace(problem, init=for_members(problem.init))
        return self._sampler().start_at(problem, asdict(self), lead)
