"""Where chains start: at points of finite density and gradient, drawn anew until they are found."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pyro_bnn.errors import DivergenceError
from pyro_bnn.guides import Guide
from pyro_bnn.infer.inputs import Init
from pyro_bnn.infer.own_weights import OwnWeights
from pyro_bnn.infer.starting_points import at_medians, own_start, starting_points
from pyro_bnn.infer.steps.potentials import TargetDensity
from pyro_bnn.posterior.site_posterior import SitePosterior
from pyro_bnn.program.handlers import without_validation
from pyro_bnn.program.joint import Joint
from pyro_bnn.program.program import Program
from pyro_bnn.program.random_state import isolated

FIRST_CHAIN = "The first chain"
NEAR_IT = ", the others near it, so that R-hat compares chains of one place"
OWN = 2_000  # a stream of random numbers
MAX_STARTS = 20  # tries for each chain
MORE_STARTS = 200  # of a plain model, which may be possible at few of its starts
NEAR = 0.1  # of the root mean square of a site's weights, by which chains start around them
KNOWN_DRAWS = 200  # of a Gaussian that chains start at, for their first mass matrix


def find_starts(target: TargetDensity, init: Init, num_chains: int, seed: int) -> Tensor:
    """Starting points ``[C, P]`` with finite density and gradient.

    Args:
        target: The density that the chains sample.
        init: Values to start at. Sites that it leaves out (by default all) start at draws from the
            prior, another draw for each chain. Their scales start at the medians of a few draws:
            steps from a noise scale far below its median would be too short to come back. Of the
            weights of the network itself all chains but the first start near, each site off by
            normal draws of a tenth of its root mean square.
        num_chains: Number of chains C.
        seed: Seed of the draws.

    Raises:
        DivergenceError: If a chain finds no such point in its tries; names the chain
            and the sites.
    """
    program, potential, data, batches = target
    points = program.initial.expand(num_chains, -1)
    missing = torch.ones(num_chains, dtype=torch.bool, device=points.device)
    tries = MAX_STARTS if isinstance(program, Program) else MORE_STARTS
    for attempt in range(tries):
        # the numbers that follow are other streams'
        attempt_seed = stream_seed(seed, attempt if attempt < MAX_STARTS else 1_000 + attempt)
        with isolated(attempt_seed), without_validation():
            prior = program.prior_draws(num_chains, seed=attempt_seed)
            prior = at_medians(program, prior, seed)
            candidates = _candidates(program, init, prior, seed + attempt, is_first=not attempt)
            points = torch.where(missing.unsqueeze(-1), candidates, points)
            value, grad = potential(points, *data)
        missing = ~(value.isfinite() & grad.isfinite().all(-1))
        if not bool(missing.any()):
            return points.detach()
    chain = int(missing.nonzero()[0])
    names = _not_finite(program, points[chain], batches[chain % len(batches)])
    where = "draws from the prior" if init is None else "tries around init"
    raise DivergenceError(
        f"chain {chain} found no starting point of finite density in {tries} {where}: "
        f"not finite at {', '.join(map(repr, names))}; standardise the data, or pass "
        "init=, values of the sites"
    )


def known_before(target: TargetDensity, init: Init, seed: int) -> tuple[Tensor, Tensor] | None:
    """Draws ``[n, P]`` of the Gaussian that chains start at, and the gradients of U there.

    They show the widths of the posterior before it has been sampled. Draws of a mixture would show
    the distances between its components instead, so a mixture gives None, as any other start does.
    """
    guide = getattr(init, "guide", None)
    if not isinstance(guide, Guide):
        return None
    with torch.no_grad():
        q = guide.components()
    if q is None or q.loc.ndim > 1 or q.others != "normal":
        return None
    program, potential, data, _ = target
    z = guide.sample(KNOWN_DRAWS, stream_seed(seed, MAX_STARTS + 1)).to(program.initial)
    return z, potential(z, *data)[1]


def _candidates(program: Joint, init: Init, prior: Tensor, seed: int, *, is_first: bool) -> Tensor:
    """Points ``[C, P]`` from ``init``, and from draws of the prior ``[C, P]`` for the rest."""
    if init is None:
        return prior
    if isinstance(init, SitePosterior):
        return starting_points(program, init, len(prior), seed)
    if isinstance(init, OwnWeights):
        return _around_own(program, init, prior, seed, is_first=is_first)
    return torch.cat([starting_points(program, init, 1, seed, default=row) for row in prior])


def _around_own(
    program: Joint, init: OwnWeights, prior: Tensor, seed: int, *, is_first: bool
) -> Tensor:
    """Points ``[C, P]`` at a network's own weights, at first the first chain's, and near them."""
    own, known = own_start(program, init)
    if not bool(known.any()):
        return prior
    if init.others_at_prior:
        return torch.cat([torch.where(known, own, prior[:1]), prior[1:]])
    init.tell(*((FIRST_CHAIN, NEAR_IT) if len(prior) > 1 else ("The chain",)))
    sizes = torch.zeros_like(own)
    for site in program.sites:
        entries = slice(site.start, site.stop)
        sizes[entries] = own[entries].square().mean().sqrt()
    generator = torch.Generator().manual_seed(stream_seed(seed, OWN))
    noise = torch.randn(prior.shape, generator=generator, dtype=torch.float64).to(prior)
    if is_first:
        noise[0] = 0.0
    return torch.where(known, own + NEAR * sizes * noise, prior)


def _not_finite(program: Joint, z: Tensor, args: Sequence[Any] | None) -> list[str]:
    """Names of the sites whose density or gradient is not finite at z; ``"y"`` included."""
    z = z.detach().requires_grad_()
    log_joint = program.log_joint(z, args)
    if not log_joint.isfinite():
        return program.non_finite_terms(z.detach(), args) or ["the sum over sites"]
    (grad,) = torch.autograd.grad(log_joint, z)
    return [s.name for s in program.sites if not bool(grad[s.start : s.stop].isfinite().all())]


def stream_seed(seed: int, stream: int) -> int:
    """A seed that shares no random numbers with the seed itself, nor with other streams."""
    sequence = np.random.SeedSequence(seed, spawn_key=(stream,))
    return int(sequence.generate_state(1, np.uint64)[0] >> 1) % 2**32
