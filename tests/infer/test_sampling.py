"""A run of chains, on chains of a clock: what is kept, of whom, and when a window ends."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from pyro_bnn.infer.mcmc import hmc_kernel, nuts_kernel, sampling, windows
from pyro_bnn.infer.mcmc import mass as mass_matrices
from pyro_bnn.infer.mcmc.chains import in_lockstep
from pyro_bnn.infer.mcmc.kernel import Kernel
from pyro_bnn.infer.mcmc.lockstep import BlockDraws, Energy, Graphs, Lockstep
from pyro_bnn.infer.mcmc.mass import Mass
from pyro_bnn.infer.mcmc.progress import Progress
from pyro_bnn.infer.mcmc.sampling import Sampled, Sampling, first_mass
from pyro_bnn.infer.mcmc.windows import RANK, windows_of
from tests.infer.scores import moment_scores

Places: TypeAlias = NDArray[np.int64]

# --- windows -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("warmup_steps", "lengths"),
    [
        (0, [0]),
        (1, [1]),
        (14, [14]),  # 5 for the step size leave 9, too few for a window
        (15, [10, 5]),
        (45, [10, 20, 15]),
        (90, [10, 20, 30, 30]),
        (300, [10, 20, 30, 40, 50, 100, 50]),
    ],
)
def test_windows(warmup_steps: int, lengths: list[int]) -> None:
    assert windows_of(warmup_steps) == lengths


def test_windows_of_any_warm_up() -> None:
    """They add up; each is longer by 10 but the last before the step size, which is no shorter."""
    for warmup_steps in range(700):
        *lengths, last = windows_of(warmup_steps)
        assert sum(lengths) + last == warmup_steps
        assert lengths[:-1] == [10 * (i + 1) for i in range(len(lengths) - 1)]
        if lengths:
            assert 10 * len(lengths) <= lengths[-1] <= 20 * len(lengths) + 10
            assert last == min(50, -(-warmup_steps // 3))


# --- chains of a clock ---------------------------------------------------------------------------


class Clock:
    """Stands for ``Lockstep``: chain c draws at every ``periods[c]``-th step.

    Its n-th draw, from 1, is z = (c, n). Calls are written down.
    """

    def __init__(
        self,
        periods: Sequence[int],
        *,
        can_shrink: bool = True,
        block: int = 1,
        is_apart: bool = False,
    ) -> None:
        self.periods, self._can_shrink = np.array(periods), can_shrink
        self.chains = np.arange(len(periods))
        self.mass = Mass(torch.ones(2))
        self.time = 0
        self.counts = np.zeros(len(periods), np.int64)
        self.fixed: dict[int, int] = {}  # draws of each chain when its step size was fixed
        self.restarts: list[tuple[int, list[int], Mass]] = []  # limit, draws of each, mass
        self.batches = [len(periods)]
        self.block, self.is_apart = block, is_apart
        self.columns = ("acceptance_rate", "diverging", "lp", "step_size")
        self.aim = "acceptance_rate"
        self.written: list[tuple[list[int], dict[str, float]]] = []  # draws of each, fields
        self.lengths: list[int] = []

    def lengthen(self, limit: int) -> None:
        self.lengths.append(limit)

    def write(self, **values: float) -> None:
        self.written.append((self.counts.tolist(), values))

    def restart(self, mass: Mass, *, limit: int) -> None:
        self.restarts.append((limit, self.counts.tolist(), mass))

    def fix(self, places: Places) -> None:
        for chain in self.chains[places].tolist():
            assert chain not in self.fixed
            self.fixed[chain] = int(self.counts[chain])

    def serves(self, num_chains: int) -> bool:
        return self._can_shrink and num_chains > 1

    def keep(self, places: Places) -> None:
        self.chains = self.chains[places]
        self.batches.append(len(places))

    def _step(self) -> Places:
        self.time += 1
        drew = np.flatnonzero(self.time % self.periods[self.chains] == 0)
        self.counts[self.chains[drew]] += 1
        return drew

    def steps(self, num_steps: int) -> BlockDraws:
        drew = []
        for _ in range(min(num_steps, self.block)):
            drew += [(place, self.time, *self.latest(place)) for place in self._step()]
        drew.sort(key=lambda drawn: drawn[:2])
        places, _, z, stats = zip(*drew, strict=True) if drew else ([], [], [], [])
        draws, empty = torch.cat([torch.zeros(0, 2), *z]), np.zeros((0, 4))
        return BlockDraws(
            np.array(places, np.int64), draws, np.concatenate([empty, *stats]), 4 * draws
        )

    def latest(self, place: np.int64) -> tuple[Tensor, NDArray[np.float64]]:
        chain = self.chains[[place]]
        count = self.counts[chain]
        z = torch.from_numpy(np.stack([chain, count], -1)).float()
        columns = [0.5 + 0 * count, count % 2, 1000 * chain + count, 1 + chain]
        return z, np.stack(columns, -1).astype(np.float64)


class Bar(Progress):
    """A hidden bar that counts."""

    def __init__(self, num_chains: int) -> None:
        self.drawn, self.starts = np.zeros(num_chains, np.int64), 0
        super().__init__("Clock", num_chains, 1, show=False)

    def start_over(self) -> None:
        super().start_over()
        self.starts += 1  # the first is its own

    def add(self, chains: Any, acceptance: Any, diverging: Any, step_size: Any) -> None:
        super().add(chains, acceptance, diverging, step_size)
        np.add.at(self.drawn, chains, 1)
        assert (acceptance == 0.5).all()
        assert diverging.dtype == bool
        np.testing.assert_array_equal(step_size, 1 + chains)


def run_clock(
    periods: Sequence[int],
    warmup_steps: int,
    num_samples: int,
    *,
    can_shrink: bool = True,
    block: int = 1,
    is_apart: bool = False,
) -> Any:
    clock = Clock(periods, can_shrink=can_shrink, block=block, is_apart=is_apart)
    bar = Bar(len(periods))
    chains: Any = clock
    run = Sampling(
        chains,
        warmup_steps=warmup_steps,
        num_samples=num_samples,
        limit=1024,
        progress=bar,
    )
    return clock, run.to_the_end(), bar


SPEEDS = [1, 3, 2, 20, 5, 1, 1, 7]
BLOCKS = pytest.mark.parametrize("block", [1, 6])  # steps between two looks at tuned chains


@BLOCKS
@pytest.mark.parametrize("warmup_steps", [0, 2, 14])
def test_a_chain_keeps_its_draws_after_its_own_warm_up_whatever_its_speed(
    warmup_steps: int, block: int
) -> None:
    """With one window each chain drops that many draws of its own and keeps the next."""
    clock, result, bar = run_clock(SPEEDS, warmup_steps, 9, block=block)
    for chain in range(8):
        expected = warmup_steps + 1 + torch.arange(9)
        assert (result.z[chain, :, 0] == chain).all()
        torch.testing.assert_close(result.z[chain, :, 1], expected.float(), rtol=0, atol=0)
        assert clock.fixed[chain] == warmup_steps
    assert (bar.drawn == warmup_steps + 9).all()  # what a chain draws beyond is not shown
    assert bar.starts == (2 if warmup_steps else 1)


def test_apart_what_a_block_holds_beyond_the_last_draw_that_tunes_is_dropped() -> None:
    """Step sizes change up to the end of the block: at times 7, 14, ... with the 4th draw before.

    So the first that a chain of period p keeps is that after 7 ceil(4 p / 7) steps.
    """
    clock, result, bar = run_clock(SPEEDS, 4, 9, block=7, is_apart=True)
    for chain, period in enumerate(SPEEDS):
        tuned = 7 * -(-4 * period // 7) // period
        expected = tuned + 1 + torch.arange(9)
        torch.testing.assert_close(result.z[chain, :, 1], expected.float(), rtol=0, atol=0)
        assert clock.fixed[chain] == tuned
    assert (bar.drawn == 4 + 9).all()


def test_apart_a_window_takes_all_draws_of_its_last_block() -> None:
    clock, result, _ = run_clock([1, 2, 7], 15, 3, block=7, is_apart=True)
    _, (_, counts, mass) = clock.restarts
    assert counts == [21, 10, 3]  # three blocks: 22 after two, 30 wanted
    torch.testing.assert_close(mass.scale, torch.tensor([1.0, 0.5]))
    assert clock.fixed == {0: 28, 1: 17, 2: 8}  # five draws of its own after that
    assert result.z[:, 0, 1].tolist() == [29, 18, 9]


@BLOCKS
def test_statistics_belong_to_their_draws_and_end_with_the_step_size(block: int) -> None:
    _, result, _ = run_clock(SPEEDS, 4, 6, block=block)
    assert result.stats.shape == (8, 6, 4)
    chain, draw = result.z.double().numpy().transpose(2, 0, 1)
    np.testing.assert_array_equal(result.stats[..., 1], draw % 2)
    np.testing.assert_array_equal(result.stats[..., 2], 1000 * chain + draw)
    np.testing.assert_array_equal(result.stats[..., 3], 1 + chain)


def test_a_window_ends_when_the_chains_together_have_its_draws() -> None:
    """Two fast chains of four, the others a hundred times slower, are waited for in no window."""
    clock, result, _ = run_clock([1, 1, 100, 100], 45, 3)
    assert windows_of(45) == [10, 20, 15]
    first, second, third = clock.restarts
    assert first[:2] == (sampling.SHORT, [0, 0, 0, 0])  # short trajectories at first
    assert second[:2] == (2 * sampling.SHORT, [20, 20, 0, 0])  # 4 * 10 draws
    assert third[0] == 1024
    assert third[1] == [60, 60, 0, 0]  # 4 * 20 more
    assert clock.fixed == {0: 75, 1: 75, 2: 15, 3: 15}  # 15 draws of its own under the last matrix
    torch.testing.assert_close(result.z[0, :, 1], torch.tensor([76.0, 77, 78]), rtol=0, atol=0)
    torch.testing.assert_close(result.z[2, :, 1], torch.tensor([16.0, 17, 18]), rtol=0, atol=0)


def test_the_longest_trajectory_doubles_from_window_to_window_and_is_as_given_in_the_last() -> None:
    limits = [limit for limit, _, _ in run_clock([1, 1], 300, 3)[0].restarts]
    assert windows_of(300) == [10, 20, 30, 40, 50, 100, 50]
    assert limits == [64, 128, 256, 512, 1024, 1024, 1024]
    assert [limit for limit, _, _ in run_clock([1, 1], 20, 3)[0].restarts] == [64, 1024]


def test_windows_without_a_mass_matrix_start_at_full_length() -> None:
    clock, _, _ = run_clock([1, 2], 4, 3)
    ((limit, counts, mass),) = clock.restarts
    assert (limit, counts, mass) == (1024, [0, 0], clock.mass)


def test_the_mass_matrix_is_that_of_draws_and_gradients_of_the_window() -> None:
    """Gradients are 4 z: scales are sqrt(1 / 4) where chains moved, and stay where none did."""
    clock, _, _ = run_clock([1, 1], 15, 3)
    _, (_, _, mass) = clock.restarts
    torch.testing.assert_close(mass.scale, torch.tensor([1.0, 0.5]))


def test_a_window_beyond_its_bound_is_estimated_from_some_of_its_draws(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sizes = []

    def diagonal(z: Tensor, grad: Tensor, previous: Mass, chains: Tensor) -> Mass:
        assert len(z) == len(grad) == len(chains)
        sizes.append(len(z))
        return previous

    monkeypatch.setattr(mass_matrices, "diagonal", diagonal)
    run_clock([1, 1, 1], 15, 2)
    monkeypatch.setattr(windows, "WINDOW_BYTES", 240)  # of 3 * 10 draws of 2 * 2 floats: 480
    run_clock([1, 1, 1], 15, 2)
    monkeypatch.setattr(windows, "WINDOW_BYTES", 1)
    run_clock([1, 1, 1], 15, 2)
    assert sizes == [30, 15, 3 * windows.LEAST_ROWS]


def test_draws_of_a_window_go_back_to_the_device_and_their_places_to_the_cpu() -> None:
    """As those of later draws, with which they are joined."""
    z = torch.ones(3, 2)
    state = {"num_drawn": torch.tensor([2, 1]), "rows": [z, z, torch.tensor([0, 1, 0])]}
    window = windows.Window(2, 5, torch.empty(2, device="meta"))
    window.restore(state)
    ((draws, gradients, places),) = window._rows
    assert (draws.device.type, gradients.device.type, places.device.type) == ("meta", "meta", "cpu")
    window.restore({"num_drawn": torch.zeros(2, dtype=torch.int64), "rows": []})
    assert window._rows == []


@BLOCKS
def test_the_batch_shrinks_to_chains_that_are_not_done_and_never_to_one(block: int) -> None:
    clock, result, _ = run_clock([1, 1, 2, 3, 10, 20, 30, 400], 0, 4, block=block)
    assert clock.batches == sorted(clock.batches, reverse=True)
    assert len(clock.batches) > 2
    assert clock.batches[-1] == 2
    assert 7 in clock.chains
    for before, after in zip(clock.batches, clock.batches[1:], strict=False):
        assert after <= 0.75 * before
    torch.testing.assert_close(
        result.z[..., 1], torch.arange(1.0, 5.0).expand(8, -1), rtol=0, atol=0
    )


def test_of_chains_that_end_together_one_stays_beside_the_last() -> None:
    clock, result, _ = run_clock([1, 1, 50, 1], 0, 4)
    assert clock.batches == [4, 2]
    assert 2 in clock.chains
    assert (result.z[2, :, 0] == 2).all()


def test_a_batch_that_would_be_compiled_again_does_not_shrink() -> None:
    clock, result, _ = run_clock([1, 1, 2, 3, 10, 20, 30, 400], 0, 4, can_shrink=False)
    assert clock.batches == [8]
    torch.testing.assert_close(
        result.z[..., 1], torch.arange(1.0, 5.0).expand(8, -1), rtol=0, atol=0
    )


@pytest.mark.parametrize("periods", [[3], [1, 50]])
def test_one_and_two_chains_stay_together(periods: list[int]) -> None:
    clock, result, _ = run_clock(periods, 3, 4)
    assert clock.batches == [len(periods)]
    torch.testing.assert_close(
        result.z[..., 1], torch.arange(4.0, 8.0).expand(len(periods), -1), rtol=0, atol=0
    )


def test_chains_are_looked_at_after_a_block_once_none_adapts() -> None:
    """Chains of periods 1 and 4 that tune for two draws: 8 steps one by one, then blocks."""
    looks = []

    class Watched(Clock):
        def steps(self, num_steps: int) -> BlockDraws:
            looks.append(self.time)
            return super().steps(num_steps)

    clock: Any = Watched([1, 4], block=6)
    Sampling(clock, warmup_steps=2, num_samples=5, limit=8, progress=Bar(2)).to_the_end()
    assert looks == [*range(9), 14, 20, 26]


def test_phases_are_those_of_the_slowest_chain(monkeypatch: pytest.MonkeyPatch) -> None:
    """Warm-up ends when the last chain keeps its first draw; by a clock of one second a step."""
    clock = Clock([1, 10])
    monkeypatch.setattr(time, "perf_counter", lambda: float(clock.time))
    chains: Any = clock
    run = Sampling(chains, warmup_steps=3, num_samples=4, limit=8, progress=Bar(2))
    assert run.to_the_end().phases == {"warm-up": 30.0, "sampling": 40.0}


# --- kernels on a Gaussian -----------------------------------------------------------------------

SD = torch.tensor([0.1, 1.0, 3.0], dtype=torch.float64)


def gaussian(z: Tensor) -> tuple[Tensor, Tensor]:
    return 0.5 * (z / SD).square().sum(-1), z / SD**2


def run_kernel(kernel: Any, num_chains: int, limit: int, kind: Any = "diagonal") -> Sampled:
    generator = torch.Generator().manual_seed(1)
    starts = torch.randn(num_chains, 3, generator=generator, dtype=torch.float64)
    chains = in_lockstep(
        kernel,
        Energy(gaussian),
        starts,
        first_mass(gaussian(starts)[1], kind),
        limit=limit,
        target_accept=0.8,
        seed=0,
        graphs=Graphs("the step", compiled=False, strict=False),
    )
    run = Sampling(
        chains,
        warmup_steps=45,
        num_samples=40,
        limit=limit,
        progress=Progress("made", num_chains, 85, show=False),
    )
    return run.to_the_end()


@pytest.mark.slow("about a second")
@pytest.mark.parametrize(("kernel", "limit"), [(nuts_kernel, 256), (hmc_kernel, 4)])
def test_dropping_chains_does_not_change_what_is_drawn(
    kernel: Kernel, limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NUTS drops chains as they end; the moments stay those of the Gaussian."""
    sizes: list[int] = []
    keep = Lockstep.keep

    def counted(self: Lockstep, places: Places) -> None:
        sizes.append(len(places))
        keep(self, places)

    monkeypatch.setattr(Lockstep, "keep", counted)
    result = run_kernel(kernel, 40, limit)
    assert sizes
    assert sizes[-1] >= 2
    assert result.z.shape == (40, 40, 3)
    assert moment_scores(result.z, torch.zeros(3).double(), (SD**2).diag()).max() < 4.5
    lp = torch.from_numpy(result.stats[..., 0])
    torch.testing.assert_close(lp, -gaussian(result.z)[0])


def test_the_first_mass_matrix_has_the_shapes_of_later_ones() -> None:
    grad = torch.ones(4, 7)
    low_rank = first_mass(grad, "low_rank")
    assert low_rank.basis is not None
    assert low_rank.stretch is not None
    assert (low_rank.basis.shape, low_rank.stretch.shape) == ((7, RANK), (RANK,))
    assert not low_rank.basis.any()
    assert (low_rank.stretch == 1).all()
    assert first_mass(grad, "diagonal").basis is None
