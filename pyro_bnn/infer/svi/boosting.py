r"""Variational boosting: a mixture of Gaussians, grown component by component.

.. math:: q_K(z) = (1 - \gamma)\, q_{K-1}(z) + \gamma\, \mathcal N(z \mid m, \mathrm{diag}\, s^2)

Miller, Foti & Adams, ICML 2017, arXiv:1611.06585; Guo et al. 2016, arXiv:1611.05559.
"""

from __future__ import annotations

import math
import time
from typing import Any, cast

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from pyro_bnn.checks import check_positive_int, check_seed, plain
from pyro_bnn.errors import DivergenceError, OptionError
from pyro_bnn.guides import AutoNormal, AutoNormalMixture
from pyro_bnn.guides.parts.components import Components
from pyro_bnn.infer.checkpoints.checkpoint import Checkpoint
from pyro_bnn.infer.checkpoints.interrupts import Interrupted
from pyro_bnn.infer.inputs import Data, as_dataset, new_guide, set_up, unchanged
from pyro_bnn.infer.problem import Problem
from pyro_bnn.infer.run import drive
from pyro_bnn.infer.steps.descent import LEARNING_RATE
from pyro_bnn.infer.svi.estimators.by_name import FOR_ALL
from pyro_bnn.infer.svi.estimators.product_estimators import LocalReparameterization
from pyro_bnn.infer.svi.mixture_weights import SMALLEST_LOG_WEIGHT, fit_weights, mixture_elbo
from pyro_bnn.infer.svi.svi import SVI
from pyro_bnn.infer.svi.training import Training
from pyro_bnn.posterior.draws_posterior import DrawsPosterior
from pyro_bnn.posterior.guide_posterior import GuidePosterior
from pyro_bnn.posterior.posterior import Posterior
from pyro_bnn.posterior.provenance import Provenance, of_data
from pyro_bnn.program.handlers import Model
from pyro_bnn.program.latents import Marginals
from pyro_bnn.program.random_state import derived_seed, isolated
from pyro_bnn.program.terms import EntryNoise, GuideTerms

ESTIMATORS = (*FOR_ALL, LocalReparameterization.name)  # those that serve a new component


def boost(
    posterior: Posterior,
    data: Data,
    *,
    num_steps: int = 5_000,
    learning_rate: float = LEARNING_RATE,
    init_scale: float = 0.01,
    num_candidates: int = 100,
    num_draws: int = 1_000,
    seed: int = 0,
    progress: bool = True,
    **options: Any,
) -> GuidePosterior:
    r"""Add one component to a posterior of one Gaussian, or of a mixture of them.

    The components that are there stay as they are. A new one is fitted beside them, at the weight
    :math:`\gamma = 1/K`, by the ELBO of the whole mixture,

    .. math:: \mathcal L = (1 - \gamma)\, E_{q_{K-1}} \log p(y, z \mid x)
              + \gamma\, E_{\mathcal N(m, s^2)} \log p(y, z \mid x) + H(q_K),

    of which the first term does not depend on it: so a step costs one network, whatever K. Then all
    weights are fitted together, on draws of every component. In the weights :math:`\mathcal L` is
    concave, and each update :math:`\pi_k \propto \pi_k \exp E_{q_k} \log \tfrac{p(y, z \mid
    x)}{q(z)}` raises it, as the KL of two mixtures is at most that of their weights. A component
    that is of no use ends at a weight of 0. So the ELBO on the draws of the weights' fit never
    falls; the ELBO itself can, by the Monte Carlo error of these draws.

    The new component starts at one of the candidates, draws z of the prior: where
    :math:`\log p(y, z \mid x) - \log \tfrac12 (q_{K-1}(z) + p(z))` is largest, which is where the
    likelihood is high and q has no mass. Its sds are held for a tenth of the steps.

    The model's point-estimated parameters stay at their values in the posterior. To train all
    components of the result together, pass its ``guide`` to ``SVI``.

    Args:
        posterior: A fit of ``AutoNormal`` (by ``SVI`` or ``CAVI``) or ``AutoNormalMixture``.
        data: The data it was fitted to.
        num_steps: Gradient steps of the new component.
        learning_rate: Their size at the start.
        init_scale: Initial standard deviation of the new component, > 0, in the units of z.
        num_candidates: Number of points among which its start is chosen.
        num_draws: Draws of every component on which the weights are fitted.
        seed: Seed, >= 0, of the start, the noise and the order of the data.
        progress: Whether to show a progress bar.
        options: Others of :class:`pyro_bnn.SVI`, such as ``batch_size`` and ``num_particles``; the
            estimator is ``"auto"``, ``"weight_sampling"`` or ``"local_reparameterization"``.

    Returns:
        The mixture of one component more. Its losses are minus the ELBO of the whole mixture at
        each step, before the weights' fit; its wall time counts that of ``posterior`` in; entry
        ``"gain"`` of its options is the rise of the ELBO, in nats, on the draws of that fit.

    Raises:
        DivergenceError: If the loss becomes NaN or infinite; holds the posterior as it came.
        Interrupted: If Ctrl-C came; holds the posterior as it came.
        OptionError: If an option is out of its range, or the posterior is of another guide.

    Example:
        >>> from pyro_bnn import models
        >>> x = torch.linspace(-1, 1, 20).unsqueeze(-1)
        >>> fit = SVI(AutoNormal, num_steps=5).run(
        ...     models.MLP(1, hidden=(5,)), (x, x[:, 0]), progress=False
        ... )
        >>> grown = boost(fit, (x, x[:, 0]), num_steps=5, progress=False)
        >>> grown.method, grown.guide.num_components
        ('AutoNormalMixture', 2)
    """
    start = time.perf_counter()
    check_positive_int("num_candidates", num_candidates)
    check_positive_int("num_draws", num_draws)
    seed = plain(seed)
    check_seed(seed)
    svi = SVI(AutoNormal, num_steps=num_steps, learning_rate=learning_rate, **options)
    if svi.estimator not in ESTIMATORS:
        raise OptionError(
            f'a step of boost draws from every component, which estimator="{svi.estimator}" does '
            f"not: take one of {', '.join(ESTIMATORS)}"
        )
    held = _components(posterior)
    with isolated(seed), unchanged(posterior.model):
        growth = _Growth(posterior, data, num_draws=num_draws, seed=seed)
        guide = NewComponent(posterior.model, held, init_scale=init_scale)
        set_up(guide, growth.program)
        guide.move_to(growth.candidate(held, num_candidates))
        losses = growth.train(svi, guide, progress=progress)
        q = guide.mixture
        K = len(q.loc)
        of_components = zip(*(growth.at_draws(q, k) for k in range(K)), strict=True)
        log_joint, log_q = map(torch.stack, of_components)  # [K, S], [K, S, K]
        log_weights = fit_weights(log_joint, log_q)
        mixture = AutoNormalMixture(posterior.model, init_scale=init_scale, num_components=K)
        set_up(mixture, growth.program)
        mixture.set_components(q.loc, q.scale, log_weights.exp())
    old = cast(Tensor, held.log_weights).double()
    before = torch.cat([old, old.new_full((1,), SMALLEST_LOG_WEIGHT)])
    gain = mixture_elbo(log_joint, log_q, log_weights) - mixture_elbo(log_joint, log_q, before)
    # E log p under the held components, which a step leaves out
    rest = (1 - 1 / K) * float(old.exp() @ log_joint[:-1].mean(-1))
    described = svi.describe(mixture, float(learning_rate), svi.warmup_of(guide, is_new=True))
    told = {"num_candidates": num_candidates, "num_draws": num_draws, "gain": gain}
    provenance = Provenance(
        method=type(mixture).__name__,
        engine="boost",
        options=described | told,
        seed=seed,
        wall_time=posterior.wall_time + time.perf_counter() - start,
        num_parameters=sum(p.numel() for p in mixture.parameters()),
        losses=losses / K - rest,
        gpu=posterior.gpu,
        nature=SVI.nature(described),
        **of_data(posterior.provenance),
    )
    return GuidePosterior(growth.program, mixture, provenance)


class NewComponent(AutoNormal):
    r"""One more Gaussian beside the components of a mixture, which are held.

    What is maximised is the ELBO of the whole mixture, less what does not depend on the new
    component, over its weight :math:`\gamma = 1/K`:

    .. math:: E_{\mathcal N(m, s^2)} \log p(y, z \mid x) + \tfrac1\gamma H(q_K)

    Args:
        model: Pyro model.
        held: The K - 1 other components.
        init_scale: Initial standard deviation of the new one.
    """

    objective: str = "residual ELBO"

    def __init__(self, model: Model, held: Components, *, init_scale: float) -> None:
        super().__init__(model, init_scale=init_scale)
        self.num_components = len(held.loc) + 1
        self.held = held

    @property
    def mixture(self) -> Components:
        """All components, the new one last and of weight 1/K."""
        loc = torch.cat([self.held.loc, self.loc.unsqueeze(0)])
        scale = torch.cat([self.held.scale, self.scale.unsqueeze(0)])
        log_weights = cast(Tensor, self.held.log_weights).double() + math.log1p(
            -1 / self.num_components
        )
        own = log_weights.new_full((1,), -math.log(self.num_components))
        return Components(loc, scale, log_weights=torch.cat([log_weights, own]).to(loc))

    @property
    def noise_dim(self) -> int:
        """K P: for a draw of every component."""
        return self.num_components * self.num_latents

    def make_terms(self, noise: Tensor, *, density: bool) -> GuideTerms:
        """What the objective needs of draws of the new component."""
        q = self.mixture
        members = q.draws(noise.unflatten(-1, (self.num_components, -1)))  # [S, K, P]
        z = members[:, -1]
        if not density:
            return GuideTerms(z)
        entropy = q.sampled_entropy(members).mean() * self.num_components
        noise_left = EntryNoise(self.loc.unsqueeze(0), self.scale, noise[..., -self.num_latents :])
        return GuideTerms(z, entropy, None, Marginals(self.loc, self.scale), entry_noise=noise_left)


class _Growth:
    """The model and the data, with the point-estimated parameters held at a posterior's."""

    def __init__(self, posterior: Posterior, data: Data, *, num_draws: int, seed: int) -> None:
        rows = as_dataset(data)
        self.problem = Problem(posterior.model, data, rows, None, seed, "boost")
        self.posterior, self.num_draws, self.pair = posterior, num_draws, (rows.x, rows.y)
        self.program = self.problem.program
        for name, value in posterior.params.items():
            parameter = self.program.params[name]
            parameter.requires_grad = False
            parameter.copy_(value)

    def candidate(self, held: Components, num_candidates: int) -> Tensor:
        """The draw z ``[P]`` of the prior at which the likelihood is high and q has no mass."""
        x, seed = self.problem.rows.x[:1], derived_seed(self.problem.seed, 0)
        z = self.program.prior_draws(num_candidates, x, seed)
        given = DrawsPosterior(self.program, z.unsqueeze(0), self.posterior.provenance)
        z = given.unconstrained(num_candidates)
        log_prior = self.program.log_prior(z, x).double()
        log_likelihood = given.log_joint(self.pair, num_candidates).double() - log_prior
        log_q = held.joint_log_prob(z).logsumexp(-1).double()
        score = log_likelihood - torch.logaddexp(log_q - log_prior, torch.zeros_like(log_q))
        return z[score.nan_to_num(-math.inf, neginf=-math.inf).argmax()]

    def train(self, svi: SVI, guide: NewComponent, *, progress: bool) -> NDArray[np.float64]:
        """Fit the new component; returns minus its objective at each step."""
        self.program.prepare(guide)
        run = Training(
            svi,
            self.program,
            guide,
            self.problem.seed,
            batches=self.problem.batches(svi.batch_size),
            loc_warmup=svi.warmup_of(guide, is_new=True),
        )
        saves = Checkpoint(device=self.program.device, start=time.perf_counter())
        try:
            drive(run, saves, progress=progress)
        except (DivergenceError, Interrupted) as error:
            error.posterior = self.posterior
            raise
        for parameter in guide.parameters():
            parameter.requires_grad = False
        return np.asarray(run.losses)

    def at_draws(self, q: Components, k: int) -> tuple[Float[Tensor, " S"], Float[Tensor, "S K"]]:
        """Log p(y, z | x) of draws of component k, and their log densities under every one."""
        guide, seed = new_guide(AutoNormal, self.program), derived_seed(self.problem.seed, k + 1)
        with torch.no_grad():
            guide.loc.copy_(q.loc[k])
            guide.scale = q.scale[k]
            of_draws = guide.in_blocks(
                lambda noise: q.log_prob(guide.transport(noise)), self.num_draws, seed
            )
            log_q = torch.cat(list(of_draws))
        posterior = GuidePosterior(self.program, guide, self.posterior.provenance)
        log_joint = posterior.log_joint(self.pair, self.num_draws, seed)
        return log_joint.double(), log_q.double()


def _components(posterior: Posterior) -> Components:
    """The Gaussians of a posterior, detached.

    Raises:
        OptionError: If it is of another guide.
    """
    guide = posterior.guide if isinstance(posterior, GuidePosterior) else None
    if type(guide) is AutoNormal:
        zero = torch.zeros(1, device=guide.loc.device)
        return Components(guide.loc.detach()[None], guide.scale.detach()[None], log_weights=zero)
    if type(guide) is AutoNormalMixture:
        log_weights = guide.weights.double().log().clamp(min=SMALLEST_LOG_WEIGHT)
        return Components(guide.loc.detach(), guide.scale.detach(), log_weights=log_weights)
    raise OptionError(
        f"boost adds a component to a fit of AutoNormal or AutoNormalMixture, not of "
        f"{posterior.method}"
    )
