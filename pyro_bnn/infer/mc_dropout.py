"""MC dropout: predictions of a network under random masks, its weights as they are or trained."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Literal

from pyro_bnn.checks import check_positive_int
from pyro_bnn.errors import ModelError, OptionError, SiteError
from pyro_bnn.guides.dropout import AutoDropout
from pyro_bnn.infer.checkpoints.checkpoint import Checkpoint, State
from pyro_bnn.infer.engine import Engine, Start
from pyro_bnn.infer.inputs import FitData, new_guide
from pyro_bnn.infer.problem import Problem
from pyro_bnn.infer.run import Run
from pyro_bnn.infer.steps.descent import LEARNING_RATE
from pyro_bnn.infer.steps.rounds import AUTO, NumSteps
from pyro_bnn.infer.svi.svi import SVI
from pyro_bnn.models.from_dropout import DropoutModule
from pyro_bnn.posterior.guide_posterior import GuidePosterior
from pyro_bnn.posterior.nature import Fault
from pyro_bnn.posterior.posterior import Posterior


@dataclass(frozen=True, kw_only=True)
class MCDropout(Engine[Posterior]):
    r"""Masks drawn from their prior, over weights that are point estimates.

    .. math:: p(y \mid x) = \int p\bigl(y \mid f_\theta(x; m)\bigr)\, p(m)\, dm

    With ``num_steps=0`` nothing is fitted: the model is what ``bayesian_dropout(net, likelihood)``
    makes of a trained network with dropout layers. With more the weights are trained under masks,
    one a row and step: ``SVI(guides.AutoDropout, per_example_draws=True)``, which on a model whose
    weights have priors drops the inputs of layers, as Gal & Ghahramani do.

    It captures what a network says under masks; how wide that is is the rate's doing, not the
    data's.

    Args:
        num_steps: Steps of Adam, ``"auto"`` as in ``SVI``; 0 takes the network as it is.
        learning_rate: Its step size at the start of each round, which falls to 0.
        batch_size: Rows a step; default as in ``SVI``.
        compile: As in ``SVI``.

    Raises:
        OptionError: If an option is out of its range.

    References:
        Gal & Ghahramani, "Dropout as a Bayesian Approximation", ICML 2016, arXiv:1506.02142.

    Example:
        >>> import torch
        >>> from torch import nn
        >>> from pyro_bnn import bayesian_dropout, likelihoods
        >>> net = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 1))
        >>> model = bayesian_dropout(net, likelihoods.Normal(0.1))
        >>> x = torch.zeros(5, 3)
        >>> posterior = MCDropout(num_steps=0).run(model, (x, x[:, 0]), progress=False)
        >>> posterior.predict(x).mean.shape
        torch.Size([5, 1])
    """

    trains_params: ClassVar[bool] = True

    num_steps: NumSteps = AUTO
    learning_rate: float = LEARNING_RATE
    batch_size: int | None = None
    compile: Literal["auto"] | bool = "auto"

    def __post_init__(self) -> None:
        if self.num_steps != AUTO:
            check_positive_int("num_steps", self.num_steps, minimum=0)
        self._svi()

    @classmethod
    def remedies(cls, options: Mapping[str, Any]) -> dict[Fault, str]:
        """What mends each fault; see the base class."""
        is_trained = bool(options.get("num_steps"))
        longer = "double num_steps" if is_trained else "train the network longer"
        wider = "use larger rates in its dropout layers, or NUTS"
        return {"unfinished": longer, "optimum": longer, "narrow": wider, "poor family": wider}

    def _svi(self) -> SVI:
        """What trains; checks its options."""
        options = {**asdict(self), "num_steps": self.num_steps or 1}
        return SVI(AutoDropout, per_example_draws=True, **options)

    def start(self, problem: Problem) -> Start:
        """Start the training, if there is any; see the base class."""
        if self.num_steps:
            return self._svi().start(problem)
        if not isinstance(problem.model, DropoutModule):
            raise ModelError(
                "num_steps=0 takes a network as it is, and this one is not of bayesian_dropout(net)"
                ": make it so, or train it with num_steps=10_000"
            )
        if problem.is_led:
            raise OptionError(
                "init would have no effect, as a network is taken as it is: leave it out"
            )
        learned = [s.name for s in problem.program.sites if s.name.startswith("likelihood.")]
        if learned:
            raise SiteError(
                f"{', '.join(learned)} is to be learned: pass a likelihood that holds it fixed, "
                "such as likelihoods.Normal(0.1), or fit the network with SVI(guides.AutoDropout)"
            )
        return Start(problem, asdict(self), lambda saves: _AsItIs())  # noqa: ARG005


class _AsItIs(Run[GuidePosterior]):
    """A run without a step."""

    num_steps = 0

    def go(self) -> None:
        raise AssertionError("there is nothing to do")

    def state(self) -> State:
        return {"place": "its end", "compile_path": "eager"}

    def restore(self, state: Mapping[str, Any]) -> None:
        del state

    def posterior(self, problem: Problem, saves: Checkpoint) -> GuidePosterior:
        guide = new_guide(AutoDropout, problem.program)
        options = {"num_steps": 0, **guide.options()}
        return problem.guide_posterior(guide, saves, options, method=type(guide).__name__)


def mc_dropout(model: DropoutModule, data: FitData) -> GuidePosterior:
    """The posterior of a network with dropout layers as it is: ``MCDropout(num_steps=0)``.

    Args:
        model: What ``bayesian_dropout(net, likelihood)`` gives.
        data: Rows like those that the network was trained on, in its units: their shapes are read,
            and the way back to the user's units is kept.

    Returns:
        A posterior without a fit; a draw is one mask a layer, for all rows.

    Raises:
        ModelError, ShapeError: If the rows do not fit the network.
        SiteError: If the likelihood is to be learned, such as a noise scale.

    Example:
        >>> import torch
        >>> from torch import nn
        >>> from pyro_bnn import bayesian_dropout, likelihoods
        >>> net = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 1))
        >>> x = torch.zeros(5, 3)
        >>> posterior = mc_dropout(bayesian_dropout(net, likelihoods.Normal(0.1)), (x, x[:, 0]))
        >>> posterior.predict(x).mean.shape
        torch.Size([5, 1])
    """
    found = MCDropout(num_steps=0).run(model, data, progress=False)
    assert isinstance(found, GuidePosterior)
    return found
