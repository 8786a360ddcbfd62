r"""Step sizes of samplers, for each chain on its own: by dual averaging, or by an error's power.

.. math:: \bar H_m = \Bigl(1 - \frac1{m + t_0}\Bigr) \bar H_{m-1}
          + \frac{\delta - \alpha_m}{m + t_0}, \quad
          \log\epsilon_m = \mu - \frac{\sqrt m}{\gamma} \bar H_m, \quad
          \log\bar\epsilon_m = m^{-\kappa} \log\epsilon_m
          + (1 - m^{-\kappa}) \log\bar\epsilon_{m-1}

with acceptance rates :math:`\alpha_m`, their target :math:`\delta`, :math:`t_0 = 10` and
:math:`\kappa = 0.75`. One recursion for all chains would follow those whose trajectories end
first, which are the short and bad ones.

The paper's :math:`\gamma = 0.05` moves :math:`\log\epsilon` by several tenths at every update of a
short warm-up. Acceptance falls ever more steeply in :math:`\log\epsilon`, so that iterates that
scatter reach the target in the mean while their average lies well below the step size that does:
33 updates on a network end at 0.87 for 0.8, and trees of 1.7 times the length. Steadier ones reach
the target there, and may lose funnels: a chain that tunes in the mouth has no step for the neck.
:math:`\gamma = 0.1` is a choice between the two, not a measured optimum: on a half-Cauchy network
three of six runs with 0.2 had an R-hat above 1.05, and one of nine with 0.1, a difference that is
not beyond chance (Fisher's exact test, p = 0.24). Steadier iterates also leave :math:`\mu` more
slowly: drawn to ten times the first step size, as in the paper, a warm-up of 60 is half lost; here
to three.

Chains of one density end with one step size, but for outliers, :func:`shared`: what their own
differ by is mostly the noise of a few updates, and costs twice. Trees double, so that a step a
fifth too small can take one of twice the length, and the chains that have it finish last and alone.

Without a test of acceptance step sizes aim at an **error** :math:`E \propto \epsilon^k` and not at
a rate, and every trajectory tells by how much they miss it:

.. math:: \log\epsilon_{m+1} = -\frac1k \log\sum_{i=0}^m w_i \frac{E_i}{E^*} \epsilon_i^{-k}

with weights :math:`w_i` that sum to 1 and grow as :math:`i^3`, so that what was seen far from the
final step is forgotten. This is the recursion of BlackJAX (``mclmc_find_L_and_step_size``), which
forgets at a constant rate. Steps have to settle: after a change of the step chains are not where it
leads, and err more than they will. Dual averaging, whose iterates move by a tenth to the end, ended
at steps with a quarter to a third of the error that it was asked for.

References:
    Hoffman & Gelman, "The No-U-Turn Sampler: Adaptively Setting Path Lengths in Hamiltonian Monte
    Carlo", JMLR 2014, arXiv:1111.4246, section 3.2.1 and Algorithm 4. Robnik, De Luca, Silverstein
    & Seljak, "Microcanonical Hamiltonian Monte Carlo", JMLR 2023, arXiv:2212.08549 (steps by the
    energy error's sixth power).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

SHRINKAGE = 0.1  # gamma
PULL = 3.0  # exp(mu) over the first step size
DELAY = 10.0  # t_0
DECAY = 0.75  # kappa
CROSSING = 0.8  # acceptance of one step at a reasonable step size, as in Stan; the paper has 0.5
MAX_ROUNDS = 50
FEW = 3  # updates
APART = 1.5  # times the median of all chains, or a part of it: no step size of chance
RECENCY = 4  # weights of trajectories grow as this power of their number, less one
LEAST, MOST = 1e-8, 1e3  # error of a trajectory over the wanted one, as it counts


class DualAveraging(NamedTuple):
    """State of either recursion, ``[C]`` each.

    Attributes:
        log_step: Log of the step size to use next.
        log_average: Log of the averaged step size.
        error_sum: Weighted mean of target less acceptance; of errors, over the wanted one, brought
            to the step size exp(centre).
        num_updates: Updates so far, in the dtype of the others.
        centre: What log_step is drawn to, mu.
    """

    log_step: Tensor
    log_average: Tensor
    error_sum: Tensor
    num_updates: Tensor
    centre: Tensor


def start(step: Tensor) -> DualAveraging:
    """State before the first update, drawn to ``PULL`` times the first step sizes.

    Args:
        step: Step sizes to start from ``[C]``, > 0.
    """
    log_step, zeros = step.log(), torch.zeros_like(step)
    return DualAveraging(log_step, log_step.clone(), zeros, zeros.clone(), (PULL * step).log())


def update(
    state: DualAveraging, acceptance: Tensor, active: Tensor, target: float
) -> DualAveraging:
    """State after one more trajectory of the active chains; plain operations, for a graph.

    Args:
        state: State before it.
        acceptance: Mean acceptance probabilities of the trajectories ``[C]``; one that is not
            finite counts as 0.
        active: Chains whose trajectory ended ``[C]``, bool; the others keep their state.
        target: Acceptance rate to reach.
    """
    acceptance = torch.where(acceptance.isfinite(), acceptance, 0.0)
    num_updates = state.num_updates + 1
    weight = 1 / (num_updates + DELAY)
    error_sum = (1 - weight) * state.error_sum + weight * (target - acceptance)
    log_step = state.centre - num_updates.sqrt() / SHRINKAGE * error_sum
    weight = num_updates**-DECAY
    log_average = weight * log_step + (1 - weight) * state.log_average
    new = DualAveraging(log_step, log_average, error_sum, num_updates, state.centre)
    return _chosen(active, new, state)


def update_by_power(
    state: DualAveraging, error: Tensor, active: Tensor, wanted: float, order: int
) -> DualAveraging:
    """State after one more trajectory of the active chains, of steps by an error's power.

    The step size at the start counts as one trajectory of the wanted error, so that a first error
    that happens to be small does not make a step from which a chain does not come back.

    Args:
        state: State before it.
        error: Errors of the trajectories ``[C]``; one that is not finite counts as ``MOST``.
        active: Chains whose trajectory ended ``[C]``, bool; the others keep their state.
        wanted: Error to reach.
        order: Power k of the step size that errors grow as.
    """
    excess = torch.where(error.isfinite(), error / wanted, MOST).clamp(LEAST, MOST)
    num_updates = state.num_updates + 1
    weight = RECENCY / (num_updates + RECENCY)
    before = torch.where(state.num_updates > 0, state.error_sum, PULL**order)
    at_centre = excess * (order * (state.centre - state.log_step)).exp()
    mean = (1 - weight) * before + weight * at_centre
    log_step = state.centre - mean.log() / order
    new = DualAveraging(log_step, log_step, mean, num_updates, state.centre)
    return _chosen(active, new, state)


def _chosen(active: Tensor, new: DualAveraging, old: DualAveraging) -> DualAveraging:
    """The new state of the active chains, the old one of the others."""
    pairs = zip(new, old, strict=True)
    return DualAveraging(*(o if n is o else torch.where(active, n, o) for n, o in pairs))


def final(state: DualAveraging) -> Tensor:
    """Step sizes to keep ``[C]``: the averages.

    After fewer than ``FEW`` updates these say nothing yet: half the first step size instead, which
    :func:`reasonable` may have found just beyond what is accepted.
    """
    first = (state.centre - math.log(PULL)).exp()
    return torch.where(state.num_updates < FEW, 0.5 * first, state.log_average.exp())


def shared(state: DualAveraging, power: float = 2) -> Tensor:
    r"""Step sizes to keep of chains of one density ``[C]``: one for all, but for far smaller ones.

    It is the power mean of those within a factor ``APART`` of the median. The root mean square
    leaves their mean acceptance as it is: what is rejected grows as :math:`\epsilon^2` (Beskos et
    al., "Optimal Tuning of the Hybrid Monte Carlo Algorithm", Bernoulli 2013, Theorem 3.6). The
    power -k does so with the mean of an error that grows as :math:`\epsilon^k`. A chain that needs
    a far smaller step, in the neck of a funnel or in a steeper mode, keeps it; one that found a far
    larger one, in the mouth, takes that of the others. Chains of fewer than ``FEW`` updates have no
    say, and keep what :func:`final` gives them.

    Args:
        state: State after the last trajectory.
        power: Of the mean.
    """
    own, is_tuned = final(state), state.num_updates >= FEW
    if not bool(is_tuned.any()):
        return own
    median = own[is_tuned].median()
    is_near = is_tuned & (own >= median / APART) & (own <= median * APART)
    common = own[is_near].pow(power).mean().pow(1 / power)
    return torch.where(is_tuned & (own >= median / APART), common, own)


def reasonable(energy_error: Callable[[Tensor], Tensor], start: Tensor) -> Tensor:
    """Step sizes of the right order of magnitude: the first at which acceptance crosses 0.8.

    Each chain doubles its step while one leapfrog step is accepted more often than that, or halves
    it until one is; at most 50 times.

    Args:
        energy_error: Maps step sizes ``[C]`` to the energy after one leapfrog step less that
            before it ``[C]``; what is not finite counts as a rejection.
        start: Step sizes to start from ``[C]``, > 0.
    """
    step = start
    grows = _is_accepted(energy_error(step))
    moves = torch.ones_like(grows)
    for _ in range(MAX_ROUNDS):
        step = torch.where(moves, torch.where(grows, 2 * step, 0.5 * step), step)
        moves = moves & (_is_accepted(energy_error(step)) == grows)
        if not bool(moves.any()):
            break
    return step


def _is_accepted(energy_error: Tensor) -> Tensor:
    """Whether the acceptance probability exceeds the crossing ``[C]``."""
    return energy_error.isfinite() & (energy_error < -math.log(CROSSING))
