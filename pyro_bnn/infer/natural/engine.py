"""What the natural-gradient engines share: their options, and the run around the steps."""

from __future__ import annotations

import functools
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from pyro_bnn.infer.curvature.gaussian_prior import GaussianPrior
from pyro_bnn.infer.engine import Engine, Start
from pyro_bnn.infer.natural.options import NaturalOptions
from pyro_bnn.infer.natural.run import NaturalRun
from pyro_bnn.infer.problem import Problem
from pyro_bnn.infer.steps.rounds import advice_on_length
from pyro_bnn.infer.warm_start import starting_mean
from pyro_bnn.posterior.guide_posterior import GuidePosterior
from pyro_bnn.posterior.nature import Fault


@dataclass(frozen=True, kw_only=True)
class NaturalEngine(NaturalOptions, Engine[GuidePosterior]):
    r"""Base of the natural-gradient engines: a Gaussian q, moved by its natural gradient.

    With the likelihood's weight :math:`w = \alpha / T` (data factor over temperature), all of them
    maximise

    .. math:: w\, E_q \log p(y \mid x, z) - \mathrm{KL}(q \| p)

    over Gaussians q, exactly or with a bias of their own. The prior is the model's: each site has a
    Gaussian of its own mean and scale, or is positive, such as a noise scale, whose prior enters by
    its mode and curvature in z and, beyond that, by gradients at the draws. Point-estimated
    parameters of the model are held fixed.

    Args:
        num_steps: Steps of q. ``"auto"`` goes on in rounds, each as long as all before, until the
            last one changed the ELBO by less than half a nat, or 2 errors, at the same noise
            (:mod:`pyro_bnn.posterior.doubling`). Either way the posterior's ``doubling`` tells what
            the second half of the steps gained.
        max_steps: Most steps of q with ``num_steps="auto"``; default 16,000.
        learning_rate: Rate a of the means, at the start.
        precision_learning_rate: Rate b of the precision, in (0, 1]; None for ``learning_rate``.
        schedule: ``"rounds"`` lets both rates fall to 0 over the second half of each round;
            ``"constant"``; ``"cosine"`` lets the means' rate fall to 0 over ``num_steps``;
            ``"power"`` divides both rates by :math:`t^{0.55}` at step t.
        batch_size: Rows a step; default all.
        num_particles: Draws S of z a step, ``num_samples`` in the papers; named as in ``SVI``.
        antithetic: Whether draws come in pairs :math:`m \pm d`, which makes expectations of linear
            functions, such as the gradient of a quadratic, exact.
        data_factor: How often every row counts.
        temperature: Weight of the KL; below 1 the posterior is a cold one.
        kl_warmup: Steps over which the temperature grows linearly from near 0; 0 for none.
        descent_steps: Steps of Adam towards a mode of the log joint, from which the means start;
            default as many as ``num_steps``, of ``"auto"`` 2,000; 0 for a start at random weights.
            From random weights the KL may switch hidden units off before they have found a use, and
            they stay off, which costs 1.4 nats a row on the UCI set energy. No such step is taken
            where ``init`` is given; from the weights of a trained network they are.
    """

    @abstractmethod
    def _make_run(self) -> type[NaturalRun]:
        """The class of a run."""

    @classmethod
    def family(cls, options: Mapping[str, Any]) -> str:  # noqa: ARG003
        """Name of the guide that posteriors of these options are."""
        return "AutoNormal"

    @classmethod
    def remedies(cls, options: Mapping[str, Any]) -> dict[Fault, str]:
        """What mends each fault; see the base class."""
        longer = advice_on_length(options)
        correlated = "try SLANG, or VON with a full covariance"
        return {
            "unfinished": longer,
            "optimum": f"{longer}, or lower learning_rate",
            "asked temperature": "set temperature=1",
            "narrow": correlated,
            "poor family": correlated,
        }

    def start(self, problem: Problem) -> Start:
        """Check the prior, and find where the means start; see the base class.

        Raises:
            SiteError: If the prior of a real site is not Gaussian.
        """
        program = problem.program
        problem.warn_of_held_parameters()
        prior = GaussianPrior.of(program, problem.engine)
        centre = starting_mean(program, problem.init, problem.seed)
        num_descent = 0 if problem.is_led else self.planned_descent
        make = functools.partial(self._make_run(), self, problem, prior, centre, num_descent)
        return Start(problem, asdict(self), make)
