"""Where a guide starts: at a trained network, at values of sites, or where a posterior is.

A posterior gives its mean and its standard deviations, and all parameters to a guide of its own
form, so that fits can go from a cheap family to a richer one: ``AutoDelta``, ``AutoNormal``,
``AutoLowRankMultivariateNormal``, and NUTS from there.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from pyro_bnn.guides import (
    AutoLowRankMultivariateNormal,
    AutoMultivariateNormal,
    Guide,
)
from pyro_bnn.guides.ensemble import AutoEnsemble
from pyro_bnn.infer.inputs import G, Init, new_guide
from pyro_bnn.infer.own_weights import OwnWeights, for_members
from pyro_bnn.infer.problem import Facts
from pyro_bnn.infer.starting_points import check_posterior, one_start, own_start, starting_points
from pyro_bnn.posterior.site_posterior import SitePosterior
from pyro_bnn.priors.from_posterior import gaussian_of
from pyro_bnn.program.handlers import Model
from pyro_bnn.program.joint import Joint

MOMENT_DRAWS = 10_000  # most draws that moments are taken of
MOMENT_NUMBERS = 1 << 26  # and most numbers in them


def start_guide(guide: Guide, program: Joint, init: Init, seed: int) -> None:
    """Start a guide, and the model's point-estimated parameters, where ``init`` says.

    A network and values of sites give the means, and the scales stay at their start; so does
    ``AutoDelta``, which has no spread. A posterior of the guide's own form gives all parameters.
    Of another one the guide takes means and standard deviations, in closed form or those of at most
    10,000 draws; ``AutoMultivariateNormal`` the whole covariance of any Gaussian, and
    ``AutoLowRankMultivariateNormal`` its strongest directions.

    Args:
        guide: The guide, set up.
        program: The model as tensor functions.
        init: Where to start; None leaves the guide as it is. The weights of the network itself
            leave a guide with an ``init_loc_fn`` where that says, and of points move the first.
        seed: Seed of the draws.

    Raises:
        OptionError: If ``init`` is of another kind, or not one point.
        SiteError: If it is of another model.
    """
    if init is None:
        return
    if isinstance(init, OwnWeights):
        _start_at_own(guide, program, init)
    elif isinstance(init, SitePosterior):
        check_posterior(program, init)
        _start_at_posterior(guide, init, seed)
    else:
        guide.move_to(starting_points(program, init, 1, seed, default=guide.centre())[0])
    guide.set_member_params(program.params)


def started(make: Callable[[Model], G], problem: Facts) -> G:
    """A new guide of a problem's model, ready for steps, where ``init`` says; see the above."""
    guide = new_guide(make, problem.joint)
    problem.joint.prepare(guide)
    start_guide(guide, problem.joint, problem.init, problem.seed)
    return guide


def starting_mean(program: Joint, init: Init, seed: int) -> Tensor:
    """Where a Gaussian that has no guide yet is centred ``[P]``.

    The centre of a guide's posterior, a draw of another one, a network, or values of sites; what
    these leave out starts as :func:`~pyro_bnn.infer.starting_points.one_start` has it.

    Args:
        program: The model as tensor functions; takes the point-estimated parameters of ``init``.
        init: Where to start.
        seed: Seed of the draw.

    Raises:
        OptionError: If ``init`` is of another kind, or not one point.
        SiteError: If it is of another model.
    """
    other = getattr(init, "guide", None)
    if isinstance(init, SitePosterior) and isinstance(other, Guide):
        check_posterior(program, init)
        return other.centre().to(program.initial)
    if isinstance(init, OwnWeights):
        init.tell("The fit")
    return starting_points(program, init, 1, seed, default=one_start(program, seed))[0]


def _start_at_own(guide: Guide, program: Joint, init: OwnWeights) -> None:
    """Start at a network's own weights, of points the first alone; not where the guide says."""
    if any(isinstance(m, Guide) and m.init_loc_fn is not None for m in guide.modules()):
        return
    z, known = own_start(program, init)
    if not bool(known.any()):
        return
    if isinstance(guide, AutoEnsemble):
        for_members(init)
        with torch.no_grad():
            guide.loc[0] = torch.where(known, z, guide.loc[0])
        return
    init.tell("The fit")
    guide.move_to(torch.where(known, z, guide.centre()))


def _start_at_posterior(guide: Guide, init: SitePosterior, seed: int) -> None:
    other = getattr(init, "guide", None)
    if isinstance(other, Guide) and guide.copy_from(other):
        return
    if isinstance(guide, AutoMultivariateNormal | AutoLowRankMultivariateNormal):
        gaussian = gaussian_of(init)
        if gaussian is not None and gaussian.scale_tril is not None:
            tril = gaussian.scale_tril.double()
            if isinstance(guide, AutoMultivariateNormal):
                guide.set_moments(gaussian.loc, tril @ tril.mT)
            else:
                guide.set_precision(gaussian.loc, torch.cholesky_inverse(tril))
            return
    mean, sds = _moments(init, seed)
    guide.move_to(mean.to(guide.centre()))
    if sds is not None and bool((sds > 0).any()):
        guide.set_sds(torch.where(sds > 0, sds, _scales(guide)))


def _moments(init: SitePosterior, seed: int) -> tuple[Tensor, Tensor | None]:
    """Mean ``[P]`` of a posterior, and its sds ``[P]`` where it has any."""
    other = getattr(init, "guide", None)
    with torch.no_grad():
        if isinstance(other, Guide) and other.noise_dim == 0:
            return other.centre(), None
        marginals = other.marginals() if isinstance(other, Guide) else None
        if marginals is not None:
            return marginals[0].detach(), marginals[1].detach()
    stored = init.num_stored_draws
    most = max(2, min(MOMENT_DRAWS, MOMENT_NUMBERS // init.program.num_latents))
    z = init.unconstrained(most if stored is None else min(stored, most), seed)
    return z.mean(0), z.std(0) if len(z) > 1 else None


def _scales(guide: Guide) -> Tensor:
    """The sds ``[P]`` that a guide has, or its smallest start where they have no closed form."""
    marginals = guide.marginals()
    if marginals is not None:
        return marginals[1].detach()
    return torch.full_like(guide.centre(), 0.01)
