r"""A run of chains in lockstep: warm-up in windows, then the draws that are kept.

**Warm-up.** The mass matrix is estimated in windows from the draws of all chains, so a few draws of
each are enough. A window ends when the chains together have made their draws: slow ones, far out,
need not make theirs. Then all trajectories start over under the new matrix. In the last window
every chain tunes its step size under the final matrix for a number of draws of its own, fixes it,
and starts to keep what it draws: how many draws a chain keeps does not depend on its speed.
"""

from __future__ import annotations

import time
from typing import Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pyro_bnn.infer import mass as masses
from pyro_bnn.infer.lockstep import Lockstep
from pyro_bnn.infer.mass import Mass
from pyro_bnn.infer.progress import Progress
from pyro_bnn.infer.store import DrawStore

FIRST_WINDOW = 10  # draws a chain; each further window is this much longer
LAST_WINDOW = 50  # for the final step size, and at most a third of all
SHORT = 64  # points of trajectories under the first mass matrix
RANK = 10  # of the low-rank part of a mass matrix
WINDOW_BYTES = 1 << 28  # of draws that a mass matrix is estimated from
LEAST_ROWS = 5  # of a chain, whatever they take
MOST_IDLE = 0.25  # of the chains are done before the batch shrinks to the others

MassMatrix = Literal["diagonal", "low_rank"]


class Sampled(NamedTuple):
    """Draws z ``[C, S, P]``, their statistics ``[C, S, len(STATISTICS) + 1]``, seconds by phase.

    The last statistic is the step size.
    """

    z: Tensor
    stats: NDArray[np.float64]
    phases: dict[str, float]


def first_mass(grad: Tensor, kind: MassMatrix, *, each: bool = False) -> Mass:
    """Mass matrix by the gradients at the starts ``[C, P]``.

    Args:
        grad: The gradients.
        kind: Of the matrix.
        each: Whether each chain has a matrix of its own, which is diagonal.
    """
    mass = masses.from_gradients(grad, each=each)
    return mass.padded(RANK) if kind == "low_rank" and not each else mass


def sample(
    chains: Lockstep,
    *,
    warmup_steps: int,
    num_samples: int,
    limit: int,
    progress: Progress,
) -> Sampled:
    """Warm up and sample.

    Args:
        chains: All chains, at their starts.
        warmup_steps: Draws of a chain that adapt and are dropped, on average over the chains.
        num_samples: Draws S of each chain that are kept.
        limit: Length of trajectories, as the kernel counts.
        progress: The bar.
    """
    began = time.perf_counter()
    *windows, last = windows_of(warmup_steps)
    chains.restart(chains.mass, limit=min(limit, SHORT) if windows else limit)
    for length in windows:
        chains.restart(_learn(chains, length, progress), limit=limit)
    result, warmed = _keep(chains, last, num_samples, progress)
    ended = time.perf_counter()
    return result._replace(phases={"warm-up": warmed - began, "sampling": ended - warmed})


def _learn(chains: Lockstep, length: int, progress: Progress) -> Mass:
    """Draw until the chains together have ``length`` draws a chain; a mass matrix from these."""
    num_chains, num_latents = len(chains.chains), chains.mass.scale.shape[-1]
    wanted = num_chains * length
    num_bytes = 2 * wanted * num_latents * chains.mass.scale.element_size()
    every = min(-(-num_bytes // WINDOW_BYTES), max(1, length // LEAST_ROWS))
    rows: list[tuple[Tensor, Tensor, Tensor]] = []
    num_drawn = np.zeros(num_chains, np.int64)
    while num_drawn.sum() < wanted:
        drew = chains.step()
        if len(drew):
            taken = drew[num_drawn[drew] % every == 0]
            if len(taken):
                rows.append((*chains.draws(taken), torch.from_numpy(taken)))
            num_drawn[drew] += 1
            _show(chains, drew, progress)
    z, grad, places = (torch.cat(values) for values in zip(*rows, strict=True))
    places = places.to(z.device)
    if chains.mass.basis is not None:
        return masses.low_rank(z, grad, chains.mass, places, rank=RANK)
    return masses.diagonal(z, grad, chains.mass, places)


def _keep(
    chains: Lockstep, last: int, num_samples: int, progress: Progress
) -> tuple[Sampled, float]:
    """Tune each chain's step size for its ``last`` draws, then keep its draws.

    Returns:
        The draws, and when the last chain began to keep its own.
    """
    num_chains, like = len(chains.chains), chains.mass.scale
    store = DrawStore(num_chains, num_samples, like.shape[-1], like.dtype, device=like.device)
    stats: list[list[NDArray[np.float64]]] = [[] for _ in range(num_chains)]
    left = np.full(num_chains, last + num_samples)  # draws of the chain at each place
    warmed = time.perf_counter()
    if last == 0:
        chains.fix(chains.chains)
    tuning = num_chains if last else 0  # chains that still do
    while left.any():
        drew = chains.step()
        drew = drew[left[drew] > 0]
        if not len(drew):
            continue
        rows = _show(chains, drew, progress)
        is_kept = left[drew] <= num_samples
        if is_kept.any():
            kept = drew[is_kept]
            numbers = chains.chains[kept]
            store.append(torch.from_numpy(numbers), chains.draws(kept)[0])
            for chain, row in zip(numbers, rows[is_kept], strict=True):
                stats[chain].append(row)
        left[drew] -= 1
        if tuning:
            warm = drew[left[drew] == num_samples]
            chains.fix(warm)
            tuning -= len(warm)
            if not tuning:
                warmed = time.perf_counter()
                progress.start_over()
        left = _shrink(chains, left)
    progress.complete()
    return Sampled(store.draws, np.array(stats), {}), warmed


def _shrink(chains: Lockstep, left: NDArray[np.int64]) -> NDArray[np.int64]:
    """Drop chains that are done where they are many; two stay, as one alone has another graph."""
    num_busy = np.count_nonzero(left)
    if len(left) <= 2 or not num_busy or num_busy >= (1 - MOST_IDLE) * len(left):
        return left
    places = np.sort(np.argsort(left == 0, kind="stable")[: max(2, num_busy)])
    if not chains.serves(len(places)):
        return left
    chains.keep(places)
    return left[places]


def _show(chains: Lockstep, drew: NDArray[np.int64], progress: Progress) -> NDArray[np.float64]:
    """Statistics of the latest draws ``[K, ...]``, told to the progress bar."""
    stats = chains.stats(drew)
    progress.add(
        chains.chains[drew],
        stats[:, chains.column("acceptance_rate")],
        stats[:, chains.column("diverging")] > 0,
        stats[:, -1],
    )
    return stats


def windows_of(warmup_steps: int) -> list[int]:
    """Lengths of the windows of a warm-up, in draws a chain; the last tunes the step size alone.

    Each window before it is ``FIRST_WINDOW`` draws longer than the one before, and a rest too short
    for one goes to the last of them. The last window has a third of all draws, at most
    ``LAST_WINDOW``.

    Example:
        >>> windows_of(90), windows_of(300)
        ([10, 20, 30, 30], [10, 20, 30, 40, 50, 100, 50])
    """
    last = min(LAST_WINDOW, (warmup_steps + 2) // 3)
    left = warmup_steps - last
    lengths: list[int] = []
    while left >= FIRST_WINDOW * (len(lengths) + 1):
        lengths.append(FIRST_WINDOW * (len(lengths) + 1))
        left -= lengths[-1]
    if lengths:
        lengths[-1] += left
    else:
        last += left
    return [*lengths, last]
