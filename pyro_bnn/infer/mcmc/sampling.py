r"""A run of chains in lockstep: warm-up in windows, then the draws that are kept.

**Warm-up.** The mass matrix is estimated in windows from the draws of all chains, so a few draws of
each are enough. A window ends when the chains together have made their draws: slow ones, far out,
need not make theirs. Then all trajectories start over under the new matrix. That of ten draws is a
poor one, under which a draw of NUTS may take a thousand steps: trajectories of the first window
have at most 64 points, and twice as many in each that follows. In the last window every chain tunes
its step size under the final matrix for a number of draws of its own, takes that which the chains
share, and starts to keep what it draws: how many draws a chain keeps does not depend on its speed.

Where the length of trajectories is looked for, every window but the first and the last tries a few
(:mod:`~pyro_bnn.infer.mcmc.length_search`), and the last one has the best of the window before.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping
from contextlib import AbstractContextManager, closing
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pyro_bnn.errors import FileFormatError
from pyro_bnn.infer.call_problem import CallProblem
from pyro_bnn.infer.checkpoints.checkpoint import Checkpoint, State
from pyro_bnn.infer.mcmc import mass as masses
from pyro_bnn.infer.mcmc.chains import BLOCK_APART, MOST_STEPS
from pyro_bnn.infer.mcmc.length_search import LengthSearch
from pyro_bnn.infer.mcmc.lockstep import BlockDraws, Lockstep
from pyro_bnn.infer.mcmc.mass import Mass
from pyro_bnn.infer.mcmc.progress import Progress
from pyro_bnn.infer.mcmc.windows import RANK, Window, windows_of
from pyro_bnn.infer.problem import Problem
from pyro_bnn.infer.run import Run
from pyro_bnn.infer.steps.store import DrawStore, turns_of
from pyro_bnn.infer.steps.threads import one_thread
from pyro_bnn.posterior.call_posterior import CallDraws
from pyro_bnn.posterior.draws_posterior import DrawsPosterior

SHORT = 64  # points of trajectories in the first window, twice as many in each that follows
MOST_IDLE = 0.25  # of the chains are done before the batch shrinks to the others
MOST_IDLE_APART = 0.125
DTYPES: dict[str, type[np.generic]] = {
    "tree_depth": np.int64,
    "n_steps": np.int64,
    "n_gradients": np.int64,
    "diverging": np.bool_,
}

MassMatrix = Literal["diagonal", "low_rank"]


class Sampled(NamedTuple):
    """Draws z ``[C, S, P]``, their statistics ``[C, S, len(columns)]``, seconds by phase."""

    z: Tensor
    stats: NDArray[np.float64]
    phases: dict[str, float]


def first_mass(
    grad: Tensor,
    kind: MassMatrix,
    *,
    each: bool = False,
    known: tuple[Tensor, Tensor] | None = None,
) -> Mass:
    """Mass matrix by the gradients at the starts ``[C, P]``, or by draws that are known before.

    Args:
        grad: The gradients.
        kind: Of the matrix.
        each: Whether each chain has a matrix of its own, which is diagonal.
        known: Draws of an approximation ``[n, P]`` and the gradients there, with one matrix for
            all chains.
    """
    mass = masses.from_gradients(grad, each=each)
    if kind == "low_rank" and not each:
        mass = mass.padded(RANK)
    if known is None:
        return mass
    z, slopes = known
    return masses.of_draws(z, slopes, mass, torch.zeros(len(z), dtype=torch.long, device=z.device))


class Sampling(Run[DrawsPosterior]):
    """A run of chains: warm-up and draws, one step of all chains at a time.

    Args:
        chains: All chains, at their starts.
        warmup_steps: Draws of a chain that adapt and are dropped, on average over the chains.
        num_samples: Draws S of each chain that are kept.
        limit: Length of trajectories, as the kernel counts.
        progress: The bar.
        search: Finds another length; None to keep that.
        last: Fields of the kernel's state and their values from the last window on.
        stretch: How many times the length that was found trajectories have from there on.
        path: File for the draws of a run that others go on with; see
            :class:`~pyro_bnn.infer.steps.store.DrawStore`.
        phases: Seconds of the phases before.
        options: Of the engine, for the provenance.
    """

    def __init__(
        self,
        chains: Lockstep,
        *,
        warmup_steps: int,
        num_samples: int,
        limit: int,
        progress: Progress,
        search: LengthSearch | None = None,
        last: Mapping[str, float] | None = None,
        stretch: int = 1,
        path: Path | None = None,
        phases: Mapping[str, float] | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        self._options = dict(options or {})
        self._chains, self._progress = chains, progress
        self._num_samples, self._limit, self._path = num_samples, limit, path
        self._search, self._last, self._stretch = search, dict(last or {}), stretch
        self._windows = windows_of(warmup_steps)
        self._enter(0)
        num_chains = len(chains.chains)
        self._left = np.full(num_chains, self._windows[-1] + num_samples)  # at each place
        self._stats = np.zeros((num_chains, num_samples, len(chains.columns)))
        self._store: DrawStore | None = None
        self._phases = dict(phases or {})
        self._began = self._warmed = time.perf_counter()
        self._ended: float | None = None

    @property
    def is_done(self) -> bool:
        """Whether all draws are there."""
        return not self._left.any()

    @property
    def num_common(self) -> int:
        """How many draws every chain has kept."""
        return 0 if self._store is None else int(self._store.counts.min())

    def begin(self) -> None:
        """Start all chains; in place of :meth:`restore`."""
        self._began = time.perf_counter()
        self._store = self._open(None)
        with self._threads():
            self._restart(self._chains.mass)
            if self._windows == [0]:
                self._fix(self._chains.chains)
        self._warmed = time.perf_counter()

    def go(self) -> None:
        """Move all chains, and do what the draws that they made ask for."""
        with self._threads():
            self._move()

    def to_the_end(self) -> Sampled:
        """Warm up and sample, in one go."""
        self.begin()
        while not self.is_done:
            self.go()
        return self.result()

    def result(self) -> Sampled:
        """The draws that every chain has, all S of a run that is done; with its phases so far."""
        assert self._store is not None
        most, (warm_up, sampling) = self.num_common, self._seconds()
        return Sampled(
            self._store.draws[:, :most],
            self._stats[:, :most],
            {**self._phases, "warm-up": warm_up, "sampling": sampling},
        )

    @property
    def sample_stats(self) -> dict[str, NDArray[Any]]:
        """Statistics ``[C, S]`` of the draws that every chain has, by ArviZ's names."""
        return {
            name: self._stats[:, : self.num_common, i].astype(DTYPES.get(name, np.float64))
            for i, name in enumerate(self._chains.columns)
        }

    def posterior(  # type: ignore[override]  # of a Call, draws of its sites
        self, problem: Problem | CallProblem, saves: Checkpoint
    ) -> DrawsPosterior | CallDraws | None:
        """The draws that every chain has, with the statistics of each in ``sample_stats``."""
        if not self.num_common:
            return None
        result = self.result()
        options = {**self._options, "compiled": "compile" in result.phases}
        provenance = problem.provenance(
            saves,
            method=problem.engine,
            options=options if self.is_done else {**options, "interrupted": True},
            num_parameters=problem.joint.num_latents,
            phases=result.phases,
        )
        return problem.draws_posterior(result.z, provenance, self.sample_stats)

    def bar(self, *, show: bool) -> AbstractContextManager[Any]:  # noqa: ARG002
        """The bar, which was made before the run."""
        return closing(self._progress)

    def reached(self) -> tuple[int, float | None]:
        """Draws of the slowest chain, warm-up included."""
        return self._progress.num_drawn, None

    def show(self, bar: Any) -> None:
        """Nothing: the bar is told of each draw."""

    # Between two steps

    def state(self) -> State:
        """All that the rest of the run depends on; of draws in their file the number of each chain.

        Raises:
            OutputError: If draws cannot be written to their file.
        """
        assert self._store is not None
        store = self._store.state()
        most = int(store["counts"].max())
        warm_up, sampling = self._seconds()
        return {
            "place": self._place(),
            "compile_path": self._chains.compile_path,
            "chains": self._chains.state(),
            "window": self._number,
            "drawn": None if self._window is None else self._window.state(),
            "search": None if self._search is None else self._search.state(),
            "left": torch.from_numpy(self._left),
            "store": store,
            "stats": torch.from_numpy(self._stats[:, :most]),
            "progress": self._progress.state(),
            "phases": dict(self._phases),
            "warm_up": warm_up,
            "sampling": sampling,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from a state of a run with the same options; in place of :meth:`begin`.

        Raises:
            FileFormatError: If the state is of another run, or the file of draws is not its own.
        """
        stats, left = state["stats"].numpy(), state["left"].numpy()
        self._store = self._open(state["store"])
        self._chains.restore(state["chains"])
        most = int(self._store.counts.max())
        fits = stats.shape == self._stats[:, :most].shape and self._fits(left)
        if not fits or not 0 <= state["window"] < len(self._windows):
            raise FileFormatError("the state is of a run with other chains or other windows")
        self._stats[:, :most] = stats
        self._left = left.astype(np.int64, casting="same_kind")
        self._enter(state["window"])
        if self._window is not None:
            self._window.restore(state["drawn"])
        if self._search is not None:
            self._search.restore(state["search"])
        self._progress.restore(state["progress"])
        for name, seconds in state["phases"].items():
            self._phases[str(name)] = self._phases.get(name, 0.0) + float(seconds)
        now = time.perf_counter()
        self._warmed = now - float(state["sampling"])
        self._began = self._warmed - float(state["warm_up"])
        self._ended = now if self.is_done else None

    def _fits(self, left: NDArray[Any]) -> bool:
        """Whether so many draws are left at each place, and chains that have no place are done."""
        assert self._store is not None
        most, num_samples = self._windows[-1] + self._num_samples, self._num_samples
        if left.shape != self._chains.chains.shape or not ((left >= 0) & (left <= most)).all():
            return False
        kept = np.full(len(self._store.counts), num_samples)
        kept[self._chains.chains] = num_samples - np.minimum(left, num_samples)
        return np.array_equal(kept, self._store.counts.numpy())

    def _place(self) -> str:
        if self._is_tuning:
            return f"window {self._number + 1} of {len(self._windows)} of the warm-up"
        return f"draw {self.num_common} of {self._stats.shape[1]} of the slowest chain"

    def _seconds(self) -> tuple[float, float]:
        """Of warm-up and of sampling, so far."""
        now = time.perf_counter() if self._ended is None else self._ended
        warmed = now if self._is_tuning else self._warmed
        return warmed - self._began, now - warmed

    def _open(self, saved: Mapping[str, Any] | None) -> DrawStore:
        like, (num_chains, num_samples, _) = self._chains.mass.scale, self._stats.shape
        shape, where = (num_chains, num_samples, like.shape[-1]), like.device
        return DrawStore(*shape, like.dtype, device=where, path=self._path, saved=saved)

    def _enter(self, number: int) -> None:
        """Begin a window; in the last one, of which there is no mass matrix, the draws are kept."""
        self._number = number
        num_chains, scale = len(self._chains.chains), self._chains.mass.scale
        window = Window(num_chains, self._windows[number], scale.reshape(-1, scale.shape[-1])[0])
        self._window = window if number < len(self._windows) - 1 else None

    def _threads(self) -> AbstractContextManager[None]:
        return one_thread() if self._chains.is_apart else contextlib.nullcontext()

    def _move(self) -> None:
        chains = self._chains
        is_settled = self._window is None and not self._is_tuning
        at_once = MOST_STEPS if is_settled else BLOCK_APART if chains.is_apart else 1
        drawn = chains.steps(at_once)
        if not len(drawn.places):
            return
        if self._window is not None:
            self._learn(drawn, self._window)
        elif is_settled:
            self._keep(drawn.places, drawn.z, drawn.stats)
        else:
            self._tune(drawn)

    def _learn(self, drawn: BlockDraws, window: Window) -> None:
        """Take in draws until the chains together have theirs; then start over with their mass."""
        chains, search = self._chains, self._search if self._number else None
        window.add(drawn)
        if search is not None:
            num_steps, diverging = (
                self._column(name, drawn.stats) for name in ("n_steps", "diverging")
            )
            search.add(drawn.places, drawn.z, chains.mass, num_steps, diverging > 0)
            chains.lengthen(search.next())
        self._tell(drawn.places, drawn.stats)
        if window.is_over:
            if search is not None:
                search.end_window()
            self._enter(self._number + 1)
            self._restart(window.mass(chains.mass))
            self._warmed = time.perf_counter()

    def _restart(self, mass: Mass) -> None:
        """Start all trajectories over, in the last window as they are to be in the sampling."""
        length = self._limit if self._search is None else self._search.steps
        if self._window is not None:
            length = min(length, SHORT << self._number)
        elif self._search is not None:
            length = min(self._stretch * length, self._limit)
        self._chains.restart(mass, limit=length)
        if self._window is None:
            self._chains.write(**self._last)

    def _fix(self, places: NDArray[np.int64]) -> None:
        """End the adaptation of some step sizes; chains that then begin anew go on as they were."""
        self._chains.fix(places)
        self._chains.write(**self._last)

    @property
    def _is_tuning(self) -> bool:
        """Whether a chain does not keep its draws yet."""
        return bool((self._left > self._num_samples).any())

    def _tune(self, drawn: BlockDraws) -> None:
        """In the last window a chain's first draws tune its step size; the others are kept.

        Those that a block holds beyond the last one that tunes have a step size that still changed,
        and are dropped.
        """
        places = drawn.places
        is_tuned = self._left[places] <= self._num_samples
        tunes = self._left[places] - turns_of(places) > self._num_samples
        if tunes.any():
            self._tell(places[tunes], drawn.stats[tunes])
            np.subtract.at(self._left, places[tunes], 1)
            tuning = np.unique(places[tunes])
            warm = tuning[self._left[tuning] == self._num_samples]
            if len(warm):
                self._fix(warm)
                if not self._is_tuning:
                    self._warmed = time.perf_counter()
                    self._progress.start_over()
        if is_tuned.any():
            self._keep(places[is_tuned], drawn.z[torch.from_numpy(is_tuned)], drawn.stats[is_tuned])

    def _keep(self, places: NDArray[np.int64], z: Tensor, stats: NDArray[np.float64]) -> None:
        """Keep draws ``[K, P]`` of chains at ascending places, but for what they made too many."""
        assert self._store is not None
        turns = turns_of(places)
        is_kept = turns < self._left[places]
        if not is_kept.all():
            places, z, stats = places[is_kept], z[torch.from_numpy(is_kept)], stats[is_kept]
            turns = turns[is_kept]
        if not len(places):
            return
        numbers = self._chains.chains[places]
        self._stats[numbers, self._store.counts.numpy()[numbers] + turns] = stats
        self._store.append(torch.from_numpy(numbers), z)
        np.subtract.at(self._left, places, 1)
        self._tell(places, stats)
        self._shrink()
        if self.is_done:
            self._ended = time.perf_counter()
            self._progress.complete()

    def _shrink(self) -> None:
        """Drop chains that are done where they are many; of a batch two stay.

        One alone has another graph. Of chains apart each costs as much as another.
        """
        chains, left = self._chains, self._left
        num_busy = np.count_nonzero(left)
        least, most_idle = (1, MOST_IDLE_APART) if chains.is_apart else (2, MOST_IDLE)
        if len(left) <= least or not num_busy or num_busy >= (1 - most_idle) * len(left):
            return
        places = np.sort(np.argsort(left == 0, kind="stable")[: max(least, num_busy)])
        if chains.serves(len(places)):
            chains.keep(places)
            self._left = left[places]

    def _tell(self, places: NDArray[np.int64], stats: NDArray[np.float64]) -> None:
        """Tell the bar of draws of chains at places, by their statistics."""
        aim, diverging, step_size = (
            self._column(name, stats) for name in (self._chains.aim, "diverging", "step_size")
        )
        self._progress.add(self._chains.chains[places], aim, diverging > 0, step_size)

    def _column(self, name: str, stats: NDArray[np.float64]) -> NDArray[np.float64]:
        return stats[:, self._chains.columns.index(name)]
