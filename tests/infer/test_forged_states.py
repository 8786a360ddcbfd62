"""States of chains that no run was in, of right types and shapes: from some a run would not end."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import pytest
import torch
from torch import Tensor

from pyro_bnn.errors import FileFormatError
from pyro_bnn.infer.mcmc import hmc_kernel, nuts_kernel
from pyro_bnn.infer.mcmc.sampling import Sampling
from tests.infer.test_nuts_checkpoint import CHAINS, DRAWS, made

State: TypeAlias = dict[str, Any]
LAST_WINDOW = 15  # of the warm-up
NUTS, HMC = (nuts_kernel, 64), (hmc_kernel, 4)


def state_of(kernel: Any, limit: int, path: Path, *, is_sampling: bool = False) -> State:
    """A state in the first window, or one in which a chain has draws."""
    run = made(kernel, limit, "diagonal", path)
    run.begin()
    while not (run.num_common if is_sampling else run._window and run._window._rows):
        run.go()
    return run.state()


def restored(kernel: Any, limit: int, path: Path, state: State) -> Sampling:
    run = made(kernel, limit, "diagonal", path)
    run.restore(state)
    return run


def number(*names: str, to: float) -> Callable[[State], None]:
    """Sets the first number of a tensor."""

    def change(state: State) -> None:
        for name in names[:-1]:
            state = state[name]
        state[names[-1]] = state[names[-1]].clone()
        state[names[-1]].view(-1)[0] = to

    return change


def kernel_number(name: str, to: int) -> Callable[[State], None]:
    return number("chains", "changing", f"kernel.{name}", to=to)


def row(place: int, make: Callable[[Tensor], Tensor]) -> Callable[[State], None]:
    """Changes one of the draws, gradients and places of a window."""

    def change(state: State) -> None:
        state["drawn"]["rows"][place] = make(state["drawn"]["rows"][place])

    return change


def in_float(name: str) -> Callable[[State], None]:
    def change(state: State) -> None:
        state[name] = state[name].double() + 0.5

    return change


def twice(state: State) -> None:
    state["chains"]["chains"] = torch.zeros(CHAINS, dtype=torch.int64)


ENDLESS, OTHER = "trajectories that would never end", "other chains or other windows"
WINDOW = "of another window"


@pytest.mark.parametrize(
    ("sampler", "change", "said"),
    [
        (NUTS, number("chains", "changing", "points", to=2**40), ENDLESS),
        (NUTS, number("chains", "changing", "points", to=0), ENDLESS),
        (NUTS, kernel_number("size", 3), ENDLESS),  # no power of 2
        (NUTS, kernel_number("size", 64), ENDLESS),
        (NUTS, kernel_number("size", 0), ENDLESS),
        (NUTS, kernel_number("leaf", 2**20), ENDLESS),
        (NUTS, kernel_number("leaf", -1), ENDLESS),
        (NUTS, kernel_number("chosen", 2), ENDLESS),
        (NUTS, kernel_number("growing", -1), ENDLESS),
        (HMC, kernel_number("length", 7), ENDLESS),
        (HMC, kernel_number("num_steps", -(2**62)), ENDLESS),
        (HMC, kernel_number("num_steps", 6), ENDLESS),
        (NUTS, number("left", to=2**62), OTHER),
        (NUTS, number("left", to=-1), OTHER),
        (NUTS, number("left", to=DRAWS - 1), OTHER),  # with no draw in the store
        (NUTS, in_float("left"), OTHER),
        (NUTS, twice, r"is of chains \[0 0 0 0 0\], not of 5"),
        (NUTS, number("drawn", "num_drawn", to=-(2**62)), WINDOW),
        (NUTS, number("drawn", "num_drawn", to=2**62), WINDOW),
        (NUTS, row(0, lambda z: z[:-1]), WINDOW),
        (NUTS, row(1, lambda grad: grad[:, :-1]), WINDOW),
        (NUTS, row(2, lambda places: places + CHAINS), WINDOW),
        (NUTS, row(2, lambda places: places.double()), WINDOW),
    ],
)
def test_a_state_that_no_run_was_in_is_refused(
    sampler: tuple[Any, int], change: Callable[[State], None], said: str, tmp_path: Path
) -> None:
    path = tmp_path / "draws"
    state = state_of(*sampler, path)
    restored(*sampler, path, state)
    change(state)
    with pytest.raises(FileFormatError, match=said):
        restored(*sampler, path, state)


@pytest.mark.parametrize("sampler", [NUTS, HMC])
def test_draws_left_are_those_that_the_store_has_not(
    sampler: tuple[Any, int], tmp_path: Path
) -> None:
    path = tmp_path / "draws"
    state = state_of(*sampler, path, is_sampling=True)
    assert restored(*sampler, path, state).num_common > 0
    for left in (0, DRAWS, DRAWS + LAST_WINDOW):
        other = {**state, "left": torch.full_like(state["left"], left)}
        with pytest.raises(FileFormatError, match=OTHER):
            restored(*sampler, path, other)
